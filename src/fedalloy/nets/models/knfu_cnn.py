"""The two CNNs of KnFu (Seyedmohammadi et al., 2024): M1 for MNIST, M2 for CIFAR-10.

The paper names the layers but neither kernels nor pooling. Here the convolutions are 3x3 with padding 1, M1 halves the
image after each convolution and M2 after the second and the fourth; ReLU everywhere, no normalisation, no dropout.
"""

from __future__ import annotations

from torch import nn

from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.checks import multiple_of_4
from fedalloy.nets.models.pooling import Halve
from fedalloy.nets.models.residual import conv


@model("knfu-m1")
def knfu_m1(*, classes: int, channels: int, size: int) -> FeatureNet:
    """conv32, conv64, FC64, FC32, FC classes; the feature is the 32-vector after the ReLU of FC32.

    >>> knfu_m1(classes=10, channels=1, size=28).feature_shape
    (32,)
    """
    multiple_of_4(size)
    # Pooling before ReLU gives the same result as ReLU before pooling, on a quarter of the values.
    features = nn.Sequential(
        conv(channels, 32, 3, bias=True),
        Halve(),
        nn.ReLU(),
        conv(32, 64, 3, bias=True),
        Halve(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (size // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.ReLU(),
    )
    return FeatureNet(features, nn.Sequential(nn.Linear(32, classes)), (32,))


@model("knfu-m2")
def knfu_m2(*, classes: int, channels: int, size: int) -> FeatureNet:
    """conv16, conv16, conv32, conv32, FC128, FC classes; the feature is the 128-vector after the ReLU of FC128.

    >>> knfu_m2(classes=10, channels=3, size=32).feature_shape
    (128,)
    """
    multiple_of_4(size)
    features = nn.Sequential(
        conv(channels, 16, 3, bias=True),
        nn.ReLU(),
        conv(16, 16, 3, bias=True),
        Halve(),
        nn.ReLU(),
        conv(16, 32, 3, bias=True),
        nn.ReLU(),
        conv(32, 32, 3, bias=True),
        Halve(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (size // 4) ** 2, 128),
        nn.ReLU(),
    )
    return FeatureNet(features, nn.Sequential(nn.Linear(128, classes)), (128,))
