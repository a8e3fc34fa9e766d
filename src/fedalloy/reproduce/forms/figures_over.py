"""A metric over the columns: as lines along an axis, and as bars in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter, NullLocator

from fedalloy.report.canvas import INK, QUIET
from fedalloy.report.series import DASHES, MARKERS, Series
from fedalloy.reproduce.catalogue import Published, Row
from fedalloy.reproduce.forms.figures_columns import (
    Spot,
    base_row,
    column_titles,
    measured,
    metric_title,
    numbers,
    printed,
    spots,
)
from fedalloy.reproduce.forms.figures_page import (
    form,
    grid_of,
    handle,
    hide_rest,
    looks,
    mean_and_deviation,
    named_lines,
    page,
    remarks,
    rows_with_runs,
    say_absent,
    title_of,
)
from fedalloy.reproduce.results import Results

DEVIATION = "Mean and one standard deviation over seeds, round: {round}."
HOLLOW = "Hollow: the paper's figures, at its own scale."


@form
def over_columns(results: Results) -> list[Figure]:
    """A metric along an axis, a line for each row; hollow markers are published figures.

    Options: `x`, `panels` and `lines`, axes by name or index; `relative_to`, a row, to draw gains over it. Several
    metrics are rows of panels.
    """
    places, rows, styles = spots(results), contenders(results), looks(results)
    panels = list(dict.fromkeys(spot.panel for spot in places)) or [""]
    values = list(dict.fromkeys(spot.line for spot in places))
    lines: list[tuple[Row, str, Series]] = []
    for place, row in enumerate(rows):
        own = named_lines(styles[row.label], values, len(rows), place) if values != [""] else [styles[row.label]]
        lines += [(row, value, look) for value, look in zip(values, own, strict=True)]
    metrics = results.item.metrics
    band = grid_of(len(panels))
    figures = printed(results)
    made = page(
        title_of(results.item),
        remarks(results, _shows(results, figures)),
        (band[0] * len(metrics), band[1]),
        legend=[handle(look, marker=_marker(look)) for _, _, look in lines],
        panel=(5.5, 2.8) if len(panels) == 1 else None,
    )
    for number, metric in enumerate(metrics):
        block = [axes for row in made.panels[number * band[0] : (number + 1) * band[0]] for axes in row]
        hide_rest(block, len(panels))
        for place, (axes, panel) in enumerate(zip(block, panels, strict=False)):
            here = [spot for spot in places if spot.panel == panel]
            axes.set_title("" if here and panel == here[0].x_name else panel)
            _lines_along(axes, results, here, lines, metric, figures)
            if place % band[1] == 0:
                axes.set_ylabel(metric_title(metric, results))
    return [made.figure]


def _lines_along(
    axes: Axes,
    results: Results,
    here: Sequence[Spot],
    lines: Sequence[tuple[Row, str, Series]],
    metric: str,
    figures: Mapping[tuple[str, str, str], Published],
) -> None:
    """The lines of a panel over the labels of its columns."""
    labels = list(dict.fromkeys(spot.x for spot in here))
    at, numeric = _positions(axes, labels)
    drawn = False
    for place, (row, value, look) in enumerate(lines):
        shift = 0.0 if numeric else 0.3 * ((place + 0.5) / len(lines) - 0.5)  # so that no error bar hides another
        own = sorted((spot for spot in here if spot.line == value), key=lambda spot: at[spot.x])
        points = [
            (at[spot.x] + shift, *mean_and_deviation(measured(results, row, spot.column, metric))) for spot in own
        ]
        points = [point for point in points if not np.isnan(point[1])]
        if points:
            x, mean, deviation = zip(*points, strict=True)
            axes.errorbar(
                x, mean, yerr=deviation, color=look.hue, linestyle=look.dash, linewidth=1.4, elinewidth=0.9,
                capsize=2.2, marker=_marker(look), markersize=4,
            )  # fmt: skip
            drawn = True
        for spot in own:
            if (figure := figures.get((row.label, spot.column, metric))) is not None:
                hollow(axes, at[spot.x] + shift, figure, look.hue, _marker(look))
                drawn = True
    axes.set_xlabel(here[0].x_name if here else "")
    if not drawn:
        say_absent(axes)


def _shows(results: Results, figures: Mapping[tuple[str, str, str], Published]) -> str:
    return " ".join([DEVIATION.format(round=results.item.round), HOLLOW][: 1 + bool(figures)])


def _marker(look: Series) -> str:
    """The marker of a line's points: it differs between views, and once the usual hues are used up."""
    return ("oDPX" if DASHES[0] == look.dash else "^v<>")[MARKERS.index(look.marker)]


def hollow(axes: Axes, x: float, figure: Published, hue: str, marker: str) -> None:
    """A published figure, with its error if it has one."""
    axes.errorbar(
        [x], [figure.value], yerr=None if figure.error is None else [figure.error], color=hue, linestyle="none",
        marker=marker, markersize=5.5, markerfacecolor="white", markeredgewidth=1.1, elinewidth=0.6, zorder=2.5,
    )  # fmt: skip


