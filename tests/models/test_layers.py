"""Facts about single layers and blocks that parameter counts cannot show."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedalloy.base.rng import generator, seeded
from fedalloy.nets.models import create
from fedalloy.nets.models.fedmd_cnn import Smooth
from fedalloy.nets.models.norm import norm
from fedalloy.nets.models.wrn import PreActivation


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(0, "layers"))


def strides(net: nn.Module) -> list[int]:
    return [layer.stride[0] for layer in net.modules() if isinstance(layer, nn.Conv2d)]


def kinds(layers: nn.Module) -> str:
    return " ".join(type(layer).__name__ for layer in layers.children())


def test_one_channel_per_group_is_affine_instance_norm():
    x, weight, bias = randn(4, 6, 5, 5), randn(6), randn(6) + 1
    layer = norm("instance", 6)
    layer.load_state_dict({"weight": weight, "bias": bias})
    assert torch.allclose(layer(x), F.instance_norm(x, weight=weight, bias=bias), atol=1e-5)


def test_norm_none_is_the_identity():
    x = randn(2, 3, 4, 4)
    assert norm("none", 3)(x) is x


def test_relu_and_maxpool_commute_in_value_and_gradient():
    x = randn(3, 2, 9, 9).requires_grad_()
    weights = randn(3, 2, 4, 4)
    after, before = F.relu(F.max_pool2d(x, 2)), F.max_pool2d(F.relu(x), 2)
    assert torch.equal(after, before)
    (g_after,) = torch.autograd.grad((after * weights).sum(), x)
    (g_before,) = torch.autograd.grad((before * weights).sum(), x)
    assert torch.equal(g_after, g_before)
    assert (g_after != 0).any()


def test_pooling_comes_before_relu_everywhere():
    for name in ("lenet5", "simple-cnn", "knfu-m1", "knfu-m2", "selective-cnn"):
        assert "ReLU MaxPool2d" not in kinds(create(name, classes=10, channels=1, size=28).features)


def test_order_of_the_layers():
    def layers(name: str) -> str:
        return kinds(create(name, classes=10, channels=1, size=28).features)

    halving = "Conv2d Halve ReLU"
    assert layers("simple-cnn") == f"{halving} {halving}"
    assert layers("selective-cnn") == f"{halving} {halving} Flatten Linear ReLU"
    assert layers("knfu-m1") == f"{halving} {halving} Flatten Linear ReLU Linear ReLU"
    assert layers("knfu-m2") == f"Conv2d ReLU {halving} Conv2d ReLU {halving} Flatten Linear ReLU"


def test_fedmd_cnn_has_the_layers_of_its_code():
    two = create("fedmd-cnn", classes=16, channels=3, size=32)
    three = create("fedmd-cnn", classes=16, channels=3, size=32, widths=[64, 128, 256], dropout=0.3)
    block = "Conv2d BatchNorm2d ReLU Dropout"
    assert kinds(two.features) == f"{block} Smooth {block} Flatten"
    assert kinds(three.features) == f"{block} Smooth {block} AvgPool2d {block} Flatten"
    shapes = [(c.kernel_size[0], c.stride[0], c.padding[0]) for c in three.features if isinstance(c, nn.Conv2d)]
    assert shapes == [(3, 1, 1), (2, 2, 0), (3, 2, 0)]
    assert {layer.p for layer in three.features if isinstance(layer, nn.Dropout)} == {0.3}
    assert two.head[-1].bias is None


def test_smoothing_leaves_the_frame_out_of_the_mean():
    x = randn(2, 3, 5, 4)
    ones = torch.ones(3, 1, 2, 2)
    total = F.conv2d(F.pad(x, (0, 1, 0, 1)), ones, groups=3)
    there = F.conv2d(F.pad(torch.ones_like(x), (0, 1, 0, 1)), ones, groups=3)
    assert torch.allclose(Smooth()(x), total / there, atol=1e-6)


def test_lenet5_on_28_is_lenet5_on_the_framed_image():
    small, large = (create("lenet5", classes=26, channels=1, size=size).eval() for size in (28, 32))
    large.load_state_dict(small.state_dict())
    x = randn(2, 1, 28, 28)
    assert torch.allclose(small(x), large(F.pad(x, (2, 2, 2, 2))), atol=1e-6)


def test_lenet5_by_hand():
    net = create("lenet5", classes=26, channels=1, size=32)
    w, x = net.state_dict(), randn(2, 1, 32, 32)
    y = F.max_pool2d(F.relu(F.conv2d(x, w["features.0.weight"], w["features.0.bias"])), 2)
    y = F.max_pool2d(F.relu(F.conv2d(y, w["features.3.weight"], w["features.3.bias"])), 2)
    y = F.relu(F.conv2d(y, w["features.6.weight"], w["features.6.bias"])).flatten(1)
    assert torch.allclose(net.features(x), y, atol=1e-6)
    y = F.linear(F.relu(F.linear(y, w["head.0.weight"], w["head.0.bias"])), w["head.2.weight"], w["head.2.bias"])
    assert torch.allclose(net(x), y, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["lenet5", "simple-cnn", "resnet8", "resnet11", "wrn", "knfu-m1", "knfu-m2", "fedmd-cnn", "mlp"]
)
def test_features_come_after_relu(name):
    net = create(name, classes=10, channels=1, size=28)
    assert net.features(randn(4, 1, 28, 28)).min() >= 0


def test_simple_cnn_projects_to_256_without_activation():
    net, x = create("simple-cnn", classes=10, channels=3, size=32), randn(4, 3, 32, 32)
    assert net.project(x).shape == (4, 256)
    assert net.project(x).min() < 0
    assert kinds(net.head) == "Flatten Linear ReLU Linear ReLU Linear ReLU Linear Linear"
    plain = create("simple-cnn", classes=10, channels=3, size=32, projection=False)
    assert plain.project(x).shape == (4, 84)
    assert plain.project(x).min() >= 0


def test_selective_cnn_drops_only_in_the_head_and_only_in_training():
    net, x = create("selective-cnn", classes=10, channels=1, size=28), randn(8, 1, 28, 28)
    assert torch.equal(net.train().features(x), net.eval().features(x))
    with seeded(0, "dropout"):
        assert not torch.equal(net.train()(x), net.eval()(x))
    sure = create("selective-cnn", classes=10, channels=1, size=28, dropout=0)
    assert torch.equal(sure.train()(x), sure.eval()(x))


@pytest.mark.parametrize(("name", "bias"), [("resnet8", None), ("resnet11", None), ("wrn", True)])
def test_convolutions_start_kaiming_normal_by_fan_out(name, bias):
    options = {} if bias is None else {"bias": bias}
    with seeded(0, "model"):
        net = create(name, classes=10, channels=3, size=32, **options)
    convs = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    for layer in convs:
        std = math.sqrt(2 / (layer.kernel_size[0] ** 2 * layer.out_channels))
        # The standard deviation of n normal draws errs by about 1 / sqrt(2n).
        assert layer.weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * layer.weight.numel()))
        if layer.bias is not None:
            assert not layer.bias.any()


def test_where_the_residual_networks_halve_the_image():
    # Per block: the 3x3 convolutions, then the 1x1 shortcut where the shape changes.
    image = {"classes": 10, "channels": 3, "size": 32}
    assert strides(create("resnet8", **image)) == [1, 1, 1, 2, 1, 2, 2, 1, 2]
    assert strides(create("resnet11", **image)) == [1, 1, 1, 1, 1, 1, 2, 1, 2, 1, 2, 1, 2]
    assert strides(create("wrn", depth=10, **image)) == [1, 1, 1, 2, 1, 2, 2, 1, 2]


def test_wrn_shortcut_starts_from_the_activated_input_only_where_the_width_changes():
    x = randn(2, 4, 6, 6)
    wider = PreActivation("none", 4, 8, 2, bias=False)
    active = F.relu(x)
    body = F.conv2d(
        F.relu(F.conv2d(active, wider.body[0].weight, stride=2, padding=1)), wider.body[2].weight, padding=1
    )
    expected = body + F.conv2d(active, wider.shortcut.weight, stride=2)
    assert torch.allclose(wider(x), expected, atol=1e-6)
    same = PreActivation("none", 4, 4, 1, bias=False)
    nn.init.zeros_(same.body[2].weight)
    assert torch.equal(same(x), x)


def test_resnet8_block_by_hand():
    net = create("resnet8", classes=10, channels=3, size=8, width=8, norm="none")
    block, x = net.features[3], randn(2, 8, 8, 8)
    first, second, short = (layer.weight for layer in block.modules() if isinstance(layer, nn.Conv2d))
    body = F.conv2d(F.relu(F.conv2d(x, first, stride=2, padding=1)), second, padding=1)
    assert torch.allclose(block(x), F.relu(body + F.conv2d(x, short, stride=2)), atol=1e-6)


def test_resnet11_block_by_hand():
    net = create("resnet11", classes=10, channels=3, size=8, norm="none")
    block, x = net.features[3], randn(2, 64, 8, 8)
    a, b, c, short = (layer.weight for layer in block.modules() if isinstance(layer, nn.Conv2d))
    body = F.relu(F.conv2d(F.relu(F.conv2d(x, a, padding=1)), b, stride=2, padding=1))
    expected = F.relu(F.conv2d(body, c, padding=1) + F.conv2d(x, short, stride=2))
    assert torch.allclose(block(x), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "layer"), [("resnet8", nn.GroupNorm), ("resnet11", nn.BatchNorm2d), ("wrn", nn.BatchNorm2d)]
)
def test_default_normalisation(name, layer):
    net = create(name, classes=10, channels=3, size=32)
    found = [m for m in net.modules() if isinstance(m, nn.GroupNorm | nn.BatchNorm2d)]
    assert found
    assert all(type(m) is layer for m in found)
    assert all(m.num_groups == m.num_channels for m in found if isinstance(m, nn.GroupNorm))
