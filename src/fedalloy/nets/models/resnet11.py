"""ResNet-11, DaFKD's network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedalloy.errors import UsageError
from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.checks import multiple_of_4, wholes
from fedalloy.nets.models.residual import Residual, conv_norm, global_pool, kaiming_fan_out, shortcut


@model("resnet11")
def resnet11(
    *, classes: int, channels: int, size: int, blocks: Sequence[int] = (1, 1, 1), norm: str = "batch"
) -> FeatureNet:
    """Three stages of bottleneck-like blocks with 16, 32 and 64 planes; the feature is the pooled 256-vector.

    One block per stage makes the eleven layers of the name; the code released with the paper has two
    (`blocks=(2, 2, 2)`). DaFKD's discriminator is a second head on the same feature.

    >>> resnet11(classes=10, channels=1, size=28).feature_shape
    (256,)
    """
    multiple_of_4(size)
    if len(wholes("blocks", blocks)) != 3:
        raise UsageError(f"blocks={blocks!r} is invalid; write three numbers, one per stage")
    layers: list[nn.Module] = [conv_norm(norm, channels, 16, 3), nn.ReLU()]
    inside = 16
    for count, planes, stride in zip(blocks, (16, 32, 64), (1, 2, 2), strict=True):
        for i in range(count):
            layers.append(_block(norm, inside, planes, stride if i == 0 else 1))
            inside = 4 * planes
    features = nn.Sequential(*layers, global_pool())
    kaiming_fan_out(features)
    return FeatureNet(features, nn.Sequential(nn.Linear(256, classes)), (256,))


def _block(norm: str, inside: int, planes: int, stride: int) -> Residual:
    # All three convolutions are 3x3; a usual bottleneck has 1x1, 3x3, 1x1.
    body = nn.Sequential(
        conv_norm(norm, inside, planes, 3),
        nn.ReLU(),
        conv_norm(norm, planes, planes, 3, stride),
        nn.ReLU(),
        conv_norm(norm, planes, 4 * planes, 3),
    )
    return Residual(body, shortcut(norm, inside, 4 * planes, stride))
