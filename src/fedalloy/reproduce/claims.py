"""Judge a paper's claim by recorded runs.

The unit is the seed: each difference that a claim speaks of is taken between runs of the same seed, and its 95 %
interval over at least three seeds is Student's. A claim about each of several differences holds if every interval
lies above its margin (an intersection-union test, which needs no correction). It is contradicted if any interval lies
below zero after Bonferroni's correction for their number. Otherwise it is not shown; nor is a claim at full scale whose
differences have the paper's sign but are further from the published ones than its tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedalloy.base.registry import suggest
from fedalloy.base.text import listed
from fedalloy.errors import DataError
from fedalloy.report.statistics import Interval, t_interval
from fedalloy.reproduce.catalogue import Claim
from fedalloy.reproduce.comparisons import Comparison, Place, Recorded, Spoken, compare, differences, values_at
from fedalloy.reproduce.computed import FUNCTIONS
from fedalloy.reproduce.published import published
from fedalloy.reproduce.results import TARGET, Results, digest, reached_in
from fedalloy.storage.results import Run

Verdict = Literal["reproduced", "holds at reduced scale", "not shown", "contradicted", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
LEAST_SEEDS = 3
LEVEL = 0.95
EXACT = 0.005  # how far a count may be from the published one, which is rounded
NAMED = 3  # more missing runs than that are counted, not named


@dataclass(frozen=True)
class Source:
    """A run that a judgement rests on: its folder, which ends in its key, and a digest of its records."""

    name: str
    digest: str


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim, and all that it rests on."""

    claim: Claim
    verdict: Verdict
    scale: str  # empty for a claim without runs
    round: str
    comparisons: tuple[Comparison, ...]
    seeds: tuple[int, ...]
    runs: tuple[Source, ...]
    reason: str  # one sentence with numbers


def judge(claim: Claim, results: Results | None) -> Judgement:
    """The verdict on a claim, given what is recorded of its item at a scale; None if the item has no runs.

    >>> missing = Claim("a", "table1", "4", "A beats B", "greater", left=("A",), right=("B",))
    >>> judge(missing, None).verdict, judge(missing, None).reason
    ('not tested', 'No runs are recorded.')
    """
    results = results if results is not None and results.columns else None
    if claim.kind == "computed":
        return _computed(claim, results)
    if results is None:
        return _judgement(claim, None, "not tested", "No runs are recorded.")
    spoken = differences(claim, results)
    if not spoken.differences:
        absent = f"; it is without {listed(list(spoken.absent))}" if spoken.absent else ""
        return _judgement(claim, results, "not tested", f"The {results.scale} scale has nothing to compare{absent}.")
    places = list(dict.fromkeys(place for one in spoken.differences for place in one.places))
    recorded = {place: values_at(place, claim, results) for place in places}
    figures = published(results.item)
    found = [compare(one, claim, results, recorded, figures) for one in spoken.differences]
    verdict, reason = _exact(claim, found) if claim.kind == "exact" else _compared(claim, results, found, spoken)
    if claim.kind != "exact" and (lacking := list(_lacking(recorded, claim, results))):
        verdict, reason = "not tested", _named(lacking)
    if results.scale == "smoke":
        verdict, reason = "not tested", "Records of the smoke scale show that it runs, and nothing else."
    notes = [reason, *_not_reached(places, claim, results), *_left_out(spoken, verdict)]
    return _judgement(claim, results, verdict, " ".join(notes), found, _sources(places, results))


def _judgement(
    claim: Claim,
    results: Results | None,
    verdict: Verdict,
    reason: str,
    comparisons: Sequence[Comparison] = (),
    runs: Sequence[Source] = (),
) -> Judgement:
    when = claim.round or (results.item.round if results is not None else "")
    seeds = dict.fromkeys(seed for one in comparisons for seed in one.values)
    scale = "" if results is None else results.scale
    return Judgement(claim, verdict, scale, when, tuple(comparisons), tuple(sorted(seeds)), tuple(runs), reason)


