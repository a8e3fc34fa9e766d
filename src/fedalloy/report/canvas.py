"""What all plots share: one style, and lines that are named at their end instead of in a legend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedalloy.report.series import Series, spread

WIDE, HALF, NARROW = 10.8, 5.3, 3.7  # inches: a desktop page, half of one, a phone
INK, QUIET, GRID = "#1F2328", "#59636E", "#E4E7EB"
LINE = 0.19  # inches that one line of labels takes
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.parse_math": False,  # a dollar sign in a label is a dollar sign
    "text.color": INK,
    "axes.edgecolor": "#AEB5BD",
    "axes.labelcolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in this style, and restore the previous style."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def canvas(width: float, height: float, series: Sequence[Series], *, xlabel: str) -> tuple[Figure, Axes]:
    """A figure with space for the names of its lines: right of the plot, or below it on a phone."""
    height = max(height, LINE * len(series) + 0.9)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    names = [one.name for one in series]
    right, below = widest(figure, names) + 0.55, 0.5
    if width <= NARROW or right > width * 0.45:
        columns = _columns(figure, names, width)
        right, below = 0.12, 0.62 + LINE * -(-len(names) // columns)
        height = max(3.0, 2.2 + below)
        figure.set_size_inches(width, height)
    left, above = 0.42, 0.32
    box = (left / width, below / height, (width - left - right) / width, 1 - (below + above) / height)
    axes = figure.add_axes(box)
    axes.set_xlabel(xlabel)
    return figure, axes


def name_ends(figure: Figure, axes: Axes, ends: list[tuple[Series, float, float]], *, led: bool) -> None:
    """Write each line's name at its end, without overlaps; on a phone, below the plot."""
    width, height = figure.get_size_inches()
    box = axes.get_position()
    if (1 - box.x1) * width < 0.3:
        _name_below(figure, [one for one, *_ in ends])
        return
    axes.autoscale_view()
    places = sorted(
        [*(axes.transData.transform((x, y)) / figure.dpi).tolist()[::-1], i] for i, (_, x, y) in enumerate(ends)
    )
    heights = spread([y for y, *_ in places], LINE, box.y0 * height, box.y1 * height + 0.1)
    for (end_y, end_x, i), y in zip(places, heights, strict=True):
        one, x = ends[int(i)][0], box.x1 * width + 0.1
        if led:
            _stroke(figure, [end_x, x], [end_y, y], color=one.hue, linewidth=0.7, alpha=0.55)
        _swatch(figure, one, x, y)


def _name_below(figure: Figure, series: Sequence[Series]) -> None:
    width, _ = figure.get_size_inches()
    columns = _columns(figure, [one.name for one in series], width)
    rows = -(-len(series) // columns)
    for place, one in enumerate(series):
        _swatch(figure, one, 0.12 + place // rows * (width - 0.12) / columns, 0.1 + LINE * (rows - 1 - place % rows))


def _swatch(figure: Figure, one: Series, x: float, y: float) -> None:
    width, height = figure.get_size_inches()
    _stroke(
        figure, [x, x + 0.26], [y, y], color=one.hue, linestyle=one.dash, marker=one.marker, markersize=4, markevery=2
    )
    figure.text((x + 0.33) / width, y / height, one.name, va="center_baseline", fontsize=8.5)


def _stroke(figure: Figure, x: Sequence[float], y: Sequence[float], **look: Any) -> None:
    width, height = figure.get_size_inches()
    figure.add_artist(Line2D(np.array(x) / width, np.array(y) / height, transform=figure.transFigure, **look))


def _columns(figure: Figure, names: Sequence[str], width: float) -> int:
    return max(1, int((width - 0.12) // (widest(figure, names) + 0.45)))


def widest(figure: Figure, names: Sequence[str]) -> float:
    """The width in inches of the longest name, as it will be drawn."""
    draft = figure.text(0, 0, "", fontsize=9)
    widths = [0.3]
    for name in names:
        draft.set_text(name)
        widths.append(draft.get_window_extent().width / figure.dpi)
    draft.remove()
    return max(widths)
