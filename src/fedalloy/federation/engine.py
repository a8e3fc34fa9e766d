"""The engine interface: the only connection between a method's server and its clients."""

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
    """A client's reply, with the cost of producing it."""

    client: int
    reply: Reply
    meter: Meter
    seconds: float = 0.0


@dataclass(frozen=True)
class Failure:
    """A client that will not answer in this round, and why."""

    client: int
    reason: str


class Failed(Failure):
    """A client that was present but could not act on what it was sent."""


class Forgot(Failure):
    """A client that lost its memory: it starts again from an empty one, and its answer follows this event."""


class Engine(Protocol):
    """Carries messages to clients and keeps their memories; serial, threads, pool and flower are engines.

    `trusted` is the newest generation that clients are known to have trained from, unless it is the current one.
    `workers` is the number of clients that act in parallel. If clients are `remote`, their data and memories stay with
    them, and `memories` holds references.
    """

    setting: Setting
    memories: dict[int, Tree]
    trusted: Generation | None
    workers: int

    @property
    def remote(self) -> bool:
        """Whether clients keep their data and memories to themselves."""

    def begin(self, folder: Path | None) -> None:
        """Start a run with empty client memories; simulated clients may keep files in this folder."""

    def open(self, method: Method, round: int) -> Federation:
        """Start a round."""

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Deliver messages to clients, and yield their answers in any order."""

    def evaluate(self, method: Method, state: State) -> dict[str, Any]:
        """The record of a round's views."""
