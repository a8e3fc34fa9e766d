"""Limits on the influence of one client: medians, trimmed means, multi-Krum, clipped updates and logits, capped shares.

All take models as dicts of tensors, in ascending client id, and compute in float64; exchanged logits or probabilities
are a dict with one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.aggregation.averaging import average
from fedalloy.errors import UsageError

Combine = Literal["mean", "median", "trimmed", "krum"]
BLOCK = 1 << 22  # numbers sorted at a time, so that memory does not grow with the number of clients


def combined(
    models: Sequence[Mapping[str, Tensor]],
    weights: Iterable[float],
    server: Mapping[str, Tensor],
    combine: Combine = "mean",
    trim: float = 0.2,
) -> dict[str, Any]:
    """The weighted mean of the models, their median, their trimmed mean or multi-Krum; the last three use no weights.

    >>> models = [{"w": torch.tensor([w])} for w in (1.0, 2.0, 1e30)]
    >>> combined(models, [1, 1, 1], models[0], "median")
    {'w': tensor([2.])}
    """
    if combine == "mean":
        return average(models, weights, server)
    if combine == "krum":
        return krum(models, server, trim)
    return median(models, server) if combine == "median" else trimmed(models, server, trim)


def median(models: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor]) -> dict[str, Any]:
    """The median of each coordinate (Yin et al., ICML 2018); for an even number, the mean of the two middle values.

    Float buffers are combined like parameters, integer buffers are the server's. NaN counts as larger than any number:
    a minority of clients that send NaN moves the result no further than one that sends infinity.

    >>> median([{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}], {"w": torch.zeros(1)})
    {'w': tensor([2.5000])}
    """
    return _without_extremes(models, server, (len(models) - 1) // 2)


def trimmed(models: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor], trim: float = 0.2) -> dict[str, Any]:
    """The plain mean of each coordinate without its floor(trim * K) largest and as many smallest values (Yin et al.).

    With fewer than 1 / trim clients nothing is dropped or limited. Buffers and NaN are handled as in `median`.

    >>> trimmed([{"w": torch.tensor([w])} for w in (-1e30, 1.0, 2.0, 6.0, 1e30)], {"w": torch.zeros(1)}, trim=0.2)
    {'w': tensor([3.])}
    """
    return _without_extremes(models, server, _dropped(trim, len(models)))


def krum(models: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor], trim: float = 0.2) -> dict[str, Any]:
    """The plain mean of all but the f = floor(trim * K) models that are farthest from the others (multi-Krum).

    A model's score is the sum of its squared distances from its K - f - 2 nearest neighbours, at least one, over all
    floating-point entries (Blanchard et al., NeurIPS 2017; its guarantee needs K >= 2 f + 3). In a tie
    the smaller id is kept. The other rules limit every coordinate, but this one drops whole clients: everything that
    the remaining honest clients have learnt is kept. A model that is not finite is infinitely far away. The cost grows
    with the square of K.

    Of up to f models that are equal in every entry, at most one is kept, and the others are dropped first (not in
    the paper): attackers that echo what they were sent would otherwise be each other's nearest neighbours, and honest
    clients would be dropped instead. Honest clients train on different data and do not send equal models; if more than
    f do, before any training, they cannot all be attackers, and each counts. An echo with added noise is not a copy.

    >>> krum([{"w": torch.tensor([w])} for w in (1.0, 2.0, 3.0, 14.0)], {"w": torch.zeros(1)}, trim=0.25)
    {'w': tensor([2.])}
    """
    return _without_extremes([models[k] for k in nearest(models, server, trim)], server, 0)


def nearest(models: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor], trim: float = 0.2) -> list[int]:
    """The indices of the models that multi-Krum keeps, in ascending order; see `krum`.

    >>> nearest([{"w": torch.tensor([w])} for w in (14.0, 1.0, 2.0, 3.0)], {"w": torch.zeros(1)}, trim=0.25)
    [1, 2, 3]
    """
    drop, apart = _dropped(trim, len(models)), _squared_distances(models, server)
    distinct = [i for i, row in enumerate(apart) if row.count(0) > drop or 0 not in row[:i]]
    keep = len(models) - drop
    near = max(1, keep - 2)
    places = {i: sum(sorted(apart[i][j] for j in distinct if j != i)[:near]) for i in distinct}
    return sorted(sorted(distinct, key=places.__getitem__)[:keep])


def _dropped(trim: float, clients: int) -> int:
    return math.floor(Fraction(str(trim)) * clients)  # 0.29 of 100 is 29


def _squared_distances(models: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor]) -> list[list[float]]:
    """Distances between all pairs of models, over all floating-point entries; inf if not finite, 0 on the diagonal."""
    apart = [[0.0] * len(models) for _ in models]
    for name in sorted(name for name, old in server.items() if old.is_floating_point()):
        flat = [m[name].reshape(-1) for m in models]
        for i, one in enumerate(flat):
            for j in range(i):
                square = float((one.double() - flat[j].double()).square().sum())
                apart[i][j] += square if math.isfinite(square) else math.inf
                apart[j][i] = apart[i][j]
    return apart


def _without_extremes(
    models: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor], drop: int
) -> dict[str, Any]:
    if not models:
        raise UsageError("there are no models to combine; keep the server's where no client has answered")
    return {
        name: _middle([m[name] for m in models], drop).to(old.dtype) if old.is_floating_point() else old.clone()
        for name, old in server.items()
    }


def _middle(tensors: Sequence[Tensor], drop: int) -> Tensor:
    """The mean of each coordinate without its `drop` largest and smallest values, in float64."""
    width = max(1, BLOCK // len(tensors))
    parts = []
    for block in zip(*(torch.split(t.reshape(-1), width) for t in tensors), strict=True):
        ordered = torch.stack([row.double() for row in block]).sort(0).values
        kept = ordered[drop : len(tensors) - drop]
        total = kept[0]
        for row in kept[1:]:  # torch's own sum may use a different order in a different block
            total = total + row
        parts.append(total / len(kept))
    return torch.cat(parts).reshape(tensors[0].shape)


def clip_norm(
    models: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor], bound: float | Literal["median"]
) -> list[Mapping[str, Tensor]]:
    """The models, with every update w_k - w_server scaled to a norm of at most `bound`; "median": the median norm.

    The norm is taken over all floating-point entries together. It includes BatchNorm's statistics: the server averages
    them like parameters, so leaving them out would allow bypassing the bound. When scaled, a variance stays between the
    server's and the client's. An update within the bound is unchanged, bit for bit. An update whose norm is not finite
    has no direction: it is replaced by a zero update, and counts as infinitely long in the median.

    >>> [m["w"] for m in clip_norm([{"w": torch.tensor([3.0, 4.0])}], {"w": torch.zeros(2)}, 1.0)]
    [tensor([0.6000, 0.8000])]
    """
    norms = [_norm(model, server) for model in models]
    most = (
        float(_middle([torch.tensor(n) for n in norms], (len(norms) - 1) // 2)) if bound == "median" else float(bound)
    )
    return [
        model if norm <= most and norm < math.inf else _shortened(model, server, most / norm if norm < math.inf else 0)
        for model, norm in zip(models, norms, strict=True)
    ]


def _norm(model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> float:
    # By name and in one layout: neither the key order after (de)serialisation nor strides may affect the last bit.
    squares = [
        float((model[name].reshape(-1).double() - server[name].reshape(-1).double()).square().sum())
        for name in sorted(server)
        if server[name].is_floating_point()
    ]
    norm = math.sqrt(sum(squares))
    return norm if math.isfinite(norm) else math.inf


def _shortened(model: Mapping[str, Tensor], server: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    def towards(old: Tensor, new: Tensor) -> Tensor:
        if not old.is_floating_point():
            return new
        return old.clone() if scale == 0 else (old.double() + scale * (new.double() - old.double())).to(new.dtype)

    return {name: towards(old, model[name]) for name, old in server.items()}


def capped(shares: Tensor | Sequence[float], cap: float) -> Tensor:
    """Shares of at most `cap` that sum to 1, in float64; the excess goes to the others, in proportion.

    The input is shares (K), columns of shares (K, N), or unnormalised weights. If the others have no weight, they get
    equal parts. With cap * K <= 1 all shares are equal.

    >>> capped([0.6, 0.35, 0.05], 0.45)
    tensor([0.4500, 0.4500, 0.1000], dtype=torch.float64)
    """
    weights = torch.as_tensor(shares, dtype=torch.float64)
    if cap * len(weights) <= 1:
        return torch.full_like(weights, 1 / len(weights))
    parts = _normalised(weights, torch.ones_like(weights))
    full = torch.zeros_like(weights, dtype=torch.bool)
    for _ in range(len(weights) - 1 if cap < 1 else 0):  # each pass caps one more client of every unfinished column
        full |= parts > cap
        room = 1 - cap * full.sum(0, dtype=torch.float64)  # a whole number times cap would be float32
        parts = torch.where(full, cap, room * _normalised(weights * ~full, (~full).double()))
    return parts


def bounded(weights: Sequence[float], cap: float | None) -> Sequence[float]:
    """Clients' weights, none of them more than `cap` of the total; without a cap, unchanged.

    A client with zero weight gets none from the others. Use it, with the federation's `cap`, for anything that a method
    derives from the sizes that clients report.

    >>> bounded([48, 1_000_000, 48], cap=0.5)
    [0.25, 0.5, 0.25]
    """
    if cap is None:
        return weights
    there = [weight for weight in weights if weight > 0]
    held = iter(capped(there, cap).tolist())
    return [next(held) if weight > 0 else 0.0 for weight in weights]


def bounded_counts(counts: Sequence[Tensor], cap: float | None) -> Sequence[Tensor]:
    """Clients' label counts, none of them more than `cap` of the total; without a cap, unchanged.

    The counts of a client that reports too many are scaled down, in proportion.

    >>> bounded_counts([torch.tensor([3, 1]), torch.tensor([0, 100])], cap=0.5)
    [tensor([3., 1.], dtype=torch.float64), tensor([0., 4.], dtype=torch.float64)]
    """
    if cap is None:
        return counts
    sizes = [float(c.sum()) for c in counts]
    factors = [share / n if n else 0.0 for share, n in zip(bounded(sizes, cap), sizes, strict=True)]
    return [c.double() * (factor / max(factors)) for c, factor in zip(counts, factors, strict=True)]


def _normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """Columns normalised to sum to 1; a column of zeros uses the other weights, and stays 0 if these are 0 too."""
    least = torch.finfo(weights.dtype).tiny  # below it quotients lose precision
    weights = torch.where(weights.sum(0) >= least, weights, otherwise)
    return weights / weights.sum(0).clamp_min(least)


def clipped(logits: Tensor, bound: float) -> Tensor:
    """Logits minus their row's mean, which changes no probability, then clipped to [-bound, bound].

    A row with a number that is not finite carries no information: it becomes zeros, that is, equal probabilities.

    >>> clipped(torch.tensor([[1.0, 3.0, 1e9]]), 10.0)
    tensor([[-10., -10.,  10.]])
    """
    if not bound > 0:
        raise UsageError(f"the bound of logits = {bound} must be positive")
    centred = logits.double() - logits.double().mean(-1, keepdim=True)
    sound = centred.isfinite().all(-1, keepdim=True)
    return torch.where(sound, centred, 0.0).clamp(-bound, bound).to(logits.dtype)
