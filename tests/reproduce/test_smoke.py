"""Every table and figure of every paper is made at the scale `smoke`, from the command line to the page."""

from __future__ import annotations

import csv
import json
import re
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedalloy.cli.main import main
from fedalloy.reproduce.catalogue import papers
from fedalloy.reproduce.pages import anchor
from fedalloy.reproduce.results import recorded


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", sorted(papers()))
def test_everything_runs_and_nothing_is_skipped(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--scale", "smoke", "--out", str(tmp_path)) == 0, capfd.readouterr().err
    said = capfd.readouterr().out
    paper = papers()[name]
    for item in paper.items:
        assert f"{name} {item.id}: " in said
        found = recorded(item, "smoke", tmp_path / "runs")
        assert not found.missing
        assert bool(found.runs) == bool(item.rows and item.smoke.experiment)
        for row, column, metric in product(item.rows, found.columns, item.metrics):
            own = name != "fedmd-global" or (row.label == "FedAvg") == column.startswith("FedAvg")
            assert bool(found.values(row, column, metric)) == own, (item.id, row.label, column, metric)
        for claim in (claim for claim in paper.claims if claim.item == item.id and claim.metric):
            for row in map(item.row, claim.left):
                assert any(found.values(row, column, claim.metric) for column in found.columns), (claim.id, row.label)
        files = [path for path in (tmp_path / "smoke" / name).iterdir() if path.stem in (item.id, f"{item.id}-1")]
        assert {path.suffix for path in files} in ({".md", ".csv", ".tex", ".json"}, {".svg", ".pdf"}), item.id
        for path in files:
            check(path)
    page = (tmp_path / "smoke" / f"{name}.html").read_text(encoding="utf-8")
    places = [*(item.id for item in paper.items), *(anchor(claim) for claim in paper.claims)]
    assert all(page.count(f'id="{place}"') == 1 for place in places)
    index = (tmp_path / "smoke" / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'href="([^"#]+)', index)) == {f"{name}.html"}  # the pages that are there
    assert set(re.findall(rf'href="{name}.html#([^"]+)', index)) == set(places[len(paper.items) :])
    assert not list((tmp_path / "runs").rglob("*.safetensors"))  # checkpoints are dropped


def check(path: Path) -> None:
    """A file is not empty and is what its name says."""
    content = path.read_bytes()
    match path.suffix:
        case ".json":
            assert json.loads(content)["rows"]
        case ".csv":
            assert len(list(csv.reader(content.decode("utf-8").splitlines()))) > 1
        case ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
        case ".pdf":
            assert content.startswith(b"%PDF")
        case _:
            assert content.strip()


def test_what_is_there_is_not_made_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["knfu", "table1", "--scale", "smoke", "--out", str(tmp_path)]
    assert run(*words, "--rows", "KnFu", "--seeds", "2") == 0
    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/rounds.jsonl")}
    assert len(first) == 2
    assert run(*words, "--rows", "KnFu; Local", "--seeds", "2") == 0
    assert "2 are there" in capfd.readouterr().out
    again = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/rounds.jsonl")}
    assert len(again) == 4
    assert first.items() <= again.items()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["kdai"], "there is no paper 'kdai'; did you mean 'kdia'?"),
        (["kdia", "table22"], "KDIA has no 'table22'; did you mean 'table2'?"),
        (["knfu", "table1", "--rows", "KnFuu"], "--rows: knfu table1 has no 'KnFuu'; did you mean 'KnFu'?"),
        (["knfu", "table1", "--columns", "50, 0.2"], "--columns: knfu table1 has no '50, 0.2'"),
        (
            ["knfu", "table1", "--columns", " ; "],
            "--columns names nothing; knfu table1 has: 50, 0.1; 50, 0.5; 100, 0.1",
        ),
        (["knfu", "--seeds", "3"], "--seeds has no effect on a list"),
        (["--estimate"], "--estimate has no effect on a list"),
        (["--engine", "pool"], "--engine has no effect on a list"),
        (["knfu", "table1", "--seeds", "x"], "--seeds x must be a number of seeds"),
    ],
)
def test_mistakes_are_explained(
    words: list[str], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*words, "--out", str(tmp_path)) == 2
    assert sentence in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
