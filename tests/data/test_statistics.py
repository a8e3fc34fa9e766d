"""What another machine tells about columns: a site's summary and a server's preparation are checked before use."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fedalloy.data.columns import Column, Preparation, PreparedColumn, Recipe, agree, summarise
from fedalloy.data.sketch import LAST_BIN
from fedalloy.data.statistics import (
    LONGEST,
    MOST_CATEGORIES,
    gathered,
    preparation_text,
    read_preparation,
    read_summary,
    summary_text,
)
from fedalloy.errors import DataError

AGE, SEX = Column("age"), Column("sex", ("f", "m"))
COLUMNS = (AGE, SEX)
ROWS = np.array([[30.0, 0.0], [50.0, 1.0], [np.nan, 1.0], [50.0, np.nan]], np.float32)
TRUE = {
    "mean": {"present": 3, "total": 130.0, "squares": 5900.0},
    "median": {"present": 3, "total": 130.0, "squares": 5900.0, "histogram": {"4419": 3}},
    "most_frequent": {"present": 3, "total": 130.0, "squares": 5900.0, "values": {"30.0": 1, "50.0": 2}},
}


def told(age: Any = None, sex: Any = None, impute: str = "mean", **more: Any) -> str:
    """A summary of four rows that is true except for what is given."""
    columns = {"age": {**TRUE[impute], **(age or {})}, "sex": {"present": 3, "values": {"f": 1, "m": 2}, **(sex or {})}}
    return json.dumps({"rows": 4, "columns": columns, **more})


def refused(text: Any, impute: Any = "mean", columns: Any = COLUMNS) -> str:
    """The one sentence with which a summary is refused."""
    with pytest.raises(DataError) as caught:
        read_summary(text, columns, Recipe(impute))
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert len(sentence) < 600
    return sentence


@pytest.mark.parametrize("impute", [None, "mean", "median", "most_frequent"])
@pytest.mark.parametrize("constants", [False, True])
def test_what_an_honest_site_tells_is_read_as_it_was_told(impute: Any, constants: bool) -> None:
    recipe = Recipe(impute, (40.0,), (10.0,)) if constants else Recipe(impute)
    rows = ROWS if impute else ROWS[:2]
    summary = summarise(rows, COLUMNS, recipe)
    assert recipe.asks(COLUMNS)
    assert read_summary(summary_text(summary), COLUMNS, recipe) == summary


@pytest.mark.parametrize("impute", ["mean", "median", "most_frequent"])
def test_a_site_may_lack_all_values_of_a_column(impute: Any) -> None:
    summary = summarise(np.full((3, 2), np.nan, np.float32), COLUMNS, Recipe(impute))
    assert read_summary(summary_text(summary), COLUMNS, Recipe(impute)) == summary


def test_numbers_of_any_size_that_float32_has_may_be_told() -> None:
    largest = float(np.finfo(np.float32).max)
    rows = np.array([[largest], [largest], [-largest], [1e-45]], np.float32)
    for impute in (None, "median", "most_frequent"):
        summary = summarise(rows, [AGE], Recipe(impute))  # type: ignore[arg-type]
        assert read_summary(summary_text(summary), [AGE], Recipe(impute)) == summary  # type: ignore[arg-type]
        ready = agree([summary], [AGE], Recipe(impute))  # type: ignore[arg-type]
        assert read_preparation(preparation_text(ready), [AGE]) == ready


@pytest.mark.parametrize(
    "age",
    [
        {"present": -1},
        {"present": 5},
        {"present": 3.0},
        {"present": True},
        {"present": None},
        {"present": "3"},
        {"present": 10**400},
        {"total": float("nan")},
        {"total": float("inf")},
        {"total": -float("inf")},
        {"total": "130"},
        {"total": True},
        {"total": None},
        {"total": [1]},
        {"total": 10**400},
        {"total": 1e60, "squares": 1e300},
        {"total": 0.0, "squares": 1e79},  # three float32 numbers do not have that
        {"squares": float("nan")},
        {"squares": float("inf")},
        {"squares": -1.0},
        {"squares": 5633.0},  # the mean alone gives 130 ** 2 / 3
        {"squares": 0.0},
        {"total": 1e6},
        {"present": 0},
        {"present": 0, "total": 0.0},  # squares of no number
        {"mean": 43.0},
        {"values": []},
        {"values": None},
        {"values": {"30.0": 3}},  # was not asked
        {"histogram": {"0": 3}},  # was not asked
    ],
)
def test_numbers_that_cannot_be_true_are_refused(age: dict[str, Any]) -> None:
    assert "age" in refused(told(age))


@pytest.mark.parametrize(
    "histogram",
    [
        {str(LAST_BIN + 1): 3},
        {str(-LAST_BIN - 1): 3},
        {"1e3": 3},
        {"1.5": 3},
        {"1_0": 3},
        {" 1": 3},
        {"01": 3},
        {"-0": 3},
        {"+1": 3},
        {"\u0663": 3},
        {"nan": 3},
        {"inf": 3},
        {"": 3},
        {"9" * 5000: 3},
        {"1": 4},
        {"1": 2, "2": 2},
        {"1": 2},
        {"1": -3, "2": 6},
        {"1": 0, "2": 3},
        {"1": 1.5, "2": 1.5},
        {"1": None},
        {},
        [3],
        "3",
    ],
)
def test_histograms_that_cannot_be_true_are_refused(histogram: Any) -> None:
    assert "age" in refused(told({"histogram": histogram}, impute="median"), "median")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"30.0": 3, "50.0": 1},
        {"30.0": 1},
        {"30.0": -1, "50.0": 4},
        {"nan": 3},
        {"inf": 3},
        {"1e60": 3},  # infinite as float32
        {"old": 3},
        {"30": 1, "30.0": 2},  # one number, written twice
        {"3_0.0": 3},
        {f"{k}.0": 0 for k in range(65)} | {"0.0": 3},  # more than an honest site counts
    ],
)
def test_values_that_cannot_be_true_are_refused(values: Any) -> None:
    assert "age" in refused(told({"values": values}, impute="most_frequent"), "most_frequent")


@pytest.mark.parametrize(
    "sex",
    [
        {"values": {}},
        {"values": {"f": 3, "m": 1}},
        {"values": {"f": 1}},
        {"values": {"f": -1, "m": 4}},
        {"values": {"f": 1.5, "m": 1.5}},
        {"values": {"": 3}},
        {"values": {"\x1b[2J": 3}},
        {"values": {"a\nb": 3}},
        {"values": {"\u202eb": 3}},
        {"values": {"\ud800": 3}},
        {"values": {"x" * 101: 3}},
        {"values": {str(k): 0 for k in range(MOST_CATEGORIES + 1)}},
        {"values": ["f"]},
        {"total": 3.0, "squares": 3.0},
        {"histogram": {"0": 3}},
    ],
)
def test_categories_that_cannot_be_true_are_refused(sex: dict[str, Any]) -> None:
    assert "sex" in refused(told(sex=sex))


def test_without_imputation_categories_have_no_counts() -> None:
    age = {"present": 4, "total": 130.0, "squares": 5900.0}
    fine = told(age, {"present": 4, "values": {"f": 0, "m": 0}})
    assert read_summary(fine, COLUMNS, Recipe()).columns["sex"].values == {"f": 0, "m": 0}
    assert "sex" in refused(told(age, {"present": 4, "values": {"f": 1, "m": 3}}), None)
    assert "sex" in refused(told(age, {"present": 4, "values": {}}), None)
    assert "age" in refused(told(None, {"present": 4, "values": {"f": 0}}), None)  # a missing value, which was excluded


def test_a_million_categories_are_refused_quickly() -> None:
    names = ",".join(f'"{k}":0' for k in range(300_000))
    assert len(names) < LONGEST
    refused(told().replace('"f": 1', names))
    refused(told().replace('"f": 1', ",".join(f'"{k}":0' for k in range(1_000_000))))


def column(name: str) -> dict[str, Any]:
    return {"present": 0, **({} if name == "age" else {"values": {}})}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "null",
        "3",
        "[]",
        "{}",
        '{"rows": 4}',
        '{"rows": 4, "columns": []}',
        json.dumps({"rows": 4, "columns": {}}),
        json.dumps({"rows": 4, "columns": {"age": column("age")}}),
        json.dumps({"rows": 4, "columns": {name: column(name) for name in ("sex", "age")}}),
        json.dumps({"rows": 4, "columns": {name: column(name) for name in ("age", "sex", "chol")}}),
        json.dumps({"rows": 4, "columns": {"age": 3, "sex": column("sex")}}),
        told(rows=0),
        told(rows=-4),
        told(rows=4.0),
        told(rows=True),
        told(rows=None),
        told(rows=1 << 41),
        told(rows=2),  # with three values present
        told(names=["Ada"]),
        told().replace('"age"', '"age": {"present": 0}, "age"'),  # a column twice
        told().replace('"rows": 4', '"rows": 9, "rows": 4'),
        told().replace('"f": 1', '"f": 0, "f": 1'),
        "[" * 100_000,
        '{"rows":' * 100_000,
        " " * LONGEST + told(),
        '{"rows": ' + "9" * 10_000 + "}",
        None,
        4,
        b"{}",
    ],
)
def test_what_is_no_summary_of_these_columns_is_refused(text: Any) -> None:
    refused(text)


def test_a_column_with_a_strange_name_does_not_reach_the_terminal() -> None:
    text = json.dumps({"rows": 4, "columns": {"\x1b[2J" * 1000: {}}})
    assert "\x1b" not in refused(text)
    refused(told({"\x1b[2J": 1}))


def test_a_channel_of_an_image_has_a_value_for_each_pixel() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 4, 4)).astype(np.uint8)
    channel = [Column("channel 0")]
    summary = summarise(images, channel, Recipe())
    assert read_summary(summary_text(summary), channel, Recipe(), 16) == summary
    with pytest.raises(DataError):
        read_summary(summary_text(summary), channel, Recipe(), 15)


# --- what a server sends ----------------------------------------------------------------------------------------------

READY = Preparation((PreparedColumn("age", 40.0, 10.0, 40.0), PreparedColumn("sex", fill="f", categories=("f", "m"))))


def sent(age: Any = None, sex: Any = None) -> str:
    """A preparation that is sound except for what is given."""
    first = {"name": "age", "mean": 40.0, "std": 10.0, "fill": 40.0, **(age or {})}
    return json.dumps([first, {"name": "sex", "fill": "f", "categories": ["f", "m"], **(sex or {})}])


def test_a_preparation_is_read_as_it_was_sent() -> None:
    assert read_preparation(preparation_text(READY), COLUMNS) == read_preparation(sent(), COLUMNS) == READY


@pytest.mark.parametrize(
    "text",
    [
        *(sent({"std": value}) for value in (0.0, -1.0, float("nan"), float("inf"), 1e-300, 1e60, "1", None, True)),
        *(sent({"mean": value}) for value in (float("nan"), -float("inf"), 1e60, 10**400, "0", None, [0])),
        *(sent({"fill": value}) for value in (float("nan"), 1e60, "40", False, [], {})),
        sent({"categories": ["f"]}),
        sent({"categories": []}),
        sent({"bias": 1.0}),
        sent({"name": "chol"}),
        *(sent(sex={"categories": value}) for value in (None, [], "fm", {"f": 1}, ["f", 1], ["f", None], ["f", ["m"]])),
        *(sent(sex={"categories": ["f", value]}) for value in ("f", "", "\x1b", "a\nb", "\ud800", "x" * 101)),
        sent(sex={"categories": [str(k) for k in range(MOST_CATEGORIES + 1)]}),
        *(sent(sex={"fill": value}) for value in (0, 1, False, [], {}, "\x1b", "x" * 101)),
        sent(sex={"mean": 1.0}),
        sent().replace('"std": 10.0', '"std": 9.0, "std": 10.0'),
        "",
        "{}",
        "[]",
        "[1, 2]",
        json.dumps([{"name": "age"}]),
        json.dumps(json.loads(sent())[::-1]),
        json.dumps(json.loads(sent()) * 2),
        "[" * 100_000,
        " " * LONGEST + sent(),
        None,
    ],
)
def test_a_preparation_that_would_spoil_a_sites_rows_is_refused(text: Any) -> None:
    with pytest.raises(DataError) as caught:
        read_preparation(text, COLUMNS)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_bytes_are_those_of_the_texts() -> None:
    recipe = Recipe("mean")
    summaries = [summarise(ROWS, COLUMNS, recipe), summarise(ROWS[:2], COLUMNS, recipe)]
    found = gathered(summaries, COLUMNS, recipe)
    assert found.up == sum(len(summary_text(one).encode()) for one in summaries)
    assert found.down == 2 * len(preparation_text(found.preparation).encode())
    assert found.bytes == {"down": {"statistics": found.down}, "up": {"statistics": found.up}}
    fixed = gathered([], [AGE], Recipe(mean=(1.0,), std=(1.0,)))
    assert (fixed.up, fixed.down, fixed.bytes) == (0, 0, {})
