"""A plot of how similar generated features are to real ones, by class (`fedalloy.knowledge.similarity`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedalloy.base.text import shortened
from fedalloy.knowledge.similarity import Compared
from fedalloy.report.canvas import INK, QUIET, styled, widest
from fedalloy.report.series import HUES


@styled
def similarity_picture(
    similarity: Sequence[float], names: Sequence[str], *, title: str = "", compare: Compared = "channel_means"
) -> Figure:
    """One bar for each class, and a line at the mean of the classes; NaN is a class without real samples.

    >>> [text.get_text() for text in similarity_picture([0.5, float("nan")], ["cat", "dog"]).axes[0].texts]
    ['0.50', 'no samples', 'mean 0.50']
    """
    values = np.asarray(similarity, dtype=np.float64)
    names = [shortened(name, 20) for name in names]
    row = 0.26 if len(names) <= 40 else 0.17
    width, right, above, below = 7.2, 0.85, 0.85, 0.5
    height = above + below + row * len(names)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    left = widest(figure, names) + 0.3
    axes = figure.add_axes((left / width, below / height, (width - left - right) / width, row * len(names) / height))
    figure.text(0.15 / width, 1 - 0.13 / height, title, va="top", fontsize=11)
    what = "means of channels" if compare == "channel_means" else "whole maps"
    line = f"Mean cosine similarity of generated features to those of a centrally trained network ({what})"
    figure.text(0.15 / width, 1 - 0.36 / height, line, va="top", color=QUIET)
    axes.barh(range(len(names)), np.nan_to_num(values), height=0.68, color=HUES[0], alpha=0.85)
    for place, value in enumerate(values):  # in a column of their own: beside the bars the mean's line would cross them
        text = "no samples" if np.isnan(value) else f"{value:.2f}"
        across = axes.get_yaxis_transform()
        axes.text(1.01, place, text, transform=across, va="center", fontsize=8 if row > 0.2 else 6.5, color=QUIET)
    mean = float(np.nanmean(values))
    axes.axvline(mean, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    axes.set(xlim=(min(0.0, float(np.nanmin(values))), 1), ylim=(len(names) - 0.5, -0.5))
    axes.annotate(f"mean {mean:.2f}", (mean, -0.5), (0, 3), textcoords="offset points", ha="center", va="bottom")
    axes.set_xticks([tick for tick in (-1, -0.5, 0, 0.2, 0.4, 0.6, 0.8, 1) if tick >= axes.get_xlim()[0]])
    axes.set_yticks(range(len(names)), names, color=INK, fontsize=9 if row > 0.2 else 7)
    axes.set_xlabel("Cosine similarity")
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    return figure
