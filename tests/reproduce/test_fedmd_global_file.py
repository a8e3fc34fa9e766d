"""FedMD+Global's file: every item plans its runs at every scale, and its figures are the paper's."""

from __future__ import annotations

import pytest

from fedalloy.reproduce.catalogue import SCALES, Item, paper
from fedalloy.reproduce.plan import jobs
from fedalloy.reproduce.published import figure_of, published

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
