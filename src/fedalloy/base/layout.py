"""The memory layout of a network: a fixed rule, not a timing, because layouts differ in the last bits of results."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Layout = Literal["auto", "nchw", "channels_last"]


def resolve(net: nn.Module, layout: Layout = "auto") -> Literal["nchw", "channels_last"]:
    """Return a network's layout: small CNNs are faster in channels_last, networks with GroupNorm are slower.

    >>> resolve(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))), resolve(nn.Linear(2, 2))
    ('channels_last', 'nchw')
    >>> resolve(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(8, 8)))
    'nchw'
    """
    if layout != "auto":
        return layout
    kinds = {type(module) for module in net.modules()}
    return "channels_last" if nn.Conv2d in kinds and nn.GroupNorm not in kinds else "nchw"


def laid_out(net: nn.Module, layout: Layout = "auto") -> nn.Module:
    """Convert a network's weights to its layout; convolutions follow the layout of their weights."""
    if resolve(net, layout) == "channels_last":
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # torch's stubs lack it
    return net


def in_layout_of(x: Tensor, weight: Tensor) -> Tensor:
    """Convert a feature map to the layout of the weights it will meet, to avoid conversions in later layers.

    >>> x, weight = torch.zeros(2, 3, 4, 4), torch.zeros(5, 3, 2, 2).to(memory_format=torch.channels_last)
    >>> in_layout_of(x, weight).is_contiguous(memory_format=torch.channels_last)
    True
    """
    last = weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
