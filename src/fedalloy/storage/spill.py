"""Moves clients' models and memories beyond a budget to memory-mapped files: the same bits, on disk instead of in RAM.

The cache of clients' last models and the clients' memories grow with every client that was ever active. Entries that do
not fit are moved when they arrive. A state stays a tree of tensors; some of them are then views of a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.errors import StorageError, UsageError
from fedalloy.federation.core import Generation, State
from fedalloy.storage.checkpoints import Place, assemble, pieces_of

SEGMENT = 1 << 28  # bytes of a file, unless one entry needs more
ALIGNMENT = 64  # bytes, as torch aligns tensors in RAM


def parse_size(size: int | str) -> int:
    """A size in bytes, given as a number or as a string with a unit.

    >>> parse_size("4GB"), parse_size("1.5 GiB"), parse_size(1000)
    (4000000000, 1610612736, 1000)
    """
    found = re.fullmatch(r" *([0-9]{1,15}(?:\.[0-9]+)?) *(?:([KMGT])(I?))?B? *", str(size).upper())
    if found is None:
        raise UsageError(f"memory = {size!r} is not a size; write for example '512MB', '4GB' or '2GiB'")
    number, prefix, binary = found.groups(default="")
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix or " "))


class Spill:
    """Keeps clients' models and memories within a budget of bytes of RAM; None means no limit.

    The files are in `folder`, by default the system's temporary folder, and vanish with the last tensor in them.

    >>> Spill(0).hold(State(1, {"cache": {"7": {"w": torch.ones(2)}}}), {}).body
    {'cache': {'7': {'w': tensor([1., 1.])}}}
    """

    def __init__(self, budget: int | None, folder: str | Path | None = None) -> None:
        self.budget = budget
        self.folder = folder
        self.segments: list[Segment] = []
        self._known: dict[int, tuple[Tree, int]] = {}  # id of an entry -> the entry, and its bytes in RAM

    def hold(self, state: State, memories: MutableMapping[int, Tree], trusted: Generation | None = None) -> State:
        """The same state, and in `memories` the same memories, with new entries beyond the budget in a file.

        An entry is moved when it arrives or never, because checkpoints know an old entry by its identity. Those of the
        generation to go back to have arrived before; what of them is in RAM still counts.
        """
        if self.budget is None:
            return state
        now = pieces_of(state, memories)
        entries = _entries(now)
        older = {} if trusted is None else _entries(pieces_of(trusted.state, trusted.memories))
        there = (*entries.values(), *older.values())
        self._known = {id(e): self._known[id(e)] for e in there if id(e) in self._known}
        in_ram = sum(size for _, size in self._known.values())
        moved: dict[int, Tree] = {}  # id of an entry -> where it is now; clients may share one
        for place, entry in entries.items():
            if id(entry) not in self._known and id(entry) not in moved:
                size = sum(tree.leaf_bytes(t) for t in _tensors(entry))
                if size and in_ram + size > self.budget:
                    moved[id(entry)] = self._moved(entry)
                else:
                    self._known[id(entry)] = (entry, size)
                    in_ram += size
            now[place] = moved.get(id(entry), entry)
        if not moved:
            return state
        self._known |= {id(entry): (entry, 0) for entry in moved.values()}
        whole = assemble(now)
        memories.update({int(k): m for k, m in whole.get("memories", {}).items()})
        return State(state.round, whole.get("state", {}))

    def relax(self) -> None:
        """Release the RAM of moved entries, and the file pages that reading and writing brought into RAM."""
        for segment in self.segments:
            segment.map.madvise(mmap.MADV_DONTNEED)  # the pages belong to the file, so nothing is lost
        if self.segments:
            with contextlib.suppress(OSError, AttributeError):  # glibc keeps freed memory until it is told otherwise
                ctypes.CDLL("libc.so.6").malloc_trim(0)

    def _moved(self, entry: Tree) -> Tree:
        room = [tree.leaf_bytes(t) + -tree.leaf_bytes(t) % ALIGNMENT for t in _tensors(entry)]
        size = sum(room) + -sum(room) % mmap.PAGESIZE
        slot = next((slot for segment in self.segments if (slot := segment.take(size)) is not None), None)
        if slot is None:
            self.segments.append(Segment(self.folder or _disk_folder(), max(size, SEGMENT)))
            slot = self.segments[-1].take(size)
        assert slot is not None
        return _copied(entry, iter(slot[: sum(room)].split_with_sizes(room)))


class Segment:
    """An anonymous mapped file, and its free parts."""

    def __init__(self, folder: str | Path, size: int) -> None:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.truncate(size)
                if sys.platform == "linux":
                    # Space is reserved now: if the disk were full when a page is written, the process would be killed.
                    os.posix_fallocate(file.fileno(), 0, size)
                self.map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise StorageError(
                f"cannot reserve {size:,} bytes for clients' models in '{folder}': {error.strerror or error}; free "
                "space, set TMPDIR to another folder, or raise `memory` in the experiment"
            ) from error
        self._free = [(0, size)]
        self._returned: list[tuple[int, int]] = []  # also free, but not yet merged with their neighbours

    def take(self, size: int) -> Tensor | None:
        """A free part of this size, if there is one; it is freed when nothing refers to it or a view of it."""
        while self._returned:
            start, end = self._returned.pop()
            for other in [part for part in self._free if part[1] == start or part[0] == end]:
                self._free.remove(other)
                start, end = min(start, other[0]), max(end, other[1])
            self._free.append((start, end))
            self._free.sort()  # lowest first, so that the rest of a file stays unused
        for i, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[i : i + 1] = [(start + size, end)] if end - start > size else []
                window = memoryview(self.map)[start : start + size]
                # Not when an entry leaves the state, of which a method may have kept a tensor elsewhere; and it is
                # only noted, because it may happen at any moment and in any thread.
                weakref.finalize(window, self._returned.append, (start, start + size)).atexit = False
                return torch.frombuffer(window, dtype=torch.uint8)
        return None


def _entries(now: Mapping[Place, Any]) -> dict[Place, Any]:
    """The entries that grow with the number of clients."""
    return {place: entry for place, entry in now.items() if len(place) == 3 or place[0] == "memories"}


def _tensors(entry: Tree) -> Iterator[Tensor]:
    """The tensors in RAM; those on another device stay there."""
    return (leaf for _, leaf in tree.leaves(entry) if isinstance(leaf, Tensor) and leaf.is_cpu)


def _copied(entry: Tree, rooms: Iterator[Tensor]) -> dict[str, Any]:
    copy = dict(entry)
    for key, value in entry.items():
        if isinstance(value, Mapping):
            copy[key] = _copied(value, rooms)
        elif isinstance(value, Tensor) and value.is_cpu:
            flat = next(rooms)[: tree.leaf_bytes(value)].view(value.dtype)
            strides = torch.empty_like(value, device="meta").stride()  # the tensor keeps its memory layout
            copy[key] = flat.as_strided(value.shape, strides).copy_(value)
    return copy


def _disk_folder() -> str:
    """The system's temporary folder, or another one if that is in RAM."""
    usual = tempfile.gettempdir()
    return next((f for f in (usual, "/var/tmp") if os.path.isdir(f) and not _in_ram(f)), usual)


def _in_ram(folder: str) -> bool:
    table = Path("/proc/self/mountinfo")  # Linux only, as are temporary folders in RAM by default
    device = os.stat(folder).st_dev
    mounts = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    kinds = {mount[2]: mount[mount.index("-") + 1] for mount in mounts}
    return kinds.get(f"{os.major(device)}:{os.minor(device)}") in ("tmpfs", "ramfs")
