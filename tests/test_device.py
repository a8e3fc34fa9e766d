"""Networks and batches follow the data to its device. There is no GPU here: `meta` shows where tensors go."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from fedalloy.base import tree
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.data.augment import augmentation
from fedalloy.data.samples import Samples
from fedalloy.engine.choose import engine_for
from fedalloy.errors import UsageError
from fedalloy.federation.core import Client
from fedalloy.methods import FedAvg
from fedalloy.nets.models import create
from fedalloy.train.fit import LocalWork, fit, params, predict
from fedalloy.train.losses import ce, sq_dist


@pytest.fixture
def elsewhere() -> Client:
    """A client whose data lies on another device than the random streams."""
    here = Samples(
        torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 10, torch.arange(20)
    )
    return Client(
        id=0,
        round=1,
        seed=0,
        train=here.to("meta"),
        classes=10,
        work=LocalWork(batch=8, momentum=0.9, clip=1.0),
        steps=3,
        network=functools.partial(create, "selective-cnn", classes=10, channels=3, size=32),
        augment=augmentation("cifar100-kdia", (0.0, 0.0, 0.0)),
    )


def devices(weights: tree.Tree) -> set[str]:
    return {t.device.type for _, t in tree.leaves(weights) if isinstance(t, torch.Tensor)}


def test_training_stays_on_the_device_of_the_data(elsewhere: Client) -> None:
    net = elsewhere.build()
    anchor = params(net)
    fit(net, elsewhere, lambda x, y: ce(net(x), y) + 0.1 * sq_dist(net, anchor))
    assert devices(params(net)) == {"meta"}
    assert elsewhere.meter.steps == 3
    assert predict(net, elsewhere.train).device.type == "meta"


def test_weights_from_elsewhere_are_loaded_onto_the_device(elsewhere: Client) -> None:
    assert devices(params(elsewhere.net(params(elsewhere.network())))) == {"meta"}


def test_a_tree_moves_and_what_is_there_is_not_copied() -> None:
    w = torch.ones(2)
    assert tree.to_device({"a": {"w": w}, "n": 3}, "cpu")["a"]["w"] is w
    assert devices(tree.to_device({"a": {"w": w}}, "meta")) == {"meta"}


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="device = 'cude' cannot be used here"):
        build(experiment({"data": "tiny", "model": "mlp", "device": "cude"}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:99"])
def test_a_machine_without_a_gpu_says_so(device: str) -> None:
    with pytest.raises(UsageError, match=f"device = '{device}', but this machine has no CUDA device; write \"cpu\""):
        build(experiment({"data": "tiny", "model": "mlp", "device": device}))


def test_the_pool_shares_the_cpus_memory_only() -> None:
    setting = build(experiment({"data": "tiny", "model": "mlp"})).setting
    sites = [replace(site, train=site.train.to("meta")) for site in setting.sites]
    moved = object.__new__(type(setting))  # a setting on `meta` cannot look at its labels
    moved.__dict__.update(setting.__dict__ | {"sites": sites})
    with (
        pytest.raises(UsageError, match=r"the pool .*CPU.*'meta'"),
        engine_for([FedAvg()], moved, 1, "pool", 2, print),
    ):
        pass
