"""A paper's table: one line for each cell of a grid, with our result and the published one for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from fedalloy.base.text import MISSING, printable, view_name
from fedalloy.federation.metrics import METRICS
from fedalloy.report.facts import warnings
from fedalloy.report.published import holding
from fedalloy.storage.results import Run
from fedalloy.storage.rows import CombinedRow, combine, rows

BEST = ""  # stands for the best view


@dataclass(frozen=True)
class Grid:
    """The whole table as text: headings, lines, and notes on runs that need a caveat."""

    title: str
    headings: Sequence[str]
    body: Sequence[Sequence[str]]
    notes: Sequence[str]

    def table(self) -> Table:
        """For a terminal."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
        table.title = Text(printable(self.title))
        for heading in self.headings:
            table.add_column(
                Text(printable(heading)), justify="right", overflow="fold"
            )  # a narrow terminal hides no digit
        for line in self.body:
            table.add_row(*(Text(printable(text)) for text in line))
        return table

    def markdown(self) -> str:
        """For a page."""
        rule = ["---:"] * len(self.headings)
        lines = ["| " + " | ".join(line) + " |" for line in (self.headings, rule, *self.body)]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"{self.title}\n", *lines, *notes]) + "\n"


def grid(axes: Sequence[str], cells: Sequence[tuple[Sequence[str], Sequence[Run]]], metric: str = "amp") -> Grid:
    """One line for each cell, with its labels along the axes and its runs.

    Each view that a published table names has a column, with the paper's result beside it. A method without published
    results has one column, for its best view. A cell uses the first metric of the published table that applies to it,
    or else `metric`. The column `gap` shows the AMP that local training loses after distillation.
    """
    found = [_cell(runs, metric) for _, runs in cells]
    published = any(holding(runs) for _, runs in cells)
    columns: list[tuple[str, Sequence[str]]] = []  # heading, and its text in each cell
    for label in dict.fromkeys(run.label for _, runs in cells for run in runs):
        views = list(dict.fromkeys(view for cell in found for name, view in cell.printed if name == label))
        for view in views or [BEST]:
            heading = f"{label} ({view_name(view)})" if len(views) > 1 else label
            columns.append((heading, [cell.ours(label, view) for cell in found]))
            if published:
                columns.append(("paper", [cell.printed.get((label, view), MISSING) for cell in found]))
        gaps = [cell.gap(label) for cell in found]
        if any(gap != MISSING for gap in gaps):
            columns.append(("gap", gaps))
    body = [[*labels, *(texts[i] for _, texts in columns)] for i, (labels, _) in enumerate(cells)]
    sources = dict.fromkeys(table["source"] for _, runs in cells for table in holding(runs))
    title = f"Compared with {'; '.join(sources)}" if sources else METRICS[metric].heading
    notes = [f"{', '.join(labels)}: {sentence}" for labels, runs in cells for sentence in warnings(runs)]
    return Grid(title, [*axes, *(heading for heading, _ in columns)], body, notes)


@dataclass(frozen=True)
class _Cell:
    """One cell: our lines, the metric they are shown in, and the published results by label and view."""

    lines: Sequence[CombinedRow]
    metric: str
    printed: Mapping[tuple[str, str], str]

    def ours(self, label: str, view: str) -> str:
        """Our result for a view, or for the best one."""
        lines = [line for line in self.lines if line.label == label and view in (BEST, line.view)]
        pick = max if METRICS[self.metric].better == "high" else min
        known = [line for line in lines if line.columns[self.metric].mean is not None]
        best = pick(known, key=lambda line: line.columns[self.metric].mean or 0.0, default=None)
        return MISSING if best is None else best.written(self.metric)

    def gap(self, label: str) -> str:
        """The gap of the one view that has it."""
        texts = [line.written("gap") for line in self.lines if line.label == label]
        return next((text for text in texts if text != MISSING), MISSING)


def _cell(runs: Sequence[Run], metric: str) -> _Cell:
    lines = combine(row for run in runs for row in rows(run))
    for table in holding(runs)[:1]:
        printed = {(label, view): figures[0] for label, view, *figures in table["rows"]}
        return _Cell(lines, table["metrics"][0], printed)
    return _Cell(lines, metric, {})
