"""A paper's table: our results in every cell of a grid, with the published ones beside them.

With one metric there is one line for each cell, with columns for the methods and their views. With several metrics
there is one line for each method and view in a cell, with columns for the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from fedalloy.base.text import MISSING, printable, view_name
from fedalloy.federation.metrics import METRICS, heading_of
from fedalloy.report.facts import warnings
from fedalloy.report.published import holding, reported
from fedalloy.storage.differences import unequal
from fedalloy.storage.results import PERSONAL, STAGES, Run, Selection
from fedalloy.storage.rows import CombinedRow, agreed, caveats, combine, leads, rows

WORDS = ("Method", "View")
Views = Mapping[str, Sequence[tuple[str, bool]]]
"""The views that are shown of each label, and whether to name them."""


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
        for heading in self.headings:  # on a narrow terminal lines wrap, so that no digit is hidden
            justify: Literal["left", "right"] = "left" if heading in WORDS else "right"
            table.add_column(Text(printable(heading)), justify=justify, overflow="fold")
        for line in self.body:
            table.add_row(*(Text(printable(text)) for text in line))
        return table

    def markdown(self) -> str:
        """For a page."""
        rule = ["---" if heading in WORDS else "---:" for heading in self.headings]
        cells = [[text.replace("|", "\\|") for text in line] for line in (self.headings, rule, *self.body)]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"{self.title}\n", *(f"| {' | '.join(line)} |" for line in cells), *notes]) + "\n"


def grid(
    axes: Sequence[str],
    cells: Sequence[tuple[Sequence[str], Sequence[Run]]],
    selection: Selection = "last",
) -> Grid:
    """The table of a grid, whose cells have a label along each axis and their runs.

    It has the metrics of the published tables that apply to its cells, or else the one by which methods are ranked
    (`fedalloy.storage.rows.leads`). Beside a published result,
    ours is from the round that its table reports; otherwise from the selected one. Of a method's views those are shown
    that a published table names, or else all but the stages of clients' models. With one metric, the column `gap` shows
    the AMP that local training loses after distillation.
    """
    found = [_Cell(labels, runs, holding(runs), selection) for labels, runs in cells]
    published = any(cell.tables for cell in found)
    named = dict.fromkeys(name for cell in found for table in cell.tables for name in table["metrics"])
    lead, views = agreed(leads(run) for cell in found for run in cell.runs), _views(found)
    metrics = list(named) or [lead.first]
    if len(metrics) == 1:
        headings, body = _by_cell(found, metrics[0], views, published)
    else:
        headings, body = _by_method(found, metrics, views)
    sources = dict.fromkeys(table["source"] for cell in found for table in cell.tables)
    rounds = [{name: cell.rounds(name, views) for name in metrics} for cell in found]
    chosen = list(dict.fromkeys(x for here in rounds for several in here.values() for x in several))
    title = f"Compared with {'; '.join(sources)}; ours: " if sources else f"{heading_of(lead.first, lead.task)}: "
    notes = []
    for cell, here in zip(found, rounds, strict=True):
        told = [f"{METRICS[name].heading}: {' or '.join(several)}" for name, several in here.items()]
        own = dict.fromkeys(x for several in here.values() for x in several)
        few = [sentence for selection in own for sentence in caveats(cell.runs, selection)]
        said = [*(told if len(chosen) > 1 else []), *few, *warnings(cell.runs), *unequal(cell.runs)]
        notes += [f"{cell.name}: {note}" for note in said]
    return Grid(f"{title}{' or '.join(chosen)}", [*axes, *headings], body, notes)


@dataclass(frozen=True)
class _Cell:
    """One cell: its labels, its runs, the published tables that apply to it, and the round to report without one."""

    labels: Sequence[str]
    runs: Sequence[Run]
    tables: Sequence[Mapping[str, Any]]
    selection: Selection

    @property
    def name(self) -> str:
        return ", ".join(self.labels)

    @cached_property
    def lines(self) -> Mapping[Selection, Mapping[tuple[str, str], CombinedRow]]:
        """Our lines by label and view, for every round that is reported."""
        return {
            chosen: {(x.label, x.view): x for x in combine(row for run in self.runs for row in rows(run, chosen))}
            for chosen in {self.selection, *map(reported, self.tables)}
        }

    def published(self, label: str, view: str, metric: str) -> tuple[str, Selection]:
        """The paper's figure and the round it is of; without a figure, the round of the others in this metric."""
        tables = [table for table in self.tables if metric in table["metrics"]]
        for table in tables:
            for name, of, *figures in table["rows"]:
                if (name, of) == (label, view):
                    return str(figures[list(table["metrics"]).index(metric)]), reported(table)
        return MISSING, reported(tables[0]) if tables else self.selection

    def paper(self, label: str, view: str, metric: str) -> str:
        return self.published(label, view, metric)[0]

    def ours(self, label: str, view: str, metric: str, shown: str = "") -> str:
        """Our figure, or that of another metric in the same round."""
        line = self.lines[self.published(label, view, metric)[1]].get((label, view))
        return MISSING if line is None else line.written(shown or metric)

    def rounds(self, metric: str, views: Views) -> list[Selection]:
        """The rounds that a metric is taken from."""
        run = {run.label for run in self.runs}
        pairs = [(label, view) for label, shown in views.items() for view, _ in shown if label in run]
        return list(dict.fromkeys(self.published(label, view, metric)[1] for label, view in pairs))


def _views(found: Sequence[_Cell]) -> Views:
    printed = [row[:2] for cell in found for table in cell.tables for row in table["rows"]]
    runs = [run for cell in found for run in cell.runs]
    views = {}
    for label in dict.fromkeys(run.label for run in runs):
        own = list(dict.fromkeys(view for run in runs if run.label == label for view in run.views))
        named = list(dict.fromkeys(view for name, view in printed if name == label))
        shown = named or [view for view in own if view not in STAGES]
        views[label] = [(view, len(own) > 1) for view in shown]
    return views


def _by_cell(found: Sequence[_Cell], metric: str, views: Views, published: bool) -> tuple[list[str], list[list[str]]]:
    """One line for each cell; the methods and views are columns."""
    columns: list[tuple[str, Sequence[str]]] = []  # heading, and its text in each cell
    for label, shown in views.items():
        for view, named in shown:
            heading = f"{label} ({view_name(view)})" if named else label
            columns.append((heading, [cell.ours(label, view, metric) for cell in found]))
            if published:
                columns.append(("paper", [cell.paper(label, view, metric) for cell in found]))
        gaps = [cell.ours(label, PERSONAL, metric, "gap") for cell in found]
        if any(gap != MISSING for gap in gaps):
            columns.append(("gap", gaps))
    return [name for name, _ in columns], [
        [*cell.labels, *(texts[i] for _, texts in columns)] for i, cell in enumerate(found)
    ]


def _by_method(found: Sequence[_Cell], metrics: Sequence[str], views: Views) -> tuple[list[str], list[list[str]]]:
    """One line for each method and view in each cell; the metrics are columns."""
    headings = [*WORDS, *(text for metric in metrics for text in (METRICS[metric].heading, "paper"))]
    body = []
    for cell in found:
        run = {run.label for run in cell.runs}
        for label, view in ((label, view) for label, shown in views.items() for view, _ in shown if label in run):
            figures = [text for x in metrics for text in (cell.ours(label, view, x), cell.paper(label, view, x))]
            body.append([*cell.labels, label, view_name(view) or MISSING, *figures])
    return headings, body
