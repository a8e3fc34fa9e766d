"""What clients tell about their columns before the first round, as text that can be sent, and what it costs.

A summary comes from another machine, so it is checked against what its sender could truthfully say.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalloy.base.checked import shown
from fedalloy.base.text import client_label
from fedalloy.data.columns import (
    LEAST_STD,
    LEAST_VALUES,
    MOST_CATEGORIES,
    MOST_VALUES,
    NONE,
    Column,
    ColumnSummary,
    Preparation,
    PreparedColumn,
    Recipe,
    Summary,
    agree,
    written,
)
from fedalloy.data.own.names import is_number
from fedalloy.data.own.names import written as written_name
from fedalloy.data.sketch import LAST_BIN, ends
from fedalloy.errors import DataError

MOST_ROWS = 1 << 40
LONGEST_CATEGORY = 100  # characters
LARGEST = float(np.finfo(np.float32).max) * (1 + 1e-9)  # of a value; a mean may be larger by rounding
CATEGORY = f"1 to {LONGEST_CATEGORY} printable characters"
LONGEST = 1 << 22  # characters of a summary or a preparation
ROUNDING = 1e-6  # of sums
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

    The size is the root of the mean square, of the values that are counted if the experiment gives mean and deviation;
    the others' is their median, so there must be two of them.

    >>> told = {k: Summary(9, {"age": ColumnSummary(9, 9 * n, 9 * n * n)}) for k, n in enumerate((50.0, 60.0, 1e9))}
    >>> refuse_apart(told, [Column("age")], ["north", "south", "west"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: the values of 'age' at west are 18181818 times as large as at the other clients; ...
    """
    for column in columns:
        if column.categories is None:
            said = {k: one.columns[column.name] for k, one in told.items() if column.name in one.columns}
            _refuse_apart(column.name, said, names, f"data.drop = [{column.name!r}]")
    for target in next(iter(told.values())).targets if told else ():
        said = {k: one.targets[target] for k, one in told.items()}
        _refuse_apart(target, said, names, "constants: data.label_mean and data.label_std")


def _refuse_apart(name: str, said: Mapping[int, ColumnSummary], names: Sequence[str], instead: str) -> None:
    sizes = {k: _size(one) for k, one in said.items() if one.present}
    for client, size in sizes.items():
        others = [other for k, other in sizes.items() if k != client]
        if len(others) > 1 and size > APART * (usual := float(np.median(others))) > 0:
            raise DataError(
                f"the values of {shown(name)} at {client_label(names, client)} are {size / usual:.0f} times as large "
                f"as at the other clients; correct the unit or the values, or write {instead}"
            )


def _size(one: ColumnSummary) -> float:
    counted = math.fsum(n * max(-low, high) ** 2 for (low, high), n in _spans(one))
    return math.sqrt((one.squares or counted) / one.present)


def summary_text(summary: Summary) -> str:
    """A summary as JSON, without what was not asked."""
    columns, targets = (
        {name: _filled(one) for name, one in told.items()} for told in (summary.columns, summary.targets)
    )
    told = {"rows": summary.rows, "columns": columns, **({"targets": targets} if targets else {})}
    return json.dumps(told, separators=(",", ":"))


def read_summary(text: str, columns: Sequence[Column], recipe: Recipe, values_per_row: int = 1) -> Summary:
    """Read a client's summary; one that cannot be true is refused with the column and the number.

    The recipe says what was asked; more is refused too. A channel of an image has as many values in a row as the image
    has pixels.

    >>> read_summary('{"rows": 2, "columns": {"age": {"present": 3}}}', [Column("age")], Recipe("mean"))
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: its statistics are refused: age.present = 3 must be a whole number from 0 to 2
    """
    open_targets = recipe.of_targets.asks_inputs(recipe.target_columns)
    found = _entries(_json(text), {"rows", "columns", *(["targets"] if open_targets else [])}, "its statistics")
    rows = _whole(found.get("rows"), MOST_ROWS, "rows", least=1)
    told = _read_columns(found, "columns", columns, recipe, rows * values_per_row)
    if not open_targets:
        return Summary(rows, told)
    return Summary(rows, told, _read_columns(found, "targets", recipe.target_columns, recipe.of_targets, rows))


