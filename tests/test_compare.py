"""Comparisons: the same clients for every method, means over seeds, interruptions, folders."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedalloy.config import build as build_module
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.config.sections import Choice
from fedalloy.data import from_arrays, load_data
from fedalloy.errors import CheckpointError, UsageError
from fedalloy.report.gains import REFERENCES, gains
from fedalloy.report.table import comparison_table
from fedalloy.run import comparison
from fedalloy.run.comparison import chosen, compare
from fedalloy.run.runner import simulate
from fedalloy.storage.results import Run, read
from fedalloy.storage.rows import combine, rows

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 3,
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 1.0},
    "participation": {"policy": "fraction", "fraction": 0.5},
    "training": {"lr": 0.1},
    "methods": {"local": {}, "fedavg": {}, "pull": {"name": "fedprox", "mu": 10.0}},
}


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


def tiny(*overrides: str) -> dict[str, Any]:
    return override(TINY, overrides)


def told(runs: list[Run]) -> list[tuple[str, int, list[dict[str, Any]]]]:
    return [
        (run.label, run.seed, [{k: v for k, v in r.items() if k not in ("seconds", "memory")} for r in run.rounds])
        for run in runs
    ]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return compare(tiny(), seeds=[0, 1])


def test_every_method_and_seed_is_run_under_its_label(runs: list[Run]) -> None:
    assert [(run.label, run.name, run.seed) for run in runs] == [
        *(("Local, equal rounds", "local", 0), ("FedAvg", "fedavg", 0), ("pull", "fedprox", 0)),
        *(("Local, equal rounds", "local", 1), ("FedAvg", "fedavg", 1), ("pull", "fedprox", 1)),
    ]


def test_every_method_meets_the_same_clients_in_every_round(runs: list[Run]) -> None:
    def active(run: Run) -> list[list[int]]:
        return [r["active"] for r in run.rounds]

    for seed in (0, 1):
        first, *others = [run for run in runs if run.seed == seed]
        assert all(len(ids) == 3 for ids in active(first))
        assert all(active(run) == active(first) for run in others)
        assert all(run.meta["digests"] == first.meta["digests"] for run in others)
    assert active(runs[0]) != active(runs[3])
    assert runs[0].meta["digests"]["partition"] != runs[3].meta["digests"]["partition"]


def test_a_method_in_a_comparison_is_that_method_alone(runs: list[Run]) -> None:
    alone = simulate({**tiny("seed=1", "method=fedprox", "method.mu=10"), "methods": {}}, label="pull")
    assert told([alone]) == told([runs[5]])


def test_the_table_has_mean_and_spread_over_seeds(runs: list[Run]) -> None:
    table = [row for run in runs for row in rows(run)]
    line = next(line for line in combine(table) if (line.label, line.view) == ("FedAvg", "aca"))
    amps = [100 * run.rounds[-1]["views"]["aca"]["amp"] for run in runs if run.label == "FedAvg"]
    assert line.seeds == (0, 1)
    assert line.columns["amp"].mean == pytest.approx(np.mean(amps) / 100)
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison_table(table, width=200))
    assert isinstance(console.file, io.StringIO)
    assert f"{np.mean(amps):.2f} ± {np.std(amps, ddof=1):.2f}" in console.file.getvalue()


def test_what_each_client_gains(runs: list[Run]) -> None:
    def accuracies(view: str, **wanted: object) -> list[float | None]:
        (run,) = [run for run in runs if all(getattr(run, key) == value for key, value in wanted.items())]
        found: list[float | None] = run.rounds[-1]["views"][view]["clients"]["accuracy"]
        return found

    found = gains(runs)
    assert {(gain.label, gain.over) for gain in found} >= {("pull", "local"), ("pull", "fedavg"), ("FedAvg", "local")}
    for gain in found:
        expected = {}  # the seeds split the data differently, so that each has clients of its own
        for seed in (0, 1):
            own = accuracies(gain.view, label=gain.label, seed=seed)
            other = accuracies(dict(REFERENCES)[gain.over], name=gain.over, seed=seed)
            for k, (a, b) in enumerate(zip(own, other, strict=True)):
                if a is not None and b is not None:
                    expected[f"{k} (seed {seed})"] = 100 * (a - b)
        assert dict(zip(gain.clients, gain.points.tolist(), strict=True)) == pytest.approx(expected)


def test_clients_of_one_split_are_averaged_over_seeds() -> None:
    found = gains(compare(tiny("rounds=1", "partition.seed=5"), ["local", "fedavg"], seeds=[0, 1]))
    assert {(gain.seeds, gain.splits) for gain in found} == {(2, 1)}
    assert set(found[0].clients) <= set("012345")


def test_methods_are_chosen_by_their_key_or_by_their_name() -> None:
    exp = experiment(tiny("method=fedavgm", "method.momentum=0.5"))
    assert list(chosen(exp)) == ["local", "fedavg", "pull"]
    assert chosen(exp, ["pull", "qffl", "fedavgm"]) == {
        "pull": Choice(name="fedprox", options={"mu": 10.0}),
        "qffl": Choice(name="qffl"),
        "fedavgm": exp.method,
    }
    assert chosen(experiment({})) == {"fedavg": Choice(name="fedavg")}


def _stop_at(label: str, seed: int, round: int) -> Callable[[str, int], Callable[[Mapping[str, Any]], None]]:
    def begin(which: str, number: int) -> Callable[[Mapping[str, Any]], None]:
        def watch(record: Mapping[str, Any]) -> None:
            if (which, number, record["round"]) == (label, seed, round):
                raise KeyboardInterrupt

        return watch

    return begin


def test_an_interrupted_comparison_goes_on(tmp_path: Path, runs: list[Run]) -> None:
    with pytest.raises(KeyboardInterrupt):
        compare(tiny(), seeds=[0, 1], folder=tmp_path, begin=_stop_at("FedAvg", 1, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("fedavg-seed0", "fedavg-seed1", "local-seed0", "local-seed1", "pull-seed0")
    ]
    finished = {p: p.stat().st_mtime_ns for p in (tmp_path / "fedavg-seed0").rglob("*")}
    seen: list[tuple[str, int, int]] = []
    on = compare(
        tiny(),
        seeds=[0, 1],
        folder=tmp_path,
        begin=lambda label, seed: lambda record: seen.append((label, seed, record["round"])),
    )
    assert told(on) == told(runs)
    assert seen == [("FedAvg", 1, 3), *(("pull", 1, t) for t in (1, 2, 3))]
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "fedavg-seed0").rglob("*")} == finished


def test_a_finished_comparison_starts_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compare(tiny(), ["local", "fedavg"], folder=tmp_path)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr("fedalloy.engine.choose.WORTH_A_POOL", 0)
    monkeypatch.setattr("fedalloy.engine.choose.Pool", refused)
    again = compare(tiny(), ["local", "fedavg"], folder=tmp_path)
    assert [run.rounds for run in again] == [run.rounds for run in first]
    with pytest.raises(AssertionError, match="workers were started"):
        compare(tiny("workers=2"), ["local", "fedprox"], folder=tmp_path)


def test_a_longer_comparison_goes_on_from_a_shorter_one(tmp_path: Path) -> None:
    compare(tiny("rounds=1"), ["local", "fedavg"], folder=tmp_path)
    on = compare(tiny("rounds=2"), ["local", "fedavg"], folder=tmp_path)
    assert told(on) == told(compare(tiny("rounds=2"), ["local", "fedavg"]))
    with pytest.raises(UsageError, match="has completed 2 rounds; write rounds = 2 or more, or choose another folder"):
        compare(tiny("rounds=1"), ["local", "fedavg"], folder=tmp_path)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("training.lr=0.2", "training.lr"),
        ("model.hidden=[9]", "model.hidden"),
        ("partition.alpha=2", "partition.alpha"),
        ("methods.pull.mu=1", "method.mu"),
        ("stop.target=0.5", "stop.target"),
    ],
)
def test_another_experiment_in_the_same_folder_is_refused_before_anything_runs(
    tmp_path: Path, word: str, key: str
) -> None:
    compare(tiny("rounds=1"), ["pull"], folder=tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    with pytest.raises(
        CheckpointError, match=f"pull-seed0' holds a run of a different experiment; choose another folder:\n  {key}: "
    ):
        compare(tiny("rounds=1", word), ["local", "pull"], folder=tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_other_data_of_ones_own_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    data = load_data("tiny")
    compare(tiny("rounds=1"), ["local"], folder=tmp_path, dataset=data)
    other = replace(data, x=data.x // 2)
    with pytest.raises(CheckpointError, match="data has changed"):
        compare(tiny("rounds=1"), ["local"], folder=tmp_path, dataset=other)
    with pytest.raises(
        CheckpointError, match=r"holds a run of a different experiment; choose another folder:\n  data\.name: "
    ):
        compare(tiny("rounds=1"), ["local"], folder=tmp_path, dataset=replace(data, name="other"))


def test_a_method_that_cannot_run_is_found_before_another_one_does(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no method 'fedavgg'; did you mean 'fedavg'"):
        compare(tiny(), ["local", "fedavgg"], folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_labels_must_not_share_a_folder() -> None:
    exp = experiment({**tiny(), "methods": {"a b": {"name": "local"}, "A-b": {"name": "fedavg"}}})
    with pytest.raises(UsageError, match="the methods 'a b' and 'A-b' would share the folder 'a-b'; rename one"):
        compare(exp)


def test_nothing_is_found_where_all_is_well(tmp_path: Path) -> None:
    exp = experiment(tiny("rounds=1"))
    found, built = comparison.examined(exp, chosen(exp), [0, 1], tmp_path)
    assert found == {}
    assert list(built) == [0, 1]
    assert built[0].digests == build(exp).digests
    compare(exp, folder=tmp_path)
    assert read(tmp_path / "pull-seed0").label == "pull"
    assert comparison.examined(exp, chosen(exp), [0], tmp_path)[0] == {}


def test_real_clients_are_listed_once_whatever_the_seeds() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=200)
    hospitals = from_arrays(rng.normal(size=(200, 6)).astype(np.float32), y, client_ids=rng.integers(5, size=200))
    exp = {
        "rounds": 1,
        "model": "mlp",
        "partition": {"name": "natural", "clients": 5},
        "public": {"data": "own", "samples": 20},  # whose rows are drawn anew for each seed
    }
    found = gains(compare(exp, ["local", "fedavg"], seeds=[0, 1, 2], dataset=hospitals))
    assert {(gain.seeds, gain.splits) for gain in found} == {(3, 1)}
    assert all(set(gain.clients) <= set("01234") for gain in found)
