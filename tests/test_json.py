"""--json: JSON alone on standard output, with the same keys every time, and everything else on standard error."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import fedalloy
from fedalloy.base.plain import as_text, plain
from fedalloy.cli.answers import Answer, answers
from fedalloy.cli.main import cli, main
from fedalloy.report import html
from fedalloy.storage.results import read

TINY = ("data=tiny", "model=mlp", "model.hidden=[8]", "partition.clients=4", "partition.alpha=1.0", "rounds=2")
LEARNING = ("training.lr=0.5", "training.epochs=4")  # a model near chance does not compete
COMPARISON = {"selection", "runs", "table", "leads", "notes", "verdict", "targets", "published", "gains"}
TEXTS = {"title", "headings", "rows", "notes", "groups", "best"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of two methods, compared with --json, and what the command printed."""
    folder = tmp_path_factory.mktemp("kept")
    words = ["compare", *TINY, *LEARNING, "--methods", "local,fedavg", "--seeds", "2", "--out", "compared", "--json"]
    code = "from fedalloy.cli.main import main; main()"
    told = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=True)
    (folder / "out").write_text(told.stdout)
    (folder / "err").write_text(told.stderr)
    return folder


@pytest.fixture
def fed(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Call a command with --json in an empty folder; gives its exit status, its JSON and its standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(html, "write_report", lambda runs, path, **_: path)  # drawing a page is slow

    def call(*words: str) -> tuple[int, Any, str]:
        with pytest.raises(SystemExit) as left:
            main([*words, "--json"])
        caught = capfd.readouterr()
        return int(left.value.code or 0), json.loads(caught.out) if caught.out else None, caught.err

    return call


def test_compare(kept: Path) -> None:
    told = json.loads((kept / "out").read_text())
    assert set(told) == COMPARISON | {"report"}
    assert [(run["method"], run["seed"]) for run in told["runs"]] == [
        *(("local", 0), ("fedavg", 0)),
        *(("local", 1), ("fedavg", 1)),
    ]
    assert [(line["label"], line["view"], line["seeds"]) for line in told["table"]] == [
        *(("Local, equal rounds", "personal", 2), ("FedAvg", "aca", 2), ("FedAvg", "oca", 2)),
    ]
    runs = [read(kept / run["folder"]) for run in told["runs"] if run["method"] == "fedavg"]
    assert told["table"][1]["amp"] == pytest.approx(sum(run.at("aca", "amp") for run in runs) / 2)
    assert {lead["seeds"] for lead in told["leads"]} == {2}
    assert len(told["leads"]) == 3  # pairs of three lines
    assert all(set(table) == TEXTS for name in ("targets", "published", "gains") for table in told[name])
    assert told["verdict"]
    assert told["report"] == "compared/report.html"
    assert json.loads((kept / "compared" / "table.json").read_text()) == told["table"]


def test_messages_and_progress_are_on_standard_error(kept: Path) -> None:
    said = (kept / "err").read_text()
    assert "seed 1" in said  # progress
    assert "AMP %" in said
    assert "report: compared/report.html" in said


def test_a_comparison_over_seeds_draws_the_probability_of_improvement(kept: Path) -> None:
    assert (kept / "compared" / "improvement.png").read_bytes().startswith(b"\x89PNG")


def test_run_resume_and_report(fed: Any, kept: Path) -> None:
    code, told, _ = fed("run", *TINY, "--out", "one", "--profile")
    assert code == 0
    assert set(told) == COMPARISON | {"profile", "report"}
    assert told["verdict"] == ""
    assert told["profile"]["total"] > 0
    code, told, _ = fed("resume", "one", "--rounds", "3")
    assert (code, told["table"][0]["rounds"], told["report"]) == (0, 3, "one/report.html")
    code, told, _ = fed("report", str(kept / "compared"), "--target", "0.01")
    assert (code, len(told["runs"]), told["report"]) == (0, 4, "report.html")
    assert told["targets"][0]["rows"]


def test_table(fed: Any, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        'rounds = 1\nmodel = "mlp"\ndata = "tiny"\n[[axes]]\nname = "alpha"\n'
        'values = [{ label = "low", set = { "partition.alpha" = 0.1 } },'
        ' { label = "high", set = { "partition.alpha" = 1.0 } }]\n'
    )
    code, told, said = fed("table", "grid.toml")
    assert code == 0, said
    assert set(told) == TEXTS | {"file"}
    assert [row[0] for row in told["rows"]] == ["low", "high"]


def test_check_doctor_and_partition(fed: Any, kept: Path) -> None:
    code, told, _ = fed("check", "fedavg")
    assert (code, told["method"]) == (0, "fedavg")
    assert len(told["passed"]) > 5
    code, told, _ = fed("doctor", str(kept / "compared" / "runs" / "fedavg-seed0"))
    assert code == 0
    assert {tuple(one) for one in told["findings"]} == {("level", "what", "sentence")}
    code, told, _ = fed("doctor", str(kept / "nothing"))
    assert code != 0  # and the findings are told all the same
    assert "wrong" in {one["level"] for one in told["findings"]}
    code, told, _ = fed("partition", *TINY)
    assert (code, told["clients"]) == (0, 4)


def test_reproduce_lists(fed: Any) -> None:
    code, told, _ = fed("reproduce", "knfu")
    assert (code, set(told)) == (0, {"tables", "claims"})
    assert all(set(table) == TEXTS for table in told["tables"])
    assert {"paper", "id", "item", "ours", "says", "verdict", "scale", "reason"} == set(told["claims"][0])
    assert {claim["paper"] for claim in told["claims"]} == {"knfu"}


def test_bench_attacks(fed: Any) -> None:
    code, told, _ = fed("bench-attacks", *TINY, "rounds=1", "--methods", "fedavg", "--attacks", "sign-flip")
    assert code == 0
    assert set(told) == {"fraction", "experiment", "scores"}
    assert {score["attack"] for score in told["scores"]} == {"none", "sign-flip"}


def test_a_refusal_leaves_standard_output_empty(fed: Any) -> None:
    code, told, said = fed("report", "nothing")
    assert (code, told) == (3, None)
    assert "nothing" in said


def test_every_command_with_a_table_has_the_option() -> None:
    deploy = cli.commands["deploy"]
    assert isinstance(deploy, click.Group)
    every = {**cli.commands, **{f"deploy {name}": command for name, command in deploy.commands.items()}}
    having = {name for name, command in every.items() if any("--json" in one.opts for one in command.params)}
    assert having - {"list"} == {
        *("run", "compare", "table", "resume", "report", "reproduce", "check", "doctor", "advise", "partition"),
        *("bench-attacks", "deploy run", "deploy resume", "deploy status", "deploy audit"),
    }


def test_what_a_command_and_its_children_print_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @answers
    def noisy() -> Answer:
        print("from Python")  # noqa: T201
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        return Answer({"amp": math.nan, "path": Path("a")}, SystemExit(5))

    with pytest.raises(SystemExit) as left:
        noisy.main(["--json"], standalone_mode=False)
    caught = capfd.readouterr()
    assert left.value.code == 5
    assert json.loads(caught.out) == {"amp": None, "path": "a"}
    assert "from Python" in caught.err
    assert "from a child" in caught.err
    with pytest.raises(SystemExit):
        noisy.main([], standalone_mode=False)
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "from Python", "from a child"]


