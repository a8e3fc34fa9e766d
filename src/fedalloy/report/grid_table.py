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

from fedalloy.base.text import MISSING, listed, printable, view_name
from fedalloy.federation.metrics import METRICS
from fedalloy.report.facts import warnings
from fedalloy.report.published import holding, reported
from fedalloy.storage.results import STAGES, Run, Selection
from fedalloy.storage.rows import CombinedRow, caveats, combine, rows

WORDS = ("Method", "View")


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
    metric: str = "amp",
    selection: Selection = "last",
) -> Grid:
    """The table of a grid, whose cells have a label along each axis and their runs.

    It has the metrics of the published tables that apply to its cells, or else `metric`. Beside a published result,
    ours is from the round that its table reports; otherwise from the selected one. Of a method's views those are shown
    that a published table names, or else all but the stages of clients' models. With one metric, the column `gap` shows
    the AMP that local training loses after distillation.
    """
    found = [_Cell(labels, runs, holding(runs), selection) for labels, runs in cells]
    published = any(cell.tables for cell in found)
    metrics = list(dict.fromkeys(name for cell in found for table in cell.tables for name in table["metrics"])) or [
        metric
    ]
    views = _views(found)
    if len(metrics) == 1:
        headings, body = _by_cell(found, metrics[0], views, published)
    else:
        headings, body = _by_method(found, metrics, views)
    sources = dict.fromkeys(table["source"] for cell in found for table in cell.tables)
    chosen = list(dict.fromkeys(cell.round(name) for cell in found for name in metrics))
    title = f"Compared with {'; '.join(sources)}; ours: " if sources else f"{METRICS[metric].heading}: "
    notes = [f"{cell.name}: {note}" for cell in found for note in cell.notes(metrics, several=len(chosen) > 1)]
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

    def round(self, metric: str) -> Selection:
        """The round that a metric is taken from."""
        return next((reported(table) for table in self.tables if metric in table["metrics"]), self.selection)

    def ours(self, label: str, view: str, metric: str) -> str:
        line = self.lines[self.round(metric)].get((label, view))
        return MISSING if line is None else line.written(metric)

    def paper(self, label: str, view: str, metric: str) -> str:
        for table in self.tables:
            for name, of, *figures in table["rows"]:
                if (name, of) == (label, view) and metric in table["metrics"]:
                    return str(figures[list(table["metrics"]).index(metric)])
        return MISSING

    def gap(self, label: str, metric: str) -> str:
        """The gap of the one view that has it."""
        texts = [x.written("gap") for (name, _), x in self.lines[self.round(metric)].items() if name == label]
        return next((text for text in texts if text != MISSING), MISSING)

    def notes(self, metrics: Sequence[str], *, several: bool) -> list[str]:
        """Caveats: on the runs, on rounds that they lack, and on the round if cells or metrics differ in it."""
        chosen = {name: self.round(name) for name in metrics}
        of = {
            selection: [METRICS[x].heading for x in metrics if chosen[x] == selection] for selection in chosen.values()
        }
        told = [f"{listed(names)}: {selection}" for selection, names in of.items()] if several else []
        few = [sentence for selection in dict.fromkeys(chosen.values()) for sentence in caveats(self.runs, selection)]
        return [*told, *few, *warnings(self.runs)]


Views = Mapping[str, Sequence[tuple[str, bool]]]
"""The views that are shown of each label, and whether to name them."""


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
        gaps = [cell.gap(label, metric) for cell in found]
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
