"""Tiny runs written by hand, read back and compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalloy.errors import DataError, UsageError
from fedalloy.federation.metrics import METRICS
from fedalloy.storage import results
from fedalloy.storage.rows import COLUMNS, Row, Spread, check_selection, combine, gain_over, rows, too_few

AMPS = [0.5, 0.75, 0.25]


def view(amp: float, test: float | None = None, validation: float | None = None, **changes: Any) -> dict[str, Any]:
    names = ("fm", "alma", "bottom10", "balanced", "macro_f1", "loss", "mixture_min", "mixture_mean", "mixture_var")
    clients = {"accuracy": [amp, amp - 0.25, None], "loss": [1.0, 2.0, None], "size": [4, 4, 0]}
    scores = {"amp": amp, "wlp": amp - 0.25, "worst_client": 1, "test": test, "validation": validation}
    return dict.fromkeys(names, 0.125) | scores | {"clients": clients} | changes


PASSES = {"forward": 12.0, "backward": 8.0, "generator_forward": 4.0, "generator_backward": 0.0}


def record(number: int, **views: dict[str, Any]) -> dict[str, Any]:
    return {
        "round": number,
        "active": [0, 1],
        "lost": [],
        "seconds": {"client": 0.25, "server": 0.25, "evaluation": 0.5, "checkpoint": 0.0, "total": 1.0},
        "bytes": {"down": {"weights": 100, "framing": 10}, "up": {"weights": 50, "scalars": 8, "framing": 2}},
        "passes": {"clients": {"steps": 8, **PASSES}, "server": {"steps": 100, **dict.fromkeys(PASSES, 50.0)}},
        "flops": {"clients": 9e8, "server": 1e8},
        "memory": 1,
        "views": views,
    }


def write(folder: Path, records: list[dict[str, Any]], label: str = "FedAvg", seed: int = 0, tail: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    meta = {"format": 1, "name": label.lower(), "label": label, "seed": seed, "status": "done"}
    (folder / "run.json").write_text(json.dumps(meta))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records) + tail)
    return folder


def make(records: list[dict[str, Any]], label: str = "FedAvg", seed: int = 0) -> results.Run:
    return results.Run({"name": label.lower(), "label": label, "seed": seed}, tuple(records))


@pytest.fixture
def three_rounds() -> list[dict[str, Any]]:
    return [record(t, aca=view(amp)) for t, amp in enumerate(AMPS, start=1)]


def test_a_run_is_read_back(tmp_path: Path, three_rounds: list[dict[str, Any]]) -> None:
    run = results.read(write(tmp_path / "run", three_rounds))
    assert (run.name, run.label, run.seed, run.folder) == ("fedavg", "FedAvg", 0, tmp_path / "run")
    rounds, values = run.series("aca", "amp")
    assert rounds.tolist() == [1, 2, 3]
    assert values.tolist() == AMPS
    assert np.isnan(run.series("aca", "test")[1]).all()
    np.testing.assert_array_equal(run.clients("aca", "accuracy", 2), [0.75, 0.5, math.nan])
    np.testing.assert_array_equal(run.clients("aca", "loss"), [1.0, 2.0, math.nan])


@pytest.mark.parametrize("keep", [1, 20, -1])
def test_a_torn_last_line_is_ignored(tmp_path: Path, three_rounds: list[dict[str, Any]], keep: int) -> None:
    run = results.read(write(tmp_path, three_rounds[:2], tail=json.dumps(three_rounds[2])[:keep]))
    assert [line["round"] for line in run.rounds] == [1, 2]


def test_a_line_torn_within_a_letter_is_ignored(tmp_path: Path, three_rounds: list[dict[str, Any]]) -> None:
    folder = write(tmp_path, three_rounds)
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "note": "\xc3')
    assert len(results.read(folder).rounds) == 3


def test_a_last_line_that_lacks_only_its_end_counts(tmp_path: Path, three_rounds: list[dict[str, Any]]) -> None:
    run = results.read(write(tmp_path, three_rounds[:2], tail=json.dumps(three_rounds[2])))
    assert len(run.rounds) == 3


@pytest.mark.parametrize("broken", ["{", "[]", "7", '{"rounds": 1}'])
def test_a_broken_line_in_the_middle_is_refused(tmp_path: Path, three_rounds: list[Any], broken: str) -> None:
    folder = write(tmp_path, three_rounds[:1], tail=f"{broken}\n{json.dumps(three_rounds[1])}\n")
    with pytest.raises(DataError, match=r"line 2 of .*rounds\.jsonl"):
        results.read(folder)


def test_a_round_written_again_counts_once(tmp_path: Path, three_rounds: list[dict[str, Any]]) -> None:
    run = results.read(write(tmp_path, [*three_rounds, record(2, aca=view(0.625))]))
    assert run.series("aca", "amp")[1].tolist() == [0.5, 0.625, 0.25]
    assert run.total("seconds", "total") == 3.0


def test_a_run_that_has_only_begun_has_no_rows(tmp_path: Path) -> None:
    folder = write(tmp_path, [])
    (folder / "rounds.jsonl").unlink()
    assert rows(results.read(folder)) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "does not describe a run"),
        ('{"format": 1}', "does not describe a run"),
        ('{"format": 9, "name": "x", "label": "X", "seed": 0}', "format 9"),
    ],
)
def test_a_broken_run_json_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(DataError, match=rf"run\.json .*{reason}"):
        results.read(tmp_path)


def test_a_missing_run_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.run\.json cannot be read"):
        results.read(tmp_path / "nowhere")


def test_views_have_a_display_order() -> None:
    names = ["teacher", "mine", "oca", "personal", "student", "aca", "global"]
    run = make([record(1, **{name: view(0.5) for name in names})])
    assert run.views == ("personal", "global", "aca", "oca", "student", "teacher", "mine")
    assert [row.view for row in rows(run)] == list(run.views)


def test_unknown_names_are_answered_with_the_nearest(three_rounds: list[dict[str, Any]]) -> None:
    run = make(three_rounds)
    with pytest.raises(UsageError, match="no view 'ac'; did you mean 'aca'"):
        run.series("ac", "amp")
    with pytest.raises(UsageError, match="did you mean 'macro_f1'"):
        run.series("aca", "macrof1")
    with pytest.raises(UsageError, match="did you mean 'accuracy'"):
        run.clients("aca", "acuracy")
    with pytest.raises(UsageError, match="at 4; choose another round"):
        run.clients("aca", "accuracy", 4)
    with pytest.raises(UsageError, match="did you mean 'best by test'"):
        results.selected(run, "aca", "best on test")


# Twelve rounds in which every selection reports another figure, all exact in binary.
TWELVE = {
    "amp": [0.25, 1.0, *[0.5] * 8, 0.25, 0.75],  # best in round 2; the last ten: (8 * 0.5 + 0.25 + 0.75) / 10
    "test": [0.5, 0.25, 0.75, 0.75, *[0.25] * 8],  # best in rounds 3 and 4
    "validation": [0.75, 0.5, *[0.5] * 10],  # best in round 1
}


def twelve(**changes: list[Any]) -> results.Run:
    columns = TWELVE | changes
    return make([record(t, aca=view(*scores)) for t, scores in enumerate(zip(*columns.values(), strict=True), start=1)])


@pytest.mark.parametrize(
    ("selection", "rounds", "amp", "test", "wlp"),
    [
        ("last", (12,), 0.75, 0.25, 0.5),
        ("best by amp", (2,), 1.0, 0.25, 0.75),
        ("best by test", (3,), 0.5, 0.75, 0.25),  # the earliest of equals
        ("best by validation", (1,), 0.25, 0.5, 0.0),
        ("mean of last 10", tuple(range(3, 13)), 0.5, (2 * 0.75 + 8 * 0.25) / 10, 0.25),
        ("mean of last 2", (11, 12), 0.5, 0.25, 0.25),
    ],
)
def test_each_selection_reports_its_own_rounds(
    selection: str, rounds: tuple[int, ...], amp: float, test: float, wlp: float
) -> None:
    run = twelve()
    assert results.selected(run, "aca", selection) == rounds
    (row,) = rows(run, selection)
    assert (row.selection, row.rounds) == (selection, 12)
    assert (row.amp, row.test, row.wlp) == pytest.approx((amp, test, wlp))
    assert (row.round, row.worst_client) == ((rounds[0], 1) if len(rounds) == 1 else (None, None))
    assert run.at("aca", "test", selection) == pytest.approx(test)
    np.testing.assert_allclose(run.clients("aca", "accuracy", selection), [amp, amp - 0.25, math.nan])
    assert row.bytes_total == 12 * 170  # costs are those of the whole run


def test_a_mean_over_too_few_rounds_takes_all_and_says_so() -> None:
    run, other = twelve(), make([record(t, aca=view(amp)) for t, amp in enumerate(AMPS, start=1)], label="Local")
    assert rows(other, "mean of last 10")[0].amp == 0.5
    assert too_few([run, other], "mean of last 10") == [
        "Local: the mean is over 3 rounds, all that were evaluated, and not over 10."
    ]
    assert too_few([run], "mean of last 20")[0].startswith("FedAvg: the mean is over 12 rounds")
    assert too_few([run, other], "last") == too_few([run, other], "mean of last 3") == []
    done = results.Run({**other.meta, "stopped_by": "method"}, other.rounds[:1])
    assert too_few([done], "mean of last 10") == []  # its curve is constant


def test_a_mean_needs_the_value_in_every_round() -> None:
    run = twelve(test=[*[0.5] * 11, None])
    assert rows(run, "mean of last 10")[0].test is None
    assert math.isnan(run.at("aca", "test", "mean of last 10"))
    assert rows(run, "best by test")[0].round == 1  # the other rounds still compete


def test_the_gap_is_averaged_like_its_views() -> None:
    gaps = [0.5, 0.25, 0.0]
    run = make([record(t, personal=view(0.25), distilled=view(0.25 + g)) for t, g in enumerate(gaps, start=1)])
    assert [rows(run, s)[0].gap for s in ("last", "best by amp", "mean of last 2")] == [0.0, 0.5, 0.125]


@pytest.mark.parametrize("word", ["best", "mean of last 1", "mean of last 0", "mean of last ten", "last 10", ""])
def test_a_word_that_selects_nothing_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=r"^--select is "):
        results.check_word(word, "--select")


@pytest.mark.parametrize("criterion", ["test", "validation"])
def test_a_view_without_the_criterion_has_an_empty_row(criterion: str) -> None:
    run, selection = twelve(**{criterion: [None] * 12}), f"best by {criterion}"
    assert results.selected(run, "aca", selection) == ()
    (row,) = rows(run, selection)
    assert (row.round, row.amp, row.fm, row.wlp, row.worst_client, row.loss) == (None,) * 6
    assert (row.rounds, row.bytes_total) == (12, 12 * 170)
    with pytest.raises(UsageError, match=f"at '{selection}'"):
        run.clients("aca", "accuracy", selection)


def test_rounds_are_not_chosen_by_what_nobody_has(three_rounds: list[dict[str, Any]]) -> None:
    blind, sighted = make(three_rounds), make([record(1, aca=view(0.5, 0.5, 0.5))])
    for selection in results.SELECTIONS:
        check_selection([blind, sighted], selection)
        check_selection([], selection)
    check_selection([blind], "best by amp")
    with pytest.raises(UsageError, match=r"'best by validation'.* partition\.validation = 0\.1"):
        check_selection([blind, blind], "best by validation")
    with pytest.raises(UsageError, match=r"'best by test'.* 'best by amp'"):
        check_selection([blind, blind], "best by test")


def test_a_row_holds_the_scores_of_a_round_and_the_costs_of_the_run(three_rounds: list[dict[str, Any]]) -> None:
    (row,) = rows(make(three_rounds))
    scores = {name: 0.125 for name in METRICS if METRICS[name].source == "view"}
    scores |= {"amp": 0.25, "wlp": 0.0, "worst_client": 1, "test": None, "validation": None}
    scores |= {name: None for name, metric in METRICS.items() if metric.tasks}  # as in a run before these were recorded
    curve = {"round": 3, "gap": None, "stability": float(np.std(AMPS))}
    costs = {"rounds": 3, "bytes_up": 180, "bytes_down": 330, "bytes_total": 510, "seconds": 3.0, "flops": 3e9}
    costs |= {"client_flops": 2.7e9, "training_seconds": 1.5}
    costs |= {"forward": 1.5, "backward": 1.0, "generator_forward": 0.5, "generator_backward": 0.0}  # of a step
    assert row == Row("FedAvg", "aca", 0, "last", {**scores, **curve, **costs})
    assert row.values.keys() == METRICS.keys()
    assert (row.amp, row.balanced, row.bytes_total) == (0.25, 0.125, 510)
    with pytest.raises(AttributeError, match="accuracy"):
        row.accuracy  # noqa: B018


def test_rounds_without_an_evaluation_cost_but_do_not_score() -> None:
    silent = record(3)
    del silent["views"]
    run = make([record(1), record(2, aca=view(0.5)), silent, record(4, aca=view(0.75)), record(5)])
    (row,) = rows(run)
    assert (row.round, row.rounds, row.bytes_up) == (4, 5, 300)
    assert row.stability == 0.125


def test_the_gap_is_what_local_training_loses_of_distillation() -> None:
    run = make(
        [record(1, personal=view(0.5), distilled=view(0.75)), record(2, personal=view(0.5), distilled=view(0.625))]
    )
    assert [(row.view, row.gap) for row in rows(run)] == [("personal", 0.125), ("distilled", None)]
    assert rows(make([record(1, personal=view(0.5))]))[0].gap is None


def test_a_cost_that_a_round_does_not_know_is_unknown_for_the_run(three_rounds: list[dict[str, Any]]) -> None:
    three_rounds[1]["flops"] = None
    assert rows(make(three_rounds))[0].flops is None


def test_flops_of_older_runs_which_lack_generators_are_unknown(three_rounds: list[dict[str, Any]]) -> None:
    for old in three_rounds:
        old |= {"flops": 1e9, "passes": {"steps": 8, **PASSES}}
    (row,) = rows(make(three_rounds))
    assert (row.flops, row.client_flops, row.forward, row.training_seconds) == (None, None, None, 1.5)


def test_passes_of_a_step_are_those_of_the_last_round_with_steps(three_rounds: list[dict[str, Any]]) -> None:
    three_rounds[0]["passes"]["clients"] = {"steps": 8, **dict.fromkeys(PASSES, 8.0)}  # before there is a generator
    three_rounds[2]["passes"]["clients"] = {"steps": 0, **dict.fromkeys(PASSES, 0.0)}  # nobody answered
    (row,) = rows(make(three_rounds))
    assert (row.forward, row.backward, row.generator_forward, row.generator_backward) == (1.5, 1.0, 0.5, 0.0)


def test_nobody_measured_is_an_empty_cell() -> None:
    (row,) = rows(make([record(1, aca=view(0.5, test=0.5, worst_client=-1, fm=None))]))
    assert (row.worst_client, row.fm, row.stability, row.test) == (None, None, None, 0.5)


def test_combine_means_over_seeds() -> None:
    runs = [make([record(1, aca=view(amp), oca=view(0.5))], seed=seed) for seed, amp in enumerate([0.5, 0.75, 0.7])]
    alone = make([record(1, personal=view(0.25))], label="Local")
    combined = combine([row for run in [*runs, alone] for row in rows(run)])
    assert [(row.label, row.view, row.seeds) for row in combined] == [
        ("FedAvg", "aca", (0, 1, 2)),
        ("FedAvg", "oca", (0, 1, 2)),
        ("Local", "personal", (0,)),
    ]
    amp = combined[0].columns["amp"]
    assert amp.mean == pytest.approx(0.65)
    assert amp.std == pytest.approx(math.sqrt((0.15**2 + 0.1**2 + 0.05**2) / 2))  # divided by n - 1
    assert amp.count == 3
    assert combined[0].columns["test"] == Spread(None, None, 0)
    assert combined[2].columns["amp"] == Spread(0.25, None, 1)
    assert set(combined[0].columns) == set(COLUMNS)


def test_combine_keeps_selections_apart(three_rounds: list[dict[str, Any]]) -> None:
    run = make(three_rounds)
    combined = combine([*rows(run, "last"), *rows(run, "best by amp")])
    assert [(row.selection, row.columns["amp"].mean) for row in combined] == [("last", 0.25), ("best by amp", 0.75)]


def test_combine_refuses_one_seed_twice(three_rounds: list[dict[str, Any]]) -> None:
    row = rows(make(three_rounds))
    with pytest.raises(UsageError, match=r"FedAvg .* have the seed 0; leave one of them out, or .* told_apart"):
        combine(row + row)


def test_an_infinite_loss_has_no_deviation() -> None:
    runs = [make([record(1, aca=view(0.5, loss=loss))], seed=seed) for seed, loss in enumerate([1.0, math.inf])]
    (combined,) = combine([row for run in runs for row in rows(run)])
    assert combined.columns["loss"] == Spread(math.inf, None, 2)


def test_gain_over_local() -> None:
    run, local = make([record(1, aca=view(0.75))]), make([record(1, personal=view(0.5))], label="Local")
    np.testing.assert_array_equal(gain_over(run, local, "aca", "personal"), [0.25, 0.25, math.nan])


def test_gain_over_other_clients_is_refused() -> None:
    other = view(0.5)
    other["clients"]["size"] = [4, 5, 0]
    run, local = make([record(1, aca=view(0.75))]), make([record(1, personal=other)], label="Local")
    with pytest.raises(UsageError, match="FedAvg and Local were not tested on the same clients"):
        gain_over(run, local, "aca", "personal")
