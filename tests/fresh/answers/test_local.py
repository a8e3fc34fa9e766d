"""Local training alone, with KnFu's second phase, in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from fedalloy.methods.local import Local
from fedalloy.train.fit import LocalWork

SECOND = "second phase"
SGD = LocalWork(epochs=1, batch=4, lr=0.1, momentum=0.8, lr_decay=0.5)


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int) -> dict[int, nn.Module]:
    """In each round, a client's local work and then as many passes more; one optimiser, or a new one each time."""
    o = {"persist": False, "second_phase": 0, **given}
    nets, kept = world.nets(), dict[int, Any]()
    for t in range(1, rounds + 1):
        for k in world.active(t):
            x, y = world.own(k)

            def loss(z: Tensor, rows: Tensor, y: Tensor = y) -> Tensor:
                return nn.functional.cross_entropy(z, y[rows])

            for stage, epochs in (("batches", world.work.epochs), (SECOND, o["second_phase"])):
                draws = world.draws(stage, t, k, len(y), world.work.batch, epochs=epochs)
                optimiser = world.optimiser(nets[k], t, kept=kept.get(k) if o["persist"] else None)
                kept[k] = tools.steps(nets[k], x, draws, loss, optimiser)
    return nets


@pytest.mark.parametrize("given", [{}, {"work": SGD}], ids=["adam", "momentum"])
@pytest.mark.parametrize(
    "options", [{}, {"second_phase": 1}, {"persist": True}, {"persist": True, "second_phase": 2}], ids=str
)
def test_local_is_training_alone(options, given, world, tools):
    here = world(**given)
    ran, nets = here.run(Local(**options), 3), repeated(here, tools, options, 3)
    assert max(tools.farthest(ran.memories[k]["model"], nets[k]) for k in nets) < 1e-9
