"""FedCOG against the authors' code (Ye et al., ICLR 2024), written again in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedalloy.base.rng import generator
from fedalloy.federation.core import random_network
from fedalloy.methods import FedCOG

ROUNDS, IMAGES, STEPS = 2, 11, 4
NOISE, SHUFFLE = "images", "images/batches"  # the streams of the pixels and of their batches
OURS = {
    "weighting": "sample_ratio",
    "disagree": "js",
    "targets": "last",
    "generated_norms": "keep",
    "unseen": "skip",
    "start_round": 1,
}
CODE = {**OURS, "disagree": "reference", "targets": "best", "generated_norms": "update", "unseen": "random"}


def jensen_shannon(a, b):
    """JS(P, Q) = (KL(P || M) + KL(Q || M)) / 2, the mean over the images."""
    p, q = a.softmax(1), b.softmax(1)
    m = (p + q) / 2
    return ((p * (p / m).log()).sum(1) / 2 + (q * (q / m).log()).sum(1) / 2).mean()


def as_in_the_code(a, b):
    """Clamped probabilities, KL(M || P) for KL(P || M), and at most 1."""
    p, q = a.softmax(1), b.softmax(1)
    m = ((p + q) / 2).clamp(0.01, 0.99)
    p, q = p.clamp(0.01, 0.99), q.clamp(0.01, 0.99)
    return ((m * (m / p).log()).sum(1) / 2 + (m * (m / q).log()).sum(1) / 2).mean().clamp(0, 1)


def lacking(world, k):
    """How many samples of each class a client has fewer than of its most frequent one."""
    counts = torch.bincount(world.data(k)[1], minlength=3)
    return counts.max() - counts


def generate(world, glob, prev, t, k, rate, lambda_dis, disagree, targets):
    """Pixels from noise, by Adam (0.5, 0.9): min CE(glob(x), y) + lambda_dis (1 - JS(prev(x), glob(x)))."""
    gap = lacking(world, k)
    y = torch.cat([torch.full((int(IMAGES * n / gap.sum()),), c) for c, n in enumerate(gap.tolist())])
    x = torch.randn(len(y), 1, 2, 2, generator=generator(3, NOISE, t, k)).requires_grad_()
    first, second, best, answers = torch.zeros_like(x), torch.zeros_like(x), float("inf"), None
    js = jensen_shannon if disagree == "js" else as_in_the_code
    for step in range(1, STEPS + 1):
        out = glob(x)
        loss = F.cross_entropy(out, y) + lambda_dis * (1 - js(prev(x), out))
        if loss.item() < best:
            best, answers = loss.item(), out.detach().clone()
        (gradient,) = torch.autograd.grad(loss, x)
        first, second = 0.5 * first + 0.5 * gradient, 0.9 * second + 0.1 * gradient**2
        move = (first / (1 - 0.5**step)) / ((second / (1 - 0.9**step)).sqrt() + 1e-8)
        x = (x.detach() - rate * move).requires_grad_()
    x = x.detach()
    return x, glob(x).detach() if targets == "last" else answers


def client(world, w, prev, t, k, *, rate, lambda_dis, lambda_kd, weighting, disagree, targets, generated_norms):
    """a CE(real) + b KL(glob || local) on a batch of the images, in one step."""
    own, n, m = world.batches(t, k), world.size(k), int(lacking(world, k).sum())
    if prev is None or m == 0:
        return world.train(world.net(w), t, own, lambda net, x, y: F.cross_entropy(net(x), y))
    images, soft = generate(world, world.net(w).eval(), prev.eval(), t, k, rate, lambda_dis, disagree, targets)
    parts = iter(world.order(SHUFFLE, t, k, len(images), len(own)))
    a, b = (n / (n + m), m / (n + m)) if weighting == "sample_ratio" else (1.0, lambda_kd)

    def loss(net, x, y):
        real, at = F.cross_entropy(net(x), y), next(parts)
        kept = {name: value.clone() for name, value in net.named_buffers()} if generated_norms == "keep" else {}
        out = functional_call(net, kept, images[at])  # moves the copies, if there are any, and not the statistics
        p, q = soft[at].log_softmax(1), out.log_softmax(1)
        return a * real + b * (p.exp() * (p - q)).sum(1).mean()

    return world.train(world.net(w), t, own, loss)


def rounds(world, tools, *, unseen, start_round, rate=0.3, lambda_dis=0.1, lambda_kd=0.01, **rest):
    w, last, found = world.start().state_dict(), {}, []
    for t in range(1, ROUNDS + 1):
        active, new = tools.turns[t - 1], {}
        for k in active:
            prev = world.net(last[k]) if k in last else None
            if prev is None and unseen == "random":
                prev = random_network(world.setting.network(k), world.setting.seed, k)
            if t < start_round:
                prev = None
            new[k] = client(world, w, prev, t, k, rate=rate, lambda_dis=lambda_dis, lambda_kd=lambda_kd, **rest)
        w = tools.mean([new[k] for k in active], [world.size(k) for k in active])
        last |= new
        found.append(w)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, OURS),
        ({"variant": "reference", "start_round": 1}, CODE),
        ({"variant": "kdia", "start_round": 1}, {**CODE, "weighting": "lambda_kd"}),
        ({"variant": "reference", "start_round": 2}, {**CODE, "start_round": 2}),
        ({"weighting": "lambda_kd", "lambda_kd": 3.0}, {**OURS, "weighting": "lambda_kd", "lambda_kd": 3.0}),
        ({"lambda_dis": 5.0}, {**OURS, "lambda_dis": 5.0}),
        ({"lambda_dis": 5.0, "disagree": "reference"}, {**OURS, "lambda_dis": 5.0, "disagree": "reference"}),
        ({"targets": "best"}, {**OURS, "targets": "best"}),
        ({"generated_norms": "update"}, {**OURS, "generated_norms": "update"}),
        ({"unseen": "random"}, {**OURS, "unseen": "random"}),
    ],
)
def test_two_rounds(options, expected, world, tools):
    here = world()
    method = FedCOG(images=IMAGES, generation_steps=STEPS, generation_lr=0.3, **options)
    ran = here.run(method, ROUNDS)
    for t, w in enumerate(rounds(here, tools, **expected), start=1):
        assert tools.farthest(ran.view(t), w) < 1e-10


@pytest.mark.parametrize(("loudness", "cut"), [(17.0, False), (30.0, True)])
def test_clamped_answers_and_a_loss_that_rises_again(loudness, cut, world, tools):
    """Models that are sure: probabilities are clamped, their mean is cut off, and the last step is not the best."""
    (network,) = world().setting.networks

    def loud():
        net = network()
        with torch.no_grad():
            net.head[-1].weight *= loudness
        return net

    here = world(networks=[loud])
    glob, prev = (here.start().eval(), random_network(loud, 3, 0).eval())
    x = torch.randn(IMAGES, 1, 2, 2, generator=generator(3, NOISE))
    with torch.no_grad():
        assert (as_in_the_code(prev(x), glob(x)).item() == 1) == cut
        assert glob(x).softmax(1).min().item() < 0.01
    method = FedCOG(
        variant="reference", start_round=1, lambda_dis=5.0, images=IMAGES, generation_steps=STEPS, generation_lr=2.0
    )
    (expected, *_) = rounds(here, tools, rate=2.0, lambda_dis=5.0, **CODE)
    assert tools.farthest(here.run(method, 1).view(1), expected) < 1e-10


def test_what_the_variants_have_when_nothing_else_is_said():
    assert [FedCOG(variant=name).start_round for name in ("recommended", "reference", "kdia")] == [1, 51, 51]
    plain = FedCOG()
    assert (plain.images, plain.generation_steps, plain.generation_lr, plain.lambda_dis) == (256, 500, 0.01, 0.1)
