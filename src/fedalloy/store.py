"""The run folder: `run.json` (everything needed to repeat the run), `rounds.jsonl`, and a checkpoint per round.

The two newest checkpoints are kept; a damaged one is passed over with a sentence, and the one before it is used.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedalloy.checkpoints import Checkpoints, read_checkpoint
from fedalloy.core import State
from fedalloy.errors import CheckpointError, DataError, UsageError
from fedalloy.files import append_line, as_json, make_folder, write_atomically
from fedalloy.results import read
from fedalloy.tree import Tree

Say = Callable[[str], None]


class Store:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = folder / "run.json"
        self.rounds = folder / "rounds.jsonl"
        self.checkpoints = folder / "checkpoints"
        self._saved = Checkpoints(self.checkpoints)

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
        self._saved.commit(state, memories)

    def restore(self, say: Say = lambda _: None) -> tuple[State, dict[int, Tree]] | None:
        """The newest whole checkpoint, or None if no round was completed; nothing is written."""
        recorded = {record["round"] for record in self.records()}
        manifests = self._saved.generations()
        for manifest in manifests:
            try:
                state, memories = read_checkpoint(manifest)
                if lacking := set(range(1, state.round + 1)) - recorded:
                    raise DataError(f"{self.rounds.name} lacks round {min(lacking)}")
            except (DataError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                say(f"the checkpoint of round {manifest.stem.lstrip('0')} cannot be used: {error}")
                continue
            return state, memories
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
