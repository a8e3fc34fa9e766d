"""Making runs: each once, resumed to the same bits, and what stops, damages or doubles a run."""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedalloy.base.files import locked
from fedalloy.config.sections import Choice
from fedalloy.errors import DataError, FedalloyError, StorageError, UsageError
from fedalloy.reproduce import making
from fedalloy.reproduce.catalogue import Item, Row, Scale
from fedalloy.reproduce.making import UNFINISHED, Task, estimate, make, make_all, make_item, tasks
from fedalloy.reproduce.plan import Job, jobs
from fedalloy.reproduce.results import finished
from fedalloy.storage.results import Run, read

ITEM = Item(
    "table1",
    "a table",
    "4",
    "scores",
    full=Scale(),
    cpu=Scale(),
    smoke=Scale(experiment="knfu-mnist", columns=("50, 0.1",), seeds=(0, 1)),
    rows=(Row("KnFu", "knfu", "personal"), Row("Alone", "local", "personal")),
    metrics=("alma",),
    paper="knfu",
)


@functools.cache
def planned() -> list[Job]:
    return jobs(ITEM, "smoke")


def kept_round(folder: Path) -> dict[str, object]:
    """Something that is taken from a checkpoint."""
    assert (folder / "checkpoints").is_dir()
    return {"round": 2}


def numbers(folder: Path) -> list[Mapping[str, Any]]:
    """All that is recorded, but for the time it took and the memory it needed."""
    return [{k: v for k, v in record.items() if k not in ("seconds", "memory")} for record in read(folder).rounds]


def stopped_after(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """As if the process were killed after so many rounds."""

    def watch(record: Mapping[str, Any]) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(making, "watched", lambda *_: watch)


def test_a_run_that_several_items_need_is_there_once(tmp_path: Path) -> None:
    other = [replace(job, column="another name") for job in planned()]
    todo = tasks([*planned(), *other], tmp_path)
    assert [task.job.folder for task in todo] == [job.folder for job in planned()]
    make(todo[0])
    assert [task.job.folder for task in tasks([*planned(), *other], tmp_path)] == [job.folder for job in planned()[1:]]


def test_only_records_are_kept_of_a_finished_run(tmp_path: Path) -> None:
    (task, *_) = tasks(planned(), tmp_path, kept_round)
    run = make(task)
    assert sorted(path.name for path in task.place.iterdir()) == ["extra.json", "rounds.jsonl", "run.json"]
    assert json.loads((task.place / "extra.json").read_text()) == {"round": 2}
    assert list((tmp_path / UNFINISHED).iterdir()) == []
    assert (run.label, run.seed, run.meta["experiment"]["engine"]) == ("KnFu", 0, "serial")
    assert finished(task.place, task.job) is not None


def test_a_run_is_the_jobs_experiment_on_one_core() -> None:
    for job in planned():
        exp = Task(replace(job, experiment=replace(job.experiment, engine="pool", workers=2)), Path()).experiment
        assert (exp.engine, exp.seed) == ("serial", job.seed)
        assert exp.method.name == make_name(job)


def make_name(job: Job) -> str:
    return str(job.identity["experiment"]["method"]["name"])


def test_a_stopped_run_is_resumed_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole, *_) = tasks(planned(), tmp_path / "whole")
    make(whole)
    (task, *_) = tasks(planned(), tmp_path / "stopped")
    with monkeypatch.context() as patch:
        stopped_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            make(task)
    assert not task.place.exists()
    assert len(read(task.workplace).rounds) == 1
    assert tasks(planned(), tmp_path / "stopped")[0].job.folder == task.job.folder
    monkeypatch.setattr(making, "simulate", None)  # it is not started again
    make(task)
    assert numbers(task.place) == numbers(whole.place)
    assert not task.workplace.exists()


