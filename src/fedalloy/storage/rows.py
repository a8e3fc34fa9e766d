"""Runs as the rows of a table: what each view reached in the selected round, what the run cost, and means over seeds.

The columns are `fedalloy.federation.metrics.METRICS`. A missing value is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedalloy.base.text import listed
from fedalloy.data.samples import Task
from fedalloy.errors import UsageError
from fedalloy.federation import across
from fedalloy.federation.across import Floats
from fedalloy.federation.classification import COMMON, commonest
from fedalloy.federation.metrics import AVERAGES, BALANCED, METRICS, SCORES, Metric
from fedalloy.storage.results import DISTILLED, PERSONAL, Run, Selection, averaged_rounds, selected

WEIGHTS = 'training.class_weights = "balanced"'
# An id has no mean; everything else in a row has.
COLUMNS = tuple(name for name, metric in METRICS.items() if metric.unit != "client")


@dataclass(frozen=True)
class Leads:
    """What a table says first: the task, the metric of the first column, and whether columns for decisions follow."""

    task: Task = "classes"
    first: str = "amp"
    decisions: bool = False

    @property
    def score(self) -> str:
        """What texts call a client's score."""
        return BALANCED if self.first == "balanced" else SCORES[self.task]

    @property
    def average(self) -> str:
        """What texts call the score of all clients together."""
        return BALANCED if self.first == "balanced" else AVERAGES[self.task]


@dataclass(frozen=True)
class Row:
    """One view of one run: its scores in the selected round or their means, and the costs of the whole run.

    Every metric is an attribute: `row.amp`, `row.bytes_total`. Costs are those of all rounds, since the best round is
    known only at the end.
    """

    label: str
    view: str
    seed: int
    selection: Selection
    values: Mapping[str, float | None]
    client_names: tuple[str, ...] = ()
    leads: Leads = Leads()

    def __getattr__(self, name: str) -> float | None:
        if name not in METRICS:
            raise AttributeError(f"a row has no {name!r}")
        return self.values.get(name)


def leads(run: Run) -> Leads:
    """The rule of the first column, by which methods are ranked: the task decides, and how common its answers are.

    The first column is AMP, which with several labels is the share of right answers, and R2 with numbers. If a model
    that always gives the commonest answer would be right for more than two thirds of the training rows, it is balanced
    accuracy: such a model would have a high AMP and be of no use. Columns for decisions (AUC, sensitivity and so on)
    are in the comparison unless there are more than two classes.

    >>> leads(Run({"clients": {"class_counts": [[70, 20], [5, 5]]}, "model": {"classes": 2}}, ())).first
    'balanced'
    """
    views = [view for record in run.rounds for view in record.get("views", {}).values()]
    task: Task = views[-1].get("task", "classes") if views else "classes"
    decisions = task != "classes" or run.meta.get("model", {}).get("classes") == 2
    # Runs before there was a balanced accuracy of each client are compared by what they have.
    recorded = task != "numbers" and all("balanced" in view.get("clients", {}) for view in views)
    return Leads(task, "balanced" if recorded and share_of_commonest(run, task) > COMMON else "amp", decisions)


def agreed(found: Iterable[Leads]) -> Leads:
    """What several runs say first together: as soon as one of them is about a rare class, all are.

    >>> agreed([Leads(), Leads(first="balanced")]).first
    'balanced'
    """
    several = set(found)
    tasks = {one.task for one in several}
    if len(tasks) != 1:
        return Leads()
    first = "balanced" if any(one.first == "balanced" for one in several) else "amp"
    return Leads(tasks.pop(), first, all(one.decisions for one in several))


def share_of_commonest(run: Run, task: Task) -> float:
    """How often a model is right that always gives the commonest answer; of several labels, their mean.

    >>> share_of_commonest(Run({"clients": {"class_counts": [[70, 20], [5, 5]]}}, ()), "classes")
    0.75
    """
    clients = run.meta.get("clients", {})
    counts = np.asarray(clients.get("class_counts", []))
    if counts.ndim == 2 and counts.any():
        total, rows = counts.sum(axis=0), np.sum(clients.get("train_sizes", counts.sum()))
    else:  # sites keep their training rows' classes to themselves; what they counted on their tests is known
        tests = (view.get("confusion") for view in run.meta.get("last", {}).get("views", {}).values())
        return next((commonest(np.asarray(one)) for one in tests if one is not None), 0.0)
    if not rows:
        return 0.0
    shares = total / rows
    return float(np.maximum(shares, 1 - shares).mean() if task == "labels" else shares.max())


def weights_would_help(run: Run) -> bool:
    """Whether a class is so rare that a model may ignore it, and the experiment could weigh classes but does not."""
    exp = run.meta.get("experiment", {})
    given = exp.get("privacy") or exp.get("training", {}).get("class_weights")
    return leads(run).first == "balanced" and not given


