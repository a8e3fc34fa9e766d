"""Every form of figure: what it draws from recorded runs, what it leaves out and says so, and that it is always equal."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from fedalloy.config.experiment import experiment
from fedalloy.errors import DataError
from fedalloy.report.svg import save, to_svg
from fedalloy.reproduce.catalogue import Item, PublishedColumn, Row, Scale
from fedalloy.reproduce.forms import figures_columns, figures_page
from fedalloy.reproduce.forms.figures import EXTRACTS, FIGURES
from fedalloy.reproduce.plan import jobs
from fedalloy.reproduce.results import Results
from fedalloy.run.runner import run as run_once
from fedalloy.storage.results import Run, read

FEDAVG = Row("FedAvg", "fedavg", "aca")
STUDENT, TEACHER = Row("KDIA (S)", "kdia", "student"), Row("KDIA (T)", "kdia", "teacher")
CONTROL = Row("no distillation", "control", "teacher", control=True)
ROWS = (FEDAVG, STUDENT, TEACHER, CONTROL)
CLIENTS = 20


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
    """All text of a figure."""
    return to_svg(figure, label="x")


def drawn(item: Item, **kwargs: Any) -> Figure:
    """The only figure of an item with made-up runs."""
    (figure,) = FIGURES[item.form](made_up(item, **kwargs))
    return figure
