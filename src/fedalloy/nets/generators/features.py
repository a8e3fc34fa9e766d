"""FedGen's generator: a feature from noise and a label, by a small perceptron."""

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
