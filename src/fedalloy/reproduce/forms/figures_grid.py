"""A metric along two axes, as a map with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

from fedalloy.report.canvas import GRID, INK
from fedalloy.report.partition_plot import BLUES
from fedalloy.report.series import Floats
from fedalloy.reproduce.catalogue import Row
from fedalloy.reproduce.forms.figures_columns import Spot, base_row, measured, metric_title, spots
from fedalloy.reproduce.forms.figures_over import DEVIATION, contenders
from fedalloy.reproduce.forms.figures_page import (
    form,
    grid_of,
    hide_rest,
    mean_and_deviation,
    page,
    remarks,
    say_absent,
    title_of,
)
from fedalloy.reproduce.results import Results

GAINS = LinearSegmentedColormap.from_list("fedalloy-gains", ["#B04A00", "#F7F7F7", "#005A8C"])


@form
def grid(results: Results) -> list[Figure]:
    """A metric as a map along two axes, with its numbers; a panel for each row and further axis.

    Options: `x`, `y` and `panels`, axes by name or index; `relative_to`, a row, to draw gains over it.
    """
    places, rows = spots(results, along=2), contenders(results)
    metric = results.item.metrics[0]
    kinds = list(dict.fromkeys((spot.panel, spot.line) for spot in places))
    panels = [(row, kind) for row in rows for kind in kinds]
    across, ups = ([*dict.fromkeys(labels)] for labels in zip(*((s.x, s.y) for s in places), strict=True))
    tables = [_table(results, row, [s for s in places if (s.panel, s.line) == k], across, ups) for row, k in panels]
    norm = _scale(tables, around_zero=base_row(results) is not None)
    shape = grid_of(len(panels), 3)
    shows = f"{metric_title(metric, results)}. {DEVIATION.format(round=results.item.round)}"
    size = (3.0 if shape[1] > 1 else min(1.1 * len(across) + 0.5, 8.0), float(np.clip(0.5 * len(ups), 1.0, 5.0)))
    made = page(
        title_of(results.item),
        remarks(results, shows),
        shape,
        panel=size,
        gaps=(max(0.75, 0.45 + 0.07 * max(map(len, ups))), 0.85),
    )
    hide_rest(made.all, len(panels))
    for place, (axes, table) in enumerate(zip(made.all, tables, strict=False)):
        row, kind = panels[place]
        axes.set_title(", ".join(filter(None, (row.label if len(rows) > 1 else "", *kind))) or row.label)
        _map(axes, table, norm)
        axes.set_xticks(range(len(across)), across)
        axes.set_yticks(range(len(ups)), ups)
        axes.set(xlabel=places[0].x_name, ylabel=places[0].y_name if place % shape[1] == 0 else "")
    if not panels:
        say_absent(made.all[0])
    return [made.figure]


def _table(results: Results, row: Row, here: Sequence[Spot], across: Sequence[str], ups: Sequence[str]) -> Floats:
    """Mean and deviation in every cell; a single seed has no deviation."""
    table = np.full((len(ups), len(across), 2), np.nan)
    for spot in here:
        found = measured(results, row, spot.column, results.item.metrics[0])
        mean, deviation = mean_and_deviation(found)
        table[ups.index(spot.y), across.index(spot.x)] = mean, deviation if len(found) > 1 else np.nan
    return table


def _scale(tables: Sequence[Floats], *, around_zero: bool) -> Normalize:
    found = np.concatenate([table[..., 0].ravel() for table in tables] or [np.zeros(1)])
    found = found[np.isfinite(found)] if np.isfinite(found).any() else np.zeros(1)
    if around_zero:
        most = float(np.abs(found).max()) or 1.0
        return TwoSlopeNorm(0.0, -most, most)
    return Normalize(float(found.min()) - 1e-9, float(found.max()) + 1e-9)


def _map(axes: Axes, table: Floats, norm: Normalize) -> None:
    """Cells with their numbers, darker for more; gains are blue and losses orange."""
    centred = isinstance(norm, TwoSlopeNorm)
    axes.set_facecolor(GRID)
    axes.imshow(table[..., 0], cmap=GAINS if centred else BLUES, norm=norm, aspect="auto", interpolation="nearest")
    axes.grid(False)
    for y, x in np.ndindex(*table.shape[:2]):
        mean, deviation = table[y, x]
        shade = float(norm(mean)) if np.isfinite(mean) else 0.0
        dark = abs(shade - 0.5) > 0.3 if centred else shade > 0.55
        text = f"{mean:+.2f}".replace("-", "\u2212") if centred else f"{mean:.2f}"
        spread = f"\n± {deviation:.2f}" if np.isfinite(deviation) else ""
        text = f"{text}{spread}" if np.isfinite(mean) else "no runs"
        axes.text(
            x, y, text, ha="center", va="center", fontsize=8, color="white" if dark and np.isfinite(mean) else INK
        )
