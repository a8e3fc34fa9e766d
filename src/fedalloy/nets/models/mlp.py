"""A multilayer perceptron, for quick trials and small data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.checks import whole, wholes


@model("mlp")
def mlp(*, classes: int, channels: int, size: int, hidden: int | Sequence[int] = (64,)) -> FeatureNet:
    """Hidden layers with ReLU and an output layer; the feature is the last hidden layer.

    A single hidden layer may be written as a number. Without hidden layers (`hidden=()`) it is softmax regression.

    >>> mlp(classes=10, channels=1, size=28, hidden=(64, 32)).feature_shape
    (32,)
    """
    widths = wholes("hidden", hidden) if isinstance(hidden, list | tuple) else (whole("hidden", hidden),)
    widths = (channels * size * size, *widths)
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, outside in pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return FeatureNet(nn.Sequential(*layers), nn.Sequential(nn.Linear(widths[-1], classes)), widths[-1:])
