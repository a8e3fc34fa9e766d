"""What is read from recorded runs: each kind of metric word, gaps in the records, and folders that hold another run."""

from __future__ import annotations

import functools
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedalloy.errors import DataError, UsageError
from fedalloy.reproduce.catalogue import Item, Row, Scale
from fedalloy.reproduce.making import make, tasks
from fedalloy.reproduce.plan import Job, jobs
from fedalloy.reproduce.results import Results, finished, reached_in, recorded, value_of
from fedalloy.storage.results import Run

ITEM = Item(
    "table1",
    "a table",
    "4",
    "scores",
    full=Scale(),
    cpu=Scale(),
    smoke=Scale(experiment="knfu-mnist", columns=("50, 0.1",), seeds=(0, 1)),
    rows=(Row("Alone", "local", "personal"), Row("FedMD", "FedMD", "personal")),
    metrics=("alma",),
    paper="knfu",
)


def run(**more: Any) -> Run:
    """Three rounds, of which the first and the last are evaluated."""
    first = {"amp": 0.5, "test": 0.75, "validation": 0.25, "fm": 0.004, "wlp": 0.25, "loss": 2.0, "alma": 0.5}
    last = {"amp": 0.625, "test": 0.5, "validation": 0.25, "fm": 0.002, "wlp": 0.375, "loss": 1.0, "alma": 0.75}
    spent = {"client": 2.0, "server": 1.0, "evaluation": 9.0, "total": 12.0}
    sent = {"up": {"weights": 30, "framing": 3}, "down": {"weights": 60}}
    passes = {"forward": 20, "backward": 10, "steps": 10}
    before, after = ({"amp": amp, "test": None, "validation": None} for amp in (0.75, 0.5))
    rounds = [
        {"round": 1, "views": {"aca": first, "distilled": before}, "notes": {"size": 4.0}},
        {"round": 2, "notes": {"size": 100.0}},
        {"round": 3, "views": {"aca": last, "personal": after, "distilled": before}, "notes": {"size": 6}},
    ]
    meta = {"name": "fedavg", "label": "FedAvg", "seed": 0}
    return Run(meta, tuple({**record, "seconds": spent, "bytes": sent, "passes": passes, **more} for record in rounds))


@pytest.mark.parametrize(
    ("metric", "when", "value"),
    [
        ("amp", "last", 62.5),
        ("fm", "last", 2.0),  # thousandths
        ("loss", "last", 1.0),  # as it is
        ("amp", "best by test", 50.0),
        ("test", "best by amp", 50.0),
        ("amp", "best by validation", 50.0),  # the earliest of equals
        ("amp", "mean of last 2", 56.25),
        ("fm", "mean of last 2", 3.0),
        ("stability", "last", 6.25),
        ("round", "best by amp", 3.0),
        ("rounds", "last", 3.0),
        ("bytes_total", "last", 3 * 93.0),
        ("bytes_up", "best by test", 3 * 33.0),  # costs are those of all rounds
        ("training_seconds", "last", 9.0),
        ("note size", "last", 6.0),
        ("note size", "best by test", 4.0),
        ("note size", "mean of last 2", 5.0),  # of the evaluated rounds
        ("rounds to amp 0.625", "last", 3.0),
        ("rounds to test 0.7", "last", 1.0),
        ("rounds to amp 0.9", "last", 6.0),  # not reached: twice the rounds
    ],
)
def test_each_kind_of_metric(metric: str, when: str, value: float) -> None:
    assert value_of(run(), "aca", metric, when) == pytest.approx(value)


def test_the_gap_is_what_training_loses_after_distillation() -> None:
    assert value_of(run(), "personal", "gap", "last") == pytest.approx(25.0)
    assert math.isnan(value_of(run(), "aca", "gap", "last"))


@pytest.mark.parametrize("metric", ["amq", "rounds to amp 60", "rounds to amp", "rounds to amp 1.0", ""])
def test_an_unknown_metric_is_refused(metric: str) -> None:
    with pytest.raises(DataError, match="there is no metric"):
        value_of(run(), "aca", metric, "last")


