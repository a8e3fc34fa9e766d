"""A plain table of values: what `to_frame` returns if pandas is not installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedalloy.base.registry import suggest
from fedalloy.base.text import MISSING
from fedalloy.errors import UsageError
from fedalloy.report.tables import Table

SHOWN = 20  # rows of a long table that are printed


@dataclass(frozen=True)
class Frame:
    """Rows that can be iterated as dictionaries, and columns that can be indexed by name; a missing value is None.

    >>> frame = Frame(("method", "amp"), ({"method": "fedavg", "amp": 0.5}, {"method": "kdia", "amp": None}))
    >>> len(frame), frame["amp"], [row["method"] for row in frame]
    (2, [0.5, None], ['fedavg', 'kdia'])
    >>> print(frame)
    method  amp
    ───────────
    fedavg  0.5
    kdia      –
    """

    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(row) for row in self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        if column not in self.columns:
            raise UsageError(f"there is no column {column!r}; {suggest(str(column), list(self.columns))}")
        return [row[column] for row in self.rows]

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def csv(self) -> str:
        """For a spreadsheet, with every digit; a missing value is empty."""
        file = io.StringIO()
        writer = csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return file.getvalue()

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        """The first rows as text; words come first in it, as everywhere."""
        words = [name for name in self.columns if any(isinstance(row[name], str) for row in self.rows)]
        names = [*words, *(name for name in self.columns if name not in words)]
        body = [[_text(row[name]) for name in names] for row in self.rows[:SHOWN]]
        more = len(self.rows) - SHOWN
        return Table("", names, body, [f"... and {more} more rows"] if more > 0 else (), words=len(words))


def _text(value: object) -> str:
    if value is None or value != value:
        return MISSING
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"
