"""Numbers to predict at sites: standardised as in a simulation, with what sites tell, and protected like columns."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for sites_grid and test_own_files

from sites_grid import Killed, Mortal, changed, grid_of
from test_own_files import deployed, final, same

from fedalloy import compare
from fedalloy.config.experiment import experiment, read
from fedalloy.data.columns import Recipe
from fedalloy.deploy import app
from fedalloy.deploy.agreed import frame
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.deploy.settings import known_statistics
from fedalloy.deploy.site import keep_preparation, keep_told, site_setting, site_summary
from fedalloy.engine.flower.client import SUMMARISE
from fedalloy.engine.flower.codec import header_in
from fedalloy.engine.flower.roster import introductions, summarise
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.disclosure import STATISTICS
from fedalloy.federation.quorum import QuorumError
from fedalloy.run.runner import simulate

NAMES = ("aachen", "bern", "cork", "delft", "evora")
CONSTANTS = {"mean": [0.0, 0.0], "std": [1.0, 1.0], "label_mean": [25.0], "label_std": [2.5]}


def clinics(folder: Path, mean: float, std: float, rows: int = 40) -> Path:
    """Five clinics' tables with two numbers, on which the length of a stay depends."""
    folder.mkdir()
    for k, name in enumerate(NAMES):
        stream = np.random.default_rng(k)
        a, b, noise = stream.normal(size=(3, rows))
        days = mean + std * (0.8 * a - 0.6 * b + 0.1 * noise)
        lines = [f"{a[row]:.4f},{b[row]:.4f},{float(days[row])!r}" for row in range(rows)]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,days", *lines]) + "\n")
    return folder


def values(folder: Path, **more: Any) -> dict[str, Any]:
    data = {"name": str(folder), "label": "days", "task": "numbers", **more.pop("data", {})}
    model = {"name": "mlp", "hidden": [16]}
    return {"rounds": 2, "data": data, "model": model, "training": {"lr": 0.05}, "aggregation": {"cap": 1.0}, **more}


def lab(tmp_path: Path, **more: Any) -> Deployment:
    folder = clinics(tmp_path / "h", 25.0, 2.5)
    return init(values(folder, **more), tmp_path / "lab", address="127.0.0.1:23456")


def texts(grid: Any) -> dict[int, Any]:
    """What each site told before the first round."""
    headers = [header_in(m.content) for m in grid.received if m.metadata.message_type == SUMMARISE]
    return {header["client"]: json.loads(header["statistics"]) for header in headers}


@pytest.mark.parametrize(("mean", "std"), [(25.0, 2.5), (1e5, 3e4)])
def test_sites_and_simulation_learn_the_same_targets_to_the_bit_and_well(
    mean: float, std: float, tmp_path: Path
) -> None:
    given = values(clinics(tmp_path / "h", mean, std), rounds=20)
    (run,) = compare({**given, "methods": {"fedavg": {}}}, folder=tmp_path / "here")
    made = init(given, tmp_path / "lab", address="127.0.0.1:23456")
    deployed(made)
    assert same(final(run.folder), final(made.run))
    there = json.loads((made.run / "run.json").read_text())
    assert there["data"]["targets"] == run.meta["data"]["targets"]
    assert there["data"]["targets"][0]["name"] == "days"
    assert there["data"]["statistics"] == run.meta["data"]["statistics"]
    records = [json.loads(line) for line in (made.run / "rounds.jsonl").read_text().splitlines()]
    assert records[0]["bytes"] == run.rounds[0]["bytes"]
    found, simulated = records[-1]["views"]["aca"], run.rounds[-1]["views"]["aca"]
    assert (found["amp"], found["mae"], found["rmse"]) == (simulated["amp"], simulated["mae"], simulated["rmse"])
    assert found["amp"] > 0.9
    assert 0.02 * std < found["mae"] < 0.3 * std


def test_a_run_that_died_resumes_with_the_targets_that_it_began_with(tmp_path: Path) -> None:
    given = values(clinics(tmp_path / "h", 25.0, 2.5), rounds=3)
    simulate(experiment(given), tmp_path / "here")
    made = init(given, tmp_path / "lab", address="127.0.0.1:23456")
    with pytest.raises(Killed):
        deployed(made, grid_of(made, Mortal(5 + 5 + 10 + 4)))
    grid = grid_of(made)
    deployed(made, grid)
    assert not texts(grid)
    assert same(final(tmp_path / "here"), final(made.run))


def test_a_run_whose_targets_were_spoilt_does_not_resume(tmp_path: Path) -> None:
    made = lab(tmp_path)
    deployed(made)
    about = json.loads((made.run / "run.json").read_text())
    known = known_statistics(read(made.experiment), about)
    assert known is not None
    assert known.preparation.targets[0].std > 1
    about["data"]["targets"][0]["std"] = 0.0
    with pytest.raises(DataError, match="days"):
        known_statistics(read(made.experiment), about)
    del about["data"]["targets"]
    with pytest.raises(DataError, match="days"):
        known_statistics(read(made.experiment), about)


@pytest.mark.parametrize("lie", [{"squares": 0.0}, {"total": float("nan")}, {"present": 1000}, {"ages": [3]}])
def test_a_site_that_lies_about_targets_is_named_and_nothing_begins(lie: dict[str, Any], tmp_path: Path) -> None:
    made = lab(tmp_path)

    def spoilt(header: dict[str, Any]) -> dict[str, Any]:
        told = json.loads(header["statistics"])
        told["targets"]["days"] |= lie
        return {**header, "statistics": json.dumps(told)}

    def fault(client: int, answer: Any) -> Any:
        return changed(answer, lambda header, body: (spoilt(header), body)) if client == 1 else answer

    grid = grid_of(made, fault)
    with pytest.raises(QuorumError, match=r"bern.*days"):
        deployed(made, grid)
    assert {message.metadata.message_type for message in grid.sent} == {SUMMARISE}