def _read_columns(
    found: Mapping[str, Any], key: str, columns: Sequence[Column], recipe: Recipe, most: int
) -> dict[str, ColumnSummary]:
    told, asked = _table(found.get(key), key), columns if recipe.asks_inputs(columns) else ()
    if list(told) != [column.name for column in asked]:
        raise _refused(f"the {key} are {shown(list(told))}, not {shown([column.name for column in asked])}")
    return {column.name: _column(told[column.name], column, recipe, most) for column in asked}


def _column(value: Any, column: Column, recipe: Recipe, most: int) -> ColumnSummary:
    name, coded = column.name, column.categories is not None
    wanted = _asked(column, recipe)
    told = _entries(value, {"present", *wanted}, name)
    # Without imputation, rows with missing values are refused where they are read; of a few values nothing is told.
    nothing = told == {"present": 0} and most < LEAST_VALUES
    present = _whole(told.get("present"), most, f"{name}.present", least=0 if recipe.impute or nothing else most)
    total = _real(told.get("total", 0.0), f"{name}.total", present * LARGEST)
    squares = _real(told.get("squares", 0.0), f"{name}.squares", present * LARGEST**2)
    if total * total > present * squares * (1 + 1e-6):
        raise _refused(f"{name} has a sum of {total:g} and squares of {squares:g}, which no {present} numbers have")
    histogram = {
        _bin(place, name): _whole(n, present, f"{name}.histogram", least=1)
        for place, n in _table(told.get("histogram", {}), f"{name}.histogram").items()
    }
    values = _table(told.get("values", {}), f"{name}.values")
    if len(values) > min(present, MOST_CATEGORIES if coded else MOST_VALUES):
        raise _refused(f"{name} has {len(values):,} different values, which are too many")
    for one in values:
        if not (_is_name(one) if coded else _is_number(one)):
            raise _refused(f"{name} has a value that is not {CATEGORY if coded else 'a number'}")
    least, top = (1, present) if recipe.impute else (0, 0)  # only the names of categories are told without imputation
    often = {key: _whole(n, top, f"{name}.values", least=least) for key, n in values.items()}
    counted = {"histogram": sum(histogram.values()), "values": sum(often.values())}
    if any(counted[key] != (present if recipe.impute else 0) for key in wanted & counted.keys()):
        raise _refused(f"{name} does not count the {present} values that it has")
    if coded and present and not values:
        raise _refused(f"{name} has {present} values, but no category")
    found = ColumnSummary(present, total, squares, histogram, often)
    if not coded and counted.keys() & wanted and recipe.mean is None:
        _refuse_other_sums(name, found)
    return found


def _refuse_other_sums(name: str, one: ColumnSummary) -> None:
    """Refuse counted values that do not add up to the sums: what replaces missing values may be far from the mean."""
    least, most = (math.fsum(n * span[k] for span, n in _spans(one)) for k in (0, 1))
    small = math.fsum(n * max(low, -high, 0.0) ** 2 for (low, high), n in _spans(one))
    large = math.fsum(n * max(-low, high) ** 2 for (low, high), n in _spans(one))
    room = ROUNDING * math.sqrt(large * one.present)
    if not (
        least - room <= one.total <= most + room and small * (1 - ROUNDING) <= one.squares <= large * (1 + ROUNDING)
    ):
        raise _refused(
            f"the values that {name} counts do not have the sum {one.total:g} and the squares {one.squares:g}"
        )


def _spans(one: ColumnSummary) -> list[tuple[tuple[float, float], int]]:
    """The limits of the values that are counted, and how many there are."""
    exact = [((float(value), float(value)), n) for value, n in one.values.items()]
    binned = [(ends(place), n) for place, n in one.histogram.items()]
    return exact + binned


