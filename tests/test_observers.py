"""Observers are told what happens in a run, and cannot change it."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedalloy import Observer, ObserverWarning, Run, UsageError, compare, resume, simulate
from fedalloy.config import build as build_module
from fedalloy.data import load_data
from fedalloy.storage.results import read

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 3,
    "partition": {"name": "iid", "clients": 2},
    "engine": "serial",
}


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


class Notes(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.runs: list[Run] = []

    def begin(self, run: Run) -> None:
        self.told.append(("begin", run.label, run.seed, len(run.rounds)))
        self.runs.append(run)

    def round(self, record: Mapping[str, Any]) -> None:
        self.told.append(record["round"])

    def end(self, run: Run, error: BaseException | None) -> None:
        self.told.append(("end", run.meta["status"], len(run.rounds), type(error)))
        self.runs.append(run)


class Failing(Observer):
    """Fails where it is told to, and counts how often it is called."""

    def __init__(self, where: str, error: type[BaseException] = ValueError) -> None:
        self.where, self.error, self.calls = where, error, 0

    def _called(self, where: str) -> None:
        self.calls += 1
        if where == self.where:
            raise self.error("no disk")

    def begin(self, run: Run) -> None:
        self._called("begin")

    def round(self, record: Mapping[str, Any]) -> None:
        self._called("round")

    def end(self, run: Run, error: BaseException | None) -> None:
        self._called("end")


def told(run: Run) -> list[dict[str, Any]]:
    """Records without what no two runs share."""
    return [{key: value for key, value in r.items() if key not in ("seconds", "memory")} for r in run.rounds]


def stopped(folder: Path, *observers: Observer, after: int = 1) -> None:
    """A run that the user stops after a round."""

    def watch(record: Mapping[str, Any]) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(TINY, folder, watch=watch, observers=observers)


def test_an_observer_is_told_of_the_beginning_each_round_and_the_end() -> None:
    notes = Notes()
    run = simulate(TINY, observers=[notes])
    none = type(None)
    assert notes.told == [("begin", "FedAvg", 0, 0), 1, 2, 3, ("end", "done", 3, none)]
    assert notes.runs[0].meta["experiment"]["training"] == run.meta["experiment"]["training"]
    assert notes.runs[0].meta["status"] == "running"
    assert notes.runs[-1] == run


def test_of_an_interrupted_run_it_is_told_why_and_what_there_was_before_when_it_is_resumed(tmp_path: Path) -> None:
    notes = Notes()
    stopped(tmp_path / "run", notes, after=2)
    assert notes.told[-2:] == [2, ("end", "running", 2, KeyboardInterrupt)]
    again = Notes()
    resume(tmp_path / "run", observers=[again])
    assert again.told == [("begin", "FedAvg", 0, 2), 3, ("end", "done", 3, type(None))]
    assert again.runs[0].folder == tmp_path / "run"
    finished = Notes()
    resume(tmp_path / "run", observers=[finished])
    assert finished.told == [("begin", "FedAvg", 0, 3), ("end", "done", 3, type(None))]


def test_a_comparison_tells_of_one_run_after_the_other(tmp_path: Path) -> None:
    notes = Notes()
    exp = {**TINY, "rounds": 1}
    compare(exp, ["fedavg", "fedprox"], seeds=[0, 1], folder=tmp_path / "runs", observers=[notes])
    begun = [one[1:3] for one in notes.told if isinstance(one, tuple) and one[0] == "begin"]
    assert begun == [("FedAvg", 0), ("FedProx", 0), ("FedAvg", 1), ("FedProx", 1)]
    again = Notes()
    compare({**exp, "rounds": 2}, ["fedavg"], folder=tmp_path / "runs", observers=[again])
    assert again.told == [("begin", "FedAvg", 0, 1), 2, ("end", "done", 2, type(None))]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize(("where", "calls"), [("begin", 1), ("round", 2), ("end", 5)])
def test_one_that_fails_is_named_once_and_the_run_goes_on(where: str, calls: int, error: type[BaseException]) -> None:
    failing, notes = Failing(where, error), Notes()
    with pytest.warns(ObserverWarning, match="Failing") as caught:
        run = simulate(TINY, observers=[failing, notes])
    assert len(caught) == 1
    assert failing.calls == calls
    assert len(notes.told) == 5
    assert told(run) == told(simulate(TINY))


def test_it_cannot_stop_a_run_even_where_warnings_are_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(simulate(TINY, observers=[Failing("round")]).rounds) == 3


def test_the_user_can_still_stop_a_run_while_an_observer_is_at_work(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        simulate(TINY, tmp_path / "run", observers=[Failing("round", KeyboardInterrupt)])
    assert len(read(tmp_path / "run").rounds) == 1


def test_what_it_does_to_its_copies_and_to_streams_changes_no_bit(tmp_path: Path) -> None:
    class Vandal(Observer):
        def begin(self, run: Run) -> None:
            dict.clear(run.meta)  # type: ignore[arg-type]

        def round(self, record: Mapping[str, Any]) -> None:
            import numpy as np
            import torch

            random.random()  # on purpose
            np.random.random()  # on purpose  # noqa: NPY002
            torch.rand(1)  # on purpose
            for view in record["views"].values():
                view["amp"] = 0.0
                view["clients"]["accuracy"][:] = []
            dict.clear(record)  # type: ignore[arg-type]

        def end(self, run: Run, error: BaseException | None) -> None:
            dict.clear(run.meta)  # type: ignore[arg-type]

    run = simulate(TINY, tmp_path / "run", observers=[Vandal()])
    plain = simulate(TINY, tmp_path / "plain")
    assert told(run) == told(plain) == told(read(tmp_path / "run"))
    describe = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("run", "plain")]
    assert describe[0] == describe[1]


@pytest.mark.parametrize("given", [Notes, [Notes], [print], ["tensorboard"]])
def test_what_is_no_observer_is_refused_before_anything_runs(given: Any, tmp_path: Path) -> None:
    for start in (simulate, compare):
        with pytest.raises(UsageError, match="observers"):
            start(TINY, folder=tmp_path / "run", observers=given)
    assert not (tmp_path / "run").exists()
