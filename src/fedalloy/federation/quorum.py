"""How many answers a round needs, how long to wait for one, and when a run gives up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedalloy.base.options import Count, Positive, Probability, option, resolve
from fedalloy.errors import FedalloyError


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

    fraction: Probability = option(0.5, "the share of those asked that must answer for a round to count")
    skips: Count = option(5, "stop the run after this many skipped rounds in a row")
    deadline: Positive | None = option(None, "seconds that a client may take (pool and Flower); unset: no limit")

    def __post_init__(self) -> None:
        resolve(self, "quorum")

    def needed(self, asked: int) -> int:
        """How many of those that were asked must answer."""
        return math.ceil(round(self.fraction * asked, 9))
