"""Two classes, one of them rare, from a run to the table and the page; and rows of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedalloy import from_arrays, simulate
from fedalloy.report import decisions
from fedalloy.report.html import render
from fedalloy.report.table import cells
from fedalloy.report.verdict import verdict
from fedalloy.storage.results import Run, read
from fedalloy.storage.rows import leads, rows


def made(rare: float, **given: Any) -> Run:
    draw = np.random.default_rng(0)
    y = (np.arange(200) % 100 < 100 * rare).astype(np.int64)
    x = draw.normal(size=(200, 3)).astype(np.float32) + y[:, None]
    values = {"model": "mlp", "rounds": 2, "partition": {"name": "iid", "clients": 3}, **given}
    return simulate(values, dataset=from_arrays(x, y), folder=given.pop("folder", None))


def test_a_rare_class_puts_balanced_accuracy_first() -> None:
    run = made(0.2)
    assert leads(run).first == "balanced"
    headings, _ = cells(rows(run))
    assert headings[2] == "Balanced %"
    assert {"AUC %", "Sensitivity %", "Specificity %", "ECE %"} <= set(headings)
    assert cells(rows(made(0.5)))[0][2] == "AMP %"


def test_the_last_round_keeps_intervals_and_confusion_matrices() -> None:
    run = made(0.2)
    assert all("details" not in view for record in run.rounds for view in record["views"].values())
    last = run.meta["last"]
    assert last["round"] == 2
    sizes = run.rounds[-1]["views"]["aca"]["clients"]["size"]
    confusions = np.array(last["views"]["aca"]["confusions"])
    assert confusions.sum((1, 2)).tolist() == sizes
    assert np.array(last["views"]["aca"]["confusion"]).tolist() == confusions.sum(0).tolist()
    names = [name for name, _ in decisions.tested([run])]
    page = render([run], title="t")
    assert all(f">{name}</span></summary>" in page for name in names)
    assert "Confusion matrix" in page


def test_a_run_of_several_classes_has_its_usual_table() -> None:
    run = simulate({"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"name": "iid", "clients": 3}})
    headings, _ = cells(rows(run))
    assert headings[2] == "AMP %"
    assert "AUC %" not in headings
    assert "AUC %" in cells(rows(run), table="decisions")[0]


def test_what_cannot_be_measured_is_a_dash(tmp_path) -> None:
    run = made(0.2)
    record = run.rounds[-1]["views"]["aca"]["clients"]
    record["auc"][0] = None
    ((_, test), *_) = decisions.tested([run])
    place = test.clients.headings.index("AUC %")
    assert test.clients.body[0][place] == "–"  # noqa: RUF001
    assert "[" in test.clients.body[1][place]


def test_a_resumed_run_ends_with_the_same_description(tmp_path) -> None:
    values = {"data": "tiny", "model": "mlp", "rounds": 2, "partition": {"name": "iid", "clients": 3}}
    whole = simulate(values, tmp_path / "run")
    assert read(tmp_path / "run").meta["last"] == whole.meta["last"]


def numbers(scores: list[float]) -> Run:
    clients = {"accuracy": scores, "size": [10, 10], "error": [0.1, 0.1], "mae": [1.0, 2.0]}
    view = {"amp": float(np.mean(scores)), "wlp": min(scores), "mae": 1.5, "task": "numbers", "clients": clients}
    return Run({"name": "fedavg", "label": "FedAvg", "seed": 0}, ({"round": 1, "views": {"aca": view}},))


def test_numbers_are_told_as_r2() -> None:
    run = numbers([0.5, -0.25])
    headings, body = cells(rows(run))
    assert headings[2] == "R2 %"
    assert "AMP %" not in headings
    assert body[0][headings.index("MAE")].text == "1.5"
    assert "12.5 % R2" in verdict(rows(run))


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_a_threshold_is_a_probability(threshold: float) -> None:
    with pytest.raises(Exception, match="threshold"):
        made(0.2, threshold=threshold)
