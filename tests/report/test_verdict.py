import re

import pytest

from fedalloy.report.gains import gains
from fedalloy.report.verdict import verdict
from fedalloy.storage.rows import rows


def without_basis(sentence: str) -> str:
    """The first sentence, without the second one on which local training it rests."""
    return sentence.removesuffix(" Local training ran until it converged.")


@pytest.fixture
def say(make_row):
    def sentence(**amp: float | None) -> str:
        views = {"Local": "personal", "Centralised": "global"}
        made = [make_row(label, views.get(label, "oca"), amp=value) for label, value in amp.items()]
        return without_basis(verdict(made, names={"Local": "local-converged", "Centralised": "centralised"}))

    return sentence


def says(sentence, *parts):
    """Whether the verdict names these, in this order; how it says the rest is free."""
    return re.search(".*".join(map(re.escape, parts)), sentence) is not None


def test_both_bounds(say):
    # (0.80 - 0.60) / (0.90 - 0.60) = 66.7 %, never rounded up.
    assert say(FedAvg=0.80, KnFu=0.7, Local=0.60, Centralised=0.90) == (
        "FedAvg (OCA) leads local training by 20.0 points of AMP and closes 66 % of the gap to pooled data."
    )
    assert say(FedAvg=0.91, Local=0.60, Centralised=0.90) == (
        "FedAvg (OCA) leads local training by 31.0 points of AMP and reaches what pooled data would give."
    )
    assert says(
        say(FedAvg=0.61, Local=0.60, Centralised=0.60), "FedAvg (OCA) leads", "1.0 point of", "pooled data", "no"
    )


def test_local_training_wins(say):
    parts = ("Local training", "2.0 points", "above", "FedAvg (OCA)")
    assert says(say(FedAvg=0.58, Local=0.60, Centralised=0.90), *parts, "pooled data", "30.0 points")
    assert says(say(FedAvg=0.58, Local=0.60), *parts)


def test_a_draw(say):
    assert say(FedAvg=0.60, Local=0.60) == (
        "FedAvg (OCA) leads the federated methods and equals local training (60.0 % AMP)."
    )


def test_one_bound_or_none(say):
    assert say(FedAvg=0.8, Local=0.6) == "FedAvg (OCA) leads local training by 20.0 points of AMP."
    assert say(FedAvg=0.8, Centralised=0.9) == "FedAvg (OCA) reaches 80.0 % AMP, 10.0 points below pooled data."
    parts = ("FedAvg (OCA) leads with 80.0 % AMP, 10.0 points ahead of KnFu (OCA)", "local training", "unknown")
    assert says(say(FedAvg=0.8, KnFu=0.7), *parts)
    assert says(say(FedAvg=0.8), "FedAvg (OCA) reaches 80.0 % AMP", "local training", "unknown")


def test_a_leader_is_set_against_another_method_than_itself(make_row):
    rows = [
        make_row(label, view, amp=amp)
        for label, view, amp in (("A", "aca", 0.8), ("A", "oca", 0.79), ("B", "aca", 0.7))
    ]
    assert verdict(rows).startswith("A (ACA) leads with 80.0 % AMP, 10.0 points ahead of B (ACA);")
    assert verdict(rows[:2]).startswith("A (ACA) leads with 80.0 % AMP, 1.0 point ahead of A (OCA);")


def test_only_bounds(say):
    assert say(Local=0.6) == "Only local training was run; it reaches 60.0 % AMP."
    assert say(Centralised=0.9) == "Only training on pooled data was run; it reaches 90.0 % AMP."
    assert say(Local=0.6, Centralised=0.9) == (
        "No federated method was run; local training reaches 60.0 % AMP, pooled data 90.0 %."
    )
    assert say(FedAvg=None) == "There is no measured run to compare."


