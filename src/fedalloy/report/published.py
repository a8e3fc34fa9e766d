"""Our results beside a paper's, if the experiment names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedalloy.base.checked import shown
from fedalloy.base.registry import suggest
from fedalloy.base.text import MISSING, printable, view_name
from fedalloy.errors import DataError
from fedalloy.federation.metrics import METRICS
from fedalloy.storage.results import Run
from fedalloy.storage.rows import COLUMNS, Row, combine


@dataclass(frozen=True)
class Beside:
    """A paper's table with our results: its source, headings and lines as text."""

    source: str
    headings: Sequence[str]
    body: Sequence[Sequence[str]]

    def table(self) -> Table:
        """For a terminal."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
        table.title = Text(printable(f"Compared with {self.source}"))
        for i, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
        for line in self.body:
            table.add_row(*(Text(printable(text)) for text in line))
        return table


def beside(runs: Sequence[Run], rows: Sequence[Row]) -> list[Beside]:
    """The published tables that apply to these runs, with our results; methods that were not run are omitted.

    >>> beside([], [])
    []
    """
    tables = [_one(table, rows) for table in holding(runs)]
    return [table for table in tables if table.body]


def holding(runs: Sequence[Run]) -> list[Mapping[str, Any]]:
    """The published tables of these runs' experiment that apply to its settings."""
    if not runs:
        return []
    experiment = runs[0].meta.get("experiment", {})
    found = [table for table in experiment.get("published", []) if _holds(table, experiment)]
    for metric in (metric for table in found for metric in table["metrics"]):
        if metric not in COLUMNS:
            known = suggest(metric, list(COLUMNS))
            raise DataError(f"a run's published results have the metric {shown(metric)}; {known}")
    return found


def _holds(table: Mapping[str, Any], experiment: Mapping[str, Any]) -> bool:
    return all(_value(experiment, key) == wanted for key, wanted in table.get("where", {}).items())


def _value(experiment: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key."""
    found: Any = experiment
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _one(table: Mapping[str, Any], rows: Sequence[Row]) -> Beside:
    printed = {(label, view): figures for label, view, *figures in table["rows"]}
    headings = ["Method", "View"]
    for metric in table["metrics"]:
        headings += [METRICS[metric].heading, "paper"]

    def lines() -> Iterator[list[str]]:
        for line in combine(rows):
            figures = printed.get((line.label, line.view))
            if figures is not None:
                ours = [line.written(metric) for metric in table["metrics"]]
                pairs = [text for pair in zip(ours, figures, strict=True) for text in pair]
                yield [line.label, view_name(line.view) or MISSING, *pairs]

    return Beside(table["source"], headings, list(lines()))
