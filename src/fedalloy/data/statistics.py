"""What clients tell about their columns before the first round, as text that can be sent, and what it costs.

A summary comes from another machine, so it is checked against what its sender could truthfully say.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalloy.base.checked import shown
from fedalloy.base.text import client_label
from fedalloy.data.columns import Column, ColumnSummary, Preparation, PreparedColumn, Recipe, Summary, agree
from fedalloy.data.sketch import LAST_BIN
from fedalloy.errors import DataError

MOST_ROWS = 1 << 40
MOST_CATEGORIES = 1000  # of one column
LONGEST_CATEGORY = 100  # characters
LARGEST = 1e70  # of a sum; float32 values, squared, times the number of rows, stay below
LONGEST = 1 << 22  # characters of a summary or a preparation
APART = 1e4  # times the size of the others' values: another unit, or a lie that would flatten everyone's inputs


@dataclass(frozen=True)
class Statistics:
    """How all clients prepare their rows, and how many bytes it took to agree on it."""

    preparation: Preparation
    up: int = 0
    down: int = 0

    @property
    def bytes(self) -> dict[str, dict[str, int]]:
        """The bytes as a round's record has them; empty if nobody was asked."""
        return {way: {"statistics": n} for way, n in (("down", self.down), ("up", self.up)) if n}


def gathered(told: Sequence[Summary], columns: Sequence[Column], recipe: Recipe) -> Statistics:
    """Agree on a preparation and count what was sent: a summary from each client, the preparation to each.

    >>> age = ColumnSummary(2, 80.0, 3400.0)
    >>> found = gathered([Summary(2, {"age": age})], [Column("age")], Recipe())
    >>> found.preparation.columns[0].mean, found.up == len(summary_text(Summary(2, {"age": age})))
    (40.0, True)
    """
    ready = agree(told, columns, recipe)
    if not recipe.asks(columns):
        return Statistics(ready)
    up = sum(len(summary_text(one).encode()) for one in told)
    return Statistics(ready, up, len(told) * len(preparation_text(ready).encode()))


def refuse_apart(told: Mapping[int, Summary], columns: Sequence[Column], names: Sequence[str] = ()) -> None:
    """Refuse a client whose values are so much larger than the others' that theirs would all become one input.

    The size is the root of the mean square; the others' is their median, so there must be two of them.

    >>> told = {k: Summary(9, {"age": ColumnSummary(9, 9.0 * n, 9.0 * n * n)}) for k, n in enumerate((50, 60, 1e9))}
    >>> refuse_apart(told, [Column("age")], ["north", "south", "west"])
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: the values of 'age' at west are 18181818 times as large as at the other clients; correct the unit or the values, or write data.drop = ['age']
    """
    for column in columns:
        said = {k: one.columns[column.name] for k, one in told.items() if column.name in one.columns}
        sizes = {k: math.sqrt(one.squares / one.present) for k, one in said.items() if one.present}
        for client, size in sizes.items():
            others = [other for k, other in sizes.items() if k != client]
            if len(others) > 1 and size > APART * (usual := float(np.median(others))) > 0:
                raise DataError(
                    f"the values of {shown(column.name)} at {client_label(names, client)} are {size / usual:.0f} times "
                    "as large as at the other clients; correct the unit or the values, or write "
                    f"data.drop = [{column.name!r}]"
                )


def summary_text(summary: Summary) -> str:
    """A summary as JSON, without what was not asked."""
    columns = {name: _filled(one) for name, one in summary.columns.items()}
    return json.dumps({"rows": summary.rows, "columns": columns}, separators=(",", ":"))


def read_summary(text: str, columns: Sequence[Column], values_per_row: int = 1) -> Summary:
    """Read a client's summary; one that cannot be true is refused with the column and the number.

    A channel of an image has as many values in a row as the image has pixels.

    >>> read_summary('{"rows": 2, "columns": {"age": {"present": 3}}}', [Column("age")])
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: its statistics are refused: age.present = 3 must be a whole number from 0 to 2
    """
    found = _table(_json(text), "its statistics")
    rows = _whole(found.get("rows"), MOST_ROWS, "rows", least=1)
    told = _table(found.get("columns"), "columns")
    if list(told) != [column.name for column in columns]:
        raise _refused(f"the columns are {shown(list(told))}, not {shown([column.name for column in columns])}")
    most = rows * values_per_row
    return Summary(rows, {column.name: _column(told[column.name], column, most) for column in columns})


def _column(value: Any, column: Column, most: int) -> ColumnSummary:
    name, told = column.name, _table(value, column.name)
    if strange := told.keys() - {field.name for field in dataclasses.fields(ColumnSummary)}:
        raise _refused(f"{name} has an unknown entry {shown(min(strange))}")
    present = _whole(told.get("present"), most, f"{name}.present")
    total, squares = (_real(told.get(key, 0.0), f"{name}.{key}") for key in ("total", "squares"))
    if squares < 0 or total * total > present * squares * (1 + 1e-6):
        raise _refused(f"{name} has a sum of {total:g} and squares of {squares:g}, which no {present} numbers have")
    histogram = {
        _bin(place, name): _whole(n, present, f"{name}.histogram", least=1)
        for place, n in _table(told.get("histogram", {}), f"{name}.histogram").items()
    }
    values = _table(told.get("values", {}), f"{name}.values")
    if len(values) > MOST_CATEGORIES:
        raise _refused(f"{name} has {len(values):,} different values; at most {MOST_CATEGORIES:,} are allowed")
    for value_name in values:
        if not value_name.isprintable() or not 0 < len(value_name) <= LONGEST_CATEGORY:
            raise _refused(f"{name} has a value that is not 1 to {LONGEST_CATEGORY} printable characters")
        if column.categories is None:
            _real(_number(value_name), f"{name}.values")
    often = {key: _whole(n, present, f"{name}.values") for key, n in values.items()}
    if max(sum(histogram.values()), sum(often.values())) > present:
        raise _refused(f"{name} counts more values than the {present} that it has")
    return ColumnSummary(present, total, squares, histogram, often)


