"""KDIA's computed claims on small records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedalloy.reproduce.catalogue import paper
from fedalloy.reproduce.computed import FUNCTIONS, Function, kdia
from fedalloy.reproduce.results import Results
from fedalloy.storage.results import Run

KDIA = paper("kdia")
SEEDS = (0, 1, 2)


def drawn(sizes: list[int], seed: int, rounds: int = 60, active: int = 4) -> Run:
    """A run in which clients are drawn anew in each round."""
    stream = np.random.default_rng(seed)
    records = [
        {"round": t, "active": sorted(stream.choice(len(sizes), active, replace=False).tolist()), "lost": []}
        for t in range(1, rounds + 1)
    ]
    return Run({"label": "FedAvg", "seed": seed, "clients": {"train_sizes": sizes}}, tuple(records))


def fig5(sizes: dict[str, list[int]]) -> Results:
    runs = {(column, "fedavg", seed): drawn(sizes[column], seed) for column in sizes for seed in SEEDS}
    return Results(KDIA.item("fig5"), "cpu", tuple(sizes), SEEDS, runs)


EQUAL, UNEQUAL = [50] * 40, [10] * 36 + [600] * 4


def test_counts_become_even_and_intervals_do_not() -> None:
    results = fig5(dict.fromkeys(("0.1", "0.5", "5.0"), EQUAL))
    counts, intervals = kdia.participation_variance(results).values, kdia.interval_variance(results).values
    assert counts is not None
    assert intervals is not None
    assert all(0.5 < value < 1 for value in counts.values())
    assert all(value > 0 for value in intervals.values())


@pytest.mark.parametrize(
    ("function", "curve", "value"),
    [
        # Twenty rounds: a tenth of them is the third value, and the second half begins with the eleventh.
        (kdia.participation_variance, [9.0, 7.0, 4.0, *[5.0] * 16, 1.0], 1 - 1 / 4),
        (kdia.participation_variance, [9.0, 7.0, 1.0, *[5.0] * 16, 4.0], 1 - 4),
        (kdia.interval_variance, [2.0, *[50.0] * 9, *[3.0] * 10], 3 / 2 - 1),
        (kdia.interval_variance, [2.0, *[50.0] * 9, *[1.0] * 10], 1 / 2 - 1),
    ],
)
def test_which_rounds_variances_are_compared(
    monkeypatch: pytest.MonkeyPatch, function: Function, curve: list[float], value: float
) -> None:
    two = np.array([[-(variance**0.5), variance**0.5] for variance in curve])  # with this variance over two clients
    monkeypatch.setattr(kdia, "weights", lambda run, use: two)
    assert function(fig5({"0.5": EQUAL})).values == dict.fromkeys(SEEDS, pytest.approx(value))


def test_weights_by_data_are_even_for_equal_clients_and_not_for_unequal_ones() -> None:
    results = fig5({"0.1": UNEQUAL, "0.5": EQUAL, "5.0": EQUAL})
    more, less = kdia.more_even(results).values, kdia.less_even(results).values
    assert more is not None
    assert less is not None
    assert min(more.values()) > 0
    assert min(less.values()) > 0
    turned = fig5({"0.1": EQUAL, "0.5": EQUAL, "5.0": UNEQUAL})
    assert max((kdia.more_even(turned).values or {}).values()) < 0
    assert max((kdia.less_even(turned).values or {}).values()) < 0, "the lower of the two betas counts"


def test_outliers_are_counted_where_they_speak_least_for_the_claim() -> None:
    results = fig5({"0.1": UNEQUAL, "0.5": EQUAL, "5.0": EQUAL})
    by_data = kdia.outliers(kdia.weights(results.runs["0.1", "fedavg", 0], "number")[-1])
    by_three = kdia.outliers(kdia.weights(results.runs["0.5", "fedavg", 0], "all")[-1])
    assert (by_data, kdia.outliers(np.ones(9))) == (4, 0)
    found = kdia.fewer_outliers(results).values
    assert found is not None
    assert found[0] <= -by_three


def kept(folder: Path, **parts: object) -> Run:
    folder.mkdir()
    (folder / "extra.json").write_text(json.dumps(parts))
    return Run({"label": folder.name, "seed": 0}, (), folder)


def test_similarity_is_the_product_of_mean_directions(tmp_path: Path) -> None:
    runs = {
        ("0.5", "kdia", 0): kept(tmp_path / "a", generated_directions=[[0.8, 0.6], [0.0, 1.0], None]),
        ("0.5", "batch-labels", 0): kept(tmp_path / "b", generated_directions=[[0.6, 0.8], [1.0, 0.0], None]),
        ("0.5", "untrained", 0): kept(tmp_path / "c", generated_directions=[[1.0, 0.0], [0.0, 1.0], None]),
        ("0.5", "centralised", 0): kept(tmp_path / "d", real_directions=[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]),
    }
    results = Results(KDIA.item("fig7"), "cpu", ("0.5",), (0,), runs)
    adjusted = kdia.adjusted_similarity(results)
    assert adjusted.values == {0: pytest.approx(0.9 - 0.3)}
    assert "adjusted (0.900) less unadjusted (0.300)" in adjusted.text
    assert kdia.trained_similarity(results).values == {0: pytest.approx(0.9 - 1.0)}
    assert kdia.trained_similarity(Results(results.item, "cpu", ("0.5",), (0, 1), runs)).values is None


def table4(rounds: dict[str, list[float]]) -> Results:
    """Records of Table 4's rows by label: test accuracies of each round."""
    item = KDIA.item("table4")
    runs = {}
    for label, values in rounds.items():
        row = item.row(label)
        records = tuple({"round": t, "views": {row.view: {"amp": 0.1, "test": v}}} for t, v in enumerate(values, 1))
        runs |= {("0.1", row.method, seed): Run({"label": label, "seed": seed}, records) for seed in SEEDS}
    return Results(item, "cpu", ("0.1",), SEEDS, runs)


