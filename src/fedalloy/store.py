"""The run folder: `run.json` (everything needed to repeat the run), `rounds.jsonl`, and a checkpoint per round.

A checkpoint is a safetensors file and a manifest with its hash; the manifest is written last, so that it is the
commit. The two newest are kept; a damaged one is passed over with a sentence, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedalloy import tree
from fedalloy.core import State
from fedalloy.errors import CheckpointError, DataError, StorageError, UsageError
from fedalloy.files import append_line, write_atomically, write_json
from fedalloy.tree import Tree

KEPT = 2


class Store:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rounds = folder / "rounds.jsonl"
        self.checkpoints = folder / "checkpoints"

    def create(self, meta: Mapping[str, Any]) -> None:
        """Make the folder for a new run; a folder with a run in it is refused."""
        if (self.folder / "run.json").exists():
            raise UsageError(f"'{self.folder}' holds a run; `fedalloy resume {self.folder}` goes on with it")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the folder '{self.folder}' cannot be made: {error.strerror or error}") from error
        self.describe(meta)

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Write `run.json`."""
        write_json(self.folder / "run.json", meta)

    def record(self, line: Mapping[str, Any]) -> None:
        """Append a round's record."""
        append_line(self.rounds, json.dumps(line, allow_nan=False, separators=(",", ":")))

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

    def restore(self, say: Callable[[str], None] = lambda _: None) -> tuple[State, dict[int, Tree]] | None:
        """The newest whole checkpoint, or None if no round was completed; later records are removed."""
        manifests = sorted(self.checkpoints.glob("*.json"), reverse=True)
        for manifest in manifests:
            try:
                saved = _read(manifest)
            except (DataError, OSError, ValueError, KeyError) as error:
                say(f"the checkpoint {manifest.stem} is damaged ({error}); trying the one before it")
                continue
            self._forget_after(saved["round"])
            return State(saved["round"], saved["state"]), {int(k): m for k, m in saved["memories"].items()}
        if manifests:
            raise CheckpointError(f"every checkpoint in '{self.checkpoints}' is damaged; start again in another folder")
        self._forget_after(0)
        return None

    def records(self) -> list[dict[str, Any]]:
        """The records of the completed rounds; a torn last line is not one of them."""
        if not self.rounds.exists():
            return []
        lines = self.rounds.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def _forget_after(self, round: int) -> None:
        kept = [line for line in self.records() if line["round"] <= round]
        text = "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in kept)
        write_atomically(self.rounds, text.encode())


def _read(manifest: Path) -> dict[str, Any]:
    claim = json.loads(manifest.read_text(encoding="utf-8"))
    data = manifest.with_suffix(".safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != claim["sha256"]:
        raise DataError("its hash is not the one in its manifest")
    return tree.decode(data)
