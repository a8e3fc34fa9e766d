"""From a claim to numbers: which differences it speaks of, what each is for every seed, and what the paper prints.

Every difference is turned so that a positive one supports the claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from fedalloy.base.text import number
from fedalloy.report.statistics import Interval, rounded, t_interval
from fedalloy.reproduce.catalogue import Claim, Item
from fedalloy.reproduce.plan import columns, paper_column
from fedalloy.reproduce.published import Figures, figure_of, same_round
from fedalloy.reproduce.results import Results

NAMED = 3  # more columns than that are counted, not named
Place = tuple[str, str]  # a row's label and a column of ours
Values = Mapping[Place, float]
Recorded = Mapping[Place, Mapping[int, float]]  # by place and seed


@dataclass(frozen=True)
class Comparison:
    """One difference of a claim: in words, by seed, with its interval over seeds, and as published."""

    text: str  # such as "KDIA (teacher) - MOON, beta 0.1"
    values: Mapping[int, float]
    interval: Interval | None  # None for fewer than two seeds, and for exact counts
    published: float | None  # the same from the paper's figures; None if its text does not hold them


@dataclass(frozen=True)
class Difference:
    """One difference before any number is known: its text, the places it reads, and how they combine."""

    text: str
    places: tuple[Place, ...]
    of: Callable[[Values], float]


@dataclass(frozen=True)
class Spoken:
    """The differences that a claim speaks of at a scale, and the rows and columns that the scale leaves out."""

    differences: tuple[Difference, ...]
    absent: tuple[str, ...]


def differences(claim: Claim, results: Results) -> Spoken:
    """The differences that a claim speaks of, among the rows and columns that are run at the scale."""
    planned = results.item.scale(results.scale).rows
    lacking = [row for row in dict.fromkeys((*claim.left, *claim.right)) if planned and row not in planned]
    named = dict.fromkeys((*claim.columns, *claim.right_columns))
    absent = [f"the row '{row}'" for row in lacking]
    absent += _absent([*named] if claim.columns else [*_every_column(results.item), *named], results)
    left, right = ([row for row in side if row not in lacking] for side in (claim.left, claim.right))
    make = {"wider": _wider, "within": _within, "exact": _single}.get(claim.kind, _greater)
    return Spoken(tuple(make(claim, results, left, right)), tuple(absent))


def _every_column(item: Item) -> list[str]:
    """The paper's columns, as far as the full scale has them."""
    return [paper_column(item, "full", cell.name) for cell in columns(item, "full")] if item.full.experiment else []


def _absent(names: Sequence[str], results: Results) -> list[str]:
    """The columns that are not run; many are counted, not named."""
    lacking = [name for name in names if not our_columns(name, results)]
    if len(lacking) > NAMED:
        return [f"{len(lacking)} of {len(names)} columns"]
    return [f"the column '{name}'" for name in lacking]


def our_columns(name: str, results: Results) -> list[str]:
    """The columns that a claim means by a name, which is the paper's or ours."""
    return [ours for ours in results.columns if name in (ours, results.paper_column(ours))]


def compare(difference: Difference, claim: Claim, results: Results, recorded: Recorded, figures: Figures) -> Comparison:
    """A difference of the recorded values, for the seeds that have all of it, beside the published one."""
    here = {place: recorded[place] for place in difference.places}
    seeds = [seed for seed in results.seeds if all(seed in values for values in here.values())]
    values = {seed: difference.of({place: found[seed] for place, found in here.items()}) for seed in seeds}
    metric = claim.metric or results.item.metrics[0]
    there = figures if same_round(claim.round or results.item.round, results.item.round) else {}
    printed = {place: figure_of(there, place[0], results.paper_column(place[1]), metric) for place in here}
    known = {place: figure for place, figure in printed.items() if figure is not None}
    interval = t_interval(list(values.values())) if len(values) > 1 and claim.kind != "exact" else None
    return Comparison(difference.text, values, interval, difference.of(known) if len(known) == len(printed) else None)


def values_at(place: Place, claim: Claim, results: Results) -> dict[int, float]:
    """The claim's metric at one place by seed; what is not finite is left out."""
    label, column = place
    found = results.values(results.item.row(label), column, claim.metric, claim.round)
    return {seed: value for seed, value in found.items() if math.isfinite(value)}


def _greater(claim: Claim, results: Results, left: Sequence[str], right: Sequence[str]) -> Iterator[Difference]:
    sign = -1.0 if claim.kind == "less" else 1.0
    for a, b in _row_pairs(claim, left, right):
        for ours, other in _column_pairs(claim, results):
            first, second = _places(a, ours), _places(b, other)
            if not claim.right_columns:
                names = (a, b) if sign > 0 else (b, a)
                text = f"{names[0]} - {names[1]}{_in(ours)}"
            else:
                sides = (f"{a}{_at(ours)}", f"{b}{_at(other)}")
                text = f"{sides[0]} - {sides[1]}" if sign > 0 else f"{sides[1]} - {sides[0]}"
            yield Difference(text, (*first, *second), _Sum(((sign, first), (-sign, second))))


