"""DaFKD's image generators, which end in a tanh: the paper's, from noise and a label, and those in its code."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.data.samples import Scale
from fedalloy.nets.generators.conditional import GrowingConv
from fedalloy.nets.generators.features import after_embeddings

Kind = Literal["conditional", "unconditional"]


def adversarial_generator(
    shape: tuple[int, ...],
    scale: Scale,
    classes: int,
    *,
    kind: Kind = "conditional",
    noise: int = 100,
    width: int = 128,
) -> nn.Module:
    """Build a generator for images of this shape, called as `make(noise, labels)` even if it ignores the labels.

    A tanh gives values in [-1, 1]. They are interpreted as pixels from black to white and normalised like the real
    ones, so that any normalisation works; under the presets called `dafkd` (mean 0.5, std 0.5) this changes nothing.

    >>> make = adversarial_generator((1, 28, 28), Scale((0.5,), (0.5,)), classes=10)
    >>> make(torch.randn(4, 100), torch.arange(4)).shape
    torch.Size([4, 1, 28, 28])
    """
    if kind == "conditional":
        return PerceptronImages(shape, scale, classes, noise, width)
    by_doubling = all(side % 8 == 0 for side in shape[1:])
    return DoublingImages(shape, scale, noise, width) if by_doubling else HalvingImages(shape, scale, noise)


class _TanhImages(nn.Module):
    """Base class: converts values in [-1, 1] to images that are normalised like the real ones."""

    def __init__(self, shape: tuple[int, ...], scale: Scale, noise: int) -> None:
        super().__init__()
        self.shape, self.scale, self.noise = shape, scale, noise

    def images(self, values: Tensor) -> Tensor:
        """Convert the output of the last layer to images."""
        return self.scale.normalise((values.reshape(-1, *self.shape).tanh() + 1) / 2)


class PerceptronImages(_TanhImages):
    """The paper's generator: embeddings of the one-hot label and of the noise, then linear layers with BatchNorm.

    The paper gives no sizes; we chose embeddings of size `width`, then layers 4 and 8 times as wide.

    >>> make = PerceptronImages((1, 28, 28), Scale(), classes=10)
    >>> sum(p.numel() for p in make.parameters())
    1477904
    """

    def __init__(self, shape: tuple[int, ...], scale: Scale, classes: int, noise: int = 100, width: int = 128) -> None:
        super().__init__(shape, scale, noise)
        self.classes = classes
        self.of_label, self.of_noise = nn.Linear(classes, width), nn.Linear(noise, width)
        self.layers = after_embeddings(width, math.prod(shape))

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Generate images from noise and labels."""
        one_hot = F.one_hot(labels, self.classes).to(z.dtype)
        return self.images(self.layers(torch.cat([self.of_label(one_hot), self.of_noise(z)], 1)))


class DoublingImages(_TanhImages):
    """The code's generator for 32x32 images: noise becomes a map of an eighth of the size, doubled three times.

    >>> make = DoublingImages((3, 32, 32), Scale())
    >>> sum(p.numel() for p in make.parameters())
    1068931
    """

    def __init__(self, shape: tuple[int, ...], scale: Scale, noise: int = 100, width: int = 128) -> None:
        super().__init__(shape, scale, noise)
        channels, height, across = shape
        wide, narrow = 2 * width, width // 2
        self.layers = nn.Sequential(
            GrowingConv(noise, wide, (height // 8, across // 8)),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.ConvTranspose2d(wide, width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, narrow, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.ConvTranspose2d(narrow, channels, 4, stride=2, padding=1),
        )
        _initialise(self)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Generate images from noise alone."""
        return self.images(self.layers(z[:, :, None, None]))


class HalvingImages(_TanhImages):
    """The code's generator for 28x28 images: noise becomes an image of twice the size; the last convolution halves it.

    >>> make = HalvingImages((1, 28, 28), Scale())
    >>> sum(p.numel() for p in make.parameters())
    328764
    """

    def __init__(self, shape: tuple[int, ...], scale: Scale, noise: int = 100) -> None:
        super().__init__(shape, scale, noise)
        channels, height, across = shape
        self.linear = nn.Linear(noise, 4 * height * across)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(1),
            nn.ReLU(),
            nn.Conv2d(1, 50, 3, padding=1),
            nn.BatchNorm2d(50),
            nn.ReLU(),
            nn.Conv2d(50, 25, 3, padding=1),
            nn.BatchNorm2d(25),
            nn.ReLU(),
            nn.Conv2d(25, channels, 2, stride=2),
        )
        _initialise(self)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Generate images from noise alone."""
        _, height, across = self.shape
        return self.images(self.layers(self.linear(z).view(-1, 1, 2 * height, 2 * across)))


def _initialise(net: nn.Module) -> None:
    """Initialise as the code does: Xavier normal for convolutions, N(1, 0.02) for BatchNorm."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.xavier_normal_(layer.weight)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, 0.02)
