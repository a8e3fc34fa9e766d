"""The data set `sites`: what the sites have agreed on, while each keeps its samples.

[data]
name = "sites"
classes = 2
channels = 1
size = 28            # images are brought to this many pixels a side; left out: columns of numbers
mean = [0.5]         # one for each channel, on the scale [0, 1] for images
std = [0.25]
names = ["benign", "malignant"]
"""

from __future__ import annotations

import numpy as np

from fedalloy.config import DataPart, check_options
from fedalloy.data.samples import Dataset
from fedalloy.errors import UsageError

AGREED = "sites"


def _options(
    classes: int = 0,
    channels: int = 0,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    names: tuple[str, ...] = (),
) -> None:
    """The keys of [data] and their types, and nothing else."""


def frame(part: DataPart) -> Dataset:
    """What was agreed, as a data set with one black sample that stands for all.

    >>> agreed = frame(DataPart(name="sites", size=8, options={"classes": 2, "channels": 1, "names": ("no", "yes")}))
    >>> agreed.x.shape, agreed.scale
    ((1, 1, 8, 8), Scale(mean=(0.0,), std=(1.0,)))
    """
    options = check_options(part, _options, "data")
    classes, channels = options.get("classes", 0), options.get("channels", 0)
    if classes < 2 or channels < 1:
        raise UsageError(
            f"data.classes = {classes} and data.channels = {channels}: write what all sites have agreed on, "
            "for instance classes = 2 and channels = 1"
        )
    side = part.size or 1
    return Dataset(
        AGREED,
        np.zeros((1, channels, side, side), np.float32),
        np.zeros(1, np.int64),
        None,
        None,
        classes,
        _each(options.get("mean", (0.0,)), channels),
        _each(options.get("std", (1.0,)), channels),
        options.get("names", ()),
    )


def _each(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One number for each channel; a single one stands for all."""
    return values * channels if len(values) == 1 else values
