"""The run folder: what is written is whole, what is read back is the same bits, what cannot be written is said."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from fedalloy.base import tree
from fedalloy.base.files import append_line, make_folder, read_weights, write_atomically, write_json, write_weights
from fedalloy.errors import CheckpointError, DataError, StorageError, UsageError
from fedalloy.federation.core import State
from fedalloy.storage.results import read
from fedalloy.storage.store import Store, begun, described, experiment_digest

META = {"format": 1, "name": "fedavg", "label": "FedAvg", "seed": 0}


def record(round: int) -> dict[str, Any]:
    return {"round": round, "views": {}, "value": 0.1 + 0.2}


def state(round: int) -> State:
    return State(round, {"model": {"w": torch.full((3,), float(round))}, "cache": {}, "n": round, "lr": 0.1})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "run")
    with made.locked():
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


def test_the_two_newest_checkpoints_are_kept_and_the_records_twice(filled: Store) -> None:
    names = sorted(path.name for path in filled.checkpoints.iterdir())
    assert names == [
        *("000002.json", "000002.safetensors", "000003.json", "000003.safetensors"),
        *("description.json", "rounds.jsonl"),
    ]
    assert filled.logs[0].read_bytes() == filled.logs[1].read_bytes()


def test_what_a_store_writes_is_for_its_owner_alone(filled: Store) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in [filled.folder, *filled.folder.rglob("*")]}
    assert {modes.pop("run"), modes.pop("checkpoints")} == {0o700}
    assert set(modes.values()) == {0o600}


def test_the_manifest_names_the_experiment_and_the_records(filled: Store) -> None:
    claim = json.loads((filled.checkpoints / "000003.json").read_bytes())
    lines = filled.rounds.read_bytes()
    assert claim["experiment"] == experiment_digest(META)
    assert claim["records"] == {"bytes": len(lines), "sha256": hashlib.sha256(lines).hexdigest()}


def test_the_digest_of_an_experiment_leaves_out_what_changes_no_bit() -> None:
    exp = {"seed": 1, "training": {"lr": 0.1}, "rounds": 3, "engine": "pool", "workers": 2, "memory": "1GB"}
    meta = {**META, "experiment": exp, "digests": {"data": "d"}}
    free = {**meta, "experiment": {"training": {"lr": 0.1}, "seed": 1, "rounds": 9}, "versions": {}}
    assert experiment_digest(meta) == experiment_digest(free)
    assert experiment_digest(meta) != experiment_digest({**meta, "experiment": {**exp, "training": {"lr": 0.2}}})
    assert experiment_digest(meta) != experiment_digest({**meta, "digests": {"data": "e"}})


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
    assert store.rewind() == []
    assert not store.rounds.exists()


def test_records_of_later_rounds_and_torn_lines_are_removed(filled: Store) -> None:
    whole = filled.rounds.read_bytes()
    with filled.rounds.open("a") as file:
        file.write(f'{json.dumps(record(4))}\n{{"round": 5, "vie')
    again = Store(filled.folder)
    assert again.restore() is not None
    assert [r["round"] for r in again.rewind()] == [1, 2, 3]
    assert [log.read_bytes() for log in again.logs] == [whole, whole]
    again.record(record(4))
    again.commit(state(4), {})
    assert Store(filled.folder).records() == [record(t) for t in (1, 2, 3, 4)]
    assert Store(filled.folder).restore() is not None


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", ["lost", "torn", "changed"])
def test_one_whole_copy_of_the_records_is_enough(filled: Store, which: int, damage: str) -> None:
    log, whole = filled.logs[which], filled.rounds.read_bytes()
    {
        "lost": lambda: log.unlink(),
        "torn": lambda: log.write_bytes(whole[:70]),
        "changed": lambda: log.write_bytes(whole.replace(b'"round":2', b'"round":7')),
    }[damage]()
    again = Store(filled.folder)
    saved = again.restore()
    assert saved is not None
    assert saved[0].round == 3
    assert again.rewind() == [record(t) for t in (1, 2, 3)]
    assert [log.read_bytes() for log in again.logs] == [whole, whole]


def test_records_that_are_not_those_of_a_checkpoint_make_it_useless(filled: Store) -> None:
    lines = filled.rounds.read_text().splitlines(keepends=True)
    for log in filled.logs:
        log.write_text(lines[0] + lines[2])  # round 2 is gone, and both checkpoints come after it
    said: list[str] = []
    with pytest.raises(CheckpointError):
        Store(filled.folder).restore(said.append)
    assert [re.search(r"round (\d) .*rounds\.jsonl", one)[1] for one in said] == ["3", "2"]  # type: ignore[index]


def test_a_checkpoint_of_another_experiment_is_not_used(filled: Store) -> None:
    write_json(filled.meta, {**META, "experiment": {"seed": 1}})
    said: list[str] = []
    with pytest.raises(CheckpointError, match="checkpoints"):
        Store(filled.folder).restore(said.append)
    assert re.search(r"round 3 .*experiment.*run\.json", said[0])


def test_records_without_any_checkpoint_are_never_thrown_away(filled: Store) -> None:
    for file in filled.checkpoints.glob("0*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="records of several rounds"):
        Store(filled.folder).restore()
    assert len(filled.records()) == 3


def test_a_run_of_the_first_format_goes_on(filled: Store) -> None:
    """There the manifests knew neither experiment nor records, and there was one copy of these."""
    for path in filled.checkpoints.glob("0*.json"):
        claim = json.loads(path.read_bytes())
        files = claim["files"].items()
        pieces, hashes = {n: f["pieces"] for n, f in files}, {n: f["sha256"] for n, f in files}
        write_json(path, {"round": claim["round"], "pieces": pieces, "sha256": hashes})
    filled.logs[1].unlink()
    filled.descriptions[1].unlink()
    again = Store(filled.folder)
    saved = again.restore()
    assert saved is not None
    assert tree.equal(saved[0].body, state(3).body)
    assert again.rewind() == [record(t) for t in (1, 2, 3)]
    again.record(record(4))
    again.commit(state(4), {})
    found = Store(filled.folder).restore()
    assert found is not None
    assert found[0].round == 4
    lines = filled.rounds.read_text().splitlines(keepends=True)
    filled.rounds.write_text(lines[0] + lines[2])
    (filled.checkpoints / "000004.json").unlink()
    said: list[str] = []
    with pytest.raises(CheckpointError):
        Store(filled.folder).restore(said.append)
    assert said == ["the checkpoint of round 3 cannot be used: rounds.jsonl lacks round 2"]


def test_what_is_damaged_goes_to_quarantine_when_the_run_goes_on(filled: Store) -> None:
    file = filled.checkpoints / "000003.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    (filled.checkpoints / ".000004.safetensors.part").write_bytes(b"half")
    (filled.folder / ".run.json.part").write_bytes(b"half")
    said: list[str] = []
    again = Store(filled.folder)
    saved = again.restore(said.append)
    assert saved is not None
    assert saved[0].round == 2
    assert not filled.quarantine.exists()
    assert again.rewind(said.append) == [record(1), record(2)]
    assert said == [
        "the checkpoint of round 3 cannot be used: the hash of 000003.safetensors is not the one in the manifest",
        f"the checkpoint of round 3 was moved to '{filled.quarantine}'",
    ]
    assert sorted(path.name for path in filled.quarantine.iterdir()) == ["000003.json", "000003.safetensors"]
    names = sorted(path.name for path in filled.folder.rglob("*") if path.parent != filled.quarantine)
    assert names == [
        *("000002.json", "000002.safetensors", "checkpoints", "description.json", "quarantine"),
        *("rounds.jsonl", "rounds.jsonl", "run.json"),
    ]
    again.record(record(3))
    again.commit(state(3), {})
    later = Store(filled.folder).restore()
    assert later is not None
    assert later[0].round == 3


def test_a_run_is_taken_back_without_touching_anything_else(tmp_path: Path) -> None:
    made = Store(tmp_path / "run")
    made.create(META)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    made.remove()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_folder_in_which_nothing_was_written_goes_with_its_lock(tmp_path: Path) -> None:
    made = Store(tmp_path / "run")
    with made.locked():
        assert (tmp_path / "run" / "run.lock").read_text() == f"{os.getpid()}\n"
        made.create(META)
        made.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_creation_left_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".run.json.part").write_bytes(b"{")
    Store(tmp_path).create(META)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "run.json"]


def test_a_run_with_a_checkpoint_is_never_taken_back(filled: Store) -> None:
    filled.remove()
    assert filled.meta.exists()
    assert filled.restore() is not None


def test_run_json_must_say_enough_to_go_on(store: Store) -> None:
    with pytest.raises(DataError, match=r"run\.json lacks digests"):
        described(store.folder)


def test_the_description_is_there_twice_and_one_copy_is_enough(filled: Store) -> None:
    copy = filled.checkpoints / "description.json"
    assert copy.read_bytes() == filled.meta.read_bytes()
    filled.describe({**META, "status": "done"})
    assert copy.read_bytes() == filled.meta.read_bytes()
    filled.meta.unlink()
    assert begun(filled.folder)
    assert read(filled.folder).meta["status"] == "done"
    assert not filled.meta.exists()  # reading changes nothing
    with pytest.raises(UsageError, match="holds a run"):
        Store(filled.folder).create(META)
    copy.write_bytes(b"{")
    with pytest.raises(DataError, match=r"run\.json cannot be read \(No such file"):
        read(filled.folder)


def test_what_cannot_be_recorded_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"JSON.*object"):
        Store(tmp_path / "run").create({**META, "odd": object()})
    assert list(tmp_path.iterdir()) == []


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_place_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "x"
    with pytest.raises(StorageError, match=r"the folder '.*' cannot be created: Not a directory"):
        Store(below).create(META)
    with pytest.raises(StorageError, match=r"the folder '.*' cannot be created: Not a directory"):
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


def test_equal_weights_give_equal_files(tmp_path: Path) -> None:
    weights = {name: torch.arange(3.0) for name in ("b", "a", "c")}
    about = {key: key for key in ("view", "round", "method", "model", "mean", "std")}
    for number in range(8):
        write_weights(dict(reversed(weights.items())) if number % 2 else weights, tmp_path / f"{number}", about)
    assert len({(tmp_path / f"{number}").read_bytes() for number in range(8)}) == 1
    with safetensors.safe_open(tmp_path / "0", "pt") as held:
        assert held.metadata() == about


def test_weights_come_back_also_when_two_names_share_a_tensor(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    write_weights({"a": shared, "b": shared, "c": shared[1:3]}, tmp_path / "w.safetensors", {"view": "aca"})
    held = read_weights(tmp_path / "w.safetensors")
    assert {name: t.tolist() for name, t in held.items()} == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3], "c": [1, 2]}
