"""Read published file formats into arrays, without ever unpickling anything.

A truncated file or a file of another format raises an error that names it.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from fedalloy.base.files import beginning, quoted, refuse_executable
from fedalloy.data.matlab import read_matlab
from fedalloy.data.samples import Array
from fedalloy.errors import DataError, FedalloyError, SecurityError


class Arrays(NamedTuple):
    """The contents of a file: N x C x H x W inputs and labels from 0, for training and testing."""

    x: Array
    y: Array
    x_test: Array | None
    y_test: Array | None
    label_names: tuple[str, ...] = ()
    client_ids: Array | None = None
    client_names: tuple[str, ...] = ()


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn any exception of a reader into a one-sentence error that names the file."""
    try:
        yield
    except FedalloyError:
        raise
    except Exception as error:  # numpy, zipfile, tarfile, csv and Pillow raise many types of errors
        reason = _reason(error)
        if "allow_pickle" in reason:
            raise SecurityError(
                f"{quoted(path)} contains Python objects ({reason}), which can execute code when they are read; write "
                "arrays of numbers"
            ) from error
        raise DataError(f"{quoted(path)} cannot be read as {what}: {reason}; replace it with an intact copy") from error


def _reason(error: Exception) -> str:
    """Return the message of an error as a part of a sentence."""
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    words = "".join(letter if letter.isprintable() else " " for letter in str(error)).split()
    return " ".join(words).strip("'\".")[:200] or type(error).__name__


def read_idx(path: Path) -> Array:
    """Read an idx file of unsigned bytes (MNIST's format), gzipped or not."""
    with reading(path, "an idx file"):
        return _idx(path.read_bytes())


def read_mnist(paths: Sequence[Path]) -> Arrays:
    """Read the four idx files of MNIST and similar data sets: training images and labels, test images and labels."""
    x, y, x_test, y_test = (read_idx(path) for path in paths)
    return Arrays(x[:, None], y.astype(np.int64), x_test[:, None], y_test.astype(np.int64))


def read_cifar10(path: Path) -> Arrays:
    """Read the binary version of CIFAR-10: one label byte, then red, green and blue planes."""
    with reading(path, "the binary version of CIFAR-10"):
        members = _tar_members(path)
        x, labels = _cifar_records(b"".join(members[f"data_batch_{i}.bin"] for i in range(1, 6)), label_bytes=1)
        x_test, labels_test = _cifar_records(members["test_batch.bin"], label_bytes=1)
        return Arrays(x, labels[:, 0], x_test, labels_test[:, 0])


def read_cifar100(path: Path, *, coarse: bool) -> Arrays:
    """Read the binary version of CIFAR-100: a coarse and a fine label byte before the planes."""
    with reading(path, "the binary version of CIFAR-100"):
        members = _tar_members(path)
        x, labels = _cifar_records(members["train.bin"], label_bytes=2)
        x_test, labels_test = _cifar_records(members["test.bin"], label_bytes=2)
        column, kind = (0, "coarse") if coarse else (1, "fine")
        names = tuple(members[f"{kind}_label_names.txt"].decode().split())
        return Arrays(x, labels[:, column], x_test, labels_test[:, column], names)


def read_emnist_letters(path: Path) -> Arrays:
    """Read the letters of NIST's EMNIST archive; its images are transposed and its labels begin at 1."""
    with reading(path, "NIST's EMNIST archive"), zipfile.ZipFile(path) as archive:
        by_name = {PurePosixPath(name).name: name for name in archive.namelist()}

        def part(split: str, kind: str) -> Array:
            return _idx(archive.read(by_name[f"emnist-letters-{split}-{kind}-ubyte.gz"]))

        return Arrays(
            _upright(part("train", "images-idx3")),
            part("train", "labels-idx1").astype(np.int64) - 1,
            _upright(part("test", "images-idx3")),
            part("test", "labels-idx1").astype(np.int64) - 1,
        )


def read_svhn(train: Path, test: Path) -> Arrays:
    """Read the cropped digits of SVHN; its label 10 is the digit 0."""

    def part(path: Path) -> tuple[Array, Array]:
        with reading(path, "an SVHN file"):
            arrays = read_matlab(path)
            x = np.ascontiguousarray(arrays["X"].transpose(3, 2, 0, 1))
            return x, arrays["y"].reshape(-1).astype(np.int64) % 10

    return Arrays(*part(train), *part(test))


