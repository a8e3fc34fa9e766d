"""The overall client average (FedKF's technique T1): the last known model of every client, beside the training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base import tree
from fedalloy.base.tree import equal
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import State, run
from fedalloy.federation.participation import Participation
from fedalloy.methods import FedAvg, FedAvgM, FedProx
from fedalloy.train.fit import LocalWork, params

SIZES = (10, 20, 30, 40)
UNIFORM = Aggregation(weights="uniform")

# From w = 0: round 1 clients 0 and 1 answer 1 and 2; round 2 clients 1 and 3 answer 4 and 8.
#   ACA:                                      (10*1 + 20*2) / 30 = 5/3,      (20*4 + 40*8) / 60 = 20/3
#   init_model, unseen clients hold 0:        50 / 100 = 0.5,                (10*1 + 20*4 + 40*8) / 100 = 4.1
#   seen_only, unseen clients are left out:   50 / 30 = 5/3,                 410 / 70 = 5.857143
#   global, unseen clients hold the ACA:      (50 + 70 * 5/3) / 100 = 5/3,   (410 + 30 * 20/3) / 100 = 6.1
#   random, unseen client k holds 100 + k:    (50 + 30*102 + 40*103) / 100,  (410 + 30*102) / 100
OVERALL = {
    "init_model": (0.5, 4.1),
    "seen_only": (5 / 3, 410 / 70),
    "global": (5 / 3, 6.1),
    "random": (72.3, 34.7),
}


def two_rounds(method, fake, scalar):
    state = State(0, method.init(fake({}, sizes=SIZES)))
    states = []
    for answers in ({0: 1.0, 1: 2.0}, {1: 4.0, 3: 8.0}):
        replies = {k: {"model": scalar(w), "n": SIZES[k]} for k, w in answers.items()}
        fed = fake(replies, sizes=SIZES, round=state.round + 1)
        state = method.round(state, fed)
        states.append(state)
    return states, fed


@pytest.mark.parametrize("unseen", list(OVERALL))
def test_vector(unseen, fake, scalar):
    method = FedAvg(cache=Cache(unseen=unseen))
    states, fed = two_rounds(method, fake, scalar)
    assert [method.models(s)["aca"]["w"].item() for s in states] == pytest.approx([5 / 3, 20 / 3], abs=1e-12)
    assert [method.models(s)["oca"]["w"].item() for s in states] == pytest.approx(OVERALL[unseen], abs=1e-12)
    # The ACA model is what is sent on.
    assert fed.asked[0][2]["model"]["w"].item() == pytest.approx(5 / 3, abs=1e-12)


def test_uniform_weights_reach_the_overall_average(fake, scalar):
    method = FedAvg(aggregation=UNIFORM, cache=Cache(unseen="init_model"))
    states, _ = two_rounds(method, fake, scalar)
    assert [method.models(s)["oca"]["w"].item() for s in states] == [3 / 4, 13 / 4]
    assert [method.models(s)["aca"]["w"].item() for s in states] == [1.5, 6.0]


@pytest.mark.parametrize("unseen", list(OVERALL))
def test_before_the_first_round_it_is_the_start(unseen, small_setting, play):
    method = FedAvg(cache=Cache(unseen=unseen))
    start = play(method, small_setting([3, 4]), 0).states[0]
    assert equal(method.models(start)["oca"], start["model"])


def test_an_incremental_update_matches_the_full_sum(fake):
    draw = torch.Generator().manual_seed(0)
    method = FedAvg(cache=Cache(unseen="init_model"))
    state = State(0, method.init(fake({}, sizes=SIZES)))
    what = state["model"]["w"].clone()
    known = {k: what.clone() for k in range(4)}
    for active in ([0, 1], [1, 3], [2, 3], [0, 2]):
        models = {k: torch.randn(1, generator=draw, dtype=torch.float64) for k in active}
        for k, w in models.items():
            what += SIZES[k] / 100 * (w - known[k])
            known[k] = w
        state = method.round(state, fake({k: {"model": {"w": w}, "n": SIZES[k]} for k, w in models.items()}))
        assert torch.allclose(method.models(state)["oca"]["w"], what, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [FedAvg(), FedProx(mu=0.1), FedAvg(aggregation=UNIFORM)])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_with_everybody_active_both_views_are_equal_bit_for_bit(method, batch_norm, small_setting, small, play):
    setting = small_setting([3, 5, 9], networks=[lambda: small(batch_norm=batch_norm)])
    for s in play(method, setting, 3).states[1:]:
        assert equal(method.models(s)["oca"], method.models(s)["aca"])


@pytest.mark.parametrize("trace", [[[0], [1]], [[1, 2], [0, 2]], [[0, 1, 3], [1, 2, 3]]])
def test_the_first_round_is_equal_for_any_fraction(trace, small_setting, play):
    setting = small_setting([3, 5, 9, 6], participation=Participation(policy="trace", trace=trace))
    first, second = play(FedAvg(), setting, 2).states[1:]
    assert equal(FedAvg().models(first)["oca"], FedAvg().models(first)["aca"])
    assert not equal(FedAvg().models(second)["oca"], FedAvg().models(second)["aca"])


def test_the_ways_to_begin_agree_once_everybody_was_seen(small_setting, play):
    setting = small_setting([3, 5, 9], participation=Participation(policy="trace", trace=[[0, 1], [1], [2], [0]]))
    views = []
    for unseen in OVERALL:
        method = FedAvg(cache=Cache(unseen=unseen))
        views.append([method.models(s)["oca"] for s in play(method, setting, 4).states])
    for after, agree in ((2, False), (3, True), (4, True)):
        assert equal(views[0][after], views[1][after]) is agree
        assert equal(views[0][after], views[2][after]) is agree


def test_the_cache_never_touches_the_training(small_setting, play):
    setting = small_setting([3, 5, 9, 6], participation=Participation(policy="fraction", fraction=0.5))
    caches = (Cache(oca=True, unseen="init_model"), Cache(oca=False, unseen="seen_only"))
    trained = [play(FedAvg(cache=cache), setting, 4) for cache in caches]
    for with_cache, without in zip(*(t.states for t in trained), strict=True):
        assert equal(with_cache["model"], without["model"])
        assert list(FedAvg(cache=Cache(oca=False)).models(without)) == ["aca"]
        assert without["cache"] == {}
    assert [r.ledger.down for r in trained[0].rounds] == [r.ledger.down for r in trained[1].rounds]
    assert [r.ledger.up for r in trained[0].rounds] == [r.ledger.up for r in trained[1].rounds]


def test_an_absent_clients_slot_is_left_alone(small_setting, play):
    setting = small_setting([3, 5], participation=Participation(policy="trace", trace=[[0, 1], [1]]))
    _, first, second = play(FedAvg(), setting, 2).states
    assert equal(second["cache"]["0"], first["cache"]["0"])
    assert not equal(second["cache"]["1"], first["cache"]["1"])


def test_the_cache_holds_the_clients_models_under_server_momentum_too(small_setting, play):
    setting = small_setting([6, 6], work=LocalWork(batch=6, lr=0.1))
    averaged, moved = play(FedAvg(), setting, 1).states[1], play(FedAvgM(), setting, 1).states[1]
    assert equal(averaged["cache"], moved["cache"])


def _oca_after(setting, method, rounds):
    return method.overall(run(method, Serial(setting), rounds))


@pytest.mark.parametrize("unseen", list(OVERALL))
def test_the_running_sum_follows_the_exact_one(small_setting, unseen, monkeypatch):
    """With clients seen for the first time and again, and across a refresh."""
    monkeypatch.setattr("fedalloy.aggregation.cache.REFRESH", 4)
    setting = replace(small_setting(SIZES), participation=Participation(policy="fraction", fraction=0.5))
    for rounds in (1, 3, 4, 7):
        exact = _oca_after(setting, FedAvg(cache=Cache(unseen=unseen)), rounds)
        moved = _oca_after(setting, FedAvg(cache=Cache(unseen=unseen, exact_up_to=1)), rounds)
        assert all(torch.allclose(exact[name], moved[name], rtol=1e-6, atol=1e-7) for name in exact)


def test_random_networks_are_each_clients_own_and_go_when_it_is_seen(small_setting, play):
    setting = small_setting(SIZES, participation=Participation(policy="trace", trace=[[0, 2], [2], [1]]))
    method = FedAvg(cache=Cache(unseen="random"))
    states = play(method, setting, 3).states
    assert [sorted(s["random"]) for s in states] == [["0", "1", "2", "3"], ["1", "3"], ["1", "3"], ["3"]]
    first = states[0]["random"]
    assert not equal(first["1"], first["3"])
    assert not any(equal(model, states[0]["model"]) for model in first.values())
    assert states[-1]["random"]["3"] is first["3"]  # nothing is made anew
    assert equal(params(setting.client(3, 7, {}).random_net()), first["3"])  # the client itself would make the same
    held = [*(states[1]["cache"][k] for k in ("0", "2")), *(first[k] for k in ("1", "3"))]
    expected = average(held, [10, 30, 20, 40], states[1]["model"])
    assert all(torch.allclose(method.overall(states[1])[name], w) for name, w in expected.items())
    middle = FedAvg(cache=Cache(unseen="random"), aggregation=Aggregation(combine="median"))
    found = middle.overall(play(middle, setting, 1).states[-1])  # of two trained models and two random ones
    stacked = torch.stack([model["out.bias"] for model in held]).sort(0).values
    assert torch.allclose(found["out.bias"], stacked[1:3].mean(0))


def test_a_running_sum_never_touches_the_training(small_setting):
    setting = small_setting(SIZES)
    exact, moved = (run(FedAvg(cache=Cache(exact_up_to=n)), Serial(setting), 3) for n in (2000, 1))
    assert tree.equal(exact["model"], moved["model"])
    assert "sum" in moved.body
    assert "sum" not in exact.body


def test_a_cache_in_bfloat16_is_half_as_large_and_near(small_setting):
    setting = small_setting(SIZES)
    full, half = (run(FedAvg(cache=Cache(dtype=d)), Serial(setting), 2) for d in ("float32", "bfloat16"))
    assert tree.equal(full["model"], half["model"])
    bytes_of = [sum(tree.leaf_bytes(leaf) for _, leaf in tree.leaves(s["cache"])) for s in (full, half)]
    assert bytes_of[1] == bytes_of[0] / 2
    a, b = FedAvg().overall(full), FedAvg(cache=Cache(dtype="bfloat16")).overall(half)
    assert all(a[name].dtype == b[name].dtype for name in a)
    assert all(torch.allclose(a[name], b[name], rtol=2**-8, atol=1e-3) for name in a)
    assert not tree.equal(a, b)
