"""Runs that share a label but not their settings, and methods that were not run alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedalloy import compare
from fedalloy.errors import UsageError
from fedalloy.storage.differences import differing, told_apart, unequal
from fedalloy.storage.results import Run

EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "workers": 1,
    "method": {"name": "fedavg", "cap": None},
    "training": {"lr": 0.1, "batch": 8},
}


def run(label: str = "FedAvg", seed: int = 0, folder: str | None = None, **changes: Any) -> Run:
    """A run whose experiment has other values in some of its sections."""
    exp = {**EXPERIMENT, "seed": seed}
    for key, value in changes.items():
        exp[key] = {**exp[key], **value} if isinstance(value, dict) and key in exp else value
    return Run(
        {"name": "fedavg", "label": label, "seed": seed, "experiment": exp}, (), Path(folder) if folder else None
    )


def labels(*runs: Run) -> list[str]:
    return [one.label for one in told_apart(runs)]


def test_keys_come_in_the_order_of_the_experiment_and_free_ones_not_at_all() -> None:
    one = {"rounds": 1, "model": {"name": "mlp"}, "data": {"name": "tiny", "size": 8}, "stop": {}}
    other = {"rounds": 2, "model": {"name": "lenet5"}, "data": {"name": "tiny"}, "public": {"data": "own"}}
    assert differing([one, other]) == {
        "model.name": ["mlp", "lenet5"],
        "data.size": [8, None],
        "public.data": [None, "own"],
    }
    assert list(differing([one, other], free=["model", "data"])) == ["rounds", "public.data"]
    assert differing([one, one, one]) == {}


def test_runs_that_differ_in_the_seed_keep_their_label() -> None:
    assert labels(run(), run(seed=1), run(seed=2, workers=4, engine="pool", memory="1GB", methods={"local": {}})) == [
        *("FedAvg", "FedAvg", "FedAvg")
    ]


def test_runs_that_differ_in_more_are_named_by_it() -> None:
    found = [run(), run("Local"), run(training={"lr": 0.5}), run(seed=1), run("Local", seed=1, training={"lr": 0.1})]
    assert labels(*found) == [
        *("FedAvg, training.lr = 0.1", "Local", "FedAvg, training.lr = 0.5", "FedAvg, training.lr = 0.1", "Local")
    ]
    assert [one.label for one in found] == ["FedAvg", "Local", "FedAvg", "FedAvg", "Local"]  # as they were
    assert labels(run(), run(training={"lr": 0.5, "batch": 16}), run(training={"batch": 16})) == [
        "FedAvg, training.lr = 0.1, training.batch = 8",
        "FedAvg, training.lr = 0.5, training.batch = 16",
        "FedAvg, training.lr = 0.1, training.batch = 16",
    ]


def test_a_longer_run_is_not_another_seed_of_a_shorter_one() -> None:
    assert labels(run(), run(seed=1, rounds=9)) == ["FedAvg, rounds = 3", "FedAvg, rounds = 9"]


def test_what_is_left_out_is_not_named() -> None:
    assert labels(run(), run(method={"cap": 0.5})) == ["FedAvg", "FedAvg, method.cap = 0.5"]
    assert labels(run(), run(privacy={"budget": 2.0})) == ["FedAvg", "FedAvg, privacy.budget = 2.0"]


def test_a_key_that_did_not_exist_yet_has_its_default() -> None:
    shared = {"fraction": 0.5, "skips": 5}  # the defaults
    assert labels(run(), run(seed=1, quorum=shared)) == ["FedAvg", "FedAvg"]
    assert labels(run(), run(seed=1, quorum={**shared, "skips": 7})) == [
        *("FedAvg, quorum.skips = 5", "FedAvg, quorum.skips = 7")
    ]
    assert unequal([run(), run("Local", quorum=shared), run("KDIA", participation={"policy": "full"})]) == []
    assert "quorum.skips is 5 (FedAvg), 7 (Local)" in unequal([run(), run("Local", quorum={"skips": 7})])[0]
    old, new = (run(seed=seed, method={"name": "fedprox", **more}) for seed, more in enumerate([{}, {"mu": 0.01}]))
    assert labels(old, new) == ["FedAvg", "FedAvg"]
    assert labels(old, run(seed=1, method={"name": "fedprox", "mu": 1.0})) == [
        *("FedAvg, method.mu = 0.01", "FedAvg, method.mu = 1.0")
    ]


def test_how_often_rounds_are_evaluated_counts_only_if_one_of_them_is_chosen() -> None:
    often, rarely = run(evaluate_every=1), run("FedAvg", seed=1, evaluate_every=3)
    assert [one.label for one in told_apart([often, rarely])] == ["FedAvg", "FedAvg"]
    assert [one.label for one in told_apart([often, rarely], "best by amp")] == [
        *("FedAvg, evaluate_every = 1", "FedAvg, evaluate_every = 3")
    ]
    other = run("Local", evaluate_every=3)
    assert unequal([often, other]) == []
    assert "evaluate_every is 1 (FedAvg), 3 (Local)" in unequal([often, other], "mean of last 10")[0]


def test_the_default_of_an_option_is_that_of_the_runs_variant() -> None:
    told = {"name": "dafkd", "variant": "reference"}
    assert labels(run(method=told), run(seed=1, method={**told, "distil_steps": 1600})) == ["FedAvg", "FedAvg"]


def test_the_same_run_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"two runs of FedAvg have the same experiment and the seed 0; leave one"):
        told_apart([run(), run(seed=1), run()])
    with pytest.raises(UsageError, match=r"FedAvg, training.lr = 0.1 have .* the seed 0 \('a' and 'c'\); leave one"):
        told_apart([run(folder="a"), run(training={"lr": 0.5}, folder="b"), run(folder="c")])


def test_methods_in_different_settings_do_not_compare() -> None:
    assert unequal([run(), run("FedProx", method={"name": "fedprox"}), run("FedProx", seed=1)]) == []
    assert unequal([run(), run(training={"lr": 0.5})]) == []  # of one label: their names say so
    (sentence,) = unequal([run(), run("Local", training={"lr": 0.5}), run("FedProx", stop={"target": 0.9})])
    assert "training.lr is 0.1 (FedAvg, FedProx), 0.5 (Local); " in sentence
    assert "stop.target is not set (FedAvg, Local), 0.9 (FedProx)." in sentence
    (sentence,) = unequal([run(), run("Local", training=dict.fromkeys("abcdef", 1))])
    assert sentence.endswith("training.d is not set (FedAvg), 1 (Local); 2 more keys differ.")


def test_values_that_would_fill_a_sentence_are_counted_and_not_cut() -> None:
    tables = [{"name": "mlp", "hidden": [width], "share": 0.25} for width in (4, 8, 16, 32)]
    (sentence,) = unequal([run(), run("KnFu", models=tables), run("Local", models=tables)])
    assert sentence.endswith(" models is not set (FedAvg), 4 tables (KnFu, Local).")
    (sentence,) = unequal([run(), run("Local", models=[tables[0]])])
    assert sentence.endswith("models is not set (FedAvg), 1 table (Local).")
    speeds = [float(n) for n in range(100)]
    (sentence,) = unequal([run(speeds=speeds), run("Local", speeds=[*speeds[:-1], 7.5])])  # not one and the same
    assert sentence.endswith("comparable: speeds is 100 values (FedAvg), 100 values (Local).")
    (sentence,) = unequal([run(tiers=[0, 1]), run("Local", tiers=[], start="a" * 70)])
    assert sentence.endswith(f"tiers is [0, 1] (FedAvg), [] (Local); start is not set (FedAvg), {'a' * 57}... (Local).")


def test_how_a_method_aggregates_is_part_of_the_method():
    runs = compare(
        {"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 3, "alpha": 1.0}},
        ["fedavg", "qffl", "feddisco", "local"],
    )
    assert unequal(runs) == []


def test_a_bound_that_not_all_methods_have_is_told():
    said: list[str] = []
    small = {"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 3, "alpha": 1.0}}
    runs = compare({**small, "aggregation": {"combine": "median"}}, ["fedavg", "qffl"], say=said.append)
    assert any("q-FFL" in line and "combine = 'median'" in line for line in said)
    assert "aggregation.combine is median (FedAvg), mean (q-FFL)" in unequal(runs)[0]
