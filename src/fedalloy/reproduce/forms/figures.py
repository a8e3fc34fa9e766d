"""The figures of the papers, each by the name of its form: a function from recorded results to pictures."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from matplotlib.figure import Figure

from fedalloy.base.registry import suggest
from fedalloy.errors import DataError
from fedalloy.reproduce.forms.figures_clients import box, weights
from fedalloy.reproduce.forms.figures_curves import curves
from fedalloy.reproduce.forms.figures_extract import EXTRACTS
from fedalloy.reproduce.forms.figures_grid import grid
from fedalloy.reproduce.forms.figures_over import bars, over_columns
from fedalloy.reproduce.forms.figures_partition import partition
from fedalloy.reproduce.forms.figures_recorded import epd, fusion, images, similarity
from fedalloy.reproduce.results import Results

__all__ = ["EXTRACTS", "FIGURES"]


def theory(results: Results) -> list[Figure]:
    """A picture of `fedalloy.theory`, by the name in the option `picture`."""
    item = results.item
    name = str((item.options or {}).get("picture", ""))
    pictures: dict[str, Callable[[], Figure]] = importlib.import_module("fedalloy.theory.pictures").PICTURES
    if name not in pictures:
        raise DataError(f"{item.paper} {item.id}: there is no picture '{name}'; {suggest(name, pictures)}")
    return [pictures[name]()]


FIGURES: dict[str, Callable[[Results], list[Figure]]] = {
    "curves": curves,
    "over-columns": over_columns,
    "box": box,
    "bars": bars,
    "partition": partition,
    "images": images,
    "weights": weights,
    "similarity": similarity,
    "fusion": fusion,
    "epd": epd,
    "grid": grid,
    "theory": theory,
}
