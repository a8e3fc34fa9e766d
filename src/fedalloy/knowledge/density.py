"""Which public samples resemble a client's own: the density ratio of Selective-FD (Shao et al., Nat. Commun. 2024).

A client estimates p_k / uniform by KuLSIF (Kanamori, Suzuki and Sugiyama, Machine Learning 2012) and votes on a public
sample only if its ratio is above a quantile of the ratios of the client's own samples.

The authors' code multiplies by the matrix where the equation needs its inverse; here the system is solved. It takes
the first 5 % of a client's samples as known; here they are drawn, because the first ones may all be of one class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedalloy.base.options import Positive
from fedalloy.errors import DataError, UsageError

WidthRule = Literal["median", "median/8"]
Width = Positive | WidthRule
REFERENCE_WIDTH = 5.0


@dataclass(frozen=True, eq=False)
class Ratio:
    """A fitted ratio, what(x) = sum_c w_c k(x, c): auxiliary samples and their alphas first, then the known samples.

    `vars(ratio)` is a tree that can be kept or sent, and `Ratio(**tree)` restores the ratio.
    """

    centres: Tensor
    weights: Tensor
    width: float


def fit_ratio(known: Tensor, auxiliary: Tensor, width: Width = REFERENCE_WIDTH, lam: float | None = None) -> Ratio:
    """Fit KuLSIF to the client's m known samples and n uniform ones, in float64; `lam` is 1 / sqrt(n) by default.

    For the width see `kernel_width`.

    >>> one = torch.zeros(1, 2)
    >>> fit_ratio(one, one, lam=0.5).weights  # 1.5 alpha = -2, and 1 / lam
    tensor([-1.3333,  2.0000], dtype=torch.float64)
    """
    x, y = _rows(auxiliary), _rows(known)
    n, m, s = len(x), len(y), kernel_width(known, width)
    lam = n**-0.5 if lam is None else lam
    ones = torch.ones(m, dtype=x.dtype, device=x.device)
    # (K11 / n + lam I) alpha = -(1 / (n m lam)) K12 1; the matrix is symmetric and positive definite.
    left = _kernel(x, x, s) / n
    left.diagonal().add_(lam)
    right = -ratio_at(Ratio(y, ones, s), x) / (n * m * lam)
    alpha = torch.cholesky_solve(right[:, None], torch.linalg.cholesky(left)).flatten()
    return Ratio(torch.cat([x, y]), torch.cat([alpha, ones / (m * lam)]), s)


def ratio_at(ratio: Ratio, x: Tensor, chunk: int = 1024) -> Tensor:
    """The estimated ratio what(x) for each sample, in float64; only `chunk` samples are compared at a time.

    >>> zero = torch.zeros(1, 2)
    >>> ratio_at(fit_ratio(zero, zero, lam=0.5), zero)  # 1 / (1 + lam)
    tensor([0.6667], dtype=torch.float64)
    """
    if x.flatten(1).shape[1] != ratio.centres.shape[1]:
        raise UsageError(
            f"a sample has {x.flatten(1).shape[1]} numbers, but the ratio was fitted to samples of "
            f"{ratio.centres.shape[1]} numbers; give it the same kind of inputs or features"
        )
    return torch.cat(
        [_kernel(_rows(part), ratio.centres, ratio.width) @ ratio.weights for part in torch.split(x, chunk)]
    )


def _kernel(a: Tensor, b: Tensor, width: float) -> Tensor:
    """k(a, b) = exp(-||a - b||^2 / (2 s^2)) for all pairs."""
    return torch.cdist(a, b).square_().div_(-2 * width**2).exp_()


def _rows(x: Tensor) -> Tensor:
    return x.flatten(1).double()


def kernel_width(known: Tensor, width: Width = REFERENCE_WIDTH) -> float:
    """The width s of the kernel: a number, or a fraction of the median distance between the known samples.

    The default is that of the authors' code for normalised images of 28 x 28. It suits MNIST and Fashion-MNIST, where a
    narrow kernel judges by the nearest known samples. "median/8" gives about the same there, and adapts to the data
    if inputs have another size or are features. "median" is the customary rule, but it is too wide for a client
    with several classes: points between the classes look familiar. In the pixels of natural images no width separates
    classes well; use features of a trained network instead.

    Distances of 0 do not count. If there are no others, as with one known sample, the default width is used;
    samples are then ranked by their distance to that sample, whatever the width.

    >>> kernel_width(torch.tensor([[0.0], [1.0], [4.0]]), "median")
    3.0
    """
    if isinstance(width, str):
        distances = torch.pdist(_rows(known[:1000]))  # enough for a median; all pairs of many would not fit
        distances = distances[distances > 0]
        if not len(distances):
            return REFERENCE_WIDTH
        return distances.median().item() / (1 if width == "median" else 8)
    return float(width)


def split_known(count: int, stream: torch.Generator, share: float = 0.05, least: int = 50) -> tuple[Tensor, Tensor]:
    """Draw which of a client's samples are known; the remaining ones calibrate the threshold.

    The known samples are a `share` of all, at least `least` but at most half: with 5 %
    of some 5,400 samples, as in the authors' experiment, 270 are known, but of 50 only 2 would be, too few to
    represent several classes. Of 2 or 3 samples 1 is known. A single sample is known and leaves none to calibrate with.

    >>> [len(part) for part in split_known(60, torch.Generator())]
    [30, 30]
    """
    known = max(1, min(max(int(share * count), least), count // 2))
    order = torch.randperm(count, generator=stream)
    return order[:known], order[known:]


def uniform_in_box(count: int, d: int, box: tuple[float, float], stream: torch.Generator) -> Tensor:
    """Draw samples of `d` numbers, uniformly between the box's lowest and highest value, in float64.

    >>> uniform_in_box(2, 3, (1.0, 1.0), torch.Generator())
    tensor([[1., 1., 1.],
            [1., 1., 1.]], dtype=torch.float64)
    """
    low, high = box
    return low + (high - low) * torch.rand(count, d, generator=stream, dtype=torch.float64)


def threshold(ratios: Tensor, q: float = 0.25) -> float:
    """The q-quantile of the ratios of a client's remaining samples; without any, no ratio is above it.

    >>> threshold(torch.tensor([4.0, 1.0, 2.0, 3.0]))
    1.75
    >>> threshold(torch.empty(0))
    inf
    """
    return torch.quantile(ratios, q).item() if len(ratios) else math.inf


def select(
    own: Tensor,
    proxy: Tensor,
    stream: torch.Generator,
    *,
    q: float = 0.25,
    width: Width = REFERENCE_WIDTH,
    lam: float | None = None,
    auxiliary: int = 250,
    box: tuple[float, float] | None = None,
    share: float = 0.05,
    least: int = 50,
) -> Tensor:
    """The client's mask over the proxy samples: true where its ratio is above its threshold, so that it may vote.

    Inputs or features are flattened. The box of the auxiliary samples spans the lowest to the highest value of the
    client's own samples, unless it is given. A client with a single sample cannot tell what is unusual, and abstains;
    one with two keeps roughly the samples that are closer to one of them than the other is.

    >>> own, proxy = torch.linspace(0, 1, 100)[:, None], torch.tensor([[0.5], [3.0]])
    >>> select(own, proxy, torch.Generator(), width=0.5)
    tensor([ True, False])
    """
    if not len(own):
        raise DataError("a client with no samples has no density; leave it out, or give it data")
    if not own.isfinite().all():
        raise DataError("the client's samples hold NaN or infinity; remove them, or give features of a sound network")
    known, rest = (own[positions.to(own.device)] for positions in split_known(len(own), stream, share, least))
    low, high = box or (own.min().item(), own.max().item())
    drawn = uniform_in_box(auxiliary, own.flatten(1).shape[1], (low, high), stream).to(own.device)
    ratio = fit_ratio(known, drawn, width, lam)
    usual = ratio_at(ratio, rest)
    tau = threshold(usual, q)
    if len(usual) and not usual.any():
        raise UsageError(
            f"the width {ratio.width:g} is so small that all ratios of a client's own samples are 0; "
            "write a larger one, or 'median/8'"
        )
    return ratio_at(ratio, proxy) > tau
