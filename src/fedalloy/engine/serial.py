"""The serial engine, the reference: clients run one after the other in this process; other engines are bit-equal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedalloy.base.tree import Tree
from fedalloy.engine.base import Round
from fedalloy.federation.core import Generation, Message, Method, State, act
from fedalloy.federation.engine import Answer, Failure
from fedalloy.federation.evaluation import evaluate
from fedalloy.federation.setting import Setting


class Serial:
    """Run clients in this process, in ascending id.

    `memories` contains the clients' memories; pass those of a checkpoint to resume from it.
    """

    def __init__(self, setting: Setting, memories: dict[int, Tree] | None = None) -> None:
        self.setting = setting
        self.memories: dict[int, Tree] = dict(memories or {})
        self.trusted: Generation | None = None
        self.workers = 1

    @property
    def remote(self) -> bool:
        """Data and memories are here."""
        return False

    def begin(self, folder: Path | None) -> None:
        """Begin a run with empty memories."""
        self.memories, self.trusted = {}, None

    def open(self, method: Method, round: int) -> Round:
        """Begin a round."""
        return Round(self, method, round)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Let one client after the other act."""
        for message in messages:
            start = time.perf_counter()
            me = self.setting.client(message.client, round, self.memories.get(message.client, {}))
            answer = act(method, me, message)
            yield Answer(message.client, answer, me.meter, time.perf_counter() - start)

    def evaluate(self, method: Method, state: State) -> dict[str, Any]:
        """The record of a round's views."""
        return evaluate(self.setting, method, state, self.memories, self.workers)
