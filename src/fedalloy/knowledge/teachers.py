"""The teachers' rule: what several clients' answers to the same samples teach together.

Answers are logits, or probabilities, of K clients for N samples: (K, N, classes). A rule says what is averaged (logits,
centred logits or probabilities) and how much each client counts for each sample: all alike, or by shares (K, N) from
label counts, from the entropy of its answers, or from its discriminator. Each column of shares sums to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedalloy.aggregation.robust import Combine, capped, clipped, combined

LEAST = 1e-12  # below it a probability counts as this, so that its logarithm exists


# --- all clients count alike ------------------------------------------------------------------------------------------


def mean_logits(logits: Tensor) -> Tensor:
    """The clients' mean logits (N, classes), as in FedDF.

    >>> mean_logits(torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]]))
    tensor([[2., 1.]])
    """
    return logits.mean(0)


def mean_centred_logits(logits: Tensor, over: Literal["classes", "samples"] = "classes") -> Tensor:
    """The mean of logits less each client's own mean, over the classes of a sample or over all samples of a class.

    Over classes, no client's probabilities change, and none counts more for having large logits throughout. Over
    samples, a class that a client always prefers loses its advantage.

    >>> mean_centred_logits(torch.tensor([[[9.0, 5.0]], [[0.0, 2.0]]]))
    tensor([[ 0.5000, -0.5000]])
    """
    exact = logits.double()
    return (exact - exact.mean(-1 if over == "classes" else -2, keepdim=True)).mean(0).to(logits.dtype)


def mean_probabilities(logits: Tensor, tau: float = 1.0) -> Tensor:
    """Logits (N, classes) whose softmax at temperature tau is the clients' mean probability.

    >>> mean_probabilities(torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()).softmax(1)
    tensor([[0.7000, 0.3000]])
    """
    return tau * (logits / tau).softmax(2).mean(0).clamp_min(LEAST).log()


def consensus(
    answers: Tensor | Sequence[Tensor], combine: Combine = "mean", trim: float = 0.2, clip: float | None = None
) -> Tensor:
    """(1/K) sum_k z_k in float64, cast once, as in FedMD; or what a robust rule makes of the answers.

    With `clip`, logits are centred over the classes first and kept within [-clip, clip].

    >>> consensus(torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]], [[1e9, 0.0]]]), "median")
    tensor([[3., 0.]])
    """
    own = [{"answers": a if clip is None else clipped(a, clip)} for a in answers]
    found: Tensor = combined(own, [1.0] * len(own), own[0], combine, trim)["answers"]
    return found


def consensus_of_probabilities(soft: Tensor, combine: Combine = "mean", trim: float = 0.2) -> Tensor:
    """One distribution for each sample, in float64, as in DS-FL: the clients' mean, or a robust rule's.

    Rows of a median or a trimmed mean need not sum to 1, and are made to. Where nothing is left of a row, all classes
    are equally probable.

    >>> consensus_of_probabilities(torch.tensor([[[0.8, 0.2]], [[0.6, 0.4]], [[0.0, 1.0]]]), "median")
    tensor([[0.6000, 0.4000]], dtype=torch.float64)
    """
    if combine == "mean":
        return soft.double().mean(0)
    return capped(consensus(soft.double(), combine, trim).T, 1.0).T


# --- shares: how much each client counts for each sample --------------------------------------------------------------


def by_label_counts(counts: Tensor, labels: Tensor, max_share: float = 1.0) -> Tensor:
    """Shares n_k^y / sum_j n_j^y for samples of these labels, from label counts (K, classes), as in FedFTG.

    Where nobody holds a class, all count alike. No client gets more than `max_share` of a sample.

    >>> by_label_counts(torch.tensor([[3, 0], [1, 0]]), torch.tensor([0, 1]))
    tensor([[0.7500, 0.5000],
            [0.2500, 0.5000]], dtype=torch.float64)
    """
    return capped(counts[:, labels].double(), max_share)


def by_entropy(logits: Tensor, tau: float = 1.0, max_share: float = 1.0) -> Tensor:
    """Shares proportional to exp(-H) of each client's probabilities at temperature tau: more for those that are sure.

    A client that is sure of one of C classes counts C times as much as one that has no idea.

    >>> by_entropy(torch.tensor([[[50.0, 0.0]], [[0.0, 0.0]]])).flatten()
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    log_p = (logits.double() / tau).log_softmax(2)
    return capped((log_p.exp() * log_p).sum(2).exp(), max_share)


def by_discriminator(scores: Tensor, max_share: float = 1.0) -> Tensor:
    """Shares alpha_ki / sum_j alpha_ji from discriminators' scores (K, N): DaFKD, Eq. 7.

    Clients may report scores, so they are bounded: to [0, 1], and to 0 if they are not finite. No client gets more than
    `max_share` of a sample; the others share the excess in proportion. Where all scores are 0, all count alike.

    >>> by_discriminator(torch.tensor([[0.8], [0.2], [0.5]]), max_share=0.4).flatten()
    tensor([0.4000, 0.2000, 0.4000], dtype=torch.float64)
    """
    return capped(torch.nan_to_num(scores.double(), nan=0.0, posinf=0.0, neginf=0.0).clamp(0, 1), max_share)


def weighted_probabilities(shares: Tensor, logits: Tensor, tau: float = 1.0) -> Tensor:
    """sum_k share_ki softmax(z_ki / tau) as probabilities (N, classes): DaFKD, Eq. 8.

    >>> logits = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]]).log()
    >>> weighted_probabilities(torch.tensor([[0.75], [0.25]]).double(), logits)
    tensor([[0.7000, 0.3000]])
    """
    return torch.einsum("kn,knc->nc", shares, (logits.double() / tau).softmax(2)).to(logits.dtype)


def weighted_logits(shares: Tensor, logits: Tensor, tau: float = 1.0) -> Tensor:
    """softmax(sum_k share_ki z_ki / tau) as probabilities (N, classes): DaFKD's code.

    >>> weighted_logits(torch.tensor([[0.5], [0.5]]).double(), torch.tensor([[[4.0, 0.0]], [[0.0, 4.0]]]))
    tensor([[0.5000, 0.5000]])
    """
    return torch.einsum("kn,knc->nc", shares, logits.double() / tau).softmax(1).to(logits.dtype)


def sum_of_products(products: Tensor) -> tuple[Tensor, Tensor]:
    """`weighted_probabilities` from products alpha_ki s_ki alone (K, N, classes), and for which samples it is known.

    Since probabilities sum to 1, sum_k alpha_ki is the sum over classes of sum_k alpha_ki s_ki: the clients' sum is all
    that is needed. A product is bounded like a score: it counts as 0 where it is negative or not finite, and is scaled
    down where it sums to more than 1. A sample whose products are all 0 has no teacher.

    >>> sum_of_products(torch.tensor([[[0.6, 0.2]], [[0.1, 0.1]]]))
    (tensor([[0.7000, 0.3000]]), tensor([True]))
    """
    clean = torch.nan_to_num(products.double(), nan=0.0, posinf=0.0, neginf=0.0).clamp_min(0)
    total = (clean / clean.sum(2, keepdim=True).clamp_min(1)).sum(0)
    mass = total.sum(1, keepdim=True)
    known = mass.flatten() > 0
    return (total / torch.where(mass > 0, mass, 1)).to(products.dtype), known