def task_of(runs: Iterable[Run]) -> Task:
    """The task of these runs; that of classes if they differ."""
    tasks = {leads(run).task for run in runs}
    return tasks.pop() if len(tasks) == 1 else "classes"


def rows(run: Run, selection: Selection = "last") -> list[Row]:
    """One row per view.

    >>> run = Run({"label": "FedAvg", "seed": 0}, ({"round": 1, "views": {"oca": {"amp": 0.5}, "aca": {"amp": 0.75}}},))
    >>> [(row.label, row.view, row.amp) for row in rows(run)]
    [('FedAvg', 'aca', 0.75), ('FedAvg', 'oca', 0.5)]
    """
    return [_row(run, view, selection) for view in run.views]


# What to do about a criterion that no run has recorded.
NEEDS = {
    "best by test": "no run has a common test set; its data needs a test split, or select 'best by amp'",
    "best by validation": "no run has validation data; run with partition.validation = 0.1, or select 'last'",
}


def check_selection(runs: Iterable[Run], selection: Selection) -> None:
    """Refuse to select rounds by what no run has recorded."""
    chosen = {selected(run, view, selection) for run in runs for view in run.views}
    if chosen == {()}:
        raise UsageError(f"there is no round '{selection}': {NEEDS.get(selection, 'no run has an accuracy')}")


def caveats(runs: Iterable[Run], selection: Selection) -> list[str]:
    """What to say about runs that are reported by a selection: nothing to select by, or a mean over fewer rounds."""
    runs = list(runs)
    try:
        check_selection(runs, selection)
    except UsageError as error:
        return [f"Ours are missing: {error}."]
    return too_few(runs, selection)


def too_few(runs: Iterable[Run], selection: Selection) -> list[str]:
    """A sentence for each number of rounds that a mean is taken over, if it is less than what was asked for.

    A method that does all its work in one round has a constant curve, which needs no mean.

    >>> run = Run({"label": "FedAvg", "seed": 0}, ({"round": 1, "views": {"aca": {"amp": 0.5}}},))
    >>> too_few([run], "mean of last 10")
    ['FedAvg: the mean is over 1 round, all that were evaluated, and not over 10.']
    """
    wanted = averaged_rounds(selection) or 0
    short: dict[int, dict[str, None]] = {}
    for run in runs:
        count = min((len(selected(run, view, selection)) for view in run.views), default=wanted)
        if count < wanted and run.meta.get("stopped_by") != "method":
            short.setdefault(count, {})[run.label] = None
    return [
        f"{listed(list(labels))}: the mean is over {count} round{'' if count == 1 else 's'}, all that were evaluated, "
        f"and not over {wanted}."
        for count, labels in short.items()
    ]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds.

    The mean is None if any seed lacks the value.
    The deviation is None for a single seed. `count` is the number of seeds that have the value.
    """

    mean: float | None
    std: float | None
    count: int


@dataclass(frozen=True)
class CombinedRow:
    """The rows of one method and view over several seeds."""

    label: str
    view: str
    selection: Selection
    seeds: tuple[int, ...]
    columns: Mapping[str, Spread]  # one for each name in COLUMNS
    leads: Leads = Leads()
    by_seed: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)

    def written(self, metric: str) -> str:
        """A metric's mean, and its deviation if there is one, as a table shows them."""
        return METRICS[metric].write(self.columns[metric].mean, self.columns[metric].std)

    def each(self, metric: str) -> dict[int, float]:
        """A metric's value for each seed; empty if a seed lacks it, as it then has no mean."""
        found = {seed: value for seed, values in self.by_seed.items() if (value := values.get(metric)) is not None}
        return found if len(found) == len(self.by_seed) else {}


def combine(list_of_rows: Iterable[Row]) -> list[CombinedRow]:
    """Group rows by label, view and selection, in order of first appearance, and average over seeds.

    Rows do not know their experiment: if runs differ in more than the seed, pass the rows of
    `fedalloy.storage.differences.told_apart(runs)`.

    >>> amp = lambda value: ({"round": 1, "views": {"aca": {"amp": value}}},)
    >>> runs = [Run({"label": "FedAvg", "seed": seed}, amp(value)) for seed, value in enumerate((0.25, 0.75))]
    >>> (both,) = combine(row for run in runs for row in rows(run))
    >>> both.seeds, both.columns["amp"].mean, both.written("amp")
    ((0, 1), 0.5, '50.00 ± 35.36')
    """
    groups: dict[tuple[str, str, Selection], dict[int, Row]] = {}
    for row in list_of_rows:
        group = groups.setdefault((row.label, row.view, row.selection), {})
        if row.seed in group:
            raise UsageError(
                f"two runs of {row.label} (view '{row.view}') have the seed {row.seed}; leave one of them out, "
                "or pass the rows of told_apart(runs)"
            )
        group[row.seed] = row
    return [
        CombinedRow(
            *key,
            tuple(group),
            {name: _spread([row.values.get(name) for row in group.values()]) for name in COLUMNS},
            next(iter(group.values())).leads,
            {seed: row.values for seed, row in group.items()},
        )
        for key, group in groups.items()
    ]


