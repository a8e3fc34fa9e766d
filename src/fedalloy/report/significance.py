"""Is the leading method better than the others? Paired differences over seeds with intervals, as table and picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedalloy.base.text import MISSING, number
from fedalloy.federation.metrics import METRICS, heading_of
from fedalloy.report.chart import Axis, Chart, Field, Layer, Shape, around, dots, look_of, places
from fedalloy.report.gains import POOLED
from fedalloy.report.gains_table import Listing, signed
from fedalloy.report.series import Series
from fedalloy.report.statistics import Interval, holm, paired, paired_p, t_interval
from fedalloy.storage.results import STAGES, Selection
from fedalloy.storage.rows import task_of

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """The score of the leading series minus that of another, in points, over the seeds that both have."""

    key: int  # the other's place among all series
    other: Series
    found: Interval
    p: float  # adjusted by Holm's method

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than chance would make it."""
        return self.p < 1 - LEVEL


@dataclass(frozen=True)
class Significance:
    """The leading series and its differences to the others."""

    leader: Series
    differences: tuple[Difference, ...]
    listing: Listing
    chart: Chart


def significance(series: Sequence[Series], selection: Selection = "last", metric: str = "amp") -> Significance | None:
    """Compare the series with the highest mean of a metric with the others; None if no two have two seeds in common.

    Intermediate models of clients and training on pooled data do not compete.
    """
    rivals = {key: one for key, one in enumerate(series) if one.view not in STAGES and one.runs[0].name != POOLED}
    scores = {key: found for key, one in rivals.items() if (found := _scores(one, selection, metric))}
    if not scores:
        return None
    leader = max(scores, key=lambda key: sum(scores[key].values()) / len(scores[key]))
    apart = {key: list(paired(scores[leader], found).values()) for key, found in scores.items() if key != leader}
    apart = {key: points for key, points in apart.items() if len(points) > 1}
    if not apart:
        return None
    adjusted = holm([paired_p(points) for points in apart.values()])
    differences = tuple(
        Difference(key, series[key], t_interval(points, LEVEL), p)
        for (key, points), p in zip(apart.items(), adjusted, strict=True)
    )
    name = heading_of(metric, task_of(series[leader].runs)).removesuffix(" %")
    first = series[leader]
    return Significance(first, differences, _listing(first, differences, name), _chart(first, differences, name))


def _scores(one: Series, selection: Selection, metric: str) -> dict[int, float]:
    """The metric of each seed, in percent."""
    factor = METRICS[metric].factor
    values = {run.seed: run.at(one.view, metric, selection) * factor for run in one.runs}
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def _listing(leader: Series, found: Sequence[Difference], metric: str) -> Listing:
    body = [
        [
            each.other.name,
            "yes" if each.clear else "no",
            signed(each.found.mean),
            f"{signed(each.found.low)} to {signed(each.found.high)}",
            MISSING if math.isnan(each.p) else "< 0.001" if each.p < 0.001 else number(each.p, 3),
            str(each.found.n),
        ]
        for each in found
    ]
    headings = (f"{leader.name} against", "Clear", f"{metric}, points", "95 % interval", "p (Holm)", "Seeds")
    note = (
        "Differences between runs of the same seed; the unit is the seed. Intervals are Student's. p is that of a "
        f"paired t-test, adjusted by Holm's method for {len(found)} comparison{'' if len(found) == 1 else 's'}; "
        "a difference is clear if it is below 0.05. "
        "The leader was chosen by the same numbers, which favours it."
    )
    return Listing("Paired differences over seeds", headings, body, words=2, note=note)


def _chart(leader: Series, found: Sequence[Difference], metric: str) -> Chart:
    ends = [end for each in found for end in (each.found.low, each.found.high)]
    x = Axis(f"{leader.name} minus the other, points of {metric}", *around([0.0, *ends]))
    y = places("", [each.other.name for each in found], down=True)
    layers = []
    for place, each in enumerate(found):
        at = len(found) - 1 - place
        low, high = each.found.low, each.found.high
        shapes = (Shape("interval", f"M{low:.6g} {at}H{high:.6g}"), Shape("dots large", dots([each.found.mean], [at])))
        layers.append(Layer(each.key, look_of(each.other), each.other.name, shapes))
    spoken = "Forest plot: the differences of the leading method to the others. The table has the numbers."
    field = Field("paired-forest", x, y, tuple(layers), spoken, 34 * len(found), "rows", rule=0.0, above=True)
    caption = (
        f"The mean paired difference and its 95 % interval. An interval that crosses zero does not tell {leader.name} "
        "from the other method."
    )
    return Chart("paired-chart", "Differences over seeds", (field,), caption, table="paired-table")
