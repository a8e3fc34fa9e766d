"""Curves: metrics over the rounds, a panel for each column and a line for each row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedalloy.base.registry import suggest
from fedalloy.errors import DataError
from fedalloy.federation.metrics import METRICS
from fedalloy.report.series import Floats, Series
from fedalloy.reproduce.catalogue import Row
from fedalloy.reproduce.forms.figures_columns import Spot, metric_title, spots
from fedalloy.reproduce.forms.figures_page import (
    ACROSS,
    form,
    grid_of,
    handle,
    hide_rest,
    looks,
    named_lines,
    options,
    page,
    remarks,
    rows_with_runs,
    say_absent,
    title_of,
    with_runs,
)
from fedalloy.reproduce.results import Results


@form
def curves(results: Results) -> list[Figure]:
    """Metrics over the rounds with a band of one standard deviation over the seeds.

    Options: `metrics`, a row of panels each; `panels` and `lines`, the axes that split panels and lines; `every`, to
    draw only every so many rounds.
    """
    metrics = list(options(results).get("metrics", results.item.metrics))
    places = spots(results, along=0)
    panels = list(dict.fromkeys(spot.panel for spot in places)) or [""]
    lines = _lines(results, places)
    beside = len(panels) == 1  # then the metrics stand beside each other
    band = (1, 1) if beside else grid_of(len(panels), 5 if len(metrics) > 1 and len(panels) == 5 else ACROSS)
    shape = grid_of(len(metrics), 3) if beside else (band[0] * len(metrics), band[1])
    shows = "Mean and, as a band, one standard deviation over seeds."
    legend = [handle(look) for look in dict.fromkeys(replace(line, runs=()) for _, _, line in lines)]
    size = (6.5, 2.8) if shape == (1, 1) else None
    made = page(title_of(results.item), remarks(results, shows), shape, legend=legend, panel=size)
    hide_rest(made.all, len(metrics) if beside else len(made.all))
    each = band[0] * band[1]
    for number, metric in enumerate(metrics):
        block = made.all[number * each : (number + 1) * each]
        hide_rest(block, len(panels))
        for place, (axes, panel) in enumerate(zip(block, panels, strict=False)):
            axes.set_title(panel)
            here = [(row, line) for spot, row, line in lines if spot.panel == panel]
            if not _draw(axes, here, metric, int(options(results).get("every", 1))):
                say_absent(axes)
            if place % band[1] == 0:
                axes.set_ylabel(metric_title(metric, results))
            if (beside or number == len(metrics) - 1) and place + band[1] >= len(panels):
                axes.set_xlabel("Round")
    return [made.figure]


def _lines(results: Results, places: list[Spot]) -> list[tuple[Spot, Row, Series]]:
    """Every line with its runs, and where it belongs."""
    rows, styles = rows_with_runs(results), looks(results)
    values = list(dict.fromkeys(spot.line for spot in places if spot.line))
    found = []
    for place, row in enumerate(rows):
        look = styles[row.label]
        own = dict(zip(values, named_lines(look, values, len(rows), place), strict=True))
        for spot in places:
            line = with_runs(own.get(spot.line, look), row, results, spot.column)
            if line.runs:
                found.append((spot, row, line))
    return found


def _draw(axes: Axes, lines: list[tuple[Row, Series]], metric: str, every: int) -> bool:
    """Draw the lines of a panel; whether there is any."""
    found = [(line, *_curve(line, metric, every)) for _, line in lines]
    found = [entry for entry in found if len(entry[1])]
    last = max((rounds[-1] for _, rounds, *_ in found), default=1.0)
    for line, rounds, mean, deviation in found:
        if line.level and rounds[0] < last:  # all its work is done in one round: its result, to the end of the others
            rounds, mean, deviation = np.array([rounds[0], last]), mean[-1:].repeat(2), deviation[-1:].repeat(2)
        axes.fill_between(rounds, mean - deviation, mean + deviation, color=line.hue, alpha=0.13, linewidth=0)
        marker = line.marker or ("o" if len(rounds) == 1 else "")
        axes.plot(
            rounds, mean, color=line.hue, linestyle=line.dash, linewidth=1.4, marker=marker, markersize=3.5,
            markevery=max(len(rounds) // 8, 1),
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=6, min_n_ticks=1))
    axes.margins(x=0.02)
    return bool(found)


def _curve(line: Series, metric: str, every: int) -> tuple[Floats, Floats, Floats]:
    """Rounds, mean and deviation over seeds, in the unit that is printed."""
    if metric.startswith("note "):
        name = metric.removeprefix("note ")
        rounds, mean, deviation = line.noted(name)
    elif metric in METRICS and METRICS[metric].source == "view":
        known = tuple(run for run in line.runs if any(metric in r["views"].get(line.view, {}) for r in run.rounds))
        rounds, mean, deviation = replace(line, runs=known).curve(metric)
        mean, deviation = METRICS[metric].factor * mean, METRICS[metric].factor * deviation
    else:
        able = [name for name, one in METRICS.items() if one.source == "view"]
        raise DataError(f"there is no curve of '{metric}'; {suggest(metric, able)}")
    kept = (rounds % every == 0) | (line.level & (rounds == rounds[-1:].sum()))
    return rounds[kept], mean[kept], deviation[kept]
