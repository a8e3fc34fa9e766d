"""A checkpoint costs what has changed, and stands for everything."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedalloy.base import tree
from fedalloy.base.files import as_json
from fedalloy.base.tree import Tree
from fedalloy.errors import CheckpointError, DataError
from fedalloy.federation.core import State
from fedalloy.storage import checkpoints
from fedalloy.storage.checkpoints import Checkpoints, assemble, pieces, read_checkpoint, read_manifest


def model(value: float, size: int = 1000) -> Tree:
    return {"w": torch.full((size,), float(value))}


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


def names(folder: Path, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob(f"*.{suffix}"))


def test_every_round_comes_back_bit_for_bit_from_both_generations(kept: Checkpoints) -> None:
    memories: dict[int, Tree] = {}
    said: list[tuple[str, dict[int, str]]] = []
    for state in rounds(12):
        memories = {**memories, state.round % 3: {"head": model(state.round, 7), "seen": state.round}}
        kept.commit(state, memories)
        said.append((tree.digest(state.body), {k: tree.digest(m) for k, m in memories.items()}))
        for age, manifest in enumerate(kept.generations()):
            found, remembered = read_checkpoint(manifest)
            assert found.round == state.round - age
            assert (tree.digest(found.body), {k: tree.digest(m) for k, m in remembered.items()}) == said[-1 - age]


def test_the_two_generations_share_no_file(kept: Checkpoints, tmp_path: Path) -> None:
    for state in rounds(9):
        kept.commit(state, {})
        used = [set(read_manifest(path).files) for path in kept.generations()]
        assert len(used) == min(state.round, 2)
        assert sum(map(len, used)) == len(set.union(*used)) == len(names(tmp_path, "safetensors"))


def test_a_round_writes_only_what_is_new(kept: Checkpoints, tmp_path: Path) -> None:
    states = rounds(10)
    for state in states:
        kept.commit(state, {})
    newest = (tmp_path / "000010.safetensors").stat().st_size
    # The model, and two of five cached ones: that of this round and, since the chains are two, of the one before.
    assert 3 * 4000 < newest < 3 * 4000 + 1000


def test_what_no_generation_needs_is_removed(kept: Checkpoints, tmp_path: Path) -> None:
    for state in rounds(9):
        kept.commit(state, {})
    assert names(tmp_path, "json") == [8, 9]
    # `start` lies in rounds 1 and 2. Of clients 5 to 9 (mod 5), last seen in these rounds, an odd round writes those of
    # itself and of the even one before it, and an even one alike; client 4 is client 9 in round 9, but not in round 8.
    assert names(tmp_path, "safetensors") == [1, 2, 4, 5, 6, 7, 8, 9]


def test_old_files_are_cleared_before_they_are_mostly_waste(kept: Checkpoints, tmp_path: Path) -> None:
    """One part of four never changes; the file that holds it is rewritten when the others are no longer enough."""
    big = {f"part{i}": model(i, 200_000) for i in range(4)}
    state = State(0, {"table": big})
    for t in range(1, 13):
        state = state.next(table={**{k: model(t, 200_000) for k in big}, "part0": big["part0"]} if t > 1 else big)
        kept.commit(state, {})
    for manifest in kept.generations():
        assert tree.digest(read_checkpoint(manifest)[0]["table"]["part0"]) == tree.digest(big["part0"])
    assert tree.equal(read_checkpoint(kept.generations()[0])[0].body, state.body)
    size = len(tree.encode(state.body))
    room = checkpoints.CHAINS * (checkpoints.WASTE * size + (1 << 20) + size)  # the limit, and the newest file
    assert sum(p.stat().st_size for p in tmp_path.glob("*.safetensors")) <= room


def test_the_cost_of_a_cache_stays_near_what_changes(kept: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 clients, 2 in each round: without any sharing a round would write 101 models."""
    written: list[int] = []

    def write(path: Path, data: bytes, _: int) -> None:
        written.append(len(data))
        path.write_bytes(data)

    monkeypatch.setattr(checkpoints, "write_atomically", write)
    state = State(0, {"model": model(0, 10_000), "cache": {str(k): model(k, 10_000) for k in range(100)}})
    active = np.random.default_rng(0)
    for t in range(1, 221):
        fresh = {str(k): model(t, 10_000) for k in active.choice(100, 2, replace=False)}
        state = state.next(model=model(-t, 10_000), cache={**state["cache"], **fresh})
        kept.commit(state, {})
    by_round = [sum(written[i : i + 2]) / 40_000 for i in range(0, len(written), 2)]
    assert sum(by_round[120:]) / 100 < 2.4 * 3  # three models are new
    assert max(by_round[2:]) < 40  # and no round pays for many


