"""Pictures of generated images: some of every class, and the average ones beside the real ones (FedKF's Figs. 2, 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from fedalloy.base.text import shortened
from fedalloy.errors import UsageError
from fedalloy.report.canvas import GRID, QUIET, WIDE, styled, widest

Pixels = NDArray[np.float64]
EDGE, HEAD, GAP = 0.15, 0.62, 0.05  # inches: around everything, for title and subtitle, between rows
SMALL: dict[str, Any] = {"va": "center", "color": QUIET, "fontsize": 8}


@styled
def generated_picture(
    samples: Sequence[Tensor], counts: Sequence[int], names: Sequence[str], *, title: str = "", each: int = 8
) -> Figure:
    """One row of raw images for each class, with its name before them and behind them how many were made in all.

    >>> figure = generated_picture([torch.zeros(2, 1, 4, 4), torch.zeros(0, 1, 4, 4)], [7, 0], ["cat", "dog"])
    >>> [text.get_text() for text in figure.axes[0].texts][2:]
    ['cat', '7', 'dog', '0', 'none']
    """
    _, channels, high, wide = samples[0].shape
    _refuse_other_channels(channels)
    names = [shortened(name, 16) for name in names]
    blocks = 1 if len(names) <= 5 else 2 if len(names) <= 30 else 3
    rows = -(-len(names) // blocks)
    name_room, count_room = _widest(names) + 0.1, _widest([f"{max(counts):,}"]) + 0.25
    block = (WIDE - 2 * EDGE) / blocks
    cell = min((block - name_room - count_room) / each, 0.5)  # the width of an image
    tall = cell * high / wide
    line = f"The first images that are taken for each class; the numbers count all {sum(counts):,}"
    page = _page(WIDE, HEAD + rows * (tall + GAP) + EDGE, title, line)
    for label, (some, count) in enumerate(zip(samples, counts, strict=True)):
        x = EDGE + label // rows * block + name_room
        top = HEAD + label % rows * (tall + GAP)
        middle = top + tall / 2
        page.text(x - 0.1, middle, names[label], ha="right", va="center")
        page.text(x + each * cell + 0.08, middle, f"{count:,}", **SMALL)
        if count:
            strip = torch.cat([F.pad(image, (0, 1), value=1.0) for image in some], 2)  # a white line after each
            _show(page, strip, x, top, len(some) * cell, tall)
        else:
            page.text(x, middle, "none", style="italic", **SMALL)
    return _finished(page)


@styled
def averages_picture(generated: Tensor, real: Tensor, names: Sequence[str], *, title: str = "") -> Figure:
    """The average image of each class, the generated one above the real one; a class that is NaN has none.

    >>> page = averages_picture(torch.full((2, 1, 4, 4), torch.nan), torch.ones(2, 1, 4, 4), ["cat", "dog"]).axes[0]
    >>> len(page.images), [text.get_text() for text in page.texts].count("none")
    (2, 2)
    """
    classes, channels, high, wide = generated.shape
    _refuse_other_channels(channels)
    bands = -(-classes // (13 if classes <= 52 else 20))
    columns = -(-classes // bands)
    left = EDGE + 0.8
    pitch = min((WIDE - left - EDGE) / columns, 0.95)
    cell = pitch - 0.06
    tall = cell * high / wide
    band = 0.22 + 2 * (tall + GAP) + 0.14
    names = [shortened(name, max(int(cell / 0.068), 4)) for name in names]
    line = "The average image of each class: generated above, real (all clients' training data) below"
    page = _page(max(left + columns * pitch + EDGE, 6.0), HEAD + bands * band, title, line)
    for label in range(classes):
        x, top = left + label % columns * pitch, HEAD + label // columns * band
        page.text(x + cell / 2, top + 0.11, names[label], ha="center", va="center", fontsize=8)
        for word, images, y in (("generated", generated, top + 0.22), ("real", real, top + 0.22 + tall + GAP)):
            if label % columns == 0:
                page.text(x - 0.12, y + tall / 2, word, ha="right", va="center", color=QUIET)
            if images[label].isnan().any():
                page.text(x + cell / 2, y + tall / 2, "none", ha="center", style="italic", **SMALL)
            else:
                _show(page, images[label], x, y, cell, tall)
    return _finished(page)


def _page(width: float, height: float, title: str, line: str) -> Axes:
    """One plot as large as the picture, in inches from its upper left corner: hundreds of them would draw slowly."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    page = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    page.set_axis_off()
    page.text(EDGE, 0.13, title, va="top", fontsize=11)
    page.text(EDGE, 0.36, line, va="top", color=QUIET)
    return page


def _finished(page: Axes) -> Figure:
    """The picture, with the limits that every image has moved put back."""
    figure = page.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    page.set(xlim=(0, width), ylim=(height, 0))
    return figure


def _show(page: Axes, image: Tensor, x: float, y: float, wide: float, tall: float) -> None:
    pixels: Pixels = image.detach().cpu().double().clamp(0, 1).permute(1, 2, 0).numpy()
    place = (x, x + wide, y + tall, y)
    page.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto", extent=place)
    page.add_patch(Rectangle((x, y), wide, tall, fill=False, edgecolor=GRID, linewidth=0.5))


def _widest(words: Sequence[str]) -> float:
    draft = Figure()
    FigureCanvasAgg(draft)
    return widest(draft, words)


def _refuse_other_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise UsageError(f"these images have {channels} channels; grey (1) and colour (3) ones can be drawn")
