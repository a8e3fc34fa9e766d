"""The run folder: what is written is whole, what is read back is the same bits, what cannot be written is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fedalloy import tree
from fedalloy.core import State
from fedalloy.errors import CheckpointError, DataError, StorageError, UsageError
from fedalloy.files import append_line, make_folder, read_weights, write_atomically, write_json, write_weights
from fedalloy.store import Store, described

META = {"format": 1, "name": "fedavg", "label": "FedAvg", "seed": 0}


def record(round: int) -> dict[str, Any]:
    return {"round": round, "views": {}, "value": 0.1 + 0.2}


def state(round: int) -> State:
    return State(round, {"model": {"w": torch.full((3,), float(round))}, "cache": {}, "n": round, "lr": 0.1})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "run")
    made.create(META)
    return made


@pytest.fixture
def filled(store: Store) -> Store:
    """Three completed rounds."""
    for round in (1, 2, 3):
        store.record(record(round))
        store.commit(state(round), {0: {}, 12: {"model": {"w": torch.tensor([round * 0.5])}}})
    return store


def test_a_checkpoint_comes_back_bit_for_bit(filled: Store) -> None:
    saved = filled.restore()
    assert saved is not None
    assert saved[0].round == 3
    assert tree.equal(saved[0].body, state(3).body)
    assert list(saved[1]) == [0, 12]
    assert saved[1][0] == {}
    assert torch.equal(saved[1][12]["model"]["w"], torch.tensor([1.5]))


def test_the_two_newest_checkpoints_are_kept(filled: Store) -> None:
    names = sorted(path.name for path in filled.checkpoints.iterdir())
    assert names == ["000002.json", "000002.safetensors", "000003.json", "000003.safetensors"]


def test_a_checkpoint_without_its_manifest_does_not_count(filled: Store) -> None:
    (filled.checkpoints / "000003.json").unlink()
    saved = filled.restore()
    assert saved is not None
    assert saved[0].round == 2


def test_restoring_writes_nothing(filled: Store) -> None:
    with filled.rounds.open("a") as file:
        file.write('{"round": 4, "vie')
    before = {path: path.read_bytes() for path in filled.folder.rglob("*") if path.is_file()}
    filled.restore()
    assert {path: path.read_bytes() for path in filled.folder.rglob("*") if path.is_file()} == before


def test_a_run_without_a_completed_round_has_nothing_to_restore(store: Store) -> None:
    assert store.restore() is None
    assert store.forget_after(0) == []
    assert not store.rounds.exists()


def test_records_of_later_rounds_and_torn_lines_are_removed(filled: Store) -> None:
    with filled.rounds.open("a") as file:
        file.write('{"round": 4, "vie')
    assert [r["round"] for r in filled.forget_after(2)] == [1, 2]
    assert filled.records() == [record(1), record(2)]
    assert filled.rounds.read_text().endswith("}\n")
    filled.record(record(3))
    assert filled.records() == [record(1), record(2), record(3)]


def test_a_record_that_is_missing_makes_its_checkpoint_useless(filled: Store) -> None:
    lines = filled.rounds.read_text().splitlines(keepends=True)
    filled.rounds.write_text(lines[0] + lines[2])  # round 2 is gone, and both checkpoints come after it
    said: list[str] = []
    with pytest.raises(CheckpointError):
        filled.restore(said.append)
    assert said == [f"the checkpoint of round {t} cannot be used: rounds.jsonl lacks round 2" for t in (3, 2)]


def test_bytes_that_are_no_tree_are_passed_over(filled: Store) -> None:
    import hashlib

    (filled.checkpoints / "000003.safetensors").write_bytes(b"whatever")
    claim = {"round": 3, "sha256": hashlib.sha256(b"whatever").hexdigest()}
    (filled.checkpoints / "000003.json").write_text(json.dumps(claim))
    saved = filled.restore()
    assert saved is not None
    assert saved[0].round == 2


def test_a_run_is_taken_back_without_touching_anything_else(tmp_path: Path) -> None:
    made = Store(tmp_path / "run")
    made.create(META)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    made.remove()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_run_with_a_checkpoint_is_never_taken_back(filled: Store) -> None:
    filled.remove()
    assert filled.meta.exists()
    assert filled.restore() is not None


def test_run_json_must_say_enough_to_go_on(store: Store) -> None:
    with pytest.raises(DataError, match=r"run\.json says nothing of digests"):
        described(store.folder)


def test_what_cannot_be_recorded_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be recorded as JSON"):
        Store(tmp_path / "run").create({**META, "odd": object()})
    assert list(tmp_path.iterdir()) == []


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_place_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "x"
    with pytest.raises(StorageError, match=r"the folder '.*' cannot be made: Not a directory"):
        Store(below).create(META)
    with pytest.raises(StorageError, match=r"the folder '.*' cannot be made: Not a directory"):
        make_folder(below)
    for write in (write_json, append_line):
        with pytest.raises(StorageError, match=r"'.*x' cannot be written: Not a directory") as caught:
            write(below, "text")
        assert caught.value.code == 4


def test_a_failed_writing_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_json(path, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
    assert json.loads(path.read_text()) == 1


def test_a_file_is_replaced_at_once_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, swap = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), sync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), swap(a, b))[1])
    write_atomically(tmp_path / "x", b"content")
    assert done == ["sync", "replace", "sync"]  # the file, its name, the folder that holds the name
    assert (tmp_path / "x").read_bytes() == b"content"


def test_weights_come_back_also_when_two_names_share_a_tensor(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    write_weights({"a": shared, "b": shared, "c": shared[1:3]}, tmp_path / "w.safetensors", {"view": "aca"})
    held = read_weights(tmp_path / "w.safetensors")
    assert {name: t.tolist() for name, t in held.items()} == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3], "c": [1, 2]}