def _compared(claim: Claim, results: Results, found: Sequence[Comparison], spoken: Spoken) -> tuple[Verdict, str]:
    margin = 0.0 if claim.kind == "within" else claim.margin
    verdict, reason = _decided(found, margin)
    if verdict != "holds at reduced scale" or results.scale != "full" or spoken.absent:
        return verdict, reason
    known = [
        (one.text, one.interval.mean, one.published) for one in found if one.interval and one.published is not None
    ]
    if claim.tolerance is not None and known:
        text, ours, theirs = max(known, key=lambda one: abs(one[1] - one[2]))
        if abs(ours - theirs) > claim.tolerance:
            far = f"{text} is {digits(ours)}, but {digits(theirs)} in the paper"
            return "not shown", f"The order is the paper's, but {far}: further apart than {claim.tolerance:g}."
    return "reproduced", reason


def _decided(found: Sequence[Comparison], margin: float) -> tuple[Verdict, str]:
    """The verdict by the intervals alone, and why."""
    seeds = min(len(one.values) for one in found)
    if seeds < LEAST_SEEDS:
        few = f"{seeds} seed{'' if seeds == 1 else 's'}"
        return "not tested", f"There {'is' if seeds == 1 else 'are'} {few}; at least three are needed."
    intervals = [(one.text, one.interval) for one in found if one.interval is not None]
    level = 1 - (1 - LEVEL) / len(found)
    for one in found:
        corrected = t_interval(list(one.values.values()), level)
        if _above(min(margin, 0.0), corrected.high):
            for_many = f" (its {100 * level:.1f} % interval, for {len(found)} differences)" if len(found) > 1 else ""
            return "contradicted", f"{_written(one.text, corrected)}{for_many}: on the other side."
    bound = f"{margin:g}" if margin else "zero"
    text, lowest = min(intervals, key=lambda one: one[1].low)
    above = sum(_above(interval.low, margin) for _, interval in intervals)
    if above == len(found):
        if above == 1:
            return "holds at reduced scale", f"{_written(text, lowest)}: above {bound}."
        every = "both" if above == 2 else f"all {above}"
        told = f"The intervals of {every} differences lie above {bound}"
        return "holds at reduced scale", f"{told}; the lowest: {_written(text, lowest)}."
    if len(found) == 1:
        return "not shown", f"{_written(text, lowest)}: not above {bound}."
    told = f"The intervals of {above} of {len(found)} differences lie above {bound}"
    return "not shown", f"{told}; the lowest: {_written(text, lowest)}."


def _exact(claim: Claim, found: Sequence[Comparison]) -> tuple[Verdict, str]:
    """Counts do not depend on the scale; they are the published ones or they are not."""
    known = [one for one in found if one.published is not None]
    if not known:
        return "not tested", "The paper's text does not hold the figures."
    if without := [one.text for one in known if not one.values]:
        return "not tested", f"Missing runs: {listed(without)}."
    tolerance = EXACT if claim.tolerance is None else claim.tolerance
    for one in known:
        for value in one.values.values():
            if abs(value - (one.published or 0.0)) > tolerance * (1 + 1e-9):
                return (
                    "contradicted",
                    f"{one.text}: {digits(value)}, but {digits(one.published or 0.0)} in the paper.",
                )
    which = "The count is" if len(known) == 1 else f"All {len(known)} counts are"
    text = f"{known[0].text}: {digits(known[0].published or 0.0)}"
    return "reproduced", f"{which} the published one{'' if len(known) == 1 else 's'} within {tolerance:g}, as {text}."


