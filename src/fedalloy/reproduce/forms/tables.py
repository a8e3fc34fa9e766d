"""Tables in the papers' own form: our means with their deviations, the paper's figures, and the gap between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedalloy.base.text import MISSING, TIMES, number
from fedalloy.federation.metrics import METRICS
from fedalloy.report.table import is_score
from fedalloy.report.tables import Table
from fedalloy.reproduce.catalogue import Published
from fedalloy.reproduce.forms.tables_layout import (
    Pair,
    Part,
    assembled,
    blocks,
    heading_of,
    is_of_a_round,
    metric_heading,
    notes,
    paper_text,
    setting,
    signed,
    written,
)
from fedalloy.reproduce.forms.tables_settings import settings
from fedalloy.reproduce.forms.tables_targets import targets
from fedalloy.reproduce.results import Results
from fedalloy.storage.results import is_selection


def scores(results: Results) -> list[Table]:
    """The table as the paper prints it: ours, the paper's figure and the gap; then what other rounds would show."""
    found: list[Table] = []
    for block in blocks(_pairs(results)):
        parts = [_beside(results, pair) for pair in block]
        told = [*_notes(results, block, round=results.item.round), *([] if found else setting(results))]
        found.append(assembled(results, "", block, parts, told))
    chosen = [(column, metric) for column, metric in _pairs(results) if is_of_a_round(metric)]
    return found + [_influence(results, block) for block in blocks(chosen)]


def costs(results: Results) -> list[Table]:
    """What each row costs, its ratio to the first row, and the same of the paper; scores are shown with their gap."""
    found: list[Table] = []
    for block in blocks(_pairs(results)):
        parts = [
            _beside(results, pair) if pair[1] in METRICS and is_score(pair[1]) else _cost(results, pair)
            for pair in block
        ]
        told = [*_notes(results, block), f"Ratios are to {results.item.rows[0].label}."]
        found.append(assembled(results, "", block, parts, [*told, *([] if found else setting(results))]))
    return found


TABLES: dict[str, Callable[[Results], list[Table]]] = {
    "scores": scores,
    "targets": targets,
    "costs": costs,
    "settings": settings,
}


def _pairs(results: Results) -> list[Pair]:
    return [(column, metric) for column in results.columns for metric in results.item.metrics]


def _beside(results: Results, pair: Pair) -> Part:
    """Ours, the paper's and the gap; without any figure of the paper, ours only."""
    values, papers = _values(results, pair), _papers(results, pair)
    columns = {"ours": [written(pair[1], own) for own in values]}
    if any(text != MISSING for text in papers):
        columns["paper"] = papers
        columns["gap"] = [_gap(own, Published.of(text)) for own, text in zip(values, papers, strict=True)]
    return Part(_heading(results, pair), columns)


def _cost(results: Results, pair: Pair) -> Part:
    values, papers = _values(results, pair), _papers(results, pair)
    columns = {"ours": [written(pair[1], own) for own in values], "ratio": _ratios([_mean(own) for own in values])}
    if any(text != MISSING for text in papers):
        figures = [Published.of(text) for text in papers]
        columns["paper"] = [_in_unit(pair[1], text, figure) for text, figure in zip(papers, figures, strict=True)]
        columns["paper's ratio"] = _ratios([None if figure is None else figure.value for figure in figures])
    return Part(_heading(results, pair), columns)


def _influence(results: Results, block: Sequence[Pair]) -> Table:
    """The same rows in other rounds: the paper's choice, the best by the metric, the last, and a mean of the last."""
    item, parts = results.item, []
    for pair in block:
        rounds = dict.fromkeys([item.round, _best(pair[1]), "last", "mean of last 10"])
        columns = {
            _round_heading(round, item.round): [
                written(pair[1], list(results.values(row, *pair, round).values()), spread=False) for row in item.rows
            ]
            for round in rounds
        }
        parts.append(Part(_heading(results, pair), columns))
    told = [
        *_notes(results, block, figures=False),
        "A mean of the last 10 is over all evaluated rounds if there are fewer.",
    ]
    return replace(assembled(results, "how much the reported round matters", block, parts, told), aside=True)


def _round_heading(round: str, papers: str) -> str:
    """A selection of rounds above its column.

    >>> _round_heading("best by amp", "best by amp"), _round_heading("last", "best by amp")
    ('best by AMP (paper)', 'last')
    """
    shown = round.replace("by amp", "by AMP")
    return f"{shown} (paper)" if round == papers else shown


def _best(metric: str) -> str:
    """The selection of the best round by a metric; by AMP, if rounds are not selected by it."""
    return f"best by {metric}" if is_selection(f"best by {metric}") else "best by amp"


def _heading(results: Results, pair: Pair) -> str:
    one = len(results.item.metrics) == 1 and len(results.columns) > 1
    return heading_of(results, pair[0], "" if one else metric_heading(pair[1]))


def _values(results: Results, pair: Pair) -> list[list[float]]:
    return [list(results.values(row, *pair).values()) for row in results.item.rows]


def _papers(results: Results, pair: Pair) -> list[str]:
    column = results.paper_column(pair[0])
    return [paper_text(results.item, row, column, pair[1]) for row in results.item.rows]


def _notes(results: Results, block: Sequence[Pair], *, round: str = "", figures: bool = True) -> list[str]:
    rows = results.item.rows
    counts = {(row.label, pair): len(results.values(row, *pair)) for row in rows for pair in block}
    texts = [text for pair in block for row, text in zip(rows, _papers(results, pair), strict=True) if not row.control]
    return notes(results, counts, texts if figures else (), round=round)


def _gap(own: Sequence[float], figure: Published | None) -> str:
    mean = _mean(own)
    return MISSING if mean is None or figure is None else signed(mean - figure.value)


def _ratios(values: Sequence[float | None]) -> list[str]:
    first = values[0]
    return [MISSING if not first or value is None else f"{number(value / first)}{TIMES}" for value in values]


def _in_unit(metric: str, text: str, figure: Published | None) -> str:
    """A figure of the paper in a readable unit, if it is one of bytes or seconds."""
    if figure is None or metric not in METRICS or METRICS[metric].unit not in ("bytes", "seconds"):
        return text
    return METRICS[metric].write(figure.value)


def _mean(own: Sequence[float]) -> float | None:
    return math.fsum(own) / len(own) if own else None
