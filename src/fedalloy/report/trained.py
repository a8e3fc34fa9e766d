"""Is a view trained well enough to be judged? Models at chance, curves that still rise, too few rounds to tell."""

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

Kind = Literal["one class", "near chance", "rising", "few rounds"]
MARKS: dict[Kind, str] = {"one class": "†", "near chance": "‡", "rising": "‡", "few rounds": ""}

NOTHING = 0.02  # of balanced accuracy above chance, at most, is no sign of learning, however small the test
LEARNED = 0.1  # of the way from chance to always right; a balanced accuracy below that is near chance
LEAST = 8  # evaluated rounds, below which nothing is said about the curve
RISE = 0.01  # of AMP, from one quarter of the rounds to the next
CLEARLY = 2  # standard errors


@dataclass(frozen=True)
class Doubt:
    """Why one view of one method is not judged."""

    kind: Kind
    name: str  # label and view as tables show them
    reason: str  # the rest of a sentence that begins with the name
    advice: str = ""

    @property
    def sentence(self) -> str:
        """The doubt in full, without a full stop."""
        return f"{self.name} {self.reason}{f'; {self.advice}' if self.advice else ''}"


Doubts = Mapping[tuple[str, str], Doubt]  # by label and view


def doubts(runs: Sequence[Run], selection: Selection = "last") -> dict[tuple[str, str], Doubt]:
    """The views that cannot be judged, and why; runs of several seeds are averaged first.

    * "one class": the balanced accuracy is at most two standard errors, and at most two points, above that of a model
      that always gives the same answer, 1 / classes.
    * "near chance": it is at most two standard errors above that, or has come less than a tenth of the way to 1.
    * "rising": the mean AMP of the last quarter of the evaluated rounds exceeds that of the quarter before by more than
      one point, by more than two standard errors of the difference as the rounds scatter, and by more than one standard
      error of the test.
    * "few rounds": there are fewer than eight evaluated rounds, too few for that.

    The last two do not apply to a method that does all its work in one round.

    >>> doubts([])
    {}
    """
    found = {(one.label, one.view): _doubt(one, selection) for one in series_of(runs)}
    return {key: doubt for key, doubt in found.items() if doubt is not None}


def told(found: Doubts) -> list[str]:
    """The sentences under a table: what its marks mean. Too few rounds are the verdict's business alone."""
    sentences: dict[tuple[Kind, str], list[Doubt]] = {}
    for doubt in found.values():
        if MARKS[doubt.kind]:
            sentences.setdefault((doubt.kind, doubt.advice), []).append(doubt)
    return [
        f"{MARKS[kind]} {listed(_together(several))}{f'; {advice}' if advice else ''}."
        for (kind, advice), several in sentences.items()
    ]


def _together(several: Sequence[Doubt]) -> list[str]:
    """Names with their reasons; those that share a reason share it here too."""
    reasons: dict[str, list[str]] = {}
    for one in several:
        reasons.setdefault(one.reason, []).append(one.name)
    return [
        f"{first}{f', like {listed(others)},' if others else ''} {reason}"
        for reason, (first, *others) in reasons.items()
    ]


def _doubt(one: Series, selection: Selection) -> Doubt | None:
    balanced, chance, tests = _balanced(one, selection), _chance(one), _tests(one)
    more = f"write rounds = {2 * max(run.rounds[-1]['round'] for run in one.runs)} or more"
    if balanced is not None and chance is not None:
        figure = f"a balanced accuracy of {number(100 * balanced, 1)} %"
        noise = CLEARLY * math.sqrt(chance * (1 - chance) / max(tests, 1))
        if balanced <= chance + min(noise, NOTHING):
            same = f"always the same answer would have {number(100 * chance, 1)} %"
            return Doubt("one class", one.name, f"tells no classes apart ({figure}, where {same})")
        if balanced <= chance + noise or balanced < chance + LEARNED * (1 - chance):
            reason = f"is not trained yet ({figure}, where chance is {number(100 * chance, 1)} %)"
            return Doubt("near chance", one.name, reason, more)
    if one.level:
        return None
    rounds, amps, _ = one.curve("amp")
    if len(rounds) < LEAST:
        several = f"{len(rounds)} round{'' if len(rounds) == 1 else 's'}"
        reason = f"was evaluated in {several}, too few to tell whether it is trained"
        return Doubt("few rounds", one.name, reason, _more_evaluations(one))
    rise = _rise(amps, tests)
    if rise is not None:
        reason = (
            f"is not trained yet (its AMP rose by {number(100 * rise, 1)} points in the last quarter of the rounds)"
        )
        return Doubt("rising", one.name, reason, more)
    return None


def _more_evaluations(one: Series) -> str:
    """What to write for enough evaluated rounds."""
    last = max(run.rounds[-1]["round"] for run in one.runs)
    if last >= LEAST:
        return f"write evaluate_every = {last // LEAST}"
    return f"write rounds = {LEAST * one.runs[0].meta.get('experiment', {}).get('evaluate_every', 1)} or more"


def _rise(curve: Floats, tests: int) -> float | None:
    """By how much the last quarter of a curve exceeds the quarter before, if that is more than noise.

    >>> _rise(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.6]), 100), _rise(np.full(8, 0.5), 100)
    (0.1, None)
    """
    size = len(curve) // 4
    before, last = curve[-2 * size : -size], curve[-size:]
    rise = round(float(last.mean() - before.mean()), 9)
    noise = math.sqrt((last.var(ddof=1) + before.var(ddof=1)) / size)
    level = float(last.mean())
    return rise if rise > max(RISE, CLEARLY * noise, math.sqrt(level * (1 - level) / max(tests, 1))) else None


def _balanced(one: Series, selection: Selection) -> float | None:
    """The balanced accuracy in the selected round, mean over seeds; None where a run has not recorded it."""
    try:
        values = [run.at(one.view, "balanced", selection) for run in one.runs]
    except UsageError:
        return None
    return float(np.mean(values)) if values and np.isfinite(values).all() else None


def _chance(one: Series) -> float | None:
    """The balanced accuracy of a model that always gives the same answer; None where there is one class, or unknown."""
    meta = one.runs[0].meta
    counts = np.asarray(meta.get("clients", {}).get("class_counts", []))
    known = int((counts.sum(axis=0) > 0).sum()) if counts.ndim == 2 and counts.size else 0
    classes = known or int(meta.get("model", {}).get("classes", 0))
    return 1 / classes if classes > 1 else None


def _tests(one: Series) -> int:
    """How many samples a seed tests on; those of a common test count once."""
    run = one.runs[0]
    sizes = run.clients(one.view, "size")
    common = run.meta.get("experiment", {}).get("partition", {}).get("test") == "global"
    return int(sizes.max() if common else sizes.sum())
