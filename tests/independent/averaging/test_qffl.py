"""q-FFL against Li et al., ICLR 2020, Algorithm 2 (q-FedAvg), written again in plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedalloy.base.rng import numpy_generator
from fedalloy.federation.participation import Participation
from fedalloy.methods import QFFL
from fedalloy.nets.models.base import FeatureNet
from fedalloy.train.fit import LocalWork

ROUNDS = 3


def client(world, w, t, k, q):
    """F_k at the received model, over all samples; Delta w_k = L (w - w_k), Delta_k and h_k, with L = 1 / eta."""
    net, (x, y) = world.net(w), world.data(k)
    with torch.no_grad():
        loss = float(F.cross_entropy(net.eval()(x), y).float()) + 1e-10  # it travels in single precision
    w_k = world.train(net, t, world.batches(t, k), lambda net, x, y: F.cross_entropy(net(x), y))
    lipschitz = 1 / world.rate(t)
    moved = {name: lipschitz * (w[name] - w_k[name]) for name, _ in net.named_parameters()}
    norm = sum(float((part**2).sum()) for part in moved.values())
    delta = {name: loss**q * part for name, part in moved.items()}
    return delta, q * loss ** (q - 1) * norm + lipschitz * loss**q, w_k


def drawn(world, t, by_size):
    """Half of the clients, uniformly or with a probability proportional to their size, without replacement."""
    sizes = np.array([world.size(k) for k in range(4)], dtype=float)
    odds = sizes / sizes.sum() if by_size else None
    return sorted(numpy_generator(3, "sampling", t).choice(4, 2, replace=False, p=odds).tolist())


def rounds(world, tools, q, by_size=None):
    """w^{t+1} = w^t - sum_k Delta_k / sum_k h_k; statistics have no gradient and are averaged, all clients alike."""
    w, found = world.start().state_dict(), []
    for t in range(1, ROUNDS + 1):
        active = tools.turns[t - 1] if by_size is None else drawn(world, t, by_size)
        deltas, hs, models = zip(*(client(world, w, t, k, q) for k in active), strict=True)
        new = tools.mean(models, [1] * len(models))
        for name in deltas[0]:
            new[name] = w[name] - sum(delta[name] for delta in deltas) / sum(hs)
        w = new
        found.append((active, w))
    return found


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 5.0])
def test_the_step(q, world, tools):
    here = world()
    ran = here.run(QFFL(q=q), ROUNDS)
    for t, (_, w) in enumerate(rounds(here, tools, q), start=1):
        assert tools.farthest(ran.view(t), w) < 1e-12
    assert tools.farthest(ran.view(ROUNDS), rounds(here, tools, q + 0.01)[-1][1]) > 1e-6  # the comparison can fail


@pytest.mark.parametrize(
    ("options", "q", "by_size"),
    [
        ({}, 0.1, False),
        ({"variant": "reference"}, 5.0, True),
        ({"variant": "fedkf"}, 1e-4, False),
        ({"sampling": "size"}, 0.1, True),
    ],
)
def test_variants_and_who_is_drawn(options, q, by_size, world, tools):
    here = world((30, 14, 6, 4), participation=Participation(policy="fraction", fraction=0.5))
    assert any(drawn(here, t, True) != drawn(here, t, False) for t in range(1, ROUNDS + 1))
    ran = here.run(QFFL(**options), ROUNDS)
    for t, (active, w) in enumerate(rounds(here, tools, q, by_size), start=1):
        assert sorted(ran.rounds[t - 1].active) == active
        assert tools.farthest(ran.view(t), w) < 1e-12


def test_one_step_on_all_data_is_q_fedsgd(world, tools):
    """Algorithm 1: Delta_k = F_k^q grad F_k and h_k = q F_k^(q-1) |grad F_k|^2 + L F_k^q, at the received model."""
    q, eta, one_step = 2.0, 0.1, LocalWork(work="fixed_steps", steps=1, batch=100, lr=0.1)

    def linear():
        return FeatureNet(nn.Sequential(nn.Flatten()), nn.Sequential(nn.Linear(4, 3)), (4,))

    here = world(networks=[linear], work=one_step)
    ran, net = here.run(QFFL(q=q), ROUNDS), here.start()
    for t in range(1, ROUNDS + 1):
        deltas, h = [torch.zeros_like(p) for p in net.parameters()], 0.0
        for k in tools.turns[t - 1]:
            x, y = here.data(k)
            loss = F.cross_entropy(net(x), y)
            gradients = torch.autograd.grad(loss, list(net.parameters()))
            f = float(loss.detach().float()) + 1e-10
            deltas = [delta + f**q * g for delta, g in zip(deltas, gradients, strict=True)]
            h += q * f ** (q - 1) * sum(float((g**2).sum()) for g in gradients) + f**q / eta
        with torch.no_grad():
            for p, delta in zip(net.parameters(), deltas, strict=True):
                p -= delta / h
        assert tools.farthest(ran.view(t), net.state_dict()) < 1e-12