def test_a_site_whose_targets_are_of_another_size_is_named(tmp_path: Path) -> None:
    made = lab(tmp_path)
    file = tmp_path / "h" / "cork.csv"
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *(f"{row}e6" for row in rows)]) + "\n")
    with pytest.raises(DataError, match=r"days.*cork"):
        deployed(made)


def test_a_site_refuses_other_targets_than_were_agreed(tmp_path: Path) -> None:
    made = lab(tmp_path, data={"label_mean": [25.0], "label_std": [2.5]})
    columns = [{"name": "a"}, {"name": "b"}]
    ours = json.dumps([*columns, {"name": "days", "mean": 25.0, "std": 2.5}])
    assert site_setting(made.site(0), 5, ours)[1].targets[0].std == 2.5
    for theirs in ({"name": "days", "mean": 25.0, "std": 1e-9}, {"name": "days"}):
        with pytest.raises(DataError, match="days"):
            site_setting(made.site(0), 5, json.dumps([*columns, theirs]))


def test_a_site_refuses_other_targets_than_before_in_the_same_run(tmp_path: Path) -> None:
    made = lab(tmp_path)
    columns = [{"name": "a"}, {"name": "b"}]
    first, second = (json.dumps([*columns, {"name": "days", "mean": mean}]) for mean in (25.0, 26.0))
    keep_preparation(made.site(0), 0, first, run=1)
    with pytest.raises(UsageError):
        keep_preparation(made.site(0), 0, second, run=1)
    keep_preparation(made.site(0), 0, second, run=2)


def test_a_site_does_not_tell_again_after_a_target_was_changed(tmp_path: Path) -> None:
    made = lab(tmp_path)
    client, summary = site_summary(made.site(0), 5)
    keep_told(made.site(0), client, summary)
    file = tmp_path / "h" / "aachen.csv"
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *(f"{row.rpartition(',')[0]},1.0" for row in rows)]) + "\n")
    with pytest.raises(UsageError, match=r"told\.json"):
        keep_told(made.site(0), *site_summary(made.site(0), 5))


def test_under_privacy_init_wants_constants_of_targets(tmp_path: Path) -> None:
    private = {"privacy": {"noise_multiplier": 1.0}}
    without = {key: value for key, value in CONSTANTS.items() if not key.startswith("label")}
    with pytest.raises(UsageError, match=r"data\.label_mean"):
        lab(tmp_path, data=without, **private)
    made = init(values(tmp_path / "h", data=CONSTANTS, **private), tmp_path / "made", address="127.0.0.1:23456")
    agreed = tomllib.loads((made.site(0) / "experiment.toml").read_text())
    assert agreed["data"]["label_mean"] == [25.0]
    grid = grid_of(made)
    deployed(made, grid)
    assert not texts(grid)
    assert site_setting(made.site(0), 5)[1].targets[0].mean == 25.0


def test_under_privacy_a_site_tells_nothing_of_its_targets(tmp_path: Path) -> None:
    without = {key: value for key, value in CONSTANTS.items() if not key.startswith("label")}
    made = lab(tmp_path, data=without)
    for file in (made.experiment, *(made.site(k) / "experiment.toml" for k in range(5))):  # past `deploy init`
        file.write_text(file.read_text() + "\n[privacy]\nnoise_multiplier = 1.0\n")
    exp = read(made.experiment)
    agreed = frame(exp.data)
    assert agreed.recipe is not None
    with pytest.raises(UsageError, match=r"data\.label_mean"):
        deployed(made)
    question = summarise(agreed.columns, agreed.recipe, 1)
    roster = introductions(
        grid_of(made), exp, 5, 5.0, lambda _: None, lambda: app.valid(made), names=made.names, question=question
    )
    assert not roster.known
    assert set(roster.refused) == set(range(5))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"label_mean": [25.0]}, "label_std"),
        ({"label_mean": [25.0, 1.0], "label_std": [1.0, 1.0]}, "label_mean"),
        ({"label_mean": [25.0], "label_std": [0.0]}, "label_std"),
    ],
)
def test_init_refuses_constants_that_cannot_be(data: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, DataError), match=named):
        lab(tmp_path, data=data)


def test_with_constants_of_targets_only_columns_are_told(tmp_path: Path) -> None:
    made = lab(tmp_path, data={"label_mean": [25.0], "label_std": [2.5]})
    grid = grid_of(made)
    deployed(made, grid)
    assert all(told.keys() == {"rows", "columns"} for told in texts(grid).values())
    assert len(texts(grid)) == 5
    assert frame(read(made.experiment).data).recipe == Recipe(targets=("days",), label_mean=(25.0,), label_std=(2.5,))


def test_no_target_of_a_row_is_in_what_sites_tell(tmp_path: Path) -> None:
    made = lab(tmp_path)
    grid = grid_of(made)
    deployed(made, grid)
    for number, told in texts(grid).items():
        lines = (tmp_path / "h" / f"{NAMES[number]}.csv").read_text().splitlines()[1:]
        assert not [line for line in lines if line.split(",")[2] in json.dumps(told)]
        assert told["targets"].keys() == {"days"}
        assert told["targets"]["days"].keys() == {"present", "total", "squares"} <= STATISTICS.keys()
