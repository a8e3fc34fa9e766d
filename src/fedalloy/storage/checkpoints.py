"""Incremental checkpoints, in two generations that share no file.

The even rounds and the odd rounds form two chains. A checkpoint of round t is a safetensors file with the pieces that
changed since round t - 2, and a manifest. The manifest names the file of every piece and the hash of every file, all in
its own chain, so that no damaged file can destroy both generations. It is written last: this is the commit. A piece is
an entry of the server's state or of a client's memory. If an entry is a table of tables (the cache of clients' models),
each of these is a piece, so that a round writes only the models of the clients active in it or in the one before.

A checkpoint also holds the generation that its run would roll back to: the pieces of it that have changed since, under
the name `trusted`, and in the manifest its round and the pieces that it did not have yet.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedalloy.base import tree
from fedalloy.base.files import PRIVATE, as_json, read_file, refuse_executable, remove_file, write_atomically
from fedalloy.base.tree import Tree
from fedalloy.errors import CheckpointError, DataError
from fedalloy.federation.core import Generation, State

FORMAT = 3  # 2 had no generation to roll back to
CHAINS = 2
WASTE = 2  # a chain's files may be this many times larger than the data still in use

TRUSTED = "trusted"  # the prefix of the pieces of the generation to roll back to

Place = tuple[str, ...]  # the path of a piece in the tree


@dataclass
class Chain:
    """What the files of the even rounds, or those of the odd rounds, hold."""

    held: dict[Place, tuple[int, str]] = field(default_factory=dict)  # piece -> its round and its file
    files: dict[str, tuple[str, int]] = field(default_factory=dict)  # file -> its hash and size

    def add(self, file: str, data: bytes, fresh: set[Place], pieces: Mapping[Place, int]) -> None:
        """Note that a new file holds the new ones of these pieces, each with its round."""
        self.held = {place: (since, file if place in fresh else self.held[place][1]) for place, since in pieces.items()}
        used = {file, *(holder for _, holder in self.held.values())}
        known = {**self.files, file: (hashlib.sha256(data).hexdigest(), len(data))}
        self.files = {name: known[name] for name in known if name in used}

    def claim(self) -> dict[str, dict[str, Any]]:
        """The files, as a manifest lists them."""
        places: dict[str, list[str]] = {file: [] for file in self.files}
        for place, (_, file) in self.held.items():
            places[file].append("/".join(place))
        return {file: {"sha256": sha256, "pieces": places[file]} for file, (sha256, _) in self.files.items()}

    def worn(self, useful: Mapping[str, int], limit: int) -> set[str]:
        """The files with the least data in use, as many as must be dropped to keep the rest within a limit of bytes."""
        total = sum(size for _, size in self.files.values())
        found: set[str] = set()
        for file in sorted(self.files, key=lambda file: useful.get(file, 0) / self.files[file][1]):
            if total <= limit:
                break
            found.add(file)
            total -= self.files[file][1]
        return found


class Checkpoints:
    """The checkpoints of one run; it remembers which pieces are already on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: dict[Place, tuple[Any, int]] = {}  # piece -> its value, and the round of its last change
        self._chains = [Chain() for _ in range(CHAINS)]

    def commit(
        self,
        state: State,
        memories: Mapping[int, Tree],
        about: Mapping[str, Any] | None = None,
        trusted: Generation | None = None,
    ) -> None:
        """Make a round durable; `about` goes into the manifest. After this, a crash loses nothing of the round."""
        now = pieces_of(state, memories)
        earlier = None if trusted is None else Earlier.of(trusted, now)
        if earlier is not None:
            now |= {(TRUSTED, *place): value for place, value in earlier.pieces.items()}
        self._last = {place: (value, self._since(place, value, state.round)) for place, value in now.items()}
        chain, name = self._chains[state.round % CHAINS], f"{state.round:06d}"
        fresh = self._fresh(chain)
        data = tree.encode(assemble({place: now[place] for place in fresh}))
        write_atomically(self.folder / f"{name}.safetensors", data, PRIVATE)
        chain.add(name, data, fresh, {place: since for place, (_, since) in self._last.items()})
        claim = {"format": FORMAT, "round": state.round, **(about or {}), "files": chain.claim()}
        if earlier is not None:
            claim[TRUSTED] = {"round": earlier.round, "absent": sorted("/".join(place) for place in earlier.absent)}
        signed = {**claim, "sha256": hashlib.sha256(as_json(claim)).hexdigest()}
        write_atomically(self.folder / f"{name}.json", as_json(signed), PRIVATE)
        for file in self.of_chain(state.round):
            if file.stem not in (chain.files if file.suffix == ".safetensors" else (name,)):
                remove_file(file)

    def generations(self) -> list[Path]:
        """The manifests, newest first."""
        found = (path for path in self.folder.glob("*.json") if path.stem.isdecimal())
        return sorted(found, key=lambda path: int(path.stem), reverse=True)

    def of_chain(self, round: int) -> list[Path]:
        """The files of a round's chain, manifests first."""
        files = [*self.generations(), *self.folder.glob("[0-9]*.safetensors")]
        return [file for file in files if file.stem.isdecimal() and (int(file.stem) - round) % CHAINS == 0]

    def _since(self, place: Place, value: Any, round: int) -> int:
        # The same object has the same content: methods must not change their inputs in place. Numbers are always
        # written, since they are smaller than a reference to them.
        known, since = self._last.get(place, (None, round))
        return since if known is value and isinstance(value, Tensor | Mapping) else round

    def _fresh(self, chain: Chain) -> set[Place]:
        """The pieces that a chain lacks, and those that move because the rest of their file is no longer used."""
        sizes = {
            place: sum(tree.leaf_bytes(leaf) for _, leaf in tree.leaves({"piece": value}))
            for place, (value, _) in self._last.items()
        }
        there = {place for place, (_, since) in self._last.items() if chain.held.get(place, (None,))[0] == since}
        useful: Counter[str] = Counter()
        for place in there:
            useful[chain.held[place][1]] += sizes[place]
        worn = chain.worn(useful, WASTE * sum(sizes.values()) + (1 << 20))
        return {place for place in self._last if place not in there or chain.held[place][1] in worn}


