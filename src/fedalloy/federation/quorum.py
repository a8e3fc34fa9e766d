"""How many answers a round needs, how long to wait for one, and when a run gives up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedalloy.errors import FedalloyError, UsageError


class QuorumError(FedalloyError):
    """Too few clients answered, in one round or in several in a row."""

    code = 6


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """What a round needs to count.

    Fewer answers than `fraction` of those that were asked leave the model and the clients' memories as they were: the
    round is recorded as skipped, and after `skips` such rounds in a row, or if all rounds are, the run stops, its
    checkpoint intact. A client that takes longer than `deadline` seconds counts as absent; without one, nobody is
    hurried, and equal runs are equal on any machine. Only workers and Flower's clients can be hurried.

    >>> Quorum().needed(9)
    5
    """

    fraction: float = 0.5
    skips: int = 5
    deadline: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise UsageError(f"quorum.fraction = {self.fraction} must lie in [0, 1]; 0.5 means half of those asked")
        if self.skips < 1:
            raise UsageError(f"quorum.skips = {self.skips} must be at least 1")
        if self.deadline is not None and self.deadline <= 0:
            raise UsageError(f"quorum.deadline = {self.deadline} must be a positive number of seconds, or be left out")

    def needed(self, asked: int) -> int:
        """How many of those that were asked must answer."""
        return math.ceil(round(self.fraction * asked, 9))
