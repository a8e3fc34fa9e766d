"""FedDisco: its weights by hand in every metric, their limits, and the same weights under other methods."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.aggregation.averaging import average, disco_weights, discrepancy, largest_discrepancy, shares
from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method, small_settings
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, State
from fedalloy.federation.participation import Participation
from fedalloy.methods import MOON, FedAvg, FedAvgM, FedDisco, FedGen, FedGKD, FedProx

SIZES = [50, 30, 20]
DISCO = Aggregation(weights="disco")
COUNTS = [torch.tensor(c) for c in ([25, 25], [27, 3], [20, 0])]  # (.5, .5), (.9, .1), (1, 0)


METRICS = ["kl", "l1", "l2", "cosine"]


def by_counts(sizes, counts, *options, metric="kl", **named):
    """FedDisco's weights of clients with these label counts."""
    return disco_weights(sizes, [discrepancy(c, metric) for c in counts], *options, **named)


def weights(**options):
    return shares(by_counts(SIZES, COUNTS, **options))


# --- the weights ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"normalise": False}, (0.735323, 0.264677, 0.0)),
        ({"normalise": True}, (0.725880, 0.274120, 0.0)),
        ({"metric": "l2", "normalise": False}, (0.836637, 0.163363, 0.0)),
        # d = (0, .8, 1): the second weight is .3 - .4 + .1 = 0, the third negative.
        ({"metric": "l1", "normalise": False}, (1.0, 0.0, 0.0)),
        # d = (0, 4/9, 5/9): (.6, .4 - 2/9, .3 - 5/18) = (.6, 8/45, 1/45), of the sum .8.
        ({"metric": "l1", "normalise": True}, (0.75, 2 / 9, 1 / 36)),
    ],
)
def test_vectors(options, expected):
    assert weights(**options) == pytest.approx(expected, abs=5e-7)


def test_cosine_by_hand():
    # The cosine with (.5, .5) is (p + q) / sqrt(2 (p^2 + q^2)).
    d = [0.0, 1 - 1 / math.sqrt(2 * 0.82), 1 - 1 / math.sqrt(2)]
    raw = [n / 100 - 0.5 * d_k + 0.1 for n, d_k in zip(SIZES, d, strict=True)]
    expected = [r / sum(raw) for r in raw]
    assert weights(metric="cosine", normalise=False) == pytest.approx(expected, abs=1e-12)
    normal = [n / 100 - 0.5 * d_k / sum(d) + 0.1 for n, d_k in zip(SIZES, d, strict=True)]
    assert weights(metric="cosine") == pytest.approx([r / sum(normal) for r in normal], abs=1e-12)


def test_the_kl_goes_from_the_client_to_the_uniform_distribution_and_takes_0_log_0_as_0():
    # With a = 1, b = 0 and raw d, equal sizes: n_k - w_k = d_k.
    got = by_counts([1, 1], [torch.tensor([9, 1]), torch.tensor([1, 1])], a=1.0, b=0.0, normalise=False)
    d = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert d == pytest.approx(0.368064, abs=5e-7)
    assert got == pytest.approx([0.5 - d, 0.5], abs=1e-12)
    alone = by_counts([1, 1], [torch.tensor([5, 0]), torch.tensor([5, 0])], a=0.1, b=0.0, normalise=False)
    assert alone == pytest.approx([0.5 - 0.1 * math.log(2)] * 2, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("normalise", [False, True])
def test_without_a_and_b_the_sizes_are_the_weights(metric, normalise):
    assert weights(a=0.0, b=0.0, metric=metric, normalise=normalise) == pytest.approx([0.5, 0.3, 0.2], abs=1e-15)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("normalise", [False, True])
def test_of_uniform_labels_b_alone_draws_the_weights_together(metric, normalise):
    # All d = 0: p_k = (n_k + b) / (1 + b K), which is not FedAvg.
    balanced = [torch.tensor([n, n, n, n, n]) for n in (10, 6, 4)]
    got = shares(by_counts(SIZES, balanced, metric=metric, normalise=normalise))
    assert got == pytest.approx([(n / 100 + 0.1) / 1.3 for n in SIZES], abs=1e-12)


def test_equal_discrepancies_take_the_same_from_everybody():
    # Normalised they are 1/K each: p_k ~ relu(n_k - a/K), here (.5 - .25, .3 - .25, 0).
    alone = [torch.tensor([n, 0]) for n in SIZES]
    got = shares(by_counts(SIZES, alone, a=0.75, b=0.0))
    assert got == pytest.approx([0.25 / 0.3, 0.05 / 0.3, 0.0], abs=1e-12)


def test_a_large_b_makes_them_uniform():
    assert weights(b=1e9) == pytest.approx([1 / 3] * 3, abs=1e-8)


def test_if_nothing_is_left_the_sizes_are_the_weights():
    alone = [torch.tensor([n, 0]) for n in SIZES]
    assert shares(by_counts(SIZES, alone, a=5.0, b=0.0, normalise=False)) == pytest.approx([0.5, 0.3, 0.2])
    # Exactly zero is not positive either.
    assert by_counts([1, 1], alone[:2], a=1.0, b=0.0) == [0.5, 0.5]


def test_they_depend_on_who_is_there():
    pair, three = shares(by_counts(SIZES[:2], COUNTS[:2])), weights()
    assert pair[1] / pair[0] != pytest.approx(three[1] / three[0], rel=0.01)


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), min_size=1, max_size=6),
    st.floats(0, 5),
    st.floats(0, 2),
    st.sampled_from(METRICS),
    st.booleans(),
)
def test_they_are_never_negative_and_sum_to_one(labels, a, b, metric, normalise):
    counts = [torch.tensor(c) for c in labels]
    got = by_counts([sum(c) for c in labels], counts, a, b, normalise, metric=metric)
    assert min(got) >= 0
    assert math.fsum(shares(got)) == pytest.approx(1, abs=1e-12)
    if normalise and a <= 1:  # then the sum before relu is at least 1 - a + b K
        assert sum(got) >= 1 - a + b * len(labels) - 1e-9


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), st.sampled_from(METRICS))
def test_no_labels_are_farther_from_uniform_than_one_class(counts, metric):
    assert 0 <= discrepancy(torch.tensor(counts), metric) <= largest_discrepancy(len(counts), metric) + 1e-9


