"""A client's memory in files addressed by content; the server only knows their digests.

Each generation is a file, written completely before the client answers. A message says from which generation to act.
Therefore an answer that was lost or set aside changes nothing, and a run that goes back to a checkpoint finds the
memory of that round. A generation is removed when a later round says that it is no longer needed.

Under [privacy] there is also a ledger of what the client has spent, which belongs to no generation: it only grows, and
counts regardless of what the server says. Steps are written to it, durably, before the first of them draws any noise: a
kill at any moment can charge a client for work that never left it, but never the reverse.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedalloy.base import tree
from fedalloy.base.files import PRIVATE, make_folder, remove_file, temporary_of, write_atomically
from fedalloy.base.tree import Tree
from fedalloy.errors import DataError
from fedalloy.train.privacy import Spent, larger

PRIVATE_FOLDER = 0o700
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{64})\.safetensors")
LEDGER_FILE, LOCK_FILE = "privacy.safetensors", "privacy.lock"


class Memory:
    """One client's generations of memory in a folder.

    >>> import tempfile
    >>> memory = Memory(Path(tempfile.mkdtemp()) / "3")
    >>> digest = memory.write(1, {"n": 5})
    >>> memory.read(digest), memory.read(""), memory.read("0" * 64)
    ({'n': 5}, {}, None)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, round: int, keep: Tree) -> str:
        """Store a new generation durably and return its digest; an empty memory needs no file."""
        if not keep:
            return ""
        data = tree.encode(keep)
        digest = hashlib.sha256(data).hexdigest()
        make_folder(self.folder, PRIVATE_FOLDER)
        write_atomically(self.folder / f"{round:06d}-{digest}.safetensors", data, PRIVATE)
        return digest

    def read(self, digest: str) -> Tree | None:
        """Read a generation, or return None if no intact file contains it."""
        if not digest:
            return {}
        for _, other, path in self.generations():
            if other == digest:
                try:
                    data = path.read_bytes()
                except OSError:
                    continue
                if hashlib.sha256(data).hexdigest() == digest:
                    return tree.decode(data)
        return None

    def forget(self, round: int, needed: Collection[str]) -> None:
        """Remove generations of earlier rounds that are not needed, and partial files left by crashes.

        Only earlier rounds are removed, since a late message does not know what was written after it.
        """
        for made, digest, path in self.generations():
            if made < round and digest not in needed:
                remove_file(path)
        for path in self.folder.glob(temporary_of(Path("*.safetensors")).name):
            if (found := _NAME.fullmatch(path.name[1 : -len(".part")])) and int(found[1]) < round:
                remove_file(path)

    def generations(self) -> list[tuple[int, str, Path]]:
        """Return the round, the digest and the file of each generation, the oldest first."""
        if not self.folder.is_dir():
            return []
        found = ((_NAME.fullmatch(path.name), path) for path in sorted(self.folder.iterdir()))
        return [(int(name[1]), name[2], path) for name, path in found if name is not None]

    def spent(self, *, begun: bool = False) -> Spent:
        """Return what this client has spent of its privacy; nothing if it has not `begun` and has no memory."""
        try:
            data = (self.folder / LEDGER_FILE).read_bytes()
        except FileNotFoundError:
            if begun or self.generations():
                raise LedgerError("is missing although this client has trained before") from None
            return {}
        except OSError as error:
            raise LedgerError(f"cannot be read: {error.strerror}") from error
        try:
            found = tree.decode(data)
            if found["digest"] == tree.digest(found["spent"]):
                spent: Spent = found["spent"]
                return spent
        except (DataError, LookupError, TypeError, AttributeError) as error:
            raise LedgerError("is damaged") from error
        raise LedgerError("is damaged")

    def charge(self, change: Callable[[Spent], Spent]) -> Spent:
        """Record spending durably before the work is done; concurrent messages take turns."""
        make_folder(self.folder, PRIVATE_FOLDER)
        with self._alone():
            before = self.spent()
            after = change(before)
            if larger(before, after) != after:
                raise LedgerError("would lose recorded steps")
            if after != before or not (self.folder / LEDGER_FILE).exists():
                content = {"spent": after, "digest": tree.digest(after)}
                write_atomically(self.folder / LEDGER_FILE, tree.encode(content), PRIVATE)
        return after

    @contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # released when the process ends for any reason
            yield
        finally:
            os.close(handle)


class LedgerError(DataError):
    """A client does not know what it has spent of its privacy, so it must not train."""

    def __init__(self, fault: str) -> None:
        super().__init__(
            f"its privacy ledger, {LEDGER_FILE}, {fault}; it does not train until the file is restored from a backup"
        )