def read_cinic10(path: Path, classes: Sequence[str]) -> Arrays:
    """Read the PNG folders of CINIC-10, in the order of their names: `train` for training, `test` for testing.

    KDIA trains on the 90,000 images of `train` only, so `valid` is not used.
    """
    from PIL import Image  # matplotlib depends on it anyway

    splits: dict[str, list[tuple[str, int, Array]]] = {"train": [], "test": []}
    # Stream mode ("r|gz") reads the archive once from front to back; with 270,000 members, random access is slow.
    with reading(path, "the archive of CINIC-10"), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts[-3:]
            stream = archive.extractfile(member) if member.name.endswith(".png") else None
            if stream is not None and len(parts) == 3 and parts[0] in splits:
                image = np.asarray(Image.open(io.BytesIO(stream.read()), formats=["PNG"]).convert("RGB"))
                splits[parts[0]].append((member.name, classes.index(parts[1]), image))

    def part(split: str) -> tuple[Array, Array]:
        rows = sorted(splits[split], key=lambda row: row[0])
        if not rows:
            raise DataError(f"'{path}' has no PNG files in a folder '{split}', so it is not CINIC-10")
        if len({image.shape for _, _, image in rows}) > 1:
            raise DataError(f"'{path}' has images of different sizes, so it is not CINIC-10")
        x = np.stack([image for _, _, image in rows]).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(x), np.array([label for _, label, _ in rows], np.int64)

    return Arrays(*part("train"), *part("test"))


def read_compact(path: Path, *, coarse: bool = False) -> Arrays:
    """Read a compact copy: colour images stored as differences modulo 256, which compress well, or plain grey images.

    Grey images are EMNIST letters and, like the originals, transposed.
    """
    with reading(path, "a compact copy"), np.load(path, allow_pickle=False) as held:
        pieces = sorted(key for key in held.files if key.startswith("r_train"))
        label, names = ("yc", "coarse_classes") if coarse else ("y", "classes")
        return Arrays(
            np.concatenate([_undo_differences(held[key]) for key in pieces]) if pieces else _upright(held["x_train"]),
            held[f"{label}_train"].astype(np.int64),
            _undo_differences(held["r_test"]) if pieces else _upright(held["x_test"]),
            held[f"{label}_test"].astype(np.int64),
            tuple(str(name) for name in held[names]),
        )


def read_npz(path: Path) -> Arrays:
    """Read a user's file: `x`, `y` and optionally `x_test`, `y_test`, `client` and `client_names`.

    `client` is the client of each training row: with `client_names`, the position of its name there.
    """
    with reading(path, "an .npz file"), open_npz(path) as held:
        if missing := {"x", "y"} - set(held.files):
            raise DataError(
                f"'{path}' has no array {' and no array '.join(sorted(missing))}; "
                "write it with numpy.savez_compressed(path, x=inputs, y=labels)"
            )
        x_test, y_test, client = (held[key] if key in held.files else None for key in ("x_test", "y_test", "client"))
        names = tuple(held["client_names"].astype(str).tolist()) if "client_names" in held.files else ()
        return Arrays(held["x"], held["y"], x_test, y_test, client_ids=client, client_names=names)


def open_npz(path: Path) -> Any:
    """Open an .npz file; anything else is refused here, since NumPy would suggest loading it unsafely."""
    head = beginning(path)
    refuse_executable(path, head)
    if head[:2] != b"PK":  # an .npz file is a zip archive
        raise DataError(
            f"{quoted(path)} is not an .npz file; write one with numpy.savez_compressed(path, x=inputs, y=labels)"
        )
    held = np.load(path, allow_pickle=False)
    unpacked = sum(member.file_size for member in held.zip.infolist())
    if unpacked > memory():  # a small file can unpack to a huge number of zeros
        held.close()
        raise DataError(
            f"{quoted(path)} has {unpacked:,} bytes when unpacked, but this machine has {memory():,} bytes of memory; "
            "use fewer rows"
        )
    return held


def memory() -> int:
    """Return this machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _idx(data: bytes) -> Array:
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:3] != b"\x00\x00\x08":
        raise ValueError("it has no idx header for unsigned bytes")
    rank = data[3]
    shape = np.frombuffer(data, ">u4", rank, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _tar_members(path: Path) -> dict[str, bytes]:
    """Read every regular file of an archive, by its name without folders; nothing is unpacked to disk."""
    members = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                members[PurePosixPath(member.name).name] = stream.read()
    return members


def _cifar_records(data: bytes, label_bytes: int) -> tuple[Array, Array]:
    records = np.frombuffer(data, np.uint8).reshape(-1, label_bytes + 3 * 32 * 32)
    x = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, 3, 32, 32)
    return x, records[:, :label_bytes].astype(np.int64)


def _undo_differences(r: Array) -> Array:
    """Convert 3 x N x H x W differences to N x 3 x H x W pixels; every sum is modulo 256."""
    r = np.add.accumulate(r, axis=2, dtype=np.uint8)
    r = np.add.accumulate(r, axis=3, dtype=np.uint8)
    r[0] += r[1]  # red and blue are stored as their difference to green
    r[2] += r[1]
    return np.ascontiguousarray(r.transpose(1, 0, 2, 3))


def _upright(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(0, 2, 1))[:, None]
