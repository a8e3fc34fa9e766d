"""A checkpoint costs what has changed, and stands for everything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedalloy import tree
from fedalloy.checkpoints import Checkpoints, assemble, pieces, read_checkpoint
from fedalloy.core import State
from fedalloy.errors import DataError
from fedalloy.tree import Tree


def model(value: float, size: int = 1000) -> Tree:
    return {"w": torch.full((size,), value)}


def rounds(last: int) -> list[State]:
    """One client of five is seen in each round; its cached model is new, the others' are the same objects."""
    states = [State(0, {"model": model(0), "start": model(0), "cache": {}, "n": 1})]
    for t in range(1, last + 1):
        cache = {**states[-1]["cache"], str(t % 5): model(t)}
        states.append(states[-1].next(model=model(-t), cache=cache))
    return states[1:]


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def test_every_round_comes_back_bit_for_bit(kept: Checkpoints) -> None:
    memories: dict[int, Tree] = {}
    for state in rounds(12):
        memories = {**memories, state.round % 3: {"head": model(state.round, 7), "seen": state.round}}
        kept.commit(state, memories)
        found, remembered = read_checkpoint(kept.generations()[0])
        assert found.round == state.round
        assert tree.equal(found.body, state.body)
        assert {k: tree.digest(m) for k, m in remembered.items()} == {k: tree.digest(m) for k, m in memories.items()}


def test_a_round_writes_only_what_is_new(kept: Checkpoints, tmp_path: Path) -> None:
    states = rounds(10)
    for state in states:
        kept.commit(state, {})
    newest = (tmp_path / "000010.safetensors").stat().st_size
    assert newest < len(tree.encode(states[-1].body)) / 2  # the model and one of five cached ones


def test_what_no_generation_needs_is_removed(kept: Checkpoints, tmp_path: Path) -> None:
    for state in rounds(9):
        kept.commit(state, {})
    assert sorted(p.stem for p in tmp_path.glob("*.json")) == ["000008", "000009"]
    # Round 1 holds `start`; clients 4, 5, 6, 7, 8 and 9 were last seen in rounds 4 to 9.
    assert sorted(p.stem for p in tmp_path.glob("*.safetensors")) == ["000001", *(f"00000{t}" for t in range(4, 10))]


def test_files_that_are_mostly_waste_are_written_anew(kept: Checkpoints, tmp_path: Path) -> None:
    big = {f"part{i}": model(i, 200_000) for i in range(4)}  # changes together, but one part stays
    state = State(0, {"table": big})
    for t in range(1, 9):
        state = state.next(table={**{k: model(t, 200_000) for k in big}, "part0": big["part0"]} if t > 1 else big)
        kept.commit(state, {})
    found, _ = read_checkpoint(kept.generations()[0])
    assert tree.equal(found.body, state.body)
    assert sum(p.stat().st_size for p in tmp_path.glob("*.safetensors")) < 5 * len(tree.encode(state.body))


def test_a_damaged_older_file_is_noticed(kept: Checkpoints, tmp_path: Path) -> None:
    for state in rounds(3):
        kept.commit(state, {})
    old = tmp_path / "000001.safetensors"
    data = bytearray(old.read_bytes())
    data[-1] ^= 1
    old.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"the hash of 000001\.safetensors"):
        read_checkpoint(kept.generations()[0])


def test_pieces_make_the_whole_again() -> None:
    whole = {
        "state": {"a": 1, "b": {}, "c": {"x": {"w": torch.ones(1)}, "y": {}}},
        "memories": {"3": {"m": {"w": 2.0}}},
    }
    assert tree.equal(assemble(dict(pieces(whole))), whole)
