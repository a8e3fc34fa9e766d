"""FedAvgM: both momentum rules by hand, their limits, and what has no velocity."""

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


def test_heavy_ball_vector(fake, scalar):
    (w1, v1), (w2, v2) = steps(FedAvgM(momentum=0.9), [0.4, 0.3], fake, scalar)
    assert (w1, v1) == pytest.approx((0.4, 0.6), abs=1e-12)
    assert (w2, v2) == pytest.approx((-0.24, 0.64), abs=1e-12)


def test_ema_vector(fake, scalar):
    (w1, v1), (w2, v2) = steps(FedAvgM(momentum=0.9, variant="ema"), [0.4, 0.9], fake, scalar)
    assert (w1, v1) == pytest.approx((0.94, 0.06), abs=1e-12)
    assert (w2, v2) == pytest.approx((0.882, 0.058), abs=1e-12)


def test_the_server_rate_scales_the_step_and_not_the_velocity(fake, scalar):
    (w, v), _ = steps(FedAvgM(momentum=0.9, server_lr=0.5), [0.4, 0.4], fake, scalar)
    assert (w, v) == pytest.approx((0.7, 0.6), abs=1e-12)


@pytest.mark.parametrize(("variant", "limit"), [("heavy_ball", 10.0), ("ema", 1.0)])
def test_a_constant_update_has_a_limit(variant, limit, fake, scalar):
    d = 0.03
    seen = steps(FedAvgM(momentum=0.9, variant=variant), [lambda w: w - d] * 300, fake, scalar)
    velocities = [v for _, v in seen]
    assert velocities[-1] == pytest.approx(limit * d, rel=1e-9)
    assert velocities[:50] == sorted(velocities[:50])
    assert seen[-2][0] - seen[-1][0] == pytest.approx(limit * d, rel=1e-9)


@pytest.mark.parametrize("variant", ["heavy_ball", "ema"])
def test_without_momentum_it_is_fedavg(variant, small_setting, play):
    setting = small_setting([5, 9], work=LocalWork(batch=4, lr=0.1))
    ours, plain = play(FedAvgM(momentum=0.0, variant=variant), setting, 3), play(FedAvg(), setting, 3)
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


@pytest.mark.parametrize("variant", ["heavy_ball", "ema"])
def test_running_variances_never_become_negative(variant, fake, small):
    def model(variance):
        return {**small(batch_norm=True).state_dict(), "norm.running_var": torch.full((5,), variance)}

    method = FedAvgM(momentum=0.9, variant=variant)

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
        FedAvgM(momentum=momentum, variant="ema")


def test_a_server_rate_of_zero_is_refused():
    with pytest.raises(UsageError, match=r"fedavgm\.server_lr = 0 "):
        FedAvgM(server_lr=0)
