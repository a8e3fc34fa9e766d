"""Metrics of classes and labels: from confusion counts, and from the scores that a network gives each class.

Confusion counts have the true class in rows and the predicted one in columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedalloy.federation.across import Floats

Counts = NDArray[np.int64]
COMMON = 2 / 3  # of rows: if always giving the same answer is right more often, accuracy does not rank models
KEPT, DECIMALS = 2.0**40, 12  # precision of log odds: far above float32's, which networks compute with


def accuracy_per_client(confusion: Counts) -> Floats:
    """The share of correct predictions from confusion counts (rows true, columns predicted), `nan` for no samples.

    >>> accuracy_per_client(np.array([[[3, 1], [0, 4]], [[0, 0], [0, 0]]]))
    array([0.875,   nan])
    """
    return share(_diagonal(confusion).sum(-1), confusion.sum((-2, -1)))


def balanced_accuracy(confusion: Counts) -> Floats:
    """The mean recall over the classes that are present: per client for [K, C, C], pooled for their sum [C, C].

    >>> float(balanced_accuracy(np.array([[9, 0, 0], [1, 1, 0], [0, 0, 0]])))
    0.75
    """
    return _mean_of_known(share(_diagonal(confusion), confusion.sum(-1)))


def balanced_error(confusion: Counts) -> Floats:
    """The standard error of balanced accuracy, from the samples of each class; `nan` with fewer than two classes.

    Recalls are pulled towards one half as by two more samples: of three samples, none found is not certainly none.

    >>> float(balanced_error(np.array([[97, 1], [1, 1]]))) > 0.5 * 0.25  # by the class of two samples
    True
    """
    present = confusion.sum(-1)
    recall = share(_diagonal(confusion) + 1, present + 2)
    classes = (present > 0).sum(-1)
    spread = np.nansum(share(recall * (1 - recall), present), -1)
    return np.where(classes > 1, np.sqrt(spread) / np.maximum(classes, 1), math.nan)


def balanced_if_several(confusion: Counts) -> Floats:
    """Balanced accuracy where there are samples of two classes or more; of one class only it would be its recall.

    >>> balanced_if_several(np.array([[[3, 1], [1, 1]], [[4, 0], [0, 0]]]))
    array([0.625,   nan])
    """
    return np.where((confusion.sum(-1) > 0).sum(-1) > 1, balanced_accuracy(confusion), math.nan)


def label_balance(confusion: Counts) -> tuple[Floats, Floats]:
    """Balanced accuracy, mean over the labels that some samples have and others lack, and its standard error.

    Answers about one sample depend on each other: the error is that of labels which err together.

    >>> [float(value) for value in label_balance(np.array([[[3, 1], [1, 1]], [[4, 2], [0, 0]]]))][0]
    0.625
    """
    return _mean_of_known(balanced_if_several(confusion)), _mean_of_known(balanced_error(confusion))


def macro_f1(confusion: Counts) -> Floats:
    """The mean F1 score over the classes that are present or predicted: per client for [K, C, C], pooled for [C, C].

    >>> float(macro_f1(np.array([[1, 1, 0], [0, 2, 0], [0, 0, 0]]))) == (2 / 3 + 4 / 5) / 2
    True
    """
    predicted = confusion.sum(-2)[..., : confusion.shape[-2]]
    return _mean_of_known(share(2 * _diagonal(confusion), confusion.sum(-1) + predicted))


def specificity(confusion: Counts) -> Floats:
    """The share of the other samples that are not taken for a class, mean over the classes that have others.

    >>> float(specificity(np.array([[9, 1], [2, 8]])))  # 8 of 10 are not taken for class 0, 9 of 10 not for class 1
    0.8500000000000001
    """
    present = confusion.sum(-1)
    others = present.sum(-1)[..., None] - present
    wrongly = confusion.sum(-2)[..., : confusion.shape[-2]] - _diagonal(confusion)
    return _mean_of_known(share(others - wrongly, others))


def share(part: ArrayLike, whole: ArrayLike) -> Floats:
    """A part of a whole, `nan` where there is none of it.

    >>> share([3, 0], [4, 0])
    array([0.75,  nan])
    """
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    quotient = np.full(whole.shape, math.nan)
    np.divide(part, whole, out=quotient, where=whole > 0)
    return quotient


def label_f1(confusion: Counts) -> Floats:
    """The mean F1 score over the labels that are present or predicted, from counts [..., C, 2, 2].

    >>> float(label_f1(np.array([[[2, 1], [0, 1]], [[4, 0], [0, 0]]])))  # the second label is neither
    0.6666666666666666
    """
    hits, wrong = confusion[..., 1, 1], confusion[..., 0, 1] + confusion[..., 1, 0]
    return _mean_of_known(share(2 * hits, 2 * hits + wrong))


def label_rates(confusion: Counts) -> tuple[Floats, Floats]:
    """Sensitivity and specificity, mean over the labels for which there is one, from counts [..., C, 2, 2].

    >>> [float(rate) for rate in label_rates(np.array([[[3, 1], [1, 1]], [[4, 2], [0, 0]]]))]
    [0.5, 0.7083333333333333]
    """
    total = confusion.sum(-1)
    found, spared = (share(confusion[..., i, i], total[..., i]) for i in (1, 0))
    return _mean_of_known(found), _mean_of_known(spared)


def commonest(confusion: Counts) -> float:
    """How often a model is right that always gives the commonest answer: from counts [C, C], or of labels [C, 2, 2].

    >>> commonest(np.array([[3, 1], [1, 0]])), commonest(np.array([[[3, 1], [0, 0]], [[1, 0], [2, 1]]]))
    (0.8, 0.875)
    """
    present = confusion.sum(-1)
    return float(np.nan_to_num(share(present.max(-1), present.sum(-1))).mean())


def log_odds(logits: ArrayLike) -> Floats:
    """The log odds of each class against all others, which rank samples as probabilities do but never saturate.

    >>> log_odds([[2.0, 0.5]]).tolist()
    [[1.5, -1.5]]
    """
    z = np.asarray(logits, dtype=np.float64)
    rows, top = np.arange(len(z)), z.argmax(1)
    with np.errstate(all="ignore"):  # a network that diverged gives no numbers, and then there is no rank
        z = z - z[rows, top][:, None]
        weight = np.exp(z)
        total = weight.sum(1, keepdims=True)
        others = np.log(total) + np.log1p(-weight / total)
        rest = z.copy()
        rest[rows, top] = -np.inf
        second = rest.max(1, keepdims=True)
        others[rows, top] = (second + np.log(np.exp(rest - second).sum(1, keepdims=True)))[:, 0]
        # Samples with equal odds must tie, whatever the order in which their terms were added.
        digits, power = np.frexp(z - others)
        return np.asarray(np.round(np.ldexp(np.round(digits * KEPT) / KEPT, power), DECIMALS))


def auc(scores: ArrayLike, positive: ArrayLike) -> float:
    """The area under the ROC curve: how often a positive sample has a higher score than a negative one; a tie is half.

    It is `nan` unless there are samples of both kinds and every score is a number.

    >>> auc([0.1, 0.4, 0.4, 0.8], [False, False, True, True])
    0.875
    """
    s, is_positive = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    ones = int(is_positive.sum())
    zeros = len(s) - ones
    if not ones or not zeros or np.isnan(s).any():
        return math.nan
    order = np.argsort(s, kind="stable")
    ranked = s[order]
    first = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(s))
    ranks = ((starts + 1 + ends) / 2)[np.cumsum(first) - 1]  # equal scores share the mean of their ranks
    return float((ranks[is_positive[order]].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def calibration_error(probabilities: ArrayLike, right: ArrayLike, bins: int = 15) -> float:
    """The expected calibration error (Guo et al.): how far the top probability is from how often it is right.

    The mean over bins of equal width, (0, 1/15], (1/15, 2/15] and so on, each counted by its samples; `nan` for none.

    >>> round(calibration_error([0.9, 0.9, 0.6], [True, False, True]), 9)  # (|1.8 - 1| + |0.6 - 1|) / 3
    0.4
    """
    p, correct = np.asarray(probabilities, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if not len(p) or np.isnan(p).any():
        return math.nan
    place = np.clip(np.ceil(p * bins) - 1, 0, bins - 1).astype(np.int64)
    return float(np.abs(np.bincount(place, p - correct, minlength=bins)).sum() / len(p))


def _diagonal(confusion: Counts) -> Counts:
    return np.diagonal(confusion, axis1=-2, axis2=-1)


def _mean_of_known(values: Floats) -> Floats:
    return share(np.nansum(values, -1), (~np.isnan(values)).sum(-1))
