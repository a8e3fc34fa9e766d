"""The path of somebody with own files, where it stumbled: what is typed, what is left behind, what is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalloy.cli.main import main
from fedalloy.config.overrides import override

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
