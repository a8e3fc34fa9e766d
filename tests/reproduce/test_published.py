"""The figures that papers print: an item's own, or those of the experiment's published tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedalloy.errors import DataError
from fedalloy.reproduce.catalogue import Item, Published, PublishedColumn, Row, Scale, papers
from fedalloy.reproduce.published import published

KNFU = Item(
    "table1",
    "MNIST",
    "4",
    "scores",
    full=Scale(experiment="knfu-mnist", columns=("50, 0.1", "50, 1"), stands_for={"50, 1": "50 samples, alpha 1"}),
    cpu=Scale(),
    smoke=Scale(),
    rows=(Row("KnFu", "knfu", "personal"), Row("FedMD [7]", "FedMD", "personal"), Row("Alone", "local", "personal")),
    metrics=("alma",),
)


def test_they_come_from_the_experiment_by_cell_row_and_view():
    found = published(KNFU)
    assert {key: figure.value for key, figure in found.items()} == {
        ("KnFu", "50, 0.1", "alma"): 93.5,
        ("FedMD [7]", "50, 0.1", "alma"): 88.7,
        ("Alone", "50, 0.1", "alma"): 92.4,
        ("KnFu", "50 samples, alpha 1", "alma"): 78.5,
        ("FedMD [7]", "50 samples, alpha 1", "alma"): 76.5,
        ("Alone", "50 samples, alpha 1", "alma"): 75.3,
    }
    assert found["KnFu", "50, 0.1", "alma"] == Published("93.5 ± 0.6", 93.5, 0.6)


def test_another_view_and_another_table_have_none():
    assert published(replace(KNFU, rows=(Row("KnFu", "knfu", "distilled"),))) == {}
    assert published(replace(KNFU, id="table2")) == {}


def test_a_figure_rests_on_the_tables_of_its_cells():
    assert published(replace(KNFU, id="fig2")) == published(KNFU)


def test_another_setting_has_none():
    elsewhere = replace(KNFU.full, set={"partition.clients": 10})
    assert published(replace(KNFU, full=elsewhere)) == {}


def test_an_items_own_figures_replace_them_and_gaps_are_left_out():
    own = PublishedColumn("50", (("KnFu", "93.5", "1"), ("Alone", "", "> 60")))
    found = published(replace(KNFU, metrics=("alma", "fm"), published=(own,)))
    assert list(found) == [("KnFu", "50", "alma"), ("KnFu", "50", "fm")]


@pytest.mark.parametrize("row", [("KnFu", "1", "2"), ("KnFV", "1")])
def test_figures_are_of_rows_that_are_there_one_for_each_metric(row):
    with pytest.raises(DataError):
        published(replace(KNFU, published=(PublishedColumn("50", (row,)),)))


@pytest.mark.parametrize("name", papers())
def test_the_papers_figures_can_be_read(name):
    for item in papers()[name].items:
        if item.metrics and item.rows:
            published(item)
