"""Memory that processes share: tensors in a mapped file, and trees written into one and read where they lie."""

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
    """A tensor whose memory another process can map, and the path under which it does until `withdraw`.

    On Linux the path leads to an open file of this process that has no name: whatever ends the process, nothing stays.
    Elsewhere it is a file that stays until it is withdrawn.
    """
    size = max(1, torch.Size(shape).numel()) * dtype.itemsize
    # A container may have little shared memory; an ordinary temporary file serves as well while it stays in the cache.
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
        raise StorageError(f"{size:,} bytes of shared memory cannot be had: {error.strerror or error}") from error
    return mapped(path, shape, dtype), path


def withdraw(path: str) -> None:
    """Let nobody else map a shared tensor from now on; who has mapped it keeps it. Call it once for each path."""
    if path.startswith("/proc/"):
        os.close(int(Path(path).name))
    else:
        os.unlink(path)


def _nameless() -> bool:
    """Whether workers can open this process's files under /proc: it belongs to the user, unless secrets are guarded."""
    try:
        return os.stat("/proc/self/fd").st_uid == os.geteuid()
    except OSError:  # there is no /proc
        return False


def mapped(path: str, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
    """The tensor that another process shares under this path."""
    count = torch.Size(shape).numel()
    flat = torch.from_file(path, shared=True, size=max(1, count), dtype=dtype)
    return flat[:count].view(shape)


def size_of(body: Tree) -> int:
    """How many bytes a tree takes in an arena."""
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
    """The tree at the beginning of an arena; its tensors are views, valid until the arena is written again."""
    size = struct.unpack("<Q", arena[:8].numpy().tobytes())[0]
    head = json.loads(arena[8 : 8 + size].numpy().tobytes())
    flat = json.loads(head.pop("__metadata__")["leaves"])
    data = arena[8 + size :]
    for path, entry in head.items():
        begin, end = entry["data_offsets"]
        flat[path] = data[begin:end].view(_DTYPES[entry["dtype"]]).view(entry["shape"])
    return tree.unflatten(flat)
