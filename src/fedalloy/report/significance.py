"""Is the leading method better than the others? Its leads over seeds (`leads`) as the report's table and picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedalloy.report.chart import Axis, Chart, Field, Layer, Shape, around, dots, look_of, places
from fedalloy.report.gains_table import Listing
from fedalloy.report.leads import Rivals, leads_table
from fedalloy.report.series import Series
from fedalloy.report.statistics import Interval


@dataclass(frozen=True)
class Significance:
    """The leads of the best line, and their picture."""

    listing: Listing
    chart: Chart


def significance(found: Rivals, series: Sequence[Series]) -> Significance | None:
    """The leads of the best of these lines with their intervals; None if no two of them have two seeds in common."""
    table = leads_table(found)
    if table is None:
        return None
    best, *others = found.lines
    known = {name: found.apart[best, name].interval for name in others if (best, name) in found.apart}
    known = {name: one for name, one in known.items() if math.isfinite(one.low) and math.isfinite(one.high)}
    if not known:
        return None
    listing = Listing(table.title, table.headings, table.rows, words=1, note=" ".join(table.notes))
    return Significance(listing, _chart(best, known, found, series))


def _chart(best: str, known: dict[str, Interval], found: Rivals, series: Sequence[Series]) -> Chart:
    styles = {(one.label, one.view): (key, one) for key, one in enumerate(series)}
    ends = [found.factor * end for one in known.values() for end in (one.low, one.high)]
    x = Axis(f"{best} minus the other, {found.heading}", *around([0.0, *ends]))
    y = places("", list(known), down=True)
    layers = []
    for place, (name, one) in enumerate(known.items()):
        key, style = styles[found.lines[name].label, found.lines[name].view]
        low, mean, high = (found.factor * value for value in (one.low, one.mean, one.high))
        at = len(known) - 1 - place
        shapes = (Shape("interval", f"M{low:.6g} {at}H{high:.6g}"), Shape("dots large", dots([mean], [at])))
        layers.append(Layer(key, look_of(style), name, shapes))
    spoken = "Forest plot: the leads of the best method over the others. The table has the numbers."
    field = Field("paired-forest", x, y, tuple(layers), spoken, 34 * len(known), "rows", rule=0.0, above=True)
    caption = (
        f"The mean paired difference and its 95 % interval. An interval that crosses zero does not tell {best} from "
        "the other method."
    )
    return Chart("paired-chart", "Differences over seeds", (field,), caption, table="paired-table")
