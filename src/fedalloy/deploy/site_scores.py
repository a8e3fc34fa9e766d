"""A site's own scores from its audit log: over the rounds, as a picture, and against a model trained alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedalloy.base.text import MISSING, number, view_name
from fedalloy.federation.classification import COMMON
from fedalloy.federation.intervals import Interval
from fedalloy.report.canvas import NARROW, WIDE, canvas, name_ends, styled
from fedalloy.report.gains_table import Listing, signed
from fedalloy.report.html import both_widths
from fedalloy.report.series import DASHES, HUES, Series
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


def picture(curves: Curves, alone: Scores | None) -> dict[str, Markup]:
    """Draw the site's scores over the rounds."""
    spoken = "Line chart: the score of each model on this site's own test rows, over the rounds."
    return both_widths(lambda width: _curve(curves, alone, width), "scores", spoken)


@styled
def _curve(curves: Curves, alone: Scores | None, width: float) -> Figure:
    name = next((lead(one) for curve in curves.values() for one in curve.values()), None) or "accuracy"
    factor = 1.0 if name == "r2" else 100.0
    series = [
        Series("", view, view_name(view), (), HUES[i % len(HUES)], DASHES[i // len(HUES) % len(DASHES)], "")
        for i, view in enumerate(curves)
    ]
    own = None if alone is None else _number(alone, name)
    reference = Series("", "alone", "alone", (), "#6A6A6A", DASHES[1], "")
    figure, axes = canvas(
        width, 3.4 if width >= WIDE else 3.0, [*series, *([reference] if own is not None else [])], xlabel="Round"
    )
    axes.set_title(f"{_heading(name)}, own test rows")
    ends = []
    for one in series:
        points = sorted((r, s) for r, s in curves[one.view].items() if _number(s, name) is not None)
        if not points:
            continue
        at, values = [r for r, _ in points], [factor * (_number(s, name) or 0.0) for _, s in points]
        spans = [span(s, name) or (v / factor, v / factor) for (_, s), v in zip(points, values, strict=True)]
        axes.fill_between(
            at,
            [factor * low for low, _ in spans],
            [factor * high for _, high in spans],
            color=one.hue,
            alpha=0.13,
            lw=0,
        )
        axes.plot(at, values, color=one.hue, linestyle=one.dash, marker="o", markersize=4)
        ends.append((one, float(at[-1]), values[-1]))
    if own is not None:
        axes.axhline(factor * own, color=reference.hue, linewidth=1.3, linestyle=reference.dash)
        ends.append((reference, max(x for _, x, _ in ends), factor * own))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=10 if width > NARROW else 6))
    name_ends(figure, axes, ends, led=True)
    return figure
