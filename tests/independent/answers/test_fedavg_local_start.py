"""FedAvg from a start on local data: w_0 is the average of models that were trained alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch import Tensor, nn

from fedalloy.aggregation.rule import Aggregation
from fedalloy.methods.fedavg_local_start import FedAvgLocalStart


def average(models: dict[int, nn.Module], share: dict[int, float]) -> dict[str, Tensor]:
    """Sum over k of n_k w_k / n, statistics included; counters are the server's."""
    found: dict[str, Any] = {}
    for name, value in next(iter(models.values())).state_dict().items():
        if value.is_floating_point():
            found[name] = sum(share[k] * net.state_dict()[name] for k, net in models.items()) / sum(share.values())
    return found


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int, weights: str) -> nn.Module:
    server: nn.Module = world.server()
    for t in range(1, rounds + 1):
        active = world.active(t)
        share = {k: float(world.setting.sizes[k]) if weights == "size" else 1.0 for k in active}
        if t == 1:
            alone = {k: copy.deepcopy(server) for k in active}
            for k, net in alone.items():
                tools.pretrain(world, net, (t, k), world.own(k), "private", given)
            server.load_state_dict(average(alone, share), strict=False)
        sent = {k: copy.deepcopy(server) for k in active}
        for k, net in sent.items():
            tools.local_work(world, net, t, k)
        server.load_state_dict(average(sent, share), strict=False)
    return server


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pretrain_private": 3, "private_batch": 5},
        {"converged_by": "training", "private_patience": 1},
        {"held_out": 0.3, "held_out_least": 2, "private_patience": 2, "private_batch": 3},
    ],
    ids=str,
)
def test_it_is_fedavg_from_an_average(options, weights, world, tools):
    here = world(same=True)
    ran = here.run(FedAvgLocalStart(**options, aggregation=Aggregation(weights=weights)), 3)
    server = repeated(here, tools, options, 3, weights)
    floating = {name: v for name, v in server.state_dict().items() if v.is_floating_point()}
    assert tools.farthest({name: ran.states[-1]["model"][name] for name in floating}, floating) < 1e-9
