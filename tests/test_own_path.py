"""The path of somebody with own files, where it stumbled: what is typed, what is left behind, what is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalloy.cli.main import main
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.errors import UsageError

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
