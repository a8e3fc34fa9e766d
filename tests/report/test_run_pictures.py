"""The report shows what methods made, from real runs of two rounds."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedalloy.report.html import render
from fedalloy.report.run_pictures import run_pictures
from fedalloy.run.opened import open_run
from fedalloy.run.runner import simulate
from fedalloy.storage.results import read

TINY = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 2,
    "evaluate_every": 2,
    "partition": {"name": "iid", "clients": 3},
    "training": {"epochs": 1, "batch": 16},
    "public": {"samples": 12, "labelled": True},
}
METHODS = {
    "knfu": {"name": "knfu"},
    "kdia": {"name": "kdia", "noise": 4, "generator_width": 8, "generator_epochs": 1, "generator_batches": 2},
    "dafkd": {
        "name": "dafkd",
        "noise": 4,
        "generator_width": 8,
        "distil_samples": 40,
        "distil_batch": 8,
        "distil_steps": 2,
    },
    "centralised": {"name": "centralised"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for name, method in METHODS.items():
        simulate({**TINY, "method": method}, folder=home / name)
    return {name: home / name for name in METHODS}


@pytest.fixture(scope="module")
def pictures(folders):
    return {one.name: one for one in run_pictures([[read(folder)] for folder in folders.values()])}


def test_who_learned_from_whom_is_knfu_s_last_weights(folders, pictures):
    state, _ = open_run(folders["knfu"]).last()
    (fusion,) = [chart for chart in pictures["KnFu"].charts if chart.title == "Who learned from whom"]
    shown = np.float64([line[1:] for line in fusion.data.body])
    assert shown == pytest.approx(100 * state["weights"].double().numpy(), abs=0.06)
    assert shown.sum(1) == pytest.approx([100] * 3, abs=0.2)


def test_importance_and_generated_images_of_dafkd(folders, pictures):
    found = pictures["DaFKD"]
    assert [chart.title for chart in found.charts] == ["Importance", "Share of the data"]
    some, averages = found.samples
    assert sum(int(row.count) for row in some.rows) == 100 * len(some.rows)
    source = next(row.source for row in averages.rows if row.source)
    head, _, data = source.partition(",")
    assert head == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size[0] > 1


def test_the_teacher_and_its_features_are_those_of_kdia(folders, pictures):
    titles = [chart.title for chart in pictures["KDIA"].charts]
    assert titles == ["Weights in the teacher", "Generated features beside real ones"]
    (alone,) = run_pictures([[read(folders["kdia"])]])
    assert len(alone.charts) == 1
    assert "centralised" in alone.missing[0]


def test_methods_without_pictures_and_runs_in_memory_have_none(folders, pictures):
    assert set(pictures) == {"KnFu", "KDIA", "DaFKD"}
    assert run_pictures([[replace(read(folders["knfu"]), folder=None)]]) == []


def test_a_run_without_its_checkpoint_says_why(folders, tmp_path):
    run = read(folders["knfu"])
    (found,) = run_pictures([[replace(run, folder=tmp_path)]])
    assert not found.charts
    assert "run.json" in found.missing[0]


def test_the_page_shows_them_twice_alike(folders):
    runs = [read(folder) for folder in folders.values()]
    text = render(runs, title="")
    assert text == render(runs, title="")
    for part in ("What KnFu made", "Who learned from whom", "What DaFKD made", "data:image/png;base64,", "Importance"):
        assert part in text
