"""Data on which a model that always gives the same answer is mostly right: accuracy must not rank methods there.

A hospital with 5 % positives: a model that never finds one has 95 % accuracy and is of no use.
"""

from __future__ import annotations

from typing import Any

import pytest

from fedalloy.advise.advice import chosen_apart, lead
from fedalloy.report.facts import warnings
from fedalloy.report.gains import gains
from fedalloy.report.gains_table import each_client, summary
from fedalloy.report.grid_table import grid
from fedalloy.report.html import render
from fedalloy.report.table import cells
from fedalloy.report.trained import doubts, settled
from fedalloy.report.verdict import verdict
from fedalloy.storage.results import Run
from fedalloy.storage.rows import Leads, leads, rows

CLIENTS = 4


@pytest.fixture
def make(make_run):
    """A run with the same accuracies in eight rounds and at all clients, of which one in twenty rows is positive."""

    def run(
        name: str,
        accuracy: float | list[float],
        balanced: float | list[float],
        *,
        view: str = "personal",
        error: float = 0.02,
        counts: tuple[int, ...] = (95, 5),
        seed: int = 0,
        each: list[float | None] | None = None,
        **meta: Any,
    ) -> Run:
        amps, levels = ([x] * 8 if isinstance(x, float) else x for x in (accuracy, balanced))
        clients = {"train_sizes": [100] * CLIENTS, "class_counts": [list(counts)] * CLIENTS}
        model = {"name": "mlp", "classes": len(counts)}
        views = {view: [[amp] * CLIENTS for amp in amps]}
        made: Run = make_run(name, name, seed, views, model=model, clients=clients, **meta)
        for record, level in zip(made.rounds, levels, strict=True):
            one = record["views"][view]
            one |= {"balanced": level, "balanced_error": error / 2, "macro_f1": level}
            one["clients"] |= {
                "size": [100] * CLIENTS,
                "balanced": each or [level] * CLIENTS,
                "balanced_error": [error if value is not None else None for value in each or [level] * CLIENTS],
            }
        return made

    return run


def judged(runs: list[Run]) -> str:
    table = [row for run in runs for row in rows(run)]
    names = {run.label: run.name for run in runs}
    return verdict(table, names=names, clients=gains(runs), doubts=doubts(runs))


def test_a_useful_method_is_not_advised_against_for_its_lower_accuracy(make):
    runs = [
        make("fedavg", 0.81, 0.85, view="aca"),  # finds most positives, with false alarms
        make("local-converged", 0.90, 0.75, stopped_by="method"),  # finds few
    ]
    told = judged(runs)
    assert told.startswith("Federating pays for 4 of 4 clients")
    assert "10.0 points of balanced accuracy" in told
    assert "AMP" not in told
    (one,) = gains(runs)
    assert one.points.tolist() == pytest.approx([10.0] * CLIENTS)
    assert one.accuracy.tolist() == pytest.approx([85.0] * CLIENTS)
    assert one.errors.tolist() == pytest.approx([2.0] * CLIENTS)
    assert one.total_error == pytest.approx(1.0)
    assert one.clear.all()


def test_the_method_that_finds_more_leads_over_the_one_that_finds_none(make):
    useless, useful = make("fedprox", 0.95, 0.5, view="aca"), make("fedavg", 0.9, 0.8, view="aca")
    runs = [useless, useful, make("local-converged", 0.94, 0.7, stopped_by="method")]
    assert [one.label for one in gains(runs)][:1] == ["fedavg"]
    assert judged(runs).startswith("Federating pays for 4 of 4 clients: fedavg (ACA) leads")
    headings, body = cells([row for run in runs for row in rows(run)], doubts=doubts(runs))
    column = headings.index("Balanced %")
    assert column == 2
    assert "†" in body[0][column].text  # the mark stands beside the score that methods are ranked by


def test_gains_are_said_to_be_of_balanced_accuracy(make):
    runs = [make("fedavg", 0.9, 0.8, view="aca"), make("local", 0.94, 0.7)]
    found = gains(runs)
    assert "balanced accuracy" in summary(found).title
    assert "Balanced accuracy %" in each_client(found).headings
    page = render(runs, title="rare")
    assert "percentage points of balanced accuracy" in page
    assert "curves-balanced-round" in page
    assert "curves-amp-round" not in page


