"""Bounds on one client's influence under FedAvg and its heirs: by hand, against liars, in both views, in the pool."""

from __future__ import annotations

import math

import pytest
import torch

from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.robust import median
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method, small_settings
from fedalloy.engine.pool import Pool
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import State, methods, quick, run
from fedalloy.federation.participation import Participation
from fedalloy.methods import KDIA, QFFL, DaFKD, FedAvg, FedAvgM, FedDisco, FedFTG, FedGen, FedKF, FedProx, KnFu, Local

SIZES = (10, 20, 30, 40)
BOUNDS = [
    {"combine": "median"},
    {"combine": "trimmed", "trim": 0.3},
    {"combine": "krum", "trim": 0.3},
    {"clip": "median"},
    {"clip": 0.001},
]


def rule(**keys):
    """The experiment's [aggregation], as an argument of a method."""
    return {"aggregation": Aggregation(**keys)}


def after_one_round(method, fake, values, sizes, start=0.0):
    replies = {
        k: {"model": {"w": torch.tensor([v], dtype=torch.float64)}, "n": n}
        for k, (v, n) in enumerate(zip(values, sizes, strict=True))
    }
    first = method.init(fake({}, sizes=sizes))
    state = State(0, {**first, "model": {"w": torch.tensor([start], dtype=torch.float64)}})
    return method.round(state, fake(replies, sizes=sizes))


# By hand: clients of 10, 20, 30 and 40 samples answer 1, 2, 3 and 14 to a model of 0.
#   mean 10/100 + 40/100 + 90/100 + 560/100 = 7     median (2 + 3) / 2     trimmed by a quarter: the same two
#   krum: 14 goes, 6 / 3
#   clip 3: 14 becomes 3, 0.1 + 0.4 + 0.9 + 1.2 = 2.6     clip by the median norm 2.5: 0.1 + 0.4 + 0.75 + 1 = 2.25
#   cap 0.25 of four: all alike, 20 / 4     cap 0.35: 0.35 and 0.65 * (1, 2, 3) / 6 = 0.10833, 0.21667, 0.325
BY_HAND = [
    ({}, 7.0),
    ({"combine": "median"}, 2.5),
    ({"combine": "trimmed", "trim": 0.25}, 2.5),
    ({"combine": "trimmed", "trim": 0.2}, 5.0),
    ({"combine": "krum", "trim": 0.25}, 2.0),
    ({"clip": 3.0}, 2.6),
    ({"clip": "median"}, 2.25),
    ({"clip": 3.0, "combine": "median"}, 2.5),
    ({"cap": 0.25}, 5.0),
    ({"cap": 0.35}, 0.65 * 14 / 6 + 0.35 * 14),
]


@pytest.mark.parametrize(("options", "expected"), BY_HAND, ids=str)
def test_one_round_by_hand_and_both_views(options, expected, fake):
    method = FedAvg(**rule(**options))
    s = after_one_round(method, fake, (1.0, 2.0, 3.0, 14.0), SIZES)
    assert s["model"]["w"].item() == pytest.approx(expected, abs=1e-12)
    assert equal(method.models(s)["oca"], method.models(s)["aca"])


def test_clipping_is_around_the_model_that_was_sent(fake):
    s = after_one_round(FedAvg(**rule(clip=1.0)), fake, (4.5, 9.0), (1, 1), start=5.0)
    assert s["model"]["w"].item() == pytest.approx((4.5 + 6.0) / 2)
    assert s["cache"]["1"]["w"].item() == 6.0


def test_server_momentum_starts_from_the_robust_average(fake):
    s = after_one_round(FedAvgM(**rule(combine="median"), momentum=0.5), fake, (1.0, 2.0, 1e30), (1, 1, 1))
    assert s["model"]["w"].item() == 2.0


# --- the overall average ----------------------------------------------------------------------------------------------


