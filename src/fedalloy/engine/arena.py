"""Shared memory between processes: tensors in a mapped file, and trees written to it and read in place."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.errors import StorageError

_DTYPES = {name: dtype for dtype, name in tree.DTYPES.items()}
_MEMORY = Path("/dev/shm")


def shared(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> tuple[Tensor, str]:
    """Create a tensor whose memory another process can map, and the path under which it can do so until `withdraw`.

    On Linux the path refers to an open, unnamed file of this process: however the process ends, nothing is left.
    Elsewhere it is a file that remains until it is withdrawn.
    """
    size = max(1, torch.Size(shape).numel()) * dtype.itemsize
    # A container may have little shared memory; a regular temporary file is as good while it stays in the page cache.
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * size
    folder = _MEMORY if roomy else None
    try:
        if _nameless():
            with tempfile.TemporaryFile(dir=folder) as file:
                handle = os.dup(file.fileno())
            path = f"/proc/{os.getpid()}/fd/{handle}"
            os.truncate(handle, size)
        else:
            handle, path = tempfile.mkstemp(prefix="fedalloy-", dir=folder)
            os.truncate(handle, size)
            os.close(handle)
    except OSError as error:
        raise StorageError(f"{size:,} bytes of shared memory cannot be allocated: {error.strerror or error}") from error
    return mapped(path, shape, dtype), path


def withdraw(path: str) -> None:
    """Stop other processes from mapping a shared tensor; existing mappings stay valid. Call it once for each path."""
    if path.startswith("/proc/"):
        os.close(int(Path(path).name))
    else:
        os.unlink(path)


def _nameless() -> bool:
    """Return whether workers can open this process's files under /proc, which hardened systems prevent."""
    try:
        return os.stat("/proc/self/fd").st_uid == os.geteuid()
    except OSError:  # there is no /proc
        return False


def mapped(path: str, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
    """Map the tensor that another process shares under this path."""
    count = torch.Size(shape).numel()
    flat = torch.from_file(path, shared=True, size=max(1, count), dtype=dtype)
    return flat[:count].view(shape)


def size_of(body: Tree) -> int:
    """Return how many bytes a tree takes in an arena."""
    head, tensors = tree.header(body)
    return 8 + len(head) + sum(t.numel() * t.element_size() for t in tensors)


def write(body: Tree, arena: Tensor) -> None:
    """Copy a tree to the beginning of an arena, in the layout of `tree.encode`.

    >>> arena = torch.empty(1000, dtype=torch.uint8)
    >>> write({"n": 3, "w": torch.ones(2)}, arena)
    >>> read(arena)
    {'n': 3, 'w': tensor([1., 1.])}
    """
    head, tensors = tree.header(body)
    start = struct.pack("<Q", len(head)) + head
    arena[: len(start)] = torch.frombuffer(bytearray(start), dtype=torch.uint8)
    at = len(start)
    for t in tensors:
        raw = t.detach().contiguous().reshape(-1).view(torch.uint8)
        arena[at : at + raw.numel()] = raw
        at += raw.numel()


def read(arena: Tensor) -> dict[str, Any]:
    """Read the tree at the beginning of an arena; its tensors are views, valid until the arena is written again."""
    size = struct.unpack("<Q", arena[:8].numpy().tobytes())[0]
    head = json.loads(arena[8 : 8 + size].numpy().tobytes())
    flat = json.loads(head.pop("__metadata__")["leaves"])
    data = arena[8 + size :]
    for path, entry in head.items():
        begin, end = entry["data_offsets"]
        flat[path] = data[begin:end].view(_DTYPES[entry["dtype"]]).view(entry["shape"])
    return tree.unflatten(flat)
