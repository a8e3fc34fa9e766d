"""KDIA's generator, taken from FedCG: a feature map from noise and a label, by transposed convolutions."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GrowingConv(nn.ConvTranspose2d):
    """A transposed convolution of stride 1 without bias as one matrix product, where torch uses one per sample.

    >>> layer, x = GrowingConv(3, 2, 2), torch.randn(4, 3, 2, 2)
    >>> torch.allclose(layer(x), nn.ConvTranspose2d.forward(layer, x), atol=1e-6)
    True
    """

    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int]) -> None:
        super().__init__(inputs, outputs, kernel, bias=False)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Turn every pixel into a patch, and add overlapping patches."""
        batch, channels, height, across = x.shape
        high, wide = self.weight.shape[2:]
        rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
        patches = rows @ self.weight.permute(0, 2, 3, 1).reshape(channels, -1)
        parts = patches.view(batch, height, across, high, wide, -1)
        out = x.new_zeros(batch, height + high - 1, across + wide - 1, parts.shape[-1])
        for i in range(high):
            for j in range(wide):
                out = out + F.pad(parts[:, :, :, i, j], (0, 0, j, wide - 1 - j, i, high - 1 - i))
        return out.permute(0, 3, 1, 2)


class ConditionalGenerator(nn.Module):
    """Four transposed convolutions from (noise, label embedding) to a feature map, with a sigmoid at the end.

    The sigmoid keeps generated features in (0, 1) although real ones, after a ReLU, are unbounded, as in KDIA's code.
    The kernels grow the map from 1x1 to the feature's size, by one pixel per layer for KDIA's 5x5; for vector features
    all kernels are 1x1.

    >>> make = ConditionalGenerator((16, 5, 5), classes=10)
    >>> sum(p.numel() for p in make.parameters()), make(torch.randn(4, 100), torch.arange(4)).shape
    (890724, torch.Size([4, 16, 5, 5]))
    """

    def __init__(self, shape: tuple[int, ...], classes: int, noise: int = 100, width: int = 512) -> None:
        super().__init__()
        self.shape, self.classes, self.noise = shape, classes, noise
        channels, height, across = (*shape, 1, 1)[:3]
        self.embedding = nn.Embedding(classes, classes)
        layers: list[nn.Module] = []
        widths = [noise + classes, width, width // 2, width // 4, channels]
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            kernel = (_kernel(height, i), _kernel(across, i))
            layers.append(GrowingConv(inputs, outputs, kernel))
            layers += [nn.Sigmoid()] if i == 3 else [nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Generate features of the shape that a classifier's head expects."""
        both = torch.cat([z, self.embedding(labels)], 1)
        out: Tensor = self.layers(both[:, :, None, None])
        return out.view(-1, *self.shape)


def _kernel(size: int, layer: int) -> int:
    """Return the kernel size of one of four layers that together grow one pixel to `size`."""
    whole, rest = divmod(size - 1, 4)
    return 1 + whole + (layer < rest)
