"""The charts of curves: a metric, or what servers noted, over the rounds and over what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedalloy.base.text import MISSING, number, plus_minus, shortened
from fedalloy.federation.metrics import METRICS, heading_of, meaning_of
from fedalloy.report.chart import (
    MANY,
    MOST,
    Axis,
    Chart,
    Field,
    Kind,
    Layer,
    Panel,
    Shape,
    Switch,
    around,
    band,
    dots,
    line,
    look_of,
    thinned,
)
from fedalloy.report.gains_table import Listing
from fedalloy.report.series import Floats, Series
from fedalloy.storage.results import Run
from fedalloy.storage.rows import agreed, leads, task_of

# What a curve can be drawn against: the title of the axis, the metric that is summed up, and the kind of its numbers.
ROUND = "Round"
COSTS: tuple[tuple[str, str, Kind], ...] = (
    ("Bytes sent so far, both ways", "bytes_total", "bytes"),
    ("FLOPs so far, clients and server", "flops", "flops"),
    ("Seconds so far, training only", "training_seconds", "seconds"),
)
MARKED = 8  # a line has a marker at about that many of its points


@dataclass(frozen=True)
class Curve:
    """One series over the rounds: the mean over seeds and its deviation, in the unit of the axis."""

    key: int
    one: Series
    rounds: Floats
    mean: Floats
    deviation: Floats

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """The lower and the upper edge of the band."""
        return self.mean - self.deviation, self.mean + self.deviation


def metric_chart(runs: Sequence[Run], series: Sequence[Series], metric: str, *, costs: bool = False) -> Chart:
    """A metric over the rounds and, with `costs`, over bytes, FLOPs and seconds."""
    factor = METRICS[metric].factor
    curves = [
        Curve(key, one, rounds, mean * factor, deviation * factor)
        for key, one in enumerate(series)
        for rounds, mean, deviation in [one.curve(metric)]
    ]
    task = task_of(runs)
    title = replace(METRICS[metric], heading=heading_of(metric, task)).title
    several = max((len(one.runs) for one in series), default=1) > 1
    caption = f"{_said(runs, metric)} after each round. {meaning_of(metric, task).split('. ')[0].rstrip('.')}."
    if several:
        caption += " A line is the mean over seeds; the band is one standard deviation."
    return _chart(f"curves-{metric}", title, curves, caption, costs=costs)


def _said(runs: Sequence[Run], metric: str) -> str:
    leading = agreed(leads(run) for run in runs)
    if metric == leading.first:
        return f"{leading.average[:1].upper()}{leading.average[1:]} on all clients' test data"
    return heading_of(metric, leading.task)


def note_chart(series: Sequence[Series], name: str, place: int) -> Chart:
    """A number that servers noted in each round (`fed.note`); notes belong to a method, and to no view."""
    first: dict[str, int] = {}
    for key, one in enumerate(series):
        first.setdefault(one.label, key)
    curves = [
        Curve(key, replace(one, name=shortened(one.label)), *one.noted(name))
        for key, one in enumerate(series)
        if first[one.label] == key
    ]
    return _chart(f"notes-{place}", name, curves, f"What the server noted in each round: {name}.")


def noted(runs: Iterable[Run]) -> list[str]:
    """The names of all notes, in order of first appearance."""
    return list(dict.fromkeys(name for run in runs for name in run.notes))


def _chart(ids: str, title: str, curves: Sequence[Curve], caption: str, *, costs: bool = False) -> Chart:
    curves = [curve for curve in curves if len(curve.rounds)]
    heights = around([end for curve in curves for side in curve.ends for end in side])
    y = Axis(title, *heights)
    fields = [_over_rounds(f"{ids}-round", title, curves, y)]
    if costs:
        fields += [field for cost in COSTS if (field := _over_cost(f"{ids}-{cost[2]}", title, curves, y, *cost))]
    many = len(curves) > MANY
    methods = list(dict.fromkeys(curve.one.label for curve in curves))
    return Chart(
        ids,
        title,
        tuple(fields),
        caption,
        legend=tuple(Switch(curve.key, look_of(curve.one), curve.one.name) for curve in curves),
        panels=tuple(
            Panel(shortened(method), tuple(curve.key for curve in curves if curve.one.label == method))
            for method in methods
        )
        if many
        else (),
        data=_numbers(title, curves),
    )


def _over_rounds(ids: str, title: str, curves: Sequence[Curve], y: Axis) -> Field:
    last = max((curve.rounds[-1] for curve in curves), default=1.0)
    first = min((curve.rounds[0] for curve in curves), default=0.0)
    x = Axis(ROUND, *around([first, last], least=1.0), "count")
    layers = []
    for curve in curves:
        if curve.one.level and last > curve.rounds[-1]:  # the work of one round, as a line to the last one
            ends = np.array([curve.rounds[-1], last])
            curve = replace(
                curve, rounds=ends, mean=curve.mean[-1:].repeat(2), deviation=curve.deviation[-1:].repeat(2)
            )
        layers.append(_layer(curve, curve.rounds))
    spoken = f"Line chart: {title} of {len(curves)} series over the rounds. The table below it has the numbers."
    return Field(ids, x, y, tuple(layers), spoken)


def _over_cost(
    ids: str, title: str, curves: Sequence[Curve], y: Axis, heading: str, cost: str, kind: Kind
) -> Field | None:
    """The curves over a cost, on a logarithmic axis; one that costs nothing is a horizontal line."""
    bought = []
    for curve in curves:
        rounds, spent = curve.one.spent(cost)
        _, left, right = np.intersect1d(curve.rounds, rounds, return_indices=True)
        known = Curve(curve.key, curve.one, spent[right], *(part[left] for part in (curve.mean, curve.deviation)))
        if len(known.rounds):
            bought.append(known)
    paid = [np.log10(spent) for curve in bought if len(spent := curve.rounds[curve.rounds > 0])]
    if not paid:
        return None
    x = Axis(heading, *around(np.concatenate(paid).tolist(), least=0.3), kind)
    layers = []
    for curve in bought:
        some = curve.rounds > 0
        if not some.any() or curve.one.level:
            start = float(np.log10(curve.rounds[-1])) if some.any() else x.low
            ends = np.array([start, x.high])
            level = replace(curve, mean=curve.mean[-1:].repeat(2), deviation=np.zeros(2))
            layers.append(_layer(level, ends))
        else:
            part = replace(curve, mean=curve.mean[some], deviation=curve.deviation[some])
            layers.append(_layer(part, np.log10(curve.rounds[some])))
    spoken = f"Line chart: {title} of {len(layers)} series against {heading[0].lower()}{heading[1:]}, log scale."
    return Field(ids, x, y, tuple(layers), spoken, aside=kind != "bytes")


def _layer(curve: Curve, x: Floats) -> Layer:
    shown = thinned(x)
    at, (low, high) = x[shown].tolist(), curve.ends
    mean = curve.mean[shown].tolist()
    shapes = [Shape("line", line(at, mean))]
    if curve.deviation.any():
        shapes.insert(0, Shape("band", band(at, low[shown].tolist(), high[shown].tolist())))
    if curve.one.marker:
        some = slice(None, None, max(len(at) // MARKED, 1))
        shapes.append(Shape("marker", dots(at[some], mean[some])))
    return Layer(curve.key, look_of(curve.one), curve.one.name, tuple(shapes))


def _numbers(title: str, curves: Sequence[Curve]) -> Listing:
    rounds = np.unique(np.concatenate([curve.rounds for curve in curves] or [np.empty(0)]))
    shown = rounds[thinned(rounds)].tolist() if len(rounds) else []
    cells = [
        {
            at: plus_minus(mean, deviation if len(curve.one.runs) > 1 else None)
            for at, mean, deviation in zip(
                curve.rounds.tolist(), curve.mean.tolist(), curve.deviation.tolist(), strict=True
            )
        }
        for curve in curves
    ]
    body = [[number(at, 0), *(cell.get(at, MISSING) for cell in cells)] for at in shown]
    note = f"{MOST} of {len(rounds):,} rounds, evenly spaced." if len(rounds) > MOST else ""
    return Listing(f"{title} by round", [ROUND, *(curve.one.name for curve in curves)], body, words=0, note=note)
