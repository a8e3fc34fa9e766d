"""Local: every client alone, nothing on the wire, for the rounds of a comparison or until it has converged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedalloy.base import rng
from fedalloy.base.tree import equal
from fedalloy.errors import UsageError
from fedalloy.federation.core import initial
from fedalloy.federation.participation import Participation
from fedalloy.knowledge import pretraining
from fedalloy.methods import Local, LocalConverged
from fedalloy.train.fit import LocalWork, batches, params

WORK = LocalWork(epochs=1, batch=4, lr=0.1)


def plain_sgd(net, data, seed, round, client, stage="batches", steps=3):
    order = rng.generator(seed, stage, round, client)
    for positions in batches(len(data), 4, steps, order):
        net.zero_grad()
        x, y = data.take(positions)
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad


def test_it_is_plain_local_sgd(small_setting, small, play):
    setting = small_setting([10, 12], work=WORK, seed=5)
    memories = play(Local(), setting, 2).engine.memories
    for k in (0, 1):
        net = initial(small, 5)
        for t in (1, 2):
            plain_sgd(net, setting.sites[k].train, 5, t, k)
        assert all(torch.allclose(memories[k]["model"][n], p, rtol=0, atol=1e-6) for n, p in net.named_parameters())


def test_a_second_phase_doubles_the_steps_in_an_order_of_its_own(small_setting, small, play):
    setting = small_setting([10, 12], work=WORK, seed=5)
    one, two = (play(Local(second_phase=p), setting, 1) for p in (0, 1))
    assert one.rounds[0].ledger.clients.steps == 6
    assert two.rounds[0].ledger.clients.steps == 12
    net = initial(small, 5)
    plain_sgd(net, setting.sites[0].train, 5, 1, 0)
    plain_sgd(net, setting.sites[0].train, 5, 1, 0, stage="second phase")
    model = two.engine.memories[0]["model"]
    assert all(torch.allclose(model[n], p, rtol=0, atol=1e-6) for n, p in net.named_parameters())


@pytest.mark.parametrize(("epochs", "second", "steps"), [(1, 2, 9), (2, 1, 9), (3, 3, 18)])
def test_a_second_phase_is_counted_in_passes(epochs, second, steps, small_setting, play):
    setting = small_setting([10], work=LocalWork(epochs=epochs, batch=4))
    assert play(Local(second_phase=second), setting, 1).rounds[0].ledger.clients.steps == steps


def test_a_client_is_the_same_alone_and_among_others(small_setting, small, play):
    def memories(participation):
        # Dropout draws from torch's global stream, which the others would shift if it had no address.
        nets = [lambda: small(batch_norm=True, dropout=0.5)]
        setting = small_setting([10, 12, 7], networks=nets, work=WORK, participation=participation)
        return play(Local(second_phase=1), setting, 3).engine.memories

    together, alone = memories(Participation()), memories(Participation(policy="trace", trace=[[1]]))
    assert list(alone) == [1]
    assert equal(alone[1], together[1])


def test_nothing_travels(small_setting, play):
    for r in play(Local(), small_setting([10, 12], work=WORK), 2).rounds:
        assert (sum(r.ledger.down.values()), sum(r.ledger.up.values())) == (0, 0)
        assert r.ledger.clients.steps == 6


def test_the_server_knows_nothing_and_the_personal_model_is_the_clients(small_setting, play):
    setting = small_setting([10, 12], work=WORK)
    played = play(Local(), setting, 2)
    assert played.states[-1].body == {}
    assert Local().models(played.states[-1]) == {}
    me = setting.client(1, 2, played.engine.memories[1])
    assert equal(Local().personal(me), played.engine.memories[1]["model"])


def test_before_its_first_round_a_client_has_the_common_start(small_setting, small):
    setting = small_setting([10, 12])
    start = params(initial(small, 0))
    assert all(equal(Local().personal(setting.client(k, 1, {})), start) for k in (0, 1))


def test_clients_may_have_different_networks(small_setting, small, play):
    setting = small_setting([10, 12], work=WORK, networks=[small, lambda: small(batch_norm=True)])
    setting.check(Local())
    memories = play(Local(), setting, 1).engine.memories
    assert set(memories[1]["model"]) - set(memories[0]["model"]) >= {"norm.weight", "norm.running_mean"}


def test_a_negative_second_phase_is_refused():
    with pytest.raises(UsageError, match=r"local\.second_phase = -1"):
        Local(second_phase=-1)


@pytest.fixture
def scripted(monkeypatch):
    """Let the trials after each round of local work have these accuracies."""

    def script(*accuracies):
        left = list(accuracies)
        monkeypatch.setattr(pretraining, "_trial", lambda net, me, aside: (left.pop(0), 0.0))
        return left

    return script


@pytest.mark.parametrize(
    ("work", "searched", "retrained"),
    [
        ({"epochs": 2}, 6, 10),  # 10 samples make 3 batches of 4 or fewer, 20 make 5
        ({"work": "fixed_steps", "steps": 7}, 7, 7),
        ({"work": "equal_steps", "epochs": 2}, 10, 10),
    ],
)
def test_it_is_local_training_up_to_the_last_round_as_good_as_the_best(
    work, searched, retrained, small_setting, small, play, scripted
):
    # Ten of twenty samples are held out: one standard error of 0.6 is sqrt(0.24 / 10) = 0.155.
    left = scripted(0.3, 0.6, 0.5, 0.4, 0.6, 0.6)
    work = LocalWork(batch=4, momentum=0.9, lr_decay=0.9, **work)
    setting = small_setting([20], networks=[lambda: small(batch_norm=True, dropout=0.5)], work=work, seed=5)
    played = play(LocalConverged(patience=3, held_out=0.5), setting, 1)
    assert len(left) == 1  # round 2 was the best; 3, 4 and 5 were no better, and 5 is the last within the error
    assert played.rounds[0].ledger.clients.steps == 5 * (searched + retrained)
    assert equal(played.engine.memories[0], play(Local(), setting, 5).engine.memories[0])


def test_a_round_that_is_clearly_worse_is_left_out(small_setting, play, scripted):
    scripted(0.3, 0.9, 0.5, 0.4)
    played = play(LocalConverged(patience=2, held_out=0.5), small_setting([20], work=WORK), 1)
    assert played.rounds[0].ledger.clients.steps == 4 * 3 + 2 * 5


def test_it_trains_on_as_long_as_it_helps(small_setting, play, scripted):
    scripted(*(0.001 * t for t in range(150)), *[0.149] * 2)
    played = play(LocalConverged(patience=2, held_out=0.5), small_setting([20], work=WORK), 1)
    assert played.rounds[0].ledger.clients.steps == 152 * (3 + 5)


def test_a_client_that_can_hold_nothing_out_trains_for_as_many_rounds_as_it_has_patience(small_setting, play):
    setting = small_setting([4], work=WORK)
    played = play(LocalConverged(patience=7, held_out=0.2), setting, 1)
    assert played.rounds[0].ledger.clients.steps == 7
    assert equal(played.engine.memories[0], play(Local(), setting, 7).engine.memories[0])


def test_all_clients_train_once_whoever_takes_part(small_setting, play):
    setting = small_setting([10, 12, 7], work=WORK, participation=Participation(policy="trace", trace=[[1], [2]]))
    played = play(LocalConverged(patience=2), setting, 2)
    assert sorted(played.engine.memories) == [0, 1, 2]
    assert [r.ledger.clients.steps > 0 for r in played.rounds] == [True, False]
    assert all(sum(r.ledger.down.values()) + sum(r.ledger.up.values()) == 0 for r in played.rounds)


@pytest.mark.parametrize(("option", "value"), [("patience", 0), ("held_out", 0.0), ("held_out", 1.0)])
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(UsageError, match=rf"local-converged\.{option} = {value}"):
        LocalConverged(**{option: value})
