"""A curious server and a hostile site around the statistics that are told before the first round."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalloy.config.experiment import experiment
from fedalloy.config.experiment import read as experiment_of
from fedalloy.data.columns import (
    LEAST_VALUES,
    Column,
    ColumnSummary,
    Preparation,
    PreparedColumn,
    Recipe,
    Summary,
    summarise,
    without_few,
)
from fedalloy.data.columns import agree as agreed
from fedalloy.data.sketch import LAST_BIN, sketch
from fedalloy.data.statistics import preparation_text, read_preparation, read_summary, refuse_apart, summary_text
from fedalloy.deploy.init import init
from fedalloy.deploy.site import keep_preparation, kept_preparation, read_site, site_setting, site_summary
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.quorum import QuorumError
from fedalloy.run.runner import simulate

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from flwr.app import Context, RecordDict
from sites_grid import grid_of
from test_own_files import deployed, final, hospitals, same, values

from fedalloy.deploy import app
from fedalloy.engine.flower.client import VIEWS

AGE = [Column("age")]


def ages(present: int, rows: int = 20) -> Any:
    x = np.full((rows, 1), np.nan, np.float32)
    x[:present, 0] = np.arange(31, 31 + present)
    return x


@pytest.mark.parametrize("impute", ["mean", "median", "most_frequent"])
@pytest.mark.parametrize("present", range(1, LEAST_VALUES))
def test_of_a_few_values_nothing_is_told(present: int, impute: Any) -> None:
    told = without_few(summarise(ages(present), AGE, Recipe(impute=impute)))
    assert told.columns["age"] == ColumnSummary(0)
    assert "31" not in summary_text(told)


def test_of_a_few_categories_not_even_the_names_are_told() -> None:
    x = np.array([[0.0], [1.0], [np.nan], [np.nan]], np.float32)
    told = without_few(summarise(x, [Column("ward", ("hiv", "oncology"))], Recipe(impute="mean")))
    assert told.columns["ward"].values == {}


def test_a_site_with_one_value_of_a_column_does_not_tell_it(tmp_path: Path) -> None:
    folder = hospitals(tmp_path / "h")
    lines = (folder / "north.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines[1:]]
    for row in cells:
        row[2] = ""
    for row in cells[:4]:
        row[2] = "1234.5"
    (folder / "north.csv").write_text("\n".join([lines[0], *(",".join(row) for row in cells)]) + "\n")
    made = init(values(folder), tmp_path / "lab", address="127.0.0.1:36102")
    assert site_summary(made.site(0), 3)[1].columns["dose"] == ColumnSummary(0)
    assert site_summary(made.site(1), 3)[1].columns["dose"].present > 0
    run = simulate(experiment(values(folder)), tmp_path / "here")
    deployed(made)
    assert same(final(run.folder), final(made.run))


def test_a_site_with_few_values_takes_part_with_what_the_others_told() -> None:
    told = [without_few(summarise(ages(n), AGE, Recipe(impute="mean"))) for n in (1, 10)]
    ready = agreed(told, AGE, Recipe(impute="mean"))
    assert ready.columns[0].mean == 35.5
    assert np.isfinite(ready.apply(ages(1), AGE)).all()


def test_a_column_of_which_nobody_has_enough_is_refused_with_what_to_write() -> None:
    with pytest.raises(DataError, match=r"data\.drop"):
        agreed([without_few(summarise(ages(2), AGE, Recipe(impute="mean")))] * 3, AGE, Recipe(impute="mean"))


def test_a_site_whose_squares_would_flatten_all_inputs_is_refused_by_name(tmp_path: Path) -> None:
    given = values(hospitals(tmp_path / "h"))
    given["data"]["impute"] = "mean"
    made = init(given, tmp_path / "lab", address="127.0.0.1:36100")

    def lie(client: int, answer: Any) -> Any:
        header = answer.content.config_records
        for record in header.values():
            if client == 1 and "statistics" in record:
                told = json.loads(str(record["statistics"]))
                told["columns"]["dose"]["squares"] = 1e60
                record["statistics"] = json.dumps(told)
        return answer

    with pytest.raises(DataError, match=r"'dose' at south"):
        deployed(made, grid_of(made, lie))


def test_values_of_another_scale_are_allowed_up_to_a_limit() -> None:
    def one(size: float) -> Summary:
        return Summary(9, {"age": ColumnSummary(9, 9 * size, 9 * size * size)})

    refuse_apart({0: one(50.0), 1: one(60.0), 2: one(60_000.0)}, AGE)  # grams for kilograms
    refuse_apart({0: one(50.0), 1: one(1e30)}, AGE)  # of two, nobody knows which is wrong
    refuse_apart({0: one(0.0), 1: one(0.0), 2: one(1.0)}, AGE)
    with pytest.raises(DataError):
        refuse_apart({0: one(50.0), 1: one(60.0), 2: one(1e6)}, AGE)


@pytest.mark.parametrize("column", [{"std": 1e-60}, {"std": 1e-40}, {"mean": 1e60}, {"fill": 1e60}])
def test_a_preparation_that_makes_inputs_infinite_is_refused(column: dict[str, float]) -> None:
    told = json.dumps([{"name": "age", "fill": 40.0, **column}])
    with pytest.raises(DataError):
        read_preparation(told, AGE).apply(ages(10), AGE)


def test_a_server_may_not_prepare_rows_differently_within_a_run(tmp_path: Path) -> None:
    first, second = (preparation_text(Preparation((PreparedColumn("age", mean),))) for mean in (40.0, 41.0))
    keep_preparation(tmp_path, 0, first, 7)
    keep_preparation(tmp_path, 0, first, 7)
    with pytest.raises(UsageError):
        keep_preparation(tmp_path, 0, second, 7)
    keep_preparation(tmp_path, 0, second, 8)  # another run, for which sites are asked again
    assert kept_preparation(tmp_path, 0) == second


def test_of_preparations_that_arrive_at_once_only_one_is_used(tmp_path: Path) -> None:
    both = threading.Barrier(8)

    def message(mean: float) -> bool:
        both.wait()
        try:
            keep_preparation(tmp_path, 0, preparation_text(Preparation((PreparedColumn("age", mean),))), 7)
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(message, range(8))) == 1


def test_the_same_models_on_rows_prepared_differently_are_other_questions(tmp_path: Path) -> None:
    made = init(values(hospitals(tmp_path / "h")), tmp_path / "lab", address="127.0.0.1:36103")
    grid = grid_of(made)
    deployed(made, grid)
    asked = next(m for m in reversed(grid.sent) if m.metadata.message_type == VIEWS)
    where = {"partition-id": grid.nodes[asked.metadata.dst_node_id], "num-partitions": 3}
    where["site"] = str(made.site(where["partition-id"]))

    def answer(run: int) -> Any:
        """What the site tells of the last models in another Flower run, with a column prepared in another way."""
        header = asked.content["fedalloy"]
        header["prepared"] = header["prepared"].replace('"std":', f'"std":{run}' if run > 1 else '"std":', 1)
        context = Context(run_id=run, node_id=1, node_config=where, state=RecordDict(), run_config={})
        return app.client(asked, context).content["fedalloy"].get("error", "")

    assert answer(1) == ""  # the same question
    refused = [why for run in range(2, 9) if (why := answer(run))]
    assert len(refused) >= 6
    assert all("not evaluated" in why for why in refused)


def test_a_site_refuses_the_server_that_changes_the_preparation_in_the_second_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedalloy.engine.flower import carrier

    made = init(values(hospitals(tmp_path / "h")), tmp_path / "lab", address="127.0.0.1:36101")
    sent = carrier.to_records

    def curious(body: Any, header: dict[str, Any]) -> Any:
        if header.get("round") == 2 and "prepared" in header:
            header = {**header, "prepared": header["prepared"].replace('"std":', '"std":1')}
        return sent(body, header)

    monkeypatch.setattr(carrier, "to_records", curious)
    said = deployed(made)
    logs = [path.read_text() for path in (tmp_path / "lab" / "sites").rglob("audit.jsonl")]
    assert len(logs) == 3 == sum("not evaluated" in one and "differently" in one for one in said)
    assert all("differently" in one for one in logs)


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "", "x" * 101])
def test_categories_that_could_spoil_a_terminal_or_a_page_are_refused(name: str) -> None:
    told = json.dumps({"rows": 9, "columns": {"sex": {"present": 9, "values": {name: 0}}}})
    with pytest.raises(DataError):
        read_summary(told, [Column("sex", ())], Recipe())
    if name:
        with pytest.raises(DataError):
            read_preparation(json.dumps([{"name": "sex", "categories": [name, "m"]}]), [Column("sex", ())])


@pytest.mark.parametrize(
    "change",
    [
        {"age": {"mean": 54.0}},
        {"age": {"std": 11.0}},
        {"dose": {"mean": 3.5}},
        {"sex": {"categories": ["m", "f", "x"]}},
        {"sex": {"categories": ["f", "m"]}},
        {"age": {"fill": None}},
    ],
)
def test_a_server_cannot_change_the_constants_that_sites_agreed_to(change: dict[str, Any], tmp_path: Path) -> None:
    given = values(hospitals(tmp_path / "h"))
    constants = {"mean": [55.0, 3.0], "std": [10.0, 3.0], "categories": {"sex": ["f", "m", "x"]}}
    given["data"] |= {**constants, "impute": "median"}
    made = init(given, tmp_path / "lab", address="127.0.0.1:36107")
    exp = experiment_of(made.experiment)
    found = app.agreed_on(exp, app.summaries(grid_of(made), exp, made, lambda _: None))
    assert found is not None
    honest = preparation_text(found.preparation)
    assert site_setting(made.site(0), 3, honest)[0] == 0
    columns = [{**column, **change.get(column["name"], {})} for column in json.loads(honest)]
    with pytest.raises(DataError, match=next(iter(change))):
        site_setting(made.site(0), 3, json.dumps(columns))


def _told(column: dict[str, Any], impute: Any, constants: tuple[float, ...] | None = None) -> Summary:
    recipe = Recipe(impute=impute, mean=constants, std=constants)
    return read_summary(json.dumps({"rows": 1000, "columns": {"age": {"present": 1000, **column}}}), AGE, recipe)


@pytest.mark.parametrize(
    ("impute", "counted"),
    [
        ("median", {"histogram": {str(LAST_BIN): 1000}}),  # 3e38
        ("median", {"histogram": {"0": 1000}}),
        ("median", {"histogram": {str(place): 1000 for place in sketch(np.array([-50.0]))}}),
        ("most_frequent", {"values": {"3e+38": 1000}}),
        ("most_frequent", {"values": {"-50.0": 1000}}),
        ("most_frequent", {"values": {"50.0": 999, "1e+30": 1}}),
    ],
)
def test_what_stands_for_missing_values_must_agree_with_the_sums(impute: Any, counted: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="age"):
        _told({"total": 50_000.0, "squares": 2_501_000.0, **counted}, impute)


@pytest.mark.parametrize("impute", ["median", "most_frequent"])
@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-6, 1.0, 1e30, 3e37])
@pytest.mark.parametrize("shift", [0.0, 3.0, -5.0])
def test_honest_values_of_any_size_agree_with_their_sums(impute: Any, scale: float, shift: float) -> None:
    with np.errstate(under="ignore"):
        x = ((np.random.default_rng(0).integers(-3, 4, (400, 1)) + shift) * scale).astype(np.float32)
    recipe = Recipe(impute=impute)
    told = summarise(x, AGE, recipe)
    assert read_summary(summary_text(told), AGE, recipe) == told


@pytest.mark.parametrize(
    ("impute", "counted"),
    [("median", {"histogram": {str(LAST_BIN): 1000}}), ("most_frequent", {"values": {"3e+38": 1000}})],
)
def test_what_stands_for_missing_values_is_of_the_size_of_the_others_values(
    impute: Any, counted: dict[str, Any]
) -> None:
    usual = {"median": {"histogram": {"4600": 1000}}, "most_frequent": {"values": {"50.0": 1000}}}[impute]
    told = [_told(column, impute, constants=(1.0,)) for column in (usual, usual, counted)]
    with pytest.raises(DataError, match="west"):
        refuse_apart(dict(enumerate(told)), AGE, ("north", "south", "west"))


def _fill_in(made: Any) -> float:
    """A value that was missing in a training row of site 0 becomes known."""
    file = Path(str(read_site(made.site(0)).data))
    lines = file.read_text().splitlines()
    before = site_summary(made.site(0), 3)[1].columns["age"].present
    for number, line in enumerate(lines):
        if line.startswith(","):
            file.write_text("\n".join([*lines[:number], f"87.25{line}", *lines[number + 1 :]]) + "\n")
            if site_summary(made.site(0), 3)[1].columns["age"].present > before:
                return 87.25
    raise AssertionError


def test_a_server_that_asks_again_does_not_learn_what_has_changed_in_a_row(tmp_path: Path) -> None:
    made = init(values(hospitals(tmp_path / "h")), tmp_path / "lab", address="127.0.0.1:36104")
    exp, said = experiment_of(made.experiment), list[str]()
    first = app.summaries(grid_of(made), exp, made, said.append)
    assert app.summaries(grid_of(made), exp, made, said.append) == first  # the same rows, asked again
    _fill_in(made)
    grid = grid_of(made)
    with pytest.raises(QuorumError, match=r"north.*told\.json"):
        app.summaries(grid, exp, made, said.append)
    answers = [answer.content["fedalloy"] for answer in grid.received]
    assert not [one for one in answers if one.get("client") == 0 and "statistics" in one]
    (made.site(0) / "memory" / "0" / "told.json").unlink()  # the site's operator decides
    again = app.summaries(grid_of(made), exp, made, said.append)
    assert again.keys() == {0, 1, 2}
    assert again != first


def test_a_site_that_agreed_to_another_experiment_tells_anew(tmp_path: Path) -> None:
    made = init(values(hospitals(tmp_path / "h")), tmp_path / "lab", address="127.0.0.1:36105")
    app.summaries(grid_of(made), experiment_of(made.experiment), made, lambda _: None)
    for file in (made.experiment, *(made.site(k) / "experiment.toml" for k in range(3))):
        file.write_text(f"seed = 4\n{file.read_text()}")
    assert app.summaries(grid_of(made), experiment_of(made.experiment), made, lambda _: None).keys() == {0, 1, 2}


def test_a_site_cannot_count_for_more_in_the_statistics_than_in_the_run(tmp_path: Path) -> None:
    made = init(values(hospitals(tmp_path / "h")), tmp_path / "lab", address="127.0.0.1:36106")

    def lie(client: int, answer: Any) -> Any:
        record = answer.content["fedalloy"]
        if client == 1 and "statistics" in record:
            told = json.loads(str(record["statistics"]))
            for column in told["columns"].values():
                times = 1000
                for key in ("present", "total", "squares"):
                    if key in column:
                        column[key] *= times
                for key in ("histogram", "values"):
                    if key in column:
                        column[key] = {name: n * times for name, n in column[key].items()}
            told["rows"] *= 1000
            record["statistics"] = json.dumps(told)
        return answer

    with pytest.raises(QuorumError, match=r"south: it claims 32 training .* 32,000"):
        deployed(made, grid_of(made, lie))


def test_a_simulation_refuses_another_unit_as_the_sites_do(tmp_path: Path) -> None:
    folder = hospitals(tmp_path / "h", missing=False)
    lines = (folder / "south.csv").read_text().splitlines()
    (folder / "south.csv").write_text("\n".join([lines[0], *(f"9999999{line}" for line in lines[1:])]) + "\n")
    with pytest.raises(DataError, match="'age' at south"):
        simulate(experiment(values(folder)), tmp_path / "here")
