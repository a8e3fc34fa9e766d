"""A plot of DaFKD's importance: each client's weight for each class, beside its share of the class's samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from fedalloy.base.text import client_ticks, number, shortened
from fedalloy.report.canvas import GRID, INK, QUIET, WIDE, styled, widest
from fedalloy.report.partition_plot import BLUES, Counts
from fedalloy.report.series import Floats

SMALL: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}


def compared(importance: Floats, counts: Counts) -> tuple[NDArray[np.int64], Floats, Floats]:
    """The clients with importance, their importance, and their shares of these clients' samples of each class.

    All tables are clients by classes, and columns add up to 1. A column is NaN where no generated sample was taken for
    the class, or where none of these clients has samples of it.

    >>> ids, given, held = compared(np.array([[0.9, 0.0], [0.0, 0.0], [0.1, 0.0]]), np.array([[6, 1], [5, 2], [2, 3]]))
    >>> ids.tolist(), given.tolist(), held.tolist()
    ([0, 2], [[0.9, nan], [0.1, nan]], [[0.75, 0.25], [0.25, 0.75]])
    """
    ids = np.flatnonzero(importance.any(1))
    given, held = importance[ids].astype(np.float64), counts[ids].astype(np.float64)
    given[:, ~given.any(0)] = np.nan
    total = held.sum(0)
    return ids, given, held / np.where(total > 0, total, np.nan)


def agreement(given: Floats, held: Floats) -> float:
    """The correlation of the two tables over the cells that both have; NaN if one of them is constant.

    >>> agreement(np.array([[0.9, np.nan], [0.1, np.nan]]), np.array([[0.6, 1.0], [0.4, 0.0]]))
    1.0
    """
    known = ~np.isnan(given) & ~np.isnan(held)
    a, b = (table[known] - table[known].mean() if known.any() else table[known] for table in (given, held))
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 1e-12 else float("nan")


@styled
def importance_picture(
    importance: Floats, counts: Counts, names: Sequence[str], *, title: str = "", client_names: Sequence[str] = ()
) -> Figure:
    """Two maps of clients by classes: the weight that the discriminators give, and the shares of training samples.

    `importance` and `counts` have a row for every client; those without importance took no part and are left out.

    >>> figure = importance_picture(np.array([[0.9, 0.2], [0.1, 0.8]]), np.array([[6, 0], [2, 9]]), ["cat", "dog"])
    >>> [text.get_text() for text in figure.axes[1].texts]
    ['75', '25', '100']
    """
    ids, given, held = compared(importance, counts)
    names = [shortened(name, 14) for name in names]
    down = float(np.clip(0.25 * len(ids), 1.2, 7.5))
    who = client_ticks(client_names, ids.tolist(), 16)
    left, gap, right, above = 0.85, 0.3, 1.05, 0.98
    left += 0.06 * max(map(len, who), default=0) if client_names else 0.0
    across = (WIDE - left - gap - right) / 2
    room = across / len(names)
    draft = Figure()
    FigureCanvasAgg(draft)
    longest = widest(draft, names)
    turned = longest > room - 0.05 and max(map(len, names)) > 2
    below = 0.42 + (0.75 * longest if turned else 0.12)
    height = above + down + below
    figure = Figure(figsize=(WIDE, height))
    FigureCanvasAgg(figure)
    figure.text(0.15 / WIDE, 1 - 0.13 / height, title, va="top", fontsize=11)
    line = (
        f"{len(ids)} of {len(counts)} clients took part in the last distillation. Columns add up to 100 %. "
        f"Correlation of the two maps: {number(agreement(given, held))}"
    )
    figure.text(0.15 / WIDE, 1 - 0.36 / height, line, va="top", color=QUIET)

    norm = PowerNorm(0.5, vmin=0, vmax=float(np.nanmax([given, held])))  # a root scale keeps small shares visible
    panels = (
        (left, given, "no samples", "Importance: mean weight for the samples of a predicted class"),
        (left + across + gap, held, "nobody's", "Data: share of these clients' training samples of a class"),
    )
    for x, table, missing, heading in panels:
        axes = figure.add_axes((x / WIDE, below / height, across / WIDE, down / height))
        axes.set_title(heading, color=INK)
        _cells(axes, table, norm, (room, down / len(ids)), missing)
        shown = range(0, len(names), int(np.ceil(0.16 / room)))
        turn: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if turned else {}
        axes.set_xticks(shown, [names[c] for c in shown], fontsize=8, **turn)
        axes.set_xlabel("Class")
        shown = range(0, len(ids), int(np.ceil(0.15 * len(ids) / down)))
        axes.set_yticks(shown, [who[k] if x == left else "" for k in shown], fontsize=8)
    figure.axes[0].set_ylabel("Client")

    tall = min(down, 2.0)
    scale = figure.add_axes(((WIDE - right + 0.15) / WIDE, (below + down - tall) / height, 0.14 / WIDE, tall / height))
    bar = figure.colorbar(ScalarMappable(norm, BLUES), cax=scale, format=PercentFormatter(1.0, None, " %"))
    bar.outline.set_visible(False)
    bar.ax.minorticks_off()
    return figure


def _cells(axes: Axes, table: Floats, norm: Normalize, cell: tuple[float, float], missing: str) -> None:
    """The cells of a map, with percentages if they fit; columns without numbers say why."""
    rows, columns = table.shape
    gap = 1.2 if min(cell) > 0.2 else 0.4 if min(cell) > 0.08 else 0.0
    edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    axes.pcolormesh(*edges, table, cmap=BLUES, norm=norm, edgecolors="white" if gap else "none", linewidth=gap)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for k, c in np.argwhere(np.nan_to_num(table) > 0) if cell[0] >= 0.3 and cell[1] >= 0.15 else ():
        shade = "white" if norm(table[k, c]) > 0.55 else INK
        axes.text(c, k, f"{100 * table[k, c]:.0f}", color=shade, **SMALL)
    for c in np.flatnonzero(np.isnan(table[0])).tolist():
        axes.axvspan(c - 0.5, c + 0.5, facecolor=GRID, edgecolor="white", linewidth=gap)
        if cell[0] >= 0.12:
            axes.text(c, (rows - 1) / 2, missing, color=QUIET, rotation=90, style="italic", **SMALL)
