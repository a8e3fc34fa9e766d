"""Stacked heads: what each head says alone, in value and in gradient, without touching anything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedalloy.nets.ensemble import stacked_heads
from fedalloy.nets.models import FeatureNet, create
from fedalloy.train.fit import load, params

HEADS = {
    "linear": ((6,), lambda: [nn.Linear(6, 3)]),
    "without bias": ((6,), lambda: [nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)]),
    "flatten, dropout, relu": (
        (2, 3, 1),
        lambda: [nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)],
    ),
    "pooling first": ((6, 2, 2), lambda: [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)]),
    "LayerNorm": ((6,), lambda: [nn.Linear(6, 5), nn.LayerNorm(5), nn.Dropout(0.5), nn.Linear(5, 3)]),
    "BatchNorm": ((6,), lambda: [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)]),
    "nested": ((6,), lambda: [nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3)]),
}


def networks(name, count):
    shape, layers = HEADS[name]
    nets = []
    for k in range(count):
        torch.manual_seed(k)
        nets.append(FeatureNet(nn.Sequential(nn.Identity()), nn.Sequential(*layers()), shape))
        for buffer in nets[-1].buffers():
            if buffer.is_floating_point():
                buffer.uniform_(
                    0.5, 1.5, generator=torch.Generator().manual_seed(k)
                )  # statistics that differ between clients
    return nets


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", HEADS)
def test_each_head_says_what_it_says_alone(name, count):
    nets = networks(name, count)
    models = [params(net) for net in nets]
    z = torch.randn(4, *nets[0].feature_shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    towards = torch.randn(count, 4, 3, generator=torch.Generator().manual_seed(2))
    together = stacked_heads(networks(name, 1)[0], models)(z)
    alone = torch.stack([net.head.eval()(z.clone()) for net in nets])
    assert together.shape == (count, 4, 3)
    assert torch.allclose(together, alone, atol=1e-6)
    ours, plain = (torch.autograd.grad((out * towards).sum(), z)[0] for out in (together, alone))
    assert torch.allclose(ours, plain, atol=1e-6)
    assert ours.abs().max() > 0.01


@pytest.mark.parametrize("name", HEADS)
def test_features_and_models_are_left_as_they_were(name):
    nets = networks(name, 2)
    models = [params(net) for net in nets]
    before = [{n: t.clone() for n, t in m.items()} for m in models]
    net = networks(name, 1)[0]
    own = params(net)
    z = torch.randn(4, *net.feature_shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    inner = z * 1
    kept = inner.detach().clone()
    heads = stacked_heads(net, models)
    first = heads(inner)
    first.sum().backward()
    assert torch.equal(inner, kept)
    assert torch.equal(heads(z), first)
    assert all(torch.equal(m[n], t) for m, old in zip(models, before, strict=True) for n, t in old.items())
    assert all(torch.equal(t, own[n]) for n, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_heads_are_constants_even_if_the_models_still_learn():
    nets = networks("LayerNorm", 2)
    live = [dict(net.named_parameters()) for net in nets]
    stacked_heads(nets[0], live)(torch.zeros(4, 6, requires_grad=True)).sum().backward()
    assert all(p.grad is None for net in nets for p in net.parameters())


def test_a_real_network():
    nets = [create("simple-cnn", classes=10, channels=3, size=32) for _ in range(2)]
    z = torch.rand(3, *nets[0].feature_shape, generator=torch.Generator().manual_seed(0))
    together = stacked_heads(nets[0], [params(net) for net in nets])(z)
    assert torch.allclose(together, torch.stack([net.head.eval()(z) for net in nets]), atol=1e-6)


def test_a_layer_that_works_in_place_leaves_the_callers_features_alone():
    net = FeatureNet(nn.Sequential(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)), (3,))
    z = -torch.ones(4, 3)
    stacked_heads(net, [net.state_dict()] * 2)(z)
    assert torch.equal(z, -torch.ones(4, 3))


@pytest.mark.parametrize("net", [create("simple-cnn", classes=3, channels=1, size=28), networks("LayerNorm", 1)[0]])
def test_the_last_layers_alone(net):
    models = [{n: t + k for n, t in net.state_dict().items()} for k in range(2)]
    z = torch.randn(4, *net.projected_shape, generator=torch.Generator().manual_seed(1))
    alone = [load(net, weights).eval().output(z) for weights in models]
    assert torch.allclose(stacked_heads(net, models, last=True)(z), torch.stack(alone), atol=1e-5)


@pytest.mark.parametrize("last", [False, True])
def test_a_product_is_told_with_its_work(last):
    net, noted = create("simple-cnn", classes=10, channels=3, size=32, projection=False), []
    shape = net.projected_shape if last else net.feature_shape
    heads = stacked_heads(
        net, [params(net)] * 3, lambda answers, products: noted.append((answers.shape, products)), last=last
    )
    heads(torch.zeros(5, *shape))
    assert noted == [((3, 5, 10), 3 * 5 * (84 * 10 if last else 400 * 120 + 120 * 84 + 84 * 10))]
