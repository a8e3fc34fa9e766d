"""What the plots show: runs grouped by method and view, averaged over seeds, each with its own line style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedalloy.base.text import all_shortened, series_names
from fedalloy.federation.metrics import METRICS
from fedalloy.storage.results import Run, Selection, selected
from fedalloy.storage.rows import cost

Floats = NDArray[np.float64]

# Okabe and Ito's colour-blind safe palette, without its yellow, which is too pale for a line on white.
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Bounds do not compete: they are grey.
BOUND_HUES = {"local": "#9A9A9A", "local-converged": "#6A6A6A", "centralised": "#1F2328"}
DASHES: tuple[tuple[int, tuple[float, ...] | None], ...] = ((0, None), (0, (4, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
MARKERS = ("", "o", "s", "^")  # distinguish methods once the hues repeat


@dataclass(frozen=True)
class Series:
    """One method in one view: its runs (one per seed), name and line style. Views of one method share a hue."""

    label: str
    view: str
    name: str
    runs: tuple[Run, ...]
    hue: str
    dash: tuple[int, tuple[float, ...] | None]
    marker: str

    @property
    def level(self) -> bool:
        """Whether the method does all its work in one round, so that its curve is constant."""
        return all(run.meta.get("stopped_by") == "method" for run in self.runs)

    def curve(self, metric: str) -> tuple[Floats, Floats, Floats]:
        """The rounds that all seeds have evaluated, and the metric's mean and deviation over the seeds in each."""
        return _over_seeds([run.series(self.view, metric) for run in self.runs])

    def noted(self, name: str) -> tuple[Floats, Floats, Floats]:
        """The rounds in which all seeds noted a number, and its mean and deviation over the seeds in each."""
        return _over_seeds([run.noted(name) for run in self.runs if name in run.notes])

    def spent(self, cost: str) -> tuple[Floats, Floats]:
        """The rounds, and what was spent up to each of them (mean over seeds); `cost` is a metric of whole runs."""
        rounds, mean, _ = _over_seeds([_spent_so_far(run, cost) for run in self.runs])
        return rounds, mean

    def clients(self, selection: Selection = "last") -> list[tuple[int, float]]:
        """Client id and accuracy of each tested client in each seed's selected round; none where no round is."""
        chosen = [run for run in self.runs if selected(run, self.view, selection)]
        seeds = [run.clients(self.view, "accuracy", selection).tolist() for run in chosen]
        return [(k, accuracy) for row in seeds for k, accuracy in enumerate(row) if math.isfinite(accuracy)]


def series_of(runs: Sequence[Run]) -> list[Series]:
    """Group runs by label and view, in the order in which they are given."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        for view in run.views:
            groups.setdefault((run.label, view), []).append(run)
    names = series_names(groups)
    shown = all_shortened(names.values())
    rivals = list(dict.fromkeys(run.label for run in runs if run.name not in BOUND_HUES))
    views: dict[str, list[str]] = {}
    for label, view in groups:
        views.setdefault(label, []).append(view)
    found = []
    for (label, view), group in groups.items():
        place = rivals.index(label) if label in rivals else 0
        hue = HUES[place % len(HUES)] if label in rivals else BOUND_HUES[group[0].name]
        dash = DASHES[views[label].index(view) % len(DASHES)]
        marker = MARKERS[place // len(HUES) % len(MARKERS)]
        found.append(Series(label, view, shown[names[label, view]], tuple(group), hue, dash, marker))
    return found


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move ascending positions as little as possible until neighbours are `gap` apart, within [low, high].

    >>> spread([0.0, 1.0, 10.0], gap=2.0, low=-5.0, high=20.0)
    [-0.5, 1.5, 10.0]
    >>> spread([0.0, 0.0], gap=1.0, low=0.0, high=5.0)
    [0.0, 1.0]
    """
    # Minus the gaps, "at least a gap apart" becomes "not decreasing": an isotonic regression by pooling.
    pools: list[tuple[float, int]] = []
    for i, y in enumerate(wanted):
        pool = (y - i * gap, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, n = pools.pop()
            pool = ((mean * n + pool[0] * pool[1]) / (n + pool[1]), n + pool[1])
        pools.append(pool)
    level = [mean for mean, n in pools for _ in range(n)]
    top = high - (len(level) - 1) * gap
    return [min(max(y, low), top) + i * gap for i, y in enumerate(level)]


def _over_seeds(curves: Sequence[tuple[ArrayLike, ArrayLike]]) -> tuple[Floats, Floats, Floats]:
    pairs = [(np.asarray(rounds), np.asarray(values, dtype=np.float64)) for rounds, values in curves]
    measured = [
        dict(zip(*(side[np.isfinite(values)] for side in (rounds, values)), strict=True)) for rounds, values in pairs
    ]
    measured = [points for points in measured if points]
    if not measured or not (rounds := sorted(set.intersection(*map(set, measured)))):
        return np.empty(0), np.empty(0), np.empty(0)
    table = np.array([[points[number] for number in rounds] for points in measured])
    deviation = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(len(rounds))
    return np.array(rounds, dtype=np.float64), table.mean(axis=0), deviation


def _spent_so_far(run: Run, name: str) -> tuple[list[int], Floats]:
    each = [cost(METRICS[name], Run(run.meta, (record,))) for record in run.rounds]
    return [record["round"] for record in run.rounds], np.cumsum([math.nan if x is None else x for x in each])
