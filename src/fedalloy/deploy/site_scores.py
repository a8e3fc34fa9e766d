"""A site's own scores from its audit log: over the rounds, as a picture, and against a model trained alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedalloy.base.text import MISSING, number, view_name
from fedalloy.federation.classification import COMMON
from fedalloy.federation.intervals import Interval
from fedalloy.report.chart import Axis, Chart, Field, Layer, Shape, Switch, around, band, dots, line
from fedalloy.report.gains_table import Listing, signed
from fedalloy.report.series import DASHES, HUES
from fedalloy.storage.audit import Entry

MEASURES = {
    "accuracy": "Accuracy",
    "r2": "R2",
    "balanced": "Balanced accuracy",
    "macro_f1": "Macro-F1",
    "auc": "AUC",
    "mae": "MAE",
}
VIEWS = 12  # that a page shows; a server chooses how many there are
Scores = Mapping[str, Any]
Curves = dict[str, dict[int, Scores]]
"""The scores of each view by round."""


def over_rounds(entries: Sequence[Entry]) -> Curves:
    """Return what each view scored in each round; the last answer counts if a round was evaluated again."""
    found: Curves = {}
    for entry in entries:
        scores, round = entry.get("scores"), entry.get("round")
        if entry["event"] != "answered" or type(round) is not int or not isinstance(scores, Mapping):
            continue
        for view, one in scores.items():
            if isinstance(one, Mapping) and lead(one) is not None:
                found.setdefault(str(view), {})[round] = one
    return dict(list(found.items())[:VIEWS])


def last_scores(curves: Curves) -> dict[str, Scores]:
    """Return the scores of the last evaluated round."""
    last = max((round for curve in curves.values() for round in curve), default=0)
    return {view: curve[last] for view, curve in curves.items() if last in curve}


def lead(scores: Scores) -> str | None:
    """Return the name of the score that comes first: the accuracy, or R2 of numbers.

    If always giving the same answer would be right for more than two thirds of the test rows, it is balanced accuracy.
    """
    rare = (_number(scores, "commonest") or 0.0) > COMMON
    names = ("balanced", "accuracy") if rare else ("accuracy", "r2")
    return next((name for name in names if _number(scores, name) is not None), None)


def _number(scores: Scores, name: str) -> float | None:
    value = scores.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def span(scores: Scores, name: str) -> Interval:
    """Return the 95 % interval of a score, if the log has it."""
    ends = scores.get(f"{name}_95")
    if not isinstance(ends, list | tuple) or len(ends) != 2 or not all(type(end) in (int, float) for end in ends):
        return None
    return float(ends[0]), float(ends[1])


def written(scores: Scores, name: str) -> str:
    """Write a score with its interval; shares in percent."""
    value, ends = _number(scores, name), span(scores, name)
    if value is None:
        return MISSING
    factor, digits = (1.0, 3) if name in ("mae", "r2") else (100.0, 1)
    text = number(factor * value, digits)
    return text if ends is None else f"{text} [{number(factor * ends[0], digits)}, {number(factor * ends[1], digits)}]"


def _heading(name: str) -> str:
    return MEASURES[name] if name in ("mae", "r2") else f"{MEASURES[name]} %"


def score_table(curves: Curves, most: int) -> Listing:
    """Return the first score of each view in each round."""
    rounds = sorted({round for curve in curves.values() for round in curve})
    name = next((lead(one) for curve in curves.values() for one in curve.values()), None) or "accuracy"
    body = [
        [str(round), *(written(curve[round], name) if round in curve else MISSING for curve in curves.values())]
        for round in rounds[-most:]
    ]
    note = "In brackets: the 95 % interval that follows from the number of test rows."
    if len(rounds) > most:
        note += f" The first {len(rounds) - most} rounds are left out."
    headings = ("Round", *(f"{view_name(view)}: {_heading(name)}" for view in curves))
    return Listing("Scores over the rounds", headings, body, words=0, note=note)


def scored(last: Mapping[str, Scores]) -> Listing:
    """Return all scores of the last evaluated round."""
    names = [name for name in MEASURES if any(name in one for one in last.values())]
    body = [[view_name(view), _rows(one), *(written(one, name) for name in names)] for view, one in last.items()]
    headings = ("Model", "Test rows", *map(_heading, names))
    return Listing("Scores in the last round", headings, body, words=1, note="")


def _rows(scores: Scores) -> str:
    return str(scores["rows"]) if type(scores.get("rows")) is int else MISSING


def gain(last: Mapping[str, Scores], alone: Scores) -> Listing:
    """Compare the models of the last evaluated round with a model that the site has trained alone."""
    body, sentences = [], []
    for view, one in last.items():
        name = lead(one)
        before, after = (None if name is None else _number(scores, name) for scores in (alone, one))
        if name is None or before is None or after is None:
            continue
        points = 100 * (after - before)
        ends = difference((after, span(one, name)), (before, span(alone, name)))
        shown = MISSING if ends is None else f"{signed(100 * ends[0])} to {signed(100 * ends[1])}"
        clear = ends is not None and (ends[0] > 0 or ends[1] < 0)
        verdict = ("gain" if points > 0 else "loss") if clear else "not clear"
        body.append([view_name(view), verdict, written(one, name), written(alone, name), signed(points), shown])
        sentences.append(
            f"{view_name(view)}: {signed(points)} points against training alone"
            f"{'' if clear else ', which its test rows cannot tell from none'}."
        )
    return Listing(
        "Gain against training alone",
        ("Model", "Verdict", "In the federation", "Alone", "Gain, points", "95 % interval"),
        body,
        words=2,
        note=" ".join(sentences),
    )


def difference(one: tuple[float, Interval], other: tuple[float, Interval]) -> Interval:
    """Newcombe's interval of a difference from the intervals of two scores, as if their test rows were different.

    >>> [round(end, 3) for end in difference((0.8, (0.7, 0.87)), (0.6, (0.5, 0.69)))]
    [0.065, 0.322]
    """
    (a, first), (b, second) = one, other
    if first is None or second is None:
        return None
    return a - b - math.hypot(a - first[0], second[1] - b), a - b + math.hypot(first[1] - a, b - second[0])


def picture(curves: Curves, alone: Scores | None) -> Chart:
    """The site's scores over the rounds, with the intervals that follow from the number of test rows."""
    name = next((lead(one) for curve in curves.values() for one in curve.values()), None) or "accuracy"
    factor = 1.0 if name == "r2" else 100.0
    layers, ends, rounds = [], [], [1.0]
    for key, view in enumerate(curves):
        points = [(r, s, v) for r, s in sorted(curves[view].items()) if (v := _number(s, name)) is not None]
        if not points:
            continue
        at = [float(r) for r, _, _ in points]
        spans = [span(s, name) or (v, v) for _, s, v in points]
        low, high = ([factor * end for end in side] for side in zip(*spans, strict=True))
        values = [factor * v for _, _, v in points]
        look = f"c{key % len(HUES)} d{key // len(HUES) % len(DASHES)} m1"
        shapes = (
            Shape("band", band(at, low, high)),
            Shape("line", line(at, values)),
            Shape("marker", dots(at, values)),
        )
        layers.append(Layer(key, look, view_name(view), shapes))
        ends += [*low, *high, *values]
        rounds += at
    own = None if alone is None else _number(alone, name)
    x = Axis("Round", *around([min(rounds), max(rounds)], least=1.0), "count")
    if own is not None:
        level = Shape("line", line([x.low, x.high], [factor * own] * 2))
        layers.append(Layer(len(curves), "c7 d1 m0", "alone", (level,)))
        ends.append(factor * own)
    title = f"{_heading(name)}, own test rows"
    spoken = "Line chart: the score of each model on this site's own test rows, over the rounds."
    field = Field("scores-round", x, Axis(title, *around(ends)), tuple(layers), spoken)
    caption = (
        "Scores on this site's own test rows, over the rounds. The band is the 95 % interval that follows from the "
        "number of test rows."
    )
    caption += "" if own is None else " The dashed grey line is a model that this site has trained alone."
    legend = tuple(Switch(layer.key, layer.look, layer.name) for layer in layers)
    return Chart("scores-chart", title, (field,), caption, legend, table="scores-table")
