"""The figures that a paper prints in an item: its own, or those of the experiment that makes it at full scale."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

from fedalloy.config.experiment import experiment
from fedalloy.errors import DataError
from fedalloy.report.published import holding, reported
from fedalloy.reproduce.catalogue import Item, Published, papers
from fedalloy.reproduce.plan import columns, paper_column
from fedalloy.run.comparison import chosen, label_of, planned
from fedalloy.storage.results import averaged_rounds

Figures = Mapping[tuple[str, str, str], Published]
"""Published figures by the row's label, the paper's column and the metric."""


def published(item: Item) -> Figures:
    """What the paper prints: the item's own figures, else those of the full-scale experiment's published tables.

    A figure that the paper's text does not hold, or that is of another round, is left out.
    """
    known = papers().get(item.paper)
    if known is not None and any(item is one for one in known.items):
        return _remembered(item.paper, item.id)
    return _found(item)


@functools.cache
def _remembered(paper: str, item: str) -> Figures:
    return _found(papers()[paper].item(item))


def _found(item: Item) -> Figures:
    return dict(_own(item)) if item.published else dict(_derived(item))


def _own(item: Item) -> Iterator[tuple[tuple[str, str, str], Published]]:
    for column in item.published:
        for label, *texts in column.rows:
            item.row(label)
            if len(texts) != len(item.metrics):
                raise DataError(
                    f"{item.paper} {item.id}: '{label}' has {len(texts)} figures in the column '{column.column}', "
                    f'but there are {len(item.metrics)} metrics; give one for each, or ""'
                )
            for metric, text in zip(item.metrics, texts, strict=True):
                if figure := Published.of(text):
                    yield (label, column.column, metric), figure


def _derived(item: Item) -> Iterator[tuple[tuple[str, str, str], Published]]:
    """The figures of the published tables that hold for the cells at full scale, by label or key and view."""
    if not item.full.experiment or not item.rows:
        return
    for cell in columns(item, "full"):
        if not cell.values.get("published"):
            continue
        exp = experiment(cell.values)
        labels = {key: label_of(key, choice) for key, choice in chosen(exp).items()}
        for table in holding(planned(exp)):
            if not _names(table["source"], item) or not same_round(reported(table), item.round):
                continue
            printed = {(label, view): texts for label, view, *texts in table["rows"]}
            for row in item.rows:
                texts = printed.get((labels.get(row.method, row.method), row.view), printed.get((row.method, row.view)))
                for metric, text in zip(table["metrics"], texts or (), strict=False):
                    if figure := Published.of(text):
                        yield (row.label, paper_column(item, "full", cell.name), metric), figure


def _names(source: str, item: Item) -> bool:
    """Whether a published table's source is this table; figures and text rest on tables of any number.

    >>> from fedalloy.reproduce.catalogue import Scale
    >>> one = Item("tablexii", "", "", "scores", full=Scale(), cpu=Scale(), smoke=Scale())
    >>> _names("FedKF, Table V (and XII), alpha = 0.1", one), _names("FedKF, Table V, alpha = 1", one)
    (True, False)
    """
    number = re.match(r"table(\d+|[ivx]+)", item.id)
    if number is None:
        return True
    named = [
        part for found in re.findall(r"Tables? ([^,]*)", source) for part in re.findall(r"\b(?:\d+|[IVX]+)\b", found)
    ]
    return number[1] in [part.lower() for part in named]


def same_round(one: str, other: str) -> bool:
    """Whether figures of two selections compare: means of the last rounds do, however many rounds.

    >>> same_round("mean of last 5", "mean of last 10"), same_round("last", "best by test")
    (True, False)
    """
    return one == other or (averaged_rounds(one) is not None and averaged_rounds(other) is not None)


def figure_of(figures: Figures, label: str, column: str, metric: str) -> float | None:
    """One published value; None if the paper's text does not hold it.

    >>> figure_of({("FedAvg", "0.1", "amp"): Published("50.4 ± 1.9", 50.4, 1.9)}, "FedAvg", "0.1", "amp")
    50.4
    """
    found = figures.get((label, column, metric))
    return None if found is None else found.value
