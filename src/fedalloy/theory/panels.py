"""What the pictures of the theorems share: panels side by side, named levels and plain logarithmic axes."""

from __future__ import annotations

from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fedalloy.report.canvas import HALF, INK

WIDTH, HEIGHT = 7.6, 3.3  # inches
DASHED = (0, (4, 2))


def panels(count: int, title: str) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side under a title.

    >>> len(panels(2, "Two")[1])
    2
    """
    figure = Figure(figsize=(WIDTH if count > 1 else HALF, HEIGHT))
    FigureCanvasAgg(figure)
    width = figure.get_size_inches()[0]
    figure.text(0.12 / width, 1 - 0.12 / HEIGHT, title, va="top", fontsize=10)
    across, top = (width - 0.15 - count * 0.75) / count, 2.15 if count > 1 else 2.35
    lefts = [0.65 + place * (across + 0.75) for place in range(count)]
    return figure, [figure.add_axes((x / width, 0.5 / HEIGHT, across / width, top / HEIGHT)) for x in lefts]


def level(axes: Axes, value: float, text: str, side: Literal["left", "right"]) -> None:
    """Draw a dashed line across the plot, with its name below it at one side.

    >>> _, (axes,) = panels(1, "")
    >>> level(axes, 0.5, "half", "left")
    >>> axes.texts[0].get_text()
    'half'
    """
    axes.axhline(value, color=INK, linewidth=1, linestyle=DASHED)
    at = (0.02 if side == "left" else 0.98, value)
    across = axes.get_yaxis_transform()
    axes.annotate(text, at, (0, -3), xycoords=across, textcoords="offset points", ha=side, va="top")


def logarithmic(axes: Axes, which: Literal["x", "y", "both"]) -> None:
    """Make one axis or both logarithmic, with powers of ten as plain numbers.

    >>> _, (axes,) = panels(1, "")
    >>> logarithmic(axes, "x")
    >>> axes.get_xscale(), axes.get_yscale()
    ('log', 'linear')
    """
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if which in (name, "both"):
            axes.set(**{f"{name}scale": "log"})
            axis.set_major_locator(LogLocator(numticks=12))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.9f}".rstrip("0").rstrip(".")))