def test_rounds_to_fedavgs_best() -> None:
    slow, fast, never = [0.1, 0.2, 0.3, 0.4], [0.1, 0.4, 0.3, 0.3], [0.1, 0.1, 0.1, 0.1]
    rivals = {"FedAvg": slow, "MOON": slow, "FedGKD": never, "FedDisco": slow, "FedAvg, triFreqs": never}
    ahead = table4({**rivals, "Ours": fast})
    assert kdia.fewer_rounds(ahead).values == dict.fromkeys(SEEDS, 2.0)
    assert kdia.fewer_rounds_than_control(ahead).values == dict.fromkeys(SEEDS, 6.0)
    assert kdia.fewer_rounds(table4({**rivals, "MOON": fast, "Ours": slow})).values == dict.fromkeys(SEEDS, -2.0)
    assert kdia.fewer_rounds(table4({**rivals, "Ours": slow})).values == dict.fromkeys(SEEDS, 0.0)
    assert kdia.fewer_rounds(table4({"FedAvg": slow, "Ours": fast})).values is None


def in_columns(parts: dict[str, Results]) -> Results:
    """Records of several columns in one."""
    (first, *_) = parts.values()
    runs = {(name, *key[1:]): run for name, part in parts.items() for key, run in part.runs.items()}
    return replace(first, columns=tuple(parts), runs=runs)


def test_rounds_count_where_the_lead_is_least_and_at_beta_a_tenth_only() -> None:
    slow, fast, soon = [0.1, 0.2, 0.3, 0.4], [0.4, 0.4, 0.3, 0.3], [0.1, 0.4, 0.4, 0.4]
    rivals = dict.fromkeys(("FedAvg", "MOON", "FedGKD", "FedDisco"), slow)
    far, near = table4({**rivals, "Ours": fast}), table4({**rivals, "Ours": soon})
    behind = table4({**rivals, "MOON": fast, "Ours": slow})
    found = in_columns({"CIFAR-10, 0.1": far, "CIFAR-100, 0.1": near, "CIFAR-10, 0.5": behind})
    assert kdia.fewer_rounds(replace(found, scale="full")).values == dict.fromkeys(SEEDS, 2.0)


def test_the_best_round_of_fedavg_need_not_be_its_last() -> None:
    falls, ours = [0.1, 0.4, 0.2, 0.2], [0.2, 0.2, 0.2, 0.4]
    found = table4({**dict.fromkeys(("FedAvg", "MOON", "FedGKD", "FedDisco"), falls), "Ours": ours})
    assert kdia.fewer_rounds(found).values == dict.fromkeys(SEEDS, -2.0)


@pytest.mark.parametrize("label", ["FedAvg", "MOON", "Ours"])
def test_a_row_without_a_test_set_has_not_missed_the_target(label: str) -> None:
    slow, fast = [0.1, 0.2, 0.3, 0.4], [0.1, 0.4, 0.3, 0.3]
    rows = {**dict.fromkeys(("FedAvg", "MOON", "FedGKD", "FedDisco"), slow), "Ours": fast}
    found = kdia.fewer_rounds(table4({**rows, label: [float("nan")] * 4}))
    assert found.values is None
    assert label in found.text


def test_bytes_to_the_target_by_hand() -> None:
    """Table 4, CIFAR-100, beta = 5.0: 43 rounds against 194; a generator 9.4 times the model leaves no gain."""
    found = kdia.bytes_to_target(None)
    assert found.holds is False
    model, generator = kdia._sizes(100)
    least = 43 * (3 * model + generator) / (194 * 2 * model)
    assert f"sends {least:.1f} to" in found.text
    assert f"{43 * 3 / (194 * 2):.2f} to {161 * 3 / (185 * 2):.2f} times" in found.text


def table2(scores: dict[tuple[str, str], list[float]]) -> Results:
    """Records of rows by method and view: test accuracies of each round."""
    runs = {}
    for method in {method for method, _ in scores}:
        views = {view: values for (name, view), values in scores.items() if name == method}
        for seed in SEEDS:
            records = tuple(
                {"round": t + 1, "views": {view: {"amp": 0.1, "test": values[t]} for view, values in views.items()}}
                for t in range(2)
            )
            runs["0.1", method, seed] = Run({"label": method, "seed": seed}, records)
    return Results(KDIA.item("table2"), "cpu", ("0.1",), SEEDS, runs)


def test_shares_of_the_teachers_lead() -> None:
    results = table2(
        {
            ("fedavg", "aca"): [0.5, 0.4],
            ("control", "teacher"): [0.6, 0.6],
            ("kdia", "student"): [0.6, 0.5],
            ("kdia", "teacher"): [0.6, 0.63],
        }
    )
    averaging, late = kdia.mostly_averaging(results).values, kdia.lead_by_round(results).values
    assert averaging == dict.fromkeys(SEEDS, pytest.approx(10 - 3))
    assert late == dict.fromkeys(SEEDS, pytest.approx(13 - 3))
    assert kdia.mostly_averaging(table2({("fedavg", "aca"): [0.5, 0.4]})).text == "Missing runs with seed 0."


def test_without_runs_nothing_is_computed() -> None:
    for name in (name for name in FUNCTIONS if name.startswith("kdia_") and name != "kdia_bytes_to_target"):
        if FUNCTIONS[name].__module__ == kdia.__name__:
            assert FUNCTIONS[name](None) == kdia.NONE
