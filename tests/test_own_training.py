"""Keys of [training] that a method has for itself: merged, run, recorded, resumed and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedalloy import FedProx, UsageError, compare, experiment, resume, simulate
from fedalloy.check.attack_bench import bench_attacks
from fedalloy.config.build import build
from fedalloy.config.methods import for_method, make_method, naming
from fedalloy.config.overrides import override
from fedalloy.run.comparison import key_of
from fedalloy.storage.differences import told_apart, unequal
from fedalloy.storage.results import Run
from fedalloy.train.fit import LocalWork

SMALL: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [4]},
    "partition": {"name": "dirichlet", "clients": 3, "alpha": 1.0},
    "rounds": 2,
    "engine": "serial",
    "training": {"work": "fixed_steps", "steps": 3, "batch": 16, "lr": 0.1},
}
OWN = {"work": "epochs", "epochs": 2, "lr": 0.02}
SEVERAL = {**SMALL, "methods": {"fedavg": {}, "qffl": {"training": OWN}, "fedprox": {}}}


def told(run: Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k not in ("seconds", "memory")} for r in run.rounds]


def test_a_methods_keys_are_merged_over_the_common_ones() -> None:
    exp = experiment(SEVERAL)
    own = for_method(exp, exp.methods["qffl"])
    assert own.training == LocalWork(work="epochs", epochs=2, batch=16, lr=0.02)  # steps = 3 has no effect here
    assert (own.method.name, own.methods, for_method(own)) == ("qffl", {}, own)
    assert for_method(exp, exp.methods["fedavg"]).training == exp.training == LocalWork(**SMALL["training"])


@pytest.mark.parametrize(
    ("common", "own", "merged"),
    [
        ({"work": "equal_steps", "epochs": 10}, {"work": "epochs"}, {"work": "epochs", "epochs": 10}),
        ({"momentum": 0.9, "lr": 0.1}, {"optimiser": "adam"}, {"optimiser": "adam", "lr": 0.1}),
        ({"schedule": "cosine", "horizon": 7}, {"schedule": "constant"}, {}),
        ({"epochs": 5}, {"work": "fixed_steps", "steps": 2}, {"work": "fixed_steps", "steps": 2}),
    ],
)
def test_what_has_no_effect_with_a_methods_choice_is_reset(
    common: dict[str, Any], own: dict[str, Any], merged: dict[str, Any]
) -> None:
    exp = experiment({"training": common, "method": {"name": "fedavg", "training": own}})
    assert for_method(exp).training == LocalWork(**merged)
    assert experiment(for_method(exp).to_dict()) == for_method(exp)  # as a run records it


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"methods": {"qffl": {"training": {"lrr": 0.1}}}}, "training has no key 'lrr'"),
        ({"methods": {"qffl": {"training": {"lr": -1.0}}}}, r"training\.lr = -1\.0"),
        ({"method": {"name": "qffl", "training": {"lr": "fast"}}}, r"training\.lr = 'fast'"),
        ({"method": {"name": "qffl", "training": 3}}, r"method\.training = 3"),
        ({"model": {"name": "mlp", "training": {"lr": 0.1}}}, "model has no key 'training'"),
    ],
)
def test_keys_that_are_wrong_are_refused_as_in_the_section(part: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        experiment(part)


def test_a_comparison_runs_each_method_as_it_would_run_alone(tmp_path: Path) -> None:
    fedavg, qffl, fedprox = compare(SEVERAL, folder=tmp_path)
    assert [run.label for run in (fedavg, qffl, fedprox)] == ["FedAvg", "q-FFL", "FedProx"]
    alone = {**SMALL, "training": {"batch": 16, **OWN}, "method": "qffl"}
    assert told(qffl) == told(simulate(alone))
    assert told(fedprox) == told(simulate({**SMALL, "method": "fedprox"}))
    recorded = qffl.meta["experiment"]
    assert {**recorded["training"], **OWN, "batch": 16} == recorded["training"]
    assert fedavg.meta["experiment"]["training"]["work"] == "fixed_steps"


def test_run_takes_the_keys_of_the_method_that_it_chooses(tmp_path: Path) -> None:
    exp = experiment(override(SEVERAL, ["method=qffl", "method.training.epochs=1"]))
    assert (key_of(exp), for_method(exp).training.epochs) == ("qffl", 1)
    assert build(exp).setting.work == LocalWork(batch=16, work="epochs", lr=0.02)
    whole = simulate(exp, tmp_path / "whole")
    simulate({**exp.to_dict(), "rounds": 1}, tmp_path / "part")
    assert told(resume(tmp_path / "part", rounds=2)) == told(whole)


def test_a_comparison_goes_on_with_the_methods_own_keys(tmp_path: Path) -> None:
    whole = compare(SEVERAL)
    compare({**SEVERAL, "rounds": 1}, folder=tmp_path)
    assert [told(run) for run in compare(SEVERAL, folder=tmp_path)] == [told(run) for run in whole]


def test_a_pool_carries_methods_that_train_differently() -> None:
    with_workers = {**SEVERAL, "engine": "pool", "workers": 2, "rounds": 1}
    assert [told(run) for run in compare(with_workers)] == [told(run)[:1] for run in compare({**SEVERAL, "rounds": 1})]


def test_the_same_keys_in_another_place_are_the_same_run(tmp_path: Path) -> None:
    simulate({**SMALL, "training": {"batch": 16, **OWN}, "method": "qffl", "rounds": 1}, tmp_path / "qffl-seed0")
    assert len(compare(SEVERAL, ["qffl"], folder=tmp_path)[0].rounds) == 2


def test_a_method_made_in_python_has_the_keys_of_its_own_table_only() -> None:
    exp = experiment({**SMALL, "rounds": 1, "method": {"name": "qffl", "training": OWN}})
    assert simulate(exp, method=FedProx()).meta["experiment"]["training"]["steps"] == 3


def test_the_server_names_the_merged_keys_to_its_clients() -> None:
    exp = experiment({**SMALL, "method": {"name": "qffl", "training": OWN}})
    assert naming(exp, make_method(exp)).training == for_method(exp).training


def test_a_difference_that_the_file_asks_for_is_told_and_is_no_fault() -> None:
    runs = compare({**SEVERAL, "rounds": 1})
    (sentence,) = unequal(runs)
    assert "not comparable" not in sentence
    assert "training.lr is 0.1 (FedAvg, FedProx), 0.02 (q-FFL)" in sentence
    other = simulate({**SMALL, "rounds": 1, "method": "moon", "training": {**SMALL["training"], "lr": 0.3}})
    sentences = unequal([*runs, other])
    assert "not comparable: training.lr is 0.1 (FedAvg, FedProx), 0.02 (q-FFL), 0.3 (MOON)" in sentences[0]
    assert "training.work is fixed_steps (FedAvg, FedProx, MOON), epochs (q-FFL)" in sentences[1]


def test_runs_of_one_label_are_told_apart_by_what_they_trained_with() -> None:
    runs = [simulate({**SMALL, "rounds": 1, "method": {"name": "fedavg", "training": {"lr": lr}}}) for lr in (0.1, 0.2)]
    assert [run.label for run in told_apart(runs)] == ["FedAvg, training.lr = 0.1", "FedAvg, training.lr = 0.2"]


def test_attacks_meet_methods_that_train_differently() -> None:
    exp = {**SEVERAL, "rounds": 1, "methods": {"fedavg": {}, "slow": {"name": "fedavg", "training": {"lr": 1e-6}}}}
    scores = {score.method: score.accuracy for score in bench_attacks(exp, attacks=["nan"]) if score.attack == "none"}
    assert scores["FedAvg"] != scores["slow"]


@pytest.mark.parametrize(
    ("keys", "idle"),
    [
        ({"steps": 3}, "steps"),
        ({"work": "equal_steps", "steps": 3}, "steps"),
        ({"work": "fixed_steps", "epochs": 3}, "epochs"),
        ({"horizon": 5}, "horizon"),
        ({"schedule": "step", "horizon": 5}, "horizon"),
        ({"schedule": "cosine", "step_every": 5}, "step_every"),
        ({"step_factor": 0.5}, "step_factor"),
        ({"optimiser": "adam", "momentum": 0.9}, "momentum"),
    ],
)
def test_a_key_without_an_effect_is_refused(keys: dict[str, Any], idle: str) -> None:
    for values in ({"training": keys}, {"methods": {"slow": {"name": "fedavg", "training": keys}}}):
        with pytest.raises(UsageError, match=rf"training\.{idle} has no effect"):
            experiment(values)


def test_a_method_that_passes_over_data_is_not_disturbed_by_a_number_of_steps() -> None:
    assert simulate({**SMALL, "rounds": 1, "method": {"name": "local", "second_phase": 1}}).rounds
