"""Costs that can be counted by hand: bytes by kind and direction, passes, FLOPs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedalloy.aggregation.cache import Cache
from fedalloy.base.tree import encode
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment, make_method
from fedalloy.data.samples import Scale
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import run
from fedalloy.methods import QFFL, FedAvg, FedAvgM, FedGen, FedGKD, FedKF, FedProx, methods
from fedalloy.methods.fedkf_minus import FedKFMinus
from fedalloy.nets.generators import ImageGenerator
from fedalloy.nets.generators.images import UpsampledConv
from fedalloy.nets.models import FeatureNet, create, models
from fedalloy.train.costs import Ledger, Meter, forward_flops, metered, payload, peak_memory
from fedalloy.train.fit import LocalWork, frozen

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


# FedKF's Table IX: passes of a client's step, forward and backward, through classifiers and through generators.
TABLE_IX = {
    FedAvg(): (1, 1, 0, 0),
    FedProx(mu=0.1): (1, 1, 0, 0),
    FedGen(generator_steps=4): (1.5, 1.5, 1, 0),
    FedGKD(): (2, 1, 0, 0),
    QFFL(q=1.0): (1, 1, 0, 0),
    FedKFMinus(width=4): (3, 3, 1, 1),
    FedKF(width=4): (3, 3, 1, 1),
    # Not in the table.
    FedAvg(cache=Cache(oca=False)): (1, 1, 0, 0),
    FedAvgM(): (1, 1, 0, 0),
    FedKF(width=4, adversarial=True): (4, 4, 1, 1),
}


@pytest.mark.parametrize(("method", "published"), TABLE_IX.items(), ids=lambda value: getattr(value, "name", ""))
def test_passes_of_a_clients_step_as_published(method, published, letters):
    ledger = ledger_of(method, letters, rounds=2)[1]  # generators and teachers come with the second round
    passes = ledger.passes()["clients"]
    assert passes.pop("steps") == (steps := 2 * (2 + 3))
    assert tuple(count / steps for count in passes.values()) == published
    assert list(passes) == ["forward", "backward", "generator_forward", "generator_backward"]


def test_the_servers_passes_are_apart(letters):
    of_server = ledger_of(FedGen(generator_steps=4), letters, rounds=2)[1].passes()["server"]
    # Two clients' heads answer for every feature, and the generator learns through them.
    assert list(of_server.values()) == [4, 4 * 2 * 0.5, 4 * 2 * 0.5, 4, 4]
    assert set(ledger_of(FedAvg(), letters)[0].passes()["server"].values()) == {0}


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
    grouped = nn.Conv2d(4, 6, 3, groups=2)  # each map sees half of the inputs
    assert forward_flops(grouped, torch.zeros(1, 4, 5, 5)) == 2 * (6 * 3 * 3) * (2 * 9)
    grown = nn.ConvTranspose2d(2, 3, 4, stride=2, padding=1)  # each of 2*5*5 inputs is added to 3 maps of 4*4
    assert forward_flops(grown, torch.zeros(1, 2, 5, 5)) == 2 * (2 * 5 * 5) * (3 * 16)
    doubled = UpsampledConv(2, 3)  # computed as the layer above
    assert forward_flops(doubled, torch.zeros(1, 2, 5, 5)) == 2 * (2 * 5 * 5) * (3 * 16)
    both = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))
    assert forward_flops(both, torch.zeros(7, 2, 6, 6)) == 1728 + 480  # of one sample, however many are given


def test_flops_of_gradients_by_hand():
    meter, x = Meter(), torch.zeros(5, 10)
    net = metered(nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 3)), meter)
    first, second = 2 * 5 * 10 * 4, 2 * 5 * 4 * 3
    net(x)  # the second layer also has a gradient of its input
    assert meter.flops == 2 * first + 3 * second
    with torch.no_grad():
        net(x)
    assert meter.flops == 3 * first + 4 * second
    frozen(net)(x.requires_grad_())  # gradients of inputs only
    assert meter.flops == 5 * first + 6 * second
    net.requires_grad_(True)
    with meter.passed_through():
        net(x)
    assert meter.flops == 7 * first + 8 * second
    with meter.paused(flops=True):
        net(x.detach())
    assert (meter.flops, meter.forward) == (9 * first + 11 * second, 4)


LENET = 6 * 28 * 28 * 25 + 16 * 10 * 10 * 150 + 120 * 400 + 120 * 84 + 84 * 26


def test_lenet5_flops():
    assert forward_flops(lenet5(), torch.zeros(1, 1, 32, 32)) == 2 * LENET


def image_products(width):
    """Of FedKF's generator: two doublings as transposed 4x4 convolutions, a 3x3 convolution to one channel."""
    half = width // 2
    return 100 * width * 64 + width * 64 * width * 16 + width * 256 * half * 16 + 32 * 32 * half * 9


def test_the_generator_of_fedkf_costs_as_much_as_124_classifiers():
    meter = Meter()
    metered(ImageGenerator((1, 32, 32), Scale(), noise=100), meter, generator=True)(torch.zeros(2, 100))
    assert meter.flops == 2 * 2 * (3 * image_products(128) - 100 * 128 * 64)  # forward, and two gradients
    assert round(image_products(128) / LENET) == 124


