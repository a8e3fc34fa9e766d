"""How many samples of each class each client holds, in a panel for each column: it needs the data, but no runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedalloy.base.text import shortened
from fedalloy.config.build import Shelf, build
from fedalloy.config.experiment import experiment
from fedalloy.config.grid import Cell
from fedalloy.report.canvas import INK, QUIET, WIDE
from fedalloy.report.partition_plot import BLUE, BLUES
from fedalloy.reproduce.forms.figures_columns import column_titles
from fedalloy.reproduce.forms.figures_page import EDGE, form, grid_of, hide_rest, options, page, title_of
from fedalloy.reproduce.plan import columns
from fedalloy.reproduce.results import Results

Counts = NDArray[np.int64]
KEY = 0.95  # inches for the key on the right


@form
def partition(results: Results) -> list[Figure]:
    """Samples of each class at each client, for the first seed of the scale.

    Option: `draw`, "bubbles" (clients from left to right, classes from top to bottom) or "map" (the other way round,
    darker for more).
    """
    seed = results.item.scale(results.scale).seeds[0]
    cells, titles = columns(results.item, results.scale), column_titles(results)
    found = list(_divided(cells, seed))
    most = max(int(counts.max()) for counts, _ in found)
    as_map = options(results).get("draw", "bubbles") == "map"
    shape = grid_of(len(cells), 4 if as_map else 3)
    rows, across = (max(counts.shape[axis] for counts, _ in found) for axis in ((0, 1) if as_map else (1, 0)))
    gap = 0.62 if as_map else 0.62 + 0.06 * max(0, max(len(name) for _, names in found for name in names) - 3)
    wide = (WIDE - EDGE - KEY - shape[1] * gap) / shape[1]
    wide = min(wide, max(0.42 * across, 2.4))
    tall = float(np.clip(rows * (0.03 if as_map else 0.2), 1.6, 4.5))
    line = f"Scale: {results.scale}, seed {seed}. " + (
        "A darker cell is more training samples of a class at a client."
        if as_map
        else "The area of a bubble is the number of training samples of a class at a client."
    )
    made = page(title_of(results.item), [line], shape, panel=(wide, tall), gaps=(gap, 0.75), right=KEY)
    hide_rest(made.all, len(cells))
    for place, (axes, cell, (counts, names)) in enumerate(zip(made.all, cells, found, strict=False)):
        axes.set_title(titles[cell.name] or results.item.scale(results.scale).experiment)
        _heat(axes, counts, most) if as_map else _bubbles(axes, counts, names, most, _cell(wide, tall, counts))
        first = place % shape[1] == 0
        axes.set(xlabel="Class" if as_map else "Client", ylabel=("Client" if as_map else "Class") if first else "")
    _key(made.figure, made.all[shape[1] - 1], most, as_map=as_map, cell=_cell(wide, tall, found[0][0]))
    return [made.figure]


def _divided(cells: Sequence[Cell], seed: int) -> Iterator[tuple[Counts, Sequence[str]]]:
    """For each column clients by classes, and the names of the classes; equal data is loaded once."""
    shelf = Shelf()
    for cell in cells:
        values: dict[str, Any] = {key: value for key, value in cell.values.items() if key != "published"}
        if values.get("public", {}).get("data") not in (None, "own"):  # it takes nothing from the clients
            values = {key: value for key, value in values.items() if key not in ("public", "methods", "method")}
        exp = replace(experiment(values), seed=seed)
        built = build(exp, given=shelf.take(exp))
        names = built.dataset.label_names or [str(c) for c in range(built.dataset.classes)]
        counts = [site.train.counts(len(names)).cpu().numpy() for site in built.setting.sites]
        yield np.stack(counts).astype(np.int64), names


def _cell(wide: float, tall: float, counts: Counts) -> float:
    """The shorter side of a cell in inches."""
    clients, classes = counts.shape
    return float(min(wide / clients, tall / classes))


def _bubbles(axes: Axes, counts: Counts, names: Sequence[str], most: int, cell: float) -> None:
    clients, classes = counts.shape
    client, label = np.nonzero(counts)
    axes.scatter(client, label, s=_areas(counts[client, label], most, cell), color=BLUE, linewidths=0, zorder=3)
    axes.set(xlim=(-0.7, clients - 0.3), ylim=(classes - 0.3, -0.7))
    every = max(1, -(-clients // 10))
    axes.set_xticks(range(0, clients, every))
    each = 1 if classes <= 26 else 5
    axes.set_yticks(range(0, classes, each), [shortened(names[c], 12) for c in range(0, classes, each)], fontsize=8)


def _areas(counts: Any, most: int, cell: float) -> Any:
    """In square points; even one sample is visible, and neighbours hardly overlap."""
    return np.maximum((72 * max(min(1.3 * cell, 0.45), 0.1)) ** 2 * counts / most, 0.8)


def _heat(axes: Axes, counts: Counts, most: int) -> None:
    axes.imshow(counts, cmap=BLUES, norm=_norm(most), aspect="auto", interpolation="nearest")
    axes.grid(False)
    axes.set_xticks(range(0, counts.shape[1], max(1, -(-counts.shape[1] // 10))))


def _norm(most: int) -> PowerNorm:
    return PowerNorm(0.5, vmin=0, vmax=most)  # a root scale keeps small holdings visible


def _key(figure: Figure, beside: Axes, most: int, *, as_map: bool, cell: float) -> None:
    """What a size or a shade stands for, right of the first row of panels."""
    width, height = figure.get_size_inches()
    box = beside.get_position()
    tall = min(box.height * height, 1.6)
    top = box.y1 * height
    figure.text(box.x1 + 0.15 / width, top / height, "samples", va="top", color=QUIET, fontsize=8)
    place = (box.x1 + 0.15 / width, (top - tall) / height, 0.13 / width, (tall - 0.3) / height)
    if as_map:
        bar = figure.colorbar(ScalarMappable(_norm(most), BLUES), cax=figure.add_axes(place))
        bar.outline.set_visible(False)
        bar.ax.minorticks_off()
        bar.ax.tick_params(labelsize=8)
        return
    key = figure.add_axes((place[0], place[1], 0.75 / width, place[3]), xlim=(0, 0.75), ylim=(3, -0.5))
    key.set_axis_off()
    for y, value in enumerate(sorted({most, max(most // 4, 1), max(most // 20, 1)}, reverse=True)):
        key.scatter([0.16], [y], s=_areas(value, most, cell), color=BLUE, linewidths=0, clip_on=False)
        key.text(0.38, y, f"{value:,}", va="center", fontsize=8, color=INK)
