"""The run folder: `run.json` (everything needed to repeat the run), `rounds.jsonl`, and a checkpoint per round.

A checkpoint is a safetensors file and a manifest with its hash; the manifest is written last, so that it is the
commit. The two newest are kept; a damaged one is passed over with a sentence, and the one before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedalloy import tree
from fedalloy.core import State
from fedalloy.errors import CheckpointError, DataError, UsageError
from fedalloy.files import append_line, as_json, make_folder, write_atomically, write_json
from fedalloy.results import read
from fedalloy.tree import Tree

KEPT = 2

Say = Callable[[str], None]


class Store:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = folder / "run.json"
        self.rounds = folder / "rounds.jsonl"
        self.checkpoints = folder / "checkpoints"

    def create(self, meta: Mapping[str, Any]) -> None:
        """Make the folder for a new run; a folder with a run in it is refused."""
        if self.meta.exists():
            raise UsageError(f"'{self.folder}' holds a run; `fedalloy resume {self.folder}` goes on with it")
        if self.rounds.exists() or self.checkpoints.exists():
            raise UsageError(f"'{self.folder}' holds the remains of a run; choose another folder")
        content = as_json(meta)  # before the folder is made: what cannot be written leaves nothing behind
        make_folder(self.checkpoints)
        write_atomically(self.meta, content)

    def remove(self) -> None:
        """Take back `create` for a run that has not completed a round; other files in the folder stay."""
        with contextlib.suppress(OSError):
            self.checkpoints.rmdir()
            self.meta.unlink()
            self.folder.rmdir()

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Write `run.json` anew, if it says something else."""
        if self.meta.read_bytes() != (content := as_json(meta)):
            write_atomically(self.meta, content)

    def record(self, line: Mapping[str, Any]) -> None:
        """Append a round's record."""
        append_line(self.rounds, _line(line))

    def commit(self, state: State, memories: Mapping[int, Tree]) -> None:
        """Make a round durable; after this, a crash loses nothing of it."""
        name = f"{state.round:06d}"
        data = tree.encode(
            {"round": state.round, "state": state.body, "memories": {str(k): m for k, m in memories.items()}}
        )
        write_atomically(self.checkpoints / f"{name}.safetensors", data)
        write_json(
            self.checkpoints / f"{name}.json", {"round": state.round, "sha256": hashlib.sha256(data).hexdigest()}
        )
        for manifest in sorted(self.checkpoints.glob("*.json"))[:-KEPT]:
            manifest.unlink()
            manifest.with_suffix(".safetensors").unlink(missing_ok=True)

    def restore(self, say: Say = lambda _: None) -> tuple[State, dict[int, Tree]] | None:
        """The newest whole checkpoint, or None if no round was completed; nothing is written."""
        recorded = {record["round"] for record in self.records()}
        manifests = sorted(self.checkpoints.glob("*.json"), reverse=True)
        for manifest in manifests:
            try:
                saved = _read(manifest)
                if lacking := set(range(1, saved["round"] + 1)) - recorded:
                    raise DataError(f"{self.rounds.name} lacks round {min(lacking)}")
            except (DataError, OSError, ValueError, KeyError, TypeError) as error:
                say(f"the checkpoint of round {manifest.stem.lstrip('0')} cannot be used: {error}")
                continue
            return State(saved["round"], saved["state"]), {int(k): m for k, m in saved["memories"].items()}
        if manifests:
            raise CheckpointError(f"no checkpoint in '{self.checkpoints}' is whole; start again in another folder")
        return None

    def records(self) -> list[dict[str, Any]]:
        """The records of the completed rounds; a torn last line is not one of them."""
        return [dict(record) for record in read(self.folder).rounds]

    def forget_after(self, round: int) -> list[dict[str, Any]]:
        """Remove the records of later rounds and what was torn; returns those that stay."""
        kept = [record for record in self.records() if record["round"] <= round]
        content = "".join(f"{_line(record)}\n" for record in kept).encode()
        if self.rounds.exists() and self.rounds.read_bytes() != content:
            write_atomically(self.rounds, content)
        return kept


def described(folder: str | Path) -> Mapping[str, Any]:
    """What `run.json` says, if that is enough to go on with the run."""
    meta = read(folder).meta
    missing = sorted({"experiment", "model", "digests", "versions"} - meta.keys())
    if missing:
        raise DataError(f"{Path(folder) / 'run.json'} says nothing of {missing[0]}; the run cannot be gone on with")
    return meta


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False, separators=(",", ":"))


def _read(manifest: Path) -> dict[str, Any]:
    claim = json.loads(manifest.read_text(encoding="utf-8"))
    data = manifest.with_suffix(".safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != claim["sha256"]:
        raise DataError("its hash is not the one in its manifest")
    return tree.decode(data)
