"""The MNIST network of Selective-FD (Shao, Wu and Zhang, Nature Communications 2024)."""

from __future__ import annotations

from torch import nn

from fedalloy.errors import UsageError
from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.checks import share
from fedalloy.nets.models.pooling import Halve


@model("selective-cnn")
def selective_cnn(*, classes: int, channels: int, size: int, dropout: float = 0.5) -> FeatureNet:
    """Two 5x5 convolutions, FC50, dropout, FC classes; the feature is the 50-vector after ReLU, before dropout.

    Dropout is part of the head, so that a feature is the same in training and evaluation.

    >>> selective_cnn(classes=10, channels=1, size=28).feature_shape
    (50,)
    """
    dropout = share("dropout", dropout)
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise UsageError(f"size={size} is too small for two 5x5 convolutions with pooling; resize the images to 28")
    features = nn.Sequential(
        nn.Conv2d(channels, 10, 5),
        Halve(),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        Halve(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * side * side, 50),
        nn.ReLU(),
    )
    return FeatureNet(features, nn.Sequential(nn.Dropout(dropout), nn.Linear(50, classes)), (50,))
