"""The run folder: `run.json` (everything needed to repeat the run), `rounds.jsonl`, and a checkpoint per round.

A round is a transaction: its record is appended, then its checkpoint's manifest is written as the commit. The manifest
holds the hashes of everything that belongs to it, including the records and the experiment. Two generations are kept,
which share no file; the records and `run.json` have a second copy beside them. Reading changes nothing. To write, a
process holds the folder's lock and first restores the folder to its state after the newest intact checkpoint: damaged
files are moved to `quarantine/`, records of later rounds are dropped. Files are readable by their owner only, since
models can reveal data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedalloy.base.files import (
    NO_LINKS,
    PRIVATE,
    append_line,
    as_json,
    locked,
    make_folder,
    move,
    read_file,
    remove_file,
    temporary_of,
    write_atomically,
)
from fedalloy.base.tree import Tree
from fedalloy.errors import CheckpointError, DataError, FedalloyError, SecurityError, StorageError, UsageError
from fedalloy.federation.core import Generation, State
from fedalloy.storage.checkpoints import Checkpoints, Earlier, Manifest, read_manifest
from fedalloy.storage.results import copy_of, read, read_meta

Say = Callable[[str], None]

PRIVATE_FOLDER = 0o700
FREE = frozenset({"rounds", "engine", "workers", "memory", "methods", "published"})  # do not change any bit of a run
METHOD_PARTS = frozenset({"method", "aggregation", "cache"})  # of an experiment: all that a method is made of
DAMAGE = (DataError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError)


class Store:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = folder / "run.json"
        self.descriptions = (self.meta, copy_of(self.meta))  # the copy is written last, removed first
        self.rounds = folder / "rounds.jsonl"
        self.checkpoints = folder / "checkpoints"
        self.logs = (self.rounds, self.checkpoints / "rounds.jsonl")  # the same content
        self.quarantine = folder / "quarantine"
        self.lock = folder / "run.lock"
        self._saved = Checkpoints(self.checkpoints)
        self._experiment = ""
        self._whole: Manifest | None = None  # of the restored checkpoint,
        self._kept = b""  # and the records of its rounds
        self._earlier: Earlier | None = None  # what its run would roll back to
        self._hash, self._bytes = hashlib.sha256(), 0  # of all records so far

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes here; the folder is removed if nothing was written."""
        make_folder(self.folder, PRIVATE_FOLDER)
        for inner in (self.checkpoints, self.quarantine):
            if inner.is_symlink():  # files written there would be elsewhere
                raise SecurityError(f"'{inner}' is a link; {NO_LINKS}")
        try:
            with locked(self.lock):
                yield
        finally:
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def create(self, meta: Mapping[str, Any]) -> None:
        """Create the folder of a new run; a folder with a run or other files in it is refused."""
        if begun(self.folder):
            raise UsageError(f"'{self.folder}' already holds a run; resume it with `fedalloy resume {self.folder}`")
        if any(log.exists() for log in self.logs) or self._saved.generations():
            raise UsageError(f"'{self.folder}' holds the remains of a run; choose another folder")
        # A process that was killed right here may have left these.
        ours = {self.lock, self.checkpoints, self.quarantine, temporary_of(self.meta)}
        if others := sorted(path.name for path in self.folder.glob("*") if path not in ours):
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise UsageError(
                f"'{self.folder}' is not empty and holds no run: it has '{others[0]}'{more}; choose another folder"
            )
        content = as_json(meta)  # before the folder is made, so that an error leaves nothing behind
        self._experiment = experiment_digest(meta)
        try:
            make_folder(self.checkpoints, PRIVATE_FOLDER)
            for file in self.descriptions:
                write_atomically(file, content, PRIVATE)
        except StorageError:
            self.remove()
            raise

    def remove(self) -> None:
        """Undo `create` for a run that has not completed a round; other files in the folder stay."""
        copy = copy_of(self.meta)
        if any(path != copy for path in self.checkpoints.glob("*")):
            return
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
            self.checkpoints.rmdir()
            self.meta.unlink(missing_ok=True)

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Rewrite `run.json` and its copy if their content has changed."""
        content = as_json(meta)
        for file in self.descriptions:
            if _content(file) != content:
                write_atomically(file, content, PRIVATE)

    def record(self, line: Mapping[str, Any]) -> None:
        """Append a round's record."""
        text = _line(line)
        for log in self.logs:
            append_line(log, text)
        self._add(f"{text}\n".encode())

    def commit(self, state: State, memories: Mapping[int, Tree], trusted: Generation | None = None) -> None:
        """Make a round durable, and what the run would roll back to; after this, a crash loses nothing of it."""
        records = {"bytes": self._bytes, "sha256": self._hash.hexdigest()}
        self._saved.commit(state, memories, {"experiment": self._experiment, "records": records}, trusted)

    def restore(self, say: Say = lambda _: None) -> tuple[State, dict[int, Tree]] | None:
        """The newest intact checkpoint, or None if no round was completed; nothing is written."""
        self._experiment = experiment_digest(read_meta(self.meta))
        paths = self._saved.generations()
        kind: type[FedalloyError] = CheckpointError
        for path in paths:
            try:
                manifest = read_manifest(path)
                if manifest.about.get("experiment", self._experiment) != self._experiment:
                    raise DataError("it belongs to a different experiment than run.json")
                self._kept = self._records_of(manifest)
                state, memories, self._earlier = manifest.load()
            except DAMAGE as error:
                say(f"the checkpoint of round {int(path.stem)} cannot be used: {error}")
                kind = SecurityError if isinstance(error, SecurityError) else kind
                continue
            self._whole = manifest
            return state, memories
        if paths:
            raise kind(f"no checkpoint in '{self.checkpoints}' is intact; start again in another folder")
        if any(_content(log).count(b"\n") > 1 for log in self.logs):  # one may have been written before its commit
            raise CheckpointError(
                f"'{self.folder}' has records of several rounds but no checkpoint; start again in another folder"
            )
        return None

    def trusted(self, state: State, memories: Mapping[int, Tree]) -> Generation | None:
        """What the restored run would roll back to; it shares unchanged entries with these."""
        return None if self._earlier is None else self._earlier.before(state, memories)

    def rewind(self, say: Say = lambda _: None) -> list[dict[str, Any]]:
        """Bring the folder back to the restored round; returns the records up to it."""
        for path in (self.meta, *self.logs):
            remove_file(temporary_of(path))
        for path in self.checkpoints.glob(temporary_of(Path("*")).name):
            remove_file(path)
        for path in self._saved.generations():
            if self._whole is not None and int(path.stem) > self._whole.round:
                make_folder(self.quarantine, PRIVATE_FOLDER)
                for file in self._saved.of_chain(int(path.stem)):
                    if file.stem not in self._whole.files:
                        move(file, self.quarantine)
                say(f"the checkpoint of round {int(path.stem)} was moved to '{self.quarantine}'")
        for log in self.logs:
            if _content(log) != self._kept:
                write_atomically(log, self._kept, PRIVATE)
        kept = self._kept.splitlines()
        self._add(self._kept)
        self._kept = b""
        return [json.loads(line) for line in kept]

    def manifests(self) -> list[Path]:
        """The manifests of the checkpoints, newest first, intact or not."""
        return self._saved.generations()

    def records(self) -> list[dict[str, Any]]:
        """The records of the completed rounds, without a truncated last line."""
        return [dict(record) for record in read(self.folder).rounds]

    def _add(self, lines: bytes) -> None:
        self._hash.update(lines)
        self._bytes += len(lines)

    def _records_of(self, manifest: Manifest) -> bytes:
        """The records of a checkpoint's rounds, from whichever copy is intact."""
        if "records" not in manifest.about:  # the first format
            found = [record for record in self.records() if record["round"] <= manifest.round]
            there = {record["round"] for record in found}
            lacking = next((number for number in range(1, manifest.round + 1) if number not in there), None)
            if lacking is not None:
                raise DataError(f"{self.rounds.name} lacks round {lacking}")
            return "".join(f"{_line(record)}\n" for record in found).encode()
        claim = manifest.about["records"]
        for log in self.logs:
            lines = _content(log)[: claim["bytes"]]
            if hashlib.sha256(lines).hexdigest() == claim["sha256"]:
                return lines
        raise DataError(f"the records in {self.rounds.name} do not match the checkpoint")


