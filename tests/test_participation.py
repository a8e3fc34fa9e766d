"""Who takes part: every policy by hand, published draws, and what happens to those who drop out."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from fedalloy.base.tree import clone, equal
from fedalloy.config.experiment import experiment
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import run
from fedalloy.federation.participation import USES_FRACTION, Participation, Policy
from fedalloy.methods import QFFL, Centralised, FedAvg, FedAvgM, FedProx, Local
from fedalloy.train.fit import LocalWork


def active(policy, clients=20, round=1, seed=0, sizes=None, by_size=False, flops=None, **options):
    chosen = Participation(policy=policy, **options)
    return chosen.active(sizes=sizes or [1] * clients, round=round, seed=seed, by_size=by_size, flops=flops)


# --- policies --------------------------------------------------------------------------------------------------------


def test_full_is_everybody():
    assert active("full", 7, round=3) == list(range(7))


@pytest.mark.parametrize(
    ("fraction", "clients", "count"),
    [(0.29, 100, 29), (0.2, 20, 4), (0.1, 3, 1), (0.01, 20, 1), (0.5, 5, 3), (1.0, 9, 9)],
)
def test_fraction_counts(fraction, clients, count):
    chosen = active("fraction", clients, fraction=fraction)
    assert len(chosen) == len(set(chosen)) == count
    assert chosen == sorted(chosen)


def test_fraction_meets_everybody_about_equally():
    met = np.zeros(10)
    for t in range(1, 501):
        met[active("fraction", 10, round=t, fraction=0.3)] += 1
    assert met.sum() == 1500
    assert met.min() > 110  # 150 expected, standard deviation 10
    assert met.max() < 190


def test_fraction_depends_on_seed_and_round_only():
    draws = {
        (seed, t): tuple(active("fraction", 50, round=t, seed=seed, fraction=0.2)) for seed in (0, 1) for t in (1, 2)
    }
    assert len(set(draws.values())) == 4
    assert tuple(active("fraction", 50, round=2, seed=1, fraction=0.2)) == draws[1, 2]
    assert tuple(active("fraction", 50, round=2, seed=1, fraction=0.2, sizes=list(range(1, 51)))) == draws[1, 2]


def test_fraction_by_size():
    sizes = [1, 1, 8]
    firsts = [active("fraction", round=t, fraction=0.1, sizes=sizes, by_size=True)[0] for t in range(1, 401)]
    assert firsts.count(2) / 400 == pytest.approx(0.8, abs=0.06)


def test_bernoulli_is_never_empty_and_has_its_mean():
    lonely = [active("bernoulli", 3, round=t, fraction=0.01) for t in range(1, 201)]
    assert min(len(ids) for ids in lonely) == 1
    assert {i for ids in lonely for i in ids} == {0, 1, 2}
    counts = [len(active("bernoulli", 50, round=t, fraction=0.4)) for t in range(1, 201)]
    assert np.mean(counts) == pytest.approx(20, abs=1)
    assert len(set(counts)) > 5  # unlike `fraction`


@pytest.mark.parametrize(("fraction", "first"), [(1.0, 0), (0.6, 8), (0.4, 12)])
def test_weakest_keeps_the_published_clients(fraction, first):
    # FedMD+Global: of 20 clients 100 % are 0..19, 60 % are 8..19, 40 % are 12..19, in every round.
    for t in (1, 2, 50):
        assert active("weakest", round=t, seed=t, fraction=fraction) == list(range(first, 20))


def test_weakest_goes_by_tier_then_id_and_is_nested():
    tiers = [2, 0, 1, 2, 0, 1]
    kept = [set(active("weakest", 6, fraction=f, tiers=tiers)) for f in (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0)]
    assert kept[0] == {3}
    assert kept[1] == {0, 3}
    assert kept[2] == {0, 3, 5}
    assert kept[4] == {0, 2, 3, 4, 5}
    assert all(a < b for a, b in pairwise(kept))


def test_trace_is_repeated_from_its_start():
    trace = [[2, 0], [1], [1, 1, 3]]
    assert [active("trace", 4, round=t, trace=trace) for t in range(1, 6)] == [[0, 2], [1], [1, 3], [0, 2], [1]]


def test_legacy_draws_are_the_published_ones():
    # FedKF's sampling: RandomState(123456), 4 of 20.
    golden = [{19, 13, 12, 9}, {6, 8, 12, 17}, {5, 3, 0, 8}, {18, 7, 14, 11}, {13, 14, 7, 10}]
    drawn = [active("legacy", round=t, seed=123456, fraction=0.2) for t in range(1, 15)]
    assert [set(ids) for ids in drawn[:5]] == golden
    assert all(ids == sorted(ids) for ids in drawn)
    assert len(set().union(*drawn[:13])) == 19
    assert len(set().union(*drawn)) == 20


def test_legacy_is_a_function_of_the_round():
    assert set(active("legacy", round=4, seed=123456, fraction=0.2)) == {18, 7, 14, 11}


# --- deadline and loss -----------------------------------------------------------------------------------------------


def test_a_deadline_drops_exactly_those_who_need_longer():
    flops, speeds = [100.0, 100.0, 300.0, 50.0], [10.0, 9.0, 30.0, 1.0]  # seconds: 10, 11.1, 10, 50
    assert active("full", 4, flops=flops, speeds=speeds, deadline=10.0) == [0, 2]
    assert active("full", 4, flops=flops, speeds=speeds, deadline=12.0) == [0, 1, 2]
    assert active("full", 4, flops=flops, speeds=speeds, deadline=1.0) == []
    assert active("trace", 4, flops=flops, speeds=speeds, deadline=12.0, trace=[[1, 3]]) == [1]


def test_a_deadline_from_the_setting(small_setting):
    # The small network does 2 (4*5 + 5*3) = 70 FLOPs forward; a step is three times that for each sample of its batch.
    work = LocalWork(epochs=2, batch=4)
    plain = small_setting([3, 8, 16], work=work)
    assert plain.flops == [210.0 * 2 * 3, 210.0 * 4 * 4, 210.0 * 8 * 4]
    slow = Participation(deadline=1.0, speeds=[1260.0, 3000.0, 1e9])
    assert small_setting([3, 8, 16], work=work, participation=slow).active(1) == [0, 2]


def test_late_drop_has_its_rate_and_its_address():
    p = Participation(late_drop=0.3)
    lost = np.array([[p.lost(client=k, round=t, seed=0) for k in range(40)] for t in range(1, 51)])
    assert lost.mean() == pytest.approx(0.3, abs=0.04)
    assert lost.mean(axis=0).max() < 0.6  # nobody is always lost
    assert p.lost(client=3, round=7, seed=0) == lost[6, 3]
    assert not any(Participation().lost(client=k, round=1, seed=0) for k in range(100))


def played(method, setting, rounds):
    engine, seen = Serial(setting), []
    state = run(method, engine, rounds, watch=lambda s, fed: seen.append((s, fed)))
    return state, engine, seen


def test_every_method_meets_the_same_clients(small_setting):
    options = Participation(policy="fraction", fraction=0.4, late_drop=0.3)
    setting = small_setting([4, 5, 6, 7, 8], work=LocalWork(batch=8), participation=options)
    met = []
    for method in (FedAvg(), FedProx(mu=0.1), FedAvgM(), QFFL(), Local()):
        met.append([(sorted(fed.active), sorted(fed.lost)) for _, fed in played(method, setting, 6)[2]])
    assert all(rounds == met[0] for rounds in met)
    assert any(lost for _, lost in met[0])
    assert len({tuple(ids) for ids, _ in met[0]}) > 1


def test_an_absent_client_sends_and_receives_nothing_and_is_left_alone(small_setting):
    everybody = small_setting([4, 5, 6])
    one = small_setting([4, 5, 6], participation=Participation(policy="trace", trace=[[1]]))
    whole = played(FedAvg(), everybody, 1)[2][0][1].ledger
    third = played(FedAvg(), one, 1)[2][0][1].ledger
    for direction in ("down", "up"):
        assert {k: 3 * v for k, v in getattr(third, direction).items()} == dict(getattr(whole, direction))

    two_then_one = small_setting([4, 5], participation=Participation(policy="trace", trace=[[0, 1], [0]]))
    engine = Serial(two_then_one)
    state = run(Local(), engine, 1)
    before = {k: clone(memory) for k, memory in engine.memories.items()}
    run(Local(), engine, 2, state)
    assert equal(engine.memories[1], before[1])
    assert not equal(engine.memories[0], before[0])


def test_a_lost_reply_was_trained_for_but_never_arrives(small_setting):
    options = Participation(late_drop=0.5)
    setting = small_setting([4, 5, 6, 7], work=LocalWork(batch=8), participation=options, seed=3)
    state, _, ((_, fed),) = played(FedAvg(), setting, 1)
    assert 0 < len(fed.lost) < 4
    arrived = sorted(set(range(4)) - fed.lost)
    assert sorted(state["cache"]) == [str(k) for k in arrived]
    assert fed.ledger.clients.steps == 4
    assert fed.ledger.down["weights"] == 4 * 4 * 43  # 43 numbers in the small network
    assert fed.ledger.up["weights"] == len(arrived) * 4 * 43
    # The average renormalises over those who arrived: the same as if only they had been asked.
    alone = small_setting(
        [4, 5, 6, 7], work=LocalWork(batch=8), participation=Participation(policy="trace", trace=[arrived]), seed=3
    )
    assert equal(played(FedAvg(), alone, 1)[0]["model"], state["model"])


def test_a_client_whose_reply_is_lost_remembers(small_setting):
    setting = small_setting([4, 5, 6, 7], participation=Participation(late_drop=0.5), seed=3)
    _, engine, ((_, fed),) = played(Local(), setting, 1)
    assert fed.lost
    assert sorted(engine.memories) == [0, 1, 2, 3]


def test_nobody_in_time_is_a_round_without_change(small_setting):
    setting = small_setting([4, 5], participation=Participation(deadline=1.0, speeds=[1.0, 1.0]))
    for method in (FedAvg(), FedAvgM(), QFFL(), Centralised()):
        engine = Serial(setting)
        start = method.init(engine.open(method, 0))
        assert equal(run(method, engine, 1).body, start)


# --- stragglers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0.0, 10, 0), (0.5, 10, 5), (0.9, 10, 9), (0.9, 4, 3), (0.5, 1, 0), (0.5, 0, 0)]
)
def test_the_share_of_stragglers(share, clients, count):
    late = Participation(stragglers=share).late(range(clients), epochs=20, round=1, seed=0)
    assert len(late) == count  # at least one client has all its time
    assert list(late) == sorted(late)


def test_stragglers_depend_on_seed_and_round_and_have_any_number_of_epochs():
    slow = Participation(stragglers=0.9)
    draws = [slow.late([3, 5, 8, 9], epochs=4, round=t, seed=0) for t in range(1, 201)]
    assert draws[:2] == [slow.late([3, 5, 8, 9], epochs=4, round=t, seed=0) for t in (1, 2)]
    assert draws[0] != slow.late([3, 5, 8, 9], epochs=4, round=1, seed=1)
    told = np.bincount([epochs for late in draws for epochs in late.values()], minlength=5)
    assert told[0] == 0
    assert told[1:].sum() == 600
    assert all(110 < n < 190 for n in told[1:])  # 150 expected, standard deviation 11
    met = np.bincount([k for late in draws for k in late])[[3, 5, 8, 9]]
    assert all(120 < n < 180 for n in met)


@pytest.mark.parametrize("work", [LocalWork(epochs=1), LocalWork(work="fixed_steps", epochs=3)])
def test_stragglers_need_epochs(work, small_setting):
    with pytest.raises(UsageError, match=r"participation\.stragglers = 0\.5 .* training\."):
        small_setting([4, 5], work=work, participation=Participation(stragglers=0.5))


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fraction": 0.0}, r"participation\.fraction = 0\.0 must"),
        ({"fraction": 20}, r"participation\.fraction = 20 must"),
        ({"late_drop": 1.0}, r"participation\.late_drop = 1\.0 must"),
        ({"deadline": 5.0}, r"participation\.deadline .* and participation\.speeds .* go together"),
        ({"speeds": [1.0]}, r"participation\.deadline .* and participation\.speeds .* go together"),
        ({"policy": "trace"}, r"participation\.policy = 'trace' and a non-empty participation\.trace go together"),
        ({"trace": [[0]]}, r"participation\.policy = 'trace' and a non-empty participation\.trace go together"),
        (
            {"fraction": 0.5},
            r'participation\.fraction has no effect with policy = "full"; write participation\.policy = "fraction", or '
            r"leave fraction at 1\.0",
        ),
        ({"policy": "trace", "trace": [[0]], "fraction": 0.5}, r'fraction has no effect with policy = "trace"'),
    ],
)
def test_impossible_values_are_refused_in_a_sentence(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        Participation(**options)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_each_policy_takes_its_own_options_and_every_default(policy):
    options = {"trace": [[0]]} if policy == "trace" else {}
    Participation(policy=policy, fraction=1.0, tiers=None, late_drop=0.1, deadline=1.0, speeds=[1.0], **options)
    if policy in USES_FRACTION:
        Participation(policy=policy, fraction=0.5, **options)
    else:
        with pytest.raises(UsageError, match="fraction has no effect"):
            Participation(policy=policy, fraction=0.5, **options)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_tiers_need_the_weakest_policy_or_networks_by_tier(policy):
    options = {"policy": policy, "tiers": [0, 1], **({"trace": [[0]]} if policy == "trace" else {})}
    experiment({"participation": options, "models": [{"name": "mlp", "tier": 0}, {"name": "mlp"}]})
    if policy == "weakest":
        experiment({"participation": options})
    else:
        with pytest.raises(UsageError, match=f'tiers has no effect with policy = "{policy}"'):
            experiment({"participation": options})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"deadline": 1.0, "speeds": [1.0]}, r"participation\.speeds has 1 entries for 2 clients; give one each"),
        ({"deadline": 1.0, "speeds": [1.0, 0.0]}, r"participation\.speeds\[1\] = 0\.0 must"),
        ({"policy": "weakest", "tiers": [1, 2, 3]}, r"participation\.tiers has 3 entries for 2 clients; give one each"),
        ({"policy": "trace", "trace": [[0], [2]]}, r"participation\.trace names client 2; ids run from 0 to 1"),
    ],
)
def test_lists_that_do_not_fit_the_clients_are_refused(options, sentence, small_setting):
    with pytest.raises(UsageError, match=sentence):
        small_setting([4, 5], participation=Participation(**options))