def _wider(claim: Claim, results: Results, left: Sequence[str], right: Sequence[str]) -> Iterator[Difference]:
    for a, b in product(left, right):
        for ours, other in _column_pairs(claim, results):
            parts = (_places(a, ours), _places(b, ours), _places(a, other), _places(b, other))
            text = f"({a} - {b}{_in(ours)}) - ({a} - {b}{_in(other)})"
            terms = tuple(zip((1.0, -1.0, -1.0, 1.0), parts, strict=True))
            yield Difference(text, tuple(place for part in parts for place in part), _Sum(terms))


def _within(claim: Claim, results: Results, left: Sequence[str], _: Sequence[str]) -> Iterator[Difference]:
    here = _columns(claim.columns, results)
    margin = number(claim.margin, 2)
    if len(claim.columns or here) == 1 and not claim.right:
        if len(left) > 1 and here:
            text = f"{margin} - spread of {len(left)} rows{_in(here)}"
            yield Difference(text, tuple((row, here[0]) for row in left), _Room(claim.margin))
    elif len(here) > 1:
        for row in left:
            yield Difference(f"{margin} - spread of {row}{_over(here)}", _places(row, here), _Room(claim.margin))


def _single(claim: Claim, results: Results, left: Sequence[str], _: Sequence[str]) -> Iterator[Difference]:
    for row, column in product(left, _columns(claim.columns, results)):
        yield Difference(f"{row}{_in([column])}", ((row, column),), _Sum(((1.0, ((row, column),)),)))


@dataclass(frozen=True)
class _Sum:
    """Means over places, added with their signs."""

    terms: tuple[tuple[float, tuple[Place, ...]], ...]

    def __call__(self, values: Values) -> float:
        parts = [sign * fmean(values[place] for place in places) for sign, places in self.terms]
        return rounded(math.fsum(parts), *parts)


@dataclass(frozen=True)
class _Room:
    """How far the spread of all places stays below a margin."""

    margin: float

    def __call__(self, values: Values) -> float:
        high, low = max(values.values()), min(values.values())
        return rounded(self.margin - (high - low), self.margin, high, low)


def _row_pairs(claim: Claim, left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    """Every row on the left with every one on the right; each with itself if only the columns differ."""
    if claim.right_columns and (not claim.right or claim.right == claim.left):
        return [(row, row) for row in left]
    return list(product(left, right))


def _column_pairs(claim: Claim, results: Results) -> list[tuple[list[str], list[str]]]:
    """The columns of the left and of the right side, for each difference.

    As many right columns as left ones are taken pair by pair; otherwise each with each.
    """
    if not claim.right_columns:
        here = _columns(claim.columns, results)
        return _filled([(here, here)] if claim.over == "mean" else [([column], [column]) for column in here])
    names = claim.columns or results.columns
    together = len(names) == len(claim.right_columns)
    if claim.over == "mean":
        sides = _complete(names, claim.right_columns, results) if together else (names, claim.right_columns)
        return _filled([(_columns(sides[0], results), _columns(sides[1], results))]) if all(sides) else []
    pairs = zip(names, claim.right_columns, strict=True) if together else product(names, claim.right_columns)
    both = [(our_columns(a, results), our_columns(b, results)) for a, b in pairs]
    return [([a], [b]) for ours, others in both for a, b in product(ours, others) if a != b]


def _complete(left: Sequence[str], right: Sequence[str], results: Results) -> tuple[list[str], list[str]]:
    """The names of both sides whose partner on the other side is run as well."""
    pairs = [pair for pair in zip(left, right, strict=True) if all(our_columns(name, results) for name in pair)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _filled(pairs: Sequence[tuple[list[str], list[str]]]) -> list[tuple[list[str], list[str]]]:
    return [pair for pair in pairs if all(pair)]


def _columns(names: Sequence[str], results: Results) -> list[str]:
    if not names:
        return list(results.columns)
    return list(dict.fromkeys(ours for name in names for ours in our_columns(name, results)))


def _places(row: str, columns: Sequence[str]) -> tuple[Place, ...]:
    return tuple((row, column) for column in columns)


def _in(columns: Sequence[str]) -> str:
    """The columns at the end of a difference: one by its name, several by their number."""
    if len(columns) == 1:
        return f", {columns[0]}" if columns[0] else ""
    return f", mean of {len(columns)} columns"


def _at(columns: Sequence[str]) -> str:
    return f" ({columns[0]})" if len(columns) == 1 else f" (mean of {len(columns)} columns)"


def _over(columns: Sequence[str]) -> str:
    return f" over {len(columns)} columns"
