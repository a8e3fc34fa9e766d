"""Student's t distribution: quantiles and tail probabilities, computed without SciPy."""

from __future__ import annotations

import functools
import math

from fedalloy.errors import UsageError


@functools.lru_cache(maxsize=1024)
def t_quantile(level: float, freedom: float) -> float:
    """The quantile of Student's t distribution.

    >>> round(t_quantile(0.975, 2), 4), round(t_quantile(0.025, 2), 4), t_quantile(0.5, 2)
    (4.3027, -4.3027, 0.0)
    """
    if not 0 < level < 1:
        raise UsageError(f"the level of a quantile is {level}; write a number between 0 and 1")
    tail = 2 * min(level, 1 - level)
    low, high = 0.0, 1.0
    while t_two_sided(high, freedom) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_two_sided(middle, freedom) > tail else (low, middle)
    if level == 0.5:
        return 0.0
    return high if level > 0.5 else -high


def t_two_sided(t: float, freedom: float) -> float:
    """The probability that Student's t is at least as far from zero as `t`.

    >>> t_two_sided(0, 5), round(t_two_sided(2.571, 5), 3)
    (1.0, 0.05)
    """
    if not freedom > 0:
        raise UsageError(f"Student's t needs degrees of freedom above 0, not {freedom}; give more values")
    return _beta_share(freedom / (freedom + t * t), t * t / (freedom + t * t), freedom / 2, 0.5)


def _beta_share(x: float, rest: float, a: float, b: float) -> float:
    """The regularised incomplete beta function at x; `rest` is 1 - x, which is given to keep its digits."""
    if x <= 0 or math.isnan(rest):  # t * t was too large for a number
        return 0.0
    if rest <= 0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    if x < (a + 1) / (a + b + 2):
        return front / a * _fraction(x, a, b)
    return 1 - front / b * _fraction(rest, b, a)


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.8.
    """
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    found = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for part in (even, odd):
            d = 1 / (1 + part * d or tiny)
            c = 1 + part / c or tiny
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return found
