"""FedAvg against McMahan et al., AISTATS 2017, Algorithm 1, written again in plain torch."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from fedalloy.aggregation.rule import Aggregation
from fedalloy.methods import FedAvg

ROUNDS = 4


def client_update(world, w, t, k):
    """ClientUpdate(k, w): E passes over the client's data in batches of B."""
    return world.train(world.net(w), t, world.batches(t, k), lambda net, x, y: F.cross_entropy(net(x), y))


def algorithm_1(world, tools, weigh):
    """w_{t+1} = sum_k n_k / n w_k over the clients of the round; and the same over every client's last model."""
    w, last, found = world.start().state_dict(), {}, []
    for t in range(1, ROUNDS + 1):
        active = tools.turns[t - 1]
        last |= {k: client_update(world, w, t, k) for k in active}
        w = tools.mean([last[k] for k in active], [weigh(world.size(k)) for k in active])
        found.append((w, tools.mean([last[k] for k in sorted(last)], [weigh(world.size(k)) for k in sorted(last)])))
    return found


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_four_rounds(weights, world, tools):
    here = world()
    ran = here.run(FedAvg(aggregation=Aggregation(weights=weights)), ROUNDS)
    expected = algorithm_1(here, tools, lambda n: n if weights == "size" else 1)
    for t, (aca, oca) in enumerate(expected, start=1):
        assert tools.farthest(ran.view(t), aca) < 1e-12
        assert tools.farthest(ran.view(t, "oca"), oca) < 1e-12
    other = algorithm_1(here, tools, lambda n: 1 if weights == "size" else n)
    assert tools.farthest(ran.view(ROUNDS), other[-1][0]) > 1e-3  # the comparison can fail