def test_a_lead_within_the_spread_is_doubted(make_row):
    rows = [make_row("FedAvg", seed=s, amp=a) for s, a in ((0, 0.60), (1, 0.70))]
    rows += [make_row("Local", "personal", seed=s, amp=a) for s, a in ((0, 0.60), (1, 0.62))]
    assert verdict(rows).startswith(
        "FedAvg (OCA) leads local training by 4.0 points of AMP (less than the spread over seeds). Local training had "
    )


def test_a_bound_under_another_label(make_row):
    rows = [make_row("ours", "global", amp=0.8), make_row("alone", "personal", amp=0.6)]
    assert verdict(rows, names={"ours": "fedavg", "alone": "local-converged"}) == (
        "ours leads local training by 20.0 points of AMP. Local training ran until it converged."
    )


def test_the_best_view_of_a_method_speaks_for_it(make_row):
    rows = [make_row("FedAvg", "aca", amp=0.7), make_row("FedAvg", "oca", amp=0.8)]
    assert verdict([*rows, make_row("Local", "personal", amp=0.6)]).startswith("FedAvg (OCA) leads local")


@pytest.fixture
def judge(make_run):
    """The sentence on these accuracies of clients; a whole run may stand for its accuracies."""

    def sentence(*runs, samples=10_000, **accuracies):
        views = {"Local": "personal", "FedAvg": "aca", "KnFu": "personal", "Centralised": "global"}
        registered = {"Local": "local-converged"}
        made = [
            make_run(registered.get(label, label.lower()), label, views={views[label]: [a]})
            for label, a in accuracies.items()
        ]
        made += runs
        for run in made:
            for view in run.rounds[0]["views"].values():
                view["clients"]["size"] = [samples] * len(view["clients"]["size"])
        table = [row for run in made for row in rows(run)]
        told = verdict(table, names={run.label: run.name for run in made}, clients=gains(made))
        return told.partition(". Local training ")[0].removesuffix(".") + "."

    return sentence


def test_federating_pays(judge):
    assert judge(Local=[0.6, 0.6, 0.6, 0.6], KnFu=[0.7, 0.7, 0.65, 0.58], Centralised=[0.9] * 4) == (
        "Federating pays for 3 of 4 clients: KnFu leads local training by 5.8 points of AMP "
        "and closes 19 % of the gap to pooled data; client 3 loses 2.0 points."
    )
    assert judge(Local=[0.6, 0.6], KnFu=[0.7, 0.61]) == (
        "Federating pays for 2 of 2 clients: KnFu leads local training by 5.5 points of AMP; no client loses."
    )
    losers = judge(Local=[0.6] * 5, KnFu=[0.55, 0.9, 0.58, 0.9, 0.9])
    assert losers.endswith("; clients 0 and 2 lose up to 5.0 points.")
    assert judge(Local=[0.5] * 11, KnFu=[0.9] * 6 + [0.49] * 5).endswith("; 5 clients lose up to 1.0 point.")


def test_do_not_federate(judge):
    # KnFu's conclusion: with much skewed data of its own, a client is better off alone.
    told = judge(Local=[0.9, 0.9, 0.9], KnFu=[0.8, 0.85, 0.92], Centralised=[0.95] * 3)
    parts = ("2 of 3 clients", "4.3 points", "KnFu", "pooled data", "5.0 points", "client 2 gains 2.0 points.")
    assert says(told, "Do not federate", *parts)


def test_federating_pays_for_some_only(judge):
    assert judge(Local=[0.5] * 4, KnFu=[0.9, 0.6, 0.4, 0.4]) == (
        "Federating pays for some clients only: KnFu leads local training by 7.5 points of AMP; "
        "of 4 clients, 2 gain and 2 lose; clients 2 and 3 clearly lose up to 10.0 points."
    )
    told = judge(Local=[0.5] * 3, KnFu=[0.6, 0.6, 0.1])
    assert says(
        told, "pays for some clients only: local training", "6.7 points", "KnFu", "of 3 clients, 2 gain and 1 loses"
    )
    assert told.endswith("client 2 clearly loses 40.0 points.")


