"""Plots of finished runs for files: learning curves, the clients' accuracies, and the cost of communication.

Pages have charts of their own (`fedalloy.report.chart`). Nothing here uses pyplot or its global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedalloy.base.text import client_ticks, human_bytes
from fedalloy.federation.metrics import METRICS, SCORES, Metric, heading_of
from fedalloy.report.canvas import GRID, INK, NARROW, QUIET, WIDE, canvas, name_ends, styled, widest
from fedalloy.report.series import Floats, Series, series_of
from fedalloy.report.svg import save, to_svg
from fedalloy.storage.results import Run, Selection
from fedalloy.storage.rows import task_of

__all__ = ["client_picture", "cost_picture", "learning_curves", "save", "to_svg"]


@styled
def learning_curves(runs: Sequence[Run], metric: str = "amp", *, width: float = WIDE) -> Figure:
    """One line per method and view, with a band of one standard deviation over the seeds, named at its end."""
    known = METRICS.get(metric)
    title, unit = (metric, 1.0) if known is None else (_title(known, runs), known.factor)
    return _curves([(one, *one.curve(metric)) for one in series_of(runs)], title, unit, width)


def _title(metric: Metric, runs: Sequence[Run]) -> str:
    return replace(metric, heading=heading_of(metric.name, task_of(runs))).title


def _curves(series: Sequence[tuple[Series, Floats, Floats, Floats]], title: str, unit: float, width: float) -> Figure:
    series = [entry for entry in series if len(entry[1])]
    last = max((rounds[-1] for _, rounds, *_ in series), default=1.0)
    series = [_drawn_to(last, *entry) if entry[0].level else entry for entry in series]
    figure, axes = canvas(width, 3.9 if width >= WIDE else 3.0, [one for one, *_ in series], xlabel="Round")
    axes.set_title(title)
    for one, rounds, mean, std in series:
        axes.fill_between(rounds, (mean - std) * unit, (mean + std) * unit, color=one.hue, alpha=0.13, linewidth=0)
        _line(axes, one, rounds, mean * unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=10 if width > NARROW else 6))
    axes.margins(x=0.01)
    name_ends(figure, axes, [(one, rounds[-1], mean[-1] * unit) for one, rounds, mean, _ in series], led=True)
    return figure


@styled
def cost_picture(runs: Sequence[Run], *, width: float = WIDE) -> Figure:
    """AMP against the bytes sent so far; a method that sends nothing is a horizontal line."""
    series = [entry for one in series_of(runs) if len((entry := (one, *_bought(one)))[1])]
    figure, axes = canvas(
        width, 3.6 if width >= WIDE else 3.0, [one for one, *_ in series], xlabel="Sent so far, both ways (log scale)"
    )
    axes.set_title(_title(METRICS["amp"], runs))
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
            axes.axhline(amp[-1], color=one.hue, linewidth=1.3, linestyle=one.dash)
            ends.append((one, axes.get_xlim()[1], float(amp[-1])))
    # Lines end far apart here, and threads from there to the names would cross the other lines.
    name_ends(figure, axes, ends, led=False)
    return figure


@styled
def client_picture(runs: Sequence[Run], selection: Selection = "last", *, width: float = WIDE) -> Figure:
    """One row per method and view, one dot per client (and seed) at its accuracy in the selected round.

    The bar is the median client; the ring is the worst one, with its name or number.
    """
    rows = [(one, clients) for one in series_of(runs) if (clients := one.clients(selection))]
    rows.sort(key=lambda row: float(np.median([a for _, a in row[1]])), reverse=True)
    beside = width > NARROW  # on a phone a row's name stands above its dots, to leave them the width
    row_height = 0.52 if beside else 0.66
    above, below = 0.1, 0.5
    height = above + below + row_height * max(len(rows), 1)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    left = min(widest(figure, [one.name for one, _ in rows]) + 0.2, width * 0.4) if beside else 0.12
    axes = figure.add_axes((left / width, below / height, (width - left - 0.2) / width, 1 - (above + below) / height))
    accuracies = [100 * a for _, clients in rows for _, a in clients] or [0.0, 100.0]
    low, high = min(accuracies), max(accuracies)
    room = max((high - low) / 10, 2.0)
    named = [client_ticks(one.runs[0].client_names, [min(all_, key=lambda c: c[1])[0]])[0] for one, all_ in rows]
    # The worst client's name or number stands left of its dot.
    axes.set_xlim(
        low - max(room, (high - low + room) * (widest(figure, named) + 0.3) / (width - left)), high + room / 3
    )
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    score = SCORES[task_of(runs)]
    axes.set_xlabel(f"{score[:1].upper()}{score[1:]} on each client's own test data, %")
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
    worst = client_ticks(one.runs[0].client_names, [clients[0][0]])[0]
    axes.annotate(
        worst, (accuracy[0], y[0]), (-6.5, 0), textcoords="offset points", ha="right", va="center",
        fontsize=8, color=QUIET,
    )  # fmt: skip


def _drawn_to(
    last: float, one: Series, rounds: Floats, mean: Floats, std: Floats
) -> tuple[Series, Floats, Floats, Floats]:
    """The result of a single round as a horizontal line to the last round of the others."""
    if last == rounds[0]:
        return one, rounds, mean, std
    return one, np.array([rounds[0], last]), mean.repeat(2), std.repeat(2)


def _bought(one: Series) -> tuple[Floats, Floats]:
    """Bytes sent so far and AMP, at the rounds where both are known."""
    (measured, amp, _), (counted, sent) = one.curve("amp"), one.spent("bytes_total")
    _, left, right = np.intersect1d(measured, counted, return_indices=True)
    return sent[right], amp[left] * 100


def _line(axes: Axes, one: Series, x: Floats, y: Floats) -> None:
    marker = one.marker or ("o" if len(x) == 1 else "")
    axes.plot(x, y, color=one.hue, linestyle=one.dash, marker=marker, markersize=4, markevery=max(len(x) // 8, 1))
