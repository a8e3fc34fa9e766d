"""Every form of figure: what it draws from recorded runs, and what it leaves out and says so."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedalloy.config import build as build_module
from fedalloy.config.methods import for_method
from fedalloy.data import load_data
from fedalloy.errors import DataError
from fedalloy.federation.metrics import METRICS
from fedalloy.report import draw as drawing
from fedalloy.report.svg import save, to_svg
from fedalloy.report.trifreqs_plot import weights_over_rounds
from fedalloy.reproduce.catalogue import Item, PublishedColumn, Row, Scale
from fedalloy.reproduce.forms.figures import EXTRACTS, FIGURES
from fedalloy.reproduce.plan import jobs
from fedalloy.reproduce.results import Results, recorded
from fedalloy.run.runner import simulate
from fedalloy.storage.results import Run

FEDAVG = Row("FedAvg", "fedavg", "aca")
STUDENT, TEACHER = Row("KDIA (S)", "kdia", "student"), Row("KDIA (T)", "kdia", "teacher")
CONTROL = Row("no distillation", "control", "teacher", control=True)
ROWS = (FEDAVG, STUDENT, TEACHER, CONTROL)
CLIENTS = 20


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data = load_data("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data)
        yield


def make_item(form: str, rows: tuple[Row, ...] = ROWS, scale: Scale | None = None, **values: Any) -> Item:
    """An item of KDIA's table: three data sets by three degrees of skew."""
    scale = scale or Scale("kdia-cifar10")
    return Item("fig9", "a figure for tests", "6", form, scale, scale, scale, rows, paper="test", **values)


def axis(name: str, *labels: str) -> dict[str, Any]:
    """An axis that changes nothing that a synthetic run depends on."""
    return {"name": name, "values": [{"label": label, "set": {"rounds": 200}} for label in labels]}


def made_up(item: Item, scale: str = "cpu", rounds: int = 30) -> Results:
    """Results as if all runs of an item were recorded, with curves that differ by row, column and seed."""
    planned = jobs(item, scale)
    columns = tuple(dict.fromkeys(job.column for job in planned))
    methods = list(dict.fromkeys(job.method for job in planned))
    runs = {}
    for job in planned:
        place = (columns.index(job.column), methods.index(job.method), job.seed)
        views = [row.view for row in item.rows if row.method == job.method]
        runs[job.column, job.method, job.seed] = made_up_run(place, job.choice.name, dict.fromkeys(views), rounds)
    return Results(item, scale, columns, item.scale(scale).seeds, runs)


def made_up_run(place: tuple[int, int, int], name: str, views: dict[str, Any], rounds: int) -> Run:
    """A run whose accuracy rises to a level given by its place."""
    column, method, seed = place
    stream = np.random.default_rng([1, *place])
    counts = np.maximum(stream.dirichlet([0.3] * CLIENTS, 10).T * 500, 0).astype(int) + 1
    records = []
    for t in range(1, rounds + 1):
        scores = {}
        for i, view in enumerate(views):
            level = 0.5 + 0.03 * column + 0.02 * method + 0.02 * i
            each = np.clip(level * (1 - math.exp(-t / 6)) + stream.normal(0, 0.05, CLIENTS), 0, 1)
            test = float(each.mean() + 0.01 * seed)
            found = {"amp": test, "test": test, "fm": float(each.var()), "wlp": float(each.min()), "alma": test}
            scores[view] = {**found, "clients": {"accuracy": each.tolist()}}
        active = sorted(stream.choice(CLIENTS, 4, replace=False).tolist())
        records.append({"round": t, "active": active, "lost": [], "views": scores, "notes": {"coverage": 1 - 0.5**t}})
    clients = {"train_sizes": counts.sum(1).tolist(), "class_counts": counts.tolist(), "label_names": []}
    return Run({"name": name, "label": name, "seed": seed, "clients": clients}, tuple(records))


def words(figure: Figure) -> str:
    """All text of a figure, on one line."""
    texts = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]  # type: ignore
    return " | ".join(texts)


def drawn(item: Item, **kwargs: Any) -> Figure:
    """The only figure of an item with made-up runs."""
    (figure,) = FIGURES[item.form](made_up(item, **kwargs) if item.rows else Results(item, "smoke", (), (), {}))
    return figure


