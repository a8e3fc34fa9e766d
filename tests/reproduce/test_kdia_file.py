"""KDIA's tables, figures and claims as data."""

from __future__ import annotations

import pytest

from fedalloy.reproduce.catalogue import SCALES, Item, paper
from fedalloy.reproduce.plan import columns, jobs
from fedalloy.reproduce.published import published

KDIA = paper("kdia")
RUN = [item for item in KDIA.items if item.rows]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("item", RUN, ids=lambda item: item.id)
def test_every_item_plans_its_runs(item: Item, scale: str) -> None:
    chosen = item.scale(scale)
    planned = jobs(item, scale)
    rows = [row for row in item.rows if not chosen.rows or row.label in chosen.rows]
    assert {job.method for job in planned} == {row.method for row in rows}
    assert len(planned) == len({row.method for row in rows}) * len(columns(item, scale)) * len(chosen.seeds)
    assert all(len(job.key) == 12 for job in planned)


def test_items_share_their_runs() -> None:
    """The first claims need 57 runs in all, and what they share is run once."""
    first = ["table2", "text-heterogeneity", "table3", "table4", "table7", "fig6"]
    keys = {item: {job.key for job in jobs(KDIA.item(item), "cpu")} for item in first}
    assert keys["table4"] | keys["fig6"] <= keys["table2"]
    assert len(keys["table3"] & keys["table2"]) == 3  # KDIA itself
    assert len(keys["table7"] & keys["text-heterogeneity"]) == 9  # FedAvg, KDIA and the control at beta = 0.5
    assert len(set().union(*keys.values())) == 54


def test_tables_of_one_setting_share_their_runs_at_full_scale() -> None:
    """FedAvg, KDIA and the control on three data sets in Tables 2 and 7; the column N = 100, C = 0.1 of Table 5."""
    keys = {item: {job.key for job in jobs(KDIA.item(item), "full", [0])} for item in ("table2", "table5", "table7")}
    assert len(keys["table7"] & keys["table2"]) == 9
    assert len(keys["table5"] & keys["table2"]) == 7


def test_cifar_100_at_reduced_scale_has_10000_images_wherever_it_is_run() -> None:
    for cell in columns(KDIA.item("text-cifar100"), "cpu"):
        assert 100 * cell.values["data"]["per_class"] == 10_000


def test_claims_name_columns_of_the_full_scale() -> None:
    for claim in KDIA.claims:
        item = KDIA.item(claim.item)
        if claim.columns:
            known = {cell.name for cell in columns(item, "full")}
            assert {*claim.columns, *claim.right_columns} <= known, claim.id


def test_rounds_to_fedavgs_best_are_those_of_table_4() -> None:
    table = {column.column: dict(column.rows) for column in KDIA.item("table4").published}
    assert table["CIFAR-10, 0.1"] == {
        "FedAvg": "186",
        "MOON": "> 200",
        "FedGKD": "186",
        "FedDisco": "160",
        "Ours": "73",
    }
    assert [table[f"CIFAR-100, {beta}"]["Ours"] for beta in ("0.1", "0.5", "5.0")] == ["111", "45", "43"]
    assert [table[f"CINIC-10, {beta}"]["MOON"] for beta in ("0.1", "0.5", "5.0")] == ["> 200", "190", "104"]


@pytest.mark.parametrize("name", ["fig8", "fig8d"])
def test_table_2s_figures_stand_beside_the_chosen_setting_only(name: str) -> None:
    """Every cell of the figure has Table 2's data and partition, but only one of each beta its lambdas and tau."""
    item = KDIA.item(name)
    found = {column: figure.text for (label, column, _), figure in published(item).items() if label == "Ours(T)"}
    table2 = published(KDIA.item("table2"))
    assert len(found) == 3
    assert found == {column: table2["Ours(T)", f"CIFAR-10, {column.split(',')[0]}", "test"].text for column in found}
    assert {*found} < {cell.name for cell in columns(item, "full")}


def test_published_figures_are_those_of_the_tables() -> None:
    def text(item: str, *place: str) -> str:
        return published(KDIA.item(item))[*place, "test"].text

    assert text("table2", "Ours(T)", "CINIC-10, 0.1") == "46.07 ± 1.03"
    assert text("text-cifar100", "FedAvg", "CIFAR-100, 5.0") == "19.79 ± 0.30"
    assert text("table5", "MOON", "100, 0.2") == "66.12"
    assert text("table6", "FedProx", "CIFAR-10, 0.5") == "64.11"
    assert text("table7", "base+l_kd (T)", "CIFAR-100") == "24.88 ± 0.42"
    assert not published(KDIA.item("table3")), "its figures are not in the text"
