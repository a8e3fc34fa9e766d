"""Runs side by side: what the terminal, a data frame, an exported table and JSON all say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedalloy.report import leads, table, tables
from fedalloy.report.facts import warnings
from fedalloy.report.gains import Gains, gains
from fedalloy.report.trained import Doubts, doubts, told
from fedalloy.report.verdict import verdict
from fedalloy.storage.differences import told_apart, unequal
from fedalloy.storage.results import Run, Selection
from fedalloy.storage.rows import Row, check_selection, rows, too_few


@dataclass(frozen=True)
class Compared:
    """Runs in the selected round, told apart where they differ in more than the seed, and what there is to say of them.

    `caveats` are about the runs; the sentences that explain a table's marks belong to the table.
    """

    runs: Sequence[Run]
    selection: Selection
    rows: Sequence[Row]
    names: Mapping[str, str]  # the registered method behind each label
    doubts: Doubts
    caveats: Sequence[str]

    def table(self, shown: table.Shown = "comparison") -> tables.Table:
        """The comparison with all its columns, to be written in any format."""
        return table.comparison(self.rows, self.names, self.doubts, shown, notes=self.caveats)

    def rivals(self, metric: str = "") -> leads.Rivals:
        """How far the methods are apart in a metric, by default the first of the table."""
        return leads.rivals(self.rows, self.names, self.doubts, metric)

    def gains(self) -> list[Gains]:
        """Each client's gain over local training and other references; none for a single method."""
        return gains(self.runs, self.selection) if len(self.names) > 1 else []

    def verdict(self, clients: Sequence[Gains]) -> str:
        """Whether federating pays; empty for a single method."""
        if len(self.names) < 2:
            return ""
        return verdict(list(self.rows), names=self.names, clients=clients, doubts=self.doubts)

    def answer(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "selection": self.selection,
            "runs": [
                {"label": run.label, "method": run.name, "seed": run.seed, "folder": run.folder and f"{run.folder}"}
                for run in self.runs
            ],
            "table": table.records(self.rows, self.names, self.doubts),
            "leads": leads.records(self.rivals()),
            "notes": [*self.table().notes],
            "verdict": self.verdict(self.gains()),
        }


def compared(runs: Sequence[Run], selection: Selection = "last") -> Compared:
    """Put runs side by side; those without an evaluated round are left out.

    >>> compared([]).rows
    []
    """
    runs = [run for run in runs if run.views]
    check_selection(runs, selection)
    differences = unequal(runs, selection)
    runs = told_apart(runs, selection)
    return Compared(
        runs,
        selection,
        [row for run in runs for row in rows(run, selection)],
        {run.label: run.name for run in runs},
        doubts(runs, selection),
        [*too_few(runs, selection), *warnings(runs), *differences],
    )


def sentences(found: Compared) -> list[str]:
    """What a terminal says under the comparison: what marks on models mean, and the caveats."""
    return [*told(found.doubts), *found.caveats]