def titles(figure: Figure) -> list[str]:
    """The titles of the panels."""
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def ends(axes: Axes) -> list[float]:
    """The last value of every line of at least two points."""
    return [float(np.asarray(line.get_ydata())[-1]) for line in axes.lines if len(np.asarray(line.get_ydata())) > 1]


ONE = Scale("kdia-cifar10", columns=("CIFAR-10, 0.1",))
SKEWS = Scale("kdia-cifar10", columns=("CIFAR-10, 0.1", "CIFAR-10, 0.5", "CIFAR-10, 5.0"))
LAMBDAS = Scale("kdia-cifar10", axes=(axis("beta", "0.1", "5"), axis("kd", "0.1", "1"), axis("gen", "0.01", "1")))
ITEMS = {
    "curves": make_item("curves", metrics=("amp", "fm"), scale=SKEWS),
    "over-columns": make_item("over-columns", scale=SKEWS),
    "box": make_item("box", scale=SKEWS),
    "bars": make_item("bars", scale=SKEWS),
    "grid": make_item("grid", scale=LAMBDAS, options={"relative_to": "FedAvg"}),
    "weights": make_item("weights", scale=SKEWS),
    "partition": make_item("partition", (), scale=SKEWS),
    "images": make_item("images", (), scale=ONE),
    "similarity": make_item("similarity", scale=SKEWS),
    "fusion": make_item("fusion", scale=ONE),
    "epd": make_item("epd", scale=ONE),
}


@pytest.mark.parametrize("form", sorted(FIGURES.keys() - {"theory"}))
def test_the_same_results_give_the_same_bytes(form: str) -> None:
    """As pages contain them."""
    first, again = (drawn(ITEMS[form]) for _ in range(2))
    assert to_svg(first, label="x") == to_svg(again, label="x")


def test_figures_are_saved_as_pdf_with_the_same_bytes(tmp_path: Path) -> None:
    """No date, no random name."""
    files = [save(drawn(make_item("curves", (FEDAVG,), ONE)), tmp_path / f"{i}.pdf") for i in (0, 1)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("form", sorted(FIGURES.keys() - {"theory", "partition", "images"}))
def test_without_any_run_a_figure_says_so(form: str) -> None:
    """Nothing is drawn, and the rows are named."""
    results = replace(made_up(ITEMS[form]), runs={})
    (figure,) = FIGURES[form](results)
    assert "not recorded" in words(figure)
    assert form == "weights" or "No runs of FedAvg, KDIA (S), KDIA (T) and no distillation." in words(figure)


def test_rows_without_runs_are_left_out_and_named() -> None:
    """Also those that lack only some columns."""
    full = made_up(make_item("curves", scale=SKEWS))
    gone = {key: run for key, run in full.runs.items() if key[1] != "control" and key[:2] != ("CIFAR-10, 0.1", "kdia")}
    (figure,) = FIGURES["curves"](replace(full, runs=gone))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "KDIA (S)", "KDIA (T)"]
    assert "No runs of no distillation." in words(figure)
    assert "No runs of KDIA (S) and KDIA (T) in 'CIFAR-10, 0.1'." in words(figure)


# --- curves -----------------------------------------------------------------------------------------------------------


def test_curves_are_means_over_seeds_with_a_band_of_one_deviation() -> None:
    """A panel for each column and metric, a line for each row, in the unit that tables print."""
    item = make_item("curves", metrics=("amp", "fm"), scale=SKEWS)
    results = made_up(item)
    (figure,) = FIGURES["curves"](results)
    assert titles(figure) == ["CIFAR-10, beta = 0.1", "CIFAR-10, beta = 0.5", "CIFAR-10, beta = 5.0"] * 2
    first, fairness = figure.axes[0], figure.axes[3]
    assert (first.get_ylabel(), fairness.get_ylabel()) == ("AMP %", METRICS["fm"].title)
    values = list(results.values(FEDAVG, "CIFAR-10, 0.1", "amp").values())
    assert ends(first)[0] == pytest.approx(np.mean(values))
    band = first.collections[0].get_paths()[0].vertices
    last = np.asarray(band)[np.asarray(band)[:, 0] == 30][:, 1]
    assert last.max() - last.min() == pytest.approx(2 * np.std(values, ddof=1))
    assert len(ends(fairness)) == len(ROWS)
    assert "* is not in the paper" in words(figure)
    assert "no distillation *" in words(figure)


