"""Normalisation layers by name, because papers and their code differ in them."""

from __future__ import annotations

from torch import nn

from fedalloy.base.registry import suggest
from fedalloy.errors import UsageError

GROUPS = 8  # divides 16, the narrowest layer of the residual networks with default widths
KINDS = ["batch", "group", "instance", "none"]


def norm(kind: str, channels: int) -> nn.Module:
    """Return a normalisation layer: `batch`, `group` (8 groups), `instance` (one channel per group) or `none`.

    `instance` is a GroupNorm, not an InstanceNorm; with affine weights they compute the same.

    >>> norm("instance", 64).num_groups, norm("group", 64).num_groups
    (64, 8)
    """
    if kind not in KINDS:
        raise UsageError(f"norm={kind!r} is unknown; {suggest(str(kind), KINDS)}")
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "none":
        return nn.Identity()
    if kind == "instance":
        return nn.GroupNorm(channels, channels)
    if channels % GROUPS:
        raise UsageError(
            f"norm='group' needs a number of channels that is divisible by {GROUPS}, not {channels}; write "
            "norm='instance'"
        )
    return nn.GroupNorm(GROUPS, channels)