@pytest.mark.parametrize("width", [4, 128])
def test_fedkf_beside_fedavg_by_hand(width, letters):
    """A step: the student on real and generated images, the teacher, and the generator that learns through it."""
    (_, fedkf), (fedavg, _) = ledger_of(FedKF(width=width), letters, 2), ledger_of(FedAvg(), letters, 2)
    first, images = 6 * 28 * 28 * 25, 2 * (4 + 6)
    student = 3 * LENET - first
    generator = 3 * image_products(width) - 100 * width * 64  # noise has no gradient
    assert fedavg.flops() == {"clients": 2 * images * student, "server": 0}
    assert fedkf.flops() == {"clients": 2 * images * (2 * student + 2 * LENET + generator), "server": 0}
    assert width < 128 or round(fedkf.flops()["clients"] / fedavg.flops()["clients"]) == 139


def test_fedgens_server_counts_its_heads_by_hand(letters):
    ledger = ledger_of(FedGen(generator_steps=1, generator_batch=8), letters, 2)[1]
    head, generator = 120 * 84 + 84 * 26, (32 + 26) * 256 + 256 * 120
    learning = 3 * generator - (32 + 26) * 256
    assert ledger.server.flops == 2 * 8 * (2 * 2 * head + learning)  # two clients; gradients go to features only
    first, images = 6 * 28 * 28 * 25, 2 * (4 + 6)
    assert ledger.clients.flops == 2 * images * (3 * LENET - first + generator + 3 * head - 120 * 84)


EXPERIMENT = {
    "engine": "serial",
    "data": {"name": "tiny", "size": 8},
    "partition": {"clients": 3, "alpha": 1.0},
    "model": {"name": "fedmd-cnn", "widths": [4, 6]},
    "training": {"work": "fixed_steps", "steps": 2, "batch": 8},
    "public": {"data": "own", "samples": 24, "labelled": True},
}
# What is not counted: evaluation on held-out samples, and products outside networks, such as mixtures of logits.
EVALUATES = {"fedmd", "fedmd-global", "local-converged"}


@pytest.mark.parametrize("name", [name for name, cls in methods.items() if cls.__module__.startswith("fedalloy.")])
def test_all_networks_of_a_method_are_counted_as_torch_counts_them(name):
    exp = experiment({**EXPERIMENT, "method": {"name": name, **methods[name].card.quick}})
    setting = build(exp).setting
    with FlopCounterMode(display=False) as counter:
        ledgers = ledger_of(make_method(exp), setting, 2)
    ours, torchs = sum(sum(ledger.flops().values()) for ledger in ledgers), counter.get_total_flops()
    assert 0.5 * torchs < ours < torchs if name in EVALUATES else 0.997 * torchs <= ours <= torchs


def test_features_and_head_count_half_a_pass_each():
    meter = Meter()
    net = metered(lenet5(), meter)
    x = torch.zeros(3, 1, 32, 32)
    net(x)
    assert (meter.forward, meter.backward) == (1.0, 1.0)
    with torch.no_grad():
        features = net.features(x)
    assert (meter.forward, meter.backward) == (1.5, 1.0)
    net.head(features)
    assert (meter.forward, meter.backward) == (2.0, 1.5)


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
    assert (meter.forward, meter.backward, meter.flops) == (1.0, 1.0, 2 * 4 * 6 * 5)


def test_a_generator_is_counted_apart():
    meter = Meter()
    net = metered(nn.Linear(2, 2), meter, generator=True)
    net(torch.zeros(1, 2))
    with torch.no_grad():
        net(torch.zeros(1, 2))
    assert (meter.generator_forward, meter.generator_backward) == (2.0, 1.0)
    assert (meter.forward, meter.backward, meter.flops) == (0.0, 0.0, 2 * 4 * 3)


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
    total = Meter(steps=1, forward=2.0, passes_count=False)
    total.add(Meter(steps=3, forward=0.5, generator_backward=1.0, flops=7.0))
    assert total == Meter(steps=4, forward=2.5, generator_backward=1.0, flops=7.0, passes_count=False)


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
            self.w, self.drop = nn.Parameter(torch.ones(4, 6)), nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x.flatten(1) @ self.w)

    assert forward_flops(Bilinear(), torch.ones(1, 4)) == 2 * 4 * 6
    meter, net, x = Meter(), Bilinear(), torch.ones(3, 4)
    with torch.random.fork_rng():
        plain = [net(x), net(x)]
    with torch.random.fork_rng():
        counted = [metered(net, meter)(x), net(x)]  # the first is measured, which draws nothing and keeps the mode
    assert all(map(torch.equal, plain, counted))
    assert (meter.forward, meter.flops, net.training) == (2, 2 * 3 * 2 * 3 * 4 * 6, True)
    half = Meter()
    parts = metered(FeatureNet(nn.Sequential(Bilinear()), nn.Sequential(nn.Linear(6, 5)), (6,)), half)
    parts.head(torch.zeros(1, 6))
    assert half.flops == 2 * 2 * 6 * 5
    parts(torch.ones(1, 4))
    assert half.flops == 2 * (2 * 6 * 5 + 3 * 4 * 6 + 3 * 6 * 5)
