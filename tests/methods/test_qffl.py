"""q-FFL: the server's step by hand for four q, the one-client closed form, and where q = 0 leads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.tree import equal
from fedalloy.check.probe import small_settings
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, State
from fedalloy.federation.gate import refusal
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Site
from fedalloy.methods import QFFL, FedAvg
from fedalloy.methods.qffl import q_step
from fedalloy.train.fit import LocalWork, load, params


def answer(scalar, w, loss, n=1):
    return {"model": scalar(w), "loss": torch.tensor(loss), "n": n}


# w = 1, eta = 0.1, w_k = (0.9, 0.5), F = (1, 4), so g = (1, 5):
# Delta = (1, 5 * 4^q), h = (q + 10, 25 q 4^(q-1) + 10 * 4^q).
VECTOR = {0.0: 0.7, 0.5: 0.7006803, 1.0: 0.7236842, 2.0: 0.7822581}


@pytest.mark.parametrize(("q", "expected"), VECTOR.items())
def test_vector(q, expected, fake, scalar):
    by_hand = 1 - (1 + 5 * 4**q) / (q + 10 + 25 * q * 4 ** (q - 1) + 10 * 4**q)
    fed = fake({0: answer(scalar, 0.9, 1.0, n=10), 1: answer(scalar, 0.5, 4.0, n=70)})
    state = QFFL(q=q).round(State(0, {"model": scalar(1.0), "cache": {}}), fed)
    assert state["model"]["w"].item() == pytest.approx(by_hand, abs=1e-9)
    assert state["model"]["w"].item() == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 5.0])
def test_one_client_closed_form(q, fake, scalar):
    w, w_1, f = 1.0, 0.3, 0.8
    # The rate of round 3 is what the clients stepped with: 0.4 / 2 / 2.
    fed = fake({0: answer(scalar, w_1, f)}, work=LocalWork(lr=0.4, lr_decay=0.5), round=3)
    state = QFFL(q=q).round(State(2, {"model": scalar(w), "cache": {}}), fed)
    expected = w + (w_1 - w) / (1 + q * (w - w_1) ** 2 / (0.1 * f))
    assert state["model"]["w"].item() == pytest.approx(expected, abs=1e-7)


def test_the_squared_norm_runs_over_all_parameters_and_no_buffer(fake, small):
    # One client, q = 1: the step is shortened by 1 + ||w - w_1||^2 / (eta F); statistics far away must not shorten it.
    def network():
        return small(batch_norm=True)

    start, moved = network(), network()
    moved.load_state_dict(start.state_dict())
    with torch.no_grad():
        moved.body.bias += 0.2
        moved.out.bias -= 0.1
    moved.norm.running_var.fill_(50.0)
    fed = fake({0: {"model": params(moved), "loss": torch.tensor(0.5), "n": 4}}, network=network)
    after = QFFL(q=1.0).round(State(0, {"model": params(start), "cache": {}}), fed)["model"]
    norm2 = 5 * 0.2**2 + 3 * 0.1**2
    share = 1 / (1 + norm2 / (0.1 * 0.5))
    assert torch.allclose(after["body.bias"] - start.body.bias, torch.full((5,), 0.2 * share), atol=1e-6)
    assert torch.allclose(after["out.bias"] - start.out.bias, torch.full((3,), -0.1 * share), atol=1e-6)
    assert torch.equal(after["norm.running_var"], torch.full((5,), 50.0))


def test_a_client_without_loss_neither_divides_by_zero_nor_counts(fake, scalar):
    fed = fake({0: answer(scalar, 0.9, 1.0), 1: answer(scalar, 5.0, 0.0)})
    state = QFFL(q=2.0).round(State(0, {"model": scalar(1.0), "cache": {}}), fed)
    assert state["model"]["w"].item() == pytest.approx(1 - 1 / 12, abs=1e-6)


def test_q_zero_is_fedavg_with_uniform_weights_and_not_by_size(small_setting, small, play):
    setting = small_setting([4, 16], networks=[lambda: small(batch_norm=True)], work=LocalWork(batch=4, lr=0.1))
    ours = play(QFFL(q=0.0), setting, 2).model
    uniform, by_size = (play(FedAvg(aggregation=Aggregation(weights=w)), setting, 2).model for w in ("uniform", "size"))
    assert all(torch.allclose(ours[name], t, rtol=0, atol=1e-5) for name, t in uniform.items())
    assert not all(torch.allclose(ours[name], t, rtol=0, atol=1e-4) for name, t in by_size.items())


def test_the_loss_is_the_received_models_mean_over_all_training_data(small_setting, small):
    setting = small_setting(
        [13], networks=[lambda: small(batch_norm=True, dropout=0.5)], work=LocalWork(batch=4, lr=0.5)
    )
    me = setting.client(0, 1, {})
    received = params(me.build())
    sent = QFFL().train(me, Message("train", 0, {"model": received})).body
    net = load(small(batch_norm=True, dropout=0.5), received).eval()
    expected = F.cross_entropy(net(me.train.inputs), me.train.labels)
    assert sent["loss"].item() == pytest.approx(expected.item(), abs=1e-6)
    assert sent["loss"].dtype == torch.float32
    assert sent["n"] == 13


def test_measuring_the_loss_does_not_disturb_the_training(small_setting, small, play):
    setting = small_setting([13, 6], networks=[lambda: small(batch_norm=True, dropout=0.5)], work=LocalWork(batch=4))
    ours, plain = (play(m, setting, 1).states[1]["cache"] for m in (QFFL(q=1.0), FedAvg()))
    assert equal(ours, plain)


def test_a_client_with_a_larger_loss_pulls_more(rows, logistic, small_setting, play):
    # The clients pull a positive and a negative way, the second three times as hard.
    sites = [Site(d, d) for d in (rows([[1.0]], [0]), rows([[3.0]], [1]))]
    setting = small_setting([], sites=sites, networks=[logistic], classes=2, work=LocalWork(batch=1, lr=0.1))
    # At w = 0 both losses are ln 2; from round 2 on the first client's is larger, and q lets it hold back more.
    even, fair = (play(QFFL(q=q), setting, 3).states for q in (0.0, 3.0))
    assert even[3]["model"]["w"].item() > fair[3]["model"]["w"].item() > 0


@pytest.mark.parametrize(("sampling", "by_size"), [("uniform", False), ("size", True)])
def test_sampling(sampling, by_size, fake, scalar):
    fed = fake({0: answer(scalar, 0.9, 1.0)})
    QFFL(sampling=sampling).round(State(0, {"model": scalar(1.0), "cache": {}}), fed)
    assert fed.sampled_by_size is by_size


def test_sampling_by_size_prefers_large_clients(small_setting, play):
    setting = small_setting([2, 2, 2, 60], participation=Participation(policy="fraction", fraction=0.25))
    active = [r.active for r in play(QFFL(sampling="size"), setting, 20).rounds]
    assert sum(a == {3} for a in active) >= 14  # expected 18 of 20; uniform sampling gives 5


@pytest.mark.parametrize("policy", ["full", "bernoulli"])
def test_sampling_by_size_is_refused_where_it_has_no_effect(policy, small_setting):
    setting = small_setting([2, 60], participation=Participation(policy=policy))
    with pytest.raises(UsageError, match=rf"qffl\.sampling = 'size' .*participation\.policy = '{policy}'"):
        setting.check(QFFL(sampling="size"))
    setting.check(QFFL())
    setting.check(QFFL(variant="reference"))  # a default that has no effect was not chosen
    small_setting([2, 60], participation=Participation(policy="fraction")).check(QFFL(sampling="size"))


@pytest.mark.parametrize("weights", ["size", "disco"])
def test_weights_other_than_uniform_are_refused(weights):
    with pytest.raises(UsageError, match=rf"qffl does not use aggregation\.weights = '{weights}'"):
        QFFL(aggregation=Aggregation(weights=weights))
    assert QFFL(aggregation=Aggregation(weights="uniform")) == QFFL()


def test_fedkfs_q_is_nearly_none_and_ours_is_not():
    # Two clients whose losses are as 10 to 1: the weights F^q differ by 0.02 % and by 26 %.
    ratios = [10 ** QFFL(variant=variant).q for variant in ("fedkf", "recommended")]
    assert ratios == pytest.approx([1.00023, 1.2589], abs=1e-4)


def test_a_lost_round_keeps_the_model(fake, scalar):
    state = State(0, {"model": scalar(1.0), "cache": {}})
    assert equal(QFFL().round(state, fake({})).body, state.body)


@pytest.mark.parametrize(("option", "value"), [("q", -1.0), ("q", 1e3), ("sampling", "sizes")])
def test_options_out_of_limits_are_refused(option, value):
    with pytest.raises(UsageError, match=rf"qffl\.{option} = {value!r}"):
        QFFL(**{option: value})


@pytest.mark.parametrize("bound", [{"combine": "krum"}, {"clip": 1.0}], ids=str)
def test_bounds_that_reported_losses_would_get_around_are_refused(bound):
    (key,) = bound
    with pytest.raises(UsageError, match=rf"aggregation\.{key}"):
        QFFL(aggregation=Aggregation(**bound))


def test_a_rate_of_zero_keeps_the_model(fake, scalar):
    fed = fake({0: answer(scalar, 0.9, 1.0)}, work=LocalWork(lr=0.1, schedule="cosine", horizon=1), round=2)
    state = QFFL().round(State(1, {"model": scalar(1.0), "cache": {}}), fed)
    assert state["model"]["w"].item() == 1.0


def test_a_loss_beyond_reason_is_refused_and_none_takes_more_than_the_cap(scalar):
    setting = small_settings()[0]
    message = Message("train", 0, {"model": scalar(1.0)})
    sound = {"model": scalar(0.9), "n": setting.sizes[0]}
    contract = QFFL(q=1.0).expects(message, Serial(setting).open(QFFL(q=1.0), 1))
    assert refusal({**sound, "loss": torch.tensor(2.0)}, contract) is None
    assert "loss" in refusal({**sound, "loss": torch.tensor(3e38)}, contract)
    models = [scalar(1.0 - 0.1), scalar(1.0 + 0.9)]
    free, capped = (q_step(scalar(1.0), models, [1.0, 100.0], 1.0, 1e6, cap)["w"].item() for cap in (None, 0.5))
    assert free == pytest.approx(1.0 + (0.9 * 100 - 0.1) / 101, abs=1e-4)  # with so large a rate h_k is F_k^q / eta
    assert capped == pytest.approx(1.0 + (0.9 - 0.1) / 2, abs=1e-4)
