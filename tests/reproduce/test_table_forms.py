"""The papers' tables from records made by hand: every cell is one that can be checked by eye."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedalloy.base.text import MISSING, TIMES
from fedalloy.errors import DataError
from fedalloy.report.tables import Table
from fedalloy.reproduce.catalogue import Item, Published, PublishedColumn, Row, Scale
from fedalloy.reproduce.forms import FORMS, tables_layout
from fedalloy.reproduce.results import Results
from fedalloy.storage.results import Run

ROWS = (
    Row("FedAvg", "fedavg", "aca"),
    Row("KDIA", "kdia", "teacher"),
    Row("FedAvg (OCA)", "fedavg", "oca", control=True),
)


@pytest.fixture(autouse=True)
def figures(monkeypatch) -> dict[tuple[str, str, str], str]:
    """The paper's figures, by row, column and metric."""
    texts: dict[tuple[str, str, str], str] = {}
    monkeypatch.setattr(tables_layout, "published", lambda _: {k: Published.of(text) for k, text in texts.items()})
    return texts


def item(form: str, **changes: Any) -> Item:
    scale = Scale(experiment="any", axes=({"name": "alpha"},), differs="Smaller data.")
    parts: dict[str, Any] = {"form": form, "full": scale, "cpu": scale, "smoke": scale, "rows": ROWS, "paper": "kdia"}
    return Item(id="table2", title="Accuracy", section="6", **{**parts, **changes})


def run(curves: dict[str, list[float]], seed: int = 0, seconds: float = 1.0) -> Run:
    """A run whose views have these accuracies on the common test set, round by round."""
    count = len(next(iter(curves.values())))
    rounds = [
        {
            "round": t + 1,
            "seconds": {"client": seconds, "server": 0.0, "total": seconds},
            "bytes": {"up": {"weights": 100}, "down": {"weights": 300}},
            "passes": {"clients": {"forward": 30, "backward": 10, "steps": 10}},
            "views": {
                view: {"amp": values[t] / 2, "test": values[t], "fm": 0.001, "validation": None, "clients": {}}
                for view, values in curves.items()
            },
        }
        for t in range(count)
    ]
    return Run({"name": "any", "label": "any", "seed": seed}, tuple(rounds))


def results(of: Item, *, columns=("0.1",), seeds=(0, 1), runs=None, scale="cpu") -> Results:
    """FedAvg has 0.5 and 0.52 in the last round and is better before; KDIA has 0.6 and 0.62."""
    if runs is None:
        runs = {}
        for column in columns:
            for seed in seeds:
                more = 0.02 * seed
                fedavg = {"aca": [0.4, 0.7 + more, 0.5 + more], "oca": [0.4, 0.5, 0.55 + more]}
                runs[column, "fedavg", seed] = run(fedavg, seed)
                runs[column, "kdia", seed] = run({"teacher": [0.55, 0.58, 0.6 + more]}, seed, seconds=2.0)
    return Results(of, scale, tuple(columns), tuple(seeds), runs)


def lines(table: Table) -> list[list[str]]:
    return [list(row) for row in table.rows]


def test_scores_are_ours_the_papers_and_the_gap(figures):
    figures[("FedAvg", "0.1", "test")] = "50.41 ± 1.91"
    figures[("KDIA", "0.1", "test")] = "65"
    found, influence = FORMS["scores"](results(item("scores")))
    assert found.title == "Table 2: Accuracy (Test %)"
    assert list(found.headings) == ["Method", "ours", "paper", "gap"]
    assert lines(found) == [
        ["FedAvg", "51.00 ± 1.41", "50.41 ± 1.91", "+0.59"],
        ["KDIA", "61.00 ± 1.41", "65", "-4.00"],
        ["FedAvg (OCA) *", "56.00 ± 1.41", MISSING, MISSING],
    ]
    assert list(found.rules) == [1]  # a line between the paper's rows and controls
    assert list(found.notes) == [
        "Ours: from the last round; 2 seeds (0 and 1).",
        "Scale: cpu.",
        "Columns are named by alpha.",
        "* A control, which the paper does not have.",
        "Smaller data.",
    ]
    assert influence.title == "Table 2: how much the reported round matters (Test %)"


def test_the_other_rounds_show_what_selection_does():
    _, influence = FORMS["scores"](results(item("scores")))
    assert list(influence.headings) == ["Method", "last (paper)", "best by test", "mean of last 10"]
    assert lines(influence)[0] == ["FedAvg", "51.00", "71.00", "54.00"]
    best = item("scores", round="best by test")
    _, influence = FORMS["scores"](results(best))
    assert list(influence.headings) == ["Method", "best by test (paper)", "last", "mean of last 10"]
    fair = item("scores", metrics=("fm",))
    assert "best by AMP" in FORMS["scores"](results(fair))[1].headings  # no round is selected by FM


