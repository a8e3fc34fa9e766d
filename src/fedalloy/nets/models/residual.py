"""Shared parts of the residual networks."""

from __future__ import annotations

from torch import Tensor, nn

from fedalloy.nets.models.norm import norm


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)): the block of the original ResNet (He et al., 2016).

    >>> Residual(nn.Identity(), nn.Identity())(Tensor([-1.0, 2.0]))
    tensor([0., 4.])
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of the two paths."""
        y: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


def conv(inside: int, outside: int, kernel: int, stride: int = 1, bias: bool = False) -> nn.Conv2d:
    """Return a convolution that keeps the size of the image at stride 1.

    >>> conv(3, 16, 3).padding
    (1, 1)
    """
    return nn.Conv2d(inside, outside, kernel, stride, padding=kernel // 2, bias=bias)


def conv_norm(kind: str, inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, and its normalisation.

    >>> [type(layer).__name__ for layer in conv_norm("batch", 3, 16, 3)]
    ['Conv2d', 'BatchNorm2d']
    """
    return nn.Sequential(conv(inside, outside, kernel, stride), norm(kind, outside))


def shortcut(kind: str, inside: int, outside: int, stride: int) -> nn.Module:
    """Return the identity, or a normalised 1x1 convolution if the shape changes.

    >>> shortcut("batch", 16, 16, 1)
    Identity()
    """
    return nn.Identity() if (inside, stride) == (outside, 1) else conv_norm(kind, inside, outside, 1, stride)


def global_pool() -> nn.Sequential:
    """Return a layer that averages over all pixels and returns a vector.

    >>> global_pool()(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    tensor([[2.5000]])
    """
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def kaiming_fan_out(net: nn.Module) -> None:
    """Draw convolution weights from N(0, 2 / (k*k*c_out)) and set their biases to 0 (He et al., 2015), in place.

    >>> layer = conv(3, 16, 3, bias=True)
    >>> kaiming_fan_out(layer)
    >>> layer.bias.abs().sum().item()
    0.0
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
