"""What one file holds, in the form that all kinds of files have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.base.text import LONGEST_NAME
from fedalloy.data.columns import MOST_CATEGORIES, Column
from fedalloy.data.own.names import Named, toml
from fedalloy.data.own.roles import Layout, Roles
from fedalloy.data.own.wanted import IMPUTE, Wanted
from fedalloy.data.samples import Array
from fedalloy.errors import DataError

LARGEST = float(np.finfo(np.float32).max)
_TRUE, _FALSE = frozenset({"1", "true", "yes"}), frozenset({"0", "false", "no"})

Cells = NDArray[np.float64] | Named  # a column: numbers, NaN where missing, or names
Place = Callable[[int], str]  # where a row is, such as "line 3"


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a table that were asked for, as they were read."""

    path: Path
    rows: int
    columns: Mapping[str, Cells]
    place: Place


@dataclass(frozen=True, eq=False)
class Part:
    """Samples of one file: inputs with their columns, targets, and clients if the file has several."""

    path: Path
    x: Array  # N x C of a table, float32; N x C x H x W of images
    y: Named | NDArray[np.float32]  # names of classes; N x T of labels and numbers
    place: Place
    columns: tuple[Column, ...] = ()
    targets: tuple[str, ...] = ()  # the names of the labels or numbers, if the file has them
    clients: Named | NDArray[np.int64] | None = None
    declared: tuple[str, ...] = ()  # the names of all classes in their order, if the file says so
    clients_ordered: bool = False  # the file has an order of its clients
    numbered: bool = False  # the file has class numbers rather than names
    said: tuple[str, ...] = field(default=())


@dataclass(frozen=True, eq=False)
class Held:
    """What one path holds: samples for training and perhaps for testing; tables tell other files their columns."""

    train: Part
    test: Part | None = None
    layout: Layout | None = None
    seen: frozenset[str] = frozenset()  # all columns of the file, dropped ones too


def part_of(table: Table, roles: Roles, wanted: Wanted, y: Named | NDArray[np.float32] | None = None) -> Part:
    """Turn a table into inputs, targets and clients; what cannot be used is refused with its place.

    `y` is given if the table has no columns for it.
    """
    if not table.rows:
        raise DataError(f"{quoted(table.path)} has no rows")
    cells = {name: table.columns[name] for name in roles.inputs}
    _refuse_infinite(table, roles.inputs)
    if wanted.impute is None:
        _refuse_missing(table, roles.inputs, wanted)
    x = np.empty((table.rows, len(cells)), np.float32)
    columns = []
    for place, (name, held) in enumerate(cells.items()):
        if isinstance(held, Named):
            _check_names(table, name, held, "category")
            if len(held.names) > MOST_CATEGORIES:
                raise DataError(
                    f"{quoted(table.path)}: column {shown(name)} has {len(held.names):,} different categories "
                    f"({MOST_CATEGORIES:,} at most); write data.drop = {toml([*wanted.drop, name])}"
                )
            x[:, place] = np.where(held.codes < 0, np.nan, held.codes)
            columns.append(Column(name, held.names))
        else:
            x[:, place] = held
            columns.append(Column(name))
    return Part(
        path=table.path,
        x=x,
        y=targets_of(table, roles, wanted) if y is None else y,
        place=table.place,
        columns=tuple(columns),
        targets=roles.labels,
        clients=clients_of(table, roles),
        said=tuple(_ids(table, roles, wanted)),
    )


def _refuse_infinite(table: Table, names: tuple[str, ...]) -> None:
    for name in names:
        held = table.columns[name]
        if not isinstance(held, Named) and (bad := np.flatnonzero(np.abs(held) > LARGEST)).size:
            raise DataError(
                f"{quoted(table.path)}: {table.place(int(bad[0]))}, column {shown(name)} is {held[bad[0]]}, which is "
                "not a finite number of 32 bits; correct it, or leave it empty"
            )


def _missing(held: Cells) -> NDArray[np.bool_]:
    return held.codes < 0 if isinstance(held, Named) else np.isnan(held)


