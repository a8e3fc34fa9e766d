"""What spills is the same bits in another place: budgets, slots, checkpoints, resident memory, sentences."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.config import build as build_module
from fedalloy.config import sections
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.data import load_data
from fedalloy.engine import arena
from fedalloy.engine.serial import Serial
from fedalloy.errors import StorageError, UsageError
from fedalloy.federation.core import State, run
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedAvg
from fedalloy.run import runner
from fedalloy.run.comparison import compare
from fedalloy.run.runner import resume, simulate
from fedalloy.storage import spill
from fedalloy.storage.checkpoints import Checkpoints
from fedalloy.storage.spill import Segment, Spill, parse_size
from fedalloy.storage.store import Store

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [16]},
    "rounds": 5,
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 1.0},
    "participation": {"policy": "fraction", "fraction": 0.5},
    "training": {"lr": 0.1},
}


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SEGMENT", 16 * 4096)


def model(value: float, size: int = 1000) -> Tree:
    return {"w": torch.full((size,), float(value))}


def mapped(leaf: Tensor, held: Spill) -> bool:
    """Whether a tensor lies in one of the files."""
    for segment in held.segments:
        start = torch.frombuffer(segment.map, dtype=torch.uint8).data_ptr()
        if start <= leaf.data_ptr() < start + len(segment.map):
            return True
    return False


def used(held: Spill) -> int:
    """Bytes of the files that are not free."""
    for segment in held.segments:
        assert segment.take(1 << 60) is None  # nothing is so large, but what was returned is counted as free now
    return sum(len(segment.map) - sum(end - start for start, end in segment._free) for segment in held.segments)


# --- what moves -------------------------------------------------------------------------------------------------------


def test_entries_stay_in_ram_up_to_the_budget() -> None:
    held = Spill(8000)
    cache = {str(k): model(k) for k in range(3)}  # 4,000 bytes each
    memories: dict[int, Tree] = {9: {"seen": torch.ones(1)}}
    before = State(4, {"cache": cache, "model": model(7), "n": 3, "table": {}})
    state = held.hold(before, memories)
    assert state.round == 4
    assert tree.equal(state.body, before.body)
    assert [mapped(state["cache"][k]["w"], held) for k in "012"] == [False, False, True]
    assert state["cache"]["0"] is cache["0"]
    assert state["model"] is before["model"]  # no client's, and needed in every round
    assert mapped(memories[9]["seen"], held)
    assert memories[9]["seen"].item() == 1
    assert not mapped(cache["2"]["w"], held)  # the method's own tree is as it was


def test_without_a_budget_nothing_happens() -> None:
    state, memories = State(1, {"cache": {"0": model(1)}}), {0: {"model": model(2)}}
    assert Spill(None).hold(state, memories) is state


def test_what_was_placed_stays_where_it_is() -> None:
    held, memories = Spill(4000), {5: {"model": model(5)}}
    first = held.hold(State(1, {"cache": {"0": model(0), "1": model(1)}}), memories)
    kept = memories[5]["model"]
    second = held.hold(first.next(cache={**first["cache"], "2": model(2)}), memories)
    assert all(second["cache"][k] is first["cache"][k] for k in "01")
    assert memories[5]["model"] is kept
    # Client 0, in RAM, is replaced: its room goes to what comes next.
    third = held.hold(second.next(cache={**second["cache"], "0": model(3)}), memories)
    assert [mapped(third["cache"][k]["w"], held) for k in "012"] == [False, True, True]


def test_one_tree_of_many_clients_moves_once() -> None:
    start = model(1.0)
    held, memories = Spill(0), {3: {"model": start}}
    state = held.hold(State(0, {"cache": {str(k): start for k in range(50)}}), memories)
    assert all(entry is state["cache"]["0"] for entry in [*state["cache"].values(), memories[3]["model"]])
    assert used(held) == 4096


def test_layouts_dtypes_and_empty_parts_are_kept() -> None:
    image = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    entry = {
        **{str(dtype): torch.arange(3).to(dtype) for dtype in tree.DTYPES},
        "inner": {"image": image, "strided": torch.arange(10.0)[::3], "spread": torch.ones(1).expand(4), "none": {}},
        "scalar": torch.tensor(float("nan")),
        "empty": torch.empty(0, 3),
        "n": 3,
        "name": "x",
    }
    held = Spill(0)
    found = held.hold(State(1, {"cache": {"0": entry, "1": {}}}), {}).body["cache"]
    assert tree.equal(found["0"], entry)
    assert list(found["0"]) == list(entry)
    assert found["1"] == {}
    assert found["0"]["inner"]["image"].stride() == image.stride()
    tensors = [leaf for _, leaf in tree.leaves(found["0"]) if isinstance(leaf, Tensor)]
    assert all(mapped(t, held) and t.data_ptr() % 64 == 0 for t in tensors if t.numel())


def test_what_lies_on_another_device_stays_there() -> None:
    far, near = torch.ones(9, device="meta"), torch.ones(9)
    held = Spill(0)
    state = held.hold(State(1, {"cache": {"0": {"far": far}, "1": {"far": far, "near": near}}}), {})
    assert state["cache"]["0"]["far"] is far
    assert state["cache"]["1"]["far"] is far
    assert mapped(state["cache"]["1"]["near"], held)


def test_an_entry_larger_than_a_segment_has_one_of_its_own(small_segments: None) -> None:
    held = Spill(0)
    state = held.hold(State(1, {"cache": {"0": model(1), "1": model(2, 10**6), "2": model(3)}}), {})
    assert [len(segment.map) for segment in held.segments] == [16 * 4096, 977 * 4096]  # 977 pages hold 4 million bytes
    assert state["cache"]["1"]["w"].sum() == 2e6


# --- slots ------------------------------------------------------------------------------------------------------------


def test_slots_are_used_again(small_segments: None) -> None:
    held, state, memories = Spill(0), State(0, {"cache": {}}), dict[int, Tree]()
    for t in range(50):
        memories[t % 3] = {"model": model(-t), "seen": t}
        state = held.hold(state.next(cache={**state["cache"], str(t % 5): model(t)}), memories)
    assert used(held) == 8 * 4096
    assert len(held.segments) == 1


def test_neighbours_make_room_for_a_larger_entry(small_segments: None) -> None:
    held = Spill(0)
    state = held.hold(State(0, {"cache": {str(k): model(k, 1024) for k in range(16)}}), {})  # one page each, all of it
    state = held.hold(state.next(cache={k: v for k, v in state["cache"].items() if k not in "3456"}), {})
    held.hold(state.next(cache={**state["cache"], "big": model(0, 4 * 1024)}), {})
    assert len(held.segments) == 1


def test_a_tensor_that_a_method_kept_elsewhere_is_never_written_over(small_segments: None) -> None:
    held = Spill(0)
    state = held.hold(State(0, {"cache": {"0": model(1)}, "best": {}}), {})
    state = state.next(cache={}, best={"w": state["cache"]["0"]["w"][:10]})  # a view of a view
    for t in range(20):
        state = held.hold(state.next(cache={"0": model(-t)}), {})
    assert state["best"]["w"].tolist() == [1.0] * 10
    assert used(held) == 2 * 4096


def test_tensors_outlive_the_spill() -> None:
    state = Spill(0).hold(State(0, {"cache": {"0": model(5)}}), {})
    assert state["cache"]["0"]["w"].unique().tolist() == [5.0]


@settings(max_examples=40)
@given(
    st.integers(0, 30_000),
    st.lists(
        st.tuples(
            st.sampled_from(["cache", "memory", "drop", "relax", "move"]), st.integers(0, 5), st.integers(0, 4000)
        ),
        max_size=40,
    ),
)
def test_any_sequence_gives_what_a_dict_gives(budget: int, steps: list[tuple[str, int, int]]) -> None:
    held, state, memories = Spill(budget), State(0, {"cache": {}, "old": {}}), dict[int, Tree]()
    cache: dict[str, Tree] = {}
    old: dict[str, Tree] = {}
    remembered: dict[int, Tree] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "SEGMENT", 4 * 4096)
        for number, (what, client, size) in enumerate(steps):
            key, fresh, now = str(client), model(number, size), dict(state["cache"])
            if what == "cache":
                now[key], cache[key] = fresh, tree.clone(fresh)
            elif what == "memory":
                memories[client] = {"model": fresh, "n": size} if size % 2 else {"model": fresh}
                remembered[client] = tree.clone(memories[client])
            elif what == "drop":
                now.pop(key, None)
                cache.pop(key, None)
                memories.pop(client, None)
                remembered.pop(client, None)
            elif what == "relax":
                held.relax()
            before = state["old"]
            if what == "move" and key in now:
                before, old = {**before, key: now[key]}, {**old, key: cache[key]}
            state = held.hold(state.next(cache=now, old=before), memories)
            assert tree.equal(state.body, {"cache": cache, "old": old})
            assert {k: tree.digest(m) for k, m in memories.items()} == {
                k: tree.digest(m) for k, m in remembered.items()
            }
            in_ram = {
                id(leaf): tree.leaf_bytes(leaf)
                for _, leaf in tree.leaves({**state.body, **{f"m{k}": m for k, m in memories.items()}})
                if isinstance(leaf, Tensor) and not mapped(leaf, held)
            }
            assert sum(in_ram.values()) <= budget


# --- runs -------------------------------------------------------------------------------------------------------------


def told(records: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in r.items() if key not in ("seconds", "memory")} for r in records]


def ended(folder: Path) -> str:
    saved = Store(folder).restore()
    assert saved is not None
    return tree.digest({"state": saved[0].body, "memories": {str(k): m for k, m in saved[1].items()}})


def stop_after(round: int) -> Callable[[Mapping[str, Any]], None]:
    def watch(record: Mapping[str, Any]) -> None:
        if record["round"] == round:
            raise KeyboardInterrupt

    return watch


@pytest.fixture
def spills(monkeypatch: pytest.MonkeyPatch, small_segments: None) -> list[Spill]:
    """Every spill that a run makes."""
    made: list[Spill] = []

    def make(budget: int | None) -> Spill:
        made.append(Spill(budget))
        return made[-1]

    monkeypatch.setattr(runner, "Spill", make)
    return made


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_budget_changes_no_bit(
    method: str, tmp_path: Path, spills: list[Spill], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "LEAST_MEMORY", 0)  # these models are small
    plain = simulate(override(TINY, [f"method={method}"]), tmp_path / "plain")
    assert not spills[-1].segments
    files = {p.name: p.stat().st_size for p in (tmp_path / "plain" / "checkpoints").glob("*.safetensors")}
    for memory in ("0", "10KB", "1GB"):
        exp = override(TINY, [f"method={method}", f"memory='{memory}'"])
        spilled = simulate(exp, tmp_path / memory)
        assert bool(spills[-1].segments) == (memory != "1GB")
        assert told(spilled.rounds) == told(plain.rounds)
        assert ended(tmp_path / memory) == ended(tmp_path / "plain")
        written = {p.name: p.stat().st_size for p in (tmp_path / memory / "checkpoints").glob("*.safetensors")}
        assert written == files  # what was placed is not written again
        with pytest.raises(KeyboardInterrupt):
            simulate(exp, tmp_path / f"{memory} cut", watch=stop_after(3))
        again = resume(tmp_path / f"{memory} cut")
        assert told(again.rounds) == told(plain.rounds)
        assert ended(tmp_path / f"{memory} cut") == ended(tmp_path / "plain")


def test_a_message_to_a_worker_is_read_from_the_file() -> None:
    memories: dict[int, Tree] = {
        1: {
            "model": {
                "w": torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1)).to(
                    memory_format=torch.channels_last
                )
            }
        }
    }
    before = tree.digest(memories[1])
    held = Spill(0)
    held.hold(State(0, {}), memories)
    assert mapped(memories[1]["model"]["w"], held)
    inbox = torch.empty(arena.size_of(memories[1]), dtype=torch.uint8)
    arena.write(memories[1], inbox)
    assert tree.digest(arena.read(inbox)) == before


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_resumed_run_lets_go_of_what_it_began_with(method: str, tmp_path: Path, spills: list[Spill]) -> None:
    exp = override(TINY, [f"method={method}", "participation={}", "memory=0", "rounds=6"])
    with pytest.raises(KeyboardInterrupt):
        simulate(exp, tmp_path / "run", watch=stop_after(1))
    seen: list[int] = []
    resume(tmp_path / "run", watch=lambda _: seen.append(used(spills[-1])))
    # Six models of two pages each, and those of the round before, to which the run could go back.
    assert seen == [2 * 6 * 2 * 4096] * 5
    spills[-1].hold(State(6, {}), {})
    assert used(spills[-1]) == 0


def test_checkpoints_write_a_placed_entry_once(tmp_path: Path) -> None:
    kept, held, memories = Checkpoints(tmp_path), Spill(0), {8: {"model": model(8)}}
    state = State(0, {"cache": {}})
    for t in range(1, 7):
        state = held.hold(state.next(cache={**state["cache"], str(t): model(t)}), memories)
        kept.commit(state, memories)
    models = [(tmp_path / f"{t:06d}.safetensors").stat().st_size // 4000 for t in range(1, 7)]
    # The memory and one model, or two; then those of this round and the one before: even and odd rounds are two chains.
    assert models == [2, 3, 2, 2, 2, 2]


def test_the_loop_settles_the_first_state_and_every_round(small_setting: Callable[..., Setting]) -> None:
    seen: list[int] = []

    def settle(state: State) -> State:
        seen.append(state.round)
        return State(state.round, {**state.body, "settled": state.round})

    setting = small_setting([4, 4])
    end = run(FedAvg(), Serial(setting), 2, settle=settle, watch=lambda s, _: s["settled"] != s.round)
    assert seen == [0, 1, 2]
    assert end["settled"] == 2
    run(FedAvg(), Serial(setting), 3, end, settle=settle)
    assert seen == [0, 1, 2, 2, 3]


def test_another_budget_is_no_other_comparison(tmp_path: Path) -> None:
    exp = override(TINY, ["rounds=1"])
    first = compare(exp, ["fedavg"], folder=tmp_path)
    second = compare({**exp, "memory": "1MB", "rounds": 2}, ["fedavg"], folder=tmp_path)
    assert told(second[0].rounds)[:1] == told(first[0].rounds)


# --- memory -----------------------------------------------------------------------------------------------------------

RESIDENT = """
import torch
from fedalloy.federation.core import State
from fedalloy.engine.malloc import tune_malloc
from fedalloy.storage.spill import Spill

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) // 1000

