"""A plot of KDIA's teacher: the weight of each client in it after each round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedalloy.knowledge.trifreqs import Frequency, Mean, tri_freqs
from fedalloy.report.canvas import INK, QUIET, WIDE, styled
from fedalloy.report.partition_plot import BLUES
from fedalloy.report.series import HUES, Floats, spread


def weights_over_rounds(
    present: Sequence[Sequence[int]],
    sizes: Sequence[int],
    *,
    mean: Mean = "geometric",
    use: Frequency = "all",
    seen_only: bool = False,
) -> Floats:
    """F_k of every client (column) after every round (row), from who took part; NaN before anybody did.

    If a mean gives weight to clients not yet seen, `seen_only` excludes them, as the cache of that name does.

    >>> weights_over_rounds([[], [0, 1], [0, 2], [0, 1]], [10, 20, 30, 40]).round(3)[[0, 3]].tolist()
    [[nan, nan, nan, nan], [0.355, 0.391, 0.254, 0.0]]
    """
    last, times = np.zeros((2, len(sizes)), dtype=np.int64)
    rows = np.full((len(present), len(sizes)), np.nan)
    for t, ids in enumerate(present, start=1):
        last[list(ids)], times[list(ids)] = t, times[list(ids)] + 1
        if times.any():
            known = np.flatnonzero(times) if seen_only else np.arange(len(sizes))
            columns = (last[known].tolist(), times[known].tolist(), [sizes[int(k)] for k in known])
            rows[t - 1] = 0.0
            rows[t - 1, known] = tri_freqs(*columns, mean=mean, use=use)
    return rows


def shares_of(weights: Floats, present: Sequence[Sequence[int]]) -> Floats:
    """The total weight of each round's clients.

    >>> shares_of(np.array([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]), [[1, 2], []]).tolist()
    [0.5, 0.0]
    """
    return np.array([row[list(ids)].sum() for row, ids in zip(weights, present, strict=True)], dtype=np.float64)


@styled
def trifreqs_picture(
    weights: Floats, present: Sequence[Sequence[int]], sizes: Sequence[int], *, title: str = ""
) -> Figure:
    """A map of the weights, clients by rounds, and below it the share of those who took part in the round.

    >>> weights = weights_over_rounds([[0], [1]], [10, 30])
    >>> [axes.get_ylabel() for axes in trifreqs_picture(weights, [[0], [1]], [10, 30]).axes]
    ['Client', '', 'Share']
    """
    rounds, clients = weights.shape
    edges = np.arange(rounds + 1) + 0.5
    down = float(np.clip(0.2 * clients, 1.6, 6.5))
    left, right, above, between, below, low = 0.85, 1.6, 0.72, 0.42, 0.5, 1.35
    height = above + down + between + low + below
    figure = Figure(figsize=(WIDE, height))
    FigureCanvasAgg(figure)
    across = WIDE - left - right

    def box(y: float, tall: float, x: float = left, wide: float = across) -> tuple[float, float, float, float]:
        return x / WIDE, y / height, wide / WIDE, tall / height

    figure.text(0.15 / WIDE, 1 - 0.13 / height, title, va="top", fontsize=11)
    line = "Weight of each client's last model in the teacher after each round"
    figure.text(0.15 / WIDE, 1 - 0.36 / height, line, va="top", color=QUIET)

    main = figure.add_axes(box(below + low + between, down))
    norm = PowerNorm(
        0.5, vmin=0, vmax=float(np.nan_to_num(weights).max()) or 1.0
    )  # a root scale keeps small weights visible
    main.pcolormesh(edges, np.arange(clients + 1) - 0.5, weights.T, cmap=BLUES, norm=norm, rasterized=True)
    main.set(xlim=(edges[0], edges[-1]), ylim=(clients - 0.5, -0.5), ylabel="Client")
    main.grid(False)
    main.set_xticks([])  # the rounds are labelled below the other plot
    main.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=max(int(down / 0.25), 4)))
    for spine in main.spines.values():
        spine.set_visible(False)
    scale = figure.add_axes(box(height - above - min(down, 2.0), min(down, 2.0), WIDE - right + 0.15, 0.14))
    bar = figure.colorbar(ScalarMappable(norm, BLUES), cax=scale, format=PercentFormatter(1.0, None, " %"))
    bar.outline.set_visible(False)
    bar.ax.minorticks_off()
    bar.ax.set_title("weight", color=QUIET, fontsize=8, pad=8)

    axes = figure.add_axes(box(below, low))
    rounded = np.arange(1, rounds + 1)
    data = np.tile(np.asarray(sizes) / sum(sizes), (rounds, 1))
    lines = (("of the teacher", weights, HUES[0], "-"), ("of all data", data, HUES[1], "--"))
    ends = []
    for name, table, hue, dash in lines:
        held = shares_of(table, present)
        axes.plot(rounded, held, color=hue, linestyle=dash, marker="o" if rounds <= 40 else "", markersize=3)
        ends.append((float(held[-1]), name, hue))
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.02), xlabel="Round", ylabel="Share")
    axes.set_title("Total share of this round's clients", color=INK)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, 0, " %"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    ends.sort()
    for place, (_, name, hue) in zip(spread([end for end, *_ in ends], 0.15, 0.0, 1.0), ends, strict=True):
        axes.text(1.012, place / 1.02, name, transform=axes.transAxes, va="center", color=hue)
    return figure
