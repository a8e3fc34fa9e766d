"""Statistics over seeds: Student's t, intervals, paired tests, corrections for many tests.

The unit is the seed: one value of a run for each, and differences between the runs of the same seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedalloy.base.student import t_quantile, t_two_sided
from fedalloy.errors import UsageError

ROUNDING = 1e-12  # two numbers that differ by less, relative to the larger one, are equal


@dataclass(frozen=True)
class Interval:
    """The mean of some values and its confidence interval, with their number and sample standard deviation.

    A single value has an infinite interval and no deviation (`nan`).
    """

    mean: float
    low: float
    high: float
    n: int
    sd: float


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean with its two-sided confidence interval from Student's t distribution.

    >>> found = t_interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3), found.n, found.sd
    (2.0, -0.484, 4.484, 3, 1.0)
    """
    if not values or not all(map(math.isfinite, values)):
        raise UsageError(f"an interval needs finite numbers, not {list(values)}")
    if len(set(values)) == 1:  # without the rounding of a sum
        sd, mean = 0.0, values[0]
    else:
        sd, mean = statistics.stdev(values), statistics.fmean(values)
    n = len(values)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1, math.nan)
    half = t_quantile((1 + level) / 2, n - 1) * sd / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, sd)


def paired(left: Mapping[int, float], right: Mapping[int, float]) -> dict[int, float]:
    """The differences left - right of the seeds that both have; one that is mere rounding is zero.

    >>> paired({0: 0.1 + 0.2, 1: 5.0, 2: 1.0}, {0: 0.3, 1: 2.0})
    {0: 0.0, 1: 3.0}
    """
    return {seed: rounded(left[seed] - right[seed], left[seed], right[seed]) for seed in left if seed in right}


def rounded(result: float, *parts: float) -> float:
    """A sum or difference of these parts, or zero if it is nothing but their rounding.

    >>> rounded(0.1 + 0.2 - 0.3, 0.1, 0.2, 0.3), rounded(0.5 - 0.25, 0.5, 0.25)
    (0.0, 0.25)
    """
    return 0.0 if abs(result) <= ROUNDING * max(map(abs, parts)) else result


def paired_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of a paired t-test, from its differences; `nan` for fewer than two.

    Accuracies on small tests are multiples of one sample, so that differences are often equal by chance and have no
    spread for the t-test. Then p is that of the exact test of their signs: two over the number of ways to choose them.

    >>> round(paired_p([1.0, 2.0, 3.0]), 4), paired_p([0.0, 0.0]), paired_p([0.5, 0.5, 0.5])
    (0.0742, 1.0, 0.25)
    """
    if len(differences) < 2:
        return math.nan
    found = t_interval(differences)
    if found.sd <= ROUNDING * abs(found.mean):
        return 1.0 if found.mean == 0 else 2.0 ** (1 - found.n)
    return t_two_sided(found.mean / found.sd * math.sqrt(found.n), found.n - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number by Holm's method, in the same order; `nan` stays and does not count.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    found, highest = [math.nan] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[i]))
        found[i] = highest
    return found


def probability_of_improvement(left: Sequence[float], right: Sequence[float]) -> float:
    """The share of all pairs of a left and a right value in which left is greater; a tie counts half.

    >>> probability_of_improvement([2.0, 4.0], [1.0, 3.0])
    0.75
    """
    if not left or not right:
        raise UsageError("a probability of improvement needs values on both sides")
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in left for b in right)
    return wins / (len(left) * len(right))
