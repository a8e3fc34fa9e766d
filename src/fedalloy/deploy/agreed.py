"""The data set `sites`: the format that all sites have agreed on; each site keeps its own samples.

[data]
name = "sites"
names = ["benign", "malignant"]         # the classes in their order, or classes = 2 for numbers from 0
columns = ["age", "sex", "pressure"]    # tables: the columns besides the label; other columns must be in `drop`
categorical = ["sex"]
label = "diagnosis"

channels = 1                            # images instead: 1 or 3 channels, resized to size x size pixels
size = 28

`deploy init` writes it from an experiment on own files. What it leaves open - means, deviations, categories, what
stands for missing values - follows from what the sites tell before the first round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedalloy.config.sections import DataPart, check_options
from fedalloy.data.catalogue import AGREED
from fedalloy.data.columns import Column, Impute, Preparation, Recipe, agree
from fedalloy.data.own.dataset import own_dataset
from fedalloy.data.own.wanted import Format
from fedalloy.data.samples import Dataset, Task
from fedalloy.errors import UsageError

OWN = ("drop", "impute", "mean", "std", "categories", "label_mean", "label_std")  # keys for the reader of own files

__all__ = ["AGREED", "constants", "frame", "framed", "read_site_data"]


def _options(
    classes: int = 0,
    channels: int = 0,
    columns: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    task: Task = "classes",
    label: str | tuple[str, ...] | None = None,
    drop: str | tuple[str, ...] = (),
    categorical: tuple[str, ...] = (),
    categories: Mapping[str, list[str]] | None = None,
    impute: Impute | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    label_mean: tuple[float, ...] | None = None,
    label_std: tuple[float, ...] | None = None,
) -> None:
    """Declare the keys of [data] and their types."""


def frame(part: DataPart) -> Dataset:
    """Return the agreed format as a data set with a single blank sample as a placeholder, still to be prepared.

    >>> agreed = frame(DataPart(name="sites", size=8, options={"channels": 1, "names": ("no", "yes")}))
    >>> agreed.x.shape, agreed.classes
    ((1, 1, 8, 8), 2)
    >>> frame(DataPart(name="sites", options={"columns": ("age",), "classes": 2})).columns
    (Column(name='age', categories=None),)
    """
    options, form = _checked(part), agreed_format(part)
    coded = {*form.categorical}
    columns = tuple(Column(name, () if name in coded else None) for name in form.columns)
    channels, outputs = form.shape[0], len(form.label_names)
    return Dataset(
        AGREED,
        np.zeros((1, *form.shape), np.float32),
        np.zeros(1, np.int64) if form.task == "classes" else np.zeros((1, outputs), np.float32),
        None,
        None,
        outputs,
        (0.0,) * channels,
        (1.0,) * channels,
        form.label_names,
        task=form.task,
        columns=columns or tuple(Column(f"channel {place}") for place in range(channels)),
        recipe=_recipe(options, form),
    )


def framed(agreed: Dataset, preparation: Preparation) -> Dataset:
    """Return the placeholder as it is once rows are prepared."""
    if agreed.x.shape[2:] != (1, 1):
        return agreed.prepared(preparation)
    width = len(preparation.inputs)
    x = np.zeros((1, width, 1, 1), np.float32)
    return replace(
        agreed.standardised(preparation), x=x, mean=(0.0,) * width, std=(1.0,) * width, columns=(), recipe=None
    )


def constants(agreed: Dataset) -> Preparation | None:
    """Return how rows are prepared if the experiment says all of it, so that no site is asked; else None."""
    assert agreed.recipe is not None
    return None if agreed.recipe.asks(agreed.columns) else agree([], agreed.columns, agreed.recipe)


def read_site_data(path: Path, part: DataPart, label: str | None = None) -> Dataset:
    """Read a site's own file or folder, which must have the agreed format; `label` is its own name of that column."""
    options = _checked(part)
    own = {key: options[key] for key in OWN if key in options}
    named = label if label is not None else options.get("label")
    return own_dataset(path, size=part.size, agreed=agreed_format(part), label=named, **own)


def agreed_format(part: DataPart) -> Format:
    """Return the format that an experiment describes."""
    options = _checked(part)
    columns, channels, task = options.get("columns", ()), options.get("channels", 0), options.get("task", "classes")
    if bool(columns) == bool(channels):
        raise UsageError(
            "data.name = 'sites' needs the format that all sites have agreed on: for tables data.columns with the name "
            "of each column, for images data.channels and data.size"
        )
    if len({*columns}) < len(columns):
        raise UsageError(f"data.columns has {Counter(columns).most_common(1)[0][0]!r} twice; write each column once")
    if channels and part.size is None:
        raise UsageError(
            f"data.channels = {channels}, but there is no data.size, to which images are resized; for tables, write "
            "data.columns with the name of each column instead"
        )
    if channels and options.get("impute") is not None:
        raise UsageError(f"data.impute = '{options['impute']}', but images have no missing values; remove it")
    names, classes = options.get("names", ()), options.get("classes", 0)
    if names and classes and len(names) != classes:
        raise UsageError(f"data.names has {len(names)} names, but data.classes = {classes}; write one for each class")
    names = names or tuple(str(number) for number in range(classes))
    if len(names) < (2 if task == "classes" else 1):
        raise UsageError(
            "data.names must have the names of the classes that all sites have agreed on, in their order, for example "
            'names = ["benign", "malignant"]; data.classes = 2 stands for numbers from 0'
        )
    categorical = tuple(dict.fromkeys([*options.get("categorical", ()), *(options.get("categories") or {})]))
    if strange := [name for name in categorical if name not in columns]:
        raise UsageError(f"data.categorical has {strange[0]!r}, which is not one of data.columns")
    shape = (len(columns), 1, 1) if columns else (channels, part.size or 1, part.size or 1)
    return Format(columns, categorical, names, task, shape)


def _checked(part: DataPart) -> dict[str, Any]:
    return check_options(part, _options, "data")


def _recipe(options: Mapping[str, Any], form: Format) -> Recipe:
    mean, std = options.get("mean"), options.get("std")
    if not form.columns and mean is not None and std is not None:
        mean, std = (value * form.shape[0] if len(value) == 1 else value for value in (mean, std))
    given = {key: tuple(names) for key, names in (options.get("categories") or {}).items()}
    targets = form.label_names if form.task == "numbers" else ()
    return Recipe(options.get("impute"), mean, std, given, targets, options.get("label_mean"), options.get("label_std"))
