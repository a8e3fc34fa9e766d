"""Read images: a folder with a sub-folder for each class, perhaps within train/ and test/."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.base.text import LONGEST_NAME
from fedalloy.data.own.names import Named, naturally
from fedalloy.data.own.parts import Held, Part
from fedalloy.data.own.wanted import Format, Wanted
from fedalloy.data.readers import memory, reading
from fedalloy.data.samples import Array
from fedalloy.errors import DataError, UsageError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF")  # no other format that Pillow can open, regardless of the file's name
_GREY = ("1", "L", "LA", "La")  # Pillow's modes of images without colour


def read_images(path: Path, wanted: Wanted, agreed: Format | None) -> Held:
    """Read a folder of images; each class has a sub-folder with its name."""
    for key in ("label", "client", "categorical", "drop"):
        if getattr(wanted, key):
            raise UsageError(f"{quoted(path)} is a folder of images, which have no columns; remove data.{key}")
    if wanted.task != "classes":
        raise UsageError(
            f"{quoted(path)}: sub-folders of images are classes; with data.task = {wanted.task!r}, use an .npz file or "
            "a Hugging Face folder"
        )
    channels = channels_of(path, agreed)
    if not is_split(path):
        return Held(_folder(path, channels, wanted.size))
    test = path / "test"
    return Held(
        _folder(path / "train", channels, wanted.size),
        _folder(test, channels, wanted.size) if test.is_dir() else None,
    )


def is_split(path: Path) -> bool:
    """Return whether a folder has its training images in `train`, with nothing but other parts beside it."""
    beside = {folder.name for folder in folders(path)}
    return "train" in beside and beside <= {"train", "test", "val", "valid", "validation"}


def folders(path: Path) -> list[Path]:
    """Return the sub-folders in the order of their names, without hidden ones."""
    found = [folder for folder in path.iterdir() if not folder.name.startswith(".") and folder.is_dir()]
    return sorted(found, key=lambda folder: naturally(folder.name))


def files(path: Path) -> list[Path]:
    """Return what is in a folder besides sub-folders, without hidden files, in the order of names."""
    found = [file for file in path.iterdir() if not file.name.startswith(".") and not file.is_dir()]
    return sorted(found, key=lambda file: naturally(file.name))


def image_files(path: Path) -> list[Path]:
    """Return the images in a folder."""
    return [file for file in files(path) if file.suffix.lower() in IMAGES]


def channels_of(path: Path, agreed: Format | None) -> int | None:
    """Return how many channels the clients agreed on, if they did."""
    if agreed is None:
        return None
    if agreed.columns:
        raise DataError(f"{quoted(path)} contains images, but the clients agreed on tables")
    if agreed.shape[0] not in (1, 3):
        raise DataError(f"images have 1 or 3 channels, but the clients agreed on {agreed.shape[0]}")
    return agreed.shape[0]


def _folder(path: Path, channels: int | None, size: int | None) -> Part:
    classes = [(folder.name, image_files(folder)) for folder in folders(path)]
    names = tuple(name for name, held in classes if held)
    if not names:
        raise DataError(f"{quoted(path)} has no images in folders named after their classes")
    for name in names:
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise DataError(f"{quoted(path)}: the folder {shown(name)} has no name for a class; rename it")
    found = [file for _, held in classes for file in held]
    codes = np.repeat(np.arange(len(names)), [len(held) for _, held in classes if held]).astype(np.int64)
    x = stacked(path, (_opened(file, channels, size) for file in found), [str(file.name) for file in found])
    return Part(path, x, Named(codes, names), lambda row: f"image {quoted(found[row])}")


def _opened(file: Path, channels: int | None, size: int | None) -> Array:
    if not file.is_file():  # reading a pipe might never end
        raise DataError(f"{quoted(file)} is not a file")
    return pixels(file, file, "an image", channels, size)


def stacked(path: Path, images: Iterable[Array], names: Sequence[str]) -> Array:
    """Stack images, H x W x C each, to N x C x H x W; grey images among coloured ones get three equal channels."""
    held: list[Array] = []
    for image in _within_memory(path, images):
        if held and image.shape[:2] != held[0].shape[:2]:
            one, other = (f"{a.shape[1]} x {a.shape[0]}" for a in (held[0], image))
            raise DataError(
                f"{quoted(path)} has images of different sizes: {shown(names[0])} has {one} pixels and "
                f"{shown(names[len(held)])} has {other}; write data.size = {min(*held[0].shape[:2], *image.shape[:2])}"
            )
        held.append(image)
    channels = max(image.shape[2] for image in held)
    out = np.empty((len(held), channels, *held[0].shape[:2]), np.uint8)
    for row, image in enumerate(held):
        out[row] = image.transpose(2, 0, 1)  # one channel is repeated
    return out


def _within_memory(path: Path, images: Iterable[Array]) -> Iterator[Array]:
    total, most = 0, memory()
    for image in images:
        total += 2 * image.nbytes  # once as it is read, once among all
        if total > most:
            raise DataError(f"the images in {quoted(path)} do not fit into memory; write a smaller data.size")
        yield image


def pixels(image_file: Path | bytes, path: Path, what: str, channels: int | None, size: int | None) -> Array:
    """Read one image as H x W x C pixels of 8 bits; without `channels`, C is 1 for grey images and 3 for others.

    Errors name the path and, as a part of a sentence, `what` is read there.
    """
    from PIL import Image  # matplotlib depends on it

    opened = io.BytesIO(image_file) if isinstance(image_file, bytes) else image_file
    with reading(path, what), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(opened, formats=FORMATS) as image:
            if image.mode[0] in "IF":
                raise DataError(
                    f"{quoted(path)}: {what} has 16 or more bits per pixel channel (mode {image.mode}); save it with "
                    "8 bits"
                )
            wide = channels or (1 if image.mode in _GREY else 3)
            held = image.convert("L" if wide == 1 else "RGB")
        if size is not None and held.size != (size, size):
            held = held.resize((size, size), Image.Resampling.BILINEAR)
        values = np.asarray(held, np.uint8)
    return values.reshape(*values.shape[:2], wide)