# Of four clients 0 and 1 answer 1 and 2, then 1 and 3 answer 4 and 8; see test_oca.
@pytest.mark.parametrize(
    ("options", "unseen", "expected"),
    [
        ({"combine": "median"}, "seen_only", (1.5, 4.0)),
        ({"combine": "median"}, "init_model", (0.5, 2.5)),  # of 1, 2, 0, 0 and of 1, 4, 0, 8
        ({"combine": "median"}, "global", (1.5, 5.0)),  # of 1, 2, 1.5, 1.5 and of 1, 4, 6, 8
        ({"cap": 0.4}, "seen_only", (1.5, 0.2 * 1 + 0.4 * 4 + 0.4 * 8)),  # 1/7, 2/7, 4/7: 0.4 and 0.6 in 1 to 2
        # 0.1, 0.2, 0.3, 0.4: what the last has too much lifts the third above 0.3 too; 0.4 are left, in 1 to 2.
        ({"cap": 0.3}, "init_model", (0.4 / 3 * 1 + 0.8 / 3 * 2, 0.4 / 3 * 1 + 0.8 / 3 * 4 + 0.3 * 8)),
    ],
    ids=str,
)
def test_the_overall_average_is_combined_in_the_same_way(options, unseen, expected, fake, scalar):
    method = FedAvg(**rule(**options), cache=Cache(unseen=unseen))
    state = State(0, method.init(fake({}, sizes=SIZES)))
    found = []
    for answers in ({0: 1.0, 1: 2.0}, {1: 4.0, 3: 8.0}):
        replies = {k: {"model": scalar(w), "n": SIZES[k]} for k, w in answers.items()}
        state = method.round(state, fake(replies, sizes=SIZES, round=state.round + 1))
        found.append(method.models(state)["oca"]["w"].item())
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("options", [{"combine": "median"}, {"combine": "krum"}, {"cap": 0.4}], ids=str)
def test_a_running_sum_is_refused(options, fake):
    with pytest.raises(UsageError, match=r"4 clients .* cache\.exact_up_to = 3"):
        FedAvg(**rule(**options), cache=Cache(exact_up_to=3)).init(fake({}, sizes=SIZES))
    FedAvg(**rule(**options), cache=Cache(exact_up_to=4)).init(fake({}, sizes=SIZES))
    FedAvg(**rule(**options), cache=Cache(exact_up_to=3, oca=False)).init(fake({}, sizes=SIZES))
    FedAvg(**rule(clip="median"), cache=Cache(exact_up_to=3)).init(fake({}, sizes=SIZES))


# --- liars ------------------------------------------------------------------------------------------------------------


def test_the_median_keeps_the_honest_direction_among_sign_flipped_clients(fake):
    draw = torch.Generator().manual_seed(0)
    server, truth = torch.zeros(200), torch.randn(200, generator=draw)
    updates = [truth + 0.3 * torch.randn(200, generator=draw) for _ in range(10)]
    sent = [-10 * u if k < 3 else u for k, u in enumerate(updates)]  # three of ten flip and enlarge theirs
    replies = {k: {"model": {"w": w}, "n": 5} for k, w in enumerate(sent)}

    def direction(**options):
        state = State(0, {"model": {"w": server}, "cache": {}})
        moved = FedAvg(cache=Cache(oca=False), **rule(**options)).round(state, fake(replies))["model"]["w"]
        return torch.cosine_similarity(moved, truth, dim=0).item()

    assert direction() < -0.9
    assert direction(combine="median") > 0.9
    assert direction(combine="trimmed", trim=0.3) > 0.9
    assert direction(combine="krum", trim=0.3) > direction(combine="median")
    assert direction(clip="median") > 0.9  # four of ten are left over, all of one length


