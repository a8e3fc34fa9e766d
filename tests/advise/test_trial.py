"""Which methods are compared for advice, and how the time that was given limits them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalloy import experiment
from fedalloy.advise import trial
from fedalloy.errors import UsageError
from fedalloy.federation.core import methods

TINY = {"data": "tiny", "model": "mlp", "partition": {"name": "iid", "clients": 3}, "rounds": 2}


def test_candidates_are_all_methods_but_bounds_and_controls():
    found = trial.candidates(experiment({}))
    assert list(found)[:2] == ["local-converged", "fedavg"]
    assert {"kdia", "knfu", "fedkf", "dafkd", "fedmd-global"} <= found.keys()
    others = found.keys() - {"local-converged"}
    assert others == {name for name, method in methods.items() if method.card.role == "method"}


def test_an_experiment_can_name_the_candidates_with_their_options():
    exp = experiment({"methods": {"mild": {"name": "fedprox", "mu": 0.001}}})
    found = trial.candidates(exp)
    assert list(found) == ["local-converged", "fedavg", "mild"]
    assert found["mild"].options == {"mu": 0.001}


class Clock:
    """A clock that advances by a fixed amount whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_local_training_and_fedavg_are_compared_even_without_time(tmp_path: Path):
    exp = experiment({**TINY, "methods": {"fedprox": {}, "fedavgm": {}}})
    found = trial.tried(exp, [0], 1.0, tmp_path, clock=Clock(1.0))
    assert {run.name for run in found.runs} == {"local-converged", "fedavg"}
    assert set(found.slow) == {"fedprox", "fedavgm"}


def test_with_time_all_fitting_methods_are_compared_with_all_seeds(tmp_path: Path):
    exp = experiment({**TINY, "methods": {"fedprox": {}, "knfu": {}}})
    found = trial.tried(exp, [0, 1], 1e6, tmp_path, clock=Clock(0.0))
    assert sorted((run.name, run.seed) for run in found.runs) == [
        (name, seed) for name in ("fedavg", "fedprox", "local-converged") for seed in (0, 1)
    ]
    assert list(found.unfit) == ["knfu"]  # needs a public set
    assert "public" in found.unfit["knfu"]
    assert not found.slow


def test_a_method_whose_full_run_would_take_too_long_is_left_out_with_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trial, "_cost", lambda _, key, *__: {"fedavgm": 5.0, "fedprox": 500.0}[key])
    exp = experiment({**TINY, "methods": {"fedprox": {}, "fedavgm": {}}})
    found = trial.tried(exp, [0], 100.0, tmp_path, clock=Clock(0.0))
    assert "fedavgm" in {run.name for run in found.runs}
    assert found.slow == {"fedprox": 500.0}


def test_an_error_of_the_experiment_is_raised_and_not_blamed_on_a_method(tmp_path: Path):
    exp = experiment({**TINY, "partition": {"name": "natural"}})
    with pytest.raises(UsageError, match="client"):
        trial.tried(exp, [0], 10.0, tmp_path)


def test_quick_methods_are_compared_before_a_slow_trial_takes_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = Clock(0.0)

    def cost(_: object, key: str, *__: object) -> float:
        clock.now += {"fedprox": 1.0, "moon": 90.0, "fedavgm": 1.0}[key]
        return {"fedprox": 3.0, "moon": 900.0, "fedavgm": 3.0}[key]

    monkeypatch.setattr(trial, "_cost", cost)
    exp = experiment({**TINY, "methods": {"fedprox": {}, "moon": {}, "fedavgm": {}}})
    found = trial.tried(exp, [0], 100.0, tmp_path, clock=clock)
    assert "fedprox" in {run.name for run in found.runs}
    assert found.slow == {"moon": 900.0, "fedavgm": 0.0}  # the trial of MOON took the time for further ones


def test_a_method_that_takes_far_longer_than_its_first_round_promised_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "_cost", lambda *_: 1e-6)
    monkeypatch.setattr(trial, "LEAST", 0.0)
    exp = experiment({**TINY, "methods": {"fedprox": {}}})
    found = trial.tried(exp, [0], 60.0, tmp_path)
    assert [run.name for run in found.runs] == ["local-converged", "fedavg"]
    assert found.slow.keys() == {"fedprox"}
