"""Wide ResNet (Zagoruyko and Komodakis, 2016), the networks of FedMD+Global in six depths."""

from __future__ import annotations

from torch import Tensor, nn

from fedalloy.errors import UsageError
from fedalloy.nets.models.base import FeatureNet, model
from fedalloy.nets.models.checks import flag, multiple_of_4, whole
from fedalloy.nets.models.norm import norm as norm_layer
from fedalloy.nets.models.residual import conv, global_pool, kaiming_fan_out

DEEPEST = 1000


@model("wrn")
def wrn(
    *, classes: int, channels: int, size: int, depth: int = 16, width: int = 1, bias: bool = False, norm: str = "batch"
) -> FeatureNet:
    """Three groups of (depth - 4) / 6 pre-activation blocks; the feature is the pooled vector of 64*width numbers.

    The depth must be 6n + 4: 10, 16, 22, 28, 34, 40, ... The usual network has no biases in its convolutions; the
    parameter counts printed for FedMD+Global require `bias=True`, shortcuts included. Weights are initialised as by the
    network's authors (Kaiming normal, fan-out).

    >>> wrn(classes=30, channels=3, size=32, depth=40).feature_shape
    (64,)
    """
    multiple_of_4(size)
    whole("width", width)
    flag("bias", bias)
    if depth > DEEPEST:
        raise UsageError(f"depth={depth} is too large; write {DEEPEST} or less")
    if whole("depth", depth, least=10) % 6 != 4:
        below = (depth - 4) // 6 * 6 + 4
        raise UsageError(f"depth={depth} is not 6n + 4; write {below} or {below + 6}")
    layers: list[nn.Module] = [conv(channels, 16, 3, bias=bias)]
    inside = 16
    for outside, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
        for i in range((depth - 4) // 6):
            layers.append(PreActivation(norm, inside, outside, stride if i == 0 else 1, bias))
            inside = outside
    features = nn.Sequential(*layers, _norm_relu(norm, inside), global_pool())
    kaiming_fan_out(features)
    return FeatureNet(features, nn.Sequential(nn.Linear(inside, classes)), (inside,))


class PreActivation(nn.Module):
    """Normalise and activate, then convolve; if the width changes, the shortcut starts from the activated input.

    >>> PreActivation("batch", 16, 16, 1, bias=False).shortcut is None
    True
    """

    def __init__(self, norm: str, inside: int, outside: int, stride: int, bias: bool) -> None:
        super().__init__()
        self.activate = _norm_relu(norm, inside)
        self.body = nn.Sequential(
            conv(inside, outside, 3, stride, bias),
            _norm_relu(norm, outside),
            conv(outside, outside, 3, bias=bias),
        )
        # The stride is only 2 if the width changes, so the width alone decides.
        self.shortcut = conv(inside, outside, 1, stride, bias) if inside != outside else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the two paths, not activated: the next block begins with an activation."""
        active = self.activate(x)
        y: Tensor = self.body(active) + (x if self.shortcut is None else self.shortcut(active))
        return y


def _norm_relu(norm: str, channels: int) -> nn.Sequential:
    return nn.Sequential(norm_layer(norm, channels), nn.ReLU())
