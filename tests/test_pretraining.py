"""Pre-training: the stopping rule epoch by epoch, what is held out, and clients too small to hold anything out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedalloy.knowledge.pretraining as module
from fedalloy.base.tree import equal
from fedalloy.check.probe import global_streams
from fedalloy.data.samples import Samples
from fedalloy.federation.core import Client
from fedalloy.knowledge.pretraining import rounds_until_converged, train_until_converged
from fedalloy.train.fit import LocalWork, load, params
from fedalloy.train.losses import ce

HOW = {"epochs": 20, "batch": 4, "patience": 3, "min_delta": 0.005, "held_out": 0.2}


@pytest.fixture
def client(small_setting, small):
    def make(n, *, round=1, network=small, **work):
        return small_setting([n], networks=[network], work=LocalWork(**{"lr": 0.1, **work})).client(0, round, {})

    return make


def pretrain(me, **how):
    net = me.build()
    done = train_until_converged(net, me, me.train, lambda x, y: ce(net(x), y), **{**HOW, **how})
    return net, done


@pytest.fixture
def scripted(monkeypatch):
    """Let the trials after each epoch end as written, and note the weights they were made with."""

    def script(*trials):
        seen, left = [], list(trials)
        monkeypatch.setattr(module, "_trial", lambda net, me, aside: (seen.append(params(net)), left.pop(0))[1])
        return seen

    return script


def test_it_stops_after_patience_and_keeps_the_best_weights(client, scripted):
    seen = scripted((0.5, 0), (0.6, 0), (0.604, 0), (0.603, 0), (0.6, 0), (1.0, 0))
    net, done = pretrain(client(20))
    # The last rise by more than 0.005 is that of epoch 2; epochs 3, 4 and 5 bring none.
    assert done == len(seen) == 5
    assert equal(params(net), seen[2])


def test_slow_gains_do_not_add_up_to_a_rise_of_a_single_epoch_but_do_from_the_last_rise(client, scripted):
    seen = scripted((0.500, 0), (0.503, 0), (0.506, 0), (0.506, 0), (0.506, 0), (0.506, 0), (0.9, 0))
    net, done = pretrain(client(20))
    assert done == 6  # 0.506 is more than 0.005 above 0.500, so that epoch 3 is a rise
    assert equal(params(net), seen[2])


def test_equal_accuracies_are_decided_by_the_loss_and_then_the_earlier_stays(client, scripted):
    seen = scripted((0.5, -0.9), (0.5, -0.7), (0.5, -0.8), (0.5, -0.7))
    net, done = pretrain(client(20))
    assert done == 4
    assert equal(params(net), seen[1])


def test_it_never_goes_beyond_epochs(client, scripted):
    scripted((0.1, 0), (0.2, 0), (0.3, 0))
    assert pretrain(client(20), epochs=3)[1] == 3


def test_no_epochs_change_nothing(client):
    me = client(20)
    net, done = pretrain(me, epochs=0)
    assert done == me.meter.steps == 0
    assert equal(params(net), params(me.build()))


@pytest.mark.parametrize(("n", "held"), [(20, 4), (19, 3), (5, 1), (4, 0)])
def test_held_out_samples_are_rounded_down_and_never_trained_on(n, held, client):
    me, seen = client(n), set()
    net = me.build()

    def loss(x, y):
        seen.update(map(tuple, x.tolist()))
        return ce(net(x), y)

    train_until_converged(net, me, me.train, loss, **HOW)
    assert len(seen) == n - held


@pytest.mark.parametrize(("n", "done"), [(19, 20), (20, 3)])
def test_few_held_out_samples_decide_nothing(n, done, client, scripted):
    """A fifth of 19 samples is 3, fewer than 4: all are trained on, for all epochs."""
    seen = scripted(*[(0.5, 0)] * 20)
    net, epochs = pretrain(client(n), least=4, patience=2)
    assert epochs == done
    assert len(seen) == (3 if n == 20 else 0)
    if n == 19:
        assert equal(params(net), params(pretrain(client(n), held_out=0.0)[0]))


def test_by_training_accuracy_all_are_trained_on_and_the_last_weights_kept(client, scripted):
    seen = scripted((0.5, 0), (0.9, 0), (0.9, 0), (0.1, 0), (0.1, 0))
    net, done = pretrain(client(20), by="training")
    assert done == len(seen) == 5
    assert equal(params(net), seen[-1])
    assert equal(params(net), params(pretrain(client(20), held_out=0.0, epochs=5)[0]))


def test_training_accuracy_is_that_of_the_samples_it_trains_on(client, monkeypatch):
    judged = []
    monkeypatch.setattr(module, "_trial", lambda net, me, samples: (judged.append(len(samples)), (1.0, 0))[1])
    pretrain(client(20), by="training", epochs=2)
    assert judged == [20, 20]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_client_too_small_to_hold_anything_out_does_all_epochs(n, client, small):
    me = client(n, network=lambda: small(batch_norm=True))
    net, done = pretrain(me, epochs=7)
    assert (done, me.meter.steps) == (7, 7)
    assert all(t.isfinite().all() for t in params(net).values())
    assert not torch.equal(net.out.weight, me.build().out.weight)
    if n == 1:  # one sample has no variance
        assert torch.equal(net.norm.running_mean, torch.zeros(5))


def test_the_optimiser_is_one_for_all_epochs_at_the_rate_of_round_one(client):
    """One sample: each epoch is one step on it, so that plain SGD with momentum must be met."""
    me = client(1, round=9, momentum=0.9, lr_decay=0.1)
    net, _ = pretrain(me, epochs=4)
    plain = me.build()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        sgd.zero_grad()
        ce(plain(me.train.inputs), me.train.labels).backward()
        sgd.step()
    for name, p in plain.named_parameters():
        torch.testing.assert_close(params(net)[name], p.detach())


def test_what_can_be_learned_is_learned_and_then_it_stops(client):
    me = client(40, lr=0.5)
    labels = (me.train.x[:, 0] > 0).long()
    me = replace(me, train=replace(me.train, y=labels))
    net, done = pretrain(me, epochs=60)
    assert 3 < done < 60
    assert (net(me.train.inputs).argmax(1) == me.train.labels).double().mean() > 0.8


def test_trials_are_not_counted_as_passes(client):
    me = client(20)
    _, done = pretrain(me)
    assert me.meter.forward == me.meter.backward == me.meter.steps == done * 4  # 16 samples in batches of 4


def test_epochs_have_orders_of_their_own_and_no_global_stream_is_drawn_from(client):
    me, orders = client(4), []
    net = me.build()

    def loss(x, y):
        orders.append(tuple(x[:, 0].tolist()))
        return ce(net(x), y)

    before = global_streams()
    train_until_converged(net, me, me.train, loss, **HOW)
    assert global_streams() == before
    assert len(set(orders)) > 3
    again, _ = pretrain(client(4))
    assert equal(params(again), params(net))


def test_a_client_with_class_weights_stops_by_them():
    """Accuracy would take the model that never finds the rare class, with one tenth of the samples."""
    x = torch.cat([torch.zeros(48, 1), torch.ones(32, 1)])
    mine = Samples(x, torch.tensor([0] * 72 + [1] * 8), torch.arange(80))
    never = {"weight": torch.zeros(2, 1), "bias": torch.tensor([1.0, 0.0])}
    finds = {"weight": torch.tensor([[0.0], [5.0]]), "bias": torch.tensor([1.0, 0.0])}  # and 24 of 72 false alarms

    def rounds(**work):
        me = Client(0, 1, 0, mine, classes=2, work=LocalWork(**work), steps=1, network=lambda: nn.Linear(1, 2))
        models = {1: never}
        return rounds_until_converged(me, lambda c, _: models.get(c.round, finds), patience=2, held_out=0.5)

    assert rounds() == 1
    assert rounds(class_weights="balanced") > 1


def test_between_equal_scores_the_lower_loss_is_kept():
    x = torch.tensor([[-1.0], [1.0]] * 5)
    mine = Samples(x, torch.tensor([0, 1] * 5), torch.arange(10))
    me = Client(0, 1, 0, mine, classes=2, work=LocalWork(), steps=1, network=lambda: nn.Linear(1, 2))
    unsure, sure = (module._trial(load(me.build(), {
        "weight": torch.tensor([[-w], [w]]), "bias": torch.zeros(2)
    }), me, mine) for w in (0.1, 2.0))  # fmt: skip
    assert unsure[0] == sure[0] == 1.0
    assert sure > unsure


def test_the_standard_error_of_a_weighted_score_is_that_of_fewer_samples(monkeypatch):
    """A point below the best by 0.07: more than the error of 0.9 on 40 samples, less than that on the rare ones."""
    mine = Samples(torch.zeros(80, 1), torch.tensor([0] * 72 + [1] * 8), torch.arange(80))

    def rounds(**work):
        left = [0.9, 0.83, 0.83]
        monkeypatch.setattr(module, "_trial", lambda *_: (left.pop(0), 0.0))
        me = Client(0, 1, 0, mine, classes=2, work=LocalWork(**work), steps=1, network=lambda: nn.Linear(1, 2))
        return rounds_until_converged(me, lambda c, weights: weights, patience=2, held_out=0.5)

    assert (rounds(), rounds(class_weights="balanced")) == (1, 3)
