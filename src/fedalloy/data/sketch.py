"""A bounded histogram of numbers from which clients' common median can be told within one per cent.

The bins are the same for everyone and known beforehand: their width is two per cent of the value (DDSketch, Masson, Rim
and Lee 2019). So one question is enough, nobody tells a smallest or largest value, and histograms can be added up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_GROWTH = 1.02  # from one bin to the next
_LEAST, _MOST = 1e-38, 3.5e38  # all that float32 has; smaller values count as 0
_OFFSET = math.ceil(math.log(_LEAST) / math.log(_GROWTH)) - 1
LAST_BIN = math.ceil(math.log(_MOST) / math.log(_GROWTH)) - _OFFSET


def sketch(values: NDArray[np.float64]) -> dict[int, int]:
    """Count values by bin; bin 0 is zero, negative values have negative bins.

    >>> sketch(np.array([0.0, 1.0, 1.0, -1.0]))
    {-4419: 1, 0: 1, 4419: 2}
    """
    size = np.minimum(np.abs(values), _MOST)
    counted = size >= _LEAST
    bins = np.zeros(len(values), np.int64)
    bins[counted] = np.ceil(np.log(size[counted]) / math.log(_GROWTH)).astype(np.int64) - _OFFSET
    places, counts = np.unique(np.sign(values).astype(np.int64) * bins, return_counts=True)
    return {int(place): int(n) for place, n in zip(places, counts, strict=True)}


def middle(histograms: Sequence[Mapping[int, int]]) -> float:
    """The median of all clients' values, the lower one of two, within one per cent of its size.

    >>> round(middle([sketch(np.array([1.0, 2.0])), sketch(np.array([50.0]))]), 2)
    2.02
    """
    counts: dict[int, int] = {}
    for one in histograms:
        for place, n in one.items():
            counts[place] = counts.get(place, 0) + n
    wanted, seen = (sum(counts.values()) + 1) // 2, 0
    for place in sorted(counts):
        seen += counts[place]
        if seen >= wanted:
            return _value(place)
    return 0.0


def ends(place: int) -> tuple[float, float]:
    """The smallest and the largest value in a bin, up to rounding.

    >>> [round(end, 3) for end in ends(4419)], [round(end, 3) for end in ends(-4419)]
    ([0.98, 1.0], [-1.0, -0.98])
    """
    if place == 0:
        return -_LEAST, _LEAST
    most = _GROWTH ** (abs(place) + _OFFSET)
    return (most / _GROWTH, most) if place > 0 else (-most, -most / _GROWTH)


def _value(place: int) -> float:
    """The value in a bin that is within one per cent of all others."""
    if place == 0:
        return 0.0
    return math.copysign(2 * _GROWTH ** (abs(place) + _OFFSET) / (_GROWTH + 1), place)
