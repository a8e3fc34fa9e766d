"""The CNNs of FedMD (Li and Wang, 2019): ten parties, each with two or three convolutions of different widths.

Details that are not in the paper follow its code: kernels, strides, dropout everywhere, no bias in the output layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.errors import UsageError
from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.checks import share, wholes


class Smooth(nn.Module):
    """The mean of each pixel and its right and lower neighbours; at the border, of those that exist.

    >>> Smooth()(Tensor([[[[0.0, 4.0], [8.0, 8.0]]]]))
    tensor([[[[5., 6.],
              [8., 8.]]]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Smooth a map; its size does not change."""
        # With a repeated edge, each existing neighbour counts equally often.
        return F.avg_pool2d(F.pad(x, (0, 1, 0, 1), mode="replicate"), 2, stride=1)


@model("fedmd-cnn")
def fedmd_cnn(
    *, classes: int, channels: int, size: int, widths: Sequence[int] = (128, 256), dropout: float = 0.2
) -> FeatureNet:
    """Two or three convolutions with BatchNorm and dropout, FC classes; the feature is the last map, flattened.

    FedMD's ten parties have `widths` 128-256, 128-384, 128-512, 256-256, 256-512, 64-128-256, 64-128-192, 128-192-256,
    128-128-128 and 128-128-192. The first convolution keeps the size of the image, the last ones halve it.

    >>> fedmd_cnn(classes=16, channels=3, size=32, widths=[64, 128, 256]).feature_shape
    (2304,)
    """
    widths, dropout = wholes("widths", widths), share("dropout", dropout)
    if len(widths) not in (2, 3):
        raise UsageError(f"widths={list(widths)} is invalid; write two or three numbers, for example [128, 256]")
    least = (
        5 if len(widths) == 2 else 20
    )  # a last map of 2 x 2: on one pixel, BatchNorm would return its bias for a single image
    if size < least:
        raise UsageError(
            f"size={size} is too small for {len(widths)} convolutions; resize the images to {least} or more"
        )

    def block(inside: int, outside: int, kernel: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
        conv = nn.Conv2d(inside, outside, kernel, stride, padding)
        return [conv, nn.BatchNorm2d(outside), nn.ReLU(), nn.Dropout(dropout)]

    layers = [*block(channels, widths[0], 3, padding=1), Smooth()]
    side = size
    if len(widths) == 3:
        layers += [*block(widths[0], widths[1], 2, stride=2), nn.AvgPool2d(2)]
        side = size // 2 // 2
    layers += [*block(widths[-2], widths[-1], 3, stride=2), nn.Flatten()]
    inputs = widths[-1] * ((side - 1) // 2) ** 2
    return FeatureNet(nn.Sequential(*layers), nn.Sequential(nn.Linear(inputs, classes, bias=False)), (inputs,))
