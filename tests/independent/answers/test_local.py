"""Local training alone, with KnFu's second phase, in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from fedalloy.methods.local import Local
from fedalloy.train.fit import LocalWork

SGD = LocalWork(epochs=1, batch=4, lr=0.1, momentum=0.8, lr_decay=0.5)


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int) -> dict[int, nn.Module]:
    """In each round, a client's local work and then as many passes more; one optimiser, or a new one each time."""
    o = {"persist": False, "second_phase": 0, **given}
    nets, kept = world.nets(), dict[int, Any]()
    for t in range(1, rounds + 1):
        for k in world.active(t):
            for stage, epochs in (("batches", world.work.epochs), ("second phase", o["second_phase"])):
                last = kept.get(k) if o["persist"] else None
                kept[k] = tools.local_work(world, nets[k], t, k, last, stage, epochs=epochs)
    return nets


@pytest.mark.parametrize("given", [{}, {"work": SGD}], ids=["adam", "momentum"])
@pytest.mark.parametrize(
    "options", [{}, {"second_phase": 1}, {"persist": True}, {"persist": True, "second_phase": 2}], ids=str
)
def test_local_is_training_alone(options, given, world, tools):
    here = world(**given)
    ran, nets = here.run(Local(**options), 3), repeated(here, tools, options, 3)
    assert max(tools.farthest(ran.memories[k]["model"], nets[k]) for k in nets) < 1e-9
