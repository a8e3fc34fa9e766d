"""DCGAN's generator (Radford et al., ICLR 2016), with a sigmoid at the end as FedKF's paper has it."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from fedalloy.base.layout import in_layout_of
from fedalloy.data.samples import Scale
from fedalloy.nets.generators.sizes import cannot_make

SMALLEST = 4  # pixels a side of the map that noise is projected to


class DCGAN(nn.Module):
    """Noise becomes a small map, which transposed 5x5 convolutions of stride 2 double up to the image's size.

    As in DCGAN, the map has 4x4 pixels (7x7 for images of 28x28), the channels halve with every doubling down to
    `width`, each layer but the last has BatchNorm and ReLU, and weights start from N(0, 0.02), those of BatchNorm from
    N(1, 0.02). A sigmoid is in the place of the last tanh, and the images are then normalised like the real ones.

    >>> import torch
    >>> make = DCGAN((1, 32, 32), Scale(), noise=100)
    >>> sum(p.numel() for p in make.parameters()), make(torch.randn(2, 100)).shape
    (4920192, torch.Size([2, 1, 32, 32]))
    """

    def __init__(self, shape: tuple[int, ...], scale: Scale, noise: int = 100, width: int = 128) -> None:
        super().__init__()
        channels, height, across = shape
        doublings = 0
        while height % 2 == across % 2 == 0 and min(height, across) >= 2 * SMALLEST:
            height, across, doublings = height // 2, across // 2, doublings + 1
        if doublings == 0:
            raise cannot_make("DCGAN generator doubles a small map", height, across, "an even number of at least 8")
        self.noise, self.scale = noise, scale
        widths = [width * 2**n for n in reversed(range(doublings))]
        self.small = (widths[0], height, across)
        self.linear = nn.Linear(noise, math.prod(self.small), bias=False)
        self.layers = nn.Sequential(nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True))
        for inputs, outputs in pairwise(widths):
            self.layers.extend([_doubling(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)])
        self.layers.extend([_doubling(widths[-1], channels), nn.Sigmoid()])
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.ConvTranspose2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)
            elif isinstance(layer, nn.BatchNorm2d):
                nn.init.normal_(layer.weight, 1.0, 0.02)

    def forward(self, z: Tensor) -> Tensor:
        """Generate images from noise."""
        small = in_layout_of(self.linear(z).view(-1, *self.small), self.layers.get_parameter("2.weight"))
        images: Tensor = self.layers(small)
        return self.scale.normalise(images)


def _doubling(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, 5, stride=2, padding=2, output_padding=1, bias=False)