def preparation_text(preparation: Preparation) -> str:
    """A preparation as JSON."""
    return json.dumps([_filled(column) for column in preparation.columns], separators=(",", ":"))


def read_preparation(text: str, columns: Sequence[Column]) -> Preparation:
    """Read a preparation for these columns, as another machine or a run's file has it.

    >>> read_preparation('[{"name":"age","mean":40.0,"std":0.0}]', [Column("age")])
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: its statistics are refused: age.std = 0.0 must be greater than 0
    """
    found = _json(text)
    if not isinstance(found, list) or [_name(one) for one in found] != [column.name for column in columns]:
        raise _refused(f"they are not about the columns {shown([column.name for column in columns])}")
    return Preparation(tuple(_prepared(one, column) for one, column in zip(found, columns, strict=True)))


def table_inputs(rows: Sequence[Mapping[str, Any]], columns: str) -> Tensor:
    """Turn rows of a table into a network's inputs, with the `columns` that an exported model was trained with.

    A row has a value for each column by its name; None, an empty text and a missing key are missing values.

    >>> columns = '[{"name":"age","mean":50.0,"std":10.0,"fill":50.0},{"name":"sex","categories":["f","m"]}]'
    >>> table_inputs([{"age": 60, "sex": "m"}, {"sex": "f"}], columns)[:, :, 0, 0].tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    told = [one for one in _json(columns) if isinstance(one, dict)]
    named = [Column(str(one.get("name")), () if "categories" in one else None) for one in told]
    ready = read_preparation(columns, named)
    x = np.full((len(rows), len(named)), np.nan, np.float32)
    coded = []
    for place, column in enumerate(ready.columns):
        cells = [row.get(column.name) for row in rows]
        texts = [None if cell in (None, "") else str(cell) for cell in cells]
        own = Column(column.name, None if column.categories is None else tuple(dict.fromkeys(filter(None, texts))))
        codes = {name: float(code) for code, name in enumerate(own.categories or ())}
        numbers = [None if text is None else codes.get(text, _number(text)) for text in texts]
        x[:, place] = [math.nan if number is None else number for number in numbers]
        coded.append(own)
    return torch.from_numpy(ready.apply(x, coded))[:, :, None, None]


def _prepared(told: Mapping[str, Any], column: Column) -> PreparedColumn:
    name = column.name
    if strange := told.keys() - {field.name for field in dataclasses.fields(PreparedColumn)}:
        raise _refused(f"{name} has an unknown entry {shown(min(strange))}")
    categories, fill = told.get("categories"), told.get("fill")
    if (categories is None) != (column.categories is None):
        raise _refused(f"{name} must be {'categories' if column.categories is not None else 'numbers'}")
    if categories is None:
        mean, std = _real(told.get("mean", 0.0), f"{name}.mean"), _real(told.get("std", 1.0), f"{name}.std")
        if std <= 0:
            raise _refused(f"{name}.std = {std} must be greater than 0")
        return PreparedColumn(name, mean, std, None if fill is None else _real(fill, f"{name}.fill"))
    if not isinstance(categories, list) or not 0 < len(categories) <= MOST_CATEGORIES:
        raise _refused(f"{name} must have 1 to {MOST_CATEGORIES:,} categories")
    if not all(isinstance(one, str) and len(one) <= LONGEST_CATEGORY for one in (*categories, fill or "")):
        raise _refused(f"{name} has a category that is not a text of at most {LONGEST_CATEGORY} characters")
    if len(set(categories)) < len(categories):
        raise _refused(f"{name} has a category twice")
    return PreparedColumn(name, fill=fill, categories=tuple(categories))


def _filled(one: ColumnSummary | PreparedColumn) -> dict[str, Any]:
    """The entries of a dataclass that differ from their defaults; the name of a column always does."""
    entries = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    usual = {field.name: field.default for field in dataclasses.fields(one)}
    return {key: value for key, value in entries.items() if value != usual[key] and value != {}}


def _name(value: Any) -> Any:
    return value.get("name") if isinstance(value, dict) else None


def _json(text: str) -> Any:
    try:
        if len(text) > LONGEST:
            raise _refused(f"they have {len(text):,} characters; at most {LONGEST:,} are allowed")
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _refused("they are not valid JSON") from error


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refused(f"{what} must be a table")
    return value


def _whole(value: Any, most: int, what: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _refused(f"{what} = {shown(value)} must be a whole number from {least} to {most}")
    return value


def _real(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise _refused(f"{what} = {shown(value)} must be a finite number")
    return float(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _bin(place: str, name: str) -> int:
    number = _number(place)
    if not number.is_integer() or abs(number) > LAST_BIN:
        raise _refused(f"{name}.histogram has no bin {shown(place)}")
    return int(number)


def _refused(why: str) -> DataError:
    return DataError(f"its statistics are refused: {why}")
