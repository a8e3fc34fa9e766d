"""FedAvgM: its three forms by hand, their limits, and what has no velocity."""

from __future__ import annotations

import pytest
import torch

from fedalloy.base.tree import equal
from fedalloy.errors import UsageError
from fedalloy.federation.core import State
from fedalloy.methods import FedAvg, FedAvgM
from fedalloy.train.fit import LocalWork


def steps(method, averages, fake, scalar, start=1.0):
    """The model and the velocity after each of these averages."""
    state = State(0, {**method.init(fake({})), "model": scalar(start)})
    seen = []
    for mean in averages:
        mean = mean(state["model"]["w"].item()) if callable(mean) else mean
        state = method.round(state, fake({0: {"model": scalar(mean), "n": 5}}, round=state.round + 1))
        seen.append((state["model"]["w"].item(), state["velocity"]["w"].item()))
    return seen


# beta = 0.9 and w_0 = 1, by hand; D is the model before a round minus the average, and each row (w, v) after a round.
# heavy ball: D = .6, .1, -.34: v = .6, .64, .236 and w = w - v.
# Nesterov: v = .6, then D = -.14 - .3 = -.44: v = .1; D = .21 - .1 = .11: v = .2; and w = w - (.9 v + D).
# ema: v = .06, then D = .94 - .9: v = .058; D = .882 - .682: v = .0722; and w = w - v.
VECTORS = {
    "heavy_ball": ([0.4, 0.3, 0.1], [(0.4, 0.6), (-0.24, 0.64), (-0.476, 0.236)]),
    "nesterov": ([0.4, 0.3, 0.1], [(-0.14, 0.6), (0.21, 0.1), (-0.08, 0.2)]),
    "ema": ([0.4, 0.9, 0.682], [(0.94, 0.06), (0.882, 0.058), (0.8098, 0.0722)]),
}
FORMS = list(VECTORS)


@pytest.mark.parametrize("form", FORMS)
def test_three_rounds_by_hand(form, fake, scalar):
    averages, expected = VECTORS[form]
    seen = steps(FedAvgM(momentum=0.9, form=form), averages, fake, scalar)
    assert [number for row in seen for number in row] == pytest.approx([n for row in expected for n in row], abs=1e-12)


def test_nesterov_is_torchs(fake, scalar):
    averages = [0.4, -0.2, 0.9, 0.35]
    seen = steps(FedAvgM(momentum=0.7, form="nesterov", server_lr=0.5), averages, fake, scalar)
    w = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    sgd = torch.optim.SGD([w], lr=0.5, momentum=0.7, nesterov=True)
    for mean, (ours, _) in zip(averages, seen, strict=True):
        w.grad = w.detach() - mean
        sgd.step()
        assert ours == pytest.approx(w.item(), abs=1e-12)


def test_whose_form():
    assert FedAvgM(variant="kdia", form="heavy_ball").form == "heavy_ball"
    with pytest.raises(UsageError, match=r"fedavgm\.server_lr has no effect without form = "):
        FedAvgM(variant="kdia", server_lr=0.5)


def test_the_server_rate_scales_the_step_and_not_the_velocity(fake, scalar):
    (w, v), _ = steps(FedAvgM(momentum=0.9, server_lr=0.5), [0.4, 0.4], fake, scalar)
    assert (w, v) == pytest.approx((0.7, 0.6), abs=1e-12)


@pytest.mark.parametrize(("form", "limit"), [("heavy_ball", 10.0), ("nesterov", 10.0), ("ema", 1.0)])
def test_a_constant_update_has_a_limit(form, limit, fake, scalar):
    d = 0.03
    seen = steps(FedAvgM(momentum=0.9, form=form), [lambda w: w - d] * 300, fake, scalar)
    velocities = [v for _, v in seen]
    assert velocities[-1] == pytest.approx(limit * d, rel=1e-9)
    assert velocities[:50] == sorted(velocities[:50])
    assert seen[-2][0] - seen[-1][0] == pytest.approx(limit * d, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_without_momentum_it_is_fedavg(form, small_setting, play):
    setting = small_setting([5, 9], work=LocalWork(batch=4, lr=0.1))
    ours, plain = play(FedAvgM(momentum=0.0, form=form), setting, 3), play(FedAvg(), setting, 3)
    for name, tensor in plain.model.items():
        assert torch.allclose(ours.model[name], tensor, rtol=0, atol=1e-6)


def test_momentum_changes_the_second_round_and_not_the_first(small_setting, play):
    setting = small_setting([5, 9], work=LocalWork(batch=4, lr=0.1))
    ours, plain = play(FedAvgM(), setting, 2).states, play(FedAvg(), setting, 2).states
    assert all(torch.allclose(ours[1]["model"][k], v, rtol=0, atol=1e-6) for k, v in plain[1]["model"].items())
    assert not all(torch.allclose(ours[2]["model"][k], v, rtol=0, atol=1e-4) for k, v in plain[2]["model"].items())


def test_buffers_have_no_velocity_and_are_plainly_averaged(small_setting, small, play):
    setting = small_setting([6, 10], networks=[lambda: small(batch_norm=True)], work=LocalWork(batch=5, lr=0.1))
    played = play(FedAvgM(), setting, 4)
    trainable = {name for name, _ in small(batch_norm=True).named_parameters()}
    assert set(played.states[-1]["velocity"]) == trainable
    # Whatever the weights did, the last round's statistics are the plain average of what the clients sent.
    cache = played.states[-1]["cache"]
    for name in ("norm.running_mean", "norm.running_var"):
        mean = (6 * cache["0"][name].double() + 10 * cache["1"][name].double()) / 16
        assert torch.allclose(played.model[name].double(), mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_running_variances_never_become_negative(form, fake, small):
    def model(variance):
        return {**small(batch_norm=True).state_dict(), "norm.running_var": torch.full((5,), variance)}

    method = FedAvgM(momentum=0.9, form=form)

    def network():
        return small(batch_norm=True)

    state = State(0, {**method.init(fake({}, network=network)), "model": model(10.0)})
    for variance in (1.0, 0.1, 0.1, 0.1):  # a velocity would carry 10 -> 1 on to below zero
        state = method.round(state, fake({0: {"model": model(variance), "n": 1}}, network=network))
        assert torch.equal(state["model"]["norm.running_var"], torch.full((5,), variance))


def test_a_lost_round_keeps_model_and_velocity(fake, scalar):
    method = FedAvgM()
    state = method.round(
        State(0, {**method.init(fake({})), "model": scalar(1.0)}), fake({0: {"model": scalar(0.4), "n": 1}})
    )
    assert equal(method.round(state, fake({})).body, state.body)


@pytest.mark.parametrize("momentum", [1.0, 1.5, -0.1])
def test_a_momentum_with_which_the_model_stands_still_is_refused(momentum):
    with pytest.raises(UsageError, match=r"fedavgm\.momentum = "):
        FedAvgM(momentum=momentum, form="ema")


def test_a_server_rate_of_zero_is_refused():
    with pytest.raises(UsageError, match=r"fedavgm\.server_lr = 0 "):
        FedAvgM(server_lr=0)