def test_numbers_that_are_not_finite_are_null() -> None:
    import numpy as np

    assert plain({"a": [math.inf, 1.5], "b": np.array([np.nan, 2.0]), 3: (np.float64("nan"),)}) == {
        "a": [None, 1.5],
        "b": [None, 2.0],
        "3": [None],
    }
    assert json.loads(as_text({"name": "é"})) == {"name": "é"}


@pytest.mark.parametrize("form", ["latex", "csv", "md", "json"])
def test_export_table(capsys: pytest.CaptureFixture[str], kept: Path, tmp_path: Path, form: str) -> None:
    words = ["export-table", str(kept / "compared" / "runs" / "*"), "--format", form]
    with pytest.raises(SystemExit) as left:
        main(words)
    assert not left.value.code
    text = capsys.readouterr().out
    results = fedalloy.load(kept / "compared")
    assert text == results.exported(form)  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as left:
        main([*words, "--out", str(tmp_path / "tables" / "table.txt")])
    assert (tmp_path / "tables" / "table.txt").read_text() == text
    if form == "csv":
        heading, first, *_ = csv.reader(text.splitlines())
        assert float(first[heading.index("amp")]) == pytest.approx(
            sum(run.at("aca", "amp") for run in results.select(method="fedavg")) / 2
        )
    elif form == "json":
        told = json.loads(text)
        assert set(told) == TEXTS | {"records"}
        assert [line["label"] for line in told["records"]] == [row[0] for row in told["rows"]]
    else:
        assert {"latex": "\\toprule", "md": "| :-- |"}[form] in text


def test_export_table_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str], kept: Path) -> None:
    for words, code in (
        ([str(kept / "compared"), "--format", "html"], 2),
        ([str(kept / "compared"), "--select", "best"], 2),
        ([str(kept / "nothing" / "*")], 3),
    ):
        with pytest.raises(SystemExit) as left:
            main(["export-table", *words])
        assert left.value.code == code
        assert capsys.readouterr().out == ""
