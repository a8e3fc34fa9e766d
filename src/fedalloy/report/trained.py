"""Is a view trained well enough to be judged? Finds models at chance level, curves that still rise, too few rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedalloy.base.text import listed, number
from fedalloy.errors import UsageError
from fedalloy.report.series import Floats, Series, series_of
from fedalloy.storage.results import Run, Selection
from fedalloy.storage.rows import WEIGHTS, Leads, agreed, leads, weights_would_help

Kind = Literal["one class", "near chance", "rising", "few rounds"]
MARKS: dict[Kind, str] = {"one class": "†", "near chance": "‡", "rising": "‡", "few rounds": ""}

NOTHING = 0.02  # at most this much balanced accuracy above chance is no sign of learning, however small the test set
LEARNED = 0.1  # share of the way from chance to 1; a balanced accuracy below that is near chance
LEAST = 8  # evaluated rounds; with fewer, the curve is not judged
RISE = 0.01  # in AMP, from one quarter of the rounds to the next
CLEARLY = 2  # standard errors


@dataclass(frozen=True)
class Doubt:
    """Why a view of a method is not judged."""

    kind: Kind
    name: str  # label and view as tables show them
    reason: str  # the rest of a sentence that begins with the name
    advice: str = ""

    @property
    def sentence(self) -> str:
        """The whole sentence, without its full stop."""
        return f"{self.name} {self.reason}{f'; {self.advice}' if self.advice else ''}"


Doubts = Mapping[tuple[str, str], Doubt]  # by label and view


def doubts(runs: Sequence[Run], selection: Selection = "last") -> dict[tuple[str, str], Doubt]:
    """The views that cannot be judged, and why; several seeds are averaged first.

    * "one class": the balanced accuracy is at most two standard errors, and at most two points, above that of a model
      that always predicts the same class, 1 / classes; of several labels, 1 / 2.
    * "near chance": it is at most two standard errors above that, or less than a tenth of the way from there to 1; or
      the R2 of numbers is less than a tenth, where always predicting the mean has 0. Training alone until convergence
      is not held to the latter: with little data, a client may do no better.
    * "rising": the mean AMP (or balanced accuracy, if methods are ranked by it) of the last quarter of the evaluated
      rounds exceeds that of the quarter before by more than one point, by more than two standard errors of the
      difference as the rounds scatter, and by more than one standard error of the test.
    * "few rounds": fewer than eight rounds were evaluated, too few to judge the curve.

    The last two do not apply to a method that does all its work in one round.

    >>> doubts([])
    {}
    """
    found = {(one.label, one.view): _doubt(one, selection) for one in series_of(runs)}
    return {key: doubt for key, doubt in found.items() if doubt is not None}


def told(found: Doubts) -> list[str]:
    """The sentences under a table that explain its marks. Only the verdict mentions too few rounds."""
    sentences: dict[tuple[Kind, str], list[Doubt]] = {}
    for doubt in found.values():
        if MARKS[doubt.kind]:
            sentences.setdefault((doubt.kind, doubt.advice), []).append(doubt)
    return [
        f"{MARKS[kind]} {listed(_together(several))}{f'; {advice}' if advice else ''}."
        for (kind, advice), several in sentences.items()
    ]


def _together(several: Sequence[Doubt]) -> list[str]:
    """Names with their reasons; names with the same reason are grouped."""
    reasons: dict[str, list[str]] = {}
    for one in several:
        reasons.setdefault(one.reason, []).append(one.name)
    return [
        f"{first}{f', like {listed(others)},' if others else ''} {reason}"
        for reason, (first, *others) in reasons.items()
    ]


def _doubt(one: Series, selection: Selection) -> Doubt | None:
    lead, tests = agreed(leads(run) for run in one.runs), _tests(one)
    balanced, chance = _at(one, "balanced", selection), 0.5 if lead.task == "labels" else _chance(one)
    weights = [WEIGHTS] if weights_would_help(one.runs[0]) else []
    more = [] if one.level else [f"rounds = {2 * max(run.rounds[-1]['round'] for run in one.runs)} or more"]
    if balanced is not None and chance is not None:
        figure = f"a balanced accuracy of {number(100 * balanced, 1)} %"
        noise = CLEARLY * max(
            math.sqrt(chance * (1 - chance) / max(tests, 1)), _at(one, "balanced_error", selection) or 0.0
        )
        if balanced <= chance + min(noise, NOTHING):
            same = f"always predicting the same class gives {number(100 * chance, 1)} %"
            kind = "labels" if lead.task == "labels" else "classes"
            return Doubt("one class", one.name, f"does not distinguish the {kind} ({figure}, {same})", _advice(weights))
        if balanced <= chance + noise or balanced < chance + LEARNED * (1 - chance):
            is_what = "is near chance" if one.level else "is not trained yet"
            reason = f"{is_what} ({figure}, chance is {number(100 * chance, 1)} %)"
            return Doubt("near chance", one.name, reason, _advice([*weights, *more]))
    if one.level:
        return None
    explained = _at(one, "amp", selection) if lead.task == "numbers" else None
    if explained is not None and explained < LEARNED:
        reached = number(100 * explained, 1)
        reason = f"is not trained yet (its R2 is {reached} %, always predicting the mean gives 0.0 %)"
        return Doubt("near chance", one.name, reason, _advice(more))
    rounds, amps, _ = one.curve(lead.first)
    if len(rounds) < LEAST:
        several = f"{len(rounds)} round{'' if len(rounds) == 1 else 's'}"
        reason = f"was evaluated in {several}, too few to tell whether it is trained"
        return Doubt("few rounds", one.name, reason, _more_evaluations(one))
    rise = _rise(amps, tests, _error(one, lead))
    if rise is not None:
        risen = f"its {lead.average} rose by {number(100 * rise, 1)} points in the last quarter of the rounds"
        reason = f"is not trained yet ({risen})"
        return Doubt("rising", one.name, reason, _advice(more))
    return None


def settled(runs: Sequence[Run], label: str) -> bool:
    """Whether the curves of a method have been judged and no longer rise, however low they are.

    >>> settled([], "FedAvg")
    False
    """
    lead = agreed(leads(run) for run in runs)
    judged = [one for one in series_of(runs) if one.label == label and not one.level]
    curves = [(one.curve(lead.first)[1], _tests(one), _error(one, lead)) for one in judged]
    return bool(curves) and all(
        len(curve) >= LEAST and _rise(curve, tests, error) is None for curve, tests, error in curves
    )


def _advice(keys: Sequence[str]) -> str:
    return f"write {', or '.join(keys)}" if keys else ""


def _error(one: Series, lead: Leads) -> float | None:
    """The standard error of the score on the tests, if clients measured it."""
    return _at(one, "balanced_error", "last") if lead.first == "balanced" else None


def _more_evaluations(one: Series) -> str:
    """What to set for enough evaluated rounds."""
    last = max(run.rounds[-1]["round"] for run in one.runs)
    if last >= LEAST:
        return f"write evaluate_every = {last // LEAST}"
    return f"write rounds = {LEAST * one.runs[0].meta.get('experiment', {}).get('evaluate_every', 1)} or more"


def _rise(curve: Floats, tests: int, error: float | None = None) -> float | None:
    """By how much the last quarter of a curve exceeds the quarter before; None if it is within the noise.

    `error` is the standard error of the test; without it, that of a share of `tests` samples.

    >>> _rise(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.6]), 100), _rise(np.full(8, 0.5), 100)
    (0.1, None)
    """
    size = len(curve) // 4
    before, last = curve[-2 * size : -size], curve[-size:]
    rise = round(float(last.mean() - before.mean()), 9)
    noise = math.sqrt((last.var(ddof=1) + before.var(ddof=1)) / size)
    level = float(last.mean())
    error = math.sqrt(max(level * (1 - level), 0) / max(tests, 1)) if error is None else error
    return rise if rise > max(RISE, CLEARLY * noise, error) else None


def _at(one: Series, metric: str, selection: Selection) -> float | None:
    """A metric in the selected round, mean over seeds; None if a run has not recorded it."""
    try:
        values = [run.at(one.view, metric, selection) for run in one.runs]
    except UsageError:
        return None
    return float(np.mean(values)) if values and np.isfinite(values).all() else None


def _chance(one: Series) -> float | None:
    """The balanced accuracy of a model that always predicts the same class; None for one class, or if unknown."""
    meta = one.runs[0].meta
    counts = np.asarray(meta.get("clients", {}).get("class_counts", []))
    known = int((counts.sum(axis=0) > 0).sum()) if counts.ndim == 2 and counts.size else 0
    classes = known or int(meta.get("model", {}).get("classes", 0))
    return 1 / classes if classes > 1 else None


def _tests(one: Series) -> int:
    """The number of test samples of a seed; those of a common test set count once."""
    run = one.runs[0]
    sizes = run.clients(one.view, "size")
    common = run.meta.get("experiment", {}).get("partition", {}).get("test") == "global"
    return int(sizes.max() if common else sizes.sum())
