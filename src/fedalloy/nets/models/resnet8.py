"""ResNet-8, FedKF's network for CIFAR."""

from __future__ import annotations

from torch import nn

from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.checks import multiple_of_4, whole
from fedalloy.nets.models.residual import Residual, conv_norm, global_pool, kaiming_fan_out, shortcut


@model("resnet8")
def resnet8(*, classes: int, channels: int, size: int, width: int = 64, norm: str = "instance") -> FeatureNet:
    """Three stages of one basic block each, with width, 2*width and 4*width channels; the feature is the pooled vector.

    FedKF normalises each channel of each image separately (a GroupNorm with one channel per group), so that nothing
    but weights is averaged. The ResNet-8 of FedDF and FedGKD is the narrow one: `width=16`.

    >>> resnet8(classes=10, channels=3, size=32, width=16).feature_shape
    (64,)
    """
    multiple_of_4(size)
    whole("width", width)
    features = nn.Sequential(
        conv_norm(norm, channels, width, 3),
        nn.ReLU(),
        _basic(norm, width, width, 1),
        _basic(norm, width, 2 * width, 2),
        _basic(norm, 2 * width, 4 * width, 2),
        global_pool(),
    )
    kaiming_fan_out(features)
    return FeatureNet(features, nn.Sequential(nn.Linear(4 * width, classes)), (4 * width,))


def _basic(norm: str, inside: int, outside: int, stride: int) -> Residual:
    body = nn.Sequential(
        conv_norm(norm, inside, outside, 3, stride),
        nn.ReLU(),
        conv_norm(norm, outside, outside, 3),
    )
    return Residual(body, shortcut(norm, inside, outside, stride))
