"""A site's own samples: an .npz file, a .csv file or a folder of images, read where they lie."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedalloy.data.arrays import from_arrays
from fedalloy.data.readers import open_npz
from fedalloy.data.samples import Array, Dataset
from fedalloy.errors import DataError, FedalloyError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")

_Split = tuple[Array, Array]


def read_samples(path: Path, agreed: Dataset, *, label: str | None = None, size: int | None = None) -> Dataset:
    """The samples at a path, normalised by what the sites have agreed on.

    Classes are numbers from 0, or the agreed names. `label` is a .csv file's column of classes; images are brought to
    `size` pixels a side when they are used, and must have one size before.
    """
    if not path.exists():
        raise DataError(f"there is no data at '{path}'; name this site's data in its site.toml")
    try:
        if path.is_dir():
            train, test = _images(path, agreed, size)
        elif path.suffix == ".npz":
            train, test = _npz(path, agreed)
        elif path.suffix == ".csv":
            train, test = _csv(path, agreed, label), None
        else:
            raise DataError(f"'{path}' is neither an .npz file, a .csv file nor a folder of images")
        columns, channels = np.shape(train[0])[1], agreed.x.shape[1]
        if np.ndim(train[0]) == 2 and columns != channels:
            raise DataError(f"'{path}' has {columns} columns beside the class, but the sites agreed on {channels}")
        found = from_arrays(
            *train,
            x_test=None if test is None else test[0],
            y_test=None if test is None else test[1],
            name=path.name,
            classes=agreed.classes,
            mean=agreed.mean,
            std=agreed.std,
            label_names=agreed.label_names,
        )
    except FedalloyError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error
    return found


def _npz(path: Path, agreed: Dataset) -> tuple[_Split, _Split | None]:
    with open_npz(path) as held:

        def part(split: str, bare: str) -> _Split | None:
            for x, y in ((f"x_{split}", f"y_{split}"), (bare, bare.replace("x", "y"))):
                if x in held.files and y in held.files:
                    return held[x], _numbers(held[y], agreed, path)
            return None

        train = part("train", "x")
        if train is None:
            raise DataError(f"'{path}' has no arrays x_train and y_train; write them with numpy.savez_compressed")
        return train, part("test", "x_test")


def _csv(path: Path, agreed: Dataset, label: str | None) -> _Split:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = csv.reader(stream)
        header = next(rows, [])
        if label is not None and label not in header:
            raise DataError(f"'{path}' has no column '{label}'; its columns are {', '.join(header)}")
        column = len(header) - 1 if label is None else header.index(label)
        x, y = [], []
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise DataError(f"'{path}': line {number} has {len(row)} columns, the first line {len(header)}")
            y.append(row.pop(column))
            try:
                x.append([float(value) for value in row])
            except ValueError as error:
                raise DataError(f"'{path}': line {number} holds what is no number: {error}") from error
    if not x:
        raise DataError(f"'{path}' has no rows below its first line, which names the columns")
    return np.array(x, np.float32), _numbers(np.array(y), agreed, path)


def _images(path: Path, agreed: Dataset, size: int | None) -> tuple[_Split, _Split | None]:
    train = path / "train"
    first = _folder(train if train.is_dir() else path, agreed, size)
    test = path / "test"
    return first, _folder(test, agreed, size) if train.is_dir() and test.is_dir() else None


def _folder(path: Path, agreed: Dataset, size: int | None) -> _Split:
    """Images in folders that are named by their classes, in the order of their names."""
    from PIL import Image  # matplotlib cannot be installed without it

    mode = {1: "L", 3: "RGB"}.get(agreed.x.shape[1])
    if mode is None:
        raise DataError(f"images have 1 or 3 channels, but the sites agreed on {agreed.x.shape[1]}")
    found = [
        (file, folder.name)
        for folder in sorted(path.iterdir())
        if folder.is_dir()
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in IMAGES
    ]
    if not found:
        raise DataError(f"'{path}' has no images in folders that are named by their classes")
    x = []
    for file, _ in found:
        with Image.open(file) as image:
            pixels = image.convert(mode)
            if size is not None and pixels.size != (size, size):
                pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
            x.append(np.asarray(pixels, np.uint8))
    stacked = np.stack(x)
    y = _numbers(np.array([name for _, name in found]), agreed, path)
    return stacked[:, None] if mode == "L" else stacked.transpose(0, 3, 1, 2), y


def _numbers(labels: Array, agreed: Dataset, path: Path) -> Array:
    """Classes as numbers; a text is one of the agreed names or a number."""
    if labels.dtype.kind != "U":
        return labels
    names: Sequence[str] = agreed.label_names
    numbers = {name: number for number, name in enumerate(names)}
    known: dict[str, Any] = {str(number): number for number in range(agreed.classes)} | numbers
    strange = sorted(set(labels.tolist()) - known.keys())
    if strange:
        options = ", ".join(names) if names else f"numbers from 0 to {agreed.classes - 1}"
        raise DataError(f"'{path}' has the class '{strange[0]}', but the sites agreed on {options}")
    return np.array([known[name] for name in labels.tolist()], np.int64)