def test_an_axis_can_split_the_lines() -> None:
    """KDIA's Fig. 1: panels by beta, lines by method and C."""
    scale = Scale("kdia-cifar10", axes=(axis("beta", "0.1", "5"), axis("C", "0.1", "0.5", "1")))
    figure = drawn(make_item("curves", (FEDAVG, Row("MOON", "moon", "aca")), scale, options={"lines": "C"}))
    assert titles(figure) == ["beta = 0.1", "beta = 5"]
    assert [len(ends(axes)) for axes in figure.axes] == [6, 6]
    assert "MOON, C = 0.5" in words(figure)


def test_curves_can_skip_rounds_and_show_notes() -> None:
    """DaFKD's Fig. 4 draws every fifth round."""
    figure = drawn(make_item("curves", scale=ONE, options={"every": 5, "metrics": ["test", "note coverage"]}))
    assert np.asarray(figure.axes[0].lines[0].get_xdata()).tolist() == [5, 10, 15, 20, 25, 30]
    assert figure.axes[1].get_ylabel() == "coverage"


def test_costs_have_no_curve() -> None:
    """It is an error rather than an empty panel."""
    with pytest.raises(DataError, match="there is no curve of 'bytes_total'"):
        drawn(make_item("curves", scale=ONE, metrics=("bytes_total",)))


# --- over columns, bars, grid -----------------------------------------------------------------------------------------


def test_a_metric_over_numbers_is_drawn_to_scale() -> None:
    """The last axis is x, on a log scale from a factor of 20; the others are panels."""
    item = make_item("over-columns")
    results = made_up(item)
    (figure,) = FIGURES["over-columns"](results)
    assert titles(figure) == ["CIFAR-10", "CIFAR-100", "CINIC-10"]
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "beta", "Test %")
    line = next(line for line in axes.lines if len(np.asarray(line.get_xdata())) == 3)
    assert np.asarray(line.get_xdata()).tolist() == [0.1, 0.5, 5.0]
    assert np.asarray(line.get_ydata())[1] == pytest.approx(
        np.mean(list(results.values(FEDAVG, "CIFAR-10, 0.5").values()))
    )


def test_published_figures_are_hollow() -> None:
    """They stand at the paper's column, also if ours has another name."""
    published = (PublishedColumn("its column", (("FedAvg", "50.5 ± 1.5"), ("KDIA (S)", ""))),)
    scale = replace(SKEWS, stands_for={"CIFAR-10, 0.5": "its column"})
    figure = drawn(make_item("over-columns", scale=scale, published=published))
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert [np.asarray(line.get_xydata()).tolist() for line in hollow] == [[[0.5, 50.5]]]
    assert "Hollow: the" in words(figure)


def test_a_published_table_that_does_not_know_an_axis_is_for_none_of_its_columns() -> None:
    """The experiment's table is the same at every temperature; that of a degree of skew is for its column."""
    scale = Scale("kdia-cifar10", axes=(axis("tau", "1", "2", "5"),))
    assert "Hollow" not in words(drawn(make_item("over-columns", scale=scale, round="best by test")))
    assert "Hollow" in words(drawn(make_item("over-columns", scale=SKEWS, round="best by test")))


