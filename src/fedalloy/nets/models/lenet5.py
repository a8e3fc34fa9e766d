"""LeNet-5 with ReLU and max-pooling, FedKF's network for handwritten letters."""

from __future__ import annotations

from torch import nn

from fedalloy.errors import UsageError
from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.pooling import Halve


@model("lenet5")
def lenet5(*, classes: int, channels: int, size: int) -> FeatureNet:
    """Three 5x5 convolutions, then 120-84-classes; the feature is the 120-vector after ReLU.

    Images are 32x32, or 28x28 padded with two zeros on each side in the first convolution.

    >>> lenet5(classes=26, channels=1, size=32).feature_shape
    (120,)
    """
    if size not in (28, 32):
        raise UsageError(f"size={size} is invalid; resize the images to 32 (or 28)")
    # Pooling before ReLU gives the same result as ReLU before pooling, on a quarter of the values.
    features = nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=(32 - size) // 2),
        Halve(),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        Halve(),
        nn.ReLU(),
        nn.Conv2d(16, 120, 5),
        nn.ReLU(),
        nn.Flatten(),
    )
    head = nn.Sequential(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes))
    return FeatureNet(features, head, (120,))
