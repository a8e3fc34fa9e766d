"""FedKF's file: every item plans its runs at every scale, and its figures are the paper's."""

from __future__ import annotations

import pytest

from fedalloy.config.experiment import experiment
from fedalloy.config.grid import cells
from fedalloy.config.overrides import SHIPPED, read_toml
from fedalloy.reproduce.catalogue import SCALES, Item, paper
from fedalloy.reproduce.plan import columns, jobs

FEDKF = paper("fedkf")
ROMAN = ("ii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")


def keys(name: str, scale: str) -> set[str]:
    return {job.key for job in jobs(FEDKF.item(name), scale)}


def test_all_result_tables_and_figures_are_there() -> None:
    wanted = {*(f"table{number}" for number in ROMAN), *(f"fig{number}" for number in range(2, 9))}
    assert wanted <= {item.id for item in FEDKF.items}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("item", FEDKF.items, ids=lambda item: item.id)
def test_every_item_plans_its_runs(item: Item, scale: str) -> None:
    planned = jobs(item, scale)
    assert bool(planned) == bool(item.rows)
    assert {job.method for job in planned} == {row.method for row in item.rows}


def test_items_share_their_runs() -> None:
    for scale in ("cpu", "full"):
        assert keys("tableix", scale) <= keys("tablev", scale)
        for name in ("tablex", "tablexi", "tablexii", "fig5", "fig6"):
            assert keys(name, scale) <= keys("tableviii", scale)
    assert keys("tableviii", "cpu") <= keys("tablev", "cpu")
    everywhere = keys("tableviii", "full")
    for name in ("tablev", "tablevi", "tablevii"):
        assert len(keys(name, "full") & everywhere) == 21  # the column alpha = 0.1
    assert len(keys("fig7", "cpu") & keys("tablev", "cpu")) == 6
    assert len(keys("fig8", "cpu") & keys("fig7", "cpu")) == 6
    assert keys("fig3", "cpu") <= keys("tableiv", "cpu")


def test_the_columns_that_claims_name_are_those_of_the_paper() -> None:
    for claim in FEDKF.claims:
        item = FEDKF.item(claim.item)
        if item.full.experiment:
            assert {*claim.columns, *claim.right_columns} <= {cell.name for cell in columns(item, "full")}, claim.id


def test_the_small_setting_differs_from_the_papers_in_what_it_says() -> None:
    small, full = (experiment(read_toml(SHIPPED / f"{name}.toml")) for name in ("fedkf-small", "fedkf-emnist"))
    for part in ("data", "partition", "model", "participation", "amp_weights"):
        assert getattr(small, part) == getattr(full, part)
    assert (small.rounds, small.training.epochs, small.training.lr) == (30, 5, 0.03)
    for name, choice in full.methods.items():
        options = {key: value for key, value in small.methods[name].options.items() if key != "width"}
        assert (options, small.methods[name].training) == (choice.options, choice.training)


@pytest.mark.parametrize(("file", "column"), [("fedkf-emnist", "EMNIST"), ("fedkf-cifar100", "CIFAR-100")])
def test_the_three_data_sets_are_those_of_their_own_tables(file: str, column: str) -> None:
    values = read_toml(SHIPPED / f"{file}.toml")
    own = experiment({key: value for key, value in values.items() if key not in ("axes", "published")})
    found = cells(read_toml(SHIPPED / "fedkf-datasets.toml"))[1]
    ours = experiment(next(cell.values for cell in found if cell.name == column))
    for part in ("data", "partition", "model", "training", "participation", "rounds", "amp_weights"):
        assert getattr(ours, part) == getattr(own, part)
    assert {name: ours.methods[name] for name in own.methods} == own.methods


@pytest.mark.parametrize(
    ("item", "column", "row"),
    [
        ("tableiv", "CIFAR-100", ("Student", "63.45")),
        ("tablevi", "alpha = 1", ("q-FFL", "73.96 ± 0.31", "0.716 ± 0.102", "68.59 ± 0.19")),
        ("tablevi", "alpha = 0.01", ("FedKF (OCA)", "54.74 ± 0.66", "27.92 ± 2.63", "29.86 ± 5.51")),
        ("tablevii", "alpha = 0.1", ("FedKF- (ACA)", "33.73 ± 0.73", "4.420 ± 1.189", "24.50 ± 1.21")),
        ("tablevii", "alpha = 0.01", ("FedKF (ACA)", "21.32 ± 0.78", "19.00 ± 0.55", "4.50 ± 0.16")),
        ("tableviii", "EMNIST", ("FedProx", ">100")),
        ("tableviii", "CIFAR-100", ("FedKF (OCA)", "52")),
        ("tableix", "EMNIST", ("FedGen", "1.5", "1.5", "1", "0")),
        ("tablex", "CIFAR-10", ("FedKF-", "5076")),  # 84 min 36 s
        ("tablexi", "EMNIST", ("FedKF (OCA)", "3min 52s")),
        ("tablexii", "CIFAR-10", ("FedAvg (OCA)", "65.82 ± 0.22", "11.94 ± 1.42", "44.21 ± 4.58")),
    ],
)
def test_published_figures(item: str, column: str, row: tuple[str, ...]) -> None:
    table = next(table for table in FEDKF.item(item).published if table.column == column)
    assert row in table.rows