@pytest.mark.parametrize("lie", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("options", [{"combine": "median"}, {"combine": "trimmed"}, {"clip": "median"}], ids=str)
def test_one_client_cannot_spoil_the_model(lie, options, fake):
    s = after_one_round(FedAvg(**rule(**options)), fake, (1.0, 2.0, 3.0, lie, 2.0), (1, 1, 1, 1, 1))
    assert 1.0 <= s["model"]["w"].item() <= 3.0
    assert equal(FedAvg(**rule(**options)).overall(s), s["model"])


def test_a_client_that_claims_all_the_data_counts_for_its_cap(fake):
    s = after_one_round(FedAvg(**rule(cap=0.4)), fake, (0.0, 0.0, 1.0), (10, 10, 10**9))
    assert s["model"]["w"].item() == pytest.approx(0.4)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_wide_bounds_are_no_bounds(small_setting, small, play):
    setting = small_setting([3, 5, 9], networks=[lambda: small(batch_norm=True)])
    plain = play(FedAvg(), setting, 2)
    clipped = play(FedAvg(**rule(clip=1e6)), setting, 2)
    assert equal(plain.states[-1].body, clipped.states[-1].body)
    uniform = play(FedAvg(**rule(weights="uniform")), setting, 1).model
    whole = play(FedAvg(**rule(combine="trimmed", trim=0.0)), setting, 1).model
    assert all(torch.allclose(uniform[name], whole[name], rtol=1e-6, atol=1e-7) for name in uniform)


@pytest.mark.parametrize("options", [*BOUNDS, {"cap": 0.4}], ids=str)
def test_with_everybody_active_both_views_are_equal_bit_for_bit(options, small_setting, small, play):
    method = FedProx(mu=0.1, **rule(**options))
    setting = small_setting([3, 5, 9], networks=[lambda: small(batch_norm=True)])
    states = play(method, setting, 2).states
    for s in states[1:]:
        assert equal(method.models(s)["oca"], method.models(s)["aca"])
    assert not equal(states[-1]["model"], play(FedProx(mu=0.1), setting, 2).model)


@pytest.mark.parametrize("options", BOUNDS, ids=str)
def test_one_client_alone_is_returned_bit_for_bit(options, small_setting, play):
    setting = small_setting([7, 9], participation=Participation(policy="trace", trace=[[1]]))
    found, plain = (play(m, setting, 1).model for m in (FedAvg(**rule(**options)), FedAvg()))
    assert equal(found, plain) is (options.get("clip") != 0.001)


@pytest.mark.parametrize(
    "options", [{"combine": "median"}, {"combine": "trimmed", "clip": "median"}, {"cap": 0.3}], ids=str
)
def test_bounds_keep_the_contract(options):
    check_method(FedAvg(**rule(**options)), small_settings()[1])


def test_an_heir_keeps_the_contract():
    check_method(FedAvgM(**rule(combine="median", clip=0.1)), small_settings()[0])


def test_fedkf_is_taught_by_the_robust_average_of_the_cache(play):
    method = FedKF(**FedKF.card.quick, **rule(combine="median"))
    s = play(method, small_settings()[0], 1).states[1]
    by_hand = median([s["cache"][k] for k in sorted(s["cache"], key=int)], s["model"])
    assert equal(method.teacher(s)["teacher"], by_hand)


def test_the_pool_gives_the_same_bits():
    setting, method = small_settings()[1], FedAvg(**rule(combine="trimmed", clip="median"))
    with Pool(setting, workers=2) as pool:
        assert equal(run(method, pool, 2).body, run(method, Serial(setting), 2).body)


@pytest.mark.parametrize("cls", [KDIA, FedGen, FedFTG])
def test_what_a_server_learns_from_single_models_is_clipped_too(cls, play):
    # So short that every client's model is the server's but for rounding: the heads that teach are then all alike.
    setting = small_settings()[0]
    plain, still = (play(cls(**cls.card.quick, **rule(clip=clip)), setting, 1).states[1] for clip in (None, 1e-9))
    assert not equal(plain["generator"], still["generator"])
    if cls is not FedFTG:  # its server goes on from the average
        start = play(cls(**cls.card.quick), setting, 0).states[0]["model"]
        assert all(torch.allclose(still["model"][name], w, rtol=0, atol=1e-6) for name, w in start.items())


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"combine": "medain"}, r"aggregation\.combine = 'medain'"),
        ({"trim": 0.5}, r"aggregation\.trim = 0\.5"),
        ({"trim": 0.3}, r"aggregation\.trim .*'trimmed' or 'krum'"),
        ({"combine": "median", "trim": 0.3}, r"aggregation\.trim .*'trimmed' or 'krum'"),
        ({"clip": 0.0}, r"aggregation\.clip = 0\.0"),
        ({"clip": "mean"}, r"aggregation\.clip = 'mean'"),
        ({"combine": "median", "weights": "disco"}, r"aggregation\.weights = 'disco' .* combine = 'median'"),
    ],
)
def test_impossible_bounds_are_refused(keys, named):
    with pytest.raises(UsageError, match=named):
        Aggregation(**keys)


@pytest.mark.parametrize(
    ("cls", "keys"),
    [
        (FedDisco, {"combine": "median"}),
        (QFFL, {"combine": "median"}),
        (QFFL, {"clip": 1.0}),
        (KDIA, {"combine": "trimmed"}),
        (FedGen, {"combine": "median"}),
        (FedFTG, {"combine": "median"}),
        (DaFKD, {"clip": "median"}),
        (DaFKD, {"combine": "median"}),
        (KnFu, {"combine": "median"}),
        (Local, {"weights": "uniform"}),
    ],
)
def test_a_method_refuses_the_keys_that_its_server_does_not_use(cls, keys):
    (key,) = keys
    with pytest.raises(UsageError, match=rf"(aggregation\.)?{key} = '?{keys[key]}"):
        cls(**rule(**keys))


def test_every_default_is_the_plain_average():
    for name, cls in methods.items():
        method = quick(cls)
        assert (method.aggregation.combine, method.aggregation.clip) == ("mean", None), name