def test_a_note_or_a_round_that_there_is_not_is_refused() -> None:
    for metric, when in (("note weight", "last"), ("rounds to amq 0.5", "last"), ("amp", "best by luck")):
        with pytest.raises(UsageError):
            value_of(run(), "aca", metric, when)


def test_a_target_of_a_metric_that_should_be_low_is_refused() -> None:
    """The first round at or above a loss of 0.5 says nothing."""
    with pytest.raises(DataError, match="'loss'"):
        value_of(run(), "aca", "rounds to loss 0.5", "last")


def untested() -> Run:
    scores = {"amp": 0.5, "test": None, "validation": None}
    return Run({"label": "FedAvg", "seed": 0}, tuple({"round": t, "views": {"aca": scores}} for t in (1, 2)))


@pytest.mark.parametrize(
    ("metric", "when"),
    [
        ("test", "last"),
        ("amp", "best by test"),
        ("amp", "best by validation"),
        ("test", "mean of last 2"),
        ("bytes_total", "last"),
        ("training_seconds", "last"),
        ("fm", "last"),
    ],
)
def test_without_a_test_set_or_a_cost_there_is_no_value(metric: str, when: str) -> None:
    assert math.isnan(value_of(untested(), "aca", metric, when))


def test_a_run_without_a_test_set_has_not_failed_to_reach_a_target() -> None:
    """It would count as twice its rounds, and every other method would beat it."""
    assert math.isnan(value_of(untested(), "aca", "rounds to test 0.5", "last"))
    assert reached_in(untested(), "aca", "test", 0.5) is None


def test_a_method_that_ends_after_a_round_has_missed_the_target_by_as_much_as_any() -> None:
    """Twice the one round that it had would be the fewest rounds of all."""
    once = replace(run(), meta={**run().meta, "experiment": {"rounds": 50}}, rounds=run().rounds[:1])
    assert value_of(once, "aca", "rounds to amp 0.5", "last") == 1.0
    assert value_of(once, "aca", "rounds to amp 0.9", "last") == 100.0


def test_values_leave_out_seeds_views_and_numbers_that_are_not_there() -> None:
    runs = {("", "local", 0): run(), ("", "local", 2): untested()}
    found = Results(ITEM, "smoke", ("",), (0, 1, 2), runs)
    assert found.values(Row("Alone", "local", "aca"), "", "test") == {0: 50.0}
    assert found.values(Row("Alone", "local", "aca"), "", "amp") == {0: 62.5, 2: 50.0}
    assert found.values(Row("Alone", "local", "personal"), "", "amp") == {0: 50.0}
    assert found.values(Row("Alone", "local", "teacher"), "", "amp") == {}
    assert found.values(Row("Alone", "FedMD", "aca"), "", "amp") == {}
    assert found.values(Row("Alone", "local", "aca"), "elsewhere", "amp") == {}


def test_a_claims_round_replaces_the_items() -> None:
    found = Results(ITEM, "smoke", ("",), (0,), {("", "local", 0): run()})
    assert found.values(Row("Alone", "local", "aca"), "", "amp", "best by test") == {0: 50.0}
    by_test = replace(found, item=replace(ITEM, round="best by test"))
    assert by_test.values(Row("Alone", "local", "aca"), "", "amp") == {0: 50.0}
    assert by_test.values(Row("Alone", "local", "aca"), "") == {0: 50.0}, "the item's first metric"
    assert found.values(Row("Alone", "local", "aca"), "") == {0: 75.0}


# Folders


@functools.cache
def job(method: str = "local", seed: int = 0) -> Job:
    return next(one for one in jobs(ITEM, "smoke") if (one.method, one.seed) == (method, seed))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for task in tasks([job(), job(seed=1)], folder):
        make(task)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of the first run's folder, under its own name."""
    shutil.copytree(made / job().folder, tmp_path / job().folder)
    return tmp_path / job().folder


