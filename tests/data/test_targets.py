"""Numbers to predict are learned standardised, by sums that clients tell, and reported in their own units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedalloy import compare, from_arrays, simulate
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.data.columns import Column, ColumnSummary, Recipe, Summary, agree, summarise, without_few
from fedalloy.data.statistics import (
    gathered,
    in_units,
    preparation_text,
    read_preparation,
    read_summary,
    refuse_apart,
    refuse_unagreed,
    summary_text,
)
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.tally import counted, score_of
from fedalloy.report.export import export_model

AGE = Column("age")
DAYS = Recipe(targets=("days",))


def told(**days: Any) -> str:
    """A summary of five rows, whose five numbers to predict are 1 to 5, that is true except for what is given."""
    true = {"age": {"present": 5, "total": 200.0, "squares": 8500.0}}
    return json.dumps(
        {"rows": 5, "columns": true, "targets": {"days": {"present": 5, "total": 15.0, "squares": 55.0, **days}}}
    )


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_the_mean_and_deviation_of_targets_follow_from_sums_by_hand() -> None:
    ages = np.full((5, 1), 40.0, np.float32)
    north = summarise(ages, [AGE], DAYS, np.array([[20.0]] * 5, np.float32))
    south = summarise(ages, [AGE], DAYS, np.array([[30.0]] * 5, np.float32))
    assert north.targets["days"] == ColumnSummary(5, 100.0, 2000.0)
    (days,) = agree([north, south], [AGE], DAYS).targets
    assert (days.name, days.mean, days.std, days.fill) == ("days", 25.0, 5.0, None)


def test_a_column_and_a_target_may_have_the_same_name() -> None:
    recipe = Recipe(targets=("0",))
    summary = summarise(np.full((5, 1), 2.0, np.float32), [Column("0")], recipe, np.full((5, 1), 7.0, np.float32))
    ready = agree([summary], [Column("0")], recipe)
    assert (ready.columns[0].mean, ready.targets[0].mean) == (2.0, 7.0)
    assert read_summary(summary_text(summary), [Column("0")], recipe) == summary
    assert read_preparation(preparation_text(ready), [Column("0")], ["0"]) == ready


def test_of_fewer_than_five_targets_nothing_is_told() -> None:
    few = without_few(summarise(np.zeros((4, 1), np.float32), [AGE], DAYS, np.ones((4, 1), np.float32)))
    assert few.targets["days"] == ColumnSummary(0)
    assert read_summary(summary_text(few), [AGE], DAYS) == few
    many = Summary(9, {"age": ColumnSummary(9)}, {"days": ColumnSummary(0)})
    with pytest.raises(DataError, match=r"days.*data\.label_mean"):
        agree([many], [AGE], DAYS)


def test_constants_of_targets_leave_only_the_columns_to_ask_for_and_the_other_way_round() -> None:
    both = {"mean": (40.0,), "std": (10.0,)}
    constants = {"label_mean": (25.0,), "label_std": (5.0,)}
    assert Recipe(**both, targets=("days",)).asks([AGE])
    assert not Recipe(**both, **constants, targets=("days",)).asks([AGE])
    rows, days = np.full((5, 1), 40.0, np.float32), np.full((5, 1), 20.0, np.float32)
    assert summarise(rows, [AGE], Recipe(**constants, targets=("days",)), days).targets == {}
    only = summarise(rows, [AGE], Recipe(**both, targets=("days",)), days)
    assert only.columns == {}
    assert read_summary(summary_text(only), [AGE], Recipe(**both, targets=("days",))) == only
    (ready,) = agree([], [AGE], Recipe(**both, **constants, targets=("days",))).targets
    assert (ready.mean, ready.std) == (25.0, 5.0)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"label_mean": (1.0,)}, "label_std"),
        ({"label_mean": (1.0,), "label_std": (0.0,)}, "label_std"),
        ({"label_mean": (1.0, 2.0), "label_std": (1.0, 1.0)}, "label_mean"),
    ],
)
def test_constants_of_targets_that_cannot_be_are_refused(given: Any, named: str) -> None:
    with pytest.raises((UsageError, DataError), match=named):
        agree([], [], Recipe(**given, targets=("days",)))


def test_constants_of_targets_need_numbers_to_predict(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,ill\n" + "".join(f"{n},{'yes' if n % 2 else 'no'}\n" for n in range(20)))
    given = {"data": {"name": str(tmp_path / "a.csv"), "label_mean": [1.0], "label_std": [1.0]}, "model": "mlp"}
    with pytest.raises(UsageError, match=r"label_mean.*classes"):
        build(experiment(given))


# --- lies -------------------------------------------------------------------------------------------------------------


def test_a_true_summary_of_targets_is_read() -> None:
    assert read_summary(told(), [AGE], DAYS).targets["days"] == ColumnSummary(5, 15.0, 55.0)


@pytest.mark.parametrize(
    "lie",
    [
        {"total": float("nan")},
        {"total": 1e300},
        {"squares": 1.0},  # fewer than five numbers with this sum have
        {"squares": -1.0},
        {"present": 4},
        {"present": 6},
        {"rows": ["Ada"]},
        {"histogram": {"0": 5}},
    ],
)
def test_a_lie_about_targets_is_refused(lie: Any) -> None:
    with pytest.raises(DataError, match="days"):
        read_summary(told(**lie), [AGE], DAYS)


def test_targets_that_were_not_asked_or_are_missing_are_refused() -> None:
    with pytest.raises(DataError, match="targets"):
        read_summary(told(), [AGE], Recipe())
    without = {key: value for key, value in json.loads(told()).items() if key != "targets"}
    with pytest.raises(DataError, match="targets"):
        read_summary(json.dumps(without), [AGE], DAYS)
    with pytest.raises(DataError, match="days"):
        read_summary(told().replace('"days"', '"nights"'), [AGE], DAYS)


def test_targets_in_another_unit_are_refused() -> None:
    said = {k: Summary(9, {}, {"days": ColumnSummary(9, 9 * n, 9 * n * n)}) for k, n in enumerate((25.0, 26.0, 1e9))}
    with pytest.raises(DataError, match=r"days.*west"):
        refuse_apart(said, [AGE], ["north", "south", "west"])


@pytest.mark.parametrize(
    "days",
    [{"name": "nights"}, {"name": "days", "std": 0.0}, {"name": "days", "fill": 3.0}, {"name": "days", "mean": 1e99}],
)
def test_a_preparation_with_wrong_targets_is_refused(days: Any) -> None:
    with pytest.raises(DataError, match=r"days|nights"):
        read_preparation(json.dumps([{"name": "age"}, days]), [AGE], ["days"])
    with pytest.raises(DataError, match="days"):
        read_preparation(json.dumps([{"name": "age"}]), [AGE], ["days"])


def test_a_server_cannot_change_the_constants_of_targets() -> None:
    ready = read_preparation('[{"name":"age"},{"name":"days","mean":24.0,"std":5.0}]', [AGE], ["days"])
    refuse_unagreed(ready, Recipe(targets=("days",), label_mean=(24.0,), label_std=(5.0,)))
    with pytest.raises(DataError, match="days"):
        refuse_unagreed(ready, Recipe(targets=("days",), label_mean=(25.0,), label_std=(5.0,)))


def test_the_bytes_of_targets_are_counted() -> None:
    summary = summarise(np.full((5, 1), 40.0, np.float32), [AGE], DAYS, np.full((5, 1), 20.0, np.float32))
    found = gathered([summary, summary], [AGE], DAYS)
    assert found.up == 2 * len(summary_text(summary).encode())
    assert found.down == 2 * len(preparation_text(found.preparation).encode())
    assert "days" in summary_text(summary)
    assert "days" in preparation_text(found.preparation)


# --- what is learned and what is reported -----------------------------------------------------------------------------

ROWS = 40


def linear(centre: float, spread: float, outputs: int = 1, clients: int = 5, **more: Any) -> Any:
    """Clients whose targets follow from four numbers, with this mean and deviation."""
    stream = np.random.default_rng(0)
    x = stream.normal(size=(clients * ROWS, 4)).astype(np.float32)
    true = x @ stream.normal(size=(4, outputs)) + 0.1 * stream.normal(size=(clients * ROWS, outputs))
    y = centre + spread * (true - true.mean(0)) / true.std(0)
    ids = np.repeat(np.arange(clients), ROWS)
    return from_arrays(x, y, task="numbers", client_ids=ids, **more)


VALUES: dict[str, Any] = {
    "rounds": 20,
    "partition": "natural",
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"lr": 0.1, "epochs": 2},
    "workers": 1,
}


def test_networks_learn_targets_with_mean_0_and_deviation_1() -> None:
    built = build(experiment({**VALUES, "method": "fedavg"}), linear(1e5, 3e4))
    y = torch.cat([site.train.labels for site in built.setting.sites]).double()
    assert abs(float(y.mean())) < 1e-5
    assert abs(float(y.var(correction=0)) - 1) < 1e-5
    (days,) = built.setting.targets
    assert abs(days.mean - 1e5) < 1e4
    assert built.statistics is not None
    assert built.statistics.preparation.targets == built.setting.targets


def test_test_rows_do_not_count() -> None:
    data = linear(0.0, 1.0)
    built = build(experiment({**VALUES, "method": "fedavg"}), data)
    rows = np.concatenate([site.train.index.numpy() for site in built.setting.sites])
    (found,) = built.setting.targets
    assert found.mean == pytest.approx(float(data.y[rows].astype(np.float64).mean()), rel=1e-9)
    assert found.mean != pytest.approx(float(data.y.astype(np.float64).mean()), rel=1e-9)


def test_errors_are_reported_in_the_units_of_the_targets_by_hand() -> None:
    data = from_arrays(
        np.arange(40.0).reshape(40, 1), [[20.0, 1.0]] * 40, task="numbers", mean=[0.0], std=[1.0],
        label_mean=[20.0, 0.0], label_std=[10.0, 2.0], client_ids=[0] * 20 + [1] * 20,
    )  # fmt: skip
    setting = build(experiment({**VALUES, "method": "fedavg"}), data).setting
    assert setting.sites[0].train.labels[0].tolist() == [0.0, 0.5]
    outputs, targets = torch.tensor([[0.5, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.5], [1.0, 0.0]])
    found = counted(setting, outputs, targets)
    # In units the first sample is wrong by 5 and 1, the second by 10 and 0.
    assert found["absolute"] == 4.0
    assert found["loss"] == (25 + 1) / 2 + 100 / 2
    assert found["r2"] == score_of(setting, outputs, targets)


@pytest.mark.parametrize(("mean", "std"), [(25.0, 2.5), (1e5, 3e4)])
def test_a_good_r2_is_reached_in_twenty_rounds_whatever_the_units(mean: float, std: float, tmp_path: Path) -> None:
    values = {**VALUES, "methods": {"fedavg": {}}}
    (run,) = compare(values, folder=tmp_path / "c", dataset=linear(mean, std))
    view = run.rounds[-1]["views"]["aca"]
    assert view["amp"] > 0.9
    assert 0 < view["mae"] < 0.3 * std
    assert 0 < view["rmse"] < 0.3 * std
    assert view["loss"] == pytest.approx(view["rmse"] ** 2, rel=1e-6)


def test_the_units_change_nothing_but_the_errors(tmp_path: Path) -> None:
    values = {**VALUES, "rounds": 2, "method": "fedavg"}
    small = simulate(values, tmp_path / "a", dataset=linear(0.0, 1.0, outputs=2))
    large = simulate(values, tmp_path / "b", dataset=linear(0.0, 1024.0, outputs=2))  # a power of two: no rounding
    one, other = (run.rounds[-1]["views"]["aca"] for run in (small, large))
    assert one["amp"] == pytest.approx(other["amp"], abs=1e-6)
    assert one["mae"] * 1024 == pytest.approx(other["mae"], rel=1e-5)
    assert large.meta["data"]["targets"][0]["std"] == pytest.approx(1024 * small.meta["data"]["targets"][0]["std"])


def test_several_numbers_and_images_are_standardised_too() -> None:
    stream = np.random.default_rng(0)
    pictures = stream.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    y = np.stack([np.linspace(20, 30, 60), np.linspace(-1e5, 1e5, 60)], 1)
    data = from_arrays(pictures, y, task="numbers", client_ids=np.arange(60) % 3)
    setting = build(experiment({**VALUES, "method": "fedavg"}), data).setting
    labels = torch.cat([site.train.labels for site in setting.sites])
    assert labels.mean(0).abs().max() < 1e-5
    assert (labels.var(0, correction=0) - 1).abs().max() < 1e-5
    assert setting.scale.mean == data.mean


def test_a_common_test_set_is_standardised_with_the_same_numbers() -> None:
    x, y = np.arange(40.0).reshape(40, 1), np.repeat([20.0, 30.0], 20)
    ids = np.arange(40) % 2
    data = from_arrays(x, y, x_test=x[:4], y_test=[20.0, 25.0, 30.0, 35.0], task="numbers", client_ids=ids)
    values = {**VALUES, "method": "fedavg", "partition": {"name": "natural", "test": "global"}}
    setting = build(experiment(values), data).setting
    (found,) = setting.targets
    assert (found.mean, found.std) == (25.0, 5.0)
    assert setting.sites[0].test.labels[:, 0].tolist() == [-1.0, 0.0, 1.0, 2.0]


def test_numbers_to_predict_with_one_name_are_refused() -> None:
    with pytest.raises(DataError, match="2"):
        from_arrays(np.zeros((5, 1)), np.zeros((5, 2)), task="numbers", label_names=["days", "days"])


def test_constants_for_an_array_need_numbers_to_predict() -> None:
    with pytest.raises(DataError, match="label_mean"):
        from_arrays(np.zeros((4, 1)), [0, 1, 0, 1], label_mean=[1.0], label_std=[1.0])


def test_under_privacy_targets_need_constants() -> None:
    values = {**VALUES, "method": "fedavg", "privacy": {"noise_multiplier": 1.0}}
    known = {"mean": [0.0] * 4, "std": [1.0] * 4}
    with pytest.raises(UsageError, match=r"data\.label_mean"):
        build(experiment(values), linear(25.0, 2.5, **known))
    built = build(experiment(values), linear(25.0, 2.5, **known, label_mean=[25.0], label_std=[2.5]))
    assert built.setting.targets[0].std == 2.5
    assert built.setting.statistics == {}


def test_a_labelled_public_file_is_standardised_with_the_same_numbers(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    (tmp_path / "h").mkdir()
    for name, shift in {"h/north": 0, "h/south": 1, "public": 5}.items():
        x = stream.normal(size=30)
        lines = [f"{a},{25 + 2 * a + shift}" for a in x]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,days", *lines]) + "\n")
    public = {"data": str(tmp_path / "public.csv"), "samples": 30, "labelled": True}
    data = {"name": f"{tmp_path}/h", "label": "days", "task": "numbers"}
    setting = build(
        experiment({"rounds": 1, "data": data, "model": "mlp", "public": public, "method": "fedmd"})
    ).setting
    (days,) = setting.targets
    assert setting.public is not None
    held = sorted(float(line.split(",")[1]) for line in (tmp_path / "public.csv").read_text().splitlines()[1:])
    units = sorted((setting.public.labels[:, 0].double() * days.std + days.mean).tolist())
    assert units == pytest.approx(held, rel=1e-5)


# --- exported models --------------------------------------------------------------------------------------------------


def exported(folder: Path, lines: str, **given: Any) -> Any:
    names: dict[str, Any] = dict(given)
    exec(compile(lines, "lines", "exec"), names)  # as a user would paste them
    return names["answers"]


def test_an_exported_table_model_answers_in_the_units_of_the_targets(tmp_path: Path) -> None:
    data = linear(1e5, 3e4, label_names=["price"])
    run = simulate({**VALUES, "method": "fedavg"}, tmp_path / "r", dataset=data)
    path, lines = export_model(tmp_path / "r", dataset=data)
    answers = exported(tmp_path, lines)
    rows = [dict(zip("0123", map(float, row), strict=True)) for row in data.x[:, :, 0, 0]]
    off = (answers(rows).detach() - torch.from_numpy(data.y)).abs().mean()
    assert float(off) < 0.3 * 3e4
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["targets"]) == run.meta["data"]["targets"]


def test_an_exported_image_model_answers_in_the_units_of_the_targets(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    pictures = stream.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    y = 1e5 + 1e3 * pictures.mean((1, 2))
    data = from_arrays(pictures, y, task="numbers", client_ids=np.arange(60) % 3)
    simulate({**VALUES, "rounds": 2, "method": "fedavg"}, tmp_path / "r", dataset=data)
    _, lines = export_model(tmp_path / "r", dataset=data)
    found = exported(tmp_path, lines)(torch.from_numpy(pictures[:, None]).float() / 255)
    assert float((found - torch.from_numpy(y)[:, None]).detach().abs().mean()) < 5e4


def test_outputs_become_answers_by_hand() -> None:
    targets = '[{"name":"days","mean":25.0,"std":2.0},{"name":"price"}]'
    assert in_units(torch.tensor([[0.5, 3.0]]), targets).tolist() == [[26.0, 3.0]]
    with pytest.raises(DataError):
        in_units(torch.zeros(1, 3), targets)