def test_columns_are_groups_and_many_of_them_are_several_tables(figures):
    figures[("FedAvg", "B, 1", "test")] = "50"
    columns = [f"{data}, {alpha}" for data in "AB" for alpha in ("0.1", "1", "5")]
    one, two, *influence = FORMS["scores"](results(item("scores"), columns=columns))
    assert one.title == "Table 2: Accuracy (A)"
    assert list(one.groups) == [("", 1), ("A, 0.1", 1), ("A, 1", 1), ("A, 5", 1)]  # the paper has no figures there
    assert list(two.groups) == [("", 1), ("B, 0.1", 1), ("B, 1", 3), ("B, 5", 1)]
    assert "Published figures: for 0 of 6 cells." in one.notes
    assert "Published figures: for 1 of 6 cells." in two.notes
    assert ("Smaller data." in one.notes, "Smaller data." in two.notes) == (True, False)  # said once
    assert [table.title for table in influence] == [
        "Table 2: how much the reported round matters (A)",
        "Table 2: how much the reported round matters (B)",
    ]


def test_several_metrics_of_a_column_stand_side_by_side():
    several = item("scores", metrics=("test", "amp", "fm"))
    one, two, *_ = FORMS["scores"](results(several, columns=("0.1", "1")))
    assert (one.title, two.title) == ("Table 2: Accuracy (0.1)", "Table 2: Accuracy (1)")
    assert [text for text, _ in one.groups] == ["", "0.1, Test %", "0.1, AMP %", "0.1, FM ×10³"]  # noqa: RUF001


def test_a_column_that_stands_for_another_says_so(figures):
    figures[("FedAvg", "CIFAR-10, 0.1", "test")] = "50.00"
    scale = Scale(experiment="any", axes=({"name": "alpha"},), stands_for={"0.1": "CIFAR-10, 0.1"})
    found, _ = FORMS["scores"](results(item("scores", cpu=scale)))
    assert found.title == "Table 2: Accuracy (0.1 for CIFAR-10, 0.1, Test %)"
    assert lines(found)[0][1:] == ["51.00 ± 1.41", "50.00", "+1.00"]


def test_missing_cells_are_dashes_and_counted():
    whole = results(item("scores"), columns=("0.1", "1"), seeds=(0, 1, 2))
    runs = {key: value for key, value in whole.runs.items() if key not in {("1", "kdia", seed) for seed in (0, 1, 2)}}
    del runs["0.1", "fedavg", 2]
    found, _ = FORMS["scores"](replace(whole, runs=runs))
    assert lines(found)[1][-1] == MISSING
    assert f"{MISSING}: nothing is recorded, in KDIA (1, Test %)." in found.notes
    assert "Fewer seeds, at least 2, in FedAvg (0.1, Test %); FedAvg (OCA) (0.1, Test %)." in found.notes
    empty, _ = FORMS["scores"](results(item("scores"), runs={}))
    assert "No run is recorded." in empty.notes
    assert lines(empty)[0] == ["FedAvg", MISSING]


def test_one_seed_has_no_deviation_and_a_smoke_test_says_what_it_is():
    found, _ = FORMS["scores"](results(item("scores"), seeds=(0,), scale="smoke"))
    assert lines(found)[0] == ["FedAvg", "50.00"]
    assert found.notes[0] == "Ours: from the last round; seed 0 only."
    assert "only that it runs" in found.notes[1]


def test_columns_of_the_paper_that_are_not_run_are_named():
    printed = (
        PublishedColumn("0.1", (("FedAvg", "50"), ("KDIA", "> 60"))),
        PublishedColumn("5", (("FedAvg", "70"), ("KDIA", ""))),
    )
    found, _ = FORMS["scores"](results(item("scores", published=printed)))
    assert lines(found)[0][2:] == ["50", "+1.00"]
    assert lines(found)[1][2:] == ["> 60", MISSING]  # as it is printed, but there is no number to subtract
    assert "Columns of the paper that are not run: 5." in found.notes


def test_targets_count_rounds_and_the_speed_up_over_the_first_row():
    printed = (PublishedColumn("0.1", (("FedAvg", "186", "> 200"), ("KDIA", "73", ""))),)
    options = {"targets": ["test 0.5", "test 0.61"]}
    (found,) = FORMS["targets"](results(item("targets", options=options, published=printed)))
    assert list(found.headings) == ["Method", "rounds", "speed-up", "paper", "rounds", "speed-up", "paper"]
    assert [text for text, _ in found.groups] == ["", "Test 50 %", "Test 61 %"]
    assert lines(found) == [
        ["FedAvg", "2", f"1.0{TIMES}", "186", "2", f"1.0{TIMES}", "> 200"],
        ["KDIA", "1", f"2.0{TIMES}", "73", "1 of 2 seeds", MISSING, MISSING],
        ["FedAvg (OCA) *", "2", f"1.0{TIMES}", MISSING, "> 3", MISSING, MISSING],
    ]
    assert "> N: not reached in a run that takes N. The speed-up is over FedAvg." in found.notes


