"""What an engine is: the one way between a method's server and its clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedalloy.base.tree import Tree
from fedalloy.federation.core import Federation, Generation, Message, Method, Reply, State
from fedalloy.federation.setting import Setting
from fedalloy.train.costs import Meter


@dataclass(frozen=True)
class Answer:
    """A client's reply with what it took to make it."""

    client: int
    reply: Reply
    meter: Meter
    seconds: float = 0.0


@dataclass(frozen=True)
class Failure:
    """A client from which no answer will come in this round, and why."""

    client: int
    reason: str


class Failed(Failure):
    """A client that was there and could not act on what it was sent."""


class Forgot(Failure):
    """A client whose memory is gone: it begins anew, and what it answers then comes after this."""


class Engine(Protocol):
    """Carries messages to clients and keeps their memories; serial, threads, pool and flower are engines.

    `trusted` is the newest generation that clients are known to have trained from, while that is not the present one.
    So many `workers` act side by side. Where clients are `remote`, their data and memories stay with them, and
    `memories` holds references.
    """

    setting: Setting
    memories: dict[int, Tree]
    trusted: Generation | None
    workers: int

    @property
    def remote(self) -> bool:
        """Whether clients keep their data and memories to themselves."""

    def begin(self, folder: Path | None) -> None:
        """Begin a run, of which nobody remembers anything; simulated clients may keep files in this folder."""

    def open(self, method: Method, round: int) -> Federation:
        """Begin a round."""

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Bring messages to clients, and their answers back in any order."""

    def evaluate(self, method: Method, state: State) -> dict[str, Any]:
        """The record of a round's views."""