def edit(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    meta = json.loads((place / "run.json").read_text())
    change(meta)
    (place / "run.json").write_text(json.dumps(meta))


def test_recorded_finds_what_is_there_and_names_what_is_missing(made: Path) -> None:
    found = recorded(ITEM, "smoke", made)
    assert set(found.runs) == {("50, 0.1", "local", 0), ("50, 0.1", "local", 1)}
    assert [(one.method, one.seed) for one in found.missing] == [("FedMD", 0), ("FedMD", 1)]
    assert (found.columns, found.seeds) == (("50, 0.1",), (0, 1))
    assert recorded(ITEM, "smoke", made, seeds=[1]).seeds == (1,)
    assert recorded(ITEM, "cpu", made) == Results(ITEM, "cpu", (), (), {})


def test_a_folder_that_is_not_there_or_not_done_holds_nothing(place: Path) -> None:
    assert finished(place, job()) is not None
    assert finished(place.with_name("elsewhere"), job()) is None
    edit(place, lambda meta: meta.update(status="running"))
    assert finished(place, job()) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda meta: meta.update(seed=7), "seed"),
        (lambda meta: meta["experiment"].update(seed=7), "seed"),
        (lambda meta: meta["experiment"].update(rounds=200), "rounds"),
        (lambda meta: meta["experiment"].update(evaluate_every=7), "evaluate_every"),
        (lambda meta: meta["experiment"]["training"].update(lr=9.0), "training.lr"),
        (lambda meta: meta["experiment"]["method"].update(name="fedmd"), "method.name"),
        (lambda meta: meta["experiment"]["partition"].update(alpha=9.0), "partition.alpha"),
        (lambda meta: meta["experiment"]["data"].update(name="mnist"), "data.name"),
        (lambda meta: meta.pop("experiment"), "seed"),
    ],
)
def test_a_folder_with_another_run_is_refused(place: Path, change: Callable[[dict[str, Any]], None], word: str) -> None:
    edit(place, change)
    with pytest.raises(DataError, match=rf"'{place}' holds another run than its name says.*\b{word} is ") as error:
        finished(place, job())
    assert "remove the folder" in str(error.value)


@pytest.mark.parametrize("key", ["engine", "workers", "memory"])
def test_another_engine_is_not_another_run(place: Path, key: str) -> None:
    edit(place, lambda meta: meta["experiment"].update({key: "other"}))
    assert finished(place, job()) is not None


def test_a_folder_renamed_to_another_seed_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / job(seed=1).folder, tmp_path / job().folder)
    with pytest.raises(DataError, match="seed is 1 instead of 0"):
        recorded(ITEM, "smoke", tmp_path)
    with pytest.raises(DataError, match="seed is 1 instead of 0"):
        tasks([job()], tmp_path)


@pytest.mark.parametrize("kept", [0, 1])
def test_records_without_the_last_rounds_are_refused(place: Path, kept: int) -> None:
    """Otherwise an earlier round would be reported as the last one."""
    lines = (place / "rounds.jsonl").read_text().splitlines(keepends=True)
    (place / "rounds.jsonl").write_text("".join([*lines[:kept], lines[kept][:50]]))
    with pytest.raises(DataError, match=f"has the records of {kept} of 2 rounds"):
        finished(place, job())


def test_records_without_a_round_between_are_refused(place: Path) -> None:
    lines = (place / "rounds.jsonl").read_text().splitlines(keepends=True)
    (place / "rounds.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(DataError, match="has the records of 1 of 2 rounds"):
        finished(place, job())


def test_a_run_that_its_method_ended_has_fewer_rounds(place: Path) -> None:
    lines = (place / "rounds.jsonl").read_text().splitlines(keepends=True)
    (place / "rounds.jsonl").write_text(lines[0])
    edit(place, lambda meta: meta.update(stopped_by="method"))
    assert finished(place, job()) is not None
    (place / "rounds.jsonl").write_text("")
    with pytest.raises(DataError, match="has the records of 0 of 1 rounds"):
        finished(place, job())


def test_the_label_of_a_shared_run_does_not_matter(place: Path) -> None:
    assert finished(place, replace(job(), column="another", method="other")) is not None
