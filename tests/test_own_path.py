"""The path of somebody with own files, where it stumbled: what is typed, what is left behind, what is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalloy.cli.main import main
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.data.own.dataset import glance, own_dataset
from fedalloy.data.statistics import table_inputs
from fedalloy.errors import DataError, UsageError
from fedalloy.storage.results import read

ROWS = "\n".join(f"{i},{40 + i % 30},{i % 2}" for i in range(40))


def site(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ('data.drop=["a","b"]', ["a", "b"]),
        ("data.drop=[a,b]", ["a", "b"]),  # what a shell leaves of the line above
        ("data.drop=[ a , b ]", ["a", "b"]),
        ("data.drop=[patient id]", ["patient id"]),
        ("data.drop=[]", []),
        ("data.drop=[1, 2.5]", [1, 2.5]),
        ("data.drop=[a, [b]]", "[a, [b]]"),
        ('data.drop=["a,b]', '["a,b]'),
        ("data.drop=[", "["),
    ],
)
def test_a_list_without_the_quotes_that_a_shell_removes_is_a_list(typed: str, meant: object) -> None:
    assert override({}, [typed])["data"]["drop"] == meant


def test_advice_on_unreadable_files_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    site(tmp_path / "h", "north.csv", f"id,day,sick\n{ROWS}\n".replace("40,0", "monday,0"))
    with pytest.raises(SystemExit) as found:
        main(["advise", "h", "data.label=sick"])
    assert found.value.code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["h"]


def test_a_number_of_clients_besides_clients_of_their_own_is_refused(tmp_path: Path) -> None:
    for name in ("north", "south"):
        site(tmp_path / "h", f"{name}.csv", f"id,age,sick\n{ROWS}\n")
    own = {"data": {"name": str(tmp_path / "h")}}
    with pytest.raises(UsageError, match=r"partition\.clients"):
        experiment({**own, "partition": {"clients": 3}})
    assert experiment({**own, "partition": {"name": "iid", "clients": 3}}).partition.clients == 3
    assert experiment({**own, "partition": {"validation": 0.2}}).partition.name == "natural"
    again = experiment(own).to_dict()  # what a run's file has
    assert experiment(again).partition.name == "natural"


COLUMNS = (
    '[{"name":"age","mean":50.0,"std":10.0,"fill":50.0},{"name":"smoker","fill":0.0},'
    '{"name":"grade","categories":["1","2"],"fill":"1"},{"name":"ward","categories":["false","true"],"fill":"true"}]'
)
ROW = {"age": 60, "smoker": 1, "grade": "2", "ward": "false"}


@pytest.mark.parametrize("other", [{"grade": 2}, {"grade": 2.0}, {"grade": " 2.0"}, {"ward": False}, {"smoker": True}])
def test_rows_for_an_exported_model_are_read_as_files_are(other: dict[str, object]) -> None:
    assert table_inputs([{**ROW, **other}], COLUMNS).tolist() == table_inputs([ROW], COLUMNS).tolist()


def test_rows_for_an_exported_model_may_lack_values() -> None:
    found = table_inputs([{"age": "NA", "smoker": "?", "grade": None, "ward": "", "patient": 7}], COLUMNS)
    assert found[0, :, 0, 0].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("wrong", [{"age": "seventy"}, {"age": "61,5"}, {"age": float("inf")}, {"age": "1e999"}])
def test_an_exported_model_does_not_guess_what_is_no_number(wrong: dict[str, object]) -> None:
    with pytest.raises(DataError, match="age"):
        table_inputs([ROW, {**ROW, **wrong}], COLUMNS)


def test_an_exported_model_does_not_guess_a_column_that_is_misspelt() -> None:
    with pytest.raises(DataError, match="age"):
        table_inputs([{**{key: value for key, value in ROW.items() if key != "age"}, "Age": 60}], COLUMNS)


def test_stopping_a_deployment_speaks_of_sites_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from fedalloy.deploy import control, processes
    from fedalloy.deploy.init import init

    for name in ("north", "south"):
        site(tmp_path / "h", f"{name}.csv", f"id,age,sick\n{ROWS}\n")
    made = init({"data": {"name": str(tmp_path / "h")}}, tmp_path / "lab", address="127.0.0.1:36105")
    monkeypatch.setattr(processes, "known", lambda _: ["superlink", "site-1", "site-0"])
    monkeypatch.setattr(processes, "stop", lambda *_: True)
    said: list[str] = []
    control.down(made, said.append)
    assert [one.split()[0] for one in said] == ["north", "south", "superlink"]


@pytest.mark.parametrize("command", [["run", "rounds=1", "model.hidden=[4]"], ["partition"]])
def test_one_run_and_a_split_say_which_number_stands_for_which_class(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        site(
            tmp_path / "h",
            f"{name}.csv",
            f"patient_id,age,sick\n{ROWS}\n".replace(",1\n", ",yes\n").replace(",0", ",no"),
        )
    with pytest.raises(SystemExit) as found:
        main([command[0], "data=h", "data.label=sick", *command[1:]])
    out = capsys.readouterr().out
    assert found.value.code in (0, None)
    assert "0 = no, 1 = yes" in out
    assert "'patient_id'" in out


def test_a_hugging_face_folder_says_beforehand_whether_it_has_a_table() -> None:
    there = Path(__file__).parent / "data" / "own" / "hugging_face"
    assert glance(there / "patients").table
    assert not glance(there / "images").table
    assert experiment({"data": str(there / "patients")}).model.name == "mlp"


@pytest.mark.parametrize("name", ["h", "h/north.csv"])
def test_data_in_place_of_an_experiment_is_refused_with_the_key_to_write(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    site(tmp_path / "h", "north.csv", f"id,age,sick\n{ROWS}\n")
    with pytest.raises(SystemExit) as found:
        main(["compare", name])
    assert found.value.code == 2
    assert f"data={name}" in capsys.readouterr().err


def test_a_comparison_in_place_of_a_run_is_refused_with_one_of_its_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / "fedavg-seed0").mkdir(parents=True)
    (tmp_path / "runs" / "fedavg-seed0" / "run.json").write_text("{}")
    with pytest.raises(DataError, match="fedavg-seed0"):
        read(tmp_path)


def test_all_categories_that_the_experiment_does_not_list_are_refused_at_once(tmp_path: Path) -> None:
    site(tmp_path, "a.csv", "sex,age,sick\nm,40,0\nf,50,1\nd,60,1\n")
    with pytest.raises(DataError, match=r"'sex'.*'d and m'.*data\.categories"):
        own_dataset(tmp_path / "a.csv", categories={"sex": ["f"]})
    assert own_dataset(tmp_path / "a.csv", categorical="sex").columns[0].categories == ("d", "f", "m")
