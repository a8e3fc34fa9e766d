"""Read a site's own samples: an .npz file, a .csv file or a folder of images.

Every problem is reported in one sentence, with the line, the column or the image where that is known.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.base.text import shortened
from fedalloy.data.arrays import as_inputs, from_arrays
from fedalloy.data.readers import open_npz, reading
from fedalloy.data.samples import Array, Dataset
from fedalloy.errors import DataError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF")  # no other format that Pillow can open, regardless of the file's name
LARGEST = float(np.finfo(np.float32).max)
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}

_Split = tuple[Array, Array]  # inputs and labels


def read_samples(path: Path, agreed: Dataset, *, label: str | None = None, size: int | None = None) -> Dataset:
    """Read the samples at a path, normalised with the constants that the sites have agreed on.

    Classes are integers from 0, or the agreed names. `label` is a .csv file's column of classes; images are resized to
    `size` pixels per side. Tables keep their values, regardless of their dtype.
    """
    with reading(path, "this site's data"):
        (x, y), test = _parts(path, agreed, label, size)
        name = shortened(path.name)
        x, x_test = _fitting(name, x, agreed), None if test is None else _fitting(name, test[0], agreed)
        return from_arrays(
            x,
            y,
            x_test=x_test,
            y_test=None if test is None else test[1],
            name=name,
            classes=agreed.classes,
            mean=agreed.mean,
            std=agreed.std,
            label_names=agreed.label_names,
        )


def _parts(path: Path, agreed: Dataset, label: str | None, size: int | None) -> tuple[_Split, _Split | None]:
    """Return the training and test samples at a path."""
    if not path.exists():
        raise DataError(f"there is no data at {quoted(path)}; write the path of this site's data in its site.toml")
    if path.is_dir():
        return _images(path, agreed, size)
    if not path.is_file():  # reading a pipe might never end
        raise DataError(f"{quoted(path)} is not a file; write the path of this site's data in its site.toml")
    if path.suffix == ".npz":
        return _npz(path, agreed)
    if path.suffix == ".csv":
        return _csv(path, agreed, label), None
    raise DataError(f"{quoted(path)} is not an .npz file, a .csv file or a folder of images")


def _fitting(name: str, x: Array, agreed: Dataset) -> Array:
    """Check that inputs have as many channels or columns as the sites agreed on."""
    table, channels = x.ndim == 2, agreed.x.shape[1]
    # uint8 values are pixels in images, but in a table the agreed constants are in the column's own unit.
    found = as_inputs(name, x.astype(np.float32) if table and x.dtype == np.uint8 else x)
    if found.shape[1] != channels:
        what = "columns besides the class" if table else "channels"
        raise DataError(f"'{name}' has {found.shape[1]} {what}, but the sites agreed on {channels}")
    return found


def _npz(path: Path, agreed: Dataset) -> tuple[_Split, _Split | None]:
    with open_npz(path) as held:

        def part(split: str, bare: str) -> _Split | None:
            for x, y in ((f"x_{split}", f"y_{split}"), (bare, bare.replace("x", "y"))):
                if x in held.files and y in held.files:
                    labels = held[y]
                    if labels.dtype.kind == "U":
                        labels = _classes(labels.ravel().tolist(), agreed, path, f"row {{}} of {y}".format)
                    return held[x], labels
            return None

        train = part("train", "x")
        if train is None:
            raise DataError(f"{quoted(path)} has no arrays x_train and y_train; write them with numpy.savez_compressed")
        return train, part("test", "x_test")


def _csv(path: Path, agreed: Dataset, label: str | None) -> _Split:
    # Spreadsheets write a byte order mark before the first column name.
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.reader(stream)
        try:
            header = next(rows, [])
            column = _label_column(path, header, label)
            names = [name for place, name in enumerate(header) if place != column]
            x: list[list[float]] = []
            y: list[str] = []
            lines: list[int] = []
            for row in rows:
                if not row:  # an empty line
                    continue
                if len(row) != len(header):
                    raise DataError(
                        f"{quoted(path)}: line {rows.line_num} has {len(row)} columns, but the first line has "
                        f"{len(header)}"
                    )
                y.append(row.pop(column))
                x.append(_values(path, rows.line_num, names, row))
                lines.append(rows.line_num)
        except csv.Error as error:
            raise DataError(f"{quoted(path)}: line {rows.line_num} cannot be read: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{quoted(path)} is not UTF-8 text after line {rows.line_num}; save it as UTF-8") from error
    if not x:
        raise DataError(f"{quoted(path)} has no rows below its header line")
    return np.array(x, np.float32), _classes(y, agreed, path, lambda row: f"line {lines[row]}")


def _label_column(path: Path, header: Sequence[str], label: str | None) -> int:
    """Return the index of the label column; column names must be unique."""
    if not header:
        raise DataError(f"{quoted(path)}: the first line is empty, but it must contain the column names")
    for separator, name in SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            raise DataError(
                f"{quoted(path)} uses {name} to separate columns; save it with commas, and with decimal points in "
                "numbers"
            )
    for place, name in enumerate(header):
        if not name.strip():
            raise DataError(
                f"{quoted(path)}: column {place + 1} has no name; name it in the first line, or remove it if it only "
                "contains row numbers"
            )
        if name in header[:place]:
            raise DataError(f"{quoted(path)} has two columns named {shown(name)}; rename or remove one of them")
    if label is not None and label not in header:
        raise DataError(f"{quoted(path)} has no column {shown(label)}; the columns are {shown(', '.join(header))}")
    return len(header) - 1 if label is None else header.index(label)


def _values(path: Path, line: int, names: Sequence[str], row: Sequence[str]) -> list[float]:
    try:
        return [_number(text) for text in row]
    except ValueError:
        name, text = next((name, text) for name, text in zip(names, row, strict=True) if not _is_number(text))
    if not text.strip():
        raise DataError(
            f"{quoted(path)}: line {line}, column {shown(name)} is empty; fill in the value or remove the line"
        )
    raise DataError(f"{quoted(path)}: line {line}, column {shown(name)} is {shown(text)}, which is not a finite number")


def _number(text: str) -> float:
    value = float(text)
    if not abs(value) <= LARGEST or "_" in text:  # only Python accepts 1_000
        raise ValueError
    return value


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _images(path: Path, agreed: Dataset, size: int | None) -> tuple[_Split, _Split | None]:
    if size is None:
        raise DataError(
            f"{quoted(path)} is a folder, but the experiment has no data.size, so the sites agreed on tables"
        )
    train = path / "train"
    first = _folder(train if train.is_dir() else path, agreed, size)
    test = path / "test"
    return first, _folder(test, agreed, size) if train.is_dir() and test.is_dir() else None


def _folder(path: Path, agreed: Dataset, size: int) -> _Split:
    """Read images from folders named after their classes, in the order of their names."""
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
        raise DataError(f"{quoted(path)} has no images in folders named after their classes")
    y = _classes([name for _, name in found], agreed, path, lambda place: f"folder {shown(found[place][1])}")
    stacked = np.stack([_pixels(file, mode, size) for file, _ in found])
    return stacked[:, None] if mode == "L" else stacked.transpose(0, 3, 1, 2), y


def _pixels(file: Path, mode: str, size: int) -> Array:
    """Read one image and convert it to this mode and size."""
    from PIL import Image  # matplotlib depends on it

    with reading(file, "an image"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        if not file.is_file():
            raise DataError(f"{quoted(file)} is not a file")
        with Image.open(file, formats=FORMATS) as image:
            if image.mode[0] in "IF":
                raise DataError(
                    f"{quoted(file)} has 16 or more bits per pixel channel (mode {image.mode}); save it with 8 bits"
                )
            pixels = image.convert(mode)
        if pixels.size != (size, size):
            pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(pixels, np.uint8)


def _classes(labels: Sequence[str], agreed: Dataset, path: Path, place: Callable[[int], str]) -> Array:
    """Convert labels, agreed names or numbers, to class numbers; `place` describes where a label is."""
    numbers = {str(number): number for number in range(agreed.classes)}
    known = numbers | {name: number for number, name in enumerate(agreed.label_names)}
    for row, label in enumerate(labels):
        if label not in known:
            options = shown(", ".join(agreed.label_names)) + " or " if agreed.label_names else ""
            raise DataError(
                f"{quoted(path)}: {place(row)} has class {shown(label)}, but the sites agreed on {options}numbers "
                f"from 0 to {agreed.classes - 1}"
            )
    return np.array([known[label] for label in labels], np.int64)