def test_what_is_made_again_has_the_same_numbers(tmp_path: Path) -> None:
    """A run that lacks what a figure takes from its checkpoint is made again, and takes the old one's place."""
    (task, *_) = tasks(planned(), tmp_path)
    make(task)
    before = numbers(task.place)
    (again, *_) = tasks(planned(), tmp_path, kept_round)
    assert again.job.folder == task.job.folder
    make(again)
    assert numbers(task.place) == before
    assert (task.place / "extra.json").is_file()
    assert task.job.folder not in [one.job.folder for one in tasks(planned(), tmp_path, kept_round)]


def test_one_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    todo = tasks(planned()[:2], tmp_path)
    bad = replace(todo[0], job=replace(todo[0].job, choice=Choice(name="knfu", options={"beta": -1.0})))
    said: list[str] = []
    failed = make_all([bad, todo[1]], processes=1, expected={}, say=said.append)
    assert len(failed) == 1
    assert failed[0].startswith("KnFu, 50, 0.1, seed 0: ")
    assert said[0] == failed[0]
    assert todo[1].place.is_dir()
    assert not bad.place.exists()


@pytest.mark.parametrize("error", [StorageError("no space"), OSError(errno.ENOSPC, "No space left on device")])
def test_a_full_disk_is_told_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(folder: Path) -> dict[str, object]:
        raise error

    todo = tasks(planned()[:2], tmp_path)
    make(todo[0])
    before = numbers(todo[0].place)
    (again,) = tasks(planned()[:1], tmp_path, full)
    (message,) = make_all([again], processes=1, expected={}, say=lambda _: None)
    assert "space" in message.lower()
    assert numbers(todo[0].place) == before, "the old run stays until the new one is whole"
    make(replace(again, extract=kept_round))
    assert numbers(todo[0].place) == before


def test_remains_after_the_last_step_are_removed_later(tmp_path: Path) -> None:
    """A process that is killed right after the rename leaves its checkpoints in the results."""
    item = replace(ITEM, rows=ITEM.rows[:1], smoke=replace(ITEM.smoke, seeds=(0,)))
    (task,) = tasks(jobs(item, "smoke"), tmp_path)
    make(task)
    (task.place / "checkpoints").mkdir()
    (task.place / "checkpoints" / "0001.safetensors").write_bytes(b"large")
    (task.place / "run.lock").write_bytes(b"")
    said: list[str] = []
    make_item(item, "smoke", tmp_path, processes=1, say=said.append, measure=False)
    assert said == ["all 1 runs are there"]
    assert sorted(path.name for path in task.place.iterdir()) == ["rounds.jsonl", "run.json"]


def test_two_processes_do_not_make_the_same_run(tmp_path: Path) -> None:
    (task, *_) = tasks(planned(), tmp_path)
    os.makedirs(task.workplace.parent)
    with locked(task.lock), pytest.raises(UsageError, match="is being written by process"):
        make(task)
    assert not task.workplace.exists()


