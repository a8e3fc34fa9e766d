"""Averages of models: in ascending client id, with weights and accumulation in float64, cast once at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.errors import UsageError


def shares(weights: Iterable[float]) -> list[float]:
    """Normalise weights to sum to one, in float64.

    >>> shares([1, 3])
    [0.25, 0.75]
    """
    values = [float(w) for w in weights]
    total = sum(values)
    if not values or total <= 0 or min(values) < 0:
        raise UsageError(f"weights must be non-negative with a positive sum, not {values}")
    return [v / total for v in values]


def average(
    models: Sequence[Mapping[str, Tensor]], weights: Iterable[float], server: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Weighted mean of whole state dicts, including float buffers; integer buffers are taken from the server.

    The models are in ascending client id. A single model is returned bit for bit.

    >>> average([{"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}], [10, 20], {"w": torch.zeros(1)})
    {'w': tensor([1.6667])}
    """
    total = weighted_sum(models, shares(weights))
    return {name: total[name].to(old.dtype) if name in total else old.clone() for name, old in server.items()}


def weighted_sum(models: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """sum_k w_k m_k of the floating-point entries, in float64, in the order given.

    >>> weighted_sum([{"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}], [10, -1])
    {'w': tensor([8.], dtype=torch.float64)}
    """
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    return {name: _sum([m[name] for m in models], weights) for name in names}


Discrepancy = Literal["kl", "l1", "l2", "cosine"]


def disco_weights(
    sizes: Sequence[int], discrepancies: Sequence[float], a: float = 0.5, b: float = 0.1, normalise: bool = True
) -> list[float]:
    """FedDisco's weights p_k ~ relu(n_k - a d_k + b): less for clients whose labels are far from uniform, in float64.

    n_k is a client's share of the samples, d_k its `discrepancy`; with `normalise`, the d_k are divided by their sum.
    Both are relative to the clients given here. If no weight is positive, the sizes are used as weights.

    >>> [round(p, 6) for p in shares(disco_weights([50, 30, 20], [0.0, 0.368064, 0.693147]))]
    [0.72588, 0.27412, 0.0]
    """
    n, d = shares(sizes), list(discrepancies)
    if normalise and sum(d) > 0:
        d = [x / sum(d) for x in d]
    weights = [max(0.0, n_k - a * d_k + b) for n_k, d_k in zip(n, d, strict=True)]
    return weights if sum(weights) > 0 else n


def discrepancy(counts: Tensor, metric: Discrepancy) -> float:
    """How far the distribution of labels with these counts is from the uniform one.

    >>> round(discrepancy(torch.tensor([9, 1]), "kl"), 6), discrepancy(torch.tensor([5, 0]), "l1")
    (0.368064, 1.0)
    """
    labels = counts.double() / counts.sum()
    uniform = torch.full_like(labels, 1 / len(labels))
    if metric == "kl":
        return max(0.0, float(torch.special.xlogy(labels, labels / uniform).sum()))
    if metric == "cosine":
        # Half the squared distance of the directions: exactly 0 for uniform labels, unlike 1 - cos.
        return float((F.normalize(labels, dim=0) - F.normalize(uniform, dim=0)).square().sum()) / 2
    return float(torch.linalg.vector_norm(labels - uniform, ord=1 if metric == "l1" else 2))


def largest_discrepancy(classes: int, metric: Discrepancy) -> float:
    """The discrepancy of a client whose samples all have the same label."""
    return discrepancy(torch.eye(classes, dtype=torch.int64)[0], metric)


def _sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    terms = zip(tensors, weights, strict=True)
    tensor, weight = next(terms)
    total = tensor.to(torch.float64) * weight  # not added to zeros: 0.0 + -0.0 would lose a sign, one model its bits
    for tensor, weight in terms:
        total.add_(tensor.to(torch.float64), alpha=weight)
    return total
