"""What the tables of all forms share: which columns stand side by side, the paper's figures, and the notes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from fedalloy.base.text import MISSING, listed, number, plus_minus
from fedalloy.federation.metrics import METRICS
from fedalloy.report.table import in_words
from fedalloy.report.tables import Table
from fedalloy.reproduce.catalogue import Item, Row
from fedalloy.reproduce.forms.figures_columns import NUMBER, axes_of
from fedalloy.reproduce.published import published
from fedalloy.reproduce.results import Results

ABREAST = 4  # groups of columns that stand side by side, at most
NAMED = 4  # cells that a note names, at most
MARK = " *"  # behind rows that the paper does not have

Pair = tuple[str, str]
"""A column of ours and a metric, or a target in place of it."""


@dataclass(frozen=True)
class Part:
    """Columns under one heading: for each its own heading, and the texts of all rows."""

    heading: str
    columns: Mapping[str, Sequence[str]]


def blocks(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Pairs that make one table: all if they are few; else those of one column, or of one label along the first axes.

    >>> [len(block) for block in blocks([(f"{data}, {alpha}", "test") for data in "ABC" for alpha in (0.1, 1, 5)])]
    [3, 3, 3]
    >>> [len(block) for block in blocks([(f"N = {n}", "test") for n in range(6)])]
    [4, 2]
    """
    if len(pairs) <= ABREAST:
        return [list(pairs)] if pairs else []
    several = len({metric for _, metric in pairs}) > 1
    alike = [list(run) for _, run in groupby(pairs, lambda pair: pair[0] if several else pair[0].rpartition(", ")[0])]
    found: list[list[Pair]] = []
    for run in alike:
        for part in (run[i : i + ABREAST] for i in range(0, len(run), ABREAST)):
            if found and len(found[-1]) + len(part) <= ABREAST:
                found[-1] += part
            else:
                found.append(part)
    return found


def assembled(results: Results, kind: str, pairs: Sequence[Pair], parts: Sequence[Part], notes: Sequence[str]) -> Table:
    """The table of some pairs; `kind` says what it shows, if it is not the paper's own table."""
    item = results.item
    columns = [texts for part in parts for texts in part.columns.values()]
    rows = [[label_of(row), *(texts[i] for texts in columns)] for i, row in enumerate(item.rows)]
    alone = len(parts) == 1  # then its heading stands in the title
    where = parts[0].heading if alone else _where(results, pairs)
    return Table(
        ": ".join(filter(None, (item.name, kind or item.title))) + (f" ({where})" if where else ""),
        ["Method", *(heading for part in parts for heading in part.columns)],
        rows,
        notes,
        rules=[i for i, (a, b) in enumerate(pairwise(item.rows)) if a.control != b.control],
        groups=() if alone else [("", 1), *((part.heading, len(part.columns)) for part in parts)],
    )


def label_of(row: Row) -> str:
    """A row's label, with a mark if the paper does not have it."""
    return f"{row.label}{MARK}" if row.control else row.label


def heading_of(results: Results, column: str, shown: str) -> str:
    """What stands above the columns of a pair: our column, the paper's if it has another name, and the metric."""
    paper = results.paper_column(column)
    named = column if paper == column else f"{column} for {paper}" if column else paper
    several = len(results.columns) > 1
    return ", ".join(filter(None, [named if several or paper != column else "", shown]))


def metric_heading(metric: str) -> str:
    """A metric as tables name it.

    >>> metric_heading("amp"), metric_heading("note coverage")
    ('AMP %', 'coverage')
    """
    return METRICS[metric].heading if metric in METRICS else metric.removeprefix("note ")


def written(metric: str, values: Sequence[float], *, spread: bool = True) -> str:
    """The mean over seeds and its standard deviation, from values in the unit that is printed.

    >>> written("test", [50.0, 52.0]), written("bytes_total", [1500.0, 1500.0]), written("test", [])
    ('51.00 ± 1.41', '1.50 kB', '–')
    """
    if not values:
        return MISSING
    mean = math.fsum(values) / len(values)
    std = statistics.stdev(values) if spread and len(values) > 1 else None
    if metric not in METRICS:
        return plus_minus(mean, std)
    one = METRICS[metric]
    if one.source == "run" and not std:  # a count that every seed has
        std = None
    return one.write(mean / one.factor, None if std is None else std / one.factor)


