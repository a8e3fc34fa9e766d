"""Pictures of finished runs: how they learned, how each client fares, what it cost to communicate.

Every picture is drawn for a width in inches, so that a phone gets its own drawing and not a shrunken one. Nothing here
touches pyplot or its global state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedalloy.report.format import human_bytes
from fedalloy.report.series import Floats, Series, series_of, spread
from fedalloy.report.svg import save, to_svg
from fedalloy.results import Run

__all__ = ["client_picture", "cost_picture", "learning_curves", "save", "to_svg"]

WIDE, HALF, NARROW = 10.8, 5.3, 3.7  # inches: a desktop page, half of one, a phone
INK, QUIET, GRID = "#1F2328", "#59636E", "#E4E7EB"
LINE = 0.19  # inches that one line of labels takes
METRICS: dict[str, tuple[str, float]] = {
    "amp": ("AMP %", 100.0),
    "wlp": ("WLP %, the worst client", 100.0),
    "fm": ("FM × 10³, lower is fairer", 1000.0),
    "bottom10": ("Bottom 10 % of clients, %", 100.0),
    "test": ("Global test accuracy, %", 100.0),
    "loss": ("Loss", 1.0),
}
STYLE: dict[str, Any] = {
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


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    styled.__doc__, styled.__name__ = draw.__doc__, draw.__name__
    return styled


@_styled
def learning_curves(runs: Sequence[Run], metric: str = "amp", *, width: float = WIDE) -> Figure:
    """One line per method and view, with a band of one standard deviation over the seeds, named at its end."""
    title, unit = METRICS.get(metric, (metric, 1.0))
    series = [(one, *one.curve(metric)) for one in series_of(runs)]
    series = [entry for entry in series if len(entry[1])]
    figure, axes = _canvas(width, 3.9 if width >= WIDE else 3.0, [one for one, *_ in series], xlabel="Round")
    axes.set_title(title)
    for one, rounds, mean, std in series:
        axes.fill_between(rounds, (mean - std) * unit, (mean + std) * unit, color=one.hue, alpha=0.13, linewidth=0)
        _line(axes, one, rounds, mean * unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=10 if width > NARROW else 6))
    axes.margins(x=0.01)
    _name_ends(figure, axes, [(one, rounds[-1], mean[-1] * unit) for one, rounds, mean, _ in series], led=True)
    return figure


@_styled
def cost_picture(runs: Sequence[Run], *, width: float = WIDE) -> Figure:
    """AMP against the bytes sent so far; a method that sends nothing is a level line."""
    series = [entry for one in series_of(runs) if len((entry := (one, *_bought(one)))[1])]
    figure, axes = _canvas(
        width, 3.6 if width >= WIDE else 3.0, [one for one, *_ in series], xlabel="Sent so far, both ways (log scale)"
    )
    axes.set_title("AMP %")
    ends = []
    for one, sent, amp in series:
        if sent[-1] > 0:
            _line(axes, one, sent[sent > 0], amp[sent > 0])
            axes.plot(sent[-1], amp[-1], "o", color=one.hue, markersize=5.5, markeredgecolor="white", zorder=4)
            ends.append((one, float(sent[-1]), float(amp[-1])))
    if ends:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: human_bytes(x).replace(".00", "").replace(".0 ", " "))
        )
        axes.xaxis.set_minor_locator(NullLocator())
    for one, sent, amp in series:
        if sent[-1] == 0:
            axes.axhline(amp[-1], color=one.hue, linewidth=1.3, linestyle=(0, (1, 1.5)))
            ends.append((one, axes.get_xlim()[1], float(amp[-1])))
    # Lines end far apart here, and threads from there to the names would cross the other lines.
    _name_ends(figure, axes, ends, led=False)
    return figure


@_styled
def client_picture(runs: Sequence[Run], *, width: float = WIDE) -> Figure:
    """One row per method and view, one dot per client (and seed) at its accuracy in the last round.

    The bar is the median client; the ring is the worst one, with its number.
    """
    rows = [(one, clients) for one in series_of(runs) if (clients := one.clients())]
    rows.sort(key=lambda row: float(np.median([a for _, a in row[1]])), reverse=True)
    beside = width > NARROW  # on a phone a row's name stands above its dots, to leave them the width
    row_height = 0.52 if beside else 0.66
    above, below = 0.1, 0.5
    height = above + below + row_height * max(len(rows), 1)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    left = min(_widest(figure, [one.name for one, _ in rows]) + 0.2, width * 0.4) if beside else 0.12
    axes = figure.add_axes((left / width, below / height, (width - left - 0.2) / width, 1 - (above + below) / height))
    lowest = min((a for _, clients in rows for _, a in clients), default=0.0) * 100
    axes.set_xlim(max(lowest - 6, -2), min(max((a for _, c in rows for _, a in c), default=1.0) * 100 + 3, 101))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("Accuracy on each client's own test data, %")
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_yticks(range(len(rows)), [one.name for one, _ in rows] if beside else [], color=INK)
    for place, (one, clients) in enumerate(rows):
        _dots(axes, place + (0 if beside else 0.16), one, clients, row_height, width)
        axes.axhline(place + 0.5, color=GRID, linewidth=0.7)
        if not beside:
            axes.text(0, place - 0.3, one.name, transform=axes.get_yaxis_transform(), va="center")
    return figure


def _dots(axes: Axes, centre: float, one: Series, clients: list[tuple[int, float]], row: float, width: float) -> None:
    """Dots of (nearly) equal accuracy are stacked around the row's centre, so that none hides another."""
    clients = sorted(clients, key=lambda client: (client[1], client[0]))
    accuracy = np.array([a for _, a in clients]) * 100
    size = float(np.clip(0.55 / np.sqrt(len(clients)), 0.03, 0.062))  # inches; smaller in a crowd
    low, high = axes.get_xlim()
    column = np.floor((accuracy - low) / (high - low) * width / size).astype(int)
    stack = np.zeros(len(column))
    for at in np.unique(column):
        members = np.flatnonzero(column == at)
        stack[members] = np.arange(len(members)) - (len(members) - 1) / 2
    room = 0.5 * (0.52 if row <= 0.52 else 0.4) / row
    step = min(size / row, room / max(float(np.abs(stack).max()), 1.0))
    y = centre + stack * step
    median = float(np.median(accuracy))
    axes.plot([median, median], [centre - 0.3, centre + 0.3], color=INK, linewidth=1.6, solid_capstyle="butt", zorder=4)
    axes.plot(accuracy, y, "o", color=one.hue, markersize=size * 72, alpha=0.75, markeredgewidth=0, zorder=3)
    axes.plot(accuracy[0], y[0], "o", color="none", markersize=8, markeredgecolor=INK, markeredgewidth=1.1, zorder=5)
    axes.annotate(
        f"{clients[0][0]}", (accuracy[0], y[0]), (-6.5, 0), textcoords="offset points", ha="right", va="center",
        fontsize=8, color=QUIET,
    )  # fmt: skip