def test_the_largest_discrepancies_by_hand():
    assert [largest_discrepancy(4, metric) for metric in METRICS] == pytest.approx(
        [math.log(4), 1.5, math.sqrt(0.75), 0.5], abs=1e-12
    )


# --- the method -------------------------------------------------------------------------------------------------------


def answer(scalar, k, value):
    return {"model": scalar(value), "n": SIZES[k], "discrepancy": discrepancy(COUNTS[k], "kl")}


def test_one_round_by_hand(fake, scalar):
    method = FedDisco()
    state = State(0, method.init(fake({}, sizes=SIZES)))
    state = method.round(state, fake({k: answer(scalar, k, w) for k, w in enumerate((1.0, 2.0, 100.0))}, sizes=SIZES))
    assert state["model"]["w"].item() == pytest.approx(0.725880 + 2 * 0.274120, abs=2e-6)


def test_the_overall_average_weighs_all_who_were_seen(fake, scalar):
    method = FedDisco()
    state = State(0, method.init(fake({}, sizes=SIZES)))
    assert method.models(state)["oca"]["w"].item() == 0.0
    for t, answers in enumerate(({0: 1.0}, {1: 2.0, 2: 100.0}), start=1):
        replies = {k: answer(scalar, k, w) for k, w in answers.items()}
        state = method.round(state, fake(replies, sizes=SIZES, round=t))
        if t == 1:
            assert method.models(state)["oca"]["w"].item() == 1.0
    views = method.models(state)
    # Active are clients 1 and 2: n = (.6, .4), d = (.346834, .653166), so p ~ (.526583, .173417) of the sum .7.
    assert views["aca"]["w"].item() == pytest.approx((2 * 0.526583 + 100 * 0.173417) / 0.7, abs=2e-4)
    # All three were seen, so that the third has no weight: the vector above.
    assert views["oca"]["w"].item() == pytest.approx(0.725880 + 2 * 0.274120, abs=2e-6)


def test_without_a_and_b_it_is_fedavg(small_setting, play):
    setting = small_setting([5, 9, 12, 7], participation=Participation(policy="fraction", fraction=0.5))
    neither = Aggregation(disco_a=0.0, disco_b=0.0)
    plain, disco, weighed = (play(m, setting, 3).model for m in (FedAvg(), FedDisco(aggregation=neither), FedDisco()))
    assert all(torch.allclose(disco[name], t, rtol=0, atol=1e-7) for name, t in plain.items())
    assert not all(torch.allclose(weighed[name], t, rtol=0, atol=1e-5) for name, t in plain.items())


def test_it_is_fedavg_with_these_weights_bit_for_bit(small_setting, play):
    setting = small_setting([5, 9, 12, 7], participation=Participation(policy="fraction", fraction=0.5))
    one, other = Aggregation(disco_a=0.3), Aggregation(weights="disco", disco_a=0.3)
    pair = (FedDisco(aggregation=one), FedAvg(aggregation=other))
    states = [play(m, setting, 3).states[-1].body for m in pair]
    assert equal(*states)


def test_a_discrepancy_travels_once_and_the_card_says_so(small_setting, play):
    half = Participation(policy="trace", trace=[[0, 1], [0, 1], [1, 2]])
    played = play(FedDisco(), small_setting([5, 9, 12], participation=half), 3)
    # Each reply has n, and a client's first one is followed by 8 bytes more.
    assert [fed.ledger.up["scalars"] for fed in played.rounds] == [2 * 16, 2 * 8, 2 * 8 + 8]
    assert all("counts" not in fed.ledger.up for fed in played.rounds)
    assert [fed.ledger.down["weights"] == fed.ledger.up["weights"] for fed in played.rounds] == [True] * 3
    assert sorted(played.states[-1]["discrepancy"]) == ["0", "1", "2"]
    assert "how far labels are from uniform" in FedDisco.card.up
    assert "how far" not in FedAvg.card.up
    assert FedProx(aggregation=DISCO).leaves().endswith("once how far its labels are from uniform")
    assert FedDisco().leaves().count("uniform") == 1


