"""Bounds on one client's influence under FedAvg and its heirs: by hand, against liars, in both views, in the pool."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedalloy.aggregation.robust import median
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method, small_settings
from fedalloy.engine.pool import Pool
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import State, methods, quick, run
from fedalloy.federation.participation import Participation
from fedalloy.methods import KDIA, MOON, QFFL, DaFKD, FedAvg, FedAvgM, FedDisco, FedFTG, FedGen, FedKF, FedProx

SIZES = (10, 20, 30, 40)
BOUNDS = [
    {"combine": "median"},
    {"combine": "trimmed", "trim": 0.3},
    {"combine": "krum", "trim": 0.3},
    {"clip": "median"},
    {"clip": 0.001},
]


def capped(options):
    """A method's options, and the experiment's cap, which a table of both has among them."""
    return {key: value for key, value in options.items() if key != "cap"}, options.get("cap")


def after_one_round(method, fake, values, sizes, start=0.0, cap=None):
    replies = {
        k: {"model": {"w": torch.tensor([v], dtype=torch.float64)}, "n": n}
        for k, (v, n) in enumerate(zip(values, sizes, strict=True))
    }
    first = method.init(fake({}, sizes=sizes, cap=cap))
    state = State(0, {**first, "model": {"w": torch.tensor([start], dtype=torch.float64)}})
    return method.round(state, fake(replies, sizes=sizes, cap=cap))


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
    own, cap = capped(options)
    method = FedAvg(**own)
    s = after_one_round(method, fake, (1.0, 2.0, 3.0, 14.0), SIZES, cap=cap)
    assert s["model"]["w"].item() == pytest.approx(expected, abs=1e-12)
    assert equal(method.models(s)["oca"], method.models(s)["aca"])


def test_clipping_is_around_the_model_that_was_sent(fake):
    s = after_one_round(FedAvg(clip=1.0), fake, (4.5, 9.0), (1, 1), start=5.0)
    assert s["model"]["w"].item() == pytest.approx((4.5 + 6.0) / 2)
    assert s["cache"]["1"]["w"].item() == 6.0


def test_server_momentum_starts_from_the_robust_average(fake):
    s = after_one_round(FedAvgM(combine="median", momentum=0.5), fake, (1.0, 2.0, 1e30), (1, 1, 1))
    assert s["model"]["w"].item() == 2.0


# --- the overall average ----------------------------------------------------------------------------------------------


# Of four clients 0 and 1 answer 1 and 2, then 1 and 3 answer 4 and 8; see test_oca.
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"combine": "median"}, (1.5, 4.0)),
        ({"combine": "median", "cache_init": "init_model"}, (0.5, 2.5)),  # of 1, 2, 0, 0 and of 1, 4, 0, 8
        ({"combine": "median", "cache_init": "global"}, (1.5, 5.0)),  # of 1, 2, 1.5, 1.5 and of 1, 4, 6, 8
        ({"cap": 0.4}, (1.5, 0.2 * 1 + 0.4 * 4 + 0.4 * 8)),  # 1/7, 2/7, 4/7: 0.4 and 0.6 in 1 to 2
        # 0.1, 0.2, 0.3, 0.4: what the last has too much lifts the third above 0.3 too; 0.4 are left, in 1 to 2.
        ({"cap": 0.3, "cache_init": "init_model"}, (0.4 / 3 * 1 + 0.8 / 3 * 2, 0.4 / 3 * 1 + 0.8 / 3 * 4 + 0.3 * 8)),
    ],
    ids=str,
)
def test_the_overall_average_is_combined_in_the_same_way(options, expected, fake, scalar):
    own, cap = capped(options)
    method = FedAvg(**own)
    state = State(0, method.init(fake({}, sizes=SIZES, cap=cap)))
    found = []
    for answers in ({0: 1.0, 1: 2.0}, {1: 4.0, 3: 8.0}):
        replies = {k: {"model": scalar(w), "n": SIZES[k]} for k, w in answers.items()}
        state = method.round(state, fake(replies, sizes=SIZES, cap=cap, round=state.round + 1))
        found.append(method.models(state)["oca"]["w"].item())
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("options", [{"combine": "median"}, {"combine": "krum"}, {"cap": 0.4}], ids=str)
def test_a_running_sum_is_refused(options, fake):
    own, cap = capped(options)
    with pytest.raises(UsageError, match="needs the exact OCA, but 4 clients are more than exact_up_to = 3"):
        FedAvg(**own, exact_up_to=3).init(fake({}, sizes=SIZES, cap=cap))
    FedAvg(**own, exact_up_to=4).init(fake({}, sizes=SIZES, cap=cap))
    FedAvg(**own, exact_up_to=3, oca=False).init(fake({}, sizes=SIZES, cap=cap))
    FedAvg(clip="median", exact_up_to=3).init(fake({}, sizes=SIZES))


# --- liars ------------------------------------------------------------------------------------------------------------


def test_the_median_keeps_the_honest_direction_among_sign_flipped_clients(fake):
    draw = torch.Generator().manual_seed(0)
    server, truth = torch.zeros(200), torch.randn(200, generator=draw)
    updates = [truth + 0.3 * torch.randn(200, generator=draw) for _ in range(10)]
    sent = [-10 * u if k < 3 else u for k, u in enumerate(updates)]  # three of ten flip and enlarge theirs
    replies = {k: {"model": {"w": w}, "n": 5} for k, w in enumerate(sent)}

    def direction(**options):
        state = State(0, {"model": {"w": server}, "cache": {}})
        moved = FedAvg(oca=False, **options).round(state, fake(replies))["model"]["w"]
        return torch.cosine_similarity(moved, truth, dim=0).item()

    assert direction() < -0.9
    assert direction(combine="median") > 0.9
    assert direction(combine="trimmed", trim=0.3) > 0.9
    assert direction(combine="krum", trim=0.3) > direction(combine="median")
    assert direction(clip="median") > 0.9  # four of ten are left over, all of one length


@pytest.mark.parametrize("lie", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("options", [{"combine": "median"}, {"combine": "trimmed"}, {"clip": "median"}], ids=str)
def test_one_client_cannot_spoil_the_model(lie, options, fake):
    s = after_one_round(FedAvg(**options), fake, (1.0, 2.0, 3.0, lie, 2.0), (1, 1, 1, 1, 1))
    assert 1.0 <= s["model"]["w"].item() <= 3.0
    assert equal(FedAvg(**options).overall(s), s["model"])


def test_a_client_that_claims_all_the_data_counts_for_its_cap(fake):
    s = after_one_round(FedAvg(), fake, (0.0, 0.0, 1.0), (10, 10, 10**9), cap=0.4)
    assert s["model"]["w"].item() == pytest.approx(0.4)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_wide_bounds_are_no_bounds(small_setting, small, play):
    setting = small_setting([3, 5, 9], networks=[lambda: small(batch_norm=True)])
    plain = play(FedAvg(), setting, 2)
    clipped = play(FedAvg(clip=1e6), setting, 2)
    assert equal(plain.states[-1].body, clipped.states[-1].body)
    uniform = play(FedAvg(weights="uniform"), setting, 1).model
    whole = play(FedAvg(combine="trimmed", trim=0.0), setting, 1).model
    assert all(torch.allclose(uniform[name], whole[name], rtol=1e-6, atol=1e-7) for name in uniform)


@pytest.mark.parametrize("options", [*BOUNDS, {"cap": 0.4}], ids=str)
def test_with_everybody_active_both_views_are_equal_bit_for_bit(options, small_setting, small, play):
    own, cap = capped(options)
    method = FedProx(mu=0.1, **own)
    plain = small_setting([3, 5, 9], networks=[lambda: small(batch_norm=True)])
    setting = replace(plain, aggregation=Aggregation(cap=cap))
    states = play(method, setting, 2).states
    for s in states[1:]:
        assert equal(method.models(s)["oca"], method.models(s)["aca"])
    assert not equal(states[-1]["model"], play(FedProx(mu=0.1), plain, 2).model)


@pytest.mark.parametrize("options", BOUNDS, ids=str)
def test_one_client_alone_is_returned_bit_for_bit(options, small_setting, play):
    setting = small_setting([7, 9], participation=Participation(policy="trace", trace=[[1]]))
    found, plain = (play(m, setting, 1).model for m in (FedAvg(**options), FedAvg()))
    assert equal(found, plain) is (options.get("clip") != 0.001)


@pytest.mark.parametrize(
    ("method", "cap"),
    [(FedAvg(combine="median"), None), (FedAvg(combine="trimmed", clip="median"), None), (FedAvg(), 0.3)],
)
def test_bounds_keep_the_contract(method, cap):
    check_method(method, replace(small_settings()[1], aggregation=Aggregation(cap=cap)))


def test_an_heir_keeps_the_contract():
    check_method(FedAvgM(combine="median", clip=0.1), small_settings()[0])


def test_fedkf_is_taught_by_the_robust_average_of_the_cache(play):
    method = FedKF(**FedKF.card.quick, combine="median")
    s = play(method, small_settings()[0], 1).states[1]
    by_hand = median([s["cache"][k] for k in sorted(s["cache"], key=int)], s["model"])
    assert equal(method.teacher(s)["teacher"], by_hand)


def test_the_pool_gives_the_same_bits():
    setting, method = small_settings()[1], FedAvg(combine="trimmed", clip="median")
    with Pool(setting, workers=2) as pool:
        assert equal(run(method, pool, 2).body, run(method, Serial(setting), 2).body)


@pytest.mark.parametrize("cls", [KDIA, FedGen, FedFTG])
def test_what_a_server_learns_from_single_models_is_clipped_too(cls, play):
    # So short that every client's model is the server's but for rounding: the heads that teach are then all alike.
    setting = small_settings()[0]
    plain, still = (play(cls(**cls.card.quick, clip=clip), setting, 1).states[1] for clip in (None, 1e-9))
    assert not equal(plain["generator"], still["generator"])
    if cls is not FedFTG:  # its server goes on from the average
        start = play(cls(**cls.card.quick), setting, 0).states[0]["model"]
        assert all(torch.allclose(still["model"][name], w, rtol=0, atol=1e-6) for name, w in start.items())


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedAvg(combine="medain"), "did you mean 'median'"),
        (lambda: FedAvg(trim=0.5), r"fedavg.trim = 0.5 must lie in \[0, 0.5\)"),
        (lambda: FedAvg(trim=0.3), "fedavg.trim has no effect without combine = 'trimmed' or 'krum'; leave it out"),
        (lambda: FedProx(combine="median", trim=0.3), "fedprox.trim has no effect without combine = 'trimmed' or"),
        (lambda: FedAvg(clip=0.0), "fedavg.clip = 0.0 must be a positive number, or 'median'"),
        (lambda: MOON(clip="mean"), "moon.clip = 'mean' is unknown; did you mean 'median'"),
        (lambda: FedDisco(combine="median"), "feddisco.combine = 'median' does not use weights"),
        (
            lambda: QFFL(combine="median"),
            "qffl.combine = 'median' would bound little: clients are weighed by the losses",
        ),
        (lambda: QFFL(clip=1.0), "qffl.clip = 1.0 would bound little"),
        (lambda: KDIA(combine="trimmed"), "kdia.combine = 'trimmed' would bound little: the teacher"),
        (lambda: FedGen(combine="median"), "fedgen.combine = 'median' would bound little: the generator"),
        (lambda: FedFTG(combine="median"), "fedftg.combine = 'median' would bound little: the fine-tuning"),
        (lambda: DaFKD(clip="median"), "dafkd.clip = 'median' would bound little: .* max_share"),
        (lambda: DaFKD(combine="median"), "dafkd.combine = 'median' would bound little: .* combine = 'krum'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(UsageError, match=sentence):
        make()


def test_where_fine_tuning_is_off_all_bounds_hold():
    assert FedFTG(iterations=0, combine="median").combine == "median"
    assert FedKF(combine="median", clip="median").clip == "median"


def test_every_default_is_the_plain_average():
    for name, cls in methods.items():
        if issubclass(cls, FedAvg):
            method = quick(cls)
            assert (method.combine, method.clip) == ("mean", None), name
