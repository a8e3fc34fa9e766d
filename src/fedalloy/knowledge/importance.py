"""How much each client's model counts for a sample, by the clients' domain discriminators (DaFKD, Eq. 7 and 8)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.aggregation.robust import capped

Ensemble = Literal["prob", "logit"]
Scaling = Literal["plain", "tau2", "tau2_mean"]


def importance(scores: Tensor, max_share: float = 1.0) -> Tensor:
    """ahat_ki = alpha_ki / sum_j alpha_ji (Eq. 7): one column for each sample, which sums to 1, in float64.

    Scores (K, N) may be what clients say about themselves, so they are bounded: they count as within [0, 1], as 0 if
    they are not finite, and no client gets more than `max_share` of a sample; the excess goes to the others,
    in proportion to their scores. Where all scores are 0, all count alike.

    >>> importance(torch.tensor([[0.8], [0.2], [0.5]])).flatten()
    tensor([0.5333, 0.1333, 0.3333], dtype=torch.float64)
    >>> importance(torch.tensor([[0.8], [0.2], [0.5]]), max_share=0.4).flatten()
    tensor([0.4000, 0.2000, 0.4000], dtype=torch.float64)
    """
    scores = torch.nan_to_num(scores.double(), nan=0.0, posinf=0.0, neginf=0.0).clamp(0, 1)
    return capped(scores, max_share)


def ensemble(shares: Tensor, logits: Tensor, tau: float = 1.0, kind: Ensemble = "prob") -> Tensor:
    """The teacher sum_k ahat_ki s(w_k; x_i) as probabilities (N, C), from shares (K, N) and logits (K, N, C).

    DaFKD's paper weighs probabilities (Eq. 8), its code logits, whose weighted sum then goes through the softmax.

    >>> s = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])[:, None].log()
    >>> weights = importance(torch.tensor([[0.8], [0.2], [0.5]]))
    >>> ensemble(weights, s), ensemble(weights, s, kind="logit")
    (tensor([[0.6733, 0.3267]]), tensor([[0.7285, 0.2715]]))
    """
    answers = logits.double() / tau
    if kind == "prob":
        return torch.einsum("kn,knc->nc", shares, answers.softmax(2)).to(logits.dtype)
    return torch.einsum("kn,knc->nc", shares, answers).softmax(1).to(logits.dtype)


def ensemble_of_products(products: Tensor) -> tuple[Tensor, Tensor]:
    """The same teacher from the products alpha_ki s(w_k; x_i) alone (K, N, classes), and for which samples it is known.

    sum_k ahat_ki s_k = (sum_k alpha_ki s_k) / (sum_k alpha_ki), and because probabilities sum to 1, the denominator is
    the numerator's sum over the classes: nothing but the clients' sum is needed. A product is bounded like a score:
    one that is not finite or negative counts as 0, one of a sum above 1 is scaled down. A sample whose products are
    all 0 has no teacher here.

    >>> s = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])[:, None]
    >>> ensemble_of_products(torch.tensor([0.8, 0.2, 0.5])[:, None, None] * s)
    (tensor([[0.6733, 0.3267]]), tensor([True]))
    """
    clean = torch.nan_to_num(products.double(), nan=0.0, posinf=0.0, neginf=0.0).clamp_min(0)
    total = (clean / clean.sum(2, keepdim=True).clamp_min(1)).sum(0)
    mass = total.sum(1, keepdim=True)
    known = mass.flatten() > 0
    return (total / torch.where(mass > 0, mass, 1)).to(products.dtype), known


def distance_to(teacher: Tensor, logits: Tensor, tau: float = 1.0, scaling: Scaling = "plain") -> Tensor:
    """KL(teacher || softmax(logits / tau)), mean over the samples (Eq. 8); the teacher is given as probabilities.

    `tau2` multiplies by tau^2; `tau2_mean`, as DaFKD's code does, also takes the mean over classes, not their sum.

    >>> round(distance_to(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.8, 0.2]]).log()).item(), 6)
    0.03669
    """
    distance = F.kl_div(F.log_softmax(logits / tau, 1), teacher, reduction="batchmean")
    if scaling == "plain":
        return distance
    return distance * (tau**2 if scaling == "tau2" else tau**2 / logits.shape[1])


def importance_by_class(shares: Tensor, teacher: Tensor) -> Tensor:
    """Each client's mean importance (K, classes) for the samples that the teacher takes for a class; 0 without such.

    >>> importance_by_class(torch.tensor([[0.5, 1.0, 0.2], [0.5, 0.0, 0.8]]), torch.eye(3)[[0, 0, 2]])
    tensor([[0.7500, 0.0000, 0.2000],
            [0.2500, 0.0000, 0.8000]])
    """
    seen = F.one_hot(teacher.argmax(1), teacher.shape[1]).to(shares.dtype)
    return ((shares @ seen) / seen.sum(0).clamp_min(1)).float()
