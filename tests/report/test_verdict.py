import pytest

from fedalloy.report.verdict import verdict


@pytest.fixture
def say(make_row):
    def sentence(**amp: float | None) -> str:
        views = {"Local": "personal", "Centralised": "global"}
        return verdict([make_row(label, views.get(label, "oca"), amp=value) for label, value in amp.items()])

    return sentence


def test_both_bounds(say):
    # (0.80 - 0.60) / (0.90 - 0.60) = 66.7 %, never rounded up.
    assert say(FedAvg=0.80, KnFu=0.7, Local=0.60, Centralised=0.90) == (
        "FedAvg (OCA) leads local training by 20.0 points of AMP and closes 66 % of the gap to pooled data."
    )
    assert say(FedAvg=0.91, Local=0.60, Centralised=0.90) == (
        "FedAvg (OCA) leads local training by 31.0 points of AMP and reaches what pooled data would give."
    )
    assert say(FedAvg=0.61, Local=0.60, Centralised=0.60) == (
        "FedAvg (OCA) leads local training by 1.0 point of AMP, while pooled data does no better than local training."
    )


def test_local_training_wins(say):
    assert say(FedAvg=0.58, Local=0.60, Centralised=0.90) == (
        "Local training stays 2.0 points of AMP above the best federated method, FedAvg (OCA), "
        "while pooled data would gain 30.0 points on it."
    )
    assert say(FedAvg=0.58, Local=0.60) == (
        "Local training stays 2.0 points of AMP above the best federated method, FedAvg (OCA)."
    )


def test_a_draw(say):
    assert say(FedAvg=0.60, Local=0.60) == (
        "FedAvg (OCA) leads the federated methods and equals local training (60.0 % AMP)."
    )


def test_one_bound_or_none(say):
    assert say(FedAvg=0.8, Local=0.6) == "FedAvg (OCA) leads local training by 20.0 points of AMP."
    assert say(FedAvg=0.8, Centralised=0.9) == "FedAvg (OCA) reaches 80.0 % AMP, 10.0 points below pooled data."
    assert say(FedAvg=0.8, KnFu=0.7) == (
        "FedAvg (OCA) leads with 80.0 % AMP, 10.0 points ahead of KnFu (OCA); "
        "without local training beside it, nothing says whether federating pays."
    )
    assert say(FedAvg=0.8).startswith("FedAvg (OCA) reaches 80.0 % AMP; without local training")


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
    assert verdict(rows) == (
        "FedAvg (OCA) leads local training by 4.0 points of AMP (less than the spread over seeds)."
    )


def test_a_bound_under_another_label(make_row):
    rows = [make_row("ours", "global", amp=0.8), make_row("alone", "personal", amp=0.6)]
    assert verdict(rows, names={"ours": "fedavg", "alone": "local"}) == (
        "ours leads local training by 20.0 points of AMP."
    )


def test_the_best_view_of_a_method_speaks_for_it(make_row):
    rows = [make_row("FedAvg", "aca", amp=0.7), make_row("FedAvg", "oca", amp=0.8)]
    assert verdict([*rows, make_row("Local", "personal", amp=0.6)]).startswith("FedAvg (OCA) leads local")
