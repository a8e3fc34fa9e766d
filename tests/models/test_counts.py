"""The parameter counts of the papers' networks; each is the sum of its layers, computed by hand or printed."""

import pytest

from fedalloy.nets.models import create, parameter_count

WRN_BIAS = {10: 79_486, 16: 176_926, 22: 274_366, 28: 371_806, 34: 469_246, 40: 566_686}
WRN_USUAL = {10: 79_150, 16: 176_366, 22: 273_582, 28: 370_798, 34: 468_014, 40: 565_230}
PRINTED = [79, 177, 274, 372, 469, 567]  # FedMD+Global, Table 1, in thousands


@pytest.mark.parametrize(
    ("name", "classes", "channels", "size", "options", "count"),
    [
        ("lenet5", 26, 1, 32, {}, 63_066),
        ("lenet5", 26, 1, 28, {}, 63_066),
        ("simple-cnn", 10, 3, 32, {}, 92_626),
        ("simple-cnn", 100, 3, 32, {}, 115_756),
        ("simple-cnn", 10, 3, 32, {"projection": False}, 62_006),
        ("simple-cnn", 100, 3, 32, {"projection": False}, 69_656),
        ("simple-cnn", 10, 1, 28, {}, 92_626 - 2 * 25 * 6 - 144 * 120),  # two channels and 400 - 256 inputs fewer
        ("resnet8", 10, 3, 32, {}, 1_227_594),
        ("resnet8", 100, 3, 32, {}, 1_250_724),
        ("resnet11", 10, 3, 32, {}, 383_642),
        ("resnet11", 10, 1, 28, {}, 383_354),
        ("resnet11", 10, 3, 32, {"blocks": [2, 2, 2]}, 820_442),
        ("knfu-m1", 10, 1, 28, {}, 221_994),
        ("knfu-m2", 10, 3, 32, {}, 280_218),
        ("selective-cnn", 10, 1, 28, {}, 21_840),
        ("fedmd-cnn", 16, 3, 32, {}, 3_584 + 256 + 295_168 + 512 + 225 * 256 * 16),
        ("fedmd-cnn", 16, 3, 32, {"widths": [64, 128, 256]}, 1_792 + 128 + 32_896 + 256 + 295_168 + 512 + 9 * 256 * 16),
        ("mlp", 10, 1, 28, {}, 784 * 64 + 64 + 64 * 10 + 10),
        ("mlp", 10, 1, 28, {"hidden": 32}, 784 * 32 + 32 + 32 * 10 + 10),
        ("mlp", 10, 1, 28, {"hidden": ()}, 7_850),
    ],
)
def test_count(name, classes, channels, size, options, count):
    assert parameter_count(create(name, classes=classes, channels=channels, size=size, **options)) == count


@pytest.mark.parametrize(
    ("name", "classes", "channels", "size", "options", "d", "bare"),
    [
        ("lenet5", 26, 1, 28, {}, 84, 63_066),
        ("simple-cnn", 10, 3, 32, {"projection": True}, 84, 62_006),  # its own, which has always been there
        ("resnet8", 10, 3, 32, {}, 256, 1_227_594),
        ("resnet11", 10, 3, 32, {}, 256, 383_642),
        ("knfu-m1", 10, 1, 28, {}, 32, 221_994),
        ("knfu-m2", 10, 3, 32, {}, 128, 280_218),
        ("selective-cnn", 10, 1, 28, {}, 50, 21_840),
        ("wrn", 30, 3, 32, {"depth": 10}, 64, 79_150),
        ("mlp", 10, 1, 28, {}, 64, 784 * 64 + 64 + 64 * 10 + 10),
        ("mlp", 3, 7, 1, {"hidden": [5]}, 5, 7 * 5 + 5 + 5 * 3 + 3),  # a table of seven columns
    ],
)
def test_count_with_moons_projection_head(name, classes, channels, size, options, d, bare):
    """FC d-d and FC d-256 before the output layer, which then has 256 inputs instead of d."""
    net = create(name, classes=classes, channels=channels, size=size, **{"projection": 256, **options})
    head = d * d + d + d * 256 + 256 + (256 - d) * classes
    assert parameter_count(net) == bare + head
    assert net.projected_shape == (256,)


def test_a_projection_head_keeps_an_output_layer_without_biases():
    net = create("fedmd-cnn", classes=16, channels=3, size=8, widths=[4, 6], projection=12)
    bare = create("fedmd-cnn", classes=16, channels=3, size=8, widths=[4, 6])
    d = 6 * 3 * 3
    assert parameter_count(net) - parameter_count(bare) == d * d + d + d * 12 + 12 + (12 - d) * 16


@pytest.mark.parametrize(
    ("channels", "blocks", "count"), [(3, (1, 1, 1), 381_072), (1, (1, 1, 1), 380_784), (3, (2, 2, 2), 817_872)]
)
def test_trunk_of_resnet11(channels, blocks, count):
    net = create("resnet11", classes=10, channels=channels, size=32, blocks=blocks)
    assert parameter_count(net.features) == count


def test_narrow_resnet8_is_the_small_one():
    assert 75_000 < parameter_count(create("resnet8", classes=10, channels=3, size=32, width=16)) < 80_000


@pytest.mark.parametrize(("bias", "counts"), [(True, WRN_BIAS), (False, WRN_USUAL)])
def test_wrn_and_only_biased_convolutions_give_the_printed_counts(bias, counts):
    found = {
        depth: parameter_count(create("wrn", classes=30, channels=3, size=32, depth=depth, bias=bias))
        for depth in counts
    }
    assert found == counts
    assert ([round(n / 1000) for n in found.values()] == PRINTED) == bias


def test_wrn_40_carries_2720_running_statistics():
    net = create("wrn", classes=30, channels=3, size=32, depth=40)
    assert sum(b.numel() for b in net.buffers() if b.is_floating_point()) == 2_720


@pytest.mark.parametrize("norm", ["group", "instance"])
def test_every_normalisation_has_the_same_weights_but_only_batch_has_buffers(norm):
    net = create("wrn", classes=30, channels=3, size=32, depth=10, norm=norm)
    assert parameter_count(net) == WRN_USUAL[10]
    assert not list(net.buffers())
