"""Random crops, flips and rotations of whole batches, drawn from an explicit generator.

They work on normalised tensors. If a paper's code pads raw pixels with black, `fill` is the value of black after
normalisation (`Dataset.black`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.base.registry import suggest
from fedalloy.errors import UsageError

Augment = Callable[[Tensor, torch.Generator], Tensor]


def crop_flip(
    x: Tensor, generator: torch.Generator, *, padding: int = 4, fill: Sequence[float] | None = None
) -> Tensor:
    """Pad each image, crop a random window of the original size, and flip it horizontally with probability 0.5.

    The padding is the reflected image, or `fill` (one value per channel) if given.

    >>> x = torch.arange(16.0).reshape(1, 1, 4, 4)
    >>> crop_flip(x, torch.Generator().manual_seed(0), padding=1).shape
    torch.Size([1, 1, 4, 4])
    """
    n, channels, height, width = x.shape
    if fill is None:
        framed = F.pad(x, (padding,) * 4, mode="reflect")
    else:
        framed = _colour(fill, x).expand(n, channels, height + 2 * padding, width + 2 * padding).clone()
        framed[:, :, padding : padding + height, padding : padding + width] = x
    corner = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator).to(x.device)
    mirrored = (torch.rand(n, 1, generator=generator) < 0.5).to(x.device)
    rows = corner[0] + torch.arange(height, device=x.device)
    columns = corner[1] + torch.arange(width, device=x.device)
    columns = torch.where(mirrored, columns.flip(1), columns)
    image = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[None, :, None, None]
    return framed[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def rotate(x: Tensor, generator: torch.Generator, *, degrees: float, fill: Sequence[float]) -> Tensor:
    """Rotate each image about its centre by a random angle of at most `degrees`, with nearest-neighbour sampling."""
    n, _, height, width = x.shape
    angle = (2 * torch.rand(n, generator=generator) - 1).mul_(math.radians(degrees)).to(x)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # grid_sample measures both axes from -1 to 1, so rotating a non-square image must undo its aspect ratio.
    turn = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], dim=1).view(n, 2, 3)
    grid = F.affine_grid(turn, list(x.shape), align_corners=False)
    colour = _colour(fill, x)
    # Pixels from outside the image are 0, so `fill` is subtracted before the rotation.
    return F.grid_sample(x - colour, grid, mode="nearest", padding_mode="zeros", align_corners=False) + colour


def augmentation(name: str, fill: Sequence[float]) -> Augment | None:
    """Return the augmentation of a paper's code by its name; `none` is None.

    `cifar10-kdia`, `cifar100-kdia` and `cinic10-kdia` are those of KDIA's code; the first two come from MOON.

    >>> augmentation("none", fill=(0.0,)) is None
    True
    """
    if name not in _NAMED:
        raise UsageError(f"there is no augmentation '{name}'; {suggest(name, _NAMED)}")
    make = _NAMED[name]
    return None if make is None else make(tuple(fill))


def _reflected(fill: tuple[float, ...]) -> Augment:  # noqa: ARG001  reflected padding needs no colour
    return crop_flip


def _black(fill: tuple[float, ...]) -> Augment:
    return partial(crop_flip, fill=fill)


def _black_turned(fill: tuple[float, ...]) -> Augment:
    return partial(_crop_flip_turn, fill=fill)


def _crop_flip_turn(x: Tensor, generator: torch.Generator, *, fill: tuple[float, ...]) -> Tensor:
    return rotate(crop_flip(x, generator, fill=fill), generator, degrees=15, fill=fill)


_NAMED: dict[str, Callable[[tuple[float, ...]], Augment] | None] = {
    "none": None,
    "cifar10-kdia": _reflected,
    "cifar100-kdia": _black_turned,
    "cinic10-kdia": _black,
}


def _colour(fill: Sequence[float], x: Tensor) -> Tensor:
    return torch.tensor(fill, dtype=x.dtype, device=x.device).view(1, -1, 1, 1)
