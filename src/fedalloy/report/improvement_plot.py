"""How likely it is that a run of one method is better than a run of another, for each two methods."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedalloy.base.text import shortened
from fedalloy.report.canvas import INK, NARROW, QUIET, WIDE, styled, widest
from fedalloy.report.leads import Rivals

CELL = 0.5  # inches
# From orange over white to blue, as in the other plots; white is a coin.
COLOURS = LinearSegmentedColormap.from_list("improvement", ["#D55E00", "#FFFFFF", "#0072B2"])


@styled
def improvement_picture(found: Rivals, *, width: float = WIDE) -> Figure:
    """A square of cells: how often a run of the line on the left is better than one of the column, ties count half.

    Lines are ordered by their mean, the best first. A bold number with a frame is a difference beyond noise.
    """
    names = list(found.lines)
    count = max(len(names), 1)
    figure = Figure(figsize=(width, 1))
    FigureCanvasAgg(figure)
    most = 40 if width > NARROW else 20
    labels = [f"{i}  {shortened(name, most)}" for i, name in enumerate(names, start=1)]
    left = min(widest(figure, labels) + 0.25, width * 0.55)
    cell = min(CELL, (width - left - 0.2) / count)
    above, below = 0.75, 0.15
    height = above + below + cell * count
    figure.set_size_inches(width, height)
    axes = figure.add_axes((left / width, below / height, cell * count / width, cell * count / height))
    title = f"Runs of the line that are better than those of the column, %\n{found.heading}, {found.seeds} seeds"
    figure.text(0.12 / width, 1 - 0.06 / height, title, va="top", fontsize=9 if width > NARROW else 8)
    shares = np.full((count, count), np.nan)
    for (a, b), one in found.apart.items():
        i, j = names.index(a), names.index(b)
        shares[i, j], shares[j, i] = one.improvement, 1 - one.improvement
    axes.imshow(np.ma.masked_invalid(shares), cmap=COLOURS, vmin=0, vmax=1, aspect="equal")
    beyond = {(names.index(a), names.index(b)) for (a, b), one in found.apart.items() if one.beyond_noise}
    for i, j in zip(*np.nonzero(np.isfinite(shares)), strict=True):
        clear = (i, j) in beyond or (j, i) in beyond
        axes.text(
            j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center",
            color="white" if abs(shares[i, j] - 0.5) > 0.35 else INK,
            fontsize=8 if cell >= 0.3 else 5, fontweight="bold" if clear else "normal",
        )  # fmt: skip
        if clear:
            axes.add_patch(_frame(i, j))
    axes.set_xticks(range(len(names)), [f"{i}" for i in range(1, len(names) + 1)], color=QUIET)
    axes.set_yticks(range(len(names)), labels, color=INK)
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure


def _frame(line: int, column: int) -> Rectangle:
    return Rectangle((column - 0.46, line - 0.46), 0.92, 0.92, fill=False, edgecolor=INK, linewidth=1.2)
