"""Adam with kept moments: an interrupted optimiser goes on to the bits of one that was not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedalloy.base.tree import check, decode, encode, equal
from fedalloy.train.fit import FlatSGD, LocalWork, optimiser_state
from fedalloy.train.optimisers import adam, kept_moments


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def step(net, optimiser, number):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
    optimiser.zero_grad()
    net(x).square().sum().backward()
    optimiser.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("before", [1, 3])
def test_kept_moments_go_on_to_the_same_bits(weight_decay, before):
    whole, parts = network(), network()
    optimiser = adam(whole.parameters(), 0.01, weight_decay)
    for number in range(before + 2):
        step(whole, optimiser, number)

    first = adam(parts.parameters(), 0.01, weight_decay)
    for number in range(before):
        step(parts, first, number)
    moments = decode(encode(kept_moments(first)))  # a message and a checkpoint are bytes
    restored = network()
    restored.load_state_dict(parts.state_dict())
    second = adam(restored.parameters(), 0.01, weight_decay, moments)
    for number in range(before, before + 2):
        step(restored, second, number)
    assert equal(whole.state_dict(), restored.state_dict())
    assert equal(kept_moments(optimiser), kept_moments(second))

    forgetful = adam(parts.parameters(), 0.01, weight_decay)
    step(parts, forgetful, before)
    assert not equal(kept_moments(forgetful), kept_moments(optimiser))


def test_the_first_step_by_hand():
    # m = 0.1 g and v = 0.001 g^2; with the bias corrected the step is the rate, whatever g.
    weight = nn.Parameter(torch.tensor([1.0]))
    optimiser = adam([weight], lr=0.25)
    weight.grad = torch.tensor([3.0])
    optimiser.step()
    assert weight.item() == pytest.approx(0.75, abs=1e-6)
    (entry,) = kept_moments(optimiser).values()
    assert entry["exp_avg"].item() == pytest.approx(0.3)
    assert entry["exp_avg_sq"].item() == pytest.approx(0.009)
    assert entry["step"].item() == 1


def test_moments_are_a_tree_of_copies():
    net = network()
    optimiser = adam(net.parameters(), 0.01)
    assert kept_moments(optimiser) == {}
    step(net, optimiser, 0)
    moments = kept_moments(optimiser)
    check(moments)
    kept = encode(moments)
    step(net, optimiser, 1)
    assert encode(moments) == kept  # neither does the one optimiser write into them
    again = adam(net.parameters(), 0.01, moments=moments)
    step(net, again, 2)
    assert encode(moments) == kept  # nor the next


def test_a_parameter_without_a_gradient_has_no_moments():
    used, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimiser = adam([idle, used], 0.1)
    used.grad = torch.ones(2)
    optimiser.step()
    moments = kept_moments(optimiser)
    assert list(moments) == ["1"]
    again = adam([idle, used], 0.1, moments=moments)
    assert used in again.state
    assert idle not in again.state


@pytest.mark.parametrize("gaps", [False, True], ids=["one vector", "torch's own"])
@pytest.mark.parametrize("work", [{"momentum": 0.9, "weight_decay": 0.01}, {"optimiser": "adam"}], ids=str)
def test_any_state_goes_on_to_the_same_bits(work, gaps, monkeypatch):
    if gaps:  # as if the parameters did not fit into one vector
        monkeypatch.setattr(FlatSGD, "fits", lambda parameters: False)
    local = LocalWork(lr=0.05, **work)
    whole, parts = network(), network()
    optimiser, first = local.optimiser_for(whole, 1), local.optimiser_for(parts, 1)
    for number in range(4):
        step(whole, optimiser, number)
    for number in range(2):
        step(parts, first, number)
    kept = encode(optimiser_state(first))
    restored = network()
    restored.load_state_dict(parts.state_dict())
    second = local.optimiser_for(restored, 1, decode(kept))
    for number in (2, 3):
        step(restored, second, number)
    assert equal(whole.state_dict(), restored.state_dict())
    assert equal(optimiser_state(optimiser), optimiser_state(second))
    assert not equal(decode(kept), optimiser_state(second))


def test_sgd_without_momentum_has_no_state():
    net = network()
    sgd = LocalWork(lr=0.1).optimiser_for(net, 1)
    step(net, sgd, 0)
    assert optimiser_state(sgd) == {}
    found = [LocalWork(**work).has_state for work in ({}, {"momentum": 0.5}, {"optimiser": "adam"})]
    assert found == [False, True, True]