def _positions(axes: Axes, labels: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Where the labels stand, and whether as numbers.

    The scale is a log one if they span more than a factor of 20, or if they would touch on a linear one. If they touch
    on both, they stand at equal distances.
    """
    found = numbers(labels) if labels else None
    if found is None:
        axes.set_xticks(range(len(labels)), [broken(label) for label in labels])
        axes.set_xlim(-0.5, len(labels) - 0.5)
        return {label: float(i) for i, label in enumerate(labels)}, False
    figure = axes.get_figure(root=True)
    width = 0.0 if figure is None else axes.get_position().width * figure.get_size_inches()[0] / 1.12
    fits, log = _fit(found, labels, width), False
    if min(found) > 0 and (not fits or max(found) / min(found) > 20):
        log = fits = _fit(np.log(found).tolist(), labels, width)
    if not fits:
        order = sorted(found)
        found = [float(order.index(value)) for value in found]
    if log:
        axes.set_xscale("log")
    axes.set_xticks(found, labels)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.06)
    return dict(zip(labels, found, strict=True)), True


def _fit(places: Sequence[float], labels: Sequence[str], width: float) -> bool:
    """Whether labels do not touch, in inches: a digit takes 0.08 and a point half of it.

    >>> _fit([0, 1, 10], ["0", "1", "10"], 3.0), _fit([0, 1, 10], ["0", "1", "10"], 1.0)
    (True, False)
    """
    span = (max(places) - min(places)) or 1.0
    wide = {label: 0.08 * (len(label) - label.count(".") / 2) for label in labels}
    order = sorted(zip(places, labels, strict=True))
    gaps = [((b - a) / span * width, (wide[x] + wide[y]) / 2 + 0.05) for (a, x), (b, y) in pairwise(order)]
    return all(gap >= needed for gap, needed in gaps)


def broken(label: str) -> str:
    """A label of several words in two lines.

    >>> broken("CIFAR-10, beta = 0.1")
    'CIFAR-10,\\nbeta = 0.1'
    """
    words = label.split()
    if len(label) < 10 or len(words) < 2:
        return label
    half = min(range(1, len(words)), key=lambda i: abs(len(" ".join(words[:i])) - len(label) / 2))
    return " ".join(words[:half]) + "\n" + " ".join(words[half:])


def contenders(results: Results) -> list[Row]:
    """The rows with runs, without the one that gains are taken over."""
    return [row for row in rows_with_runs(results) if row != base_row(results)]


@form
def bars(results: Results) -> list[Figure]:
    """A bar for each row with its deviation over seeds, in a group for each column; several metrics are panels.

    Options: `relative_to`, a row, to draw gains over it.
    """
    rows, styles, titles = contenders(results), looks(results), column_titles(results)
    metrics, groups = results.item.metrics, results.columns
    many = len(rows) * len(groups) > 8
    across = 1 if many or len(metrics) == 1 else min(len(metrics), 3)
    down = -(-len(metrics) // across)
    figures = printed(results)
    legend = [
        Patch(facecolor=look.hue, hatch=hatch_of(look), edgecolor="white", linewidth=0, label=look.name)
        for look in (styles[row.label] for row in rows)
    ]
    size = (min(max(0.9 + 0.28 * (len(rows) + 1) * max(len(groups), 1), 4.5), 9.8), 2.3) if across == 1 else None
    made = page(
        title_of(results.item), remarks(results, _shows(results, figures)), (down, across), legend=legend, panel=size
    )
    hide_rest(made.all, len(metrics))
    for axes, metric in zip(made.all, metrics, strict=False):
        axes.set_ylabel(metric_title(metric, results))
        axes.grid(axis="x", visible=False)
        width = 0.8 / max(len(rows), 1)
        for place, row in enumerate(rows):
            look = styles[row.label]
            for group, column in enumerate(groups):
                x = group - 0.4 + width * (place + 0.5)
                mean, deviation = mean_and_deviation(measured(results, row, column, metric))
                if not np.isnan(mean):
                    axes.bar(
                        x, mean, 0.9 * width, yerr=deviation, color=look.hue, hatch=hatch_of(look), edgecolor="white",
                        linewidth=0, error_kw={"elinewidth": 0.9, "ecolor": INK, "capsize": 2},
                    )  # fmt: skip
                if (figure := figures.get((row.label, column, metric))) is not None:
                    hollow(axes, x, figure, INK, "D")
        axes.axhline(0, color=QUIET, linewidth=0.8)
        axes.set_xticks(range(len(groups)), [broken(titles[column]) for column in groups])
        axes.set_xlim(-0.6, max(len(groups), 1) - 0.4)
        if not rows:
            say_absent(axes)
    return [made.figure]


def hatch_of(look: Series) -> str:
    """The pattern of a bar or box: a method's views differ in it."""
    return ("", "///", "...", "xx")[DASHES.index(look.dash)]
