"""FedMD+Global's file: every item plans its runs at every scale, smoke runs work, and its figures are the paper's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalloy.reproduce.catalogue import SCALES, Item, paper
from fedalloy.reproduce.making import make, tasks
from fedalloy.reproduce.plan import jobs
from fedalloy.reproduce.published import figure_of, published
from fedalloy.reproduce.results import recorded

ITEMS = paper("fedmd-global").items


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_every_item_plans_its_runs(item: Item, scale: str) -> None:
    assert bool(jobs(item, scale)) == bool(item.rows)


def test_tables_2_and_3_share_the_runs_without_lwof() -> None:
    for scale in ("full", "cpu"):
        runs = [
            {job.folder for job in jobs(paper("fedmd-global").item(name), scale) if job.column.startswith("Ours")}
            for name in ("table2", "table3")
        ]
        assert runs[0] == runs[1]


def test_smoke_runs_give_each_method_the_rows_of_its_own(tmp_path: Path) -> None:
    for item in ITEMS:
        for task in tasks(jobs(item, "smoke", seeds=[0]), tmp_path):
            make(task)
        results = recorded(item, "smoke", tmp_path, seeds=[0])
        assert not results.missing
        for row in item.rows:
            for column in results.columns:
                own = (row.label == "FedAvg") == column.startswith("FedAvg")
                assert bool(results.values(row, column)) == own, (item.id, row.label, column)


@pytest.mark.parametrize(
    ("item", "column", "row", "figure"),
    [
        ("table2", "FedAvg (60%), 0.1, 5", "FedAvg", 60.4),
        ("table2", "FedAvg (40%), 0.1, 10", "FedAvg", 49.16),
        ("table2", "Ours, 0.5, 10", "Global", 68.74),
        ("table2", "Ours, 0.1, 5", "Personalised", 32.13),
        ("table3", "LwoF, 0.1, 10", "Global", 41.60),
        ("table3", "LwoF, 0.5, 5", "Distilled", 56.04),
    ],
)
def test_published_figures(item: str, column: str, row: str, figure: float) -> None:
    assert figure_of(published(paper("fedmd-global").item(item)), row, column, "amp") == figure
