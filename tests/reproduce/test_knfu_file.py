"""KnFu's file: every item plans its runs at every scale, and its figures are the paper's."""

from __future__ import annotations

import pytest

from fedalloy.reproduce.catalogue import SCALES, Item, paper
from fedalloy.reproduce.plan import jobs
from fedalloy.reproduce.published import published

ITEMS = paper("knfu").items


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_every_item_plans_its_runs(item: Item, scale: str) -> None:
    planned = jobs(item, scale)
    assert bool(planned) == bool(item.rows)
    assert {job.method for job in planned} <= {row.method for row in item.rows}


def test_cpu_columns_of_table_1_and_the_figures_are_runs_of_the_full_scale() -> None:
    table = {job.key for job in jobs(paper("knfu").item("table1"), "full")}
    for name in ("table1", "fig3", "fig4"):
        item = paper("knfu").item(name)
        assert {job.key for scale in ("cpu", "full") for job in jobs(item, scale)} <= table


@pytest.mark.parametrize(
    ("item", "column", "row", "figure"),
    [
        ("table1", "50, 0.1", "KnFu", "93.5 ± 0.6"),
        ("table1", "50, 0.1", "Local", "92.4 ± 2.7"),
        ("table1", "200, 0.5", "Local", "89.9 ± 0.0"),
        ("table1", "200, 1", "Selective-FD", "92.2 ± 0.8"),
        ("table2", "500, 0.1", "FedMD", "50.50 ± 2.51"),
        ("table2", "1000, 1", "Local", "50.90 ± 2.30"),
    ],
)
def test_published_figures(item: str, column: str, row: str, figure: str) -> None:
    assert published(paper("knfu").item(item))[row, column, "alma"].text == figure