def _damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


def test_a_damaged_file_costs_one_generation(kept: Checkpoints, tmp_path: Path) -> None:
    for state in rounds(8):
        kept.commit(state, {})
    for file in sorted(tmp_path.glob("*.safetensors")):
        before = file.read_bytes()
        _damage(file)
        whose = [path for path in kept.generations() if file.stem in read_manifest(path).files]
        assert len(whose) == 1
        with pytest.raises(DataError, match=f"the hash of {file.name} is not the one in the manifest"):
            read_checkpoint(whose[0])
        for other in set(kept.generations()) - set(whose):
            read_checkpoint(other)
        file.write_bytes(before)


# --- manifests --------------------------------------------------------------------------------------------------------


def signed(claim: dict[str, Any]) -> bytes:
    claim = {key: value for key, value in claim.items() if key != "sha256"}
    return as_json({**claim, "sha256": hashlib.sha256(as_json(claim)).hexdigest()})


@pytest.fixture
def manifest(kept: Checkpoints) -> Path:
    for state in rounds(2):
        kept.commit(state, {}, {"experiment": "e"})
    return kept.generations()[0]


def test_a_manifest_says_what_it_stands_for(manifest: Path) -> None:
    claim = json.loads(manifest.read_bytes())
    assert list(claim) == ["format", "round", "experiment", "files", "sha256"]
    assert (claim["format"], claim["round"]) == (3, 2)
    (file,) = claim["files"].values()
    assert file["pieces"] == ["state/model", "state/start", "state/cache/1", "state/cache/2", "state/n"]
    assert file["sha256"] == hashlib.sha256((manifest.parent / "000002.safetensors").read_bytes()).hexdigest()
    assert manifest.read_bytes() == signed(claim)


def test_no_flipped_bit_of_a_manifest_changes_what_it_says(manifest: Path) -> None:
    content, true = manifest.read_bytes(), read_manifest(manifest)
    accepted = 0
    for at in range(len(content)):
        flipped = content[at] ^ (1 << at % 8)
        manifest.write_bytes(content[:at] + bytes([flipped]) + content[at + 1 :])
        try:
            found = read_manifest(manifest)
        except (DataError, ValueError, LookupError, TypeError, AttributeError):
            continue
        accepted += 1
        assert found == true  # such as a tabulator in the place of a line's end
    assert accepted < len(content) / 10


def test_the_manifest_of_another_round_is_noticed(manifest: Path) -> None:
    manifest.write_bytes((manifest.parent / "000001.json").read_bytes())
    with pytest.raises(DataError, match=r"000002\.json is the manifest of round 1"):
        read_manifest(manifest)


def test_a_later_format_is_refused_and_not_taken_for_damage(manifest: Path) -> None:
    manifest.write_bytes(signed({**json.loads(manifest.read_bytes()), "format": 4}))
    with pytest.raises(CheckpointError, match=r"format 4\b.*\b3\b"):
        read_manifest(manifest)


def test_the_first_format_is_read(manifest: Path) -> None:
    files = json.loads(manifest.read_bytes())["files"]
    old = {"round": 2, "pieces": {}, "sha256": {}}
    for name, file in files.items():
        old["pieces"][name], old["sha256"][name] = file["pieces"], file["sha256"]
    now = read_checkpoint(manifest)
    manifest.write_bytes(as_json(old))
    assert tree.equal(read_checkpoint(manifest)[0].body, now[0].body)


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_pieces_make_the_whole_again() -> None:
    whole = {
        "state": {"a": 1, "b": {}, "c": {"x": {"w": torch.ones(1)}, "y": {}}},
        "memories": {"3": {"m": {"w": 2.0}}},
    }
    assert tree.equal(assemble(dict(pieces(whole))), whole)
