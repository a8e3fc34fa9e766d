"""Pictures of generated images: some of every class, and the average ones beside the real ones (FedKF's Figs. 2, 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedalloy.errors import UsageError
from fedalloy.report.canvas import GRID, QUIET, WIDE, styled, widest
from fedalloy.report.format import shortened

Pixels = NDArray[np.float64]
EDGE, HEAD = 0.15, 0.62  # inches: around everything, and for the title with a line below it


@styled
def generated_picture(
    samples: Sequence[Tensor], counts: Sequence[int], names: Sequence[str], *, title: str = "", each: int = 8
) -> Figure:
    """One row of raw images for each class, with its name before them and behind them how many were made in all.

    >>> import torch
    >>> figure = generated_picture([torch.zeros(2, 1, 4, 4), torch.zeros(0, 1, 4, 4)], [7, 0], ["cat", "dog"])
    >>> [text.get_text() for text in figure.texts][2:]
    ['cat', '7', 'dog', 'none', '0']
    """
    _refuse_other_channels(samples[0].shape[1])
    names = [shortened(name, 16) for name in names]
    blocks = 1 if len(names) <= 5 else 2 if len(names) <= 30 else 3
    rows = -(-len(names) // blocks)
    _, _, high, wide = samples[0].shape
    figure = Figure(figsize=(WIDE, 1))
    FigureCanvasAgg(figure)
    name_room, count_room = widest(figure, names) + 0.1, widest(figure, [f"{max(counts):,}"]) + 0.25
    block = (WIDE - 2 * EDGE) / blocks
    across = min(block - name_room - count_room, 0.5 * each)
    cell = across / each * high / wide
    height = HEAD + rows * (cell + 0.05) + EDGE
    figure.set_size_inches(WIDE, height)
    _head(figure, title, f"The first images that the teacher sees as each class; the number counts all {sum(counts):,}")
    for label, (some, count) in enumerate(zip(samples, counts, strict=True)):
        x = EDGE + label // rows * block
        y = height - HEAD - label % rows * (cell + 0.05) - cell
        middle = (y + cell / 2) / height
        figure.text((x + name_room - 0.1) / WIDE, middle, names[label], ha="right", va="center")
        if len(some):
            share = len(some) / each
            axes = figure.add_axes(((x + name_room) / WIDE, y / height, across * share / WIDE, cell / height))
            _show(axes, _strip(some))
        else:
            figure.text((x + name_room + 0.02) / WIDE, middle, "none", va="center", color=QUIET, style="italic")
        at = x + name_room + across + 0.08
        figure.text(at / WIDE, middle, f"{count:,}", va="center", color=QUIET, fontsize=8)
    return figure


@styled
def averages_picture(generated: Tensor, real: Tensor, names: Sequence[str], *, title: str = "") -> Figure:
    """The average image of each class, the generated one above the real one; a class that is NaN has none.

    >>> import torch
    >>> figure = averages_picture(torch.full((2, 1, 4, 4), torch.nan), torch.ones(2, 1, 4, 4), ["cat", "dog"])
    >>> len(figure.axes), [text.get_text() for text in figure.texts].count("none")
    (2, 2)
    """
    classes, channels, high, wide = generated.shape
    _refuse_other_channels(channels)
    bands = -(-classes // (13 if classes <= 52 else 20))
    columns = -(-classes // bands)
    left, gap = EDGE + 0.8, 0.06
    across = min((WIDE - left - EDGE) / columns - gap, 0.9)
    cell = across * high / wide
    names = [shortened(name, max(int(across / 0.062), 4)) for name in names]
    band = 0.22 + 2 * (cell + gap) + 0.14
    width, height = max(left + columns * (across + gap) + EDGE, 6.0), HEAD + bands * band
    figure = Figure(figsize=(width, height))
    _head(figure, title, "The average image of each class: generated above, real (all clients' training data) below")
    for label in range(classes):
        x = left + label % columns * (across + gap)
        top = height - HEAD - label // columns * band
        figure.text((x + across / 2) / width, (top - 0.11) / height, names[label], ha="center", va="center", fontsize=8)
        for place, (word, images) in enumerate((("generated", generated), ("real", real))):
            y = top - 0.22 - place * (cell + gap) - cell
            middle = (y + cell / 2) / height
            if label % columns == 0:
                figure.text((left - 0.12) / width, middle, word, ha="right", va="center", color=QUIET)
            if images[label].isnan().any():
                at = ((x + across / 2) / width, middle)
                figure.text(*at, "none", ha="center", va="center", color=QUIET, fontsize=8, style="italic")
            else:
                axes = figure.add_axes((x / width, y / height, across / width, cell / height))
                _show(axes, _pixels(images[label]))
    return figure


def _strip(images: Tensor) -> Pixels:
    """Images side by side, with a white line between two."""
    parts = [_pixels(image) for image in images]
    line = np.ones((parts[0].shape[0], 1, parts[0].shape[2]))
    return np.concatenate([piece for part in parts for piece in (part, line)], axis=1)


def _pixels(image: Tensor) -> Pixels:
    pixels: Pixels = image.detach().cpu().double().clamp(0, 1).permute(1, 2, 0).numpy()
    return pixels


def _show(axes: Axes, pixels: Pixels) -> None:
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GRID, linewidth=0.6)


def _head(figure: Figure, title: str, line: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(EDGE / width, 1 - 0.13 / height, title, va="top", fontsize=11)
    figure.text(EDGE / width, 1 - 0.36 / height, line, va="top", fontsize=9, color=QUIET)


def _refuse_other_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise UsageError(f"these images have {channels} channels; grey (1) and colour (3) ones can be drawn")
