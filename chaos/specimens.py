"""Small valid files, one of each kind that is read; their contents can be damaged."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mutants import damaged, mutated
from PIL import Image

from fedalloy.base import tree
from fedalloy.base.files import write_weights
from fedalloy.nets.models import create
from fedalloy.train.fit import params

CLASSES = ("airplane", "automobile")


class Hurt:
    """Damages the contents of a file, or leaves them unchanged without dice."""

    def __init__(self, dice: random.Random | None = None) -> None:
        self.dice = dice

    def __call__(self, data: bytes) -> bytes:
        """Return damaged bytes."""
        return data if self.dice is None else damaged(data, self.dice)

    def lines(self, right: bytes) -> bytes:
        """Return one JSON table, or one per line, with strange values in one of them."""
        if self.dice is None:
            return right
        lines = right.splitlines() if b"\n{" in right else [right]
        at = self.dice.randrange(len(lines))
        try:
            lines[at] = json.dumps(mutated(json.loads(lines[at]), self.dice)).encode()
        except (TypeError, ValueError, RecursionError):  # not every strange value can be written as JSON
            lines[at] = b"[]"
        return b"\n".join([*lines, b""])


def network() -> torch.nn.Module:
    """Return a small network."""
    return create("mlp", classes=4, channels=1, size=4, hidden=[4])


def weights(hurt: Hurt) -> bytes:
    """Return a model's weights; if damaged inside, the header is changed and its length corrected."""
    with tempfile.TemporaryDirectory() as place:
        write_weights(params(network()), Path(place) / "w", {"round": "3"})
        return _header(hurt, (Path(place) / "w").read_bytes())


def message(hurt: Hurt) -> bytes:
    """Return an encoded tree."""
    body = {"n": 3, "model": params(network()), "deep": {"er": {"x": torch.ones(2, dtype=torch.bool), "s": "text"}}}
    return _header(hurt, tree.encode(body))


def _header(hurt: Hurt, data: bytes) -> bytes:
    size = struct.unpack("<Q", data[:8])[0]
    head = hurt(data[8 : 8 + size])
    return struct.pack("<Q", len(head)) + head + data[8 + size :]


def npz(hurt: Hurt, **arrays: Any) -> bytes:
    """Return arrays in NumPy's format."""
    return zipped(hurt, {f"{name}.npy": _npy(np.asarray(array)) for name, array in arrays.items()})


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(hurt: Hurt, members: Mapping[str, bytes]) -> bytes:
    """Return a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, hurt(data))
    return file.getvalue()


def tarred(hurt: Hurt, members: Mapping[str, bytes]) -> bytes:
    """Return a gzipped tar archive; the damage may also be in a member's name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            content = hurt(data)
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return gzip.compress(file.getvalue(), compresslevel=1)


def idx(*shape: int) -> bytes:
    """Return an idx file of bytes."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(k % 2 for k in range(np.prod(shape)))


def letters(hurt: Hurt) -> bytes:
    """Return EMNIST's archive, with two letters in each part."""
    one = {"images-idx3": idx(2, 28, 28), "labels-idx1": idx(2)[:-2] + b"\x01\x02"}
    parts = {f"gzip/emnist-letters-{s}-{k}-ubyte.gz": v for s in ("train", "test") for k, v in one.items()}
    return zipped(Hurt(), {name: gzip.compress(hurt(data), compresslevel=1) for name, data in parts.items()})


def cifar10(hurt: Hurt) -> bytes:
    """Return CIFAR-10's archive, with one image in each batch."""
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return tarred(hurt, {f"cifar/{name}.bin": bytes(1 + 3072) for name in names})


def cifar100(hurt: Hurt) -> bytes:
    """Return CIFAR-100's archive."""
    files = {"train.bin": bytes(2 * 3074), "test.bin": bytes(3074), "fine_label_names.txt": b"apple\nbear\n"}
    return tarred(hurt, {f"cifar/{name}": data for name, data in files.items()})


def cinic10(hurt: Hurt) -> bytes:
    """Return CINIC-10's archive, with one image in each folder."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(file, "PNG")
    return tarred(hurt, {f"./{s}/{name}/{name}.png": file.getvalue() for s in ("train", "test") for name in CLASSES})


def svhn(hurt: Hurt) -> bytes:
    """Return one of SVHN's MATLAB files, with two images."""
    return bytes(124) + b"\x00\x01IM" + _matrix(hurt, b"X", (32, 32, 3, 2)) + _matrix(hurt, b"y", (2, 1))


def _matrix(hurt: Hurt, name: bytes, dims: tuple[int, ...]) -> bytes:
    def element(kind: int, data: bytes) -> bytes:
        return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)

    parts = [element(6, bytes(8)), element(5, struct.pack(f"<{len(dims)}i", *dims)), element(1, name)]
    return element(14, hurt(b"".join([*parts, element(2, b"\x01" * int(np.prod(dims)))])))


def compact(hurt: Hurt) -> bytes:
    """Return a compact copy of a colour data set."""
    images = np.zeros((3, 2, 8, 8), np.uint8)
    return npz(hurt, r_train_0=images, r_test=images, y_train=[0, 1], y_test=[0, 1], classes=["cat", "dog"])


def users_own(hurt: Hurt) -> bytes:
    """Return a file that a user may have saved."""
    x = np.linspace(0, 1, 6 * 16, dtype=np.float32).reshape(6, 4, 4)
    return npz(hurt, x=x, y=[0, 1, 2] * 2, x_test=x, y_test=[0, 1, 2] * 2, client=[0, 0, 0, 1, 1, 1])