def test_what_another_process_has_made_since_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was missing when the tasks were listed."""
    (task, *_) = tasks(planned(), tmp_path)
    make(task)
    before = (task.place / "rounds.jsonl").read_bytes()
    monkeypatch.setattr(making, "simulate", None)
    assert make(task).folder == task.place
    assert (task.place / "rounds.jsonl").read_bytes() == before


def test_another_run_in_the_workplace_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _, second, _) = tasks(planned(), tmp_path)
    assert (first.job.method, second.job.method, second.job.seed) == ("knfu", "knfu", 1)
    with monkeypatch.context() as patch:
        stopped_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            make(second)
    second.workplace.rename(first.workplace)
    with pytest.raises(DataError, match="holds another run than its name says: seed is 1 instead of 0"):
        make(first)
    assert not first.place.exists()


def test_a_run_that_cannot_be_resumed_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (task, *_) = tasks(planned(), tmp_path)
    with monkeypatch.context() as patch:
        stopped_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            make(task)
    meta = json.loads((task.workplace / "run.json").read_text())
    for file in (task.workplace / "run.json", task.workplace / "checkpoints" / "description.json"):
        file.write_text(json.dumps({**meta, "versions": {**meta["versions"], "torch": "1.0"}}))
    with pytest.raises(FedalloyError, match=f"torch has changed.*remove '{task.workplace}'"):
        make(task)


def test_an_unfinished_run_among_the_results_is_made(tmp_path: Path) -> None:
    (task, *_) = tasks(planned(), tmp_path)
    make(task)
    meta = json.loads((task.place / "run.json").read_text())
    (task.place / "run.json").write_text(json.dumps({**meta, "status": "running"}))
    (again, *_) = tasks(planned(), tmp_path)
    make(again)
    assert finished(task.place, task.job) is not None


def test_progress_has_an_estimate_that_learns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    todo = tasks(planned(), tmp_path)
    took = [20.0, DataError("no data"), 10.0, 30.0]
    monkeypatch.setattr(making, "_each", lambda todo, processes: zip(todo, took, strict=True))
    said: list[str] = []
    failed = make_all(todo, processes=2, expected={task.job.folder: 10.0 for task in todo}, say=said.append)
    assert failed == ["Local, equal rounds, 50, 0.1, seed 0: no data"]
    assert said == [
        "KnFu, 50, 0.1, seed 0: 20.0 s; about 30.0 s left",  # three of 10 s, at twice the time, by two processes
        "Local, equal rounds, 50, 0.1, seed 0: no data",
        "KnFu, 50, 0.1, seed 1: 10.0 s; about 7.5 s left",
        "Local, equal rounds, 50, 0.1, seed 1: 30.0 s",
    ]


def test_the_estimate_is_that_of_a_round_of_each_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured: list[Task] = []

    class Pool:
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def map(self, _: object, kinds: Any) -> list[float]:
            measured.extend(kinds)
            return [3.0 if task.job.method == "knfu" else 1.0 for task in measured]

    monkeypatch.setattr(making, "_pool", lambda _: Pool())
    found = estimate(tasks(planned(), tmp_path), 2)
    assert [task.job.method for task in measured] == ["knfu", "local"]
    assert list(found.values()) == [6.0, 2.0, 6.0, 2.0]  # two rounds


def test_an_item_is_made_in_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "estimate", lambda todo, _: {task.job.folder: 90.0 for task in todo})
    said: list[str] = []
    more: dict[str, Any] = {"processes": 1, "say": said.append, "chosen": lambda job: job.method == "local"}
    assert make_item(ITEM, "smoke", tmp_path, **more, only_estimate=True) == []
    assert said == ["2 runs to make, 0 are there; about 3.0 min, measured on two rounds of each"]
    assert not list(tmp_path.iterdir())
    assert make_item(ITEM, "smoke", tmp_path, **more, measure=False, seeds=[1]) == []
    assert said[1] == "1 run to make, 0 are there"
    assert make_item(ITEM, "smoke", tmp_path, **more, measure=False) == []
    assert said[3] == "1 run to make, 1 is there"
    assert make_item(ITEM, "smoke", tmp_path, **more) == []
    assert said[-1] == "all 2 runs are there"
    assert make_item(ITEM, "cpu", tmp_path, **more) == []
    assert said[-1] == "it needs no runs"


def test_a_run_in_another_process_is_the_same(tmp_path: Path) -> None:
    one, other = (tasks(planned()[1:2], tmp_path / name)[0] for name in ("here", "there"))
    make(one)
    assert make_all([other, replace(other, job=planned()[3])], processes=2, expected={}, say=lambda _: None) == []
    assert numbers(one.place) == numbers(other.place)


def test_the_run_that_is_returned_is_the_recorded_one(tmp_path: Path) -> None:
    (task, *_) = tasks(planned(), tmp_path)
    run = make(task)
    assert isinstance(run, Run)
    assert [record["round"] for record in run.rounds] == [record["round"] for record in read(task.place).rounds]
