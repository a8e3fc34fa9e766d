"""FedProx: the proximal pull by hand, and its two exact degenerate cases."""

from __future__ import annotations

import math

import pytest

from fedalloy.aggregation.averaging import average
from fedalloy.base.tree import equal
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message
from fedalloy.federation.gate import refusal
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Site
from fedalloy.methods import FedAvg, FedProx
from fedalloy.train.fit import LocalWork


def test_two_steps_by_hand(rows, logistic, small_setting, play):
    # x = 1, class 0, rate 0.1: w_1 = -0.05; then the gradient is sigmoid(w_1) + mu (w_1 - 0).
    data = rows([[1.0]] * 3, [0] * 3)
    work = LocalWork(work="fixed_steps", steps=2, batch=3, lr=0.1)
    setting = small_setting([], sites=[Site(data, data)], networks=[logistic], classes=2, work=work)
    expected = -0.05 - 0.1 * (1 / (1 + math.exp(0.05)) + 2.0 * -0.05)
    assert play(FedProx(mu=2.0), setting, 1).model["w"].item() == pytest.approx(expected, abs=1e-7)


def test_the_pull_is_to_the_model_received_in_this_round(rows, logistic, small_setting, play):
    data = rows([[1.0]] * 3, [0] * 3)
    work = LocalWork(work="fixed_steps", steps=2, batch=3, lr=0.1)
    setting = small_setting([], sites=[Site(data, data)], networks=[logistic], classes=2, work=work)
    played = play(FedProx(mu=2.0), setting, 2)
    start = played.states[1]["model"]["w"].item()
    once = start - 0.1 / (1 + math.exp(-start))
    twice = once - 0.1 * (1 / (1 + math.exp(-once)) + 2.0 * (once - start))
    assert played.model["w"].item() == pytest.approx(twice, abs=1e-7)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_mu_zero_is_fedavg_bit_for_bit(batch_norm, optimiser, small_setting, small, play):
    setting = small_setting(
        [5, 9, 12, 7],
        networks=[lambda: small(batch_norm=batch_norm, dropout=0.2)],
        work=LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.9, weight_decay=1e-3, optimiser=optimiser),
        participation=Participation(policy="fraction", fraction=0.5),
    )
    plain, prox, pulled = (play(m, setting, 3) for m in (FedAvg(), FedProx(mu=0.0), FedProx(mu=0.5)))
    assert [equal(a.body, b.body) for a, b in zip(plain.states, prox.states, strict=True)] == [True] * 4
    assert not equal(plain.model, pulled.model)


@pytest.mark.parametrize("mu", [0.01, 1.0, 100.0])
def test_the_first_step_is_that_of_fedavg_for_any_mu(mu, small_setting, play):
    first = small_setting([5, 9], work=LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.1))
    second = small_setting([5, 9], work=LocalWork(work="fixed_steps", steps=2, batch=4, lr=0.1))
    assert equal(play(FedProx(mu=mu), first, 1).model, play(FedAvg(), first, 1).model)
    assert not equal(play(FedProx(mu=mu), second, 1).model, play(FedAvg(), second, 1).model)


def test_a_larger_mu_keeps_clients_nearer(small_setting, play):
    setting = small_setting([30], work=LocalWork(epochs=5, batch=10, lr=0.05))
    distances = []
    for mu in (0.0, 0.1, 1.0, 5.0, 10.0):
        played = play(FedProx(mu=mu), setting, 1)
        start, end = played.states[0]["model"], played.model
        distances.append(math.sqrt(sum(float(((end[name] - start[name]) ** 2).sum()) for name in start)))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5 * distances[0]


def test_a_negative_mu_is_refused():
    with pytest.raises(UsageError, match=r"fedprox\.mu = -1 "):
        FedProx(mu=-1)


# --- stragglers -------------------------------------------------------------------------------------------------------


def half_slow(small_setting, epochs=6, **options):
    work = LocalWork(epochs=epochs, batch=4, lr=0.1)
    return small_setting([5, 9, 12, 7], work=work, participation=Participation(stragglers=0.5, **options))


def test_what_stragglers_have_done_is_averaged(small_setting, play):
    setting = half_slow(small_setting)
    played = play(FedProx(mu=0.5), setting, 1)
    late = setting.late(1, [0, 1, 2, 3])
    assert len(late) == 2
    assert min(late.values()) < 6
    (fed,) = played.rounds
    assert fed.active == {0, 1, 2, 3}
    assert fed.late == set(late)
    # Each client by itself, with as many epochs as it had: batches of 5, 4 + 5, 3 x 4 and 4 + 3 samples.
    start, models, steps = played.states[0]["model"], [], 0
    for k, per_epoch in enumerate((1, 2, 3, 2)):
        fewer = half_slow(small_setting, epochs=max(2, late.get(k, 6)))  # one epoch is no setting with stragglers
        told = {"epochs": 1} if late.get(k) == 1 else {}
        message = Message("train", k, {"model": start, **told})
        models.append(FedProx(mu=0.5).train(fewer.client(k, 1, {}), message).body["model"])
        steps += per_epoch * late.get(k, 6)
    assert equal(played.model, average(models, [5, 9, 12, 7], start))
    assert fed.ledger.clients.steps == steps


def test_fedavg_leaves_stragglers_out_and_so_can_fedprox(small_setting, play):
    setting = half_slow(small_setting)
    quick = sorted({0, 1, 2, 3} - set(setting.late(1, [0, 1, 2, 3])))
    without = small_setting(
        [5, 9, 12, 7], work=setting.work, participation=Participation(policy="trace", trace=[quick])
    )
    for left_out, plain in ((FedAvg(), FedAvg()), (FedProx(mu=0.5, stragglers="drop"), FedProx(mu=0.5))):
        played = play(left_out, setting, 1)
        assert equal(played.model, play(plain, without, 1).model)
        assert played.rounds[0].active == set(quick)
        assert played.rounds[0].late == {0, 1, 2, 3} - set(quick)


def test_a_straggler_cannot_be_told_more_epochs_than_there_are(small_setting):
    setting = half_slow(small_setting)
    me = setting.client(0, 1, {})
    contract = FedProx().accepts("train", me)
    model = Serial(setting).open(FedProx(), 1).build().state_dict()
    assert refusal({"model": dict(model), "epochs": 6}, contract) is None
    assert refusal({"model": dict(model)}, contract) is None
    for epochs in (0, 7):
        assert "epochs" in refusal({"model": dict(model), "epochs": epochs}, contract)


def test_leaving_out_stragglers_that_do_not_exist_is_refused(small_setting):
    with pytest.raises(UsageError, match=r"fedprox\.stragglers = 'drop' .*participation\.stragglers"):
        small_setting([4, 5]).check(FedProx(stragglers="drop"))
    half_slow(small_setting).check(FedProx(stragglers="drop"))
