"""MOON against Li, He and Song, CVPR 2021, Eq. 2 and 3 and Algorithm 1, written again in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedalloy.federation.core import random_network
from fedalloy.methods import MOON
from fedalloy.nets.models.base import projecting

ROUNDS = 3


def cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def client(world, w, prev, t, k, mu, tau):
    """CE + mu l_con, where l_con = -log(e^(sim(z, z_glob) / tau) / (that + e^(sim(z, z_prev) / tau))) (Eq. 2 and 3)."""
    glob = world.net(w).eval()

    def loss(net, x, y):
        z = net.head[:-1](net.features(x))
        found = F.cross_entropy(net.head[-1](z), y)
        if prev is None:
            return found
        with torch.no_grad():
            z_glob, z_prev = (old.head[:-1](old.features(x)) for old in (glob, prev))
        near, far = (cosine(z, other) / tau for other in (z_glob, z_prev))
        return found + mu * -(near.exp() / (near.exp() + far.exp())).log().mean()

    return world.train(world.net(w), t, world.batches(t, k), loss)


def rounds(world, tools, mu=5.0, tau=0.5, unseen="random"):
    w, last, found = world.start().state_dict(), {}, []
    for t in range(1, ROUNDS + 1):
        active, new = tools.turns[t - 1], {}
        for k in active:
            prev = world.net(last[k]).eval() if k in last else None
            if prev is None and t > 1 and unseen == "random":
                prev = random_network(world.setting.network(k), world.setting.seed, k).eval()
            new[k] = client(world, w, prev, t, k, mu, tau)
        w = tools.mean([new[k] for k in active], [world.size(k) for k in active])
        last |= new
        found.append(w)
    return found


@pytest.mark.parametrize(
    ("options", "head"),
    [
        ({}, None),
        ({}, 7),
        ({"unseen": "skip"}, None),
        ({"mu": 1.0, "tau": 0.2, "unseen": "skip"}, 7),
        ({"mu": 1.0, "tau": 2.0}, None),
        ({"mu": 0.0}, None),
    ],
)
def test_three_rounds(options, head, world, tools):
    plain = world()
    (network,) = plain.setting.networks
    here = plain if head is None else world(networks=[lambda: projecting(network(), head)])
    if head is not None:  # MOON's: FC d-d, ReLU, FC d-out, before the output layer
        kinds = [type(layer).__name__ for layer in here.start().head]
        assert kinds == ["Linear", "Tanh", "Linear", "ReLU", "Linear", "Linear"]
    ran = here.run(MOON(**options), ROUNDS)
    for t, w in enumerate(rounds(here, tools, **options), start=1):
        assert tools.farthest(ran.view(t), w) < 1e-11
    if options.get("mu", 5.0):
        other = {**options, "unseen": "random" if options.get("unseen") == "skip" else "skip"}
        assert tools.farthest(ran.view(2), rounds(here, tools, **other)[1]) > 1e-5  # client 3 is new in round 2