@pytest.mark.parametrize(
    ("labels", "kind", "places"),
    [
        (("10", "20", "30"), "linear", [10, 20, 30]),
        (("0.01", "0.1", "1"), "log", [0.01, 0.1, 1]),
        (("1", "10", "11", "12", "13", "14", "900"), "linear", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_numbers_stand_where_their_labels_do_not_touch(labels: tuple[str, ...], kind: str, places: list[float]) -> None:
    """To scale if that is possible, or else at equal distances."""
    axes = drawn(make_item("over-columns", (FEDAVG,), Scale("kdia-cifar10", axes=(axis("N", *labels),)))).axes[0]
    assert axes.get_xscale() == kind
    assert axes.get_xticks().tolist() == places
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(labels)


def test_settings_in_one_axis_get_a_panel_each() -> None:
    """DaFKD's Fig. 6: E, B and d are values of the same axis."""
    scale = Scale("kdia-cifar10", axes=(axis("setting", "E = 5", "E = 20", "d = 50", "d = 100", "d = 200"),))
    figure = drawn(make_item("over-columns", scale=scale))
    assert [axes.get_xlabel() for axes in figure.axes] == ["E", "d"]
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()] == ["50", "100", "200"]


def test_panels_can_be_chosen_by_name_and_by_index() -> None:
    """Then the axes that nothing names split the lines."""
    by_name = drawn(make_item("over-columns", (FEDAVG,), LAMBDAS, options={"panels": "beta"}))
    by_index = drawn(make_item("over-columns", (FEDAVG,), LAMBDAS, options={"panels": 0}))
    assert titles(by_name) == titles(by_index) == ["beta = 0.1", "beta = 5"]
    assert "kd = 0.1" in words(by_name)
    assert "kd = 1" in words(by_name)
    with pytest.raises(DataError, match="has no axis 'alpha'"):
        drawn(make_item("over-columns", (FEDAVG,), LAMBDAS, options={"panels": "alpha"}))


def test_gains_are_paired_by_seed() -> None:
    """A seed that one of the two rows lacks does not count."""
    item = make_item("grid", (FEDAVG, TEACHER), LAMBDAS, options={"relative_to": "FedAvg"})
    full = made_up(item)
    column = "0.1, 0.1, 0.01"
    results = replace(full, runs={key: run for key, run in full.runs.items() if key != (column, "fedavg", 2)})
    (figure,) = FIGURES["grid"](results)
    ours, base = (results.values(row, column) for row in (TEACHER, FEDAVG))
    mean = np.mean([ours[seed] - base[seed] for seed in (0, 1)])
    assert titles(figure) == ["beta = 0.1", "beta = 5"]
    assert figure.axes[0].texts[0].get_text().startswith(f"{mean:+.2f}")
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("gen", "kd")
    assert "Test %, gain over FedAvg" in words(figure)


def test_bars_have_their_deviation() -> None:
    """A group for each column, a bar for each row."""
    results = made_up(make_item("bars", scale=SKEWS))
    (figure,) = FIGURES["bars"](results)
    heights = [patch.get_height() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert len(heights) == 3 * len(ROWS)
    assert heights[0] == pytest.approx(np.mean(list(results.values(FEDAVG, "CIFAR-10, 0.1").values())))


# --- clients and data -------------------------------------------------------------------------------------------------


def test_boxes_are_of_the_clients_of_all_seeds() -> None:
    """The median of a box is that of its clients."""
    results = made_up(make_item("box", scale=SKEWS))
    (figure,) = FIGURES["box"](results)
    pooled = np.concatenate(
        [results.runs["CIFAR-10, 0.1", "fedavg", seed].clients("aca", "accuracy") for seed in (0, 1, 2)]
    )
    levels = [float(y) for line in figure.axes[0].lines for y in np.asarray(line.get_ydata())]
    assert pytest.approx(100 * float(np.median(pooled))) in levels


def test_weights_need_only_who_took_part_and_the_sizes() -> None:
    """The variance of the data's shares is constant; that of triFreqs is that of the weights themselves."""
    results = made_up(make_item("weights", scale=SKEWS))
    (figure,) = FIGURES["weights"](results)
    share, all_three = (np.asarray(line.get_ydata()) for line in figure.axes[1].lines[2:4])
    assert np.ptp(share) == pytest.approx(0)
    runs = [results.runs["CIFAR-10, 0.5", "fedavg", seed] for seed in (0, 1, 2)]
    given = [([record["active"] for record in run.rounds], run.meta["clients"]["train_sizes"]) for run in runs]
    assert all_three == pytest.approx(1e4 * np.mean([weights_over_rounds(*one).var(axis=1) for one in given], axis=0))
    with pytest.raises(DataError, match="names no column"):
        drawn(make_item("weights", scale=SKEWS, options={"variance": "beta"}))


@pytest.mark.parametrize("look", ["bubbles", "map"])
def test_a_partition_needs_no_runs(look: str) -> None:
    """A panel for each column."""
    figure = drawn(make_item("partition", (), SKEWS, options={"draw": look}))
    assert titles(figure) == ["CIFAR-10, beta = 0.1", "CIFAR-10, beta = 0.5", "CIFAR-10, beta = 5.0"]
    assert "samples" in words(figure)
    assert figure.axes[0].get_xlabel() == ("Client" if look == "bubbles" else "Class")


# --- what was kept of checkpoints -------------------------------------------------------------------------------------


def run_all(item: Item, folder: Path) -> Results:
    """Run an item's jobs at smoke scale, with the records that a campaign keeps of their checkpoints."""
    for place, job in {folder / job.folder: job for job in jobs(item, "smoke")}.items():
        simulate(replace(for_method(job.experiment, job.choice), seed=job.seed), place)
        (place / "extra.json").write_text(json.dumps(EXTRACTS[item.form](place)), encoding="utf-8")
    return recorded(item, "smoke", folder)


def test_average_images_are_kept_and_drawn(tmp_path: Path) -> None:
    """Those of the generator and of the real data, which need no run."""
    scale = Scale("fedkf-emnist", seeds=(0,))
    rows = (Row("FedKF", "fedkf", "oca"), Row("FedAvg", "fedavg", "aca"))
    (figure,) = FIGURES["images"](run_all(make_item("images", rows, scale), tmp_path))
    heads = titles(figure)
    assert heads[0].startswith("FedKF, generated by client")
    assert heads[1:] == [
        "FedKF, real",
        "FedAvg, generated",
        "FedAvg, real",
    ]
    assert words(figure).count("not recorded") == 2
    real = drawn(make_item("images", (), scale))
    shown = [np.asarray(axes.images[0].get_array()) for axes in (figure.axes[1], real.axes[0])]
    assert np.array_equal(*shown)


def test_similarity_is_that_of_the_drawing_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of two kept means is the mean over all pairs of features."""
    rows = (Row("KDIA", "kdia", "student"), Row("Centralised", "centralised", "global", control=True))
    item = make_item("similarity", rows, Scale("kdia-ablations", columns=("0.1",), seeds=(0,)), options={"level": 0.75})
    results = run_all(item, tmp_path)
    (figure,) = FIGURES["similarity"](results)
    heights = [patch.get_height() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    places = [run.folder for run in results.runs.values()]
    found: list[list[float]] = []
    monkeypatch.setattr(drawing, "similarity_picture", lambda values, *_, **__: found.append(values) or Figure())
    drawing.draw(places[0], out=tmp_path, central=places[1])  # type: ignore[arg-type]
    assert heights == pytest.approx(found[0], abs=1e-3)


@pytest.mark.parametrize(("form", "heading"), [("fusion", "learns from client"), ("epd", "what it answers: EPD")])
def test_what_clients_learn_from_is_kept_and_drawn(form: str, heading: str, tmp_path: Path) -> None:
    """A figure for each column."""
    item = make_item(form, (Row("KnFu", "knfu", "personal"),), Scale("knfu-cifar10", columns=("500, 0.1",), seeds=(0,)))
    (figure,) = FIGURES[form](run_all(item, tmp_path))
    assert heading in words(figure)
    assert "|D| = 500, alpha = 0.1, KnFu" in words(figure)


def test_a_picture_of_theory_is_looked_up_when_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name in the item's options."""
    package, module = ModuleType("fedalloy.theory"), ModuleType("fedalloy.theory.pictures")
    module.PICTURES = {"lemma": lambda: Figure(figsize=(1, 1))}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fedalloy.theory", package)
    monkeypatch.setitem(sys.modules, "fedalloy.theory.pictures", module)
    item = make_item("theory", (), Scale(), options={"picture": "lemma"})
    (figure,) = FIGURES["theory"](Results(item, "cpu", (), (), {}))
    assert tuple(figure.get_size_inches()) == (1, 1)
    with pytest.raises(DataError, match="did you mean 'lemma'"):
        FIGURES["theory"](Results(replace(item, options={"picture": "lema"}), "cpu", (), (), {}))