def test_the_weights_are_those_of_the_histograms_to_the_last_bit(small_setting, play):
    setting = small_setting([5, 9, 12, 7], participation=Participation(policy="fraction", fraction=0.5))
    for metric in METRICS:
        state = play(FedDisco(aggregation=Aggregation(disco_metric=metric)), setting, 3).states[-1]
        seen = {int(k): d for k, d in state["discrepancy"].items()}
        assert seen == {k: discrepancy(setting.sites[k].train.counts(3), metric) for k in seen}


def test_what_a_client_has_said_first_counts(fake, scalar):
    method, first = FedDisco(), {"model": scalar(1.0), "n": 5, "discrepancy": 0.2}
    state = State(0, method.init(fake({}, sizes=[5])))
    for t, said in enumerate((0.2, 0.1), start=1):
        fed = fake({0: {**first, "discrepancy": said}}, sizes=[5], round=t)
        state = method.round(state, fed)
        assert state["discrepancy"] == {"0": 0.2}
        assert [action for action, _, _ in fed.asked] == (["train", "tell"] if t == 1 else ["train"])


def test_a_client_that_does_not_tell_is_left_out(fake, scalar):
    class Silent(fake):
        def ask(self, action, clients, /, **body):
            return [r for r in super().ask(action, clients, **body) if action == "train" or r.client != 0]

    method, replies = FedDisco(), {k: answer(scalar, k, w) for k, w in enumerate((1.0, 2.0, 100.0))}
    state = method.round(State(0, method.init(fake({}, sizes=SIZES))), Silent(replies, sizes=SIZES))
    alone = method.round(
        State(0, method.init(fake({}, sizes=SIZES))), fake({k: replies[k] for k in (1, 2)}, sizes=SIZES)
    )
    assert equal(state.body, alone.body)


def test_nobody_tells_what_the_weights_do_not_need(small_setting):
    setting = small_setting([5, 9])
    me = setting.client(0, 1, {})
    assert FedAvg().tell(me, Message("tell", 0, {})).body == {}
    assert FedDisco().tell(me, Message("tell", 0, {})).body.keys() == {"discrepancy"}
    assert FedGen(aggregation=DISCO).tell(me, Message("tell", 0, {})).body == {}  # its replies have the counts


@pytest.mark.parametrize(
    "method",
    [
        FedProx(mu=0.5, aggregation=DISCO),
        FedAvgM(momentum=0.0, aggregation=DISCO),
        MOON(aggregation=DISCO),
        FedGKD(gamma=1.0, aggregation=DISCO),
    ],
    ids=lambda m: m.name,
)
def test_other_methods_average_with_the_same_weights(method, play):
    setting = small_settings()[0]
    played = play(method, setting, 3)
    active = sorted(played.rounds[-1].active)
    sent = [played.states[-1]["cache"][str(k)] for k in active]
    counts = [setting.sites[k].train.counts(setting.classes) for k in active]
    by_disco = by_counts([setting.sizes[k] for k in active], counts)
    expected = average(sent, by_disco, played.states[-2]["model"])
    by_size = average(sent, [setting.sizes[k] for k in active], played.states[-2]["model"])
    assert all(torch.allclose(played.model[name], t, rtol=0, atol=1e-6) for name, t in expected.items())
    assert not all(torch.allclose(played.model[name], t, rtol=0, atol=1e-4) for name, t in by_size.items())


@pytest.mark.parametrize(
    "method",
    [
        FedDisco(cache=Cache(oca=False)),
        MOON(aggregation=DISCO),
        FedGKD(aggregation=DISCO, buffer=2, start="full_buffer"),
    ],
    ids=repr,
)
def test_the_weights_keep_the_contract(method):
    check_method(method, small_settings()[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disco_a": -0.1}, r"aggregation\.disco_a = -0\.1"),
        ({"disco_b": -0.1}, r"aggregation\.disco_b = -0\.1"),
        ({"disco_metric": "js"}, r"aggregation\.disco_metric = 'js'"),
        ({"disco_a": 0.3, "weights": "size"}, r"aggregation\.disco_a .* weights = 'disco'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Aggregation(**options)


def test_options_of_weights_that_are_not_used_are_refused():
    with pytest.raises(UsageError, match=r"aggregation\.disco_a .* weights = 'disco'"):
        FedAvg(aggregation=Aggregation(disco_a=0.3))


def test_clients_not_yet_seen_have_no_discrepancy(fake):
    with pytest.raises(UsageError, match=r"weights = 'disco' .* cache\.unseen = 'seen_only'"):
        FedDisco(cache=Cache(unseen="global")).init(fake({}, sizes=SIZES))
