"""Finished runs as data: which runs a path stands for, selecting, data frames, tables and plots."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedalloy
from fedalloy.base.files import write_json
from fedalloy.errors import DataError, UsageError
from fedalloy.report.frame import Frame
from fedalloy.report.results import KINDS, Results, load


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with two methods and two seeds; FedAvg's learning rates differ in a third folder."""
    folder = tmp_path_factory.mktemp("kept")
    exp = {"data": "tiny", "model": "mlp", "rounds": 2, "partition": {"name": "iid", "clients": 3}}
    fedalloy.compare(exp, ["fedavg", "local"], seeds=[0, 1], folder=folder / "compared")
    fedalloy.simulate({**exp, "training": {"lr": 0.5}}, folder / "fast")
    return folder


def names(results):
    return [(run.name, run.seed) for run in results]


def test_a_path_stands_for_all_runs_in_it(kept):
    four = [("fedavg", 0), ("fedavg", 1), ("local", 0), ("local", 1)]
    assert names(load(kept / "compared")) == names(load(f"{kept}/compared/*")) == names(load(f"{kept}/comp*")) == four
    assert names(load(kept / "compared" / "local-seed1")) == [("local", 1)]
    assert names(load([kept / "fast", f"{kept}/compared/*seed0"])) == [("fedavg", 0), ("fedavg", 0), ("local", 0)]
    assert len(load([kept, f"{kept}/*", kept / "fast"])) == 5  # none twice
    assert names(load(f"{kept}/**/*seed1")) == [("fedavg", 1), ("local", 1)]


@pytest.mark.parametrize("path", ["nothing/*", "nothing", "comp*/report"])
def test_a_path_without_runs_is_named(kept, path):
    with pytest.raises(DataError) as caught:
        load(kept / path)
    assert path in str(caught.value)


def test_a_folder_may_have_the_signs_of_a_pattern(kept, tmp_path):
    place = tmp_path / "runs [new]"
    place.mkdir()
    (place / "run").symlink_to(kept / "fast")
    assert len(load(place / "run")) == 1


def test_results_are_a_sequence(kept):
    results = load(kept / "compared")
    assert isinstance(results[1:], Results)
    assert names(results[1:3]) == [("fedavg", 1), ("local", 0)]
    assert results[0] in results
    assert repr(results) == "<Results: 4 runs of 2 methods (FedAvg, Local, equal rounds) with 2 seeds>"


def test_runs_are_selected_by_method_seed_and_setting(kept):
    results = load(kept)
    assert names(results.select(method="fedavg", seed=[1, 2])) == [("fedavg", 1)]
    assert names(results.select(method=["FedAvg", "local"], seed=0)) == [("fedavg", 0), ("local", 0), ("fedavg", 0)]
    assert names(results.select(**{"training.lr": 0.5})) == [("fedavg", 0)]
    assert len(results.select(rounds=[2, 3])) == 5
    with pytest.raises(UsageError, match=r"training\.lr"):
        results.select(**{"training.rl": 0.5})


def test_a_frame_has_a_row_for_each_run_and_view(kept):
    results = load(kept / "compared")
    frame = results.to_frame()
    assert isinstance(frame, Frame)  # there is no pandas here
    assert len(frame) == 2 * 2 + 2 * 1  # ACA and OCA, personal
    first = next(iter(frame))
    run = results[0]
    assert (first["method"], first["label"], first["seed"], first["view"]) == ("fedavg", "FedAvg", 0, "aca")
    assert first["amp"] == run.at("aca", "amp")
    assert (first["round"], first["selection"], first["folder"]) == (2, "last", str(run.folder))
    assert first["bytes_total"] == run.total("bytes")
    assert "training.lr" not in frame.columns
    assert "mae" not in frame.columns  # only regression has it
    with pytest.raises(UsageError, match="amp"):
        frame["apm"]


def test_settings_that_differ_are_columns(kept):
    frame = load(kept).select(method="fedavg", seed=0).to_frame()
    assert set(frame["training.lr"]) == {0.05, 0.5}
    assert not {name for name in load(kept).to_frame().columns if name.startswith(("method.", "aggregation."))}


