"""FedGKD against Yao et al., IEEE TC 2023, and the code of those who compared it, written again in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedalloy.methods import FedGKD

ROUNDS = 5


def kl(student, teacher, tau):
    """KL(teacher || student), the mean over the batch."""
    p, q = (teacher / tau).softmax(1), (student / tau).softmax(1)
    return (p * (p.log() - q.log())).sum(1).mean()


def mse(student, teacher, tau):
    """The mean squared error of the logits, over samples and classes."""
    return ((student - teacher) ** 2).mean()


def softmax_twice(student, teacher, tau):
    """KDIA's code: the cross-entropy takes the student's probabilities for logits."""
    p, q = (teacher / tau).softmax(1), (student / tau).softmax(1)
    return -(p * (q - q.exp().sum(1, keepdim=True).log())).sum(1).mean()


def client(world, w, teacher, t, k, gamma, distance, tau):
    """CE + gamma / 2 distance(student, teacher), on the client's own data."""
    old = None if teacher is None else world.net(teacher).eval()

    def loss(net, x, y):
        out = net(x)
        found = F.cross_entropy(out, y)
        if old is None:
            return found
        with torch.no_grad():
            soft = old(x)
        return found + gamma / 2 * distance(out, soft, tau)

    return world.train(world.net(w), t, world.batches(t, k), loss)


def rounds(world, tools, gamma=0.2, distance=kl, tau=1.0, start="available", weigh=float, M=5):
    """The teacher is the mean of the last M trained global models, the current one included."""
    w, buffer, found = world.start().state_dict(), [], []
    for t in range(1, ROUNDS + 1):
        active, full = tools.turns[(t - 1) % 4], len(buffer) == M
        teacher = tools.mean(buffer, [1] * len(buffer)) if buffer and (full or start == "available") else None
        if start == "received" and not full:
            teacher = w
        models = [client(world, w, teacher, t, k, gamma, distance, tau) for k in active]
        w = tools.mean(models, [weigh(world.size(k)) for k in active])
        buffer = [*buffer, w][-M:]
        found.append(w)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"variant": "reference"}, {"weigh": lambda n: 1.0}),
        ({"variant": "fedkf"}, {"gamma": 0.001, "start": "full_buffer"}),
        ({"variant": "kdia"}, {"distance": softmax_twice, "tau": 2.0, "start": "received"}),
        ({"variant": "fedkf", "buffer": 2, "gamma": 4.0}, {"gamma": 4.0, "start": "full_buffer", "M": 2}),
        (
            {"variant": "kdia", "buffer": 2, "gamma": 9.0},
            {"gamma": 9.0, "distance": softmax_twice, "tau": 2.0, "start": "received", "M": 2},
        ),
        ({"buffer": 3, "gamma": 4.0, "tau": 3.0}, {"gamma": 4.0, "tau": 3.0, "M": 3}),
        ({"buffer": 1, "gamma": 4.0}, {"gamma": 4.0, "M": 1}),
        ({"gamma": 2.0, "distance": "mse"}, {"gamma": 2.0, "distance": mse}),
        (
            {"buffer": 2, "gamma": 4.0, "distance": "mse", "start": "received"},
            {"gamma": 4.0, "distance": mse, "start": "received", "M": 2},
        ),
        ({"gamma": 4.0, "start": "full_buffer", "buffer": 3}, {"gamma": 4.0, "start": "full_buffer", "M": 3}),
    ],
)
def test_five_rounds(options, expected, world, tools):
    here = world()
    ran = here.run(FedGKD(**options), ROUNDS)
    for t, w in enumerate(rounds(here, tools, **expected), start=1):
        assert tools.farthest(ran.view(t), w) < 1e-11