def test_a_client_with_one_class_in_its_test_has_no_gain(make):
    runs = [
        make("fedavg", 0.9, 0.8, view="aca", each=[0.8, None, 0.8, 0.8]),
        make("local-converged", 0.94, 0.7, each=[0.7, None, 0.7, 0.7], stopped_by="method"),
    ]
    (one,) = gains(runs)
    assert one.clients == ("0", "2", "3")


def test_the_errors_of_two_models_count_as_half_correlated(make):
    runs = [
        make("fedavg", 0.9, 0.8, view="aca", error=0.02),
        make("local-converged", 0.94, 0.7, error=0.06, stopped_by="method"),
    ]
    (one,) = gains(runs)
    # 2^2 + 6^2 - 2 * 6 = 28
    assert one.errors.tolist() == pytest.approx([28**0.5] * CLIENTS)


def test_advice_measures_the_lead_by_the_same_score(make):
    runs = [
        run
        for seed in (0, 1)
        for run in (
            make("fedavg", 0.81, 0.85, view="aca", seed=seed),
            make("fedprox", 0.95, 0.6, view="aca", seed=seed),
            make("local-converged", 0.90, 0.75, seed=seed, stopped_by="method"),
        )
    ]
    best = gains(runs)[0]
    assert best.label == "fedavg"
    assert lead(runs, best).mean == pytest.approx(10.0)
    apart = chosen_apart(runs, best)
    assert apart is not None
    assert apart.mean == pytest.approx(10.0)


def test_the_advice_is_to_weigh_classes_where_that_is_possible(make):
    def advice(run: Run) -> str:
        (doubt,) = doubts([run]).values()
        return doubt.advice

    key = 'training.class_weights = "balanced"'
    assert key in advice(make("fedavg", 0.95, 0.5))
    assert key in advice(make("fedavg", 0.95, 0.54))
    assert "rounds = 16" in advice(make("fedavg", 0.95, 0.54))
    assert advice(make("fedavg", 0.5, 0.5, counts=(50, 50))) == ""
    for given in ({"training": {"class_weights": "balanced"}}, {"privacy": {"noise": 1.0}}):
        run = make("fedavg", 0.95, 0.5)
        run.meta["experiment"].update(given)
        assert key not in advice(run)


def test_a_comparison_says_why_it_is_ranked_by_balanced_accuracy(make):
    told = [one for one in warnings([make("fedavg", 0.95, 0.5), make("knfu", 0.95, 0.6)]) if "balanced" in one]
    assert len(told) == 1
    assert "95 %" in told[0]
    assert "class_weights" in told[0]
    weighed = make("fedavg", 0.95, 0.5)
    weighed.meta["experiment"]["training"] = {"class_weights": "balanced"}
    assert "class_weights" not in warnings([weighed])[0]
    assert not any("balanced" in one for one in warnings([make("fedavg", 0.95, 0.5, counts=(50, 50))]))


def test_training_alone_is_not_told_to_take_more_rounds_than_its_one(make):
    (doubt,) = doubts([make("local-converged", 0.95, 0.54, counts=(60, 40), stopped_by="method")]).values()
    assert doubt.kind == "near chance"
    assert "rounds" not in doubt.sentence


def test_the_curve_that_may_rise_is_that_of_the_same_score(make):
    flat, up = [0.9] * 8, [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85]
    (doubt,) = doubts([make("fedavg", flat, up)]).values()
    assert doubt.kind == "rising"
    assert "balanced accuracy rose" in doubt.reason
    assert not settled([make("fedavg", flat, up)], "fedavg")
    assert doubts([make("fedavg", up, flat)]) == {}
    assert settled([make("fedavg", up, flat)], "fedavg")
    # Within one standard error of the test there is no rise.
    assert doubts([make("fedavg", flat, up, error=0.3)]) == {}


def test_seeds_on_either_side_of_the_bound_are_ranked_alike(make):
    runs = [
        make(name, accuracy, balanced, view=view, seed=seed, counts=counts)
        for seed, counts in enumerate(((67, 33), (66, 34)))
        for name, view, accuracy, balanced in (("fedavg", "aca", 0.81, 0.85), ("local", "personal", 0.9, 0.75))
    ]
    assert [leads(run).first for run in runs] == ["balanced", "balanced", "amp", "amp"]
    assert "10.0 points of balanced accuracy" in judged(runs)
    headings, _ = cells([row for run in runs for row in rows(run)])
    assert headings[2] == "Balanced %"


