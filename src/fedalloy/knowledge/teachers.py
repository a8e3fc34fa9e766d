"""The teachers' rule: how several clients' answers to the same samples are combined into a teacher.

Answers are logits, or probabilities, of K clients for N samples: (K, N, classes). A rule says what is averaged (logits,
centred logits or probabilities) and how much each client counts for each sample: equally, or by shares (K, N) from
label counts, from the entropy of its answers, or from its discriminator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedalloy.aggregation.robust import Combine, capped, clipped, combined

Ensemble = Literal["prob", "logit"]
Rule = Literal["logits", "centred", "probabilities", "entropy"]
LEAST = 1e-12  # smaller probabilities count as this, so that the logarithm exists


def taught(logits: Tensor, rule: Rule, tau: float = 1.0) -> Tensor:
    """The teacher of logits (K, N, classes) by a rule, as logits (N, classes); `entropy` weights probabilities.

    >>> taught(torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]]), "logits")
    tensor([[2., 1.]])
    """
    if rule == "entropy":
        return tau * ensemble(by_entropy(logits, tau), logits, tau).clamp_min(LEAST).log()
    if rule == "probabilities":
        return mean_probabilities(logits, tau)
    return mean_centred_logits(logits) if rule == "centred" else mean_logits(logits)


# --- all clients count equally ----------------------------------------------------------------------------------------


def mean_logits(logits: Tensor) -> Tensor:
    """The clients' mean logits (N, classes), as in FedDF.

    >>> mean_logits(torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]]))
    tensor([[2., 1.]])
    """
    return logits.mean(0)


def mean_centred_logits(logits: Tensor) -> Tensor:
    """The mean of logits minus each client's own mean for each class, over all samples.

    A class that a client always prefers loses its advantage. A mean over the classes of a sample would be no use: no
    softmax depends on it.

    >>> mean_centred_logits(torch.tensor([[[9.0, 5.0], [7.0, 5.0]], [[0.0, 2.0], [0.0, 4.0]]]))
    tensor([[ 0.5000, -0.5000],
            [-0.5000,  0.5000]])
    """
    exact = logits.double()
    return (exact - exact.mean(-2, keepdim=True)).mean(0).to(logits.dtype)


def mean_probabilities(logits: Tensor, tau: float = 1.0) -> Tensor:
    """Logits (N, classes) whose softmax at temperature tau is the clients' mean probability.

    >>> mean_probabilities(torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()).softmax(1)
    tensor([[0.7000, 0.3000]])
    """
    return tau * (logits / tau).softmax(2).mean(0).clamp_min(LEAST).log()


def consensus(
    answers: Tensor | Sequence[Tensor], combine: Combine = "mean", trim: float = 0.2, clip: float | None = None
) -> Tensor:
    """(1/K) sum_k z_k in float64, cast once, as in FedMD; or a robust rule's result.

    With `clip`, logits are first centred over the classes and clipped to [-clip, clip].

    >>> consensus(torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]], [[1e9, 0.0]]]), "median")
    tensor([[3., 0.]])
    """
    own = [{"answers": a if clip is None else clipped(a, clip)} for a in answers]
    found: Tensor = combined(own, [1.0] * len(own), own[0], combine, trim)["answers"]
    return found


def consensus_of_probabilities(soft: Tensor, combine: Combine = "mean", trim: float = 0.2) -> Tensor:
    """One distribution for each sample, in float64, as in DS-FL: the clients' mean, or a robust rule's.

    Rows of a median or a trimmed mean need not sum to 1, so they are normalised. If a row is all zeros, all classes
    are equally probable.

    >>> consensus_of_probabilities(torch.tensor([[[0.8, 0.2]], [[0.6, 0.4]], [[0.0, 1.0]]]), "median")
    tensor([[0.6000, 0.4000]], dtype=torch.float64)
    """
    if combine == "mean":
        return soft.double().mean(0)
    return capped(consensus(soft.double(), combine, trim).T, 1.0).T


# --- shares: how much each client counts for each sample --------------------------------------------------------------


def by_label_counts(counts: Tensor, eps: float = 0.0) -> Tensor:
    """alpha_{k,y} = n_k^y / (sum_j n_j^y + eps) from label counts (K, classes), as in FedFTG.

    A sample of class y uses column y. A class that no client holds is 0 throughout.

    >>> by_label_counts(torch.tensor([[3, 0, 0], [1, 5, 0]]))
    tensor([[0.7500, 0.0000, 0.0000],
            [0.2500, 1.0000, 0.0000]])
    """
    return (counts.double() / (counts.sum(0).clamp(min=1) + eps)).float()


def by_entropy(logits: Tensor, tau: float = 1.0, max_share: float = 1.0) -> Tensor:
    """Shares proportional to exp(-H) of each client's probabilities at temperature tau: more for confident clients.

    A client that is certain of one of C classes counts C times as much as one with uniform probabilities.

    >>> by_entropy(torch.tensor([[[50.0, 0.0]], [[0.0, 0.0]]])).flatten()
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    log_p = (logits.double() / tau).log_softmax(2)
    return capped((log_p.exp() * log_p).sum(2).exp(), max_share)


