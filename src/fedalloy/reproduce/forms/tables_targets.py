"""What each row takes to reach a target, in rounds or another cost, and how much faster than the first row that is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedalloy.base.text import MISSING, number
from fedalloy.errors import DataError
from fedalloy.federation.metrics import METRICS
from fedalloy.report.tables import Table
from fedalloy.report.targets import REACHABLE, Reached, Target, speed_up
from fedalloy.reproduce.catalogue import Item, Row
from fedalloy.reproduce.forms.tables_layout import Pair, Part, assembled, blocks, heading_of, notes, paper_text, setting
from fedalloy.reproduce.results import Results, reached_in
from fedalloy.storage.results import Run
from fedalloy.storage.rows import cost

WORDS = re.compile(r"(\w+) (?:(0?\.\d+|1)|(best|last) of (.+))")


@dataclass(frozen=True)
class Goal:
    """A target: a share that is to be reached, or what a row of the table reaches at best or in its last round."""

    metric: str
    share: float | None
    when: str = ""
    row: str = ""

    @staticmethod
    def of(item: Item, text: str) -> Goal:
        """Read it: "test 0.55", "test best of FedAvg", "amp last of FedAvg"."""
        words = WORDS.fullmatch(text.removeprefix("rounds to "))
        if words is None or words[1] not in REACHABLE:
            raise DataError(
                f"{item.paper} {item.id}: the target '{text}' is none; write a metric and a share, 'test 0.55', or "
                "'test best of ROW'"
            )
        if words[4]:
            item.row(words[4])
        return Goal(words[1], float(words[2]) if words[2] else None, words[3] or "", words[4] or "")

    @property
    def heading(self) -> str:
        """As a column names it.

        >>> Goal("test", 0.55).heading, Goal("amp", None, "last", "FedAvg").heading
        ('Test 55 %', "FedAvg's last AMP")
        """
        if self.share is not None:
            return Target(self.metric, self.share).heading
        return f"{self.row}'s {self.when} {METRICS[self.metric].heading.removesuffix(' %')}"

    def value(self, results: Results, column: str, seed: int) -> float | None:
        """The share to be reached by a seed; None if the row that sets it is not recorded."""
        if self.share is not None:
            return self.share
        row = results.item.row(self.row)
        run = results.run(row, column, seed)
        if run is None or row.view not in run.views:
            return None
        values = run.series(row.view, self.metric)[1]
        values = values[~np.isnan(values)]
        return None if not values.size else float(values.max() if self.when == "best" else values[-1])


def targets(results: Results) -> list[Table]:
    """For each target what it takes to reach it, the speed-up over the first row, and the paper's figure.

    The item's options name the targets, for all columns or for each of them: `targets = ["test 0.55"]`. Without them,
    they are its metrics "rounds to test 0.55". With the option `cost`, such as "training_seconds", that is counted and
    not rounds.
    """
    item, rows, counted = results.item, results.item.rows, _cost(results.item)
    goals = {column: _named(results, column) for column in results.columns}
    pairs = [(column, text) for column, texts in goals.items() for text in texts]
    spent = {(row.label, pair): _reached(results, row, pair) for row in rows for pair in pairs}
    found: list[Table] = []
    for block in blocks(pairs):
        parts, printed = [], []
        for pair in block:
            papers = [_paper(results, row, pair, goals) for row in rows]
            own, first = [spent[row.label, pair] for row in rows], spent[rows[0].label, pair]
            texts = [x.text(METRICS[counted].write) if counted else x.text() for x in own]
            columns = {
                METRICS[counted].heading.lower() if counted else "rounds": texts,
                "speed-up": [speed_up(x, first) for x in own],
            }
            if any(text != MISSING for text in papers):
                columns["paper"] = papers
            parts.append(Part(heading_of(results, pair[0], Goal.of(item, pair[1]).heading), columns))
            printed += [text for row, text in zip(rows, papers, strict=True) if not row.control]
        counts = {cell: len(x.seeds) for cell, x in spent.items() if cell[1] in block}
        told = [*notes(results, counts, printed), *_told(results, block), *([] if found else setting(results))]
        found.append(assembled(results, "", block, parts, told))
    return found


def _named(results: Results, column: str) -> Sequence[str]:
    chosen: Any = (results.item.options or {}).get("targets", results.item.metrics)
    if isinstance(chosen, Mapping):
        chosen = chosen.get(column, chosen.get(results.paper_column(column), ()))
    return [str(text) for text in chosen]


def _paper(results: Results, row: Row, pair: Pair, goals: Mapping[str, Sequence[str]]) -> str:
    place = goals[pair[0]].index(pair[1])
    return paper_text(results.item, row, results.paper_column(pair[0]), pair[1], place)


def _reached(results: Results, row: Row, pair: Pair) -> Reached:
    goal, found = Goal.of(results.item, pair[1]), []
    for seed in results.seeds:
        run, share = results.run(row, pair[0], seed), goal.value(results, pair[0], seed)
        if run is None or share is None or row.view not in run.views:
            continue
        hit, whole = reached_in(run, row.view, goal.metric, share), _spent(results.item, run, None)
        if whole is not None and not np.isnan(run.series(row.view, goal.metric)[1]).all():
            found.append((None if hit is None else _spent(results.item, run, hit), whole))
    return Reached(found)


def _spent(item: Item, run: Run, until: int | None) -> float | None:
    """What a run has spent until a round, or until its end; None if it was not recorded."""
    counted = _cost(item)
    if counted is None:
        return float(run.rounds[-1]["round"] if until is None else until)
    return cost(METRICS[counted], run, until)


def _cost(item: Item) -> str | None:
    """The cost that is counted; None for rounds."""
    return (item.options or {}).get("cost")


def _told(results: Results, block: Sequence[Pair]) -> list[str]:
    item, told = results.item, []
    told.append(f"> N: not reached in a run that takes N. The speed-up is over {item.rows[0].label}.")
    for column, text in block:
        goal = Goal.of(item, text)
        shares = [share for seed in results.seeds if (share := goal.value(results, column, seed)) is not None]
        if goal.row and shares:
            where = heading_of(results, column, goal.heading)
            told.append(f"{where}: {number(100 * math.fsum(shares) / len(shares))} %, each seed its own.")
    return told
