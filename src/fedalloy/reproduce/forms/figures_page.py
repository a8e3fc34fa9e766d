"""The page that every figure is drawn on: a title, small panels in a grid, one legend below them, and notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedalloy.base.text import listed
from fedalloy.report.canvas import LINE, QUIET, STYLE, WIDE, widest
from fedalloy.report.series import BOUND_HUES, DASHES, HUES, MARKERS, Series
from fedalloy.reproduce.catalogue import Item, Row
from fedalloy.reproduce.results import Results

Form = Callable[[Results], list[Figure]]
EDGE, UNDER_TITLE = 0.15, 0.23  # inches
ACROSS = 4  # panels beside each other, at most
# Six hues for lines, as in other plots; more for tables with more methods, which bars cannot tell apart by markers.
MANY_HUES = (*HUES, "#882255", "#999933", "#332288", "#8C510A")
MARK = " *"  # behind rows that the paper does not have


@dataclass(frozen=True)
class Page:
    """A figure with a grid of empty panels, row by row."""

    figure: Figure
    panels: list[list[Axes]]

    @property
    def all(self) -> list[Axes]:
        """The panels in the order in which they are read."""
        return [axes for row in self.panels for axes in row]


def form(draw: Form) -> Form:
    """Draw in the style of the project's plots; no global state of matplotlib is left changed."""

    def drawn(results: Results) -> list[Figure]:
        with matplotlib.rc_context(STYLE):
            return draw(results)

    drawn.__doc__, drawn.__name__ = draw.__doc__, draw.__name__
    return drawn