def by_discriminator(scores: Tensor, max_share: float = 1.0) -> Tensor:
    """Shares alpha_ki / sum_j alpha_ji from discriminators' scores (K, N): DaFKD, Eq. 7.

    Clients may report scores, so they are bounded: to [0, 1], and to 0 if they are not finite. No client gets more than
    `max_share` of a sample; the others share the excess in proportion. If all scores are 0, all clients count equally.

    >>> by_discriminator(torch.tensor([[0.8], [0.2], [0.5]]), max_share=0.4).flatten()
    tensor([0.4000, 0.2000, 0.4000], dtype=torch.float64)
    """
    return capped(torch.nan_to_num(scores.double(), nan=0.0, posinf=0.0, neginf=0.0).clamp(0, 1), max_share)


def ensemble(shares: Tensor, logits: Tensor, tau: float = 1.0, kind: Ensemble = "prob") -> Tensor:
    """The teacher sum_k share_ki s_ki as probabilities (N, classes), from shares (K, N) and logits (K, N, classes).

    DaFKD's paper weights probabilities (Eq. 8). Its code weights logits and takes the softmax of their sum.

    >>> s = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])[:, None].log()
    >>> shares = by_discriminator(torch.tensor([[0.8], [0.2], [0.5]]))
    >>> ensemble(shares, s), ensemble(shares, s, kind="logit")
    (tensor([[0.6733, 0.3267]]), tensor([[0.7285, 0.2715]]))
    """
    answers = logits.double() / tau
    if kind == "prob":
        return torch.einsum("kn,knc->nc", shares, answers.softmax(2)).to(logits.dtype)
    return torch.einsum("kn,knc->nc", shares, answers).softmax(1).to(logits.dtype)


def sum_of_products(products: Tensor) -> tuple[Tensor, Tensor]:
    """The teacher from only the products alpha_ki s_ki (K, N, classes), and for which samples it is known.

    Since probabilities sum to 1, sum_k alpha_ki is the sum over classes of sum_k alpha_ki s_ki: only the clients' sum
    is needed. A product is bounded like a score: it counts as 0 if it is negative or not finite, and is scaled
    down if it sums to more than 1. A sample whose products are all 0 has no teacher.

    >>> sum_of_products(torch.tensor([[[0.6, 0.2]], [[0.1, 0.1]]]))
    (tensor([[0.7000, 0.3000]]), tensor([True]))
    """
    clean = torch.nan_to_num(products.double(), nan=0.0, posinf=0.0, neginf=0.0).clamp_min(0)
    total = (clean / clean.sum(2, keepdim=True).clamp_min(1)).sum(0)
    mass = total.sum(1, keepdim=True)
    known = mass.flatten() > 0
    return (total / torch.where(mass > 0, mass, 1)).to(products.dtype), known
