"""FedFTG's image generator: from noise and a label to standardised images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.base.layout import in_layout_of
from fedalloy.nets.generators.images import UpsampledConv
from fedalloy.nets.generators.sizes import cannot_make


class LabelledImageGenerator(nn.Module):
    """Noise and one-hot label each become half of the channels of a small map, which is doubled twice.

    The last layer is a BatchNorm without weights after the tanh: in training every channel has mean 0 and variance 1,
    like normalised data, whatever the normalisation constants are.

    >>> make = LabelledImageGenerator((3, 32, 32), classes=10)
    >>> sum(p.numel() for p in make.parameters()), make(torch.randn(4, 100), torch.arange(4)).shape
    (682499, torch.Size([4, 3, 32, 32]))
    """

    def __init__(self, shape: tuple[int, ...], classes: int, noise: int = 100, width: int = 128) -> None:
        super().__init__()
        channels, height, across = shape
        if height % 4 or across % 4:
            raise cannot_make("image generator doubles its images twice", height, across, "a multiple of 4")
        self.classes, self.noise = classes, noise
        self.part = (width // 2, height // 4, across // 4)
        self.from_noise = nn.Linear(noise, math.prod(self.part))
        self.from_label = nn.Linear(classes, math.prod(self.part))
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width),
            UpsampledConv(width, width),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2, inplace=True),
            UpsampledConv(width, width // 2),
            nn.BatchNorm2d(width // 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width // 2, channels, 3, padding=1),
            nn.Tanh(),
            nn.BatchNorm2d(channels, affine=False),
        )

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Generate images of these labels from noise."""
        one_hot = F.one_hot(labels, self.classes).to(z.dtype)
        halves = [made.view(-1, *self.part) for made in (self.from_noise(z), self.from_label(one_hot))]
        small = in_layout_of(torch.cat(halves, 1), self.layers.get_parameter("1.weight"))
        images: Tensor = self.layers(small)
        return images