def cost(metric: Metric, run: Run, until: int | None = None) -> float | None:
    """A cost of all rounds, or of those until a given one; or of a client's step in the last round that had any.

    >>> spent = [{"round": t, "seconds": {"client": 2.0, "server": 1.0, "evaluation": 9.0}} for t in (1, 2)]
    >>> both = Run({"label": "FedAvg"}, tuple(spent))
    >>> cost(METRICS["training_seconds"], both), cost(METRICS["training_seconds"], both, until=1)
    (6.0, 3.0)
    """
    rounds = tuple(record for record in run.rounds if until is None or record["round"] <= until)
    if metric.per:
        worked = (part for record in reversed(rounds) if (part := Run(run.meta, (record,))).total(*metric.per))
        last = next(worked, None)
        spent, steps = (None, None) if last is None else (last.total(*metric.path), last.total(*metric.per))
        return spent / steps if spent is not None and steps else None
    parts = [Run(run.meta, rounds).total(*path) for path in (metric.path, metric.plus) if path]
    return None if None in parts else sum(part for part in parts if part is not None)


def gain_over(
    run: Run, reference_run: Run, view: str, ref_view: str, when: Selection = "last", metric: str = "accuracy"
) -> Floats:
    """Each client's gain in accuracy, or in another metric, over the reference, usually `local`, on the same test sets.

    >>> view = lambda accuracy: {"amp": 0.5, "clients": {"accuracy": accuracy, "size": [8, 8]}}
    >>> shared = Run({"label": "FedAvg"}, ({"round": 1, "views": {"aca": view([0.5, 0.75])}},))
    >>> alone = Run({"label": "Local"}, ({"round": 1, "views": {"personal": view([0.75, 0.25])}},))
    >>> gain_over(shared, alone, "aca", "personal").tolist()
    [-0.25, 0.5]
    """
    sizes, ref_sizes = run.clients(view, "size", when), reference_run.clients(ref_view, "size", when)
    if not np.array_equal(sizes, ref_sizes):
        raise UsageError(
            f"{run.label} and {reference_run.label} were not tested on the same clients; "
            "compare runs with the same data, partition and seed"
        )
    return across.gain(run.clients(view, metric, when), reference_run.clients(ref_view, metric, when))


def value(run: Run, view: str, metric: str, selection: Selection = "last") -> float | None:
    """One value of a row, without the others.

    >>> run = Run({"label": "FedAvg", "seed": 0}, ({"round": 1, "views": {"aca": {"amp": 0.5}}},))
    >>> value(run, "aca", "amp"), value(run, "aca", "fm")
    (0.5, None)
    """
    chosen = selected(run, view, selection)
    return _value(run, view, chosen, [run.view(view, number) for number in chosen], metric)


def _row(run: Run, view: str, selection: Selection) -> Row:
    chosen = selected(run, view, selection)
    scores = [run.view(view, number) for number in chosen]
    values = {name: _value(run, view, chosen, scores, name) for name in METRICS}
    return Row(run.label, view, run.seed, selection, values, run.client_names, leads(run))


def _value(run: Run, view: str, chosen: Sequence[int], scores: Sequence[Mapping[str, Any]], name: str) -> float | None:
    metric = METRICS[name]
    if metric.path:
        return cost(metric, run)
    if metric.source == "view":
        found = _mean([score.get(name) for score in scores])
        # An id has no mean, and is negative if nobody was tested.
        return None if name == "worst_client" and (len(chosen) > 1 or (found or 0) < 0) else found
    if name == "round":
        return chosen[0] if len(chosen) == 1 else None
    if name == "gap":
        return _gap(run, view, chosen)
    return float(run.rounds[-1]["round"]) if name == "rounds" else _known(across.stability(run.series(view, "amp")[1]))


def _gap(run: Run, view: str, chosen: Sequence[int]) -> float | None:
    """The AMP that local training loses after distillation, for a method that records both (FedMD+Global)."""
    if view != PERSONAL or DISTILLED not in run.views:
        return None
    before, after = (_mean([run.view(name, t).get("amp") for t in chosen]) for name in (DISTILLED, view))
    return None if before is None or after is None else before - after


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean over the selected rounds; None if there is none, or if one of them lacks the value."""
    known = [value for value in map(_known, values) if value is not None]
    if not known or len(known) < len(values):
        return None
    return known[0] if len(known) == 1 else float(np.mean(known))


def _spread(values: list[float | None]) -> Spread:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Spread(None, None, len(known))
    with np.errstate(invalid="ignore"):  # the loss of a run that diverged is infinite and has no deviation
        std = _known(float(np.std(known, ddof=1))) if len(known) > 1 else None
    return Spread(float(np.mean(known)), std, len(known))


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
