"""Each client's test in numbers: its score with an interval, AUC and rates or errors, and confusion matrices.

They are those of a run's last round, which alone keeps them, and of each method's first seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedalloy.base.text import MISSING, all_shortened, number, series_names
from fedalloy.data.samples import Task
from fedalloy.federation.metrics import METRICS, SCORES
from fedalloy.report.gains_table import Listing
from fedalloy.storage.results import Run
from fedalloy.storage.rows import leads

EACH: dict[Task, tuple[str, ...]] = {
    "classes": ("balanced", "auc", "sensitivity", "specificity", "ece"),
    "labels": ("balanced", "auc", "macro_f1", "subset"),
    "numbers": ("mae", "rmse"),
}
WIDEST = 20  # classes of a confusion matrix that a page can show
NOTE = "In brackets: the 95 % interval that follows from the number of test samples. "
RULES: dict[Task, str] = {
    "classes": "Wilson's for accuracy, and with two classes for the rates; Zou and Donner's for balanced accuracy, "
    "from Wilson's of each class; Newcombe's for AUC. Balanced accuracy and AUC need test samples of several classes.",
    "labels": "Wilson's for shares, by samples; Zou and Donner's for balanced accuracy and Newcombe's for AUC, which "
    "need samples with and without a label.",
    "numbers": "Student's; of R2, by the logarithm of 1 - R2, which needs targets that differ.",
}


@dataclass(frozen=True)
class Tested:
    """What one method's view did on the clients' tests: a line for each client, and confusion matrices."""

    clients: Listing
    confusions: tuple[Listing, ...]  # of all clients' samples; with several labels, one for each


def tested(runs: Sequence[Run]) -> list[tuple[str, Tested]]:
    """The tests of each method and view by their name, where they were kept.

    >>> tested([Run({"label": "FedAvg"}, ())])
    []
    """
    first = {run.label: run for run in reversed(runs)}
    pairs = [(label, view) for label, run in reversed(first.items()) for view in _kept(run)]
    shown = series_names(pairs)
    return [(shown[label, view], _tested(first[label], view, shown[label, view])) for label, view in pairs]


def _kept(run: Run) -> list[str]:
    """The views of which the last round's details are there."""
    last = run.meta.get("last", {})
    return [view for view in run.views if view in last.get("views", {}) and run.view(view, last["round"])]


def _tested(run: Run, view: str, name: str) -> Tested:
    last, task = run.meta["last"], leads(run).task
    details, clients = last["views"][view], run.view(view, last["round"])["clients"]
    spans = details.get("intervals", {})
    columns = [metric for metric in EACH[task] if metric in clients]
    names = run.client_names or tuple(map(str, range(len(clients["size"]))))
    short = all_shortened(names)
    body = [
        [
            short[names[k]],
            str(size),
            _with_interval("accuracy", clients["accuracy"], spans, k),
            *(_with_interval(metric, clients[metric], spans, k) for metric in columns),
        ]
        for k, size in enumerate(clients["size"])
    ]
    score = f"{SCORES[task][:1].upper()}{SCORES[task][1:]} %"
    headings = ("Client", "Test samples", score, *(METRICS[metric].heading for metric in columns))
    listing = Listing(f"Tests of {name}", headings, body, words=1, note=f"{NOTE}{RULES[task]}")
    labels = [str(label) for label in run.meta.get("clients", {}).get("label_names", [])]
    return Tested(listing, _confusions(details.get("confusion"), labels, task))


def _with_interval(metric: str, values: Sequence[float | None], spans: Mapping[str, Sequence[Any]], k: int) -> str:
    value, span = values[k], spans.get(metric, {k: None})[k]
    if value is None:
        return MISSING
    if span is None:
        return _written(metric, value)
    return f"{_written(metric, value)} [{_written(metric, span[0])}, {_written(metric, span[1])}]"


def _written(metric: str, value: float) -> str:
    """A value as tables write it; shares in percent, with one digit."""
    of_numbers = metric in METRICS and METRICS[metric].unit == "power"
    return METRICS[metric].write(value) if of_numbers else number(100 * value, 1)


def _confusions(counts: Any, names: Sequence[str], task: Task) -> tuple[Listing, ...]:
    if counts is None or len(counts) > WIDEST:
        return ()
    found = np.asarray(counts)
    named = list(names) if len(names) == len(found) else [str(c) for c in range(len(found))]
    if task == "labels":
        return tuple(
            _matrix(table, ["without", "with"], f"Label {name}") for table, name in zip(found, named, strict=True)
        )
    added = [f"added {c}" for c in range(found.shape[1] - len(found))]
    return (_matrix(found, [*named, *added], "Confusion matrix"),)


def _matrix(counts: Any, names: Sequence[str], title: str) -> Listing:
    body = [[name, *(str(n) for n in row)] for name, row in zip(names, counts.tolist(), strict=False)]
    note = "Rows: what a sample is; columns: what it is taken for. All clients' test samples."
    return Listing(title, ("True", *names[: counts.shape[1]]), body, words=1, note=note)