def page(
    title: str,
    lines: Sequence[str],
    shape: tuple[int, int],
    *,
    panel: tuple[float, float] | None = None,
    legend: Sequence[Artist] = (),
    gaps: tuple[float, float] = (0.62, 0.72),
    right: float = EDGE,
    under: float = 0.55,
) -> Page:
    """Lay out a page in inches: panels in a grid, below them the legend and the lines.

    `gaps` are left of each panel and between those below each other, `right` of and `under` all of them is more room.
    """
    down, across = shape
    wide, tall = panel or ((WIDE - EDGE - right - across * gaps[0]) / across, 2.1)
    figure = Figure(figsize=(WIDE, 1.0))
    FigureCanvasAgg(figure)
    width = max(EDGE + across * (wide + gaps[0]) + right, 5.3)
    names = [str(handle.get_label()) for handle in legend]
    columns = min(max(1, int((width - 2 * EDGE) // (widest(figure, names) + 0.68))), max(len(names), 1))
    rows = -(-len(names) // columns)
    heading = wrapped(figure, title, width - 2 * EDGE, 11)
    notes = [part for line in lines for part in wrapped(figure, line, width - 2 * EDGE, 9)]
    above = EDGE + UNDER_TITLE * len(heading) + 0.25
    below = EDGE + LINE * (rows + len(notes)) + (0.1 if notes else 0)
    height = above + down * tall + (down - 1) * gaps[1] + under + below
    figure.set_size_inches(width, height)
    for place, text in enumerate(heading):
        figure.text(EDGE / width, 1 - (EDGE + UNDER_TITLE * place) / height, text, va="top", fontsize=11)
    for place, text in enumerate(reversed(notes)):
        figure.text(EDGE / width, (0.12 + LINE * place) / height, text, va="bottom", color=QUIET)
    if legend:
        at = (EDGE / width, (0.1 + LINE * len(notes) + (0.1 if notes else 0)) / height)
        figure.legend(
            handles=list(legend), loc="lower left", bbox_to_anchor=at, ncols=columns, frameon=False, borderpad=0,
            borderaxespad=0, fontsize=9, handlelength=2.6, columnspacing=1.2, labelspacing=0.35, handletextpad=0.5,
        )  # fmt: skip
    panels = []
    for i in range(down):
        y = height - above - tall - i * (tall + gaps[1])
        left = [EDGE + gaps[0] + j * (wide + gaps[0]) for j in range(across)]
        panels.append([figure.add_axes((x / width, y / height, wide / width, tall / height)) for x in left])
    return Page(figure, panels)


def grid_of(panels: int, most: int = ACROSS) -> tuple[int, int]:
    """How many panels stand below and beside each other.

    >>> grid_of(1), grid_of(4), grid_of(6), grid_of(9)
    ((1, 1), (1, 4), (2, 3), (3, 3))
    """
    if panels <= most:
        return 1, max(panels, 1)
    return min(((-(-panels // n), n) for n in range(most, 2, -1)), key=lambda shape: shape[0] * shape[1] - panels)


def hide_rest(axes: Sequence[Axes], used: int) -> None:
    """Take away the panels that nothing is drawn in."""
    for spare in axes[used:]:
        spare.set_axis_off()


def say_absent(axes: Axes, text: str = "not recorded") -> None:
    """An empty panel that says why."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET, style="italic")


def wrapped(figure: Figure, text: str, width: float, size: float) -> list[str]:
    """Text in lines that are not wider than `width` inches.

    >>> figure = Figure()
    >>> FigureCanvasAgg(figure) and wrapped(figure, "some words", 0.7, 9)
    ['some', 'words']
    """
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and widest(figure, [longer]) * size / 9 <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


# --- what the lines of a figure look like -----------------------------------------------------------------------------


def looks(results: Results) -> dict[str, Series]:
    """A line for each row that has runs: methods differ in hue, and the views of a method in their dashes.

    Bounds, such as training alone, are grey. If there is a single method, its views differ in hue too.
    """
    shown = rows_with_runs(results)
    methods = list(dict.fromkeys(row.method for row in shown))
    names = {method: _registered(results, method) for method in methods}
    rivals = [method for method in methods if names[method] not in BOUND_HUES]
    found = {}
    for row in shown:
        views = list(dict.fromkeys(other.view for other in shown if other.method == row.method))
        place, turn = rivals.index(row.method) if row.method in rivals else 0, views.index(row.view)
        if len(methods) == 1:
            place, turn = turn, 0
        hue = MANY_HUES[place % len(MANY_HUES)] if row.method in rivals else BOUND_HUES[names[row.method]]
        dash = DASHES[turn % len(DASHES)]
        found[row.label] = Series(row.label, row.view, name_of(row), (), hue, dash, MARKERS[place // len(HUES) % 4])
    return found


def named_lines(look: Series, names: Sequence[str], of: int, place: int) -> list[Series]:
    """A row's line for each value of an axis: the values differ in hue, and the rows in their dashes.

    `place` is the row's, of so many rows; a single row keeps solid lines.
    """
    dash = DASHES[place % len(DASHES)] if of > 1 else DASHES[0]
    start = f"{look.name}, " if of > 1 else ""
    return [
        replace(
            look, name=start + name, hue=MANY_HUES[i % len(MANY_HUES)], dash=dash, marker=MARKERS[i // len(HUES) % 4]
        )
        for i, name in enumerate(names)
    ]


def with_runs(look: Series, row: Row, results: Results, column: str) -> Series:
    """The line with its runs in a column, one for each seed."""
    found = [results.run(row, column, seed) for seed in results.seeds]
    return replace(look, runs=tuple(run for run in found if run is not None and row.view in run.views))


def handle(look: Series, **style: Any) -> Line2D:
    """The line's entry in a legend."""
    usual: dict[str, Any] = {"linestyle": look.dash, "marker": look.marker, "markersize": 4}
    return Line2D([], [], color=look.hue, label=look.name, **{**usual, **style})


def rows_with_runs(results: Results) -> list[Row]:
    """The item's rows of which at least one run is recorded."""
    return [row for row in results.item.rows if any(has_runs(results, row, column) for column in results.columns)]


def has_runs(results: Results, row: Row, column: str) -> bool:
    """Whether a run of a row is recorded in a column."""
    found = [results.run(row, column, seed) for seed in results.seeds]
    return any(run is not None and row.view in run.views for run in found)


def _registered(results: Results, method: str) -> str:
    return next((run.name for (_, key, _), run in results.runs.items() if key == method), method)


# --- what stands above and below --------------------------------------------------------------------------------------


def name_of(row: Row) -> str:
    """A row's name in a legend."""
    return row.label + (MARK if row.control else "")


def title_of(item: Item) -> str:
    """The title of an item's figure."""
    return item.heading


def remarks(results: Results, shows: str, rows: Sequence[Row] | None = None) -> list[str]:
    """The lines below a figure: its scale, what it shows, the rows that the paper lacks and those without runs."""
    rows = results.item.rows if rows is None else rows
    seeds = len({seed for _, _, seed in results.runs})
    found = [f"Scale: {results.scale}, seeds: {seeds}. {shows}"]
    present = [row for row in rows if any(has_runs(results, row, column) for column in results.columns)]
    if any(row.control for row in present):
        found[0] += f" {MARK.strip()} is not in the paper."
    if absent := [row.label for row in rows if row not in present]:
        found.append(f"No runs of {listed(absent)}.")
    partly: dict[str, list[str]] = {}
    for row in present:
        if gone := [column for column in results.columns if not has_runs(results, row, column)]:
            partly.setdefault(listed([f"'{column}'" for column in gone]), []).append(row.label)
    return found + [f"No runs of {listed(labels)} in {gone}." for gone, labels in partly.items()]


def options(results: Results) -> Mapping[str, Any]:
    """The item's options."""
    return results.item.options or {}


def mean_and_deviation(values: Mapping[int, float]) -> tuple[float, float]:
    """Over seeds; the deviation of a single one is 0, and both are NaN without any."""
    table = np.array(list(values.values()), dtype=np.float64)
    if not len(table):
        return float("nan"), float("nan")
    return float(table.mean()), float(table.std(ddof=1)) if len(table) > 1 else 0.0
