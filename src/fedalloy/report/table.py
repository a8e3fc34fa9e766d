"""The comparison of methods as a table: for the terminal, for a paper or a page, and as records for a file."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fedalloy.base.text import MISSING, all_shortened, client_ticks, listed, view_name
from fedalloy.data.samples import Task
from fedalloy.federation.metrics import METRICS, heading_of, meaning_of
from fedalloy.report import tables
from fedalloy.report.marks import marks, note
from fedalloy.report.trained import MARKS, Doubts, told
from fedalloy.report.verdict import role, verdict
from fedalloy.storage.results import STAGES, Selection, averaged_rounds
from fedalloy.storage.rows import COLUMNS, CombinedRow, Leads, Row, agreed, combine

__all__ = ["cells", "comparison", "comparison_table", "note_on_marks", "records", "verdict"]


@dataclass(frozen=True)
class Cell:
    """One cell as text, and whether it is the best of its column."""

    text: str
    best: bool = False


def _worst(line: CombinedRow, rows: Sequence[Row]) -> str:
    """The worst client of each seed, since an id has no mean."""
    key = (line.label, line.view, line.selection)
    mine = [row for row in rows if (row.label, row.view, row.selection) == key]
    ids = [(row.client_names, row.worst_client) for row in mine if row.worst_client is not None]
    known = list(dict.fromkeys(client_ticks(names, [int(client)])[0] for names, client in ids))
    return ", ".join(known[:3]) + ("…" if len(known) > 3 else "") if known else MISSING


Shown = Literal["comparison", "decisions", "mixtures", "costs"]
WORDS = ("Method", "View", "Selection")  # the columns of words, which come first
# What a narrow terminal hides, first to last; AMP, WLP and the first column always stay.
EXPENDABLE = (
    *("ece", "rmse", "subset", "specificity", "sensitivity", "auc", "mae"),
    *("macro_f1", "balanced", "bottom10", "test", "gap", "round", "worst_client", "seconds", "bytes_total", "fm"),
    "View",
)
# What an AMP alone hides from somebody who decides on two classes, labels or numbers; these stay longest.
DECISIVE = ("auc", "mae", "balanced")
GAP = 2  # spaces between two columns


def comparison_table(
    rows: Iterable[Row],
    *,
    width: int | None = None,
    names: Mapping[str, str] | None = None,
    doubts: Doubts | None = None,
) -> Table:
    """The comparison for a terminal of this width, by default the current one; columns that do not fit are hidden.

    Rows of several seeds are averaged. The best scores of a column are bold where they are better than noise, as
    `fedalloy.report.marks` defines it, and a note says so. Training on pooled data is an upper bound and does not
    compete, nor do rows with a mark and the stages of clients' models. `names` maps each label to its registered
    method, if the two differ.
    An AMP that is in doubt (`fedalloy.report.trained.doubts`) has a mark, which `told(doubts)` explains.

    >>> table = comparison_table([], width=80)
    >>> [column.header for column in table.columns][:3]
    ['Method', 'View', 'AMP %']
    """
    rows = list(rows)
    headings, body = cells(rows, names, doubts)
    width = width or shutil.get_terminal_size().columns
    widths = [max(cell_len(line[i].text) for line in [_plain(headings), *body]) for i in range(len(headings))]
    kept = list(range(len(headings)))
    dropped = []
    leading = agreed(row.leads for row in rows)
    for name in _expendable(leading):
        heading = heading_of(name, leading.task) if name in METRICS else name
        if name == leading.first:
            continue
        if _needed(widths, kept) <= width:
            break
        if heading in headings:
            kept.remove(headings.index(heading))
            dropped.append(heading)
    room = max(8, widths[0] - max(0, _needed(widths, kept) - width))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    if len(chosen := {row.selection for row in rows}) == 1:  # several have a column
        table.title, table.title_justify = Text(f"Scores: {in_words(*chosen)}"), "left"
    for i in kept:
        justify: Literal["left", "right"] = "left" if headings[i] in WORDS else "right"
        table.add_column(headings[i], no_wrap=True, justify=justify, overflow="ellipsis")
    for line in body:
        texts = [Text(line[i].text, style="bold" if line[i].best else "") for i in kept]
        texts[0].truncate(room, overflow="ellipsis")
        table.add_row(*texts)
    notes = [text] if (text := note_on_marks(rows, names, doubts)) else []
    if dropped:
        shown = [heading for heading in headings if heading in dropped]
        notes.append(f"Hidden, the terminal is too narrow: {listed(shown)}.")
    if notes:
        table.caption = Text("\n".join(notes), style="dim")
    return table


def comparison(
    rows: Iterable[Row],
    names: Mapping[str, str] | None = None,
    doubts: Doubts | None = None,
    shown: Shown = "comparison",
    notes: Sequence[str] = (),
) -> tables.Table:
    """The whole comparison as a table that can be written in every format, with its notes.

    >>> comparison([]).headings
    ('Method', 'View', 'AMP %', 'FM ×10³', 'WLP %')
    """
    rows = list(rows)
    headings, body = cells(rows, names, doubts, shown)
    chosen = {row.selection for row in rows}
    explained = [note_on_marks(rows, names, doubts), *told(doubts or {})]
    return tables.Table(
        f"Scores {in_words(*chosen)}" if len(chosen) == 1 else "",
        tuple(headings),
        [[cell.text for cell in line] for line in body],
        [*filter(None, explained), *notes],
        words=sum(heading in WORDS for heading in headings),
        best=[(row, column) for row, line in enumerate(body) for column, cell in enumerate(line) if cell.best],
    )


def records(
    rows: Iterable[Row], names: Mapping[str, str] | None = None, doubts: Doubts | None = None
) -> list[dict[str, Any]]:
    """One flat record per method and view for CSV or JSON, with unrounded means and deviations over seeds.

    `best` names the metrics in which the line is marked as the best, or as level with it.
    """
    rows = list(rows)
    lines = combine(rows)
    rivals = contenders(lines, names, doubts)
    best = {name: _best(lines, rivals, name) for name in COLUMNS if is_score(name)}
    found = []
    for place, line in enumerate(lines):
        record: dict[str, Any] = {"label": line.label, "view": line.view, "selection": line.selection}
        record |= {"seeds": len(line.seeds), "worst_client": _worst(line, rows)}
        record |= {name: line.columns[name].mean for name in COLUMNS}
        record |= {f"{name}_std": line.columns[name].std for name in COLUMNS}
        record["best"] = [name for name, places in best.items() if place in places]
        found.append(record)
    return found


def cells(
    rows: Iterable[Row],
    names: Mapping[str, str] | None = None,
    doubts: Doubts | None = None,
    table: Shown = "comparison",
) -> tuple[list[str], list[list[Cell]]]:
    """The headings and the cells of a table, one line per method and view; empty columns are omitted."""
    rows = list(rows)
    lines = combine(rows)
    labels = all_shortened(line.label for line in lines)
    several = len({line.selection for line in lines}) > 1
    headings = ["Method", "View", *(["Selection"] if several else [])]
    body = [
        [Cell(labels[line.label]), Cell(view_name(line.view)), *([Cell(line.selection)] if several else [])]
        for line in lines
    ]
    kinds = [doubt.kind if (doubt := (doubts or {}).get((line.label, line.view))) else None for line in lines]
    signs = [MARKS[kind] if kind else "" for kind in kinds]
    rivals = contenders(lines, names, doubts)
    leading = agreed(row.leads for row in rows)
    for name in _columns(table, leading):
        texts = [_worst(line, rows) if name == "worst_client" else line.written(name) for line in lines]
        if name == leading.first and any(signs):  # without a mark, two spaces, so that the numbers stay aligned
            texts = [f"{text} {mark}".ljust(len(text) + 2) for text, mark in zip(texts, signs, strict=True)]
        if all(text == MISSING for text in texts) and name not in ("amp", "fm", "wlp"):
            continue
        best = _best(lines, rivals, name) if is_score(name) else frozenset()
        headings.append(heading_of(name, leading.task))
        for i, line_of_cells in enumerate(body):
            line_of_cells.append(Cell(texts[i], i in best))
    return headings, body


def _expendable(leading: Leads) -> list[str]:
    """The columns that a narrow terminal hides, first to last."""
    if not leading.decisions:
        return [*EXPENDABLE]
    *others, view = (name for name in EXPENDABLE if name not in DECISIVE)
    return [*others, *DECISIVE, view]


def _columns(table: Shown, leading: Leads) -> list[str]:
    """The metrics of a table, the best for the task first; columns for decisions precede the costs."""
    names = in_table(table)
    if table == "comparison":
        place = names.index("test")
        names[place:place] = in_table("decisions") if leading.decisions else []
        names.remove(leading.first)
        names.insert(0, leading.first)
    return [] if table == "decisions" and leading.decisions else names


def in_words(selection: Selection) -> str:
    """Where scores come from, as part of a sentence.

    >>> in_words("last"), in_words("best by amp"), in_words("mean of last 10")
    ('from the last round', "from each line's best round by AMP", 'means over the last 10 evaluated rounds')
    """
    if (count := averaged_rounds(selection)) is not None:
        return f"means over the last {count} evaluated rounds"
    kind = {"amp": "AMP", "test": "accuracy on the common test set", "validation": "accuracy on validation data"}
    criterion = kind.get(selection.removeprefix("best by "))
    return "from the last round" if criterion is None else f"from each line's best round by {criterion}"


def in_table(table: Shown) -> list[str]:
    """The metrics that a table shows, in the order of its columns.

    >>> in_table("mixtures")
    ['mixture_min', 'mixture_mean', 'mixture_var']
    """
    return [name for name, metric in METRICS.items() if metric.table == table]


def meanings(headings: Sequence[str], task: Task = "classes") -> list[tuple[str, str]]:
    """What the columns under these headings mean, and which direction is better.

    >>> meanings(["Method", "Low 10 %"])
    [('Low 10 %', 'The mean accuracy of the worst 10 % of the clients. Higher is better.')]
    """
    better = {"high": " Higher is better.", "low": " Lower is better.", "": ""}
    shown = {name: heading_of(name, task) for name in METRICS if heading_of(name, task) in headings}
    return [(heading, f"{meaning_of(name, task)}{better[METRICS[name].better]}") for name, heading in shown.items()]


def is_score(name: str) -> bool:
    """Whether rows compete in a metric: in accuracies, but not in what they cost."""
    return METRICS[name].unit in ("percent", "thousandths")


def contenders(
    lines: Sequence[CombinedRow], names: Mapping[str, str] | None = None, doubts: Doubts | None = None
) -> list[int]:
    """The places of the lines that compete for the best score of a column."""
    doubted = [
        bool(found and MARKS[found.kind]) for one in lines for found in [(doubts or {}).get((one.label, one.view))]
    ]
    return [
        i
        for i, line in enumerate(lines)
        if role(line.label, names) != "centralised" and line.view not in STAGES and not doubted[i]
    ]


def note_on_marks(rows: Iterable[Row], names: Mapping[str, str] | None = None, doubts: Doubts | None = None) -> str:
    """The sentence under a table that says which values are marked and by which test; empty for a single line."""
    rows = list(rows)
    lines = combine(rows)
    rivals, leading = contenders(lines, names, doubts), agreed(row.leads for row in rows)
    marked = any(_best(lines, rivals, name) for name in _columns("comparison", leading) if is_score(name))
    return note([len(lines[i].seeds) for i in rivals], marked)


def _best(lines: Sequence[CombinedRow], rivals: Sequence[int], name: str) -> Collection[int]:
    """The places of the lines that are marked in the column of a metric."""
    values = {i: found for i in rivals if (found := lines[i].each(name))}
    texts, better = {i: lines[i].written(name).split(" ")[0] for i in values}, METRICS[name].better
    if not better:
        return ()
    places = list(values)
    written = {texts[places[i]] for i in marks(list(values.values()), better)}
    # Values that look the same are equally good: a difference that the reader cannot see must not choose a winner.
    alike = [i for i in places if texts[i] in written]
    return alike if len(alike) < len(places) else ()


def _needed(widths: list[int], kept: list[int]) -> int:
    return sum(widths[i] for i in kept) + GAP * (len(kept) - 1)


def _plain(headings: list[str]) -> list[Cell]:
    return [Cell(heading) for heading in headings]
