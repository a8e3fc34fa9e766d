"""What withholds a verdict: models that tell no classes apart, curves that still rise, too few rounds to tell."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fedalloy.report.gains import gains
from fedalloy.report.html import render
from fedalloy.report.table import cells, comparison_table
from fedalloy.report.trained import doubts, told
from fedalloy.report.verdict import verdict
from fedalloy.storage.results import Run
from fedalloy.storage.rows import rows

FLAT = [0.8, 0.79, 0.81, 0.8, 0.8, 0.81, 0.79, 0.8]
CLIENTS = 5


@pytest.fixture
def make(make_run):
    """A run whose clients all have these accuracies, round by round, with 100 test samples each and `classes`."""

    def run(
        name: str,
        amps: list[float],
        balanced: float | None = None,
        *,
        view: str = "personal",
        classes: int = 10,
        tests: int = 100,
        seed: int = 0,
        **meta: Any,
    ) -> Run:
        views = {view: [[amp] * CLIENTS for amp in amps]}
        described = {"model": {"name": "mlp", "classes": classes}, "clients": {"train_sizes": [30] * CLIENTS}}
        made: Run = make_run(name, name, seed, views, **described, **meta)
        for record in made.rounds:
            record["views"][view]["clients"]["size"] = [tests] * CLIENTS
            record["views"][view]["balanced"] = record["views"][view]["amp"] if balanced is None else balanced
        return made

    return run


def kinds(runs: list[Run]) -> dict[str, str]:
    return {label: doubt.kind for (label, _), doubt in doubts(runs).items()}


def judged(runs: list[Run]) -> str:
    table = [row for run in runs for row in rows(run)]
    names = {run.label: run.name for run in runs}
    return verdict(table, names=names, clients=gains(runs), doubts=doubts(runs))


def test_a_model_that_always_answers_the_same_gets_no_verdict(make):
    # Two classes, 63 % of the samples of one: the accuracy looks like something, the balanced accuracy does not.
    runs = [make("fedavg", [0.63] * 8, 0.5, view="aca", classes=2), make("local-converged", [0.6], 0.7, classes=2)]
    runs[1].meta["stopped_by"] = "method"
    assert kinds(runs) == {"fedavg": "one class"}
    sentence = judged(runs)
    assert sentence.startswith("No verdict: fedavg (ACA) ")
    assert "50.0 %" in sentence
    assert "Federating pays" not in sentence


def test_the_table_and_the_report_mark_it(make):
    runs = [make("fedavg", [0.63] * 8, 0.5, view="aca", classes=2), make("fedprox", [0.6] * 8, 0.7, classes=2)]
    table = [row for run in runs for row in rows(run)]
    screen = io.StringIO()
    Console(file=screen, width=120).print(comparison_table(table, width=120, doubts=doubts(runs)))
    marked = {line.split()[0]: "†" in line for line in screen.getvalue().splitlines()[3:]}
    assert marked == {"fedavg": True, "fedprox": False}
    (sentence,) = told(doubts(runs))
    assert sentence.startswith("† fedavg (ACA) ")
    page = render(runs, title="t")
    assert sentence in page
    assert "63.00 †" in page


def test_what_is_marked_is_not_the_best(make):
    runs = [
        make(label, [amp + shift] * 8, balanced, seed=seed)
        for label, amp, balanced in (("a", 0.9, 0.18), ("b", 0.5, 0.6), ("c", 0.4, 0.6))
        for seed, shift in enumerate((0.0, amp / 100, -amp / 100))
    ]
    assert kinds(runs) == {"a": "near chance"}
    _, body = cells([row for run in runs for row in rows(run)], doubts=doubts(runs))
    assert [line[2].best for line in body] == [False, True, False]


@pytest.mark.parametrize(
    ("balanced", "kind"),
    [
        (0.10, "one class"),
        (0.119, "one class"),
        (0.125, "near chance"),  # 500 samples: two standard errors of a guess among ten are 2.7 points, and 2.0 count
        (0.18, "near chance"),  # less than a tenth of the way from 10 % to 100 %
        (0.20, None),
    ],
)
def test_how_near_chance_is_too_near(make, balanced, kind):
    assert kinds([make("fedavg", [0.3] * 8, balanced)]).get("fedavg") == kind


def test_a_small_test_does_not_say_that_no_classes_are_told_apart(make):
    # Five tests of four samples: two standard errors of a guess between two classes are 22.4 points.
    (doubt,) = doubts([make("fedavg", [0.7] * 8, 0.7, classes=2, tests=4)]).values()
    assert doubt.kind == "near chance"
    assert "write rounds = 16" in doubt.advice
    assert kinds([make("fedavg", [0.73] * 8, 0.73, classes=2, tests=4)]) == {}


def test_views_with_the_same_reason_share_a_footnote(make_run):
    run = make_run("fedavg", views={view: [[0.5, 0.5]] * 8 for view in ("aca", "oca")})
    for record in run.rounds:
        for view in record["views"].values():
            view["balanced"] = 0.5
    (note,) = told(doubts([run]))
    assert note.startswith("† fedavg (ACA), like fedavg (OCA), ")
    assert note.count("50.0 %") == 2  # what it has, and what always the same answer would have


def test_chance_counts_only_the_classes_that_clients_have(make):
    run = make("fedavg", [0.6] * 8, 0.5, classes=10)
    assert kinds([run]) == {}
    run.meta["clients"]["class_counts"] = [[10, 20, *[0] * 8]] * CLIENTS
    assert kinds([run]) == {"fedavg": "one class"}


def test_six_rounds_at_chance_do_not_advise_against_federating(make):
    # Ten classes: the federated model has not begun to learn, local training has.
    runs = [
        make("fedavg", [0.1, 0.1, 0.11, 0.1, 0.12, 0.12], view="aca"),
        make("local", [0.5, 0.6, 0.7, 0.8, 0.8, 0.8]),
    ]
    sentence = judged(runs)
    assert sentence.startswith("No verdict: ")
    assert "not federate" not in sentence


def test_a_curve_that_still_rises_is_not_trained_yet(make):
    rising = [0.1 * t for t in range(1, 8)] + [0.75]
    runs = [make("fedavg", rising, view="aca"), make("local-converged", [0.8], stopped_by="method")]
    assert kinds(runs) == {"fedavg": "rising"}
    assert judged(runs).startswith("No verdict: fedavg (ACA) is not trained yet")
    assert "write rounds = 16 or more" in judged(runs)
    assert "‡" in told(doubts(runs))[0]


@pytest.mark.parametrize(
    ("curve", "rising"),
    [
        (FLAT, False),
        ([0.5, 0.6, 0.7, 0.75, 0.79, 0.80, 0.80, 0.805], False),  # less than a point above the quarter before
        ([0.5, 0.6, 0.7, 0.75, 0.79, 0.80, 0.82, 0.83], True),
        ([0.5, 0.6, 0.7, 0.75, 0.60, 0.80, 0.70, 0.75], False),  # more than a point, but less than the noise
        ([0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.7, 0.7], False),  # falling
    ],
)
def test_what_rising_means(make, curve, rising):
    assert kinds([make("fedavg", curve)]) == ({"fedavg": "rising"} if rising else {})


def test_a_rise_within_the_error_of_a_small_test_is_none(make):
    curve = [0.5, 0.6, 0.7, 0.75, 0.79, 0.80, 0.82, 0.83]  # by 3.0 points
    # One standard error of 0.825 on 160 samples is 3.004 points, on 165 it is 2.958.
    assert kinds([make("fedavg", curve, tests=32)]) == {}
    assert kinds([make("fedavg", curve, tests=33)]) == {"fedavg": "rising"}


def test_seeds_are_averaged_before_a_curve_is_judged(make):
    up, down = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6], [0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.5, 0.5]
    assert kinds([make("fedavg", up), make("fedavg", down, seed=1)]) == {}


def test_too_few_rounds_to_tell(make):
    runs = [make("fedavg", FLAT[:7], view="aca"), make("local-converged", [0.6], stopped_by="method")]
    assert kinds(runs) == {"fedavg": "few rounds"}
    assert judged(runs).startswith("No verdict: fedavg (ACA) was evaluated in 7 rounds")
    assert "write rounds = 8 or more" in judged(runs)
    assert told(doubts(runs)) == []  # a short run is no fault: only its verdict is withheld


@pytest.mark.parametrize(
    ("last", "every", "advice"),
    [(6, 3, "rounds = 24 or more"), (50, 25, "evaluate_every = 6"), (8, 4, "evaluate_every = 1")],
)
def test_the_advice_for_more_evaluated_rounds(make, last, every, advice):
    run = make("fedavg", FLAT[:2])
    run.meta["experiment"]["evaluate_every"] = every
    run.rounds[-1]["round"] = last
    (doubt,) = doubts([run]).values()
    assert doubt.advice == f"write {advice}"


def test_a_reference_that_still_rises_withholds_the_verdict_too(make):
    local = [0.1 * t for t in range(1, 8)] + [0.75]
    assert judged([make("fedavg", FLAT, view="aca"), make("local", local)]).startswith(
        "No verdict: local is not trained"
    )


def test_advice_against_federating_needs_all_methods_to_be_trained(make):
    runs = [
        make("fedavg", FLAT, view="aca"),
        make("knfu", [0.1 * t for t in range(1, 8)] + [0.75]),
        make("local-converged", [0.9], stopped_by="method"),
    ]
    assert judged(runs).startswith("No verdict: knfu is not trained yet")
    better = [runs[0], runs[1], make("local-converged", [0.6], stopped_by="method")]
    assert judged(better).startswith("Federating pays for 5 of 5 clients")


def test_trained_runs_get_their_verdict(make):
    runs = [make("fedavg", FLAT, view="aca"), make("local-converged", [0.6], stopped_by="method")]
    assert doubts(runs) == {}
    assert judged(runs).startswith("Federating pays for 5 of 5 clients")


def test_the_verdict_says_which_bound_it_rests_on_and_what_that_cost(make):
    fedavg, equal = make("fedavg", FLAT, view="aca"), make("local", [0.7] * 8)
    converged = make("local-converged", [0.75], stopped_by="method")
    both = judged([fedavg, equal, converged])
    assert "leads local training by 5.0 points" in both  # over the better one
    # Its one round took one FLOP in these records, FedAvg's eight rounds eight.
    assert both.endswith("Local training ran until it converged, with 0.12 times the computation of fedavg (ACA).")
    one = judged([fedavg, equal])
    assert "leads local training by 10.0 points" in one
    assert "the same rounds" in one
    assert "add local-converged" in one


def test_the_better_kind_of_local_training_counts(make):
    fedavg, equal = make("fedavg", FLAT, view="aca"), make("local", [0.75] * 8)
    converged = make("local-converged", [0.7], stopped_by="method")
    for runs in ([fedavg, equal, converged], [converged, equal, fedavg]):
        assert [gain.over for gain in gains(runs)] == ["local"]
        assert gains(runs)[0].points.tolist() == pytest.approx([5.0] * CLIENTS)
        sentence = judged(runs)
        assert "leads local training by 5.0 points" in sentence
        assert "Local training had the same rounds as the federated methods" in sentence
        assert "until it converged" not in sentence
        assert "add local-converged" not in sentence


def test_of_two_equal_kinds_of_local_training_the_converged_one_counts(make):
    runs = [make("fedavg", FLAT), make("local", [0.75] * 8), make("local-converged", [0.75], stopped_by="method")]
    assert [gain.over for gain in gains(runs)] == ["local-converged"]
    assert "Local training ran until it converged" in judged(runs)


def test_numbers_that_are_predicted_no_better_than_by_their_mean_get_no_verdict(make):
    runs = [make("fedavg", [-3.0] * 12), make("local-converged", [0.6] * 12)]
    for run in runs:
        for record in run.rounds:
            del record["views"]["personal"]["balanced"]
            record["views"]["personal"]["task"] = "numbers"
            record["views"]["personal"]["clients"]["error"] = [0.05] * CLIENTS
    assert kinds(runs) == {"fedavg": "near chance"}
    assert judged(runs).startswith("No verdict")