def test_clear_losers_are_named_where_the_mean_says_nothing(judge):
    # 20 samples each: one standard error is 10.6 points for client 2 and 6.4 points for three of them together.
    told = judge(Local=[0.5, 0.5, 0.5], KnFu=[0.7, 0.7, 0.15], samples=20)
    assert says(told, "KnFu leads local training by 1.7 points of AMP (less than two standard errors of the test)")
    assert says(told, "of 3 clients, 2 gain (none clearly) and 1 loses; client 2 clearly loses 35.0 points.")


def test_small_tests_leave_doubt(judge):
    # With ten samples each, half of them right: one standard error is 100 sqrt(0.25 / 10) = 15.8 points for a client
    # and 100 sqrt(0.25 / 40) = 7.9 points for four of them together.
    assert judge(Local=[0.5] * 4, KnFu=[0.9, 0.6, 0.4, 0.5], samples=10) == (
        "Federating makes no clear difference: KnFu leads local training by 10.0 points of AMP (less than two standard "
        "errors of the test); of 4 clients, 2 gain (1 clearly) and 1 loses (not clearly)."
    )
    assert judge(Local=[0.5] * 4, KnFu=[0.9, 0.7, 0.7, 0.4], samples=10) == (
        "Federating pays for 3 of 4 clients (1 clearly): KnFu leads local training by 17.5 points of AMP; "
        "client 3 loses 10.0 points (not clearly)."
    )
    assert judge(Local=[0.5, 0.5], KnFu=[0.5, 0.5]) == (
        "Federating makes no clear difference: KnFu leads the federated methods and equals local training "
        "(50.0 % AMP); of 2 clients, none gains and none loses."
    )


def test_a_spread_over_seeds_leaves_doubt(judge, make_run):
    runs = [
        make_run(name, label, seed, {"personal": [[accuracy]]})
        for seed, pair in enumerate(((0.5, 0.7), (0.5, 0.5)))
        for (name, label), accuracy in zip((("local-converged", "Local"), ("knfu", "KnFu")), pair, strict=True)
    ]
    # The mean gain is 10 points; KnFu's deviation over seeds is 14.1 points, which makes a standard error of 10.
    assert judge(*runs) == (
        "Federating makes no clear difference: KnFu leads local training by 10.0 points of AMP (less than the spread "
        "over seeds); of 1 client, 1 gains (not clearly) and none loses."
    )


def test_clients_of_several_splits(judge, make_run):
    runs = [
        make_run(name, label, seed, {"personal": [[accuracy] * 2]}, partition={"counts": [[seed]]})
        for seed in (0, 1)
        for name, label, accuracy in (("local", "Local", 0.5), ("knfu", "KnFu", 0.7))
    ]
    assert judge(*runs).startswith("Federating pays for 4 of 4 clients in 2 splits: KnFu leads local training by 20.0")


def test_without_local_training_gains_say_nothing(judge):
    told = judge(FedAvg=[0.5, 0.5], KnFu=[0.7, 0.4])
    assert says(told, "KnFu leads with 55.0 % AMP, 5.0 points ahead of FedAvg (ACA)", "unknown")


def test_a_stage_on_the_way_does_not_speak_for_its_method(make_row):
    # FedMD+Global's models before the first exchange are measured too, but they are what nobody had to federate for.
    rows = [make_row("FedMD+Global", view, amp=amp) for view, amp in (("personal", 0.7), ("initial", 0.8))]
    assert says(verdict([*rows, make_row("Local", "personal", amp=0.75)]), "Local training", "5.0 points", "personal")


def test_local_training_without_the_selected_round_is_not_called_missing(make_row):
    kept = [
        make_row("FedAvg", selection="best by test"),
        make_row("Local", "personal", selection="best by test", amp=None),
    ]
    said = verdict(kept)
    assert "local training has no round 'best by test'" in said
    assert "without a run" not in said
