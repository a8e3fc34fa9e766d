"""A finished run, opened to look at what its method does in a few more rounds; nothing is written."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor

from fedalloy.config.build import build
from fedalloy.config.experiment import recorded
from fedalloy.config.sections import Experiment
from fedalloy.data.samples import Samples
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Method, State
from fedalloy.storage.store import Store, described


def opened(folder: Path) -> tuple[Experiment, Serial, State, Samples]:
    """A run's experiment, its clients with what they remember, its last state and the common test set."""
    exp = recorded(described(folder))
    setting = build(exp).setting
    saved = Store(folder).restore()
    assert setting.holdout is not None
    assert saved is not None
    state, memories = saved
    return exp, Serial(setting, memories), state, setting.holdout


def go_on(method: Method, engine: Serial, state: State, rounds: int) -> None:
    """Play some more rounds; what the method prints in one is shown at its end."""
    for number in range(state.round + 1, state.round + 1 + rounds):
        state = method.round(state, engine.open(method, number))
        sys.stdout.flush()


def accuracy(outputs: Tensor, test: Samples) -> float:
    """Of the test samples, how many per cent are seen as what they are."""
    return 100 * float((outputs.argmax(1) == test.labels).double().mean())
