"""Columns of a table, and what a federation may know of them: sums, counts, bounded histograms, names of categories.

Nobody sees all rows. Each client summarises its own training rows with `summarise`, the server adds the summaries up
with `agree`, and everyone turns rows into inputs with the `Preparation` that results. Numbers to predict, the targets,
are standardised in the same way. A simulation takes the same steps with the same functions, so it has the same inputs
and targets, to the bit, as a deployment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.text import listed
from fedalloy.data.sketch import middle, sketch
from fedalloy.errors import DataError, UsageError

Floats = NDArray[np.float32]
Impute = Literal["mean", "median", "most_frequent"]
NONE = ""  # stands for a missing category where nobody was asked which is most frequent
LEAST_STD = float(np.finfo(np.float32).tiny)  # smaller values are zero in a division
MOST_CATEGORIES = 1000  # of one column; each becomes an input
MOST_VALUES = 64  # different values of a column of numbers that `most_frequent` counts
LEAST_VALUES = 5  # of a column; of fewer a client tells nothing, since the sum of one value is the value


@dataclass(frozen=True)
class Column:
    """One column of a table: numbers, or codes of the categories named here. A missing value is NaN in both."""

    name: str
    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Recipe:
    """What an experiment says about columns; what it leaves open, the clients' summaries decide.

    `mean` and `std` have one number per column of numbers, in their order; `categories` has the names for each column
    of categories. If all are given and missing values are replaced by the `mean`, nothing is asked of the clients: a
    missing category is then none of them. `targets` names the numbers to predict, and `label_mean` and `label_std` have
    one number for each.

    >>> Recipe().asks([Column("age")]), Recipe(mean=(50.0,), std=(9.0,)).asks([Column("age")])
    (True, False)
    >>> Recipe(mean=(50.0,), std=(9.0,), targets=("days",)).asks([Column("age")])
    True
    """

    impute: Impute | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    label_mean: tuple[float, ...] | None = None
    label_std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for what, mean, std in (("", self.mean, self.std), ("label_", self.label_mean, self.label_std)):
            if (mean is None) != (std is None):
                raise UsageError(
                    f"data.{what}mean and data.{what}std must be given together; write one number per "
                    f"{'number to predict' if what else 'column or channel'} in both"
                )
            if std is not None and not all(LEAST_STD <= value < math.inf for value in std):
                raise UsageError(
                    f"data.{what}std = {list(std)} must be greater than 0 everywhere; write 1.0 for what is constant"
                )
        if self.label_mean is not None and not self.targets:
            raise UsageError("data.label_mean and data.label_std need numbers to predict, not classes; remove them")

    @property
    def of_targets(self) -> Recipe:
        """What it says about the targets, as if they were columns."""
        return Recipe(mean=self.label_mean, std=self.label_std)

    @property
    def target_columns(self) -> tuple[Column, ...]:
        """The targets as columns of numbers."""
        return tuple(Column(name) for name in self.targets)

    def asks(self, columns: Sequence[Column]) -> bool:
        """Return whether clients must summarise their rows before the first round."""
        return self.asks_inputs(columns) or self.of_targets.asks_inputs(self.target_columns)

    def asks_inputs(self, columns: Sequence[Column]) -> bool:
        """Return whether they must do so for their columns, whatever is to be predicted."""
        if self.impute in ("median", "most_frequent"):
            return True
        return any(c.name not in self.categories if c.categories is not None else self.mean is None for c in columns)


@dataclass(frozen=True)
class ColumnSummary:
    """What a client tells about one column; which parts are filled depends on the column and on `impute`."""

    present: int  # rows with a value
    total: float = 0.0
    squares: float = 0.0
    histogram: Mapping[int, int] = field(default_factory=dict)  # of a sketch, for medians
    values: Mapping[str, int] = field(default_factory=dict)  # categories or a few numbers, and how often (0: not told)


@dataclass(frozen=True)
class Summary:
    """What a client tells about its training rows before the first round."""

    rows: int
    columns: Mapping[str, ColumnSummary]
    targets: Mapping[str, ColumnSummary] = field(default_factory=dict)


def summarise(x: NDArray[Any], columns: Sequence[Column], recipe: Recipe, y: NDArray[Any] | None = None) -> Summary:
    """Summarise a client's training rows, N x C or images N x C x H x W, as far as the recipe needs it.

    If the recipe has targets, `y` holds them, N x T.

    >>> ages = np.array([[30.0], [50.0], [np.nan]], np.float32)
    >>> told = summarise(ages, [Column("age")], Recipe(impute="mean"))
    >>> told.columns["age"].present, told.columns["age"].total, told.columns["age"].squares
    (2, 80.0, 3400.0)
    """
    told = _summaries(x, columns, recipe)
    if not recipe.targets:
        return Summary(len(x), told)
    assert y is not None
    return Summary(len(x), told, _summaries(y, recipe.target_columns, recipe.of_targets))


def _summaries(x: NDArray[Any], columns: Sequence[Column], recipe: Recipe) -> dict[str, ColumnSummary]:
    if not recipe.asks_inputs(columns):
        return {}
    return {c.name: _column(x[:, place].reshape(-1), c, recipe) for place, c in enumerate(columns)}


def without_few(summary: Summary) -> Summary:
    """Leave out columns with so few values that a sum or a name would tell about one row.

    >>> without_few(Summary(9, {"age": ColumnSummary(1, 61.0, 3721.0)})).columns["age"]
    ColumnSummary(present=0, total=0.0, squares=0.0, histogram={}, values={})
    """
    columns, targets = (
        {name: one if one.present >= LEAST_VALUES else ColumnSummary(0) for name, one in told.items()}
        for told in (summary.columns, summary.targets)
    )
    return replace(summary, columns=columns, targets=targets)


def _column(values: NDArray[Any], column: Column, recipe: Recipe) -> ColumnSummary:
    if values.dtype == np.uint8:  # pixels, on the scale [0, 1]; from whole numbers, so that no rounding adds up
        counts = np.bincount(values, minlength=256)
        level = np.arange(256)
        return ColumnSummary(len(values), int(counts @ level) / 255, int(counts @ level**2) / 255**2)
    held = values[~np.isnan(values)].astype(np.float64)
    if column.categories is not None:
        codes, counts = np.unique(held.astype(np.int64), return_counts=True)
        told = counts if recipe.impute else np.zeros_like(counts)
        named = {column.categories[code]: int(n) for code, n in zip(codes, told, strict=True)}
        return ColumnSummary(len(held), values=dict(sorted(named.items())))
    total, squares = (float(held.sum()), float((held * held).sum())) if recipe.mean is None else (0.0, 0.0)
    if recipe.impute == "median":
        return ColumnSummary(len(held), total, squares, histogram=sketch(held))
    if recipe.impute == "most_frequent":
        distinct, counts = np.unique(held, return_counts=True)
        if len(distinct) > MOST_VALUES:
            raise DataError(
                f"column {shown(column.name)} has {len(distinct)} different numbers, too many to tell which is most "
                f'frequent ({MOST_VALUES} at most); write data.impute = "mean" or "median"'
            )
        often = {written(v): int(n) for v, n in zip(distinct, counts, strict=True)}
        return ColumnSummary(len(held), total, squares, values=often)
    return ColumnSummary(len(held), total, squares)


def written(value: float) -> str:
    """Write a number in the one way that clients count it by; there is one zero.

    >>> written(-0.0), written(np.float32(0.5))
    ('0.0', '0.5')
    """
    return repr(float(value) + 0.0)


@dataclass(frozen=True)
class PreparedColumn:
    """How one column becomes inputs: `(value - mean) / std`, or one input of 0 or 1 for each category."""

    name: str
    mean: float = 0.0
    std: float = 1.0
    fill: float | str | None = None  # what stands for a missing value
    categories: tuple[str, ...] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs that the column becomes."""
        return (self.name,) if self.categories is None else tuple(f"{self.name}={c}" for c in self.categories)


