"""KDIA's weights of all clients: how recently each took part, how often, and how much data it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from fedalloy.aggregation.averaging import shares

Frequency = Literal["all", "interval", "participation", "number"]
Mean = Literal["geometric", "arithmetic"]


def tri_freqs(
    last: Sequence[int],
    counts: Sequence[int],
    sizes: Sequence[int],
    *,
    mean: Mean = "geometric",
    use: Frequency = "all",
) -> list[float]:
    """The weights F_k of the teacher (Eq. 5 to 9), or one of the three frequencies alone, in float64.

    `last` is the round in which each client last took part (0 for never, if rounds count from 1), `counts` in how many
    rounds it did, `sizes` its samples. The current round t is not needed: exp(-(t - t_k)) contains a factor exp(-t) for
    all clients, which cancels with the sum in the denominator. At least one client must have taken part.

    With the geometric mean, a client that never took part has weight exactly 0, whatever its data.

    >>> last, counts, sizes = [3, 3, 2, 0], [3, 2, 1, 0], [10, 20, 30, 40]
    >>> [round(f, 6) for f in tri_freqs(last, counts, sizes)]
    [0.354966, 0.39069, 0.254344, 0.0]
    >>> [round(f, 6) for f in tri_freqs(last, counts, sizes, use="interval")]
    [0.413622, 0.413622, 0.152163, 0.020593]
    """
    recency = torch.tensor(last, dtype=torch.float64) - max(last)  # exact, and exp() cannot overflow
    part = torch.tensor(shares(counts), dtype=torch.float64)  # Eq. 7
    number = torch.tensor(shares(sizes), dtype=torch.float64)  # Eq. 8
    if use == "all" and mean == "geometric":
        # Eq. 9: all three denominators cancel; the logarithm of the cube root neither over- nor underflows early.
        return _softmax((recency + part.log() + number.log()) / 3)
    each = {"interval": _softmax(recency), "participation": part.tolist(), "number": number.tolist()}  # Eq. 5 first
    if use != "all":
        return each[use]
    return [sum(three) / 3 for three in zip(*each.values(), strict=True)]


def _softmax(logs: torch.Tensor) -> list[float]:
    return torch.softmax(logs, 0).tolist()