def test_targets_may_be_those_of_the_metrics_or_of_each_column():
    (found,) = FORMS["targets"](results(item("targets", metrics=("rounds to test 0.5",))))
    assert lines(found)[0] == ["FedAvg", "2", f"1.0{TIMES}"]
    options = {"targets": {"0.1": ["test 0.5"], "CIFAR-10": ["test 0.4", "amp 0.25"]}}
    scale = Scale(experiment="any", axes=({"name": "alpha"},), stands_for={"1": "CIFAR-10"})
    (found,) = FORMS["targets"](results(item("targets", options=options, cpu=scale), columns=("0.1", "1")))
    assert [text for text, _ in found.groups] == [
        "", "0.1, Test 50 %", "1 for CIFAR-10, Test 40 %", "1 for CIFAR-10, AMP 25 %",
    ]  # fmt: skip


def test_a_target_may_be_what_another_row_reaches_in_the_same_seed():
    options = {"targets": ["test last of FedAvg", "test best of KDIA"]}
    (found,) = FORMS["targets"](results(item("targets", options=options)))
    assert [text for text, _ in found.groups] == ["", "FedAvg's last Test", "KDIA's best Test"]
    assert [row[1] for row in found.rows] == ["2", "1", "2.5"]  # OCA: 0.5 in round 2, 0.57 >= 0.52 in round 3
    assert [row[3] for row in found.rows] == ["2", "3", "> 3"]
    assert "FedAvg's last Test: 51.00 %, each seed its own." in found.notes


def test_a_target_may_be_counted_in_another_cost():
    options = {"targets": ["test 0.5"], "cost": "training_seconds"}
    (found,) = FORMS["targets"](results(item("targets", options=options)))
    assert list(found.headings) == ["Method", "training", "speed-up"]
    assert lines(found)[:2] == [["FedAvg", "2.0 s", f"1.0{TIMES}"], ["KDIA", "2.0 s", f"1.0{TIMES}"]]


@pytest.mark.parametrize("text", ["tset 0.5", "test 55", "test best of Nobody", "fm 0.1", "test"])
def test_a_target_that_is_none_is_refused(text):
    with pytest.raises(DataError):
        FORMS["targets"](results(item("targets", options={"targets": [text]})))


def test_costs_have_their_ratio_to_the_first_row_and_scores_their_gap(figures):
    figures |= {("FedAvg", "0.1", "training_seconds"): "403", ("KDIA", "0.1", "training_seconds"): "724"}
    figures |= {("KDIA", "0.1", "test"): "60", ("KDIA", "0.1", "forward"): "3"}
    of = item("costs", metrics=("training_seconds", "forward", "test"))
    (found,) = FORMS["costs"](results(of))
    assert list(found.headings) == [
        *("Method", "ours", "ratio", "paper", "paper's ratio"),
        *("ours", "ratio", "paper", "paper's ratio", "ours", "paper", "gap"),
    ]
    assert lines(found)[1] == [
        *("KDIA", "6.0 s", f"2.00{TIMES}", "12.1 min", f"1.80{TIMES}"),
        *("3.00", f"1.00{TIMES}", "3", MISSING, "61.00 ± 1.41", "60", "+1.00"),
    ]
    assert "Ratios are to FedAvg." in found.notes


def test_settings_are_shown_as_they_are_with_what_ours_gives():
    options = {
        "headings": ["Method", "Parties", "Depth", "#Para"],
        "rows": [["Ours", "Client 0-5", "10", "79k"], ["Ours", "Total", "", "4.7m"], ["Other", "", "", ""]],
        "words": 2,
        "networks": [
            {"name": "wrn", "classes": 30, "channels": 3, "size": 32, "depth": 10},
            [{"name": "wrn", "classes": 30, "channels": 3, "size": 32, "depth": 10, "times": 2}],
            {},
        ],
    }
    (found,) = FORMS["settings"](results(item("settings", rows=(), options=options), columns=(), runs={}))
    assert (found.words, list(found.headings)[-1]) == (2, "parameters (ours)")
    one, two = (int(found.rows[i][-1].replace(",", "")) for i in (0, 1))
    assert two == 2 * one
    assert 78_000 < one < 80_000
    assert lines(found)[1][:4] == ["Ours", "Total", MISSING, "4.7m"]
    assert lines(found)[2][-1] == MISSING


def test_settings_compute_the_metrics_of_given_accuracies():
    options = {"headings": ["Model", "AMP"], "rows": [["w1", "0.7"]], "accuracies": [[0.6, 0.7, 0.8]]}
    of = item("settings", rows=(), options=options)
    (found,) = FORMS["settings"](results(of, columns=(), runs={}))
    assert lines(found) == [["w1", "0.7", "0.7", "0.00667", "0.6"]]
    with pytest.raises(DataError, match="2 entries for 1 rows"):
        FORMS["settings"](results(replace(of, options={**options, "accuracies": [[0.5], [0.6]]})))
    with pytest.raises(DataError, match="headings and rows"):
        FORMS["settings"](results(item("settings")))