@pytest.mark.parametrize(
    ("counts", "first"),
    [((2, 1), "amp"), ((201, 99), "balanced"), ((98, 1, 1), "balanced"), ((40, 30, 30), "amp")],
)
def test_accuracy_does_not_rank_if_one_answer_is_right_for_two_thirds(make, counts, first):
    assert leads(make("fedavg", 0.9, 0.8, counts=counts)).first == first


def test_sites_tell_no_classes_but_count_their_tests(make):
    run = make("fedavg", 0.9, 0.8, view="aca", counts=(0, 0))
    assert leads(run).first == "amp"
    run.meta["last"] = {"round": 8, "views": {"aca": {"confusion": [[90, 5], [2, 3]]}}}
    assert leads(run).first == "balanced"
    run.meta["last"] = {"round": 8, "views": {"aca": {"confusion": [[50, 5], [20, 25]]}}}
    assert leads(run).first == "amp"


def test_runs_that_have_not_recorded_it_are_ranked_by_accuracy(make):
    run = make("fedavg", 0.9, 0.8)
    for record in run.rounds:
        del record["views"]["personal"]["clients"]["balanced"]
    assert leads(run).first == "amp"


def labelled(run: Run, ones: list[int]) -> Run:
    run.meta["clients"]["class_counts"] = [ones] * CLIENTS
    for record in run.rounds:
        for view in record["views"].values():
            view["task"] = "labels"
    return run


def test_rare_labels_are_ranked_by_balanced_accuracy_and_common_ones_are_not(make):
    assert leads(labelled(make("fedavg", 0.95, 0.5), [5, 2])) == Leads("labels", "balanced", decisions=True)
    assert leads(labelled(make("fedavg", 0.95, 0.5), [97, 2])).first == "balanced"  # one is nearly always there
    assert leads(labelled(make("fedavg", 0.95, 0.5), [50, 40])).first == "amp"


def test_a_model_that_gives_no_sample_a_label_is_found(make):
    (doubt,) = doubts([labelled(make("fedavg", 0.95, 0.5), [5, 2])]).values()
    assert doubt.kind == "one class"
    assert "labels" in doubt.reason


def of_numbers(run: Run) -> Run:
    for record in run.rounds:
        for view in record["views"].values():
            view |= {"task": "numbers", "balanced": None}
            view["clients"] |= {"error": [0.1] * CLIENTS}
    return run


def test_numbers_that_a_mean_predicts_as_well_get_no_verdict(make):
    runs = [of_numbers(make("fedavg", -0.05, 0.5, view="aca")), of_numbers(make("local", -0.4, 0.5))]
    assert {doubt.kind for doubt in doubts(runs).values()} == {"near chance"}
    assert judged(runs).startswith("No verdict: fedavg (ACA) is not trained yet")
    assert doubts([of_numbers(make("fedavg", 0.5, 0.5))]) == {}


def test_training_alone_on_little_data_may_be_worse_than_a_mean(make):
    alone = of_numbers(make("local-converged", -0.4, 0.5, stopped_by="method"))
    runs = [of_numbers(make("fedavg", 0.5, 0.5, view="aca")), alone]
    assert judged(runs).startswith("Federating pays for 4 of 4 clients")


def test_the_error_of_a_gain_in_r2_is_that_of_both_models(make):
    runs = [of_numbers(make("fedavg", 0.5, 0.5, view="aca")), of_numbers(make("local-converged", 0.2, 0.5))]
    for record in runs[1].rounds:
        record["views"]["personal"]["clients"]["error"] = [0.3] * CLIENTS
    (one,) = gains(runs)
    # 10^2 + 30^2 - 10 * 30 = 700
    assert one.errors.tolist() == pytest.approx([700**0.5] * CLIENTS)
    assert one.total_error == pytest.approx(700**0.5 / CLIENTS**0.5)
    for run in runs:
        run.meta["experiment"]["partition"] = {"test": "global"}
    assert gains(runs)[0].total_error == pytest.approx(700**0.5)  # the same samples everywhere count once


def test_a_grid_shows_the_score_by_which_methods_are_ranked(make):
    def titled(run: Run) -> tuple[str, str]:
        table = grid(["lr"], [(["0.1"], [run])])
        return table.title, table.body[0][1]

    assert titled(make("fedavg", 0.95, 0.5)) == ("Balanced %: last", "50.00")
    assert titled(make("fedavg", 0.95, 0.5, counts=(50, 50))) == ("AMP %: last", "95.00")
    assert titled(of_numbers(make("fedavg", 0.75, 0.5))) == ("R2 %: last", "75.00")
