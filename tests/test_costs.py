"""Costs that can be counted by hand: bytes by kind and direction, passes, FLOPs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedalloy.aggregation.cache import Cache
from fedalloy.base.tree import encode
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import run
from fedalloy.methods import QFFL, FedAvg, FedAvgM, FedProx
from fedalloy.nets.models import create, models
from fedalloy.train.costs import Ledger, Meter, forward_flops, metered, payload, peak_memory
from fedalloy.train.fit import LocalWork

LENET_BYTES = 252_264  # 63,066 parameters of LeNet-5 for 26 letters


def lenet5():
    return create("lenet5", classes=26, channels=1, size=32)


@pytest.fixture
def letters(small_setting, random_sites):
    sites = random_sites([4, 6], shape=(1, 32, 32), classes=26)
    return small_setting([], sites=sites, networks=[lenet5], classes=26, work=LocalWork(epochs=2, batch=2))


def ledger_of(method, setting, rounds=1):
    ledgers = []
    run(method, Serial(setting), rounds, watch=lambda _, fed: ledgers.append(fed.ledger))
    return ledgers


AVERAGING = [FedAvg(), FedAvg(cache=Cache(oca=False)), FedProx(mu=0.1), FedAvgM(), QFFL(q=1.0)]


@pytest.mark.parametrize("method", AVERAGING, ids=repr)
def test_a_model_down_and_a_model_up(method, letters):
    (ledger,) = ledger_of(method, letters)
    down, up = dict(ledger.down), dict(ledger.up)
    assert down.pop("framing") > 0
    assert up.pop("framing") > 0
    assert down == {"weights": 2 * LENET_BYTES}
    # n as an eight-byte integer; q-FFL sends the loss in four bytes more.
    assert up == {"weights": 2 * LENET_BYTES, "scalars": 2 * (12 if isinstance(method, QFFL) else 8)}


@pytest.mark.parametrize("method", AVERAGING, ids=repr)
def test_one_forward_and_one_backward_pass_a_step(method, letters):
    (ledger,) = ledger_of(method, letters)
    steps = 2 * (2 + 3)
    assert ledger.passes() == {
        "steps": steps,
        "forward": steps,
        "backward": steps,
        "generator_forward": 0,
        "generator_backward": 0,
    }
    assert ledger.clients.forward_samples == ledger.clients.backward_samples == 2 * (4 + 6)
    assert ledger.flops(per_sample=100.0) == 100 * 20 * 3


def test_buffers_are_bytes_too(small_setting, small):
    with_norm = small_setting([4], networks=[lambda: small(batch_norm=True)])
    # 43 numbers, 10 of the affine part, 10 statistics in four bytes and a counter in eight.
    assert ledger_of(FedAvg(), with_norm)[0].down["weights"] == 4 * (43 + 10 + 10) + 8


def test_payload_by_kind():
    body = {
        "model": {"w": torch.zeros(3), "steps": torch.tensor(1)},
        "generator": {"g": torch.zeros(2, dtype=torch.float64)},
        "soft": torch.zeros(2, 5, dtype=torch.float16),
        "counts": torch.zeros(4, dtype=torch.int64),
        "loss": torch.tensor(0.5),
        "mask": torch.zeros(6, dtype=torch.bool),
        "n": 3,
        "note": "ab",
    }
    assert dict(payload(body)) == {
        "weights": 12 + 8,
        "generator": 16,
        "logits": 20,
        "counts": 32,
        "scalars": 4 + 8 + 2,
        "other": 6,
    }


def test_payload_and_framing_make_up_the_encoded_message():
    ledger, body = Ledger(), {"model": {"w": torch.zeros(3)}, "n": 3}
    ledger.sent(body)
    ledger.sent(body)
    assert sum(ledger.down.values()) == 2 * len(encode(body))
    assert ledger.down["weights"] == 24
    assert not ledger.up
    ledger.received({})
    assert sum(ledger.up.values()) == 0


def test_flops_by_hand():
    conv = nn.Conv2d(2, 3, 3, bias=False)  # 3 maps of 4x4, each of 2*9 products
    assert forward_flops(conv, torch.zeros(1, 2, 6, 6)) == 2 * (3 * 4 * 4) * (2 * 9)
    assert forward_flops(nn.Linear(10, 4), torch.zeros(1, 10)) == 2 * 10 * 4
    both = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))
    assert forward_flops(both, torch.zeros(7, 2, 6, 6)) == 1728 + 480  # of one sample, however many are given


def test_lenet5_flops():
    convolutions = 6 * 28 * 28 * 25 + 16 * 10 * 10 * 150 + 120 * 400
    assert forward_flops(lenet5(), torch.zeros(1, 1, 32, 32)) == 2 * (convolutions + 120 * 84 + 84 * 26)


def test_features_and_head_count_half_a_pass_each():
    meter = Meter()
    net = metered(lenet5(), meter)
    x = torch.zeros(3, 1, 32, 32)
    net(x)
    assert (meter.forward, meter.backward, meter.forward_samples) == (1.0, 1.0, 3.0)
    with torch.no_grad():
        features = net.features(x)
    assert (meter.forward, meter.backward) == (1.5, 1.0)
    net.head(features)
    assert (meter.forward, meter.backward, meter.backward_samples) == (2.0, 1.5, 4.5)


def test_features_and_head_may_be_plain_functions():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 2)

        def features(self, x):
            return self.a(x)

        def head(self, f):
            return self.b(f)

        def forward(self, x):
            return self.head(self.features(x))

    meter = Meter()
    metered(Plain(), meter)(torch.zeros(4, 2))
    assert (meter.forward, meter.backward, meter.forward_samples) == (1.0, 1.0, 4.0)


def test_a_generator_is_counted_apart():
    meter = Meter()
    net = metered(nn.Linear(2, 2), meter, generator=True)
    net(torch.zeros(1, 2))
    with torch.no_grad():
        net(torch.zeros(1, 2))
    assert (meter.generator_forward, meter.generator_backward) == (2.0, 1.0)
    assert (meter.forward, meter.backward, meter.forward_samples) == (0.0, 0.0, 0.0)


def test_a_paused_meter_does_not_count_and_goes_on_after_an_error():
    meter = Meter()
    net = metered(nn.Linear(2, 2), meter)
    with meter.paused():
        net(torch.zeros(1, 2))
        with meter.paused():
            pass
        net(torch.zeros(1, 2))  # an inner pause does not end the outer one
    assert meter.forward == 0
    with pytest.raises(RuntimeError, match="stop"), meter.paused():
        raise RuntimeError("stop")
    net(torch.zeros(1, 2))
    assert meter.forward == 1


def test_meters_add_up():
    total = Meter(steps=1, forward=2.0, running=False)
    total.add(Meter(steps=3, forward=0.5, generator_backward=1.0, backward_samples=7.0))
    assert total == Meter(steps=4, forward=2.5, generator_backward=1.0, backward_samples=7.0, running=False)


def test_server_and_clients_passes_are_added_and_cost_flops():
    ledger = Ledger(
        clients=Meter(steps=2, forward=2.0, backward=2.0, forward_samples=10.0, backward_samples=10.0),
        server=Meter(steps=9, forward=1.0, forward_samples=5.0),
    )
    assert ledger.passes()["forward"] == 3.0
    assert ledger.passes()["backward"] == 2.0
    assert ledger.passes()["steps"] == 11
    assert ledger.flops(10.0) == 10 * (15 + 2 * 10)


def test_peak_memory_is_in_bytes():
    assert 50e6 < peak_memory() < 1e12  # torch alone takes more than fifty megabytes


@pytest.mark.parametrize("name", list(models))
def test_flops_are_those_of_torchs_counter(name):
    net, x = create(name, classes=10, channels=3, size=32), torch.zeros(1, 3, 32, 32)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.eval()(x)
    assert forward_flops(net, x) == counter.get_total_flops() > 0


def test_layers_we_do_not_know_are_left_to_torchs_counter():
    class Bilinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 6))

        def forward(self, x):
            return x.flatten(1) @ self.w

    assert forward_flops(Bilinear(), torch.ones(1, 4)) == 2 * 4 * 6
