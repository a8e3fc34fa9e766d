"""What a client remembers, in files of its own, addressed by content; the server knows only their digests.

Each generation is a file, written whole before the client answers. A message says from which generation to act, so that
an answer that was lost or set aside changes nothing, and a run that goes back to a checkpoint finds the memory of that
round. A generation goes when a later round says that nobody needs it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

from fedalloy import tree
from fedalloy.files import PRIVATE, make_folder, remove_file, temporary_of, write_atomically
from fedalloy.privacy import Spent
from fedalloy.tree import Tree

PRIVATE_FOLDER = 0o700
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{64})\.safetensors")
LEDGER_FILE = "privacy.safetensors"


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

    def spent(self) -> Spent:
        """What this client has spent of its privacy, whatever the server thinks."""
        path = self.folder / LEDGER_FILE
        return tree.decode(path.read_bytes()) if path.exists() else {}

    def spend(self, spent: Spent) -> None:
        """Note what was spent, before anything of it leaves the client."""
        make_folder(self.folder, PRIVATE_FOLDER)
        write_atomically(self.folder / LEDGER_FILE, tree.encode(spent), PRIVATE)
