"""Plots of a partition: how many samples of each class each client holds, and above it, the totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedalloy.base.text import client_ticks, shortened
from fedalloy.report.svg import plain_text

Counts = NDArray[np.int64]

# One hue from light to dark reads the same with any kind of colour vision, and on grey paper.
INK, SOFT_INK, GRID, BLUE, PALE_BLUE = "#1f2933", "#52606d", "#e4e7eb", "#2b6cb0", "#a9c7e6"
BLUES = LinearSegmentedColormap.from_list("fedalloy-blues", ["#f3f7fb", "#c6dbef", "#6baed6", "#2171b5", "#08306b"])


@dataclass(frozen=True)
class _Canvas:
    figure: Figure
    main: Axes  # clients from left to right, classes from top to bottom
    key: Axes  # to the right of it, in inches
    cell: tuple[float, float]  # width and height in inches


@plain_text
def bubble_plot(
    counts: Counts, label_names: Sequence[str] | None = None, *, title: str = "", client_names: Sequence[str] = ()
) -> Figure:
    """Draw a bubble for each client (row of `counts`) and class (column), its area in proportion to the rows held.

    >>> bubble_plot(np.array([[30, 0], [10, 20]]), ["cat", "dog"]).axes[0].get_xlabel()
    'client'
    """
    canvas = _canvas(counts, label_names, title, client_names)
    canvas.main.grid(True, color=GRID, linewidth=0.6)
    most = int(counts.max())
    widest = min(max(0.94 * min(canvas.cell), 0.12), 0.5) * 72  # in points: neighbours never overlap

    def draw(axes: Axes, x: Counts | float, y: Counts | float, rows: Counts | int) -> None:
        area = np.maximum(widest**2 * rows / most, 1.5)  # even a single row is visible
        axes.scatter(x, y, s=area, color=BLUE, linewidths=0, clip_on=False, zorder=3)

    client, label = np.nonzero(counts)
    draw(canvas.main, client, label, counts[client, label])

    top = canvas.key.get_ylim()[1]
    canvas.key.text(0, top, "rows", fontsize=9, color=SOFT_INK, va="top")
    for place, value in enumerate(_reference_sizes(most)):
        y = top - 0.42 - place * max(0.24, widest / 72 * 1.05)
        draw(canvas.key, widest / 144, y, value)
        canvas.key.text(widest / 72 + 0.08, y, f"{value:,}", fontsize=8, color=INK, va="center")
    return canvas.figure


@plain_text
def heat_map(
    counts: Counts, label_names: Sequence[str] | None = None, *, title: str = "", client_names: Sequence[str] = ()
) -> Figure:
    """Draw a cell for each client (row of `counts`) and class (column), darker for more rows, with numbers if they fit.

    >>> [text.get_text() for text in heat_map(np.array([[30, 0], [10, 20]]), ["cat", "dog"]).axes[0].texts]
    ['30', '10', '20']
    """
    canvas = _canvas(counts, label_names, title, client_names)
    width, height = canvas.cell
    norm = PowerNorm(0.5, vmin=0, vmax=int(counts.max()))  # a root scale keeps small holdings visible
    edges = [np.arange(n + 1) - 0.5 for n in counts.shape]
    gap = 1.2 if min(width, height) > 0.2 else 0.4
    canvas.main.pcolormesh(*edges, counts.T, cmap=BLUES, norm=norm, edgecolors="white", linewidth=gap)
    if width >= 0.36 and height >= 0.18:
        for k, c in zip(*np.nonzero(counts), strict=True):
            shade = "white" if norm(counts[k, c]) > 0.55 else INK
            canvas.main.text(k, c, _short(counts[k, c]), ha="center", va="center", fontsize=7, color=shade)

    top = canvas.key.get_ylim()[1]
    tall = min(2.2, top)
    scale = canvas.key.inset_axes((0, top - tall, 0.13, tall - 0.24), transform=canvas.key.transData)
    bar = canvas.figure.colorbar(
        ScalarMappable(norm, BLUES), cax=scale, ticks=[0, *_reference_sizes(int(counts.max()))]
    )
    bar.ax.set_yticklabels([f"{int(tick):,}" for tick in bar.get_ticks()])
    bar.ax.tick_params(labelsize=8, labelcolor=INK, length=0)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    canvas.key.text(0, top, "rows", fontsize=9, color=SOFT_INK, va="top")
    return canvas.figure


def _canvas(counts: Counts, label_names: Sequence[str] | None, title: str, clients_by: Sequence[str] = ()) -> _Canvas:
    """Lay out in inches: cells as large as a page allows, with space for names, totals and a key."""
    clients, classes = counts.shape
    names = [shortened(str(name), 18) for name in label_names or range(classes)]
    width = max(min(0.5, 13 / clients), 0.12, 3 / clients)
    height = max(min(0.5, 9 / classes, 2.4 * width), 0.115, 1.8 / classes)
    across, down = width * clients, height * classes
    left = 0.6 + 0.072 * max(5, *(len(name) for name in names))
    right, bottom, totals, above = 1.15, 0.52, 0.55, 0.52 if title else 0.2
    ticks = client_ticks(clients_by, range(clients))
    bottom += 0.06 * max(map(len, ticks)) if clients_by else 0.0  # names are turned
    page = np.array([left + across + right, bottom + down + 0.1 + totals + above])
    figure = Figure(figsize=(float(page[0]), float(page[1])), dpi=150, facecolor="white")

    def place(x: float, y: float, w: float, h: float) -> Axes:
        axes = figure.add_axes((x / page[0], y / page[1], w / page[0], h / page[1]))
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=0, labelsize=8, labelcolor=INK)
        axes.set_axisbelow(True)
        return axes

    main = place(left, bottom, across, down)
    main.set(xlim=(-0.5, clients - 0.5), ylim=(classes - 0.5, -0.5))
    marked = _every(clients, width, 0.16 if clients_by else 0.28)
    turn: dict[str, Any] = {"rotation": 90} if clients_by else {}
    main.set_xticks(marked, [ticks[k] for k in marked], **turn)
    shown = _every(classes, height, 0.14)
    main.set_yticks(shown, [names[c] for c in shown])
    main.set_xlabel("client", fontsize=9, color=SOFT_INK, labelpad=4)
    main.set_ylabel("class", fontsize=9, color=SOFT_INK, labelpad=6)

    sizes = counts.sum(axis=1)
    over = place(left, bottom + down + 0.1, across, totals)
    over.bar(range(clients), sizes, width=0.62, color=PALE_BLUE)
    over.set(xlim=main.get_xlim(), ylim=(0, sizes.max()), xticks=[], yticks=[0, sizes.max()])
    over.set_yticklabels(["0", f"{sizes.max():,}"], color=SOFT_INK)
    over.grid(True, axis="y", color=GRID, linewidth=0.6)
    over.text(
        1 + 0.15 / across, 0.5, "rows per\nclient", transform=over.transAxes, fontsize=9, color=SOFT_INK, va="center"
    )
    if title:
        figure.text(0.15 / page[0], 1 - 0.14 / page[1], title, fontsize=11, color=INK, va="top")

    key = place(left + across + 0.15, bottom, right - 0.2, down)
    key.set(xlim=(0, right - 0.2), ylim=(0, down), xticks=[], yticks=[])
    return _Canvas(figure, main, key, (width, height))


def _every(n: int, room: float, needed: float) -> list[int]:
    """Which of n ticks to name when each has `room` inches and a name needs `needed`."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, n) if step * room >= needed or step == n)
    return list(range(0, n, step))


def _reference_sizes(most: int) -> list[int]:
    """The largest count and up to two round numbers well below it.

    >>> _reference_sizes(480), _reference_sizes(1)
    ([480, 100, 20], [1])
    """
    rounds = [digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5)]
    return [most] + [max(r for r in rounds if r <= most / part) for part in (4, 20) if most >= part]


def _short(value: int) -> str:
    """A number in at most four characters, if possible."""
    return f"{value}" if value < 10_000 else f"{value / 1000:.0f}k"