def test_a_frame_per_round_and_per_client(kept):
    results = load(kept / "compared").select(method="fedavg", seed=1)
    run = results[0]
    rounds = results.to_frame("round")
    assert [(row["view"], row["round"]) for row in rounds] == [("aca", 1), ("oca", 1), ("aca", 2), ("oca", 2)]
    assert rounds["wlp"][2] == run.at("aca", "wlp")
    clients = results.to_frame("client")
    assert [(row["view"], row["client"]) for row in clients] == [(v, k) for v in ("aca", "oca") for k in range(3)]
    assert clients["accuracy"][3:] == run.clients("oca", "accuracy").tolist()
    assert sum(clients["train_size"][:3]) == sum(run.meta["clients"]["train_sizes"])
    mean = results.to_frame("client", "mean of last 2")
    assert mean["accuracy"][:3] == pytest.approx(run.clients("aca", "accuracy", "mean of last 2").tolist())


def test_words_that_are_not_known_are_refused(kept):
    results = load(kept / "fast")
    for wrong in ({"per": "rounds"}, {"selection": "best"}):
        with pytest.raises(UsageError):
            results.to_frame(**wrong)
    with pytest.raises(UsageError, match="curves"):
        results.plot("curve")
    with pytest.raises(UsageError, match="amp"):
        results.differences("ampp")
    with pytest.raises(DataError):
        results.select(seed=9).table()


def test_with_pandas_a_frame_is_a_data_frame(kept, monkeypatch):
    made = SimpleNamespace(DataFrame=lambda rows, columns: ("pandas", rows, columns), __spec__=object())
    monkeypatch.setitem(sys.modules, "pandas", made)
    kind, rows, columns = load(kept / "fast").to_frame()
    assert kind == "pandas"
    assert list(rows[0]) == columns
    assert columns[:4] == ["method", "label", "seed", "view"]


def test_a_frame_can_be_printed_and_written(kept):
    frame = load(kept / "compared").to_frame("client")
    assert "more rows" not in str(load(kept / "fast").to_frame())
    assert str(frame).splitlines()[0].split()[:3] == ["method", "label", "view"]
    assert len(frame.csv().splitlines()) == 1 + len(frame)
    assert frame._repr_html_().count("<tr>") == 1 + len(frame)
    assert Frame(("a",), [{"a": k} for k in range(30)]).__repr__().endswith("... and 10 more rows")


def test_the_table_is_that_of_compare(kept):
    results = load(kept / "compared")
    table = results.table()
    assert table.headings[:3] == ("Method", "View", "AMP %")
    assert [row[:2] for row in table.rows] == [
        ["FedAvg", "ACA"],
        ["FedAvg", "OCA"],
        ["Local, equal rounds", "personal"],
    ]
    assert f"{100 * results[0].at('aca', 'amp') / 2 + 100 * results[1].at('aca', 'amp') / 2:.2f} ±" in str(table)
    assert "AMP %" in results._repr_html_()
    with pytest.raises(UsageError):
        results.table("best by validation")  # there is none


def test_differences_are_paired_by_seed(kept):
    results = load(kept / "compared")
    found = results.differences()
    aca, local = ([run.at(view, "amp") for run in results.select(method=name)] for name, view in
                  (("fedavg", "aca"), ("local", "personal")))  # fmt: skip
    (row,) = [row for row in found if {row["better"], row["worse"]} == {"FedAvg (ACA)", "Local, equal rounds"}]
    mean = sum(a - b for a, b in zip(aca, local, strict=True)) / 2
    assert row["lead"] == pytest.approx(abs(mean))
    assert row["seeds"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_plots_are_figures_and_can_be_saved(kept, kind, tmp_path):
    file = tmp_path / "plot.svg"
    figure = load(kept / "compared").plot(kind, width=3.7, save=file)
    assert file.read_bytes().startswith(b"<?xml")
    assert figure._repr_html_().startswith("<svg")


def test_loading_is_a_name_of_the_package():
    assert fedalloy.load is load
    assert fedalloy.Results is Results
    assert fedalloy.load_data("tiny").classes == 10


def test_a_damaged_run_is_named(kept, tmp_path):
    (tmp_path / "bad").mkdir()
    write_json(tmp_path / "bad" / "run.json", {"format": 1})
    with pytest.raises(DataError, match="bad"):
        load(Path(tmp_path))
