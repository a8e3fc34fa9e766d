"""Read numeric arrays from MATLAB version 5 files, the format of SVHN, without scipy."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from fedalloy.data.samples import Array
from fedalloy.errors import DataError

_STORED = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8"}
_MATRIX, _COMPRESSED = 14, 15
_HEADER = 128


def read_matlab(path: Path) -> dict[str, Array]:
    """Read the numeric arrays of a file by name, in their stored dtype."""
    data = memoryview(path.read_bytes())
    # The last four bytes of the header are the version and the byte order mark.
    if bytes(data[_HEADER - 4 : _HEADER]) != b"\x00\x01IM":
        raise DataError(f"'{path}' is not a little-endian MATLAB version 5 file; save it with: save -v7")
    arrays = {}
    try:
        at = _HEADER
        while at < len(data):
            kind, body, at = _element(data, at)
            if kind == _COMPRESSED:
                kind, body, _ = _element(memoryview(zlib.decompress(body)), 0)
            if kind == _MATRIX:
                name, array = _matrix(body)
                arrays[name] = array
    except (struct.error, zlib.error, KeyError, ValueError) as error:
        raise DataError(
            f"'{path}' is damaged or contains more than numeric arrays ({error}); download it again"
        ) from error
    return arrays


def _element(data: memoryview, at: int) -> tuple[int, memoryview, int]:
    """Read one tagged element; return its kind, its bytes, and where the next one begins."""
    kind, size = struct.unpack_from("<II", data, at)
    if kind >> 16:  # up to four bytes are packed into the tag itself
        kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
    else:
        start = at + 8
        end = start + size if kind == _COMPRESSED else start + size + -size % 8
    if start + size > len(data):
        raise ValueError(f"it ends {start + size - len(data)} bytes too early")
    return kind, data[start : start + size], end


def _matrix(body: memoryview) -> tuple[str, Array]:
    _, _, at = _element(body, 0)  # flags: not needed, the stored type follows
    _, dims, at = _element(body, at)
    _, name, at = _element(body, at)
    kind, values, _ = _element(body, at)
    array: Array = np.frombuffer(values, _STORED[kind])
    return bytes(name).decode(), array.reshape(np.frombuffer(dims, "<i4"), order="F")
