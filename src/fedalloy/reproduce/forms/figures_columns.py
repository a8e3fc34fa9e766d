"""The columns of an item along the axes of its experiment: which panel, which line and which place each belongs to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedalloy.base.registry import suggest
from fedalloy.config.overrides import SHIPPED, read_toml
from fedalloy.errors import DataError
from fedalloy.federation.metrics import METRICS
from fedalloy.reproduce.catalogue import Item, Published, Row
from fedalloy.reproduce.plan import columns
from fedalloy.reproduce.results import Results

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
NAMED_VALUE = re.compile(r"([^=]+?) = (\S+)")  # "E = 20": a setting and its value in one label


@dataclass(frozen=True)
class Spot:
    """Where a column belongs: its panel, its line in it and its label along x; a part that has no axis is empty."""

    column: str
    panel: str
    line: str
    x: str
    x_name: str = ""
    y: str = ""
    y_name: str = ""


def labels_of(item: Item, scale: str) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """The names of the axes of an item at a scale, and every column's labels along them."""
    return axes_of(item, scale), {cell.name: cell.labels for cell in columns(item, scale)}


def axes_of(item: Item, scale: str) -> list[str]:
    """The names of the axes of an item at a scale: its own, or the experiment's."""
    chosen = item.scale(scale)
    axes = chosen.axes
    if axes is None:
        axes = read_toml(SHIPPED / f"{chosen.experiment}.toml").get("axes", ())
    return [str(axis["name"]) for axis in axes]


def spots(results: Results, *, along: int = 1) -> list[Spot]:
    """Where every column belongs, by the options `panels`, `lines`, `x` and `y`: names or indices of axes.

    `along` is the number of axes that are drawn as x and y: the last ones, unless they are named. Of the others, those
    that no option names split the panels; if `panels` is given, they split the lines.
    """
    chosen = results.item.options or {}
    names, labels = labels_of(results.item, results.scale)
    panels, lines = (_axes(names, chosen.get(key), results.item) for key in ("panels", "lines"))
    y, x = (_axes(names, chosen.get(key), results.item)[:1] for key in ("y", "x"))
    free = [i for i in range(len(names)) if i not in {*panels, *lines, *x, *y}]
    if along >= 1 and not x and free:
        x = [free.pop()]
    if along >= 2 and not y and free:
        y = [free.pop()]
    if "panels" in chosen:
        lines += free
    else:
        panels = sorted(panels + free)
    lines = [i for i in lines if len({labels[column][i] for column in results.columns}) > 1]
    found = []
    for column in results.columns:
        words = labels[column]
        spot = Spot(
            column,
            titled(names, words, panels),
            titled(names, words, lines),
            *(words[x[0]] if x else column, names[x[0]] if x else ""),
            *(words[y[0]] if y else "", names[y[0]] if y else ""),
        )
        found.append(spot)
    return split_settings(found) if along == 1 else found


def split_settings(found: list[Spot]) -> list[Spot]:
    """A panel for each setting, if the labels along x name several: "E = 20", "E = 40", "d = 100".

    >>> [(s.panel, s.x_name, s.x) for s in split_settings([Spot("", "", "", "E = 5"), Spot("", "", "", "d = 50")])]
    [('E', 'E', '5'), ('d', 'd', '50')]
    """
    pairs = [NAMED_VALUE.fullmatch(spot.x) for spot in found]
    if not all(pairs):
        return found
    several = len({pair[1] for pair in pairs if pair}) > 1
    return [
        Spot(spot.column, ", ".join(filter(None, (spot.panel, pair[1] * several))), spot.line, pair[2], pair[1])
        for spot, pair in zip(found, pairs, strict=True)
        if pair
    ]


def titled(names: Sequence[str], labels: Sequence[str], axes: Sequence[int]) -> str:
    """Labels along some axes in words; a bare number is preceded by its axis.

    >>> titled(["data", "alpha"], ["EMNIST", "0.1"], [0, 1])
    'EMNIST, alpha = 0.1'
    """
    return ", ".join(f"{names[i]} = {labels[i]}" if NUMBER.fullmatch(labels[i]) else labels[i] for i in axes)


def column_titles(results: Results) -> dict[str, str]:
    """Every column in words."""
    names, labels = labels_of(results.item, results.scale)
    return {column: titled(names, words, range(len(words))) for column, words in labels.items()}


def numbers(labels: Sequence[str]) -> list[float] | None:
    """Labels as numbers, if they are numbers with the same words around them; else None.

    >>> numbers(["0.1", "1"]), numbers(["N = 10", "N = 100"]), numbers(["5 %", "5"]), numbers(["MNIST", "SVHN"])
    ([0.1, 1.0], [10.0, 100.0], None, None)
    """
    if len({NUMBER.sub("#", label) for label in labels}) != 1 or NUMBER.sub("#", labels[0]).count("#") != 1:
        return None
    return [float(NUMBER.findall(label)[0]) for label in labels]


def _axes(names: list[str], wanted: Any, item: Item) -> list[int]:
    """The indices of the axes that an option names."""
    found = []
    for one in () if wanted is None else wanted if isinstance(wanted, list | tuple) else (wanted,):
        if isinstance(one, int) and 0 <= one < len(names):
            found.append(one)
        elif one in names:
            found.append(names.index(one))
        elif names:
            raise DataError(f"{item.paper} {item.id} has no axis '{one}'; {suggest(str(one), names)}")
    return found


# --- values -----------------------------------------------------------------------------------------------------------


def base_row(results: Results) -> Row | None:
    """The row that the option `relative_to` names: gains over it are drawn."""
    label = (results.item.options or {}).get("relative_to")
    return None if label is None else results.item.row(label)


def measured(results: Results, row: Row, column: str, metric: str) -> dict[int, float]:
    """A row's values by seed, or its gains over the base row with the same seed."""
    found = results.values(row, column, metric)
    if (base := base_row(results)) is None:
        return found
    under = results.values(base, column, metric)
    return {seed: value - under[seed] for seed, value in found.items() if seed in under}


def printed(results: Results) -> dict[tuple[str, str, str], Published]:
    """What the paper prints by row, our column and metric, or the differences of such figures to the base row's.

    A table of the experiment that holds for several columns, since it does not know their axis, is for none of them.
    """
    from fedalloy.reproduce.published import published

    table, base = published(results.item), base_row(results)
    if not results.item.published:
        times = Counter((label, metric, figure.text) for (label, _, metric), figure in table.items())
        table = {key: figure for key, figure in table.items() if times[key[0], key[2], figure.text] == 1}
    found = {}
    for row, column, metric in product(results.item.rows, results.columns, results.item.metrics):
        place = results.paper_column(column)
        ours = table.get((row.label, place, metric))
        under = None if base is None else table.get((base.label, place, metric))
        if ours is not None and base is None:
            found[row.label, column, metric] = ours
        elif ours is not None and under is not None:
            found[row.label, column, metric] = Published("", ours.value - under.value, None)
    return found


def metric_title(metric: str, results: Results) -> str:
    """A metric as an axis names it."""
    base = base_row(results)
    gain = f", gain over {base.label}" if base else ""
    if metric not in METRICS:
        return metric.removeprefix("note ") + gain
    return (METRICS[metric].heading + gain) if gain else METRICS[metric].title