@dataclass(frozen=True)
class Earlier:
    """How an earlier generation differs from a later one."""

    round: int
    pieces: Mapping[Place, Any]  # those with another value
    absent: frozenset[Place]  # those that did not exist yet

    @classmethod
    def of(cls, generation: Generation, now: Mapping[Place, Any]) -> Earlier:
        """The difference between a generation and these pieces; the same object has the same content."""
        then = pieces_of(generation.state, generation.memories)
        others = {place: value for place, value in then.items() if place not in now or now[place] is not value}
        return cls(generation.state.round, others, frozenset(now.keys() - then.keys()))

    def before(self, state: State, memories: Mapping[int, Tree]) -> Generation:
        """The earlier generation; it shares unchanged pieces with the later one."""
        now = {place: value for place, value in pieces_of(state, memories).items() if place not in self.absent}
        return Generation(*_generation(self.round, now | dict(self.pieces)))


@dataclass(frozen=True)
class Manifest:
    """The parts of a checkpoint; its files are intact if they have these hashes."""

    path: Path
    round: int
    files: Mapping[str, Mapping[str, Any]]  # file -> sha256, pieces
    about: Mapping[str, Any]

    def load(self) -> tuple[State, dict[int, Tree], Earlier | None]:
        """The state, the memories and what the run would roll back to; the hash of every file is checked."""
        found: dict[Place, Any] = {}
        for name, claim in self.files.items():
            file = self.path.parent / f"{int(name):06d}.safetensors"
            data = read_file(file)
            refuse_executable(file, data)
            if hashlib.sha256(data).hexdigest() != claim["sha256"]:
                raise DataError(f"the hash of {name}.safetensors is not the one in the manifest")
            whole = tree.decode(data)
            for path in claim["pieces"]:
                found[tuple(path.split("/"))] = _at(whole, path)
        state, memories = _generation(self.round, found)
        if TRUSTED not in self.about:
            return state, memories, None
        absent = frozenset(tuple(path.split("/")) for path in self.about[TRUSTED]["absent"])
        others = {place[1:]: value for place, value in found.items() if place[0] == TRUSTED}
        return state, memories, Earlier(self.about[TRUSTED]["round"], others, absent)


def read_checkpoint(path: Path) -> tuple[State, dict[int, Tree]]:
    """The state and the memories of a manifest's checkpoint."""
    state, memories, _ = read_manifest(path).load()
    return state, memories


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and check that it is intact."""
    data = read_file(path)
    refuse_executable(path, data)
    try:
        claim = json.loads(data)
        if claim.keys() == {"round", "pieces", "sha256"}:  # the first format
            hashes = claim["sha256"]
            files = {name: {"sha256": hashes[name], "pieces": places} for name, places in claim["pieces"].items()}
            return Manifest(path, claim["round"], files, {})
        unsigned = {key: value for key, value in claim.items() if key != "sha256"}
        if hashlib.sha256(as_json(unsigned)).hexdigest() != claim["sha256"]:
            raise DataError(f"{path.name} does not have the hash that it states")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path.name} is not a manifest") from error
    if claim["format"] > FORMAT:
        raise CheckpointError(
            f"'{path}' has the format {claim['format']}, but this version reads {FORMAT}; use the version that wrote it"
        )
    if claim["round"] != int(path.stem):
        raise DataError(f"{path.name} is the manifest of round {claim['round']}")
    about = {key: value for key, value in claim.items() if key not in ("format", "round", "files", "sha256")}
    return Manifest(path, claim["round"], claim["files"], about)


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
    """The tree made of these pieces."""
    root: dict[str, Any] = {}
    for path, value in found.items():
        node = root
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return root


def pieces_of(state: State, memories: Mapping[int, Tree]) -> dict[Place, Any]:
    """The pieces of a state and its memories."""
    return dict(pieces({"state": state.body, "memories": {str(k): m for k, m in memories.items()}}))


def _generation(round: int, found: Mapping[Place, Any]) -> tuple[State, dict[int, Tree]]:
    whole = assemble(found)
    return State(round, whole.get("state", {})), {int(k): m for k, m in whole.get("memories", {}).items()}


def _at(whole: Tree, path: str) -> Any:
    node: Any = whole
    for part in path.split("/"):
        node = node[part]
    return node
