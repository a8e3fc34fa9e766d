"""MOON's simple CNN (Li, He and Song, CVPR 2021), which KDIA uses for all its methods."""

from __future__ import annotations

from torch import nn

from fedalloy.errors import UsageError
from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.checks import flag
from fedalloy.nets.models.pooling import Halve


@model("simple-cnn")
def simple_cnn(*, classes: int, channels: int, size: int, projection: bool = True) -> FeatureNet:
    """Two 5x5 convolutions and a stack of linear layers; the feature is the last map, and the head is the whole stack.

    The map is 16x5x5 for 32x32 images and 16x4x4 for 28x28 images. With `projection`, MOON's projection head 84-84-256
    comes before the output layer, and `project(x)` returns the 256-vector (without it, the 84-vector).

    >>> simple_cnn(classes=10, channels=1, size=28).feature_shape
    (16, 4, 4)
    """
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise UsageError(f"size={size} is too small for two 5x5 convolutions with pooling; resize the images to 32")
    # Pooling before ReLU gives the same result as ReLU before pooling, on a quarter of the values.
    features = nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        Halve(),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        Halve(),
        nn.ReLU(),
    )
    head: list[nn.Module] = [nn.Flatten()]
    head += [nn.Linear(16 * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    if flag("projection", projection):
        head += [nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256), nn.Linear(256, classes)]
    else:
        head += [nn.Linear(84, classes)]
    return FeatureNet(features, nn.Sequential(*head), (16, side, side))
