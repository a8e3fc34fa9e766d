"""Runs from beginning to end: records, checkpoints, interruptions at any round, rules that end a run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalloy.methods
from fedalloy.base import tree
from fedalloy.base.files import read_weights
from fedalloy.base.tree import Tree
from fedalloy.config import build as build_module
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.config.sections import Choice, Stop
from fedalloy.data import load_data
from fedalloy.errors import CheckpointError, DataError, UsageError
from fedalloy.federation.core import (
    Card,
    Client,
    Federation,
    Message,
    Reply,
    State,
    action,
    hyper_parameters,
    method,
    methods,
    reply,
)
from fedalloy.methods import FedAvg, FedProx
from fedalloy.report.export import export_model
from fedalloy.run import runner
from fedalloy.run.runner import resume, should_stop, simulate
from fedalloy.storage.results import SELECTIONS, Run, read, selected
from fedalloy.storage.store import Store

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [16]},
    "rounds": 3,
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0},
    "participation": {"policy": "fraction", "fraction": 0.5},
    "training": {"lr": 0.1},
}
OURS = [name for name, cls in methods.items() if cls.__module__.startswith(fedalloy.methods.__name__)]


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


def tiny(*overrides: str) -> dict[str, Any]:
    return override(TINY, overrides)


def told(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records without what no two runs share."""
    return [{key: value for key, value in r.items() if key not in ("seconds", "memory")} for r in records]


def ended(folder: Path) -> tuple[int, str]:
    """The round and the fingerprint of a run's last checkpoint: the server's state and all memories."""
    saved = Store(folder).restore()
    assert saved is not None
    state, memories = saved
    return state.round, tree.digest({"state": state.body, "memories": {str(k): m for k, m in memories.items()}})


def kill_after(round: int) -> Callable[[Mapping[str, Any]], None]:
    """A watch that stops the process, so to speak, when this round is done."""

    def watch(record: Mapping[str, Any]) -> None:
        if record["round"] == round:
            raise KeyboardInterrupt

    return watch


