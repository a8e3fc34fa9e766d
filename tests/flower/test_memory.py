"""What a client remembers survives crashes, goes when nobody needs it, and is lost only with its file."""

from __future__ import annotations

import os
import stat

import pytest
import torch

from fedalloy.base import tree
from fedalloy.engine.flower.memory import Memory
from fedalloy.errors import DataError, StorageError


@pytest.fixture
def memory(tmp_path):
    return Memory(tmp_path / "5")


def keep(n):
    return {"model": {"w": torch.full((3,), float(n))}, "n": n}


def rounds(memory):
    return [made for made, _, _ in memory.generations()]


def test_generations_are_found_by_their_content(memory):
    first, second = memory.write(1, keep(1)), memory.write(2, keep(2))
    assert first == tree.digest(keep(1))
    assert tree.equal(memory.read(first), keep(1))
    assert tree.equal(memory.read(second), keep(2))
    assert memory.write(3, {}) == ""
    assert memory.read("") == {}
    assert rounds(memory) == [1, 2]


def test_only_the_owner_can_read_them(memory):
    memory.write(1, keep(1))
    (_, _, path) = memory.generations()[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(memory.folder.stat().st_mode) == 0o700


def test_a_crash_before_the_rename_leaves_the_old_generation_and_no_new_one(memory, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    old = memory.write(1, keep(1))
    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(Killed):
        memory.write(2, keep(2))
    monkeypatch.undo()
    assert rounds(memory) == [1]
    assert tree.equal(memory.read(old), keep(1))
    assert memory.read(tree.digest(keep(2))) is None
    assert len(list(memory.folder.iterdir())) == 2  # what the crash left half-written
    new = memory.write(2, keep(2))
    memory.forget(3, {old, new})
    assert sorted(path.suffix for path in memory.folder.iterdir()) == [".safetensors"] * 2


def test_a_full_disk_is_a_sentence_and_changes_nothing(memory, monkeypatch):
    old = memory.write(1, keep(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        memory.write(2, keep(2))
    assert tree.equal(memory.read(old), keep(1))


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "gone"])
def test_a_damaged_generation_is_lost_and_the_others_are_not(memory, damage):
    first, second = memory.write(1, keep(1)), memory.write(2, keep(2))
    path = memory.generations()[0][2]
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-1] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"flipped": data, "cut": data[:-5], "empty": b""}[damage])
    assert memory.read(first) is None
    assert tree.equal(memory.read(second), keep(2))


def test_what_is_needed_stays_and_what_is_not_goes(memory):
    digests = [memory.write(t, keep(t)) for t in (1, 2, 3, 4)]
    memory.forget(4, {digests[1]})
    assert rounds(memory) == [2, 4]  # 4 is of this round, and the message may not know of it


def test_a_message_that_comes_late_removes_nothing_newer(memory):
    """Round 3's message, told what round 3 needed, is carried out after round 5 has written."""
    new = memory.write(5, keep(5))
    memory.write(3, keep(3))
    memory.forget(3, {tree.digest(keep(2))})
    assert tree.equal(memory.read(new), keep(5))


def test_the_same_content_in_two_rounds_is_safe_to_clear(memory):
    digest = memory.write(1, keep(1))
    assert memory.write(4, keep(1)) == digest
    memory.forget(4, set())
    assert tree.equal(memory.read(digest), keep(1))


def test_other_files_are_left_alone(memory):
    memory.write(1, keep(1))
    (memory.folder / "notes.txt").write_text("mine")
    memory.forget(9, set())
    assert [path.name for path in memory.folder.iterdir()] == ["notes.txt"]


def test_what_was_spent_is_kept_apart_and_cannot_be_misread(memory):
    assert memory.spent() == {}
    memory.charge(lambda _: {"1.0": {"0.25": 12}})
    memory.forget(99, set())
    assert memory.spent() == {"1.0": {"0.25": 12}}
    (memory.folder / "privacy.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError):  # a client that cannot know what it spent does not train
        memory.spent()


def test_a_ledger_is_not_missing_before_there_is_a_memory(memory):
    assert memory.charge(lambda spent: spent) == {}
    memory.write(1, keep(1))
    assert memory.spent() == {}
    (memory.folder / "privacy.safetensors").unlink()
    with pytest.raises(DataError):
        memory.spent()
    with pytest.raises(DataError):
        memory.charge(lambda spent: spent)
