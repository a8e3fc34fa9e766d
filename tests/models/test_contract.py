"""What every registered network must do; registering a network is being tested here."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedalloy.base.rng import generator, seeded
from fedalloy.nets.models import FeatureNet, create, models

SHAPES = [(1, 28), (3, 32)]
every = pytest.mark.parametrize("name", list(models))
shapes = pytest.mark.parametrize(("channels", "size"), SHAPES)


def build(name: str, channels: int = 3, size: int = 32, seed: int = 0) -> FeatureNet:
    with seeded(seed, "model"):
        return create(name, classes=5, channels=channels, size=size)


def images(channels: int = 3, size: int = 32, n: int = 4) -> torch.Tensor:
    return torch.randn(n, channels, size, size, generator=generator(0, "images"))


def without_dropout(net: FeatureNet) -> FeatureNet:
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return net


@every
@shapes
def test_shapes(name, channels, size):
    net, x = build(name, channels, size).eval(), images(channels, size)
    assert net.features(x).shape == (4, *net.feature_shape)
    assert net(x).shape == (4, 5)


@every
@shapes
@pytest.mark.parametrize("training", [False, True])
def test_forward_is_head_of_features_and_output_of_projection(name, channels, size, training):
    net = without_dropout(build(name, channels, size)).train(training)
    x = images(channels, size)
    logits = net(x)
    assert torch.equal(logits, net.head(net.features(x)))
    assert torch.equal(logits, net.output(net.project(x)))


@every
def test_the_output_layer_gives_one_logit_per_class(name):
    last = build(name).head[-1]
    assert isinstance(last, nn.Linear)
    assert last.out_features == 5


@every
def test_the_gradient_reaches_every_parameter_and_the_image(name):
    net, x = without_dropout(build(name)).train(), images().requires_grad_()
    F.cross_entropy(net(x), torch.tensor([0, 1, 2, 3])).backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    for key, p in net.named_parameters():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key
    # A weight matrix that is nowhere touched would be a layer that is cut off.
    assert all(p.grad.abs().sum() > 0 for p in net.parameters() if p.dim() > 1)


@every
def test_construction_is_a_function_of_the_seed_and_leaves_the_outer_stream_alone(name):
    before = torch.get_rng_state()
    first, again, other = build(name), build(name), build(name, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@every
def test_evaluation_treats_each_image_alone(name):
    net, x = build(name).eval(), images()
    assert torch.allclose(net(x)[:1], net(x[:1]), atol=1e-5)


@every
def test_a_state_dict_makes_the_same_network(name):
    net, twin = build(name).eval(), build(name, seed=1).eval()
    twin.load_state_dict(net.state_dict())
    assert torch.equal(net(images()), twin(images()))
    assert {key.split(".")[0] for key in net.state_dict()} <= {"features", "head"}


@every
def test_a_step_of_a_copy_does_not_touch_the_original(name):
    net = build(name).eval()
    before = net(images())
    twin = copy.deepcopy(net).train()
    F.cross_entropy(twin(images()), torch.zeros(4, dtype=torch.long)).backward()
    with torch.no_grad():
        for p in twin.parameters():
            p -= 0.1 * p.grad
    assert torch.equal(net(images()), before)
    assert not torch.equal(twin.eval()(images()), before)
