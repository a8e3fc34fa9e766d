"""How many answers a round needs, how long to wait for an answer, and when a run gives up."""

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
    """When a round counts.

    If fewer than `fraction` of the asked clients answer, the model and the clients' memories stay unchanged: the
    round is recorded as skipped. After `skips` such rounds in a row, or if all rounds are skipped, the run stops, with
    its checkpoint intact. A client that takes longer than `deadline` seconds counts as absent; without a deadline there
    is no time limit, and equal runs are equal on any machine. Only workers and Flower's clients can have a deadline.

    >>> Quorum().needed(9)
    5
    """

    fraction: Probability = option(0.5, "the share of those asked that must answer for a round to count")
    skips: Count = option(5, "stop the run after this many skipped rounds in a row")
    deadline: Positive | None = option(None, "seconds that a client may take (pool and Flower); unset: no limit")

    def __post_init__(self) -> None:
        resolve(self, "quorum")

    def needed(self, asked: int) -> int:
        """How many of the asked clients must answer."""
        return math.ceil(round(self.fraction * asked, 9))