def _asked(column: Column, recipe: Recipe) -> set[str]:
    """What a client is asked about a column besides how many values it has."""
    if column.categories is not None:
        return {"values"}
    counted = {"median": {"histogram"}, "most_frequent": {"values"}}.get(str(recipe.impute), set())
    return counted | ({"total", "squares"} if recipe.mean is None else set())


def preparation_text(preparation: Preparation) -> str:
    """A preparation as JSON: a list of the columns, and after them the targets."""
    return json.dumps([_filled(one) for one in (*preparation.columns, *preparation.targets)], separators=(",", ":"))


def read_preparation(text: str, columns: Sequence[Column], targets: Sequence[str] = ()) -> Preparation:
    """Read a preparation for these columns and targets, as another machine or a run's file has it.

    >>> read_preparation('[{"name":"age","mean":40.0,"std":0.0}]', [Column("age")])
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: its statistics are refused: age.std = 0.0 must be greater than 0
    """
    found, names = _json(text), [*(column.name for column in columns), *targets]
    if not isinstance(found, list) or [_name(one) for one in found] != names:
        raise _refused(f"they are not about the columns {shown(names)}")
    ready = tuple(_prepared(one, column) for one, column in zip(found, columns, strict=False))
    return Preparation(ready, _read_targets(found[len(columns) :]))


def _read_targets(found: Sequence[Any]) -> tuple[PreparedColumn, ...]:
    ready = tuple(_prepared(one, Column(str(_name(one)))) for one in found)
    if filled := [one.name for one in ready if one.fill is not None]:
        raise _refused(f"{filled[0]} has a value in place of missing ones, but is to be predicted")
    return ready


def refuse_unagreed(preparation: Preparation, recipe: Recipe) -> None:
    """Refuse a preparation from another machine that differs from what the experiment here says.

    >>> refuse_unagreed(Preparation((PreparedColumn("age", 41.0, 9.0, 50.0),)), Recipe("median", (40.0,), (9.0,)))
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: its statistics are refused: age has the mean 41 and the deviation 9, not 40 and 9
    """
    numbers = [column for column in preparation.columns if column.categories is None]
    fixed = [
        *zip(numbers, recipe.mean or (), recipe.std or (), strict=False),
        *zip(preparation.targets, recipe.label_mean or (), recipe.label_std or (), strict=False),
    ]
    for column, mean, std in fixed:
        if (column.mean, column.std) != (mean, std):
            raise _refused(
                f"{column.name} has the mean {column.mean:g} and the deviation {column.std:g}, not {mean:g} and {std:g}"
            )
    for column in preparation.columns:
        if column.categories is not None and recipe.categories.get(column.name, column.categories) != column.categories:
            raise _refused(f"{column.name} has other categories than data.categories")
        if (column.fill is None) != (recipe.impute is None):
            raise _refused(f"{column.name} {'has no' if recipe.impute else 'has a'} value in place of missing ones")


