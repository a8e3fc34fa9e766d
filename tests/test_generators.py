"""Generators: published parameter counts, shapes and ranges, and the convolution that enlarges without enlarging."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedalloy.data.samples import Scale
from fedalloy.errors import UsageError
from fedalloy.nets.generators import (
    DCGAN,
    ConditionalGenerator,
    FeatureGenerator,
    ImageGenerator,
    PerceptronFeatures,
    adversarial_generator,
)
from fedalloy.nets.generators.images import UpsampledConv
from fedalloy.nets.models import create, models
from fedalloy.nets.models.base import parameter_count


@pytest.fixture
def draw():
    return torch.Generator().manual_seed(0)


IMAGES = [((1, 32, 32), 100, 1_049_985), ((3, 32, 32), 1000, 8_423_939)]


@pytest.mark.parametrize(("shape", "noise", "expected"), IMAGES, ids=["EMNIST", "CIFAR"])
def test_fedkf_image_generator(shape, noise, expected, draw):
    make = ImageGenerator(shape, Scale((0.5,) * shape[0], (0.25,) * shape[0]), noise=noise)
    assert parameter_count(make) == expected
    # The linear layer, BatchNorm, two convolutions with theirs, the last convolution.
    linear, inner = (noise + 1) * 128 * 8 * 8, 2 * 128 + (9 * 128 + 1) * 128 + 2 * 128 + (9 * 128 + 1) * 64 + 2 * 64
    assert expected == linear + inner + (9 * 64 + 1) * shape[0]
    assert [m.eps for m in make.modules() if isinstance(m, nn.BatchNorm2d)] == [1e-5, 0.8, 0.8]
    images = make(torch.randn(3, noise, generator=draw))
    assert images.shape == (3, *shape)
    assert -2 <= images.min() < images.max() <= 2  # a sigmoid's 0 to 1, normalised by (x - 0.5) / 0.25
    assert images.std() > 0.01


@pytest.mark.parametrize(("height", "across"), [(8, 8), (28, 28), (12, 20)])
def test_image_generator_makes_images_of_other_sizes(height, across, draw):
    make = ImageGenerator((2, height, across), Scale((0.0, 1.0), (1.0, 2.0)), noise=5, width=8)
    images = make(torch.randn(2, 5, generator=draw))
    assert images.shape == (2, 2, height, across)
    first, second = images.unbind(1)
    assert 0 <= first.min() < first.max() <= 1
    assert -0.5 <= second.min() < second.max() <= 0  # (x - 1) / 2


def test_image_generator_refuses_sizes_it_cannot_reach():
    with pytest.raises(UsageError, match=r"30 x 30 pixels.*multiple of 4"):
        ImageGenerator((1, 30, 30), Scale())


@pytest.mark.parametrize(
    ("shape", "maps"),
    [
        ((3, 64, 64), [(1024, 4, 4), (512, 8, 8), (256, 16, 16), (128, 32, 32)]),  # as in DCGAN's own picture
        ((1, 32, 32), [(512, 4, 4), (256, 8, 8), (128, 16, 16)]),
        ((1, 28, 28), [(256, 7, 7), (128, 14, 14)]),
        ((2, 8, 16), [(128, 4, 8)]),
    ],
)
def test_dcgan_doubles_a_small_map(shape, maps, draw):
    make, seen = DCGAN(shape, Scale((0.5,) * shape[0], (0.25,) * shape[0]), noise=7), []
    for layer in make.layers:
        if isinstance(layer, nn.ConvTranspose2d):
            layer.register_forward_pre_hook(lambda _, x: seen.append(tuple(x[0].shape[1:])))
    images = make(torch.randn(3, 7, generator=draw))
    assert seen == maps
    assert images.shape == (3, *shape)
    assert -2 <= images.min() < images.max() <= 2  # a sigmoid's 0 to 1, normalised by (x - 0.5) / 0.25
    kernels = [25 * a[0] * b for a, b in zip(maps, [*(m[0] for m in maps[1:]), shape[0]], strict=True)]
    projection = 7 * maps[0][0] * maps[0][1] * maps[0][2]
    assert parameter_count(make) == projection + sum(kernels) + sum(2 * m[0] for m in maps)


def test_dcgan_starts_small_and_has_no_other_activation_than_relu():
    torch.manual_seed(0)
    make = DCGAN((1, 32, 32), Scale(), noise=100)
    for layer in (make.linear, make.layers[2], make.layers[5]):
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)
        assert layer.bias is None
    assert make.layers[0].weight.mean().item() == pytest.approx(1.0, abs=0.005)
    kinds = [type(layer).__name__ for layer in make.layers]
    assert kinds == [
        "BatchNorm2d",
        "ReLU",
        *["ConvTranspose2d", "BatchNorm2d", "ReLU"] * 2,
        "ConvTranspose2d",
        "Sigmoid",
    ]


@pytest.mark.parametrize("size", [7, 6, 15])
def test_dcgan_refuses_sizes_it_cannot_reach(size):
    with pytest.raises(UsageError, match=rf"{size} x {size} pixels.*even number of at least 8"):
        DCGAN((1, size, size), Scale())


@pytest.mark.parametrize(("inputs", "outputs", "height", "across"), [(3, 2, 4, 4), (1, 1, 1, 1), (5, 7, 3, 6)])
def test_upsampled_conv_is_the_convolution_of_the_enlarged_image(inputs, outputs, height, across, draw):
    layer = UpsampledConv(inputs, outputs)
    x = torch.randn(2, inputs, height, across, generator=draw, requires_grad=True)
    towards = torch.randn(2, outputs, 2 * height, 2 * across, generator=draw)
    enlarged = F.interpolate(x, scale_factor=2, mode="nearest")
    ours, plain = layer(x), F.conv2d(enlarged, layer.weight, layer.bias, padding=1)
    assert torch.allclose(ours, plain, atol=1e-4)
    over = [x, layer.weight, layer.bias]
    for a, b in zip(*(torch.autograd.grad((out * towards).sum(), over) for out in (ours, plain)), strict=True):
        assert torch.allclose(a, b, atol=1e-4)
        assert a.abs().max() > 0.01


def test_upsampled_conv_has_the_parameters_of_a_3x3_convolution():
    plain = nn.Conv2d(4, 6, 3, padding=1)
    assert {n: p.shape for n, p in UpsampledConv(4, 6).named_parameters()} == {
        n: p.shape for n, p in plain.named_parameters()
    }


@pytest.mark.parametrize(("classes", "expected"), [(10, 890_724), (100, 1_084_944)])
def test_kdia_conditional_generator(classes, expected, draw):
    make = ConditionalGenerator((16, 5, 5), classes)
    assert parameter_count(make) == expected
    features = make(torch.randn(4, 100, generator=draw), torch.arange(4))
    assert features.shape == (4, 16, 5, 5)
    assert 0 < features.min() < features.max() < 1


@pytest.mark.parametrize("shape", [(16, 5, 5), (3, 1, 1), (2, 4, 7), (2, 8, 8), (120,)])
def test_conditional_generator_makes_features_of_any_shape(shape, draw):
    make = ConditionalGenerator(shape, 3, noise=4, width=8)
    assert make(torch.randn(2, 4, generator=draw), torch.tensor([0, 2])).shape == (2, *shape)


# Noise and hidden layer by network: FedKF's on EMNIST and CIFAR, FedGen's own.
FEATURES = [
    ((120,), 26, 32, 256, True, 46_456),
    ((256,), 10, 64, 512, True, 170_752),
    ((256,), 100, 64, 512, True, 216_832),
    ((32,), 10, 32, 256, False, 19_744),
    ((32,), 26, 32, 256, False, 23_840),
]


@pytest.mark.parametrize(("shape", "classes", "noise", "hidden", "relu", "expected"), FEATURES)
def test_fedgen_feature_generator(shape, classes, noise, hidden, relu, expected, draw):
    make = FeatureGenerator(shape, classes, noise, hidden, relu)
    assert parameter_count(make) == expected
    assert expected == (noise + classes + 1) * hidden + 2 * hidden + (hidden + 1) * shape[0]
    features = make(torch.rand(64, noise, generator=draw), torch.arange(64) % classes)
    assert features.shape == (64, *shape)
    assert (features.min() == 0) if relu else (features.min() < 0)
    assert features.max() > 0


@pytest.mark.parametrize("name", list(models))
def test_generated_features_enter_every_models_head(name, draw):
    net = create(name, classes=10, channels=3, size=32).eval()
    labels = torch.arange(4)
    for make in (FeatureGenerator(net.feature_shape, 10, 6, 8), ConditionalGenerator(net.feature_shape, 10, 6, 16)):
        assert net.head(make(torch.rand(4, 6, generator=draw), labels)).shape == (4, 10)


@pytest.mark.parametrize("make", [FeatureGenerator((6,), 3, 4, 8, relu=False), ConditionalGenerator((6,), 3, 4, 8)])
def test_both_noise_and_label_shape_the_feature(make, draw):
    make.eval()
    z = torch.rand(2, 4, generator=draw)
    zeros, twos = torch.zeros(2, dtype=torch.int64), torch.full((2,), 2)
    assert not torch.allclose(make(z, zeros), make(z, twos))
    assert not torch.allclose(make(z, zeros)[0], make(z, zeros)[1])


@pytest.mark.parametrize(("shape", "relu", "expected"), [((120,), True, 797_304), ((16, 5, 5), False, 1_084_304)])
def test_dafkds_generator_of_features(shape, relu, expected, draw):
    """Embeddings of label and noise, then two hidden layers: its generator of images but for the last layer."""
    make = PerceptronFeatures(shape, classes=10, relu=relu)
    assert sum(p.numel() for p in make.parameters()) == expected
    features = make(torch.randn(64, 100, generator=draw), torch.arange(64) % 10)
    assert features.shape == (64, *shape)
    assert (features.min() >= 0) == relu
    images = adversarial_generator((1, 28, 28), Scale(), 10).state_dict()
    own = make.state_dict()
    assert own.keys() == images.keys()
    assert [name for name, t in own.items() if t.shape != images[name].shape] == ["layers.7.weight", "layers.7.bias"]