def killed(folder: Path, round: int, *overrides: str, **given: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        simulate(tiny(*overrides), folder, watch=kill_after(round), **given)
    return folder


def same(run: Run, other: Run) -> bool:
    assert run.folder is not None
    assert other.folder is not None
    return told(run.rounds) == told(other.rounds) and ended(run.folder) == ended(other.folder)


# --- what a run writes ------------------------------------------------------------------------------------------------


def test_a_run_is_kept_as_it_was_returned(tmp_path: Path) -> None:
    run = simulate(tiny(), tmp_path / "run")
    assert [r["round"] for r in run.rounds] == [1, 2, 3]
    kept = read(tmp_path / "run")
    assert kept.meta == run.meta
    assert kept.rounds == run.rounds
    assert (kept.meta["status"], kept.meta["stopped_by"]) == ("done", "rounds")
    assert sorted(file.name for file in (tmp_path / "run" / "checkpoints").glob("0*.json")) == [
        *("000002.json", "000003.json")
    ]


def test_run_json_is_all_that_is_needed_to_repeat_the_run(tmp_path: Path) -> None:
    first = simulate(tiny("method=fedprox", "method.mu=1", "public=own", "public.samples=30"), tmp_path / "first")
    kept = json.loads((tmp_path / "first" / "run.json").read_text())["experiment"]
    again = simulate(kept, tmp_path / "again")
    assert same(first, again)
    assert {**first.meta, "folder": 0} == {**again.meta, "folder": 0}
    assert kept["method"] == {"name": "fedprox", **hyper_parameters(FedProx(mu=1.0))}  # defaults are written out


def test_a_run_without_a_folder_is_the_same_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert told(simulate(tiny()).rounds) == told(simulate(tiny(), "kept").rounds)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_run_json_says_what_was_run(tmp_path: Path) -> None:
    meta = simulate(tiny("rounds=1"), tmp_path / "run", label="Mine").meta
    assert (meta["name"], meta["label"], meta["seed"]) == ("fedavg", "Mine", 0)
    assert sum(meta["clients"]["train_sizes"]) + sum(meta["clients"]["test_sizes"]) == 600
    assert [sum(row) for row in meta["clients"]["class_counts"]] == meta["clients"]["train_sizes"]
    assert meta["model"]["parameters"] == 64 * 16 + 16 + 16 * 10 + 10
    assert meta["model"]["flops_per_sample"] == 2 * (64 * 16 + 16 * 10)
    assert meta["model"]["input"] == [1, 8, 8]
    scale = {name: list(getattr(load_data("tiny"), name)) for name in ("mean", "std")}
    assert meta["data"] == {"name": "tiny", "note": "", "rows": 600, **scale}
    assert set(meta["digests"]) == {"data", "partition", "initial model"}


def test_rounds_are_evaluated_as_often_as_asked_and_at_the_end() -> None:
    run = simulate(tiny("rounds=5", "evaluate_every=2"))
    assert [r["round"] for r in run.rounds if r["views"]] == [2, 4, 5]
    assert len(run.rounds) == 5
    whole = simulate(tiny("rounds=5"))
    assert [r["views"] for r in run.rounds if r["views"]] == [whole.rounds[t - 1]["views"] for t in (2, 4, 5)]


def test_amp_counts_clients_by_what_the_experiment_says(tmp_path: Path) -> None:
    words = ("partition.test=official", "partition.test_samples=7")  # so that all tests have the same size
    runs = [simulate(tiny(*words, f"amp_weights={by}"), tmp_path / by) for by in ("test", "train")]
    found = [run.rounds[-1]["views"]["aca"] for run in runs]
    assert found[0]["clients"] == found[1]["clients"]
    assert found[0]["clients"]["size"] == runs[0].meta["clients"]["test_sizes"]
    for run, view, sizes in zip(runs, found, ("test_sizes", "train_sizes"), strict=True):
        assert view["amp"] == pytest.approx(np.average(view["clients"]["accuracy"], weights=run.meta["clients"][sizes]))
    assert found[0]["amp"] != pytest.approx(found[1]["amp"], abs=1e-4)
    assert [run.meta["experiment"]["amp_weights"] for run in runs] == ["test", "train"]


def test_a_validation_share_fills_its_column_and_selects_its_own_round() -> None:
    words = ("rounds=8", "partition.validation=0.3", "training.lr=0.5", "training.batch=8", "cache.oca=false")
    run = simulate(tiny(*words))
    assert all(0 <= r["views"]["aca"]["validation"] <= 1 for r in run.rounds)
    chosen = [selected(run, "aca", selection) for selection in SELECTIONS]
    assert chosen[0] == (8,)
    assert len(set(chosen)) > 2  # different questions
    assert all(r["views"]["aca"]["validation"] is None for r in simulate(tiny()).rounds)


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    assert told(simulate(tiny()).rounds) == told(simulate(tiny()).rounds)
    assert told(simulate(tiny()).rounds) != told(simulate(tiny("seed=1")).rounds)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_or_its_remains_is_refused(tmp_path: Path) -> None:
    simulate(tiny("rounds=1"), tmp_path / "run")
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*"))
    with pytest.raises(UsageError, match=r"`fedalloy resume .*run`"):
        simulate(tiny(), tmp_path / "run")
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*")) == before
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(UsageError, match=r"`fedalloy resume .*run`"):
        simulate(tiny(), tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "description.json").unlink()
    with pytest.raises(UsageError, match="holds the remains of a run; choose another folder"):
        simulate(tiny(), tmp_path / "run")


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for name in ("notes.txt", ".hidden"):
        (tmp_path / name).write_text("keep me")
        with pytest.raises(UsageError, match=r"is not empty .*'.*'"):
            simulate(tiny("rounds=1"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "notes.txt"]


def test_an_empty_folder_takes_a_run_and_so_does_one_where_a_start_was_killed(tmp_path: Path) -> None:
    simulate(tiny("rounds=1"), tmp_path)
    assert len(read(tmp_path).rounds) == 1
    killed = tmp_path / "killed"
    (killed / "checkpoints").mkdir(parents=True)
    for name in ("run.lock", ".run.json.part"):
        (killed / name).write_text("")
    assert len(simulate(tiny("rounds=1"), killed).rounds) == 1


@pytest.mark.parametrize("words", [["data=tinny"], ["model=mpl"], ["partition.clients=601"], ["model.hidden=[0]"]])
def test_what_cannot_be_built_leaves_no_folder(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(UsageError):
        simulate(tiny(*words), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


class Broken(FedAvg):
    """Fails in a round that is given."""

    when: int = 1

    def round(self, s: State, fed: Federation) -> State:
        if fed.round == self.when:
            raise UsageError("no more")
        return super().round(s, fed)


Broken = dataclasses.dataclass(frozen=True, kw_only=True)(Broken)  # not registered, as its name is FedAvg's


def test_a_run_that_fails_in_its_first_round_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no more"):
        simulate(tiny(), tmp_path / "new", method=Broken(when=1))
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_later_keeps_its_rounds(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no more"):
        simulate(tiny(), tmp_path / "run", method=Broken(when=3))
    assert len(read(tmp_path / "run").rounds) == 2
    assert read(tmp_path / "run").meta["status"] == "running"


def test_an_option_that_cannot_be_recorded_leaves_no_folder(tmp_path: Path) -> None:
    @method("of-sets", label="Of sets", card=Card(paper="none"))
    class OfSets(FedAvg):
        some: Any = frozenset({1})

    with pytest.raises(UsageError, match="JSON"):
        simulate(tiny(), tmp_path / "run", method=OfSets())
    methods._things.pop("of-sets")  # type: ignore[attr-defined]  # a registry only grows
    assert list(tmp_path.iterdir()) == []


@method("noting", label="Noting", card=Card(paper="none"))
class Noting(FedAvg):
    """FedAvg that notes numbers; a registry only grows, so the test below removes it."""

    value: Any = 0.0

    def round(self, s: State, fed: Federation) -> State:
        fed.note("sampled", len(fed.sample()))
        if fed.round == 2:
            fed.skip("for once")
        fed.note("tenth", fed.round / 10 + self.value)
        return super().round(s, fed)


methods._things.pop("noting")  # type: ignore[attr-defined]


def test_what_the_server_notes_is_recorded_and_read_as_a_series(tmp_path: Path) -> None:
    simulate(tiny(), tmp_path / "run", method=Noting())
    run = read(tmp_path / "run")
    assert [record.get("notes") for record in run.rounds] == [
        {"sampled": 2, "tenth": 0.1},
        None,  # skipped
        {"sampled": 2, "tenth": 3 / 10},
    ]
    assert run.notes == ("sampled", "tenth")
    rounds, values = run.noted("tenth")
    assert (rounds.tolist(), values.tolist()) == ([1, 3], [0.1, 3 / 10])
    with pytest.raises(UsageError, match="sampled"):
        run.noted("sample")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_note_must_be_a_finite_number(value: float) -> None:
    with pytest.raises(UsageError, match="noting notes tenth"):
        simulate(tiny(), method=Noting(value=value))


# --- interrupted and resumed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_killed_after_any_round_and_resumed_is_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    words = [f"method={name}", *(f"method.{key}={value}" for key, value in methods[name].card.quick.items())]
    words += ["public=own", "public.samples=40", "public.labelled=true"]

    def copy(record: Mapping[str, Any]) -> None:
        # The folder as a kill at this moment would leave it.
        shutil.copytree(tmp_path / "whole", tmp_path / f"killed after {record['round']}")

    whole = simulate(tiny(*words), tmp_path / "whole", watch=copy)
    last = len(whole.rounds)
    assert last == (1 if methods[name].card.once else 3)
    for round in range(1, last + 1):
        seen: list[int] = []
        resumed = resume(tmp_path / f"killed after {round}", watch=lambda r, seen=seen: seen.append(r["round"]))
        assert seen == list(range(round + 1, last + 1))
        assert same(resumed, whole)
        assert resumed.meta == whole.meta


def test_ctrl_c_loses_nothing_of_a_completed_round(tmp_path: Path) -> None:
    whole = simulate(tiny(), tmp_path / "whole")
    folder = killed(tmp_path / "run", 2)
    assert read(folder).meta["status"] == "running"
    assert same(resume(folder), whole)


def test_stragglers_are_recorded_and_the_same_with_workers_and_after_a_resume(tmp_path: Path) -> None:
    words = ("method=fedprox", "training.epochs=4", "participation.policy=full", "participation.fraction=1.0")
    slow = tiny(*words, "participation.stragglers=0.5")
    whole = simulate(slow, tmp_path / "whole")
    taken, late = ([record[key] for record in whole.rounds] for key in ("active", "stragglers"))
    assert taken == [[0, 1, 2, 3]] * 3
    assert [len(ids) for ids in late] == [2, 2, 2]
    assert len({tuple(ids) for ids in late}) > 1
    drops = simulate({**slow, "method": "fedavg"}, tmp_path / "drops")
    assert [record["stragglers"] for record in drops.rounds] == late
    assert all(sorted(r["active"] + r["stragglers"]) == [0, 1, 2, 3] for r in drops.rounds)
    pool = simulate({**slow, "engine": "pool", "workers": 2}, tmp_path / "pool")
    assert told(pool.rounds) == told(whole.rounds)
    assert ended(tmp_path / "pool") == ended(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(slow, tmp_path / "killed", watch=kill_after(1))
    assert same(resume(tmp_path / "killed"), whole)


def test_killed_before_the_first_round_was_complete(tmp_path: Path) -> None:
    built = build(experiment(tiny()))
    Store(tmp_path / "run").create(
        runner.describe(runner.settled(experiment(tiny()), built, FedAvg()), built, "FedAvg")
    )
    assert same(resume(tmp_path / "run"), simulate(tiny(), tmp_path / "whole"))


def test_killed_between_record_and_checkpoint(tmp_path: Path) -> None:
    whole = simulate(tiny(), tmp_path / "whole")
    folder = killed(tmp_path / "run", 2)
    for file in (folder / "checkpoints").glob("000002.*"):
        file.unlink()
    assert len(read(folder).rounds) == 2
    assert same(resume(folder), whole)


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_torn_last_line_is_written_again(tmp_path: Path, kept: int) -> None:
    """Cut before its beginning, in it, and before its end; the checkpoint of its round may be there or not."""
    whole = simulate(tiny(), tmp_path / "whole")
    for name, with_checkpoint in (("with", True), ("without", False)):
        folder = killed(tmp_path / name, 2)
        *lines, last = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        (folder / "rounds.jsonl").write_text("".join(lines) + last[:kept])
        if not with_checkpoint:
            for file in (folder / "checkpoints").glob("000002.*"):
                file.unlink()
        resumed = resume(folder)
        assert same(resumed, whole)
        assert read(folder).rounds == resumed.rounds


def test_more_rounds_are_a_longer_run(tmp_path: Path) -> None:
    longer = simulate(tiny("rounds=5"), tmp_path / "longer")
    simulate(tiny(), tmp_path / "run")
    assert same(resume(tmp_path / "run", rounds=5), longer)
    assert read(tmp_path / "run").meta == longer.meta


def test_a_longer_run_that_was_interrupted_knows_its_new_end(tmp_path: Path) -> None:
    simulate(tiny(), tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", rounds=5, watch=kill_after(4))
    assert read(tmp_path / "run").meta["status"] == "running"
    assert same(resume(tmp_path / "run"), simulate(tiny("rounds=5"), tmp_path / "longer"))


def test_fewer_rounds_than_there_are_is_refused(tmp_path: Path) -> None:
    simulate(tiny(), tmp_path / "run")
    with pytest.raises(UsageError, match="has completed 3 rounds; write rounds = 3 or more"):
        resume(tmp_path / "run", rounds=2)
    with pytest.raises(UsageError, match="rounds = 0 must be at least 1"):
        resume(tmp_path / "run", rounds=0)


def test_a_finished_run_resumed_does_nothing(tmp_path: Path) -> None:
    run = simulate(tiny(), tmp_path / "run")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (tmp_path / "run").rglob("*")}
    again = resume(tmp_path / "run", watch=kill_after(1))
    assert (again.meta, again.rounds) == (run.meta, run.rounds)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (tmp_path / "run").rglob("*")} == before


def _damage(folder: Path, round: int) -> None:
    file = folder / "checkpoints" / f"{round:06d}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # one bit of one weight
    file.write_bytes(bytes(content))


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    whole = simulate(tiny("rounds=4"), tmp_path / "whole")
    folder = killed(tmp_path / "run", 3, "rounds=4")
    _damage(folder, 3)
    said: list[str] = []
    assert same(resume(folder, say=said.append), whole)
    assert said == [
        "the checkpoint of round 3 cannot be used: the hash of 000003.safetensors is not the one in the manifest",
        f"the checkpoint of round 3 was moved to '{folder}/quarantine'",
    ]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"round": 3}', b"\xff"])
def test_a_damaged_manifest_is_passed_over(tmp_path: Path, content: bytes) -> None:
    folder = killed(tmp_path / "run", 3, "rounds=4")
    (folder / "checkpoints" / "000003.json").write_bytes(content)
    said: list[str] = []
    resume(folder, say=said.append)
    assert len(said) == 2
    assert said[0].startswith("the checkpoint of round 3 cannot be used: 000003.json ")


def test_no_whole_checkpoint_at_all_is_an_error_of_its_own(tmp_path: Path) -> None:
    folder = killed(tmp_path / "run", 3, "rounds=4")
    _damage(folder, 3)
    (folder / "checkpoints" / "000002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="checkpoints") as caught:
        resume(folder)
    assert caught.value.code == 5
    assert len(read(folder).rounds) == 3  # nothing was thrown away


@pytest.mark.parametrize(
    ("part", "key", "sentence"),
    [
        ("digests", "data", "data has changed: the run was made with 0123456789ab, now it is "),
        ("digests", "partition", "partition has changed"),
        ("digests", "initial model", "initial model has changed"),
        ("versions", "torch", "torch has changed: the run was made with 0123456789ab, now it is 2."),
        ("versions", "fedalloy", "fedalloy has changed"),
    ],
)
def test_what_has_changed_since_is_said(tmp_path: Path, part: str, key: str, sentence: str) -> None:
    folder = killed(tmp_path / "run", 1)
    meta = json.loads((folder / "run.json").read_text())
    meta[part][key] = "0123456789abcdef"
    (folder / "run.json").write_text(json.dumps(meta))
    with pytest.raises(CheckpointError) as caught:
        resume(folder)
    assert str(caught.value).startswith(sentence)
    assert caught.value.code == 5
    assert len(read(folder).rounds) == 1


def test_changed_data_weights_and_partitions_are_noticed(tmp_path: Path) -> None:
    data = load_data("tiny")
    folder = killed(tmp_path / "run", 1, dataset=data)
    darker = dataclasses.replace(data, x=data.x // 2)
    with pytest.raises(CheckpointError, match="data has changed"):
        resume(folder, dataset=darker)
    other = dataclasses.replace(build(experiment(tiny("seed=1")), data))
    with pytest.raises(CheckpointError, match="partition has changed"):
        resume(folder, built=other)
    assert len(resume(folder, dataset=data).rounds) == 3


@pytest.mark.parametrize("content", [None, "{", '{"format": 1, "name": "x", "label": "X", "seed": 0}'])
def test_what_is_no_run_cannot_be_resumed(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(DataError, match=r"run\.json"):
        resume(tmp_path)


# --- rules that end a run ---------------------------------------------------------------------------------------------


def record(
    round: int, amp: float | None, *, other: float = 0.0, size: int = 10, seconds: float = 1.0
) -> dict[str, Any]:
    views = {} if amp is None else {"aca": {"amp": amp, "test": None}, "oca": {"amp": other, "test": None}}
    return {
        "round": round,
        "views": views,
        "bytes": {"up": {"w": size}, "down": {"w": size}},
        "seconds": {"total": seconds},
    }


def first_stop(stop: Stop, records: list[dict[str, Any]]) -> tuple[int, str] | None:
    for t in range(1, len(records) + 1):
        if why := should_stop(stop, records[:t]):
            return t, why
    return None


CURVE = [record(t, amp) for t, amp in enumerate((0.2, 0.5, 0.4, 0.5, 0.6, 0.3), start=1)]


@pytest.mark.parametrize(
    ("stop", "end"),
    [
        (Stop(), None),
        (Stop(target=0.5), (2, "target")),
        (Stop(target=0.61), None),
        (Stop(patience=1), (3, "patience")),
        (Stop(patience=2), (4, "patience")),  # as good as before is no improvement
        (Stop(patience=3), None),
        (Stop(bytes=60), (3, "bytes")),  # 20 bytes a round, both ways together
        (Stop(bytes=61), (4, "bytes")),
        (Stop(seconds=4.5), (5, "seconds")),
        (Stop(target=0.6, bytes=1000, seconds=3), (3, "seconds")),
        (Stop(metric="test", target=0.1, patience=1), None),  # there is no such value to go by
    ],
)
def test_when_a_run_ends(stop: Stop, end: tuple[int, str] | None) -> None:
    assert first_stop(stop, CURVE) == end


def test_the_best_view_counts() -> None:
    records = [record(1, 0.2, other=0.3), record(2, 0.1, other=0.7)]
    assert first_stop(Stop(target=0.7), records) == (2, "target")


def test_patience_is_counted_in_rounds_also_where_not_every_round_is_evaluated() -> None:
    curve = [record(t, amp) for t, amp in enumerate((None, 0.5, None, 0.4, None, 0.3), start=1)]
    assert first_stop(Stop(patience=2), curve) == (4, "patience")
    assert first_stop(Stop(patience=3), curve) == (6, "patience")
    assert first_stop(Stop(patience=5), curve) is None


def test_nothing_run_is_no_reason_to_stop() -> None:
    assert should_stop(Stop(target=0.1, patience=1, bytes=1, seconds=1), []) is None


def _best(run: Run) -> list[float]:
    return [max(view["amp"] for view in r["views"].values()) for r in run.rounds]


@pytest.mark.parametrize("rule", ["target", "patience", "bytes", "seconds"])
def test_a_run_ends_early_and_a_resumed_one_at_the_same_round(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulate(tiny("rounds=10"))
    sent = sum(sum(way.values()) for r in whole.rounds[:4] for way in r["bytes"].values())
    limit = {"target": max(_best(whole)[:5]), "patience": 2, "bytes": sent, "seconds": 4}[rule]
    if rule == "seconds":
        ticks = iter(range(10**6))
        monkeypatch.setattr(runner.time, "perf_counter", lambda: next(ticks) / 3)
    words = ("rounds=10", f"stop.{rule}={limit}")
    early = simulate(tiny(*words), tmp_path / "early")
    last = len(early.rounds)
    assert 1 < last < 10
    assert early.meta["stopped_by"] == rule
    assert told(early.rounds) == told(whole.rounds[:last])
    assert first_stop(experiment(tiny(*words)).stop, [dict(r) for r in early.rounds]) == (last, rule)
    if rule != "seconds":  # how long a round takes is no property of the experiment
        assert same(resume(killed(tmp_path / "late", last - 1, *words)), early)
    assert same(resume(tmp_path / "early"), early)
    assert read(tmp_path / "early").meta["stopped_by"] == rule


def test_a_method_that_does_all_in_one_round_ends_its_run(tmp_path: Path) -> None:
    words = ("rounds=10", "evaluate_every=5", "method=local-converged", "method.patience=2")
    run = simulate(tiny(*words), tmp_path / "once")
    assert (len(run.rounds), run.meta["stopped_by"]) == (1, "method")
    assert run.views == ("personal",)  # though its round is not one of those that are evaluated
    assert same(resume(killed(tmp_path / "killed", 1, *words)), run)
    assert same(resume(tmp_path / "once", rounds=20), run)


def test_a_run_killed_at_the_very_end_is_only_closed(tmp_path: Path) -> None:
    folder = killed(tmp_path / "run", 1, "stop.target=0.001")
    run = resume(folder, watch=kill_after(2))
    assert (len(run.rounds), run.meta["status"], run.meta["stopped_by"]) == (1, "done", "target")


# --- starting from a file ---------------------------------------------------------------------------------------------


class Watcher(FedAvg):
    """Keeps the model it began with, so that a test can look at it."""

    def init(self, fed: Federation) -> Tree:
        begun = super().init(fed)
        return {**begun, "first": begun["model"]}

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        return reply(model=msg["model"], n=me.n)


Watcher = dataclasses.dataclass(frozen=True, kw_only=True)(Watcher)


def test_a_run_can_start_from_an_exported_model(tmp_path: Path) -> None:
    simulate(tiny(), tmp_path / "first")
    path, _ = export_model(tmp_path / "first", "aca")
    exported = read_weights(path)
    run = simulate(tiny(f"start={path}", "rounds=1"), tmp_path / "second", method=Watcher())
    saved = Store(tmp_path / "second").restore()
    assert saved is not None
    assert tree.equal(saved[0]["first"], exported)
    assert tree.equal(saved[0]["model"], exported)  # nobody trained
    assert run.rounds[0]["views"]["aca"]["test"] == read(tmp_path / "first").rounds[-1]["views"]["aca"]["test"]


def test_starting_weights_that_changed_are_noticed(tmp_path: Path) -> None:
    simulate(tiny(), tmp_path / "first")
    path, _ = export_model(tmp_path / "first", "aca")
    folder = killed(tmp_path / "second", 1, f"start={path}")
    export_model(tmp_path / "first", "oca", path=path)
    with pytest.raises(CheckpointError, match="initial model has changed"):
        resume(folder)


def test_a_choice_has_no_say_over_a_method_that_is_given() -> None:
    run = simulate(tiny("method=local"), method=FedProx(mu=2.0))
    assert run.meta["experiment"]["method"]["mu"] == 2.0
    assert run.label == "FedProx"
    assert experiment(run.meta["experiment"]).method == Choice(
        name="fedprox", options=hyper_parameters(FedProx(mu=2.0))
    )
