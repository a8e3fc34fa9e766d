"""Losses, each with one reduction and one direction; if a paper differs, its method's file shows the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.data.samples import Task


def ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy with hard labels, mean over the batch.

    >>> ce(torch.zeros(3, 10), torch.tensor([0, 1, 2])).item()
    2.3025851249694824
    """
    return F.cross_entropy(logits, labels)


def task_loss(task: Task, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The loss of a network's outputs on the targets of a task: always a mean of one term per sample.

    "classes": cross-entropy. "labels": binary cross-entropy of the logits, mean over the labels. "numbers": squared
    error, mean over the numbers. `weights` are those of `balanced_weights`; a sample's term is multiplied by the weight
    of its class, or each label's by the weight of its value, and the mean is over samples, not over weights.

    >>> task_loss("numbers", torch.tensor([[1.0], [4.0]]), torch.tensor([[1.0], [2.0]])).item()
    2.0
    >>> round(task_loss("labels", torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])).item(), 6)
    0.693147
    """
    if task == "classes":
        if weights is None:
            return ce(outputs, targets)
        return (answer_weights(task, targets, weights) * F.cross_entropy(outputs, targets, reduction="none")).mean()
    if task == "labels":
        each = None if weights is None else answer_weights(task, targets, weights)
        return F.binary_cross_entropy_with_logits(outputs, targets, weight=each)
    return F.mse_loss(outputs, targets)


def answer_weights(task: Task, targets: Tensor, weights: Tensor) -> Tensor:
    """The weight of each sample by its class, or of each of its labels by the label's value."""
    return weights[targets] if task == "classes" else torch.where(targets > 0.5, weights[1], weights[0])


def balanced_weights(task: Task, targets: Tensor, outputs: int) -> Tensor:
    """Weights by inverse frequency, n / (classes present * count), as scikit-learn's "balanced"; on average they are 1.

    One for each output with "classes". With "labels", each label is a problem of two classes, and the rows are the
    weights of its zeros and of its ones. A class that nobody has does not occur, so its weight does not matter.

    >>> balanced_weights("classes", torch.tensor([0, 0, 0, 2]), 3)
    tensor([0.6667, 2.0000, 2.0000])
    >>> balanced_weights("labels", torch.tensor([[1.0], [0.0], [0.0], [0.0]]), 1)
    tensor([[0.6667],
            [2.0000]])
    """
    if task == "classes":
        counts = torch.bincount(targets, minlength=outputs)
    else:
        ones = targets.sum(0)
        counts = torch.stack([len(targets) - ones, ones])
    present = (counts > 0).sum(0)
    return (len(targets) / (present * counts.clamp_min(1)).double()).float()


def soft_answers(task: Task, outputs: Tensor) -> Tensor:
    """What clients exchange of a network's outputs: probabilities of classes or of each label, or the numbers.

    >>> soft_answers("labels", torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
    """
    if task == "classes":
        return outputs.softmax(1)
    return outputs.sigmoid() if task == "labels" else outputs


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


def binary_kl(target: Tensor, logits: Tensor, tau: float = 1.0) -> Tensor:
    """KL between each label's target probability and the logits' own, both softened, mean over labels and batch.

    The target holds probabilities, not logits: those of 0 and 1 are exact. There is no factor tau^2.

    >>> p, q = torch.tensor([[0.9]]), torch.tensor([[0.8]])
    >>> round(binary_kl(p, q.logit()).item(), 6)
    0.03669
    >>> binary_kl(torch.tensor([[0.0]]), torch.tensor([[-50.0]])).item() < 1e-6
    True
    """
    one, zero = target ** (1 / tau), (1 - target) ** (1 / tau)
    soft = one / (one + zero)
    entropy: Tensor = torch.special.entr(soft) + torch.special.entr(1 - soft)
    return F.binary_cross_entropy_with_logits(logits / tau, soft) - entropy.mean()


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


def soft_loss(task: Task, target: Tensor, outputs: Tensor) -> Tensor:
    """The loss towards soft answers, see `soft_answers`: cross-entropy, binary cross-entropy, squared error.

    >>> soft_loss("numbers", torch.tensor([[1.0]]), torch.tensor([[3.0]])).item()
    4.0
    """
    return soft_ce(target, outputs) if task == "classes" else task_loss(task, outputs, target)


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
