"""Plots of KnFu's fusion: which client learns from which, and clients' classes beside their predicted ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike, NDArray

from fedalloy.base.text import client_ticks, shortened
from fedalloy.report.canvas import INK, QUIET, styled, widest
from fedalloy.report.partition_plot import BLUES
from fedalloy.report.series import HUES, Floats

OWN, NEAREST, REST = HUES[1], HUES[0], "#c6dbef"
BAR = 1.6  # inches from 0 to 100 %


@styled
def fusion_picture(weights: ArrayLike, *, title: str = "", client_names: Sequence[str] = ()) -> Figure:
    """A map of how much each client (row) learned from each (column), and bars: itself, the nearest, the others.

    Rows of zeros are clients who did not take part; they are left out.

    >>> figure = fusion_picture([[0.8, 0.0, 0.2], [0, 0, 0], [0.4, 0.0, 0.6]])
    >>> [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    ['0', '2']
    """
    everybody = np.asarray(weights, dtype=np.float64)
    ids = _present(everybody)
    w = everybody[np.ix_(ids, ids)]
    others = w - np.diag(w.diagonal())
    clients = len(ids)
    cell = max(min(0.36, 7.2 / clients), 1.8 / clients)
    side = cell * clients
    who = client_ticks(client_names, ids.tolist(), 16)
    room = widest(Figure(), who) if client_names else 0.0  # for names, which are turned below the map
    line = f"Sources of each client's knowledge, {_who(ids, everybody)}"
    page = _page(side + 0.35 + BAR + 1.65 + room, side, title, line, below=0.15 + room, beside=room)

    norm = _scale(others)
    main = page.place(0, side, side)
    _map(main, others, norm, who, cell)
    for i in range(clients):
        main.add_patch(Rectangle((i - 0.5, i - 0.5), 1, 1, facecolor=OWN, edgecolor="white", linewidth=_gap(cell)))
    if cell >= 0.3:
        for row, column in zip(*np.nonzero(w >= 0.005), strict=True):
            shade = INK if row != column and norm(w[row, column]) < 0.55 else "white"
            text = f"{100 * w[row, column]:.0f}"
            main.text(column, row, text, ha="center", va="center", fontsize=7, color=shade)
    _name_columns(main, who, cell, turned=bool(client_names))
    main.set_xlabel("learns from client")
    _heading(main, 0, "weight of each, in %" if cell >= 0.3 else "weight of each", INK)

    bars = page.place(side + 0.35, BAR, side)
    most = others.max(1)
    _bars(bars, [(w.diagonal(), OWN), (most, NEAREST), (1 - w.diagonal() - most, REST)])
    for x, word, hue in ((0, "itself", OWN), (0.45, "its nearest", NEAREST), (1.2, "others", QUIET)):
        _heading(bars, x, word, hue)
    if clients > 1:
        if cell >= 0.12:
            for row, column in enumerate(others.argmax(1)):
                bars.text(1.05, row, f"from {who[column]}", va="center", fontsize=8, color=NEAREST)
        _colour_bar(page, side + 0.35 + BAR + 0.75 + room, side, norm)
    return page.figure


@styled
def epd_picture(
    epd: ArrayLike, counts: ArrayLike, names: Sequence[str], *, title: str = "", client_names: Sequence[str] = ()
) -> Figure:
    """What each client holds of each class beside its EPD, which estimates it, and how far apart they are (Fig. 1).

    The distance is half the sum of the absolute differences: the share that lies with the wrong classes. Rows of zeros
    are clients who did not take part; they are left out. Outputs beyond the classes that clients hold are numbered.

    >>> figure = epd_picture([[0.75, 0.25], [0, 0]], [[10, 0], [5, 5]], ["cat", "dog"])
    >>> [text.get_text() for text in figure.axes[2].texts]
    ['distance, 25 % on average', '25 %']
    """
    everybody, held = np.asarray(epd, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    ids, outputs = _present(everybody), everybody.shape[1]
    answered, real = everybody[ids], np.zeros((len(ids), outputs))
    real[:, : held.shape[1]] = held[ids] / held[ids].sum(1, keepdims=True)
    names = [shortened(name, 14) for name in [*names, *(str(c) for c in range(len(names), outputs))]]

    row = max(min(0.26, 6.5 / len(ids)), 0.6 / len(ids))
    cell = max(min(0.36, 5 / outputs), 1.9 / outputs)
    across, down = cell * outputs, row * len(ids)
    bars_at = 2 * across + 0.25 + 0.35
    longest = widest(Figure(), names)
    turned = longest > max(cell, 0.3)  # short names are omitted rather than rotated
    line = f"Class shares of each client's data and of its answers on public samples, {_who(ids, everybody)}"
    who = client_ticks(client_names, ids.tolist(), 16)
    beside = widest(Figure(), who) if client_names else 0.0
    below = longest if turned else 0.1
    page = _page(bars_at + BAR + 1.5, down, title, line, below=below, beside=beside)

    norm = _scale(np.concatenate([real, answered]))
    for x, what, shares in ((0.0, "what it holds", real), (across + 0.25, "what it answers: EPD", answered)):
        axes = page.place(x, across, down)
        _map(axes, shares, norm, who, row)
        _name_columns(axes, names, cell, turned=turned)
        _heading(axes, 0, what, INK)
    axes.set(yticks=[], ylabel="")  # the rows are named at the first map

    apart = np.abs(answered - real).sum(1) / 2
    bars = page.place(bars_at, BAR, down)
    _bars(bars, [(apart, OWN)])
    _heading(bars, 0, f"distance, {100 * apart.mean():.0f} % on average", OWN)
    if row >= 0.12:
        for place, value in enumerate(apart):
            bars.text(1.05, place, f"{100 * value:.0f} %", va="center", fontsize=8, color=QUIET)
    _colour_bar(page, bars_at + BAR + 0.7, down, norm)
    return page.figure


@dataclass(frozen=True)
class _Page:
    figure: Figure
    left: float = 0.75
    above: float = 0.95

    def place(self, x: float, width: float, height: float) -> Axes:
        """Axes of this size in inches, x inches right of the left margin, below the upper one."""
        wide, tall = self.figure.get_size_inches()
        box = (self.left + x) / wide, (tall - self.above - height) / tall, width / wide, height / tall
        axes = self.figure.add_axes(box)
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return axes


def _page(across: float, down: float, title: str, line: str, below: float = 0.15, beside: float = 0.0) -> _Page:
    figure = Figure()
    FigureCanvasAgg(figure)
    wide = max(across, widest(figure, [line])) + _Page.left + beside
    tall = _Page.above + down + below + 0.3
    figure.set_size_inches(wide, tall)
    figure.text(0.15 / wide, 1 - 0.13 / tall, title, va="top", fontsize=11)
    figure.text(0.15 / wide, 1 - 0.36 / tall, line, va="top", color=QUIET)
    return _Page(figure, _Page.left + beside)


def _present(table: Floats) -> NDArray[np.int64]:
    return np.flatnonzero(table.sum(1) > 0)


def _who(ids: NDArray[np.int64], table: Floats) -> str:
    return f"{len(ids)} of {len(table)} clients taking part"


def _scale(table: Floats) -> PowerNorm:
    return PowerNorm(0.5, vmin=0, vmax=float(table.max()) or 1.0)  # a root scale keeps small shares visible


def _map(axes: Axes, table: Floats, norm: PowerNorm, who: Sequence[str], row: float) -> None:
    """Clients from top to bottom, darker cells for more."""
    rows, columns = table.shape
    edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    lines = "white" if _gap(row) else "none"  # lines of zero width would still take seconds to draw
    axes.pcolormesh(*edges, table, cmap=BLUES, norm=norm, edgecolors=lines, linewidth=_gap(row), rasterized=True)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), ylabel="client")
    shown = _named(rows, row, 0.16)
    axes.set_yticks(shown, [who[i] for i in shown], fontsize=8)


def _gap(cell: float) -> float:
    return 1.0 if cell >= 0.2 else 0.2 if cell >= 0.05 else 0.0


def _name_columns(axes: Axes, names: Sequence[str], cell: float, *, turned: bool) -> None:
    shown = _named(len(names), cell, 0.16 if turned else widest(Figure(), names) + 0.05)
    axes.set_xticks(shown, [names[i] for i in shown], fontsize=8, rotation=90 if turned else 0)


def _named(n: int, room: float, needed: float) -> range:
    """Which of n places get a name, where each has `room` inches and a name needs `needed`."""
    steps = (1, 2, 5, 10, 20, 50, 100)
    return range(0, n, next((step for step in steps if step * room >= needed), 1000))


def _bars(axes: Axes, parts: Sequence[tuple[Floats, str]]) -> None:
    """A bar for each client, in parts, from 0 to 100 %."""
    rows = len(parts[0][0])
    start = np.zeros(rows)
    for part, hue in parts:
        axes.barh(range(rows), part, left=start, height=0.74, color=hue)
        start = start + part
    axes.set(xlim=(0, 1), ylim=(rows - 0.5, -0.5), xticks=[0, 0.5, 1], yticks=[])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, 0, " %"))
    axes.tick_params(axis="x", labelsize=8)


def _heading(axes: Axes, x: float, text: str, hue: str) -> None:
    """A word above the axes, x inches from their left edge."""
    axes.annotate(
        text, (0, 1), (72 * x, 5), "axes fraction", textcoords="offset points", color=hue, annotation_clip=False
    )


def _colour_bar(page: _Page, x: float, down: float, norm: PowerNorm) -> None:
    scale = page.place(x, 0.14, min(down, 2.0))
    bar = page.figure.colorbar(ScalarMappable(norm, BLUES), cax=scale, format=PercentFormatter(1.0, None, " %"))
    bar.outline.set_visible(False)
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=8)
