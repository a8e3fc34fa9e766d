"""Generators of features from noise and a label: FedGen's small perceptron, and that of DaFKD's comparison."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeatureGenerator(nn.Module):
    """One hidden layer with BatchNorm from (noise, one-hot label) to a feature.

    FedGen's own code ends without an activation; if features come from a ReLU, as in FedKF's networks, `relu` applies
    one to the generated features too.

    >>> make = FeatureGenerator((120,), classes=26, noise=32, hidden=256)
    >>> sum(p.numel() for p in make.parameters()), make(torch.rand(4, 32), torch.arange(4)).shape
    (46456, torch.Size([4, 120]))
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, noise: int = 32, hidden: int = 256, relu: bool = True
    ) -> None:
        super().__init__()
        self.shape, self.classes, self.noise = shape, classes, noise
        self.hidden = nn.Sequential(nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.out = nn.Linear(hidden, math.prod(shape))
        self.relu = relu

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Generate features of the shape that a classifier's head expects."""
        one_hot = F.one_hot(labels, self.classes).to(z.dtype)
        feature: Tensor = self.out(self.hidden(torch.cat([z, one_hot], 1)))
        return (feature.relu() if self.relu else feature).view(-1, *self.shape)


def after_embeddings(width: int, outputs: int) -> nn.Sequential:
    """What follows two embeddings of this width in DaFKD's generator; the paper gives no sizes, so they are ours."""
    return nn.Sequential(
        nn.LeakyReLU(0.2),
        nn.Linear(2 * width, 4 * width),
        nn.BatchNorm1d(4 * width),
        nn.LeakyReLU(0.2),
        nn.Linear(4 * width, 8 * width),
        nn.BatchNorm1d(8 * width),
        nn.LeakyReLU(0.2),
        nn.Linear(8 * width, outputs),
    )


class PerceptronFeatures(nn.Module):
    """The one generator that DaFKD's paper uses for all methods, where a method needs features instead of images.

    >>> make = PerceptronFeatures((120,), classes=10, noise=100, width=128)
    >>> sum(p.numel() for p in make.parameters()), make(torch.rand(4, 100), torch.arange(4)).shape
    (797304, torch.Size([4, 120]))
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, noise: int = 100, width: int = 128, relu: bool = True
    ) -> None:
        super().__init__()
        self.shape, self.classes, self.noise, self.relu = shape, classes, noise, relu
        self.of_label, self.of_noise = nn.Linear(classes, width), nn.Linear(noise, width)
        self.layers = after_embeddings(width, math.prod(shape))

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Generate features of the shape that a classifier's head expects."""
        one_hot = F.one_hot(labels, self.classes).to(z.dtype)
        feature: Tensor = self.layers(torch.cat([self.of_label(one_hot), self.of_noise(z)], 1))
        return (feature.relu() if self.relu else feature).view(-1, *self.shape)
