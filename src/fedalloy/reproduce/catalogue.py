"""What the papers report and claim, as data: one TOML file a paper under `papers/`.

An item is a table or a figure. It says which rows the paper prints, which metric in which round, and with which
experiment it is made at each scale. A claim is a sentence of the paper as a predicate over the runs of one item.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from fedalloy.base.registry import suggest
from fedalloy.errors import DataError, UsageError

PAPERS = Path(__file__).parent / "papers"
SCALES = ("full", "cpu", "smoke")
ScaleName = Literal["full", "cpu", "smoke"]
CLOSED = ConfigDict(extra="forbid")


@checked(config=CLOSED, frozen=True)
class Row:
    """A row of a table, or a line of a figure: a method of the experiment in one of its views."""

    label: str
    method: str  # its key under [methods]
    view: str
    control: bool = False  # a row that the paper does not have


@checked(config=CLOSED, frozen=True)
class Scale:
    """How an item is made at one scale: an experiment, what is changed in it, and its columns."""

    experiment: str = ""  # a file of `fedalloy/experiments`; empty: what the form computes needs no runs
    set: dict[str, Any] | None = None  # dotted keys
    axes: tuple[dict[str, Any], ...] | None = None  # instead of the experiment's; an empty list: none
    columns: tuple[str, ...] = ()  # the cells that are run, by name; empty: all of them
    rows: tuple[str, ...] = ()  # the rows that are run, by label; empty: all of them
    seeds: tuple[int, ...] = (0, 1, 2)
    stands_for: dict[str, str] | None = None  # the paper's column, for a column of ours that has another name
    differs: str = ""  # how it differs from the paper, in plain words
    hours: float | None = None  # of two cores, as estimated


@checked(config=CLOSED, frozen=True)
class PublishedColumn:
    """What the paper prints in one column: for each row its label and one figure for each metric, or "" if unknown."""

    column: str
    rows: tuple[tuple[str, ...], ...]


@checked(config=CLOSED, frozen=True)
class Item:
    """A table or a figure of a paper."""

    id: str  # "table2", "fig5"
    title: str
    section: str
    form: str  # the function that makes it, by name; see `fedalloy.reproduce.forms`
    full: Scale
    cpu: Scale
    smoke: Scale
    rows: tuple[Row, ...] = ()
    metrics: tuple[str, ...] = ("test",)
    round: str = "last"
    note: str = ""  # what a reader must know, such as figures that the paper's text does not hold
    published: tuple[PublishedColumn, ...] = ()
    options: dict[str, Any] | None = None  # of the form
    paper: str = ""

    @property
    def name(self) -> str:
        """As the paper writes it: "Table 2", "Table VIII", "Fig. 5"; other items have none."""
        for start, word in (("table", "Table"), ("fig", "Fig.")):
            if self.id.startswith(start):
                number = self.id.removeprefix(start)
                return f"{word} {number.upper() if set(number) <= set('ivx') else number}"
        return ""

    @property
    def heading(self) -> str:
        """Its name and title."""
        return ": ".join(filter(None, (self.name, self.title)))

    def scale(self, name: str) -> Scale:
        """The item at a scale."""
        return cast(Scale, getattr(self, name))

    def row(self, label: str) -> Row:
        """A row by its label."""
        for row in self.rows:
            if row.label == label:
                return row
        raise DataError(f"{self.paper} {self.id} has no row '{label}'; {suggest(label, [r.label for r in self.rows])}")


@checked(config=CLOSED, frozen=True)
class Claim:
    """A finding that a paper states, as a predicate over records; `fedalloy.reproduce.claims` judges it."""

    id: str
    item: str  # whose runs it rests on
    section: str
    says: str  # the claim in our words
    kind: Literal["greater", "less", "wider", "within", "exact", "computed"]
    left: tuple[str, ...] = ()  # rows
    right: tuple[str, ...] = ()  # rows
    columns: tuple[str, ...] = ()  # empty: all of the scale; cells are named by the paper's column
    right_columns: tuple[str, ...] = ()  # if the right side is of other columns than the left
    over: Literal["each", "mean"] = "each"  # whether it is claimed in each column, or of their mean
    metric: str = ""  # by default the item's first
    round: str = ""  # by default the item's
    margin: float = 0.0  # the difference must exceed it, in the metric's own unit as it is printed (points for %)
    tolerance: float | None = None  # how far ours may be from the published difference and still be "reproduced"
    function: str = ""  # of a computed claim
    ours: bool = False  # a control that the paper leaves out, not a claim of the paper
    paper_says: str = ""  # the paper's own evidence, or what contradicts it there
    ambiguous: tuple[str, ...] = ()  # settings that the paper leaves open, and what each does to the claim
    paper: str = ""

    @property
    def name(self) -> str:
        """Its id among all papers' claims: "kdia/teacher-over-student"."""
        return f"{self.paper}/{self.id}"


@checked(config=CLOSED, frozen=True)
class Paper:
    """A paper: its name, reference, items and claims."""

    id: str
    name: str
    title: str
    authors: str
    venue: str
    items: tuple[Item, ...]
    claims: tuple[Claim, ...]

    def item(self, name: str) -> Item:
        """An item by its id."""
        for item in self.items:
            if item.id == name.lower():
                return item
        known = [item.id for item in self.items]
        raise UsageError(f"{self.name} has no '{name}'; {suggest(name, known)}")


@functools.cache
def papers() -> Mapping[str, Paper]:
    """All papers by id."""
    return {file.stem: read_paper(file) for file in sorted(PAPERS.glob("*.toml"))}


def paper(name: str) -> Paper:
    """A paper by its id.

    >>> paper("kdai")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: there is no paper 'kdai'; did you mean 'kdia'?
    """
    if name.lower() not in papers():
        raise UsageError(f"there is no paper '{name}'; {suggest(name, list(papers()))}")
    return papers()[name.lower()]


def read_paper(file: Path) -> Paper:
    """A paper's file, with every part checked."""
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    for part in (*values.get("items", ()), *values.get("claims", ())):
        part["paper"] = file.stem
    try:
        found = TypeAdapter(Paper).validate_python({"id": file.stem, "claims": (), "items": (), **values})
    except ValidationError as error:
        raise DataError(f"{file.name}: {error}") from error
    _check(found)
    return found


def _check(found: Paper) -> None:
    for kind, parts in (("item", found.items), ("claim", found.claims)):
        ids = [part.id for part in cast("Sequence[Item | Claim]", parts)]
        if twice := [name for name in ids if ids.count(name) > 1]:
            raise DataError(f"{found.id}: the {kind} '{twice[0]}' is there twice")
    for claim in found.claims:
        item = found.item(claim.item)
        for label in (*claim.left, *claim.right):
            item.row(label)
        if (claim.kind == "computed") != bool(claim.function):
            raise DataError(f"{claim.name}: a computed claim names its function, and no other does")


@dataclass(frozen=True)
class Published:
    """A published figure: its value and its error, if it has one, in the unit that is printed."""

    text: str
    value: float
    error: float | None

    @staticmethod
    def of(text: str) -> Published | None:
        """Read it; None if the paper's text does not hold it.

        >>> Published.of("54.11 ± 1.42"), Published.of(""), Published.of("> 60")
        (Published(text='54.11 ± 1.42', value=54.11, error=1.42), None, None)
        """
        value, _, error = text.partition("±")
        try:
            return Published(text, float(value), float(error) if error.strip() else None)
        except ValueError:
            return None