def begun(folder: str | Path) -> bool:
    """Whether a folder holds a run, even one that has lost its `run.json`."""
    meta = Path(folder) / "run.json"
    return meta.exists() or copy_of(meta).exists()


def described(folder: str | Path, say: Say = lambda _: None) -> Mapping[str, Any]:
    """The content of `run.json`, if it is complete enough to resume the run."""
    meta = read_meta(Path(folder) / "run.json", say)
    for part in ("digests", "experiment", "model", "versions"):
        if not isinstance(meta.get(part), Mapping):
            raise DataError(f"{Path(folder) / 'run.json'} lacks {part}; the run cannot be resumed")
    return meta


def experiment_digest(meta: Mapping[str, Any]) -> str:
    """A fingerprint of what a run computes: its data and its experiment, without the keys that change no bit.

    >>> experiment_digest({"experiment": {"seed": 1, "rounds": 2}}) == experiment_digest({"experiment": {"seed": 1}})
    True
    """
    told = {key: value for key, value in meta.get("experiment", {}).items() if key not in FREE}
    plain = json.loads(as_json([told, meta.get("digests")]))  # as it is read back
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _content(file: Path) -> bytes:
    """The content of a copy of the records or of `run.json`; empty if it cannot be read."""
    try:
        return read_file(file)
    except (OSError, DataError):
        return b""


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False, separators=(",", ":"))
