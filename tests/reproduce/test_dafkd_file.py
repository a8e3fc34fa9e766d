"""DaFKD's file: every item plans its runs at every scale, and its figures are the paper's."""

from __future__ import annotations

import pytest

from fedalloy.config.experiment import experiment
from fedalloy.reproduce.catalogue import SCALES, Item, paper
from fedalloy.reproduce.plan import columns, jobs
from fedalloy.reproduce.published import published

ITEMS = paper("dafkd").items


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_every_item_plans_its_runs(item: Item, scale: str) -> None:
    planned = jobs(item, scale)
    assert bool(planned) == bool(item.rows)
    assert {job.method for job in planned} <= {row.method for row in item.rows}


def test_items_share_their_runs_at_reduced_scale() -> None:
    keys = {name: {job.key for job in jobs(paper("dafkd").item(name), "cpu")} for name in ("table1", "table3a", "fig3")}
    shared = keys["table1"] | keys["table3a"]
    for name in ("table2", "table3b", "fig4"):
        assert {job.key for job in jobs(paper("dafkd").item(name), "cpu")} <= shared
    assert len(keys["fig3"] - shared) == 9  # the methods and seeds at alpha 10


@pytest.mark.parametrize("scale", ["full", "cpu"])
def test_the_usual_settings_of_figure_6_are_one_run(scale: str) -> None:
    found = {job.column: job.key for job in jobs(paper("dafkd").item("fig6"), scale, seeds=[0])}
    usual = [key for column, key in found.items() if column in ("E = 20", "steps = 120", "B = 32", "d = 100")]
    assert len(usual) == 3
    assert len(set(usual)) == 1


@pytest.mark.parametrize("item", [item for item in ITEMS if item.rows], ids=lambda item: item.id)
def test_claims_name_columns_of_the_full_scale(item: Item) -> None:
    known = {job.column for job in jobs(item, "full", seeds=[0])}
    for claim in paper("dafkd").claims:
        if claim.item == item.id:
            assert {*claim.columns, *claim.right_columns} <= known, claim.id


@pytest.mark.parametrize(
    ("column", "row", "figure"),
    [
        ("SVHN, 0.1", ("DaFKD", "aca"), "72.80 ± 0.11"),
        ("SVHN, 0.1", ("FedDF", "global"), "66.78 ± 0.33"),
        ("FMNIST, 0.05", ("FedProx", "aca"), "39.71 ± 0.23"),
        ("EMNIST, 10", ("FedFTG", "aca"), "82.65 ± 1.04"),
        ("MNIST, 0.05", ("no-sharing", "aca"), "84.67 ± 0.92"),
        ("FMNIST, 0.1", ("no-correlation", "aca"), "64.35 ± 1.87"),
    ],
)
def test_figures_of_tables_1_and_3a(column: str, row: tuple[str, str], figure: str) -> None:
    cell = next(cell for cell in columns(paper("dafkd").item("table1"), "full") if cell.name == column)
    exp = experiment(cell.values)
    table = next(
        table
        for table in exp.published
        if table.where["data.name"] == exp.data.name
        and table.where["partition.alpha"] == exp.partition.options["alpha"]
    )
    assert [*row, figure] in [list(found) for found in table.rows]


@pytest.mark.parametrize(
    ("item", "column", "row", "metric", "figure"),
    [
        ("table2", "SVHN, 0.1", "DaFKD", "rounds to test 0.6", "18.67 ± 1.33"),
        ("table2", "SVHN, 0.1", "FedAvg", "rounds to test 0.6", "> 60"),
        ("table2", "EMNIST, 0.1", "FedAvg", "rounds to test 0.65", "16.33 ± 6.33"),
        ("table2", "MNIST, 0.1", "FedDFusion", "rounds to test 0.9", "46.33 ± 2.33"),
        ("table2", "FMNIST, 0.1", "FedGen", "rounds to test 0.5", ""),
        ("table3b", "EMNIST, 0.1", "DaFKD no-sharing", "rounds to test 0.7", "45.66 ± 1.67"),
        ("table3b", "FMNIST, 0.1", "DaFKD no-correlation", "rounds to test 0.65", "37.67 ± 1.67"),
    ],
)
def test_figures_of_tables_2_and_3b(item: str, column: str, row: str, metric: str, figure: str) -> None:
    found = paper("dafkd").item(item)
    table = next(table for table in found.published if table.column == column)
    texts = next(texts for label, *texts in table.rows if label == row)
    assert texts[found.metrics.index(metric)] == figure


def test_published_rows_are_complete() -> None:
    for item in ITEMS:
        for table in item.published:
            for label, *texts in table.rows:
                item.row(label)
                assert len(texts) == len(item.metrics)


def test_points_that_are_only_in_a_plot_have_no_figure() -> None:
    assert {column for _, column, _ in published(paper("dafkd").item("fig5"))} == {"SVHN, 0.4", "FMNIST, 0.4"}
    for name in ("fig4", "fig6"):  # curves; SVHN, where the reduced scale has other data
        assert not published(paper("dafkd").item(name))
