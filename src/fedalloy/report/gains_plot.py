"""The plot of gains: one bar per client, sorted, with the client's number of training samples below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from fedalloy.base.text import shortened
from fedalloy.report.canvas import INK, NARROW, WIDE, styled
from fedalloy.report.gains import Floats, Gains
from fedalloy.report.gains_table import signed

GAIN, LOSS, SIZE = "#009E73", "#D55E00", "#AEB5BD"
PALE = 0.35  # the opacity of bars within two standard errors


@styled
def gain_picture(both: Sequence[Gains], *, width: float = WIDE) -> Figure:
    """The gain of each client over the first reference as a bar, over the second as a ring, losses on the left.

    A bar is pale where the gain or loss is within two standard errors.
    """
    bars, *others = both
    order = np.argsort(bars.points, kind="stable")
    points, clear = bars.points[order], bars.clear[order]
    sized = bool(np.isfinite(bars.train).all())
    left, right, above, between, below = 0.5, 0.12, 0.32, 0.34, 0.5
    if width <= NARROW:
        above += 0.2 * len(others)  # a line of the title for each reference
    below += _room(_ticks(bars), (width - left - right) / len(order), named=bars.named)
    upper, lower = (1.95 if width > NARROW else 1.6), (0.72 if sized else 0.0)
    height = above + upper + (between + lower if sized else 0.0) + below
    pitch = (width - left - right) / len(order)  # inches from one client to the next
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)

    def panel(bottom: float, tall: float) -> Axes:
        return figure.add_axes((left / width, bottom / height, (width - left - right) / width, tall / height))

    axes = panel(height - above - upper, upper)
    names = [shortened(one.reference, 32 if width > NARROW else 14) for one in both]
    parts = [f"Gain over {names[0]}, points", *(f"ring: over {name}" for name in names[1:])]
    axes.set_title("; ".join(parts) if width > NARROW else ";\n".join(parts))
    for side, hue in ((points > 0, GAIN), (points < 0, LOSS)):
        for mask, alpha in ((side & clear, 1.0), (side & ~clear, PALE)):
            _bars(axes, np.flatnonzero(mask), points[mask], pitch, hue, alpha)
    for one in others:
        gain = dict(zip(one.clients, one.points.tolist(), strict=True))
        ring = min(max(pitch * 36, 1.5), 5.5)
        rings = [gain.get(bars.clients[k], np.nan) for k in order]
        axes.plot(rings, "o", color="none", markersize=ring, markeredgecolor=INK, markeredgewidth=min(1.1, ring / 4))
    axes.axhline(0, color=INK, linewidth=0.9)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.5), max(high, 0.5))  # differences below a point are not magnified
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda y, _: signed(y).removesuffix(".0").replace("-", "\N{MINUS SIGN}"))
    )
    axes.spines["bottom"].set_visible(False)  # the zero line takes its place
    lowest = axes
    if sized:
        axes.set_xticks([])
        lowest = panel(below, lower)
        lowest.set_title("Training samples")
        _bars(lowest, np.arange(len(order)), bars.train[order], pitch, SIZE, 1.0)
        lowest.set_ylim(0, bars.train.max() * 1.05)
        lowest.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
    ticks = _ticks(bars)
    _name_clients(lowest, [ticks[k] for k in order], pitch, named=bars.named)
    for each in (axes, lowest):
        each.set_xlim(-0.6, len(order) - 0.4)
        each.grid(axis="x", visible=False)
    return figure


def _name_clients(axes: Axes, names: Sequence[str], pitch: float, *, named: bool) -> None:
    """The client of each bar if all names fit, else the number of clients."""
    size = 8 if pitch > 0.25 else 7
    turned = _is_turned(names, pitch, named=named)
    fits = turned or _fits(names, pitch)
    turn: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    axes.set_xticks(range(len(names)) if fits else [], names if fits else [], fontsize=size, **turn)
    axes.set_xlabel("Client, sorted by gain" if fits else f"{len(names)} clients, sorted by gain")


def _ticks(bars: Gains) -> list[str]:
    """What stands below each bar: the client, and its network if they differ."""
    names = [shortened(name, 18) for name in bars.clients] if bars.named else list(bars.clients)
    return [f"{a}\n{shortened(b, 18)}" for a, b in zip(names, bars.networks, strict=True)] if bars.networks else names


def _longest(names: Sequence[str]) -> int:
    return max(len(line) for name in names for line in name.split("\n"))


def _fits(names: Sequence[str], pitch: float) -> bool:
    size = 8 if pitch > 0.25 else 7
    return _longest(names) * size * 0.009 + 0.02 < pitch  # a digit is some 0.64 of its font's height wide


def _is_turned(names: Sequence[str], pitch: float, *, named: bool) -> bool:
    """Whether names are turned, since they would not fit beside one another."""
    return named and not _fits(names, pitch) and pitch > 0.3


def _room(names: Sequence[str], pitch: float, *, named: bool) -> float:
    """Inches that the clients' names need below the axes, beyond a single line."""
    second = 0.13 if any("\n" in name for name in names) else 0.0
    return second + (_longest(names) * 0.048 if _is_turned(names, pitch, named=named) else 0.0)


def _bars(axes: Axes, places: NDArray[np.intp], heights: Floats, pitch: float, hue: str, alpha: float) -> None:
    """All bars of one style as a single outline, so that a thousand clients do not make a thousand shapes."""
    half = min(0.38, 0.3 / pitch)  # bars of few clients stay narrow
    x = (places[:, None] + np.array([-half, -half, half, half])).ravel()
    y = (heights[:, None] * np.array([0, 1, 1, 0])).ravel()
    axes.fill(x, y, facecolor=hue, edgecolor="none", alpha=alpha, linewidth=0)
