"""Votes on some of a round's public samples: their mean, and how they are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.federation.gate import Sized, array, probabilities

Labels = Literal["soft", "hard"]


def ensemble(masks: Tensor, votes: Sequence[Tensor]) -> Tensor:
    """q(x), the mean vote of the clients that selected x, in float64; zeros if no client did.

    Each row of `masks` belongs to a client, whose votes are on the samples that are true there.

    >>> ensemble(torch.tensor([[True, True, False], [True, False, False]]), [torch.eye(2), torch.tensor([[0.5, 0.5]])])
    tensor([[0.7500, 0.2500],
            [0.0000, 1.0000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    total = votes[0].new_zeros(masks.shape[1], votes[0].shape[1], dtype=torch.float64)
    for mask, own in zip(masks, votes, strict=True):
        total[mask] += own.double()
    return total / masks.sum(0).clamp_min(1)[:, None]


def selected(rows: int, outputs: int, labels: Labels) -> Sized:
    """The check of a mask over this many samples, with a label for each selected sample: a distribution, or a class.

    >>> selected(2, 3, "hard")({"mask": torch.tensor([True, False]), "hard": torch.tensor([0, 1])})
    'hard has the shape (2,), not (1,)'
    """
    a_mask = array(rows, dtype=torch.bool)

    def a_label(count: int) -> Sized:
        classes = array(count, least=0, most=outputs - 1, dtype=torch.int64)
        return probabilities(count, outputs) if labels == "soft" else classes

    def check(value: Any) -> str | None:
        if not isinstance(value, Mapping) or value.keys() != {"mask", labels}:
            return f"is not a table of 'mask' and '{labels}'"
        if (fault := a_mask(value["mask"])) is not None:
            return f"mask {fault}"
        fault = a_label(int(value["mask"].sum()))(value[labels])
        return None if fault is None else f"{labels} {fault}"

    return Sized(check, {"mask": a_mask.largest, labels: a_label(rows).largest})
