"""Statistics of columns that no one has in one place, against NumPy on all rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedalloy.data.columns import MOST_VALUES, Column, Preparation, PreparedColumn, Recipe, agree, summarise
from fedalloy.data.sketch import LAST_BIN, middle, sketch
from fedalloy.errors import DataError

ONE = [Column("a")]


def rows(values: Any) -> Any:
    return np.asarray(values, np.float32).reshape(-1, 1)


def agreed(clients: list[Any], recipe: Recipe, columns: Any = ONE) -> Preparation:
    return agree([summarise(one, columns, recipe) for one in clients], columns, recipe)


def drawn(unit: float, shift: float = 0.0) -> list[Any]:
    stream = np.random.default_rng(3)
    return [rows((stream.lognormal(k, 1, 40 + 30 * k) + shift) * unit) for k in range(4)]


@pytest.mark.parametrize("shift", [0.0, -5.0, 30.0])
@pytest.mark.parametrize("unit", [1e-30, 1e-12, 1e-7, 1.0, 1e6, 1e15, 1e30])
def test_mean_std_and_median_are_those_of_all_rows(unit: float, shift: float) -> None:
    clients = drawn(unit, shift)
    every = np.concatenate(clients).astype(np.float64)[:, 0]
    found = agreed(clients, Recipe("median")).columns[0]
    assert found.mean == pytest.approx(every.mean(), rel=1e-12, abs=0)
    assert found.std == pytest.approx(every.std(), rel=1e-12, abs=0)
    assert found.fill == pytest.approx(np.quantile(every, 0.5, method="lower"), rel=0.01, abs=0)
    filled = agreed(clients, Recipe("mean")).columns[0]
    assert filled.fill == filled.mean


def test_missing_values_count_for_nothing() -> None:
    clients = [np.where(np.arange(len(one))[:, None] % 3 == 0, np.nan, one).astype(np.float32) for one in drawn(1.0)]
    every = np.concatenate(clients).astype(np.float64)[:, 0]
    found = agreed(clients, Recipe("mean")).columns[0]
    assert (found.mean, found.std) == (
        pytest.approx(np.nanmean(every), rel=1e-12, abs=0),
        pytest.approx(np.nanstd(every), rel=1e-12, abs=0),
    )


@pytest.mark.parametrize("impute", ["mean", "median", "most_frequent"])
def test_the_order_of_clients_does_not_matter_to_the_last_bit(impute: Any) -> None:
    stream = np.random.default_rng(0)
    columns = [Column("a"), Column("c", ("x", "y", "z"))]
    clients = [
        np.stack([stream.integers(0, 40, n) / 7, stream.integers(0, 3, n)], axis=1).astype(np.float32)
        for n in (17, 5, 29, 11)
    ]
    told = [summarise(one, columns, Recipe(impute)) for one in clients]
    found = {agree(order, columns, Recipe(impute)) for order in itertools.permutations(told)}
    assert len(found) == 1
    told = [summarise(rows([value]), ONE, Recipe()) for value in (1e30, 1.0, -1e30)]  # a plain sum would lose the 1
    assert {agree(order, ONE, Recipe()).columns[0].mean for order in itertools.permutations(told)} == {1 / 3}


@pytest.mark.parametrize("value", [0.0, -3.7, 1e-20, 0.1, 1e9, 16777216.0, -1e30])
def test_a_constant_column_becomes_zeros(value: float) -> None:
    clients = [rows([value] * n) for n in (1, 7, 900)]
    found = agreed(clients, Recipe())
    assert found.columns[0].std == 1.0
    # The rest of the mean's rounding is not blown up.
    assert found.apply(clients[1], ONE) == pytest.approx(np.zeros((7, 1)), abs=1e-6 * max(1.0, abs(value)))


def test_a_column_that_is_empty_at_some_clients_is_that_of_the_others() -> None:
    empty, held = rows([np.nan] * 4), rows([1.0, 3.0, 3.0])
    for impute, fill in (("mean", 7 / 3), ("median", 3.0), ("most_frequent", 3.0)):
        found = agreed([empty, held], Recipe(impute)).columns[0]  # type: ignore[arg-type]
        assert found.fill == pytest.approx(fill, rel=0.01, abs=0)
        assert found == agreed([held], Recipe(impute)).columns[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("impute", ["mean", "median", "most_frequent"])
@pytest.mark.parametrize("column", [Column("a"), Column("a", ("x",))])
def test_a_column_that_is_empty_everywhere_is_named(impute: Any, column: Column) -> None:
    with pytest.raises(DataError, match=r"'a'.*data\.drop"):
        agreed([rows([np.nan] * 4)] * 2, Recipe(impute), [column])


def test_the_most_frequent_number_is_that_of_all_rows() -> None:
    clients = [rows([2, 2, 2, 5]), rows([5, 5, 5, 7]), rows([7, 7])]
    assert agreed(clients, Recipe("most_frequent")).columns[0].fill == 5.0  # at no client alone
    assert agreed([rows([10, 9])], Recipe("most_frequent")).columns[0].fill == 9.0  # the smaller of two, as numbers
    zeros = [rows([-0.0, -0.0, 1, 1, 1]), rows([0.0, 0.0])]  # which are one number
    assert agreed(zeros, Recipe("most_frequent")).columns[0].fill == 0.0


def test_too_many_numbers_for_the_most_frequent_are_refused() -> None:
    assert agreed([rows(range(MOST_VALUES))], Recipe("most_frequent")).columns[0].fill == 0.0
    with pytest.raises(DataError, match=r"'a'.*data\.impute"):
        agreed([rows(range(MOST_VALUES + 1))], Recipe("most_frequent"))


def test_categories_are_the_sorted_union_and_the_most_frequent_fills() -> None:
    north, south = Column("sex", ("m", "f")), Column("sex", ("x", "f", "never"))
    recipe = Recipe("mean")
    told = [summarise(rows([0, 0, 0]), [north], recipe), summarise(rows([0, 1, 1, 1, np.nan]), [south], recipe)]
    found = agree(told, [Column("sex", ())], recipe)
    assert found.columns[0].categories == ("f", "m", "x")  # nobody told of the one without rows
    assert found.columns[0].fill == "f"  # three at each of two, and the first by name
    assert found.inputs == ("sex=f", "sex=m", "sex=x")
    ready = found.apply(rows([0, 1, 2, np.nan]), [south]).tolist()
    assert ready == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [1, 0, 0]]  # a category that is not known becomes zeros


def test_given_categories_are_kept_in_their_order() -> None:
    sex = Column("sex", ("f", "m"))
    recipe = Recipe("mean", categories={"sex": ("m", "x", "f")})
    assert not recipe.asks([sex])
    found = agree([], [sex], recipe)
    assert found.apply(rows([0, 1, np.nan]), [sex]).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]


def test_a_missing_value_without_imputation_is_refused_with_its_row() -> None:
    ready = Preparation((PreparedColumn("a"),))
    with pytest.raises(DataError, match=r"'a'.*row 1"):
        ready.apply(rows([1.0, np.nan]), ONE)


@pytest.mark.parametrize(("mean", "std"), [((1.0,), (1.0, 2.0)), ((1.0, 2.0), (1.0,)), ((1.0,) * 3, (1.0,) * 3)])
def test_as_many_constants_as_columns_of_numbers_are_needed(mean: Any, std: Any) -> None:
    with pytest.raises(DataError, match=r"data\.mean"):
        agree([], [Column("a"), Column("sex", ("f",)), Column("b")], Recipe(mean=mean, std=std))


def test_pixels_are_added_up_exactly() -> None:
    stream = np.random.default_rng(0)
    clients = [stream.integers(0, 256, (n, 2, 5, 5)).astype(np.uint8) for n in (3, 8, 20)]
    columns = [Column("channel 0"), Column("channel 1")]
    found = agreed(clients, Recipe(), columns)
    every = np.concatenate(clients).astype(np.float64) / 255
    assert [c.mean for c in found.columns] == pytest.approx(every.mean(axis=(0, 2, 3)), rel=1e-14, abs=0)
    assert [c.std for c in found.columns] == pytest.approx(every.std(axis=(0, 2, 3)), rel=1e-13, abs=0)
    told = summarise(clients[0], columns, Recipe()).columns["channel 0"]
    whole = clients[0][:, 0].astype(np.int64)
    assert (told.present, told.total, told.squares) == (75, int(whole.sum()) / 255, int((whole**2).sum()) / 255**2)


@pytest.mark.parametrize("value", [0.0, 1e-38, 3e-20, 1e-9, 0.99, 1.0, 1.02, 7.5, 1e12, 3e38])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_bin_is_within_one_per_cent(value: float, sign: float) -> None:
    (place,) = sketch(np.array([sign * value]))
    assert abs(place) <= LAST_BIN
    assert middle([{place: 1}]) == pytest.approx(sign * value, rel=0.01, abs=0)


def test_the_lower_of_two_middles_is_the_median() -> None:
    for values in ([1.0], [1, 2], [1, 2, 3], [-4, -2, 0, 5], [-1, -1, 0, 0, 0, 8]):
        found = middle([sketch(np.array(values[k::2], np.float64)) for k in range(2)])
        assert found == pytest.approx(np.quantile(values, 0.5, method="lower"), rel=0.01, abs=0)


def test_a_missing_number_becomes_its_fill_and_not_the_mean() -> None:
    ready = Preparation((PreparedColumn("age", mean=10.0, std=4.0, fill=30.0),))
    assert ready.apply(np.array([[np.nan], [18.0]], np.float32), [Column("age")]).tolist() == [[5.0], [2.0]]