def table_inputs(rows: Sequence[Mapping[str, Any]], columns: str) -> Tensor:
    """Turn rows of a table into a network's inputs, with the `columns` that an exported model was trained with.

    A row has a value for each column by its name, written as in the files; None and an empty text are missing values.
    A row without one of the columns is refused, because its name may be misspelt, and so is text in place of a number.

    >>> columns = '[{"name":"age","mean":50.0,"std":10.0,"fill":50.0},{"name":"sex","categories":["f","m"]}]'
    >>> table_inputs([{"age": 60, "sex": "m"}, {"age": None, "sex": "f"}], columns)[:, :, 0, 0].tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    told = [one for one in _json(columns) if isinstance(one, dict)]
    named = [Column(str(one.get("name")), () if "categories" in one else None) for one in told]
    ready = read_preparation(columns, named)
    x = np.full((len(rows), len(named)), np.nan, np.float32)
    coded = []
    for place, column in enumerate(ready.columns):
        names = [written_name(_cell(row, number, column.name)) for number, row in enumerate(rows)]
        own = Column(column.name, None if column.categories is None else tuple(dict.fromkeys(filter(None, names))))
        codes = {name: float(code) for code, name in enumerate(own.categories or ())}
        for number, name in enumerate(names):
            if name is not None:
                x[number, place] = codes[name] if codes else _quantity(name, number, column.name)
        coded.append(own)
    return torch.from_numpy(ready.apply(x, coded))[:, :, None, None]


def in_units(outputs: Tensor, targets: str) -> Tensor:
    """Turn a network's outputs into numbers in the units of the files, with the `targets` of an exported model.

    >>> in_units(torch.tensor([[0.5]]), '[{"name":"days","mean":25.0,"std":2.0}]').tolist()
    [[26.0]]
    """
    found = _json(targets)
    if not isinstance(found, list) or outputs.shape[1:] != (len(found),):
        raise _refused(f"there is not one target for each of the {outputs.shape[-1]} outputs")
    ready = _read_targets(found)
    mean, std = (outputs.new_tensor([getattr(one, key) for one in ready]) for key in ("mean", "std"))
    return outputs * std + mean


def _cell(row: Mapping[str, Any], number: int, column: str) -> Any:
    if column not in row:
        raise DataError(
            f"row {number}, counted from 0, has no {shown(column)}, but {shown(list(row))}; write None if it is missing"
        )
    return row[column]


def _quantity(name: str, number: int, column: str) -> float:
    if name in ("true", "false"):
        return float(name == "true")
    if not is_number(name) or abs(float(name)) > LARGEST:
        raise DataError(f"row {number}, counted from 0: {shown(column)} is {shown(name)}, which is not a finite number")
    return float(name)


def _prepared(value: Any, column: Column) -> PreparedColumn:
    name, coded = column.name, column.categories is not None
    told = _entries(value, {"name", "fill", *(("categories",) if coded else ("mean", "std"))}, name)
    fill = told.get("fill")
    if not coded:
        mean, std = _real(told.get("mean", 0.0), f"{name}.mean"), _real(told.get("std", 1.0), f"{name}.std")
        if std < LEAST_STD:
            raise _refused(f"{name}.std = {std} must be greater than 0")
        return PreparedColumn(name, mean, std, None if fill is None else _real(fill, f"{name}.fill"))
    categories = told.get("categories")
    if not isinstance(categories, list) or not 0 < len(categories) <= MOST_CATEGORIES:
        raise _refused(f"{name} must have 1 to {MOST_CATEGORIES:,} categories")
    if not all(map(_is_name, categories)) or not (fill is None or fill == NONE or _is_name(fill)):
        raise _refused(f"{name} has a category that is not {CATEGORY}")
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
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, TypeError, RecursionError) as error:
        raise _refused("they are not valid JSON") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON in which no key comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _refused("an entry comes twice")
    return found


def _entries(value: Any, known: Set[str], what: str) -> dict[str, Any]:
    """A table with these entries at most."""
    found = _table(value, what)
    if strange := found.keys() - known:
        raise _refused(f"{what} has an entry {shown(min(strange))}, which was not asked")
    return found


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refused(f"{what} must be a table")
    return value


def _whole(value: Any, most: int, what: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _refused(f"{what} = {shown(value)} must be a whole number from {least} to {most}")
    return value


def _real(value: Any, what: str, most: float = LARGEST) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
        raise _refused(f"{what} = {shown(value)} must be a finite number that float32 values can have")
    return float(value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= LONGEST_CATEGORY


def _is_number(text: str) -> bool:
    """Whether this is how clients write a number."""
    number = _number(text)
    return abs(number) <= LARGEST and written(number) == text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _bin(place: str, name: str) -> int:
    # A number with more digits than the last bin is not looked at.
    number = int(place) if len(place) <= 6 and place.removeprefix("-").isdecimal() else LAST_BIN + 1
    if abs(number) > LAST_BIN or str(number) != place:
        raise _refused(f"{name}.histogram has no bin {shown(place)}")
    return number


def _refused(why: str) -> DataError:
    return DataError(f"its statistics are refused: {why}")
