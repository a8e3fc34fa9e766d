"""Columns of Arrow's types, which .parquet files and Hugging Face folders hold, read with pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.data.own.names import Named, named, toml
from fedalloy.data.own.parts import Cells, Table
from fedalloy.data.own.roles import Roles
from fedalloy.data.own.tables import numbers, refuse_text
from fedalloy.data.own.wanted import Wanted
from fedalloy.data.readers import memory
from fedalloy.errors import DataError, UsageError


def library(module: str, what: str) -> Any:
    """Import a part of pyarrow, which comes with the extra `files`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(f'{what} needs pyarrow; pip install ".[files]" in a clone of the repository') from error


def refuse_large(path: Path, size: int) -> None:
    """Refuse what would not fit into this machine's memory, before it is read."""
    if size > memory():
        raise DataError(
            f"{quoted(path)} has {size:,} bytes when unpacked, but this machine has {memory():,} bytes of memory; "
            "use fewer rows"
        )


def as_table(
    path: Path, table: Any, chosen: Roles, wanted: Wanted, classes: Mapping[str, Sequence[str]] | None = None
) -> Table:
    """Convert the chosen columns of a pyarrow table; `classes` has the names of columns that hold class numbers."""
    table.validate(full=True)  # offsets and codes in a file may point anywhere
    refuse_large(path, 8 * table.num_rows * (len(chosen.read) + 1))
    cells: dict[str, Cells] = {}
    for name in chosen.read:
        column = table.column(name).combine_chunks()
        if classes is not None and name in classes:
            cells[name] = _class_names(path, name, column, classes[name])
            if not chosen.named(name, wanted.task):
                refuse_text(path, "row 0", name, str(next(iter(classes[name]), "")), chosen, wanted)
        else:
            cells[name] = _cells(path, name, column, chosen, wanted)
    return Table(path, table.num_rows, cells, lambda row: f"row {row}")


def _cells(path: Path, name: str, column: Any, chosen: Roles, wanted: Wanted) -> Cells:
    types = library("pyarrow.types", "an Arrow table")
    kind = column.type
    if types.is_dictionary(kind):
        kind = kind.value_type
        if not (types.is_string(kind) or types.is_large_string(kind)):
            column = column.cast(kind)
    wants_names = chosen.named(name, wanted.task)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _names(column) if wants_names else _parsed(path, name, column, chosen, wanted)
    if types.is_null(kind):
        empty = np.full(len(column), -1, np.int64)
        return Named(empty, ()) if wants_names else np.full(len(column), np.nan)
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        raise DataError(
            f"{quoted(path)}: column {shown(name)} has values of type {shown(str(kind))}, which are neither numbers "
            f"nor text; convert it, or write data.drop = {toml([*wanted.drop, name])}"
        )
    if wants_names:
        return _names(column)
    if types.is_boolean(kind):
        column = column.cast("uint8")
    values: Cells = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return values


def _names(column: Any) -> Named:
    coded = column.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = coded.dictionary.to_pylist()
    if str(coded.dictionary.type) in ("float", "halffloat"):  # 0.1 in 32 bits is "0.1", not 0.10000000149011612
        values = [None if value is None else np.float32(value) for value in values]
    return named(codes, values)


def _parsed(path: Path, name: str, column: Any, chosen: Roles, wanted: Wanted) -> Cells:
    """Convert a column of text that may hold numbers."""
    coded = column.dictionary_encode()  # a long text that occurs often is held once
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)

    def refuse(place: int, text: str) -> NoReturn:
        rows = np.flatnonzero(codes == place)
        refuse_text(path, f"row {rows[0] if rows.size else '?'}", name, text, chosen, wanted)

    values = numbers([text or "" for text in coded.dictionary.to_pylist()], refuse)
    filled: Cells = np.append(values, np.nan)[codes]
    return filled


def _class_names(path: Path, name: str, column: Any, names: Sequence[str]) -> Named:
    """Convert class numbers to the names that the file gives them; -1 stands for no class."""
    codes = column.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    stray = np.flatnonzero((codes < -1) | (codes >= len(names)))
    if stray.size:
        raise DataError(
            f"{quoted(path)}: row {stray[0]}, column {shown(name)} has class {codes[stray[0]]}, but there are "
            f"{len(names)} names of classes"
        )
    return Named(codes, tuple(names))