def _bought(one: Series) -> tuple[Floats, Floats]:
    """Bytes sent so far and the AMP they bought, at the rounds where both are known."""
    (measured, amp, _), (counted, sent) = one.curve("amp"), one.traffic()
    _, left, right = np.intersect1d(measured, counted, return_indices=True)
    return sent[right], amp[left] * 100


def _line(axes: Axes, one: Series, x: Floats, y: Floats) -> None:
    marker = one.marker or ("o" if len(x) == 1 else "")
    axes.plot(x, y, color=one.hue, linestyle=one.dash, marker=marker, markersize=4, markevery=max(len(x) // 8, 1))


def _canvas(width: float, height: float, series: Sequence[Series], *, xlabel: str) -> tuple[Figure, Axes]:
    """A figure with room for the names of its lines: right of the plot, or below it on a phone."""
    height = max(height, LINE * len(series) + 0.9)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    names = [one.name for one in series]
    right, below = _widest(figure, names) + 0.55, 0.5
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


def _name_ends(figure: Figure, axes: Axes, ends: list[tuple[Series, float, float]], *, led: bool) -> None:
    """Write each line's name at the height where it ends, moved apart where lines meet; on a phone, below the plot."""
    width, height = figure.get_size_inches()
    box = axes.get_position()
    if (1 - box.x1) * width < 0.3:
        _name_below(figure, [one for one, *_ in ends])
        return
    axes.autoscale_view()
    places = sorted(
        (axes.transData.transform((x, y)) / figure.dpi).tolist()[::-1] + [i] for i, (_, x, y) in enumerate(ends)
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
    return max(1, int((width - 0.12) // (_widest(figure, names) + 0.45)))


def _widest(figure: Figure, names: Sequence[str]) -> float:
    """The width in inches of the longest name, as it will be drawn."""
    draft = figure.text(0, 0, "", fontsize=9)
    widths = [0.3]
    for name in names:
        draft.set_text(name)
        widths.append(draft.get_window_extent().width / figure.dpi)
    draft.remove()
    return max(widths)
