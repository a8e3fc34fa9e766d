"""Metrics of predicted numbers, for several numbers a sample their mean over the numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Measured(NamedTuple):
    """A number that was measured on samples, and its standard error; `nan` for what cannot be known."""

    value: float
    error: float


def r2(predicted: ArrayLike, target: ArrayLike) -> Measured:
    """R2, the share of the targets' variance that is explained; below zero, their mean would be the better guess.

    Numbers that do not vary are left out. The standard error follows from the delta method.

    >>> r2([[2.0], [4.0], [6.0]], [[3.0], [4.0], [5.0]]).value
    0.0
    """
    p, y = (np.asarray(values, dtype=np.float64) for values in (predicted, target))
    squared, spread = (p - y) ** 2, (y - y.mean(0)) ** 2 if len(y) else y
    # Not by the spread: the mean of equal numbers may differ from them in its last digit.
    varies = (y.max(0) > y.min(0)) & (spread.sum(0) > 0) if len(y) else np.zeros(y.shape[1], dtype=bool)
    if not varies.any():
        return Measured(math.nan, math.nan)
    squared, spread = squared[:, varies], spread[:, varies]
    lost = squared.sum(0) / spread.sum(0)
    # How much each sample moves the ratio of the two means.
    pull = ((squared - lost * spread) / spread.mean(0)).mean(1)
    return Measured(float(1 - lost.mean()), float(np.sqrt((pull**2).sum() / max(len(pull) - 1, 1) / len(pull))))


def absolute_error(predicted: ArrayLike, target: ArrayLike) -> Measured:
    """The mean absolute error (MAE), with its standard error.

    >>> absolute_error([[1.0], [4.0]], [[2.0], [2.0]])
    Measured(value=1.5, error=0.5)
    """
    off = np.abs(np.asarray(predicted, dtype=np.float64) - np.asarray(target, dtype=np.float64)).mean(1)
    if not len(off):
        return Measured(math.nan, math.nan)
    error = float(off.std(ddof=1) / math.sqrt(len(off))) if len(off) > 1 else math.nan
    return Measured(float(off.mean()), error)
