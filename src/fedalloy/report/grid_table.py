"""A paper's table: one line for each cell of a grid, our figure and the published one for each method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from fedalloy.report.format import MISSING
from fedalloy.report.published import holding
from fedalloy.report.table import FIGURES
from fedalloy.results import Row, Run, combine, rows


@dataclass(frozen=True)
class Grid:
    """The whole table as text: headings and lines."""

    title: str
    headings: Sequence[str]
    body: Sequence[Sequence[str]]

    def table(self) -> Table:
        """For a terminal."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
        table.title = self.title
        for heading in self.headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for line in self.body:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        """For a page."""
        rule = ["---:"] * len(self.headings)
        lines = ["| " + " | ".join(line) + " |" for line in (self.headings, rule, *self.body)]
        return "\n".join([f"{self.title}\n", *lines]) + "\n"


def grid(axes: Sequence[str], cells: Sequence[tuple[Sequence[str], Sequence[Run]]], metric: str = "amp") -> Grid:
    """One line for each cell, with its labels along the axes and its runs.

    Where a published table holds for a cell, its first metric and the views it names are shown; elsewhere `metric`
    and each method's best view.
    """
    body = []
    methods: list[str] = []
    for _, runs in cells:
        methods += [label for label in dict.fromkeys(run.label for run in runs) if label not in methods]
    published = any(holding(runs) for _, runs in cells)
    for labels, runs in cells:
        figures = _figures(runs, metric)
        line = [*labels]
        for name in methods:
            ours, theirs = figures.get(name, (MISSING, MISSING))
            line += [ours, theirs] if published else [ours]
        body.append(line)
    headings = [*axes]
    for name in methods:
        headings += [name, "paper"] if published else [name]
    sources = dict.fromkeys(table["source"] for _, runs in cells for table in holding(runs))
    title = f"Beside {'; '.join(sources)}" if sources else FIGURES[metric].heading
    return Grid(title, headings, body)


def _figures(runs: Sequence[Run], metric: str) -> Mapping[str, tuple[str, str]]:
    """Our figure and the published one of each method."""
    ours = [row for run in runs for row in rows(run)]
    printed: dict[tuple[str, str], str] = {}
    for table in holding(runs)[:1]:
        metric = table["metrics"][0]
        printed = {(label, view): figures[0] for label, view, *figures in table["rows"]}
    found: dict[str, tuple[str, str]] = {}
    for label, lines in _by_method(ours).items():
        named = [line for line in lines if (line.label, line.view) in printed]
        line = max(named or lines, key=lambda line: line.columns[metric].mean or 0.0)
        found[label] = FIGURES[metric].write(line, ours), printed.get((line.label, line.view), MISSING)
    return found


def _by_method(ours: Iterable[Row]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in combine(ours):
        found.setdefault(line.label, []).append(line)
    return found