def signed(difference: float) -> str:
    """A difference with its sign; zero has none.

    >>> signed(2.409), signed(-0.3), signed(0.001)
    ('+2.41', '-0.30', '0.00')
    """
    text = number(difference)
    return f"+{text}" if float(text) > 0 else text


def paper_text(item: Item, row: Row, column: str, metric: str, place: int | None = None) -> str:
    """What the paper prints, as it prints it; a dash if its text does not hold it.

    The figures that an item lists are in the order of its metrics, or at a `place`.
    """
    place = item.metrics.index(metric) if place is None and metric in item.metrics else place
    for table in item.published:
        for label, *texts in table.rows:
            if (table.column, label) == (column, row.label) and place is not None and place < len(texts):
                return texts[place] or MISSING
    if item.published:
        return MISSING
    found = published(item).get((row.label, column, metric))
    return MISSING if found is None else found.text


def notes(
    results: Results, counts: Mapping[tuple[str, Pair], int], figures: Sequence[str], *, round: str = ""
) -> list[str]:
    """What a reader must know: the round, the seeds, the scale, what is missing, and which rows are controls.

    `counts` are the seeds behind every cell, by the row's label and its pair; `figures` are the paper's texts.
    """
    return list(filter(None, _notes(results, counts, figures, round)))


def is_of_a_round(metric: str) -> bool:
    """Whether a metric is measured in a round, and not over a whole run.

    >>> is_of_a_round("amp"), is_of_a_round("bytes_total"), is_of_a_round("rounds to amp 0.75")
    (True, False, False)
    """
    return metric.startswith("note ") or (metric in METRICS and METRICS[metric].source == "view")


def axes_note(results: Results) -> list[str]:
    """What the columns are named by, if a name has bare numbers."""
    if not any(NUMBER.fullmatch(label) for column in results.columns for label in column.split(", ")):
        return []
    return [f"Columns are named by {listed(axes_of(results.item, results.scale))}."]


def setting(results: Results) -> list[str]:
    """How the scale differs from the paper, and what the item's note says."""
    return list(filter(None, [results.item.scale(results.scale).differs, results.item.note]))


def _notes(
    results: Results, counts: Mapping[tuple[str, Pair], int], figures: Sequence[str], round: str
) -> Iterator[str]:
    item, seeds = results.item, results.seeds
    over = (
        f"{len(seeds)} seeds ({listed([str(seed) for seed in seeds])})" if len(seeds) != 1 else f"seed {seeds[0]} only"
    )
    yield f"Ours: {f'{in_words(round)}; ' if round else ''}{over}."
    smoke = "; data, networks and rounds are tiny, so that the figures show only that it runs"
    yield f"Scale: {results.scale}{smoke if results.scale == 'smoke' else ''}."
    yield from axes_note(results)
    yield from _gaps(counts, len(seeds))
    known = sum(text != MISSING for text in figures)
    if known < len(figures):
        yield f"Published figures: for {known} of {len(figures)} cells."
    others = [one.column for one in item.published if one.column not in map(results.paper_column, results.columns)]
    yield f"Columns of the paper that are not run: {listed(others)}." if others else ""
    yield "* A control, which the paper does not have." if any(row.control for row in item.rows) else ""


def _gaps(counts: Mapping[tuple[str, Pair], int], seeds: int) -> Iterator[str]:
    """A sentence on cells without a value, and one on cells with fewer seeds than the others."""
    empty = [cell for cell, count in counts.items() if not count]
    few = [cell for cell, count in counts.items() if 0 < count < seeds]
    if len(empty) == len(counts):
        yield "No run is recorded." if counts else ""
    elif empty:
        yield f"{MISSING}: nothing is recorded, in {_cells(empty, len(counts))}."
    if few:
        least = min(counts[cell] for cell in few)
        yield f"Fewer seeds, at least {least}, in {_cells(few, len(counts))}."


def _cells(cells: Sequence[tuple[str, Pair]], total: int) -> str:
    if len(cells) > NAMED:
        return f"{len(cells)} of {total} cells"
    return "; ".join(
        f"{label} ({', '.join(filter(None, (column, metric_heading(metric))))})" for label, (column, metric) in cells
    )


def _where(results: Results, pairs: Sequence[Pair]) -> str:
    """The columns of a table, if others of the same item have their own."""
    columns = list(dict.fromkeys(column for column, _ in pairs))
    if len(columns) == len(results.columns):
        return ""
    common = {column.rpartition(", ")[0] for column in columns}
    return common.pop() if len(columns) > 1 and len(common) == 1 and common != {""} else "; ".join(columns)
