"""What own arrays may be: labels that are classes, features that are quantities, and constants or statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.data import from_arrays, load_data, tensors
from fedalloy.errors import DataError, FedalloyError
from fedalloy.report import facts
from fedalloy.run.runner import simulate

X = np.random.default_rng(0).normal(5.0, 2.0, (60, 3))
Y = np.arange(60) % 3
TABLE = {"partition": {"name": "iid", "clients": 3}, "model": "mlp", "rounds": 1}


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ([1, 2], ["1 and 2", "classes = 3"]),
        ([0, 2, 5], ["0, 2 and 5", "classes = 6"]),
        ([0, 10_000_000], ["10000000"]),
        ([-1, 1], ["-1"]),
        ([3], ["3"]),
        (list(range(1, 40)), ["1, 2, 3", "39"]),
    ],
)
def test_labels_that_start_late_or_have_gaps_are_a_sentence(labels: list[int], named: list[str]) -> None:
    y = np.resize(labels, 60)
    with pytest.raises(DataError) as caught:
        from_arrays(X, y)
    assert [word for word in named if word not in str(caught.value)] == []
    assert len(str(caught.value)) < 400


def test_one_class_is_nothing_to_tell_apart() -> None:
    with pytest.raises(DataError, match="labels are 0"):
        from_arrays(X, np.zeros(60, int))
    assert from_arrays(X, np.zeros(60, int), classes=2).classes == 2


def test_a_table_has_columns() -> None:
    with pytest.raises(DataError, match="columns"):
        from_arrays(X, Y, mean=[0.0], std=[1.0])


@pytest.mark.parametrize("labels", [[1, 2], [0, 2, 5], [3]])
def test_given_classes_make_gaps_legitimate(labels: list[int]) -> None:
    assert from_arrays(X, np.resize(labels, 60), classes=7).classes == 7


def test_a_class_may_have_test_rows_alone() -> None:
    assert from_arrays(X, np.resize([0, 2], 60), x_test=X[:2], y_test=[1, 1]).classes == 3
    with pytest.raises(DataError, match="0, 1, 2 and 4"):
        from_arrays(X, Y, x_test=X[:2], y_test=[4, 4])


@pytest.mark.parametrize("labels", [Y.astype(float), Y > 0, Y.astype(np.uint8), Y[:, None]])
def test_labels_may_be_whole_numbers_of_any_kind(labels: Any) -> None:
    assert from_arrays(X, labels).classes == int(labels.max()) + 1


def test_a_public_file_may_lack_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", x=X, y=np.resize([0, 2], 60))
    public = {"data": str(tmp_path / "public.npz"), "samples": 30, "labelled": True}
    found = build(experiment({**TABLE, "public": public}), from_arrays(X + 1, Y)).setting.public
    assert found is not None
    assert set(found.labels.tolist()) == {0, 2}


# --- token ids --------------------------------------------------------------------------------------------------------


def tokens() -> Any:
    """Sentences of up to 20 words out of 5,000, filled up with zeros."""
    stream = np.random.default_rng(0)
    ids = stream.integers(1, 5000, (60, 20))
    ids[np.arange(20) >= stream.integers(5, 21, 60)[:, None]] = 0
    return ids


def test_token_ids_are_not_taken_for_quantities() -> None:
    with pytest.raises(DataError, match="token ids") as caught:
        from_arrays(tokens(), Y)
    assert "astype" in str(caught.value)
    assert from_arrays(tokens().astype(np.float32), Y).x.shape == (60, 20, 1, 1)
    assert from_arrays(tokens(), Y, mean=[0.0] * 20, std=[1.0] * 20).x.shape == (60, 20, 1, 1)


@pytest.mark.parametrize(
    "columns",
    [
        {"age": 90, "children": 5, "income": 200_000, "visits": 40, "smoker": 2},  # a table
        dict.fromkeys(range(64), 256),  # pixels in a row
        dict.fromkeys(range(10), 50),  # counts
        {"a": 100_000, "b": 90_000},  # two columns of one range
    ],
)
def test_whole_numbers_that_may_be_quantities_are_taken_so_and_that_is_said(columns: dict[Any, int]) -> None:
    x = np.random.default_rng(0).integers(0, list(columns.values()), (60, len(columns)))
    assert "integers" in " ".join(from_arrays(x, Y).said)
    assert from_arrays(x.astype(float), Y).said == ()


# --- constants and statistics -----------------------------------------------------------------------------------------


def test_columns_are_standardised_with_what_clients_tell_of_their_training_rows() -> None:
    run = simulate(TABLE, dataset=from_arrays(X, Y))
    built = build(experiment(TABLE), from_arrays(X, Y))
    rows = np.concatenate(built.partition.train)
    assert 0 < len(rows) < len(X)  # no test row counts
    held = X[rows].astype(np.float32).astype(np.float64)
    told = run.meta["data"]["columns"]
    assert [column["mean"] for column in told] == pytest.approx(held.mean(axis=0), rel=1e-12)
    assert [column["std"] for column in told] == pytest.approx(held.std(axis=0), rel=1e-12)
    assert run.meta["data"]["note"] == ""
    (sentence,) = facts.warnings([run, run])  # once, however many runs there are
    assert f"{sum(run.meta['data']['statistics'].values()):,} bytes" in sentence
    sent = run.rounds[0]["bytes"]
    assert {way: sent[way]["statistics"] for way in ("up", "down")} == run.meta["data"]["statistics"]
    inputs = np.concatenate([site.train.inputs.numpy() for site in built.setting.sites])[:, :, 0, 0]
    assert inputs.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-6)
    assert inputs.std(axis=0) == pytest.approx(np.ones(3), abs=1e-6)


@pytest.mark.parametrize(
    "data",
    [
        from_arrays(X, Y, mean=[5.0] * 3, std=[2.0] * 3),
        from_arrays(np.random.default_rng(0).random((60, 4, 4)), Y),
        load_data("tiny"),
    ],
    ids=["constants", "images", "tiny"],
)
def test_nothing_is_said_of_constants_or_images(data: Any) -> None:
    assert data.note == ""


def test_a_file_of_columns_takes_the_constants_that_sites_agree_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array(X, np.uint8), y=Y)
    data = {"name": str(tmp_path / "a.npz"), "mean": [1.0, 2.0, 3.0], "std": [1.0, 2.0, 4.0]}
    built = build(experiment({**TABLE, "data": data}))
    assert built.statistics is not None
    assert built.statistics.bytes == {}  # nobody was asked
    assert [column.mean for column in built.statistics.preparation.columns] == data["mean"]
    first = built.setting.sites[0].train.x[0, :, 0, 0].tolist()
    assert first == [(int(value) - m) / s for value, m, s in zip(X[0], data["mean"], data["std"], strict=True)]


def test_constants_that_make_values_infinite_are_refused() -> None:
    data = from_arrays(X * 1e37, Y, mean=[0.0] * 3, std=[1e-3] * 3)
    with pytest.raises(DataError, match="mean and std"):
        tensors(data)


@pytest.mark.parametrize(
    "constants",
    [
        {"mean": [0.5], "std": [1.0]},
        {"mean": [0.5] * 3},
        {"std": [0.5] * 3},
        {"mean": [0.5] * 4, "std": [1.0] * 4},
        {"mean": [0.5] * 3, "std": [1.0, 0.0, 1.0]},
        {"mean": [0.5] * 3, "std": [1.0, 1e-300, 1.0]},
        {"mean": "0.5"},
    ],
)
def test_constants_that_do_not_fit_are_refused(constants: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    with pytest.raises(FedalloyError, match=r"mean|std"):
        build(experiment({**TABLE, "data": {"name": str(tmp_path / "a.npz"), **constants}}))
