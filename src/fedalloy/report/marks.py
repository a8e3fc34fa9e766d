"""Which values of a column are the best beyond the noise between seeds, and how far methods are apart.

The unit is the seed: methods are compared by their differences on the same seeds, with paired t-tests between all pairs
of methods, since nobody knows beforehand which will be the best, and Holm's correction for the number of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal

from fedalloy.report.statistics import Interval, holm, paired, paired_p, probability_of_improvement, t_interval

LEVEL = 0.05
ONE_SEED = (
    "Nothing is marked as the best: with one seed, a difference cannot be told from chance. Write --seeds 3 or more."
)
Values = Sequence[Mapping[int, float]]
"""The value of each method by seed."""


@dataclass(frozen=True)
class Difference:
    """How far the first of two methods is above the second on the seeds of both.

    `p` is that of the paired t-test, `adjusted` after Holm's correction; both are `nan` for fewer than two seeds.
    `improvement` is the probability that a run of the first has a higher value than a run of the second.
    """

    interval: Interval
    p: float
    adjusted: float
    improvement: float

    @property
    def beyond_noise(self) -> bool:
        """Whether the difference is larger than chance explains."""
        return self.adjusted < LEVEL


def differences(values: Values) -> dict[tuple[int, int], Difference]:
    """All pairs of methods, by their places, the smaller one first; pairs without a common seed are left out.

    >>> found = differences([{0: 3.0, 1: 5.0, 2: 7.0}, {0: 2.0, 1: 3.0, 2: 4.0}])
    >>> found[0, 1].interval.mean, round(found[0, 1].p, 4), found[0, 1].beyond_noise
    (2.0, 0.0742, False)
    """
    return {
        (a, b): Difference(
            t_interval(list(paired(values[a], values[b]).values())),
            p,
            adjusted,
            probability_of_improvement([*values[a].values()], [*values[b].values()]),
        )
        for (a, b), (p, adjusted) in _tested(values).items()
    }


def _tested(values: Values) -> Mapping[tuple[int, int], tuple[float, float]]:
    """The p-value of each pair with a common seed, and the same after Holm's correction."""
    return _tests(tuple(tuple(one.items()) for one in values))


@lru_cache(maxsize=64)  # a table of many lines is written more than once
def _tests(values: tuple[tuple[tuple[int, float], ...], ...]) -> Mapping[tuple[int, int], tuple[float, float]]:
    each = [dict(one) for one in values]
    apart = {(a, b): list(paired(each[a], each[b]).values()) for a, b in combinations(range(len(each)), 2)}
    raw = {pair: paired_p(found) for pair, found in apart.items() if found}
    return dict(zip(raw, zip(raw.values(), holm([*raw.values()]), strict=True), strict=True))


def marks(values: Values, better: Literal["high", "low"] = "high") -> frozenset[int]:
    """The places of the best methods: the one with the best mean, and all that cannot be told from it.

    Nothing is marked if no method can be told from the best one, such as with a single seed.

    >>> ahead, close, behind = ({0: 8.0, 1: 8.1, 2: 8.2}, {0: 8.1, 1: 8.1, 2: 8.0}, {0: 5.0, 1: 5.2, 2: 5.1})
    >>> sorted(marks([ahead, close, behind])), sorted(marks([ahead, close])), sorted(marks([{0: 8.0}, {0: 7.0}]))
    ([0, 1], [], [])
    """
    if len(values) < 2 or not all(all(map(math.isfinite, one.values())) and one for one in values):
        return frozenset()
    means = [math.fsum(one.values()) / len(one) for one in values]
    leader = (max if better == "high" else min)(range(len(values)), key=lambda place: means[place])
    behind = {
        place
        for pair, (_, adjusted) in _tested(values).items()
        if leader in pair and adjusted < LEVEL
        for place in pair
        if place != leader
    }
    return frozenset(range(len(values))) - behind if behind else frozenset()


def note(seeds: Sequence[int], marked: bool = True) -> str:
    """The sentence under a table that says what the marks mean, or why there are none.

    `seeds` has the number of seeds of each line that competes.

    >>> note([1, 1]) == ONE_SEED, note([3]), note([3, 5, 5])[-43:]
    (True, '', "over 3 to 5 seeds, Holm's correction, 5 %).")
    """
    if len(seeds) < 2:
        return ""
    if max(seeds) < 2:
        return ONE_SEED
    many = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    test = f"paired t-tests between all lines over {many} seeds, Holm's correction, 5 %"
    if not marked:
        return f"Nothing is marked as the best: no line is worse than the best one beyond noise ({test})."
    return (
        f"Bold: the best value and all that cannot be told from it, where another line is worse beyond noise ({test})."
    )
