"""Read a .csv file: a header line with the names of columns, commas, UTF-8."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.data.own.names import is_missing, named, toml
from fedalloy.data.own.parts import LARGEST, Cells, Held, Table, part_of
from fedalloy.data.own.roles import Layout, Roles, roles
from fedalloy.data.own.wanted import Wanted
from fedalloy.data.readers import memory
from fedalloy.errors import DataError

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_AT_ONCE = 10_000  # lines whose text is held in memory

Fault = Callable[[int, str], NoReturn]  # refuses the text of a row


def read_csv(path: Path, wanted: Wanted, layout: Layout | None) -> Held:
    """Read a .csv file; the label is by default its last column."""
    if path.stat().st_size > memory():
        raise DataError(f"{quoted(path)} has {path.stat().st_size:,} bytes, more than this machine's memory; split it")
    # Spreadsheets write a byte order mark before the first column name.
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = _rows(path, stream)
        header = _header(path, next(rows, (1, []))[1])
        chosen = roles(path, header, wanted, layout)
        table = _table(path, rows, header, chosen, wanted)
    part = part_of(table, chosen, wanted)
    return Held(part, None, Layout(chosen.inputs, f"{quoted(path)} has", chosen.labels), frozenset(header))


def _header(path: Path, row: Sequence[str]) -> list[str]:
    header = [name.strip() for name in row]
    if not any(header):
        raise DataError(f"{quoted(path)}: the first line is empty, but it must contain the column names")
    for separator, name in SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            raise DataError(
                f"{quoted(path)} uses {name} to separate columns; save it with commas, and with decimal points in "
                "numbers"
            )
    return header


def _rows(path: Path, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Return the rows and their lines, counted from 1; a quoted value may have several lines."""
    rows = csv.reader(stream, strict=True)  # otherwise a quote that is never closed swallows all rows after it
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise DataError(f"{quoted(path)}: line {rows.line_num} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{quoted(path)}: line {_undecodable(path)} is not UTF-8 text; save it as UTF-8") from error


def _undecodable(path: Path) -> int:
    """Return the first line that is not UTF-8; text is decoded in blocks, so that the reader does not know it."""
    with path.open("rb") as stream:
        for line, content in enumerate(stream, start=1):
            try:
                content.decode("utf-8")
            except UnicodeDecodeError:
                return line
    return line


def _table(
    path: Path, rows: Iterator[tuple[int, list[str]]], header: Sequence[str], chosen: Roles, wanted: Wanted
) -> Table:

    def worded() -> list[str]:
        """The inputs that should be numbers, but are mostly words: one error names all of them."""
        texts = dict(zip(header, zip(*held, strict=True), strict=True))
        return [name for name in chosen.inputs if isinstance(columns[name], _Numbers) and _is_words(texts[name])]

    columns = {
        name: _Texts() if chosen.named(name, wanted.task) else _Numbers(path, name, chosen, wanted, worded)
        for name in chosen.read
    }
    place_of = {name: place for place, name in enumerate(header)}
    places = [(place_of[name], column) for name, column in columns.items()]
    lines: list[int] = []
    held: list[list[str]] = []

    def convert() -> None:
        texts = list(zip(*held, strict=True))
        for place, column in places:
            column.add(texts[place], lines[-len(held) :])
        held.clear()

    for line, row in rows:
        if not row:  # an empty line
            continue
        if len(row) != len(header):
            raise DataError(f"{quoted(path)}: line {line} has {len(row)} columns, but the first line has {len(header)}")
        held.append(row)
        lines.append(line)
        if len(held) == _AT_ONCE:
            convert()
    if held:
        convert()
    if not lines:
        raise DataError(f"{quoted(path)} has no rows below its header line")
    done = {name: column.done() for name, column in columns.items()}
    where = np.array(lines, np.int64)
    return Table(path, len(lines), done, lambda row: f"line {where[row]}")


class _Texts:
    """A column of names, of which every different one is held once."""

    def __init__(self) -> None:
        self.codes: list[NDArray[np.int64]] = []
        self.values: dict[str, int] = {}

    def add(self, texts: Sequence[str], lines: Sequence[int]) -> None:
        values = self.values
        self.codes.append(np.array([values.setdefault(text, len(values)) for text in texts], np.int64))

    def done(self) -> Cells:
        return named(np.concatenate(self.codes), list(self.values))


class _Numbers:
    """A column of numbers; anything else is refused with its line."""

    def __init__(
        self, path: Path, name: str, chosen: Roles, wanted: Wanted, worded: Callable[[], Sequence[str]]
    ) -> None:
        self.about, self.worded = (path, name, chosen, wanted), worded
        self.values: list[NDArray[np.float64]] = []

    def add(self, texts: Sequence[str], lines: Sequence[int]) -> None:
        def refuse(row: int, text: str) -> NoReturn:
            path, name, chosen, wanted = self.about
            refuse_text(path, f"line {lines[row]}", name, text, chosen, wanted, self.worded())

        self.values.append(numbers(texts, refuse))

    def done(self) -> Cells:
        return np.concatenate(self.values)


def numbers(texts: Sequence[str], refuse: Fault) -> NDArray[np.float64]:
    """Convert the texts of a column to numbers, NaN where one is missing; true and false are 1 and 0.

    >>> def refuse(row, text): raise ValueError(text)
    >>> numbers(["1", " 2.5", "n/a", "True"], refuse).tolist()
    [1.0, 2.5, nan, 1.0]
    """
    try:
        values = np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        values = None
    if values is None or "_" in "".join(texts):  # float() accepts 1_000
        known: dict[str, float] = {}
        for row, text in enumerate(texts):
            if text not in known:
                value = _number(text)
                known[text] = refuse(row, text) if value is None else value
        values = np.array([known[text] for text in texts], np.float64)
    if (bad := np.flatnonzero(np.abs(values) > LARGEST)).size:
        refuse(int(bad[0]), texts[int(bad[0])])
    return values


def _number(text: str) -> float | None:
    folded = text.strip().casefold()
    if is_missing(text):
        return float("nan")
    if folded in ("true", "false"):
        return float(folded == "true")
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _is_words(texts: Sequence[str]) -> bool:
    """Whether most of the cells that have a value are words: a column of numbers may have a slip in some."""
    values = [_number(text) for text in texts if not is_missing(text)]
    return 2 * sum(value is None for value in values) > len(values)


def refuse_text(
    path: Path, where: str, name: str, text: str, chosen: Roles, wanted: Wanted, worded: Sequence[str] = ()
) -> NoReturn:
    """Refuse text in a column of numbers; `worded` are all columns of numbers in which there are mostly words."""
    columns = list(dict.fromkeys([name, *worded]))
    have = "the columns have" if len(columns) > 1 else "the column has"
    hint = (
        f"correct it, or write data.categorical = {toml([*wanted.categorical, *columns])} if {have} categories, or "
        f"data.drop = {toml([*wanted.drop, *columns])}"
        if name in chosen.inputs
        else 'correct it, or write data.task = "classes"'
    )
    raise DataError(
        f"{quoted(path)}: {where}, column {shown(name)} is {shown(text)}, which is not a finite number; {hint}"
    )
