"""Averages of models: ascending client id, weights in float64, one accumulation dtype (float64), cast once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
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
    """Weighted mean of whole state dicts, float buffers included; integer buffers stay the server's.

    The models come in ascending client id. One model alone is returned bit for bit.

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


def _sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    terms = zip(tensors, weights, strict=True)
    tensor, weight = next(terms)
    total = tensor.to(torch.float64) * weight  # not added to zeros: 0.0 + -0.0 would lose a sign, one model its bits
    for tensor, weight in terms:
        total.add_(tensor.to(torch.float64), alpha=weight)
    return total
