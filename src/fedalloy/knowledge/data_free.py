"""Data-free distillation: a generator makes images, and only a teacher judges them (FedKF, Sec. IV-C)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedalloy.base.options import Count, NotNegative, Positive, Several, Variant, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Client, Federation
from fedalloy.knowledge.pictures import Images, from_noise
from fedalloy.nets.generators import DCGAN, ImageGenerator
from fedalloy.train.beside import Beside
from fedalloy.train.losses import ce


class Judged(NamedTuple):
    """A batch of images with a teacher's features and logits for them."""

    images: Tensor
    feature: Tensor
    answers: Tensor


def judged(teacher: nn.Module, images: Tensor) -> Judged:
    """A teacher's features and logits for images, in one pass."""
    assert callable(teacher.features)
    assert callable(teacher.head)
    feature = teacher.features(images)
    return Judged(images, feature, teacher.head(feature))


@dataclass(frozen=True, kw_only=True)
class DataFree:
    """The part of a method that makes images: a generator's shape and the loss that a teacher gives it.

    The paper's equations take L_IE without a scale and L_A as a sum over features; its code takes L_IE within [0, 1]
    and the mean over features.

    >>> batch = Judged(torch.empty(0), torch.ones(2, 3), torch.zeros(2, 2))
    >>> DataFree(lambda_1=1.0, lambda_2=1.0, entropy="normalised", activation="mean").generator_loss(batch)
    tensor(-0.3069)
    """

    variant: Variant = option("recommended", "whose defaults to take: the recommended ones, the paper's or its code's")
    lambda_1: NotNegative = option(0.1, "weight of L_OH, which makes the teacher sure of every image")
    lambda_2: NotNegative = option(0.1, "weight of L_A, which makes the teacher's features large")
    generator_lr: Positive = option(1e-3, "learning rate of the generator's Adam")
    keep_moments: bool = option(True, "the generator keeps Adam's moments between rounds, as in the code")
    noise: Count = option(100, "length of an image's noise vector")
    generator: Literal["upsampling", "dcgan"] = by_variant(
        "upsampling",
        "the code's generator, or DCGAN's with a sigmoid at the end, as in the paper's text",
        paper="dcgan",
    )
    width: Several = option(128, "channels of the generator; of DCGAN's, those before the last layer")
    bn_eps: Positive = option(0.8, "epsilon of the generator's inner BatchNorms", only_with=("generator", "upsampling"))
    entropy: Literal["normalised", "plain"] = by_variant(
        "normalised", "L_IE within [0, 1], or without a scale as in Eq. 3", paper="plain"
    )
    activation: Literal["mean", "sum"] = by_variant(
        "mean", "L_A as the mean over features, or their sum as in Eq. 4, which drowns the other terms", paper="sum"
    )

    def new_generator(self, owner: Client | Federation) -> nn.Module:
        """The initial generator of all parties, theta."""
        form = {"noise": self.noise, "width": self.width}
        if self.generator == "dcgan":
            return owner.generator(partial(DCGAN, owner.shape, owner.scale, **form))
        return owner.generator(partial(ImageGenerator, owner.shape, owner.scale, bn_eps=self.bn_eps, **form))

    def resumed(self, owner: Client | Federation, kept: Mapping[str, Any]) -> Beside:
        """The generator as it was kept, or theta if it was not."""
        return Beside.carried_on(self.new_generator(owner), kept, "generator", self.generator_lr)

    def kept(self, generator: Beside) -> dict[str, Any]:
        """What stays of a generator until the next round."""
        return generator.kept("generator") | ({} if self.keep_moments else {"moments": {}})

    def images(self, generators: Mapping[int, Tree], teacher: Tree) -> Images:
        """The images of several generators as `fedalloy draw` shows them, sorted by a teacher."""
        return Images(from_noise(self.new_generator, self.noise), generators, teacher)

    def generator_loss(self, batch: Judged) -> Tensor:
        """L_G = L_IE + lambda_1 L_OH + lambda_2 L_A (Eq. 5)."""
        l_ie = entropy_loss(batch.answers, normalised=self.entropy == "normalised")
        l_a = activation_loss(batch.feature, summed=self.activation == "sum")
        return l_ie + self.lambda_1 * one_hot_loss(batch.answers) + self.lambda_2 * l_a


def entropy_loss(answers: Tensor, *, normalised: bool = True) -> Tensor:
    """L_IE (Eq. 3): minus the entropy of the teacher's mean answer; small if all classes are generated equally often.

    Normalised, it is in [0, 1], 0 for equal classes and 1 for a single class; otherwise in [-log n, 0].

    >>> entropy_loss(torch.zeros(5, 4)).abs() < 1e-6, entropy_loss(torch.eye(4)[:1] * 200)
    (tensor(True), tensor(1.))
    """
    mean = answers.softmax(1).mean(0)
    # A class that is never generated has probability 0: its term is 0, and its gradient must not be NaN.
    negative = (mean * mean.clamp_min(torch.finfo(mean.dtype).tiny).log()).sum()
    return 1 + negative / math.log(answers.shape[1]) if normalised else negative


def one_hot_loss(answers: Tensor) -> Tensor:
    """L_OH (Eq. 2): the teacher should be certain, whatever class it predicts.

    >>> one_hot_loss(torch.tensor([[0.25, 0.75]]).log())
    tensor(0.2877)
    """
    return ce(answers, answers.argmax(1))


def activation_loss(feature: Tensor, *, summed: bool = False) -> Tensor:
    """L_A (Eq. 4): minus the L1 norm of the feature, mean over the batch; the code averages features too.

    >>> activation_loss(torch.tensor([[1.0, -3.0]])), activation_loss(torch.tensor([[1.0, -3.0]]), summed=True)
    (tensor(-2.), tensor(-4.))
    """
    norms = feature.abs().flatten(1)
    return -(norms.sum(1) if summed else norms.mean(1)).mean()
