"""Who learns how much from whom: clients' answers on public samples, fused for each client (KnFu, Eqs. 5 to 9).

Everything is computed in float64; clients are rows, in the order in which their answers are given.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedalloy.data.samples import Task

Direction = Literal["own_to_other", "other_to_own"]
FARTHEST = 1e100  # the largest distance between predicted numbers; its square is finite
FLOOR = 1e-12  # of a probability before its logarithm, and of a squared distance before dividing by it


def epd(soft: Tensor) -> Tensor:
    """Each client's estimated probability distribution, the mean of its answers: (N, samples, C) to (N, C) (Eq. 5).

    >>> epd(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    return soft.double().mean(1)


def divergences(p: Tensor, direction: Direction = "own_to_other") -> Tensor:
    """d_nm = KL(p_n || p_m) between all rows, or KL(p_m || p_n) in the other direction (Eq. 6).

    A probability below 1e-12 counts as 1e-12 in the logarithms, so that the distance stays finite for a class that one
    client never predicts; the paper does not discuss this case.

    >>> divergences(torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64))
    tensor([[0.0000, 0.0367],
            [0.0444, 0.0000]], dtype=torch.float64)
    """
    p = p.double()
    log = p.clamp_min(FLOOR).log()
    # Row by row: differences of equal rows are exactly zero, and N x N x C numbers are never held in memory.
    d = torch.stack([(own * (own_log - log)).sum(1) for own, own_log in zip(p, log, strict=True)])
    return d if direction == "own_to_other" else d.T


def divergences_of(task: Task, soft: Tensor, direction: Direction = "own_to_other") -> Tensor:
    """The distances between clients' answers (N, samples, outputs) that stand for Eq. 6 in each task.

    Classes have the paper's. The others are ours: a label is a class and its absence, and a client's predicted numbers
    are a normal distribution with their mean and variance, whose KL is known in closed form.

    >>> soft = torch.tensor([[[0.0], [2.0]], [[1.0], [3.0]]])
    >>> divergences_of("numbers", soft)
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    p = epd(soft)
    if task == "classes":
        return divergences(p, direction)
    if task == "labels":
        return divergences(p, direction) + divergences(1 - p, direction)
    spread = soft.double().var(1, correction=0)
    spread = spread.clamp_min(FLOOR * max(float(spread.max()), FLOOR))  # a constant prediction has no spread
    rows = zip(p, spread, strict=True)
    d = torch.stack([((v + (m - p) ** 2) / spread - 1 + (spread / v).log()).sum(1) / 2 for m, v in rows])
    d = d.clamp(0, FARTHEST)
    return d if direction == "own_to_other" else d.T


def fusion_weights(d: Tensor, beta: float) -> Tensor:
    """The weight of each client (column) for each client (row), from their distances; rows sum to one (Eqs. 7 to 9).

    w_nm = 1 / d_nm^2 for the others and w_nn = beta max_m w_nm for itself. As printed, the maximum includes n itself,
    whose distance is zero; here it is over the others. A single client has no others to learn from.

    >>> fusion_weights(torch.tensor([[0.0, 0.5, 1.0], [0.5, 0.0, 1.0], [1.0, 1.0, 0.0]]), beta=2)
    tensor([[0.6154, 0.3077, 0.0769],
            [0.3077, 0.6154, 0.0769],
            [0.2500, 0.2500, 0.5000]], dtype=torch.float64)
    """
    if len(d) == 1:
        return d.new_ones(1, 1, dtype=torch.float64)
    w = 1 / d.double().square().clamp_min(FLOOR)  # Eq. 7
    w.fill_diagonal_(0)
    w = w / w.max(1, keepdim=True).values  # in units of the largest, so that no beta is too large
    w.fill_diagonal_(beta)  # Eq. 8
    return w / w.sum(1, keepdim=True)


def fuse(weights: Tensor, soft: Tensor) -> Tensor:
    """F_n = sum_m W_nm F_m, each client's mixture of all answers: (N, N) and (N, samples, C) (Eq. 9).

    >>> fuse(torch.tensor([[0.5, 0.5]]), torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([[[0.5000, 0.5000]]], dtype=torch.float64)
    """
    return (weights.double() @ soft.double().flatten(1)).reshape(-1, *soft.shape[1:])
