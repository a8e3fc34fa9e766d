"""How good a network's outputs are, as one number that is larger for better ones, to stop or to select by."""

from __future__ import annotations

import math

from torch import Tensor

from fedalloy.data.samples import Task

WORST = -1.0  # no score is lower, so that a model that diverged is not better or worse than another


def score(task: Task, outputs: Tensor, targets: Tensor) -> float:
    """The accuracy, with several labels a sample that of all of them; with numbers R2, from -1 to 1, in thousandths.

    A score has finitely many values, so it cannot rise for ever.

    >>> import torch
    >>> score("classes", torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]))
    0.5
    >>> score("numbers", torch.tensor([[1.0], [2.5]]), torch.tensor([[1.0], [3.0]]))
    0.875
    """
    if task == "classes":
        return float((outputs.argmax(1) == targets).double().mean())
    if task == "labels":
        return float(((outputs > 0) == (targets > 0.5)).double().mean())
    error, spread = (outputs.double() - targets).square().mean(0), targets.double().var(0, correction=0)
    known = spread > 0
    found = 1 - float((error[known] / spread[known]).mean()) if known.any() else -float(error.mean())
    return max(WORST, math.floor(1000 * found) / 1000) if math.isfinite(found) else WORST


def standard_error(task: Task, best: float, n: int) -> float:
    """The standard error of a score on n samples; that of R2 is a squared correlation's, for many samples.

    >>> round(standard_error("classes", 0.5, 100), 6), round(standard_error("numbers", 0.25, 100), 6)
    (0.05, 0.075)
    """
    if task == "numbers":
        return 2 * (1 - best) * math.sqrt(max(0.0, best) / n)
    return math.sqrt(best * (1 - best) / n)
