"""FedAvgM against Hsu et al., 2019, Sec. 4.2, and the two other forms, written again in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedalloy.methods import FedAvgM

ROUNDS = 4


def client(world, w, t, k):
    return world.train(world.net(w), t, world.batches(t, k), lambda net, x, y: F.cross_entropy(net(x), y))


def heavy_ball(v, delta, beta):
    """v <- beta v + Delta w; w <- w - v."""
    v = beta * v + delta
    return v, v


def nesterov(v, delta, beta):
    """The same v, and a step of beta v + Delta w: Nesterov's, as deep-learning libraries write it."""
    v = beta * v + delta
    return v, beta * v + delta


def ema(v, delta, beta):
    """v <- beta v + (1 - beta) Delta w; w <- w - v."""
    v = beta * v + (1 - beta) * delta
    return v, v


def rounds(world, tools, form, beta, rate=1.0):
    net, found = world.start(), []
    w = {name: value.clone() for name, value in net.state_dict().items()}
    v = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for t in range(1, ROUNDS + 1):
        active = tools.turns[t - 1]
        average = tools.mean([client(world, w, t, k) for k in active], [world.size(k) for k in active])
        new = dict(average)  # statistics are averaged
        for name in v:
            v[name], step = form(v[name], w[name] - average[name], beta)
            new[name] = w[name] - rate * step
        w = new
        found.append(w)
    return found


@pytest.mark.parametrize(
    ("options", "form", "beta", "rate"),
    [
        ({}, heavy_ball, 0.9, 1.0),
        ({"variant": "paper"}, nesterov, 0.9, 1.0),
        ({"variant": "kdia"}, ema, 0.9, 1.0),
        ({"form": "heavy_ball", "momentum": 0.6, "server_lr": 0.3}, heavy_ball, 0.6, 0.3),
        ({"form": "nesterov", "momentum": 0.6, "server_lr": 0.3}, nesterov, 0.6, 0.3),
        ({"variant": "paper", "form": "ema", "momentum": 0.6}, ema, 0.6, 1.0),
    ],
)
def test_four_rounds(options, form, beta, rate, world, tools):
    here = world()
    ran = here.run(FedAvgM(**options), ROUNDS)
    for t, w in enumerate(rounds(here, tools, form, beta, rate), start=1):
        assert tools.farthest(ran.view(t), w) < 1e-11
    other = heavy_ball if form is nesterov else nesterov
    assert tools.farthest(ran.view(ROUNDS), rounds(here, tools, other, beta, rate)[-1]) > 1e-3  # it can fail
