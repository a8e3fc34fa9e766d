"""What the two peers' programs have in common: the task, the clock that starts and stops with the driver, the report.

The driver (`bench/peers.py`) writes the task and every client's data into a folder and names it in the environment. A
line on standard input says how many rounds to run; a line of JSON answers with their seconds and optimiser steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedalloy.nets import models

FOLDER = "PEERS_TASK"

torch.set_num_threads(1)


@cache
def task() -> SimpleNamespace:
    """Network, optimiser and size of the federation."""
    return SimpleNamespace(**json.loads((Path(os.environ[FOLDER]) / "task.json").read_text()))


@cache
def data() -> tuple[Tensor, Tensor]:
    """Inputs and labels, both with the client as the first dimension."""
    x, y = (torch.from_numpy(np.load(Path(os.environ[FOLDER]) / f"{name}.npy")) for name in "xy")
    return x, y


def network() -> nn.Module:
    """The very network that fedalloy trains."""
    return models.create(task().model, classes=task().classes, channels=task().channels, size=task().size)


class Clock:
    """Waits for the driver before a round and reports after the last one it asked for."""

    def __init__(self, peer: str) -> None:
        self._report = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what the peer itself prints must not get between the reports
        self._left = self._steps = 0
        self._seconds = 0.0
        numbers = sum(p.numel() for p in network().parameters())
        self._say(peer=f"{peer} {version(peer)}", torch=torch.__version__, parameters=numbers)

    def begin(self) -> None:
        """Wait until the driver asks for rounds, unless some are left; then start the clock."""
        if not self._left:
            line = sys.stdin.readline()
            if not line:
                raise EOFError("the driver has gone")
            self._left, self._steps, self._seconds = int(line), 0, 0.0
        self._since = time.perf_counter()

    def end(self, steps: int) -> None:
        """Stop the clock; `steps` is how many optimiser steps the round took."""
        self._seconds += time.perf_counter() - self._since
        self._steps += steps
        self._left -= 1
        if not self._left:
            self._say(seconds=self._seconds, steps=self._steps)

    def _say(self, **facts: Any) -> None:
        print(json.dumps(facts), file=self._report)
