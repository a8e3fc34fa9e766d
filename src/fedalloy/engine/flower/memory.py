"""What a client remembers, in files of its own, addressed by content; the server knows only their digests.

Each generation is a file, written whole before the client answers. A message says from which generation to act, so that
an answer that was lost or set aside changes nothing, and a run that goes back to a checkpoint finds the memory of that
round. A generation goes when a later round says that nobody needs it.

Under [privacy] there is also a ledger of what the client has spent, which belongs to no generation: it only grows, and
counts whatever the server says. Steps are written there, durably, before the first of them draws any noise: a kill at
any moment can make a client pay for work that never left it, and never the reverse.
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
        """Keep a new generation, durably; returns its digest. An empty memory needs no file."""
        if not keep:
            return ""
        data = tree.encode(keep)
        digest = hashlib.sha256(data).hexdigest()
        make_folder(self.folder, PRIVATE_FOLDER)
        write_atomically(self.folder / f"{round:06d}-{digest}.safetensors", data, PRIVATE)
        return digest

    def read(self, digest: str) -> Tree | None:
        """A generation, or None if no whole file holds it."""
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
        """Remove the generations of rounds before this one that are not needed, and what crashes left half-written.

        Only of earlier rounds: a message that is carried out late does not know what was written since.
        """
        for made, digest, path in self.generations():
            if made < round and digest not in needed:
                remove_file(path)
        for path in self.folder.glob(temporary_of(Path("*.safetensors")).name):
            if (found := _NAME.fullmatch(path.name[1 : -len(".part")])) and int(found[1]) < round:
                remove_file(path)

    def generations(self) -> list[tuple[int, str, Path]]:
        """The round, the digest and the file of each generation, the oldest first."""
        if not self.folder.is_dir():
            return []
        found = ((_NAME.fullmatch(path.name), path) for path in sorted(self.folder.iterdir()))
        return [(int(name[1]), name[2], path) for name, path in found if name is not None]

    def spent(self, *, begun: bool = False) -> Spent:
        """What this client has spent of its privacy; nothing, if it has not `begun` and there is no memory either."""
        try:
            data = (self.folder / LEDGER_FILE).read_bytes()
        except FileNotFoundError:
            if begun or self.generations():
                raise LedgerError("is missing, though this client has trained before") from None
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
        """Change what was spent, durably, before anything is done for it; messages at the same time take turns."""
        make_folder(self.folder, PRIVATE_FOLDER)
        with self._alone():
            before = self.spent()
            after = change(before)
            if larger(before, after) != after:
                raise LedgerError("would lose steps that were taken")
            if after != before or not (self.folder / LEDGER_FILE).exists():
                content = {"spent": after, "digest": tree.digest(after)}
                write_atomically(self.folder / LEDGER_FILE, tree.encode(content), PRIVATE)
        return after

    @contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # ends with the process, however it ends
            yield
        finally:
            os.close(handle)


class LedgerError(DataError):
    """A client that cannot know what it has spent of its privacy, and so may not train."""

    def __init__(self, fault: str) -> None:
        super().__init__(
            f"its privacy ledger, {LEDGER_FILE}, {fault}; it does not train until the file is back from a backup"
        )