tune_malloc()  # as every run does: freed memory is kept, unless one asks for it
held, state = Spill(50_000_000), State(0, {"cache": {}})
before, largest = resident(), 0
for k in range(60):
    state = held.hold(state.next(cache={**state["cache"], str(k): {"w": torch.full((1_250_000,), float(k))}}), {})
    held.relax()
    largest = max(largest, resident() - before)
total = sum(float(entry["w"].double().sum()) for entry in state["cache"].values())
read = resident() - before
held.relax()
print(largest, read, resident() - before, total == 1_250_000 * 59 * 30)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="VmRSS is Linux's")
def test_resident_memory_stays_within_the_budget() -> None:
    out = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True).stdout
    largest, read, relaxed, right = out.split()
    assert right == "True"
    assert int(largest) < 50 + 30  # megabytes: the budget, and what torch itself takes at its first use
    assert int(read) > 250  # all 300 MB were touched
    assert int(relaxed) < 50 + 30


# --- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ("4GB", 4 * 10**9),
        ("512MB", 512 * 10**6),
        ("2 GiB", 2 << 30),
        ("1kib", 1024),
        ("3T", 3 * 10**12),
        (" 0.5 MB ", 500_000),
        ("7B", 7),
        ("0", 0),
        (12, 12),
    ],
)
def test_sizes(size: str | int, wanted: int) -> None:
    assert parse_size(size) == wanted


