"""FedAvg: the weighted mean by hand, on a fake federation and with real gradients on one weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.tree import equal
from fedalloy.federation.core import State, initial
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Site, pooled
from fedalloy.methods import FedAvg
from fedalloy.train.fit import LocalWork, params

FULL_BATCH_STEP = LocalWork(work="fixed_steps", steps=1, batch=100, lr=0.1)


def close(a, b, tolerance=1e-6):
    return all(torch.allclose(a[name], b[name], rtol=0, atol=tolerance) for name in a)


@pytest.fixture
def two_clients(rows, logistic, small_setting):
    """Client 0 has x = 2 of class 1, client 1 has three times x = 1 of class 0; the weight starts at 0."""
    one, three = rows([[2.0]], [1]), rows([[1.0]] * 3, [0] * 3)
    sites = [Site(one, one), Site(three, three)]
    return small_setting([], sites=sites, networks=[logistic], classes=2, work=FULL_BATCH_STEP)


def test_one_round_by_hand(two_clients, play):
    # One step of 0.1 from w = 0: client 0 has the gradient -1, so w_0 = 0.1; client 1 has 1/2, so w_1 = -0.05.
    by_size, uniform = (
        play(FedAvg(aggregation=Aggregation(weights=w)), two_clients, 1).model["w"].item() for w in ("size", "uniform")
    )
    assert by_size == pytest.approx((1 * 0.1 + 3 * -0.05) / 4, abs=1e-8)
    assert uniform == pytest.approx(0.025, abs=1e-8)


def test_two_rounds_by_hand(two_clients, play):
    w = -0.0125
    p = torch.sigmoid(torch.tensor([2 * w, w], dtype=torch.float64))
    w_0, w_1 = w + 0.1 * 2 * (1 - p[0].item()), w - 0.1 * p[1].item()
    assert play(FedAvg(), two_clients, 2).model["w"].item() == pytest.approx((w_0 + 3 * w_1) / 4, abs=1e-7)


def test_the_server_sends_its_model_and_asks_for_one_training(fake, scalar):
    fed = fake({1: {"model": scalar(2.0), "n": 4}})
    FedAvg().round(State(0, {"model": scalar(7.0), "cache": {}}), fed)
    assert fed.asked == [("train", [1], {"model": scalar(7.0)})]


def test_one_client_is_returned_bit_for_bit(small_setting, small, play):
    setting = small_setting([7, 9], networks=[small], participation=Participation(policy="trace", trace=[[1]]))
    played = play(FedAvg(), setting, 1)
    assert equal(played.model, played.states[-1]["cache"]["1"])
    assert not equal(played.model, played.states[0]["model"])


def test_equal_sizes_give_the_plain_mean(fake, scalar):
    replies = {0: {"model": scalar(1.0), "n": 6}, 1: {"model": scalar(4.0), "n": 6}}
    for weights in ("size", "uniform"):
        s = FedAvg(aggregation=Aggregation(weights=weights)).round(
            State(0, {"model": scalar(0.0), "cache": {}}), fake(replies)
        )
        assert s["model"]["w"].item() == 2.5


def test_identical_clients_give_their_model(fake, scalar):
    replies = {k: {"model": scalar(0.1), "n": n} for k, n in enumerate((3, 5, 11))}
    s = FedAvg().round(State(0, {"model": scalar(0.0), "cache": {}}), fake(replies))
    assert s["model"]["w"].item() == pytest.approx(0.1, abs=1e-15)


def test_one_full_batch_step_of_everybody_is_one_centralised_step(small_setting, small, play):
    setting = small_setting([3, 5, 9], work=FULL_BATCH_STEP)
    net = initial(small, setting.seed)
    data = pooled([site.train for site in setting.sites])
    F.cross_entropy(net(data.inputs), data.labels).backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
    assert close(play(FedAvg(), setting, 1).model, params(net))


def test_who_holds_which_data_does_not_matter(small_setting, random_sites, play):
    work = LocalWork(work="fixed_steps", steps=3, batch=100, lr=0.1)  # full batches, because an order has an address
    sites = random_sites([3, 5, 9])
    one = play(FedAvg(), small_setting([], sites=sites, work=work), 3)
    other = play(FedAvg(), small_setting([], sites=[sites[2], sites[0], sites[1]], work=work), 3)
    assert close(one.model, other.model)


def test_a_round_without_replies_keeps_the_model(small_setting, play):
    setting = small_setting([4, 4], participation=Participation(policy="trace", trace=[[0], []]))
    played = play(FedAvg(), setting, 2)
    assert played.states[2].round == 2
    assert equal(played.states[2].body, played.states[1].body)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(small_setting, small, play):
    def model(seed):
        return play(FedAvg(), small_setting([8, 8], seed=seed, networks=[lambda: small(dropout=0.5)]), 2).model

    assert equal(model(1), model(1))
    assert not equal(model(1), model(2))
