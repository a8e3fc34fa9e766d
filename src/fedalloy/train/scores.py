"""How good a network's outputs are, as one number that is larger for better ones, to stop or to select by."""

from __future__ import annotations

import math

from torch import Tensor

from fedalloy.data.samples import Task
from fedalloy.train.losses import answer_weights

WORST = -1.0  # no score is lower, so that a model that diverged is not better or worse than another
DECIMALS = 12  # of a weighted score: equal ones must not differ by the order in which answers are added up


def score(task: Task, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
    """The accuracy, with several labels a sample that of all of them; with numbers R2, from -1 to 1, in thousandths.

    With a client's class weights (`balanced_weights`) right answers count by them, as their losses do: on the samples
    that the weights are of, that is the balanced accuracy. A score has finitely many values, so it cannot rise for
    ever.

    >>> import torch
    >>> score("classes", torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]))
    0.5
    >>> score("numbers", torch.tensor([[1.0], [2.5]]), torch.tensor([[1.0], [3.0]]))
    0.875
    """
    if task != "numbers":
        right = (outputs.argmax(1) == targets if task == "classes" else (outputs > 0) == (targets > 0.5)).double()
        if weights is None:
            return float(right.mean())
        each = answer_weights(task, targets, weights).double()
        return round(float((each * right).sum() / each.sum()), DECIMALS)
    error, spread = (outputs.double() - targets).square().mean(0), targets.double().var(0, correction=0)
    known = spread > 0
    found = 1 - float((error[known] / spread[known]).mean()) if known.any() else -float(error.mean())
    return max(WORST, math.floor(1000 * found) / 1000) if math.isfinite(found) else WORST


def effective_size(task: Task, targets: Tensor, weights: Tensor | None = None) -> float:
    """How many samples of equal weight would have a score with the same standard error (Kish).

    >>> import torch
    >>> effective_size("classes", torch.tensor([0, 0, 1]), torch.tensor([1.0, 2.0]))
    2.6666666666666665
    """
    if weights is None:
        return len(targets)
    each = answer_weights(task, targets, weights).double()
    each = each if task == "classes" else each.mean(1)
    return float(each.sum() ** 2 / (each**2).sum())


def standard_error(task: Task, best: float, n: float) -> float:
    """The standard error of a score on n samples; that of R2 is a squared correlation's, for many samples.

    >>> round(standard_error("classes", 0.5, 100), 6), round(standard_error("numbers", 0.25, 100), 6)
    (0.05, 0.075)
    """
    if task == "numbers":
        return 2 * (1 - best) * math.sqrt(max(0.0, best) / n)
    return math.sqrt(best * (1 - best) / n)
