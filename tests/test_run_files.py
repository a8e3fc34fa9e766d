"""Run folders that somebody else has written: refused with the file and the key, or reported soundly."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalloy.cli.ending import carry_out
from fedalloy.cli.main import cli
from fedalloy.cli.terminal import show
from fedalloy.errors import DataError
from fedalloy.report.draw import draw
from fedalloy.report.html import render
from fedalloy.report.partition_plot import bubble_plot, heat_map
from fedalloy.report.svg import save, to_svg
from fedalloy.run.runner import simulate
from fedalloy.storage.results import Run, read

STRANGE = ["$\\frac{$", "a\x00b\x1b[2Jc", "\u202egnorw", "\N{PILE OF POO}", "x" * 5000, "<b>&", "\\", "[/red]", ""]


@pytest.fixture(scope="module")
def small() -> Run:
    values = {"data": "tiny", "model": "mlp", "rounds": 2, "partition": {"name": "iid", "clients": 3}}
    return simulate(values)


@pytest.fixture
def changed(small: Run, tmp_path: Path) -> Callable[..., Path]:
    def write(place: str, value: Any) -> Path:
        """The run's folder, with something else at a dotted place of run.json or, under `rounds`, of its records."""
        whole = json.loads(json.dumps({**small.meta, "rounds": small.rounds}))
        *steps, last = (int(step) if step.isdigit() else step for step in place.split("."))
        node = whole
        for step in steps:
            node = node[step]
        node[last] = value
        records = whole.pop("rounds")
        (tmp_path / "run.json").write_text(json.dumps(whole))
        (tmp_path / "rounds.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("place", "value", "key"),
    [
        ("label", "\ud800", "label"),
        ("label", 3, "label"),
        ("seed", True, "seed"),
        ("clients.class_counts.1.2", None, "clients.class_counts[1][2]"),
        ("clients.class_counts.1", [1, 2], "clients"),
        ("clients.train_sizes", "many", "clients.train_sizes"),
        ("clients.train_sizes", [1, 2], "clients"),
        ("clients.label_names", ["a"], "clients"),
        ("clients", None, "clients"),
        ("data.note", 1, "data.note"),
        ("experiment.evaluate_every", {}, "experiment.evaluate_every"),
        ("experiment.data", [], "experiment.data"),
        ("experiment.more", 2**70, "experiment.more"),
        ("experiment.more", float("nan"), "experiment.more"),
        ("experiment.more", json.loads("[" * 30 + "]" * 30), "experiment.more"),
        (
            "experiment.published",
            [{"source": "x", "metrics": ["amp"], "rows": [["a", "b"]]}],
            "experiment.published[0]",
        ),
        ("model.parameters", "1e3", "model.parameters"),
        ("partition.options", None, "partition.options"),
        ("versions.torch", None, "versions.torch"),
        ("rounds.0", [], "line 1"),
        ("rounds.1", 7, "line 2"),  # the last line too, if it is not torn but wrong
        ("rounds.1.round", 0, "round"),
        ("rounds.0.active", 7, "active"),
        ("rounds.0.active", [99], "client 99"),
        ("rounds.0.lost", None, "lost"),
        ("rounds.0.skipped", {}, "skipped"),
        ("rounds.0.notes", {"survivors": "many"}, "notes.survivors"),
        ("rounds.0.quarantined", [{"client": 0}], "quarantined[0]"),
        ("rounds.0.bytes.up.weights", -1, "bytes.up.weights"),
        ("rounds.0.bytes", None, "bytes"),
        ("rounds.0.seconds.total", "long", "seconds.total"),
        ("rounds.0.flops", float("inf"), "flops"),
        ("rounds.0.views", [], "views"),
        ("rounds.0.views.aca", {}, "views.aca"),
        ("rounds.0.views.aca.amp", 1.5, "views.aca.amp"),
        ("rounds.0.views.aca.clients.accuracy.0", "good", "views.aca.clients.accuracy[0]"),
        ("rounds.0.views.aca.clients.size", [1], "views.aca.clients"),
        ("rounds.0.views.\ud800", {}, "views"),
    ],
)
def test_what_cannot_be_reported_is_refused_with_its_file_and_key(
    changed: Callable[..., Path], place: str, value: Any, key: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(changed(place, value))
    sentence = str(caught.value)
    assert key in sentence
    assert ("rounds.jsonl" if place.startswith("rounds") else "run.json") in sentence
    assert sentence.isprintable()


def test_report_ends_with_the_code_of_bad_data(
    changed: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for place, value in (("rounds.0.active", 7), ("clients.class_counts.0.0", None), ("rounds", [])):
        with pytest.raises(SystemExit) as ended:
            carry_out(cli, ["report", str(changed(place, value))])
        assert ended.value.code == DataError.code
        assert "bug" not in capsys.readouterr().err


@pytest.mark.parametrize("place", ["clients", "data", "model", "digests"])
def test_a_description_that_lacks_what_is_drawn_is_refused(changed: Callable[..., Path], place: str) -> None:
    with pytest.raises(DataError, match=place):
        draw(changed(place, {}))


def test_a_run_is_read_as_it_was_written(changed: Callable[..., Path], small: Run) -> None:
    run = read(changed("label", "FedAvg"))
    assert (run.meta, run.rounds) == (small.meta, small.rounds)


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_pictures_draw_strange_names_of_classes(name: str, tmp_path: Path) -> None:
    counts = np.array([[30, 0], [10, 20]])
    for picture in (bubble_plot, heat_map):
        assert to_svg(picture(counts, [name, "dog"], title=name)).startswith("<svg ")
    save(bubble_plot(counts, [name, "dog"]), tmp_path / "a.png")


def test_a_page_and_the_terminal_bear_strange_names(
    changed: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed("clients.label_names", (STRANGE + ["z"] * 10)[:10])
    other = shutil.copytree(folder, folder.parent / "strange")
    meta = json.loads((other / "run.json").read_text())
    strange = "".join(STRANGE[:4]) + "[/red]"
    meta |= {"label": strange, "seed": 5, "data": {"name": strange, "note": strange}}
    meta["experiment"]["published"] = [
        {"source": strange, "metrics": ["amp"], "rows": [["FedAvg", "aca", strange], [strange, "aca", "1"]]}
    ]
    (other / "run.json").write_text(json.dumps(meta))
    runs = [read(other), read(folder)]
    show(runs)
    assert "\x1b[2J" not in capsys.readouterr().out
    page = render(runs, title="Strange")
    assert not {"\x00", "\x1b", "\u202e"} & set(page)
    page.encode()


def test_whatever_stands_in_a_run_folder_is_refused_or_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "chaos"))
    from harness import Dice
    from run_folders import WAYS, folder_trial, places, whole

    try:
        trials = range(5, len(places()) * len(WAYS), 997)
        assert {folder_trial(Dice(0, "run-folders", number)) for number in trials} >= {"run.json: refused"}
    finally:
        shutil.rmtree(whole())
        for name in ("harness", "run_folders", "spoil"):
            sys.modules.pop(name, None)
