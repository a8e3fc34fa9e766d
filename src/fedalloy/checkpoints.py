"""Checkpoints that cost what has changed: each holds the pieces that are new, and says which files hold the others.

A checkpoint of round t is a safetensors file with the pieces that changed since the last commit, and a manifest. The
manifest names the file of every piece and the hash of every file, and is written last, so that it is the commit. A
piece is an entry of the server's state or of a client's memory; where an entry is a table of tables (the cache of
clients' models), each of these is a piece, so that a round writes the models of its active clients only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedalloy import tree
from fedalloy.core import State
from fedalloy.errors import DataError
from fedalloy.files import write_atomically, write_json
from fedalloy.tree import Tree

KEPT = 2  # generations
WASTE = 3  # when the files hold so many times what is still of use, everything is written anew

Place = tuple[str, ...]  # of a piece in the tree


class Checkpoints:
    """The checkpoints of one run; it remembers which pieces are already on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Place, tuple[Any, str]] = {}  # piece -> what it is, and the file that holds it
        self._files: dict[str, tuple[str, int]] = {}  # file -> its hash and size

    def commit(self, state: State, memories: Mapping[int, Tree]) -> None:
        """Make a round durable; after this, a crash loses nothing of it."""
        now = dict(pieces({"state": state.body, "memories": {str(k): m for k, m in memories.items()}}))
        name = f"{state.round:06d}"
        if self._wasteful(now):
            self._known.clear()
        fresh = {path: value for path, value in now.items() if not self._has(path, value)}
        data = tree.encode(assemble(fresh))
        write_atomically(self.folder / f"{name}.safetensors", data)
        self._files[name] = (hashlib.sha256(data).hexdigest(), len(data))
        self._known = {path: (value, name if path in fresh else self._known[path][1]) for path, value in now.items()}
        held: dict[str, list[str]] = {name: []}
        for path, (_, file) in self._known.items():
            held.setdefault(file, []).append("/".join(path))
        self._files = {file: self._files[file] for file in held}
        manifest = {"round": state.round, "pieces": held, "sha256": {f: self._files[f][0] for f in held}}
        write_json(self.folder / f"{name}.json", manifest)
        self._tidy()

    def generations(self) -> list[Path]:
        """The manifests, newest first."""
        return sorted(self.folder.glob("*.json"), reverse=True)

    def _has(self, path: Place, value: Any) -> bool:
        # The same object is the same content: nothing that a method was given may be changed in place. A number is
        # smaller than the note of where it lies.
        return isinstance(value, Tensor | Mapping) and path in self._known and self._known[path][0] is value

    def _wasteful(self, now: Mapping[Place, Any]) -> bool:
        useful = sum(tree.leaf_bytes(leaf) for value in now.values() for _, leaf in tree.leaves({"piece": value}))
        return sum(size for _, size in self._files.values()) > WASTE * useful + (1 << 20)

    def _tidy(self) -> None:
        manifests = self.generations()
        needed = {file for manifest in manifests[:KEPT] for file in json.loads(manifest.read_bytes())["pieces"]}
        for manifest in manifests[KEPT:]:
            manifest.unlink()
        for file in self.folder.glob("*.safetensors"):
            if file.stem not in needed:
                file.unlink()


def read_checkpoint(manifest: Path) -> tuple[State, dict[int, Tree]]:
    """The state and the memories that a manifest stands for, every file's hash checked."""
    claim = json.loads(manifest.read_text(encoding="utf-8"))
    found: dict[Place, Any] = {}
    for name, paths in claim["pieces"].items():
        data = (manifest.parent / f"{name}.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != claim["sha256"][name]:
            raise DataError(f"the hash of {name}.safetensors is not the one in the manifest")
        whole = tree.decode(data)
        for path in paths:
            found[tuple(path.split("/"))] = _at(whole, path)
    saved = assemble(found)
    return State(claim["round"], saved.get("state", {})), {int(k): m for k, m in saved.get("memories", {}).items()}


def pieces(root: Tree) -> Iterator[tuple[Place, Any]]:
    """The pieces of a checkpoint with their paths.

    >>> [path for path, _ in pieces({"state": {"n": 1, "cache": {"7": {"w": 1.0}, "9": {"w": 2.0}}}})]
    [('state', 'n'), ('state', 'cache', '7'), ('state', 'cache', '9')]
    """
    for top, entries in root.items():
        for key, value in entries.items():
            if isinstance(value, Mapping) and value and all(isinstance(v, Mapping) for v in value.values()):
                for inner, part in value.items():
                    yield (top, key, inner), part
            else:
                yield (top, key), value


def assemble(found: Mapping[Place, Any]) -> dict[str, Any]:
    """The tree that consists of these pieces."""
    root: dict[str, Any] = {}
    for path, value in found.items():
        node = root
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return root


def _at(whole: Tree, path: str) -> Any:
    node: Any = whole
    for part in path.split("/"):
        node = node[part]
    return node