def _computed(claim: Claim, results: Results | None) -> Judgement:
    if claim.function not in FUNCTIONS:
        raise DataError(f"{claim.name} names the function '{claim.function}'; {suggest(claim.function, FUNCTIONS)}")
    if results is not None and results.scale == "smoke":
        reason = "Records of the smoke scale show that it runs, and nothing else."
        return _judgement(claim, results, "not tested", reason)
    answer = FUNCTIONS[claim.function](results)
    comparisons: list[Comparison] = []
    verdict: Verdict = "not tested"
    reason = answer.text
    if answer.values is not None:
        values = {seed: value for seed, value in answer.values.items() if math.isfinite(value)}
        interval = t_interval(list(values.values())) if len(values) > 1 else None
        comparisons = [Comparison(answer.text.rstrip("."), values, interval, None)]
        wanted = answer.values if results is None else results.seeds
        if lacking := [str(seed) for seed in dict.fromkeys((*wanted, *answer.values)) if seed not in values]:
            reason = f"{answer.text.rstrip('.')}: no number for seed {listed(lacking)}."
        else:
            verdict, reason = _decided(comparisons, claim.margin)
    elif answer.holds is not None:
        verdict = "holds at reduced scale" if answer.holds else "contradicted"
    if verdict == "holds at reduced scale" and (results is None or results.scale == "full"):
        verdict = "reproduced"
    runs = [] if results is None else [_source(run) for run in results.runs.values()]
    return _judgement(claim, results, verdict, reason, comparisons, runs)


def _above(value: float, bound: float) -> bool:
    """Whether a value is above a bound by more than rounding."""
    return value > bound and not math.isclose(value, bound, rel_tol=1e-9)


def _lacking(recorded: Recorded, claim: Claim, results: Results) -> Iterator[str]:
    """Each run that the claim needs and that is not recorded, or lacks the value; rows may share a run."""
    told = set()
    for (label, column), known in recorded.items():
        row = results.item.row(label)
        for seed in (seed for seed in results.seeds if seed not in known):
            key = (column, row.method, seed, results.run(row, column, seed) and row.view)
            if key not in told:
                what = "" if key[3] is None else f" (no {claim.metric or results.item.metrics[0]})"
                yield f"{label}{f', {column}' if column else ''}, seed {seed}{what}"
            told.add(key)


def _named(lacking: Sequence[str]) -> str:
    more = len(lacking) - NAMED
    return f"Missing runs: {'; '.join(lacking[:NAMED])}{f'; and {more} more' if more > 0 else ''}."


def _not_reached(places: Sequence[Place], claim: Claim, results: Results) -> Iterator[str]:
    """A sentence if runs did not reach the target that the claim counts the rounds to."""
    target = TARGET.fullmatch(claim.metric or results.item.metrics[0])
    if target is None:
        return
    runs = [(results.item.row(label), column, seed) for label, column in places for seed in results.seeds]
    there = [(run, row.view) for row, column, seed in runs if (run := results.run(row, column, seed))]
    there = [(run, view) for run, view in there if view in run.views]
    not_reached = sum(reached_in(run, view, target[1], float(target[2])) is None for run, view in there)
    if not_reached:
        counts = "counts as twice its rounds" if not_reached == 1 else "count as twice their rounds"
        yield f"Of {len(there)} runs, {not_reached} did not reach the target and {counts}."


def _left_out(spoken: Spoken, verdict: Verdict) -> Iterator[str]:
    if spoken.absent and verdict != "not tested":
        yield f"Not run at this scale: {listed(list(spoken.absent))}."


def _sources(places: Sequence[Place], results: Results) -> list[Source]:
    found: dict[tuple[str, str, int], Run] = {}
    for label, column in places:
        row = results.item.row(label)
        for seed in results.seeds:
            if (run := results.run(row, column, seed)) is not None:
                found[column, row.method, seed] = run
    return [_source(run) for run in found.values()]


def _source(run: Run) -> Source:
    """A run by its folder; one that has none is named by its label and seed."""
    name = f"{run.label}, seed {run.seed}" if run.folder is None else run.folder.name
    return Source(name, digest(run))


def _written(text: str, interval: Interval) -> str:
    bounds = f"[{digits(interval.low)}, {digits(interval.high)}]"
    return f"{text} is {digits(interval.mean)} {bounds} over {interval.n} seeds"


def digits(value: float) -> str:
    """A number with two decimals, or with three digits if these would show nothing of it."""
    return f"{value:.2f}" if value == 0 or 0.1 <= abs(value) < 1e6 else f"{value:.3g}"
