"""Losses, each with one reduction and one direction; if a paper differs, its method's file shows the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy with hard labels, mean over the batch.

    >>> ce(torch.zeros(3, 10), torch.tensor([0, 1, 2])).item()
    2.3025851249694824
    """
    return F.cross_entropy(logits, labels)


def kl(target: Tensor, logits: Tensor, tau: float = 1.0) -> Tensor:
    """KL(softmax(target / tau) || softmax(logits / tau)): summed over classes, mean over the batch.

    There is no factor tau^2; a method whose paper has one adds it. Gradients flow into both arguments: detach a
    teacher.

    >>> round(kl(torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.8, 0.2]]).log()).item(), 6)
    0.03669
    """
    return F.kl_div(
        F.log_softmax(logits / tau, 1), F.log_softmax(target / tau, 1), reduction="batchmean", log_target=True
    )


def js(one: Tensor, other: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of two models' answers, mean over the batch: 0 for equal ones, at most ln 2.

    >>> round(js(torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]])).item(), 6)
    0.693147
    """
    p, q = one.log_softmax(1), other.log_softmax(1)
    middle = torch.logaddexp(p, q) - math.log(2)
    return (kl(p, middle) + kl(q, middle)) / 2


def soft_ce(target: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy with soft labels: - sum_c target_c log softmax(logits)_c, mean over the batch.

    >>> round(soft_ce(torch.tensor([[0.731059, 0.268941]]), torch.tensor([[1.0, 0.0]]) / 2).item(), 5)
    0.60855
    """
    return F.cross_entropy(logits, target)


def sq_dist(net: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Squared distance of a network's trainable parameters from an anchor: summed, not averaged, without buffers.

    The sum of squares is differentiable at zero distance, but the norm is not.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(net.weight, 3.0)
    >>> sq_dist(net, {"weight": torch.tensor([[1.0, 2.0]])}).item()
    5.0
    """
    parts = [((p - anchor[name]) ** 2).sum() for name, p in net.named_parameters() if p.requires_grad]
    return torch.stack(parts).sum()
