"""Data-free distillation: what makes a generator useful to a student, judged by a teacher alone (FedKF, Sec. IV-C)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedalloy.train.losses import ce


def entropy_loss(answers: Tensor, *, normalised: bool = True) -> Tensor:
    """L_IE (Eq. 3): minus the entropy of the teacher's mean answer; small when all classes are made equally often.

    Normalised it lies in [0, 1], 0 for all classes alike and 1 for one class only; else in [-log n, 0].

    >>> entropy_loss(torch.zeros(5, 4)).abs() < 1e-6, entropy_loss(torch.eye(4)[:1] * 200)
    (tensor(True), tensor(1.))
    """
    mean = answers.softmax(1).mean(0)
    # A class that is never made has probability 0: its term is 0, and its gradient must not be NaN.
    negative = (mean * mean.clamp_min(torch.finfo(mean.dtype).tiny).log()).sum()
    return 1 + negative / math.log(answers.shape[1]) if normalised else negative


def one_hot_loss(answers: Tensor) -> Tensor:
    """L_OH (Eq. 2): the teacher should be sure, whatever it thinks it sees.

    >>> one_hot_loss(torch.tensor([[0.25, 0.75]]).log())
    tensor(0.2877)
    """
    return ce(answers, answers.argmax(1))


def activation_loss(feature: Tensor, *, summed: bool = False) -> Tensor:
    """L_A (Eq. 4): minus the L1 norm of the feature, mean over the batch; the code also takes the mean over features.

    >>> activation_loss(torch.tensor([[1.0, -3.0]])), activation_loss(torch.tensor([[1.0, -3.0]]), summed=True)
    (tensor(-2.), tensor(-4.))
    """
    norms = feature.abs().flatten(1)
    return -(norms.sum(1) if summed else norms.mean(1)).mean()


def generator_loss(
    feature: Tensor, answers: Tensor, lambda_1: float, lambda_2: float, *, normalised: bool = True, summed: bool = False
) -> Tensor:
    """L_G = L_IE + lambda_1 L_OH + lambda_2 L_A (Eq. 5).

    >>> generator_loss(torch.ones(2, 3), torch.zeros(2, 2), lambda_1=1.0, lambda_2=1.0)
    tensor(-0.3069)
    """
    entropy = entropy_loss(answers, normalised=normalised)
    return entropy + lambda_1 * one_hot_loss(answers) + lambda_2 * activation_loss(feature, summed=summed)


def judged(teacher: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """A teacher's features and answers for images, in one pass."""
    assert callable(teacher.features)
    assert callable(teacher.head)
    feature = teacher.features(images)
    return feature, teacher.head(feature)