@dataclass(frozen=True)
class Preparation:
    """How rows become inputs, and numbers to predict the targets of networks, the same for all clients.

    >>> sex = PreparedColumn("sex", categories=("f", "m"), fill="f")
    >>> ready = Preparation((PreparedColumn("age", mean=40.0, std=10.0, fill=40.0), sex))
    >>> rows = np.array([[50.0, 0.0], [np.nan, np.nan]], np.float32)
    >>> ready.inputs, ready.apply(rows, [Column("age"), Column("sex", ("m",))]).tolist()
    (('age', 'sex=f', 'sex=m'), [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    """

    columns: tuple[PreparedColumn, ...]
    targets: tuple[PreparedColumn, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of a network's inputs."""
        return tuple(name for column in self.columns for name in column.inputs)

    def apply(self, x: Floats, columns: Sequence[Column]) -> Floats:
        """Turn rows, N x C with these columns, into inputs; a category that nobody told of becomes zeros."""
        return _applied(self.columns, x, columns)

    def standardised(self, y: Floats) -> Floats:
        """Turn numbers to predict, N x T, into what networks learn; they stay as they are if nothing was agreed on.

        >>> Preparation((), (PreparedColumn("days", 25.0, 5.0),)).standardised(np.array([[30.0]], np.float32)).tolist()
        [[1.0]]
        """
        return _applied(self.targets, y, [Column(target.name) for target in self.targets])


def _applied(prepared: Sequence[PreparedColumn], x: Floats, columns: Sequence[Column]) -> Floats:
    ready = [_prepared(x[:, place], own, to) for place, (own, to) in enumerate(zip(columns, prepared, strict=True))]
    return np.concatenate(ready, axis=1) if ready else x


def _prepared(values: Floats, own: Column, to: PreparedColumn) -> Floats:
    missing = np.isnan(values)
    if missing.any() and to.fill is None:
        raise DataError(
            f"column {shown(own.name)} is empty in row {int(np.flatnonzero(missing)[0])}, counted from 0; fill in the "
            'value, remove the row, or write data.impute = "mean", "median" or "most_frequent"'
        )
    if to.categories is None:
        filled = np.where(missing, np.float32(to.fill or 0.0), values)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            scaled: Floats = (filled - np.float32(to.mean)) / np.float32(to.std)
        if not np.isfinite(scaled).all():
            raise DataError(
                f"column {shown(own.name)} cannot be prepared with the mean {to.mean:g} and the deviation {to.std:g}: "
                "an input would not be a finite number"
            )
        return scaled[:, None]
    places = {name: place for place, name in enumerate(to.categories)}
    known = np.array([places.get(name, -1) for name in own.categories or ()] + [places.get(str(to.fill), -1)], np.int64)
    codes = known[np.where(missing, len(known) - 1, np.nan_to_num(values)).astype(np.int64)]
    hot: Floats = (codes[:, None] == np.arange(len(places))).astype(np.float32)
    return hot


def agree(told: Sequence[Summary], columns: Sequence[Column], recipe: Recipe) -> Preparation:
    """Add up what the clients told, in their order, to one preparation for all.

    `columns` gives the names and kinds; whose categories they hold does not matter.

    >>> north, south = ColumnSummary(2, 80.0, 3400.0), ColumnSummary(1, 70.0, 4900.0)
    >>> told = [Summary(2, {"age": north}), Summary(2, {"age": south})]
    >>> age = agree(told, [Column("age")], Recipe(impute="mean")).columns[0]
    >>> age.mean, round(age.std, 4), age.fill
    (50.0, 16.3299, 50.0)
    """
    numbers = [c.name for c in columns if c.categories is None]
    _refuse_miscounted(recipe.mean, recipe.std, numbers, "columns of numbers", "")
    _refuse_miscounted(recipe.label_mean, recipe.label_std, recipe.targets, "numbers to predict", "label_")
    ready, place_of = [], {name: place for place, name in enumerate(numbers)}
    for column in columns:
        said = [summary.columns[column.name] for summary in told if column.name in summary.columns]
        if column.categories is not None:
            ready.append(_categories(column.name, said, recipe))
        else:
            ready.append(_numbers(column.name, place_of[column.name], said, recipe, _DROP.format(name=column.name)))
    targets = [
        _numbers(name, place, [one.targets[name] for one in told if name in one.targets], recipe.of_targets, _CONSTANTS)
        for place, name in enumerate(recipe.targets)
    ]
    return Preparation(tuple(ready), tuple(targets))


def _refuse_miscounted(
    mean: Sequence[float] | None, std: Sequence[float] | None, numbers: Sequence[str], what: str, prefix: str
) -> None:
    if mean is not None and std is not None and (len(mean), len(std)) != (len(numbers), len(numbers)):
        raise DataError(
            f"data.{prefix}mean has {len(mean)} numbers and data.{prefix}std {len(std)}, but there must be one for "
            f"each of the {len(numbers)} {what}: {shown(listed(numbers))}"
        )


def _numbers(name: str, place: int, said: Sequence[ColumnSummary], recipe: Recipe, instead: str) -> PreparedColumn:
    present = sum(one.present for one in said)
    if said and not present:
        raise _untold(name, instead)
    if recipe.mean is not None and recipe.std is not None:
        mean, std = recipe.mean[place], recipe.std[place]
    else:
        mean = math.fsum(one.total for one in said) / present
        variance = math.fsum(one.squares for one in said) / present - mean * mean
        # Rounding alone leaves a little of a constant column; a column that varies less than that is constant too.
        std = math.sqrt(max(variance, 0.0)) if variance > 1e-12 * mean * mean else 1.0
        std = std if std >= LEAST_STD else 1.0
    fill: float | None = None
    if recipe.impute == "mean":
        fill = mean
    elif recipe.impute == "median":
        fill = middle([one.histogram for one in said])
    elif recipe.impute == "most_frequent":
        fill = float(_most_frequent(said, key=float))
    return PreparedColumn(name, mean, std, fill)


def _categories(name: str, said: Sequence[ColumnSummary], recipe: Recipe) -> PreparedColumn:
    names = recipe.categories.get(name) or tuple(sorted({value for one in said for value in one.values}))
    if not names:
        raise _untold(name, _DROP.format(name=name))
    if len(names) > MOST_CATEGORIES:
        raise DataError(
            f"column {shown(name)} has {len(names):,} different categories at all clients together "
            f"({MOST_CATEGORIES:,} at most); write data.drop = [{name!r}]"
        )
    fill: str | None = None
    if recipe.impute is not None:
        fill = _most_frequent(said, key=str) if any(one.values for one in said) else NONE
    return PreparedColumn(name, fill=fill, categories=names)


_DROP = "data.drop = [{name!r}], or constants: data.mean and data.std, or data.categories"
_CONSTANTS = "constants: data.label_mean and data.label_std"


def _untold(name: str, instead: str) -> DataError:
    return DataError(
        f"column {shown(name)} has fewer than {LEAST_VALUES} values in the training rows of every client, and of so "
        f"few nobody tells statistics; write {instead}"
    )


def _most_frequent(said: Sequence[ColumnSummary], key: type[float] | type[str]) -> str:
    """The value that most rows have; the smallest of several."""
    counts: dict[str, int] = {}
    for one in said:
        for value, n in one.values.items():
            counts[value] = counts.get(value, 0) + n
    return min(counts, key=lambda value: (-counts[value], key(value)))
