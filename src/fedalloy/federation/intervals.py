"""95 % intervals of what was measured on a test set of a given size, by formula; nothing is drawn at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from fedalloy.base.student import t_quantile

LEVEL = 0.975  # of the upper end of a 95 % interval
Z = 1.959963984540054  # the normal distribution has 95 % within so many standard deviations
MOST = 700.0  # the exponential of more is no number
STEPS = 60  # of the bisection: more than the bits of a float

Interval = tuple[float, float] | None
"""Its two ends, or None if there is nothing to tell."""


def wilson(share: float, size: int) -> Interval:
    """Wilson's score interval of a share of `size` samples; unlike the normal one it never leaves [0, 1].

    >>> [round(end, 4) for end in wilson(0.8, 10)], wilson(1.0, 0)
    ([0.4902, 0.9433], None)
    """
    if size < 1 or math.isnan(share):
        return None
    middle = (share + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * math.sqrt(share * (1 - share) / size + Z**2 / (4 * size**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def of_mean(shares: Sequence[float], sizes: Sequence[int]) -> Interval:
    """The interval of a mean of shares of different samples, from Wilson's of each (Zou and Donner's MOVER, 2008).

    Shares of no samples are left out. One share has its own interval.

    >>> [round(end, 3) for end in of_mean([0.5, 0.9], [10, 90])], of_mean([0.5, math.nan], [10, 0]) == wilson(0.5, 10)
    ([0.562, 0.834], True)
    """
    known = [(share, span) for share, n in zip(shares, sizes, strict=True) if (span := wilson(share, n)) is not None]
    if not known:
        return None
    middle = math.fsum(share for share, _ in known) / len(known)
    down, up = (math.hypot(*(share - span[end] for share, span in known)) / len(known) for end in (0, 1))
    return middle - down, middle + up


def mean_of(spans: Iterable[Interval]) -> Interval:
    """The mean of intervals of what is measured on the same samples, as if it erred together: it is rather wide.

    >>> mean_of([(0.25, 0.75), None, (0.5, 1.0)])
    (0.375, 0.875)
    """
    ends = [span for span in spans if span is not None]
    return (sum(low for low, _ in ends) / len(ends), sum(high for _, high in ends) / len(ends)) if ends else None


def of_auc(auc: float, positives: int, negatives: int) -> Interval:
    """Newcombe's interval of an AUC (2006, his method 5): Hanley and McNeil's variance at the ends, as in Wilson's.

    A perfect AUC on few samples has an interval, which one with the variance at the AUC itself would not have.

    >>> [round(end, 3) for end in of_auc(0.8, 20, 30)], [round(end, 3) for end in of_auc(1.0, 5, 5)]
    ([0.643, 0.894], [0.643, 1.0])
    """
    if positives < 1 or negatives < 1 or math.isnan(auc):
        return None

    def far(end: float) -> bool:
        """Whether an AUC would be surprising if this were the true one."""
        more = (positives + negatives) / 2 - 1
        spread = end * (1 - end) * (1 + more * ((1 - end) / (2 - end) + end / (1 + end)))
        return abs(auc - end) > Z * math.sqrt(spread / (positives * negatives))

    return _edge(auc, 0.0, far), _edge(auc, 1.0, far)


def student(value: float, error: float, size: int) -> Interval:
    """The interval of a mean over `size` samples with this standard error, by Student's t.

    >>> [round(end, 2) for end in student(1.5, 0.5, 10)], student(1.5, 0.5, 1)
    ([0.37, 2.63], None)
    """
    if math.isnan(value) or math.isnan(error) or size < 2:
        return None
    half = t_quantile(LEVEL, size - 1) * error
    return value - half, value + half


def of_r2(value: float, error: float, size: int) -> Interval:
    """The interval of R2: Student's, of the logarithm of 1 - R2, which is less skewed; so no end is above 1.

    >>> [round(end, 2) for end in of_r2(0.8, 0.1, 10)]
    [0.38, 0.94]
    """
    lost = 1 - value
    if not lost > 0:
        return None if math.isnan(value) or math.isnan(error) else (value, value)
    span = student(math.log(lost), error / lost, size)
    return None if span is None else (1 - math.exp(min(span[1], MOST)), 1 - math.exp(span[0]))


def _edge(inside: float, outside: float, far: Callable[[float], bool]) -> float:
    """Where `far` begins on the way from one number to another, by bisection."""
    for _ in range(STEPS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if far(middle) else (middle, outside)
    return inside