def _refuse_missing(table: Table, names: tuple[str, ...], wanted: Wanted) -> None:
    """Refuse the first missing value of an input."""
    first = {name: np.flatnonzero(_missing(table.columns[name])) for name in names}
    found = {name: int(rows[0]) for name, rows in first.items() if rows.size}
    if found:
        name = min(found, key=lambda name: found[name])
        choice = " or ".join(f'"{way}"' for way in IMPUTE)
        raise DataError(
            f"{quoted(table.path)}: {table.place(found[name])}, column {shown(name)} is empty, one of "
            f"{sum(rows.size for rows in first.values()):,} missing values; fill it in, write data.impute = {choice}, "
            f"or data.drop = {toml([*wanted.drop, name])}"
        )


def targets_of(table: Table, roles: Roles, wanted: Wanted) -> Named | NDArray[np.float32]:
    """Return what is to be predicted: the names of classes, or rows of labels or numbers; nothing if not asked."""
    if not wanted.labelled:
        return np.zeros((table.rows, 0), np.float32)
    _refuse_infinite(table, roles.labels)
    for name in roles.labels:
        held = table.columns[name]
        if (rows := np.flatnonzero(_missing(held))).size:
            raise DataError(
                f"{quoted(table.path)}: {table.place(int(rows[0]))} has no label, column {shown(name)} is empty there; "
                "fill it in or remove the row"
            )
        if isinstance(held, Named):
            _check_names(table, name, held, "label")
    if wanted.task == "classes":
        only = table.columns[roles.labels[0]]
        assert isinstance(only, Named)
        return only
    return np.stack([_flags_or_numbers(table, name) for name in roles.labels], axis=1)


def _flags_or_numbers(table: Table, name: str) -> NDArray[np.float32]:
    held = table.columns[name]
    if not isinstance(held, Named):
        return held.astype(np.float32)
    for code, value in enumerate(held.names):
        if value.casefold() not in _TRUE | _FALSE:
            row = int(np.flatnonzero(held.codes == code)[0])
            raise DataError(
                f"{quoted(table.path)}: {table.place(row)}, column {shown(name)} is {shown(value)}, but a label is 0 "
                "or 1, false or true, no or yes"
            )
    return np.array([value.casefold() in _TRUE for value in held.names], np.float32)[held.codes]


def clients_of(table: Table, roles: Roles) -> Named | None:
    """Return the client of each row, if a column names it."""
    if roles.client is None:
        return None
    held = table.columns[roles.client]
    assert isinstance(held, Named)
    if (rows := np.flatnonzero(held.codes < 0)).size:
        raise DataError(
            f"{quoted(table.path)}: {table.place(int(rows[0]))} has no client, column {shown(roles.client)} is empty "
            "there; fill it in or remove the row"
        )
    _check_names(table, roles.client, held, "client")
    return held


def _check_names(table: Table, column: str, held: Named, what: str) -> None:
    for code, name in enumerate(held.names):
        if len(name) > LONGEST_NAME or not name.isprintable():
            row = int(np.flatnonzero(held.codes == code)[0])
            raise DataError(
                f"{quoted(table.path)}: {table.place(row)}, column {shown(column)} is {shown(name)}; the name of a "
                f"{what} has at most {LONGEST_NAME} printable characters"
            )


def _ids(table: Table, roles: Roles, wanted: Wanted) -> list[str]:
    """Say which inputs look like row numbers: a network would learn them by heart."""
    said = []
    for name in roles.inputs:
        held, plain = table.columns[name], name.casefold().replace(" ", "_").replace("-", "_")
        like = plain in ("id", "index", "idx", "row", "rowid", "nr") or plain.endswith(("_id", "_index", "_nr"))
        if isinstance(held, Named) or not (like or plain.startswith("unnamed:")) or table.rows < 2:
            continue
        if np.array_equal(held, np.floor(held)) and len(np.unique(held)) == table.rows:
            said.append(
                f"column {shown(name)} looks like row numbers, from which nothing general can be learned; "
                f"write data.drop = {toml([*wanted.drop, name])}"
            )
    return said
