"""FedAvg from a start trained on local data: w_0 by hand, then FedAvg."""

from __future__ import annotations

import pytest
import torch

from fedalloy.base.tree import equal
from fedalloy.check.method import check_method
from fedalloy.errors import UsageError
from fedalloy.federation.core import State, quick
from fedalloy.federation.participation import Participation
from fedalloy.methods import FedAvg, FedAvgLocalStart
from fedalloy.train.fit import LocalWork, params

WORK = LocalWork(epochs=1, batch=4, lr=0.1)
FEW = {"pretrain_private": 3, "private_batch": 4, "private_patience": 9}


def test_the_start_is_the_mean_of_models_that_converged_and_is_then_averaged_as_ever(small_setting, play):
    """Two of three clients take part in round 1; the third has no say in w_0."""
    trace = Participation(policy="trace", trace=[[0, 1], [1, 2]])
    setting = small_setting([10, 30, 7], work=WORK, seed=4, participation=trace)
    method = FedAvgLocalStart(**FEW)
    played = play(method, setting, 2)
    start = {}
    for k in (0, 1):
        me = setting.client(k, 1, {})
        net = me.build()
        method.learn_own(net, me)
        start[k] = params(net)
    w_0 = {name: (10 * start[0][name] + 30 * start[1][name]) / 40 for name in start[0]}
    plain = play(FedAvg(), setting, 0)
    engine, state = plain.engine, State(0, {**plain.states[0].body, "model": w_0})
    for t in (1, 2):
        state = FedAvg().round(state, engine.open(FedAvg(), t))
        for name, value in state["model"].items():
            assert torch.allclose(played.states[t]["model"][name], value, rtol=0, atol=1e-6)
    per_epoch = {0: 3, 1: 8}  # batches of 4
    steps = [r.ledger.clients.steps for r in played.rounds]
    assert steps == [4 * sum(per_epoch.values()), 8 + 2]


def test_nobody_heard_is_no_start_and_the_next_round_tries_again(small_setting, play):
    setting = small_setting([10, 12], work=WORK, participation=Participation(late_drop=0.6), seed=1)
    played = play(FedAvgLocalStart(**FEW), setting, 4)
    silent = [len(r.lost) == 2 for r in played.rounds]
    assert silent[0]
    assert not all(silent)
    first = silent.index(False) + 1
    started = [state["started"] for state in played.states]
    assert started == [0] * first + [1] * (5 - first)
    assert equal(played.states[0]["model"], played.states[first - 1]["model"])


def test_there_is_no_start_without_training():
    with pytest.raises(UsageError, match=r"fedavg-local-start\.pretrain_private = 0 must be"):
        FedAvgLocalStart(pretrain_private=0)


def test_it_keeps_the_contract():
    check_method(quick(FedAvgLocalStart))
