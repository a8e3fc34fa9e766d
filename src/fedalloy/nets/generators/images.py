"""FedKF's image generator: from noise to images that are normalised like the real ones."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.base.layout import in_layout_of
from fedalloy.data.samples import Scale
from fedalloy.nets.generators.sizes import cannot_make


class UpsampledConv(nn.Conv2d):
    """A 3x3 convolution of the input upsampled by 2 (nearest neighbour), computed without upsampling.

    Of nine products in the upsampled image, four to five multiply the same pixel. Adding their weights first turns the
    layer into a transposed 4x4 convolution of stride 2 with 4/9 of the work. The result is the same except for
    rounding; the parameters are those of the 3x3 convolution.

    >>> import torch
    >>> layer, x = UpsampledConv(3, 2), torch.randn(2, 3, 4, 4)
    >>> torch.allclose(layer(x), nn.Conv2d.forward(layer, F.interpolate(x, scale_factor=2.0)), atol=1e-5)
    True
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Upsample and convolve in one step."""
        w = self.weight.flip(2, 3).transpose(0, 1)
        merged = F.pad(w, (0, 1, 0, 1)) + F.pad(w, (1, 0, 0, 1)) + F.pad(w, (0, 1, 1, 0)) + F.pad(w, (1, 0, 1, 0))
        return F.conv_transpose2d(x, merged, self.bias, stride=2, padding=1)

    def products(self, x: Tensor, out: Tensor) -> int:
        """The multiply-adds of a pass: sixteen for each input and output channel."""
        return x.numel() * self.out_channels * 16


class ImageGenerator(nn.Module):
    """The upsampling generator of FedKF's code: linear, two doublings with convolutions, sigmoid, normalisation.

    FedKF cites DCGAN, but its code does not use DCGAN's transposed convolutions. The `eps` of 0.8 in two of its
    BatchNorms looks like a mistake (a momentum in the wrong place), but it affects the images: with 1e-5 it is a
    different generator. A `width` of 32 instead of 128 is about five times cheaper.

    >>> make = ImageGenerator((1, 32, 32), Scale(), noise=100)
    >>> sum(p.numel() for p in make.parameters())
    1049985
    """

    def __init__(
        self, shape: tuple[int, ...], scale: Scale, noise: int = 100, width: int = 128, bn_eps: float = 0.8
    ) -> None:
        super().__init__()
        channels, height, across = shape
        if height % 4 or across % 4:
            raise cannot_make("image generator doubles its images twice", height, across, "a multiple of 4")
        self.noise, self.scale = noise, scale
        self.small = (width, height // 4, across // 4)
        self.linear = nn.Linear(noise, math.prod(self.small))
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width),
            UpsampledConv(width, width),
            nn.BatchNorm2d(width, eps=bn_eps),
            nn.LeakyReLU(0.2, inplace=True),
            UpsampledConv(width, width // 2),
            nn.BatchNorm2d(width // 2, eps=bn_eps),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width // 2, channels, 3, padding=1),
            nn.Sigmoid(),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / (9 * layer.out_channels)))

    def forward(self, z: Tensor) -> Tensor:
        """Generate images from noise."""
        small = in_layout_of(self.linear(z).view(-1, *self.small), self.layers.get_parameter("1.weight"))
        images: Tensor = self.layers(small)
        return self.scale.normalise(images)
