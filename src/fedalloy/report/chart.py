"""Charts of pages: paths in the coordinates of the data, with all texts in HTML.

An SVG here stretches to the width of the page and its lines keep their width, so that one drawing serves a desktop, a
phone and paper. Colours are classes of `style.css`, which has a light and a dark one of each. Without scripts a chart
is a picture; `report.js` reads the same paths to show values, to zoom and to switch series.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedalloy.base.text import human_bytes, human_seconds
from fedalloy.report.gains_table import Listing
from fedalloy.report.series import BOUND_HUES, DASHES, HUES, MARKERS, Floats, Series

Kind = Literal["number", "count", "bytes", "flops", "seconds"]
LEVELS = 12  # shades of a map
MANY = 6  # more series than that are drawn in panels of their own
MOST = 400  # points of a line; of more, evenly spaced ones are drawn


@dataclass(frozen=True)
class Axis:
    """One axis: its title, its range, and what its numbers are. Costs have logarithms to base 10 as coordinates."""

    title: str
    low: float
    high: float
    kind: Kind = "number"
    names: Sequence[str] = ()  # of the places 0, 1, ... if it has no numbers

    @property
    def log(self) -> bool:
        """Whether coordinates are logarithms."""
        return self.kind in ("bytes", "flops", "seconds")

    @property
    def span(self) -> float:
        """The length of the range."""
        return self.high - self.low

    def ticks(self, most: int = 8) -> list[tuple[float, str]]:
        """The places of ticks and their texts.

        >>> Axis("AMP %", 0, 50).ticks(3), Axis("Sent", 2.9, 4.1, "bytes").ticks(2)
        ([(0.0, '0'), (20.0, '20'), (40.0, '40')], [(3.0, '1 kB'), (4.0, '10 kB')])
        """
        if self.names:
            every = -(-len(self.names) // most)
            return [(float(k), name) for k, name in enumerate(self.names) if k % every == 0]
        if self.log and (powers := self._powers(most)):
            return powers
        raw = self.span / max(most, 1) or 1.0
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * digit for digit in (1, 2, 5, 10) if unit * digit >= raw * 0.999)
        if self.kind == "count":
            step = max(1.0, step)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        places = [round(k * step, 12) + 0.0 for k in range(first, last + 1)]
        return [(x, self.text(x) if self.log else f"{x:.{digits}f}".replace("-", "\N{MINUS SIGN}")) for x in places]

    def _powers(self, most: int) -> list[tuple[float, str]]:
        """Ticks at 1, 2 and 5 times powers of ten, or at powers alone; none if that gives fewer than two."""
        first, last = math.floor(self.low), math.ceil(self.high)
        for digits in ((1, 2, 5), (1,)):
            places = [power + math.log10(digit) for power in range(first, last + 1) for digit in digits]
            shown = [x for x in places if self.low <= x <= self.high]
            if len(shown) <= most or digits == (1,):
                step = -(-len(shown) // most) if shown else 1
                return [(round(x, 9), self.text(x)) for x in shown[::step]] if len(shown) > 1 else []
        return []

    def text(self, place: float) -> str:
        """What a coordinate stands for, in words."""
        value = 10**place if self.log else place
        if self.kind == "bytes":
            return human_bytes(value).replace(".00", "").replace(".0 ", " ")
        if self.kind == "seconds":
            return f"{value:.3g} s" if value < 59.95 else human_seconds(value).replace(".0 ", " ")
        return f"{value:.2g}".replace("e+", "e")

    def share(self, place: float) -> float:
        """How far along the axis a place lies, in percent."""
        return round(100 * (place - self.low) / self.span, 3)


@dataclass(frozen=True)
class Shape:
    """One path: what it is (a class of the style sheet), and its data in the coordinates of the axes."""

    css: str
    d: str
    of: str = ""  # for dots: the number of the client of each


@dataclass(frozen=True)
class Layer:
    """The shapes of one series; `key` is its number on the whole page, which switches it everywhere."""

    key: int | None
    look: str
    name: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Field:
    """A plot: two axes and the layers between them."""

    ids: str
    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    spoken: str
    height: int = 320  # pixels
    what: Literal["lines", "dots", "rows", "cells"] = "lines"  # what the pointer finds
    wide: float = 1.0  # the share of the chart's width
    notes: Sequence[tuple[float, float, str]] = ()  # texts, which end at a place
    rule: float | None = None  # a line at this x
    aside: bool = False  # hidden until chosen
    above: bool = False  # on a phone, names stand above their rows

    @property
    def box(self) -> str:
        """The viewBox: y grows downwards, and shapes are drawn upside down."""
        x, y = self.x, self.y
        low = -y.high
        return " ".join(short(value) for value in (x.low, low, x.span, y.span))

    @property
    def turned(self) -> bool:
        """Whether the names below it are turned, since they are long."""
        return any(len(name) > 3 for name in self.x.names)

    @property
    def room(self) -> int:
        """The pixels that turned names need below, beyond a single line."""
        return round(5.2 * max(map(len, self.x.names))) if self.turned else 0

    @property
    def beside(self) -> int:
        """The characters that names need at the left."""
        return max((len(name) for name in self.y.names), default=0)

    @property
    def grid(self) -> str:
        """Lines at the ticks."""
        x, y = self.x, self.y
        across = [] if y.names else [f"M{short(x.low)} {short(-at)}H{short(x.high)}" for at, _ in y.ticks(6)]
        down = [] if x.names else [f"M{short(at)} {short(-y.low)}V{short(-y.high)}" for at, _ in x.ticks()]
        return "".join(across + down)


@dataclass(frozen=True)
class Switch:
    """One entry of a legend, which switches its series."""

    key: int | None
    look: str
    name: str


@dataclass(frozen=True)
class Panel:
    """One of several small plots: the keys of the series that it shows."""

    title: str
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Chart:
    """A figure: a title, a legend, one plot or several to choose from, a caption, and the numbers as a table."""

    ids: str
    title: str
    fields: tuple[Field, ...]
    caption: str
    legend: tuple[Switch, ...] = ()
    panels: tuple[Panel, ...] = ()
    data: Listing | None = None
    table: str = ""  # the id of a table on the page that has the numbers, if `data` is not given
    clients: Sequence[str] = ()  # the names that dots have

    @property
    def beside(self) -> bool:
        """Whether its plots stand beside one another: they share their rows, and nothing is to be chosen."""
        return all(field.what == "rows" for field in self.fields)

    @property
    def numbers(self) -> str:
        """The id of the table of its numbers."""
        return self.table or (f"{self.ids}-data" if self.data else "")


def short(value: float) -> str:
    """A coordinate with six digits.

    >>> short(80.60000001), short(1e-7), short(-0.0)
    ('80.6', '1e-07', '0')
    """
    return f"{value + 0.0:.6g}"


def line(x: Iterable[float], y: Iterable[float]) -> str:
    """A line through points; missing ones break it.

    >>> line([1, 2, 3, 4], [5, 6, float("nan"), 8])
    'M1 5 2 6M4 8h0'
    """
    parts: list[list[str]] = [[]]
    for a, b in zip(x, y, strict=True):
        if math.isfinite(a) and math.isfinite(b):
            parts[-1].append(f"{short(a)} {short(b)}")
        elif parts[-1]:
            parts.append([])
    return "".join("M" + " ".join(part) + ("h0" if len(part) == 1 else "") for part in parts if part)


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    """The area between two lines: along the upper one, and back along the lower.

    >>> band([1, 2], [3, 4], [5, 6])
    'M1 5 2 6 2 4 1 3Z'
    """
    there, back = zip(x, high, strict=True), zip(reversed(x), reversed(low), strict=True)
    return "M" + " ".join(f"{short(a)} {short(b)}" for way in (there, back) for a, b in way) + "Z"


def dots(x: Iterable[float], y: Iterable[float]) -> str:
    """A dot at each point: lines without length, whose round ends stay round at any scale.

    >>> dots([1, 2], [3, 4])
    'M1 3h0M2 4h0'
    """
    return "".join(f"M{short(a)} {short(b)}h0" for a, b in zip(x, y, strict=True))


def boxes(sides: Iterable[tuple[float, float, float, float]]) -> str:
    """Rectangles, each with its lower left corner, width and height.

    >>> boxes([(0, 0, 2, 1)])
    'M0 0h2v1h-2z'
    """
    return "".join(f"M{short(x)} {short(y)}h{short(w)}v{short(h)}h{short(-w)}z" for x, y, w, h in sides)


def look_of(one: Series) -> str:
    """The classes of a series' colour, dash and marker.

    >>> look_of(Series("A", "", "A", (), HUES[1], DASHES[2], "o"))
    'c1 d2 m1'
    """
    hues = [*HUES, *BOUND_HUES.values()]
    return f"c{hues.index(one.hue)} d{DASHES.index(one.dash)} m{MARKERS.index(one.marker)}"


def thinned(rounds: Floats) -> list[int]:
    """The places of the points that are drawn, the first and the last among them.

    >>> len(thinned(np.arange(1000.0))), thinned(np.arange(3.0))
    (400, [0, 1, 2])
    """
    places = np.linspace(0, len(rounds) - 1, min(len(rounds), MOST)).round()
    return sorted({int(place) for place in places})


def around(values: Iterable[float], *, least: float = 0.0) -> tuple[float, float]:
    """A range with some room around finite values, which are taken for at least `least` apart.

    >>> around([1, 2, float("nan")]), around([3], least=2)
    ((0.96, 2.04), (1.92, 4.08))
    """
    known = [float(value) for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    least = max(least, 0.01 * max(abs(low), abs(high))) or 1.0
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    room = 0.04 * (high - low)
    return low - room, high + room


def cells(table: Floats, most: float | None = None) -> tuple[Shape, ...]:
    """A map as paths, one for each shade; rows go down from the top, and zero and NaN are left empty.

    Shades follow the root of a value, which keeps small ones visible.

    >>> [shape.css for shape in cells(np.array([[0.0, 1.0], [4.0, float("nan")]]))]
    ['level l6', 'level l12', 'level none']
    """
    rows = len(table)
    top = most or float(np.nanmax(table, initial=0.0)) or 1.0
    found: dict[int, list[tuple[float, float, float, float]]] = {}
    for row, column in zip(*np.nonzero(table), strict=True):
        value = table[row, column]
        level = -1 if math.isnan(value) else max(1, round(LEVELS * math.sqrt(min(value / top, 1.0))))
        found.setdefault(level, []).append((int(column) - 0.5, rows - 1 - int(row) - 0.5, 1, 1))
    shapes = {level: boxes(found[level]) for level in sorted(found)}
    known = [Shape(f"level l{level}", d) for level, d in shapes.items() if level > 0]
    return (*known, *([Shape("level none", shapes[-1])] if -1 in shapes else []))


def heat(
    ids: str, table: Floats, rows: Axis, columns: Axis, spoken: str, *, most: float | None = None, wide: float = 1.0
) -> Field:
    """A map of a table; the names of `rows` go down from the top."""
    height = round(min(max(18 * len(table), 60), max(560, 2 * len(table))))
    layer = Layer(None, "", "", cells(table, most))
    return Field(ids, columns, rows, (layer,), spoken, height, "cells", wide)


def places(title: str, names: Sequence[str], *, down: bool = False) -> Axis:
    """An axis with a place for each name; `down` begins at the top."""
    return Axis(title, -0.5, len(names) - 0.5, names=[*reversed(names)] if down else names)
