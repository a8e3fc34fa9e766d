"""The data set `sites`: the format that all sites have agreed on; each site keeps its own samples.

[data]
name = "sites"
classes = 2
channels = 1
size = 28            # images are resized to size x size pixels; omit it for tables
mean = [0.5]         # images: on the scale [0, 1], one for all channels or one per channel; tables: one per column
std = [0.25]
names = ["benign", "malignant"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedalloy.base.checked import shown
from fedalloy.config.sections import DataPart, check_options
from fedalloy.data.catalogue import AGREED
from fedalloy.data.samples import LEAST_STD, Dataset
from fedalloy.errors import UsageError

__all__ = ["AGREED", "frame"]

_DEFAULTS = {"mean": (0.0,), "std": (1.0,)}  # for images, whose pixels are on the scale [0, 1]


def _options(
    classes: int = 0,
    channels: int = 0,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    names: tuple[str, ...] = (),
) -> None:
    """Declare the keys of [data] and their types."""


def frame(part: DataPart) -> Dataset:
    """Return the agreed format as a data set with a single black sample as a placeholder.

    >>> agreed = frame(DataPart(name="sites", size=8, options={"classes": 2, "channels": 1, "names": ("no", "yes")}))
    >>> agreed.x.shape, agreed.scale
    ((1, 1, 8, 8), Scale(mean=(0.0,), std=(1.0,)))
    """
    options = check_options(part, _options, "data")
    classes, channels = options.get("classes", 0), options.get("channels", 0)
    if classes < 2 or channels < 1:
        raise UsageError(
            f"data.classes = {classes} and data.channels = {channels}: write the values that all sites have agreed on, "
            "for example classes = 2 and channels = 1"
        )
    names = options.get("names", ())
    if names and len(names) != classes:
        raise UsageError(f"data.names has {len(names)} names, but data.classes = {classes}; write one for each class")
    side = part.size or 1
    mean, std = (_each(options, key, channels, table=side == 1) for key in ("mean", "std"))
    return Dataset(
        AGREED,
        np.zeros((1, channels, side, side), np.float32),
        np.zeros(1, np.int64),
        None,
        None,
        classes,
        mean,
        std,
        names,
    )


def _each(options: Mapping[str, Any], key: str, channels: int, *, table: bool) -> tuple[float, ...]:
    """Return one number per channel; for images a single number applies to all channels, and there is a default."""
    values: tuple[float, ...] = options.get(key, () if table else _DEFAULTS[key])
    if len(values) != channels and (table or len(values) != 1):
        what, how = "channel", ""
        if table:
            what = "column"
            how = ": published values, or values computed from the count, sum and sum of squares over all sites"
        given = f"has length {len(values)}" if key in options else "is missing"
        raise UsageError(
            f"data.{key} {given}, but there are {channels} {what}s; write one number per {what}, the same at all "
            f"sites{how}"
        )
    values = values * channels if len(values) == 1 else values
    if key == "std" and not all(value >= LEAST_STD for value in values):
        raise UsageError(
            f"data.std = {shown(list(values))} must be greater than 0 everywhere; write 1.0 for a constant column"
        )
    return values