@pytest.mark.parametrize("size", ["", "GB", "four", "-1GB", "4 apples", "1e9", "4iB", "1.GB", "٤GB", -3, "9" * 400])
def test_nonsense_is_no_size(size: str | int) -> None:
    with pytest.raises(UsageError, match=r"memory = .*'4GB'"):
        parse_size(size)


def test_an_experiment_refuses_nonsense_before_it_runs() -> None:
    with pytest.raises(UsageError, match="memory = 'much'"):
        experiment({"memory": "much"})
    assert experiment({"memory": "4GB"}).to_dict()["memory"] == "4GB"
    for size, bytes_ in ((4, "4"), ("999 KB", "999,000")):
        with pytest.raises(UsageError, match=f'memory = {size!r} is {bytes_} bytes; .* for instance memory = "4GB"'):
            experiment({"memory": size})
    for least in (0, "1MB", 10**6):
        assert experiment({"memory": least}).memory == least
    assert "memory" not in experiment({}).to_dict()


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=f"268,435,456 bytes .* '{tmp_path}': No space left on device"):
        Spill(0, tmp_path).hold(State(0, {"cache": {"0": model(1)}}), {})


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"'.*nowhere': No such file or directory"):
        Segment(tmp_path / "nowhere", 4096)


def test_files_have_no_name(tmp_path: Path) -> None:
    held = Spill(0, tmp_path)
    state = held.hold(State(0, {"cache": {"0": model(1)}}), {})
    assert len(held.segments) == 1
    assert list(tmp_path.iterdir()) == []
    assert state["cache"]["0"]["w"][0] == 1


def test_a_temporary_folder_in_ram_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_in_ram", lambda folder: folder == "/memory")
    monkeypatch.setattr(os.path, "isdir", lambda _: True)
    monkeypatch.setattr(spill.tempfile, "gettempdir", lambda: "/memory")
    assert spill._disk_folder() == "/var/tmp"
    monkeypatch.setattr(spill.tempfile, "gettempdir", lambda: "/disk")
    assert spill._disk_folder() == "/disk"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no folder that surely lies in RAM")
def test_a_folder_in_ram_is_known() -> None:
    assert spill._in_ram("/dev/shm")
    assert not spill._in_ram("/proc")
