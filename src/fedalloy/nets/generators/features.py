"""Generators of a feature from noise and a label by a small perceptron: FedGen's, and one as DaFKD describes it."""

from __future__ import annotations

import math
from typing import Literal

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
        feature: Tensor = self.out(self.hidden(self.joined(z, one_hot)))
        return (feature.relu() if self.relu else feature).view(-1, *self.shape)

    def joined(self, z: Tensor, one_hot: Tensor) -> Tensor:
        """What the hidden layer sees."""
        return torch.cat([z, one_hot], 1)


class EmbeddedFeatureGenerator(FeatureGenerator):
    """The same from embeddings of the noise and of the label, with LeakyReLU, as DaFKD describes its generators.

    DaFKD gives no sizes; we chose embeddings as wide as the hidden layer.

    >>> make = EmbeddedFeatureGenerator((120,), classes=26, noise=32, hidden=256)
    >>> sum(p.numel() for p in make.parameters()), make(torch.rand(4, 32), torch.arange(4)).shape
    (178040, torch.Size([4, 120]))
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, noise: int = 32, hidden: int = 256, relu: bool = True
    ) -> None:
        super().__init__(shape, classes, 0, hidden, relu)
        self.noise = noise
        self.of_noise, self.of_label = nn.Linear(noise, hidden), nn.Linear(classes, hidden)
        self.hidden = nn.Sequential(
            nn.LeakyReLU(0.2), nn.Linear(2 * hidden, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU(0.2)
        )

    def joined(self, z: Tensor, one_hot: Tensor) -> Tensor:
        """The two embeddings side by side."""
        return torch.cat([self.of_noise(z), self.of_label(one_hot)], 1)


def feature_generator(
    shape: tuple[int, ...],
    classes: int,
    noise: int,
    hidden: int,
    relu: bool,
    *,
    kind: Literal["one_hot", "embeddings"] = "one_hot",
) -> FeatureGenerator:
    """Build one of the two."""
    make = FeatureGenerator if kind == "one_hot" else EmbeddedFeatureGenerator
    return make(shape, classes, noise, hidden, relu)
