"""A generator of labelled samples that the server trains against the clients' models (FedGen, FedFTG).

Labels follow the clients' label counts, and a client's model counts for a label by its share of that label's samples.
Answers are logits of K clients (K, B, classes); a is the weight of each client for each sample (K, B).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.aggregation.robust import bounded_counts
from fedalloy.train.losses import ce

Apart = Callable[[Tensor, Tensor, Tensor], Tensor]


# --- labels and weights -----------------------------------------------------------------------------------------------


def label_distribution(
    counts: Sequence[Tensor], sizes: Sequence[int] | None = None, uniform: bool = False, cap: float | None = None
) -> Tensor:
    """The labels' shares among these clients' samples; with sizes, each client's counts are multiplied by its size.

    A label that no client holds has probability 0; `uniform` makes all others equally probable. No client contributes
    more than `cap` to them.

    >>> label_distribution([torch.tensor([10, 0]), torch.tensor([0, 30])])
    tensor([0.2500, 0.7500])
    >>> label_distribution([torch.tensor([10, 0]), torch.tensor([0, 30])], sizes=[10, 30])
    tensor([0.1000, 0.9000])
    >>> label_distribution([torch.tensor([10, 0]), torch.tensor([0, 30])], uniform=True)
    tensor([0.5000, 0.5000])
    """
    parts = [c.double() * n for c, n in zip(counts, sizes or [1] * len(counts), strict=True)]
    total = sum(bounded_counts(parts, cap))
    assert isinstance(total, Tensor)
    if uniform:
        total = (total > 0).double()
    return (total / total.sum()).float().cpu()


def drawn_labels(held: Tensor, batches: int, size: int, stream: torch.Generator) -> Tensor:
    """Labels (batches, size), drawn in proportion to what clients hold; a class that no client holds never occurs."""
    return torch.multinomial(held.double(), batches * size, replacement=True, generator=stream).view(batches, -1)


def split_labels(held: Tensor, batches: int, size: int, stream: torch.Generator) -> Tensor:
    """The same, but shuffled, with label counts in proportion to what clients hold.

    >>> split_labels(torch.tensor([30, 0, 10]), 2, 4, torch.Generator()).flatten().bincount()
    tensor([6, 0, 2])
    """
    ends = (held.cumsum(0) * (batches * size) // held.sum()).long()  # of each class in a sorted row, in whole numbers
    split = torch.searchsorted(ends, torch.arange(batches * size), right=True)
    return split[torch.randperm(batches * size, generator=stream)].view(batches, -1)


# --- what a generator is trained for ----------------------------------------------------------------------------------


def average_ce(answers: Tensor, labels: Tensor, weights: Sequence[float]) -> Tensor:
    """CE(sum_k a_k head_k(z), y): logits are averaged before the softmax.

    >>> average_ce(torch.tensor([[[4.0, 0.0]], [[0.0, 4.0]]]), torch.tensor([0]), [0.5, 0.5])
    tensor(0.6931)
    """
    return ce(torch.tensordot(answers.new_tensor(weights), answers, 1), labels)


def weighted_ce(answers: Tensor, labels: Tensor, counts: Sequence[Tensor], *, by_sample: bool = True) -> Tensor:
    """sum_k mean_b weight[y_b, k] CE(head_k(z_b), y_b), the weight being client k's share of the samples labelled y_b.

    Counts start at 1, so that a client without that label has a small influence. Without `by_sample`, the mean of a
    client's weights is multiplied by the mean of its losses.

    >>> one_sure, other_wrong = torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]])
    >>> heads = torch.stack([one_sure, other_wrong])
    >>> weighted_ce(heads, torch.tensor([0]), [torch.tensor([2, 0]), torch.tensor([0, 9])])
    tensor(12.5000)
    """
    table = torch.stack(list(counts)).to(answers) + 1
    weights = (table / table.sum(0))[:, labels]
    losses = torch.stack([F.cross_entropy(of_one, labels, reduction="none") for of_one in answers])
    return (weights * losses).sum(0).mean() if by_sample else (weights.mean(1) * losses.mean(1)).sum()


def consensus_loss(
    kind: Literal["avg_logits", "weighted_ce", "weighted_means"],
    answers: Tensor,
    labels: Tensor,
    weights: Sequence[float],
    counts: Sequence[Tensor],
) -> Tensor:
    """How far the clients' heads are from recognising generated features, in one of three ways."""
    if kind == "avg_logits":
        return average_ce(answers, labels, weights)
    return weighted_ce(answers, labels, counts, by_sample=kind == "weighted_ce")


def recognition(answers: Tensor, labels: Tensor, a: Tensor, *, by_image: bool = True) -> Tensor:
    """L_cls = mean_b sum_k a_{k,b} CE(answers_{k,b}, y_b); or with each client's mean CE times its mean weight."""
    losses = F.cross_entropy(answers.transpose(1, 2), labels.expand(len(answers), -1), reduction="none")
    return ((a * losses).mean(1) if by_image else a.mean(1) * losses.mean(1)).sum()


# --- how far a student is from the clients ----------------------------------------------------------------------------


def ensemble_kl(answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
    """L_md = mean_b sum_k a_{k,b} KL(softmax(answers_{k,b}) || softmax(said_b)).

    >>> teachers, student = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log(), torch.tensor([[0.8, 0.2]]).log()
    >>> round(ensemble_kl(teachers, student, torch.tensor([[1.0], [0.0]])).item(), 6)
    0.03669
    """
    target, log_said = answers.log_softmax(2), said.log_softmax(1).expand_as(answers)
    return (a * F.kl_div(log_said, target, reduction="none", log_target=True).sum(2)).sum(0).mean()


def ensemble_l1(answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
    """The mean absolute difference of logits; no gradient passes through the clients' answers."""
    return (a * (said - answers.detach()).abs().mean(2)).sum(0).mean()


def ensemble_ce(answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
    """The cross-entropy to the weighted probabilities, as a mean over samples and classes."""
    return -((a[:, :, None] * answers.softmax(2)).sum(0) * said.log_softmax(1)).mean()


Distance = Literal["kl", "l1", "ce"]
DISTANCES: Mapping[Distance, Apart] = {"kl": ensemble_kl, "l1": ensemble_l1, "ce": ensemble_ce}


# --- diversity --------------------------------------------------------------------------------------------------------


def diversity_loss(noise: Tensor, made: Tensor) -> Tensor:
    """exp(-mean_ij(|eps_i - eps_j|^2 |z_i - z_j|)): in (0, 1], and 1 if different noise gives equal samples.

    The distances are means over coordinates, squared for the noise and absolute for the samples; the mean is taken
    over all pairs of a batch, including i = j.

    >>> diversity_loss(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])).log()
    tensor(-1.)
    """
    z = made.flatten(1)
    return (-(_apart(noise).square() / noise.shape[1] * torch.cdist(z, z, p=1) / z.shape[1]).mean()).exp()


def diversity_by_norms(noise: Tensor, made: Tensor) -> Tensor:
    """The same with Euclidean norms, which are so large for whole images that loss and gradient vanish."""
    return (-(_apart(noise) * _apart(made.flatten(1))).mean()).exp()


def _apart(rows: Tensor) -> Tensor:
    """Euclidean distances; with matrix products, torch's default, a row's distance from itself would not be zero."""
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
