"""What `create` refuses, and the sentences it answers with."""

import numpy as np
import pytest

from fedalloy.errors import UsageError
from fedalloy.nets.models import create, models


def refuse(name: str, sentence: str, **changes: object) -> None:
    with pytest.raises(UsageError) as caught:
        create(name, **{"classes": 10, "channels": 3, "size": 32, **changes})
    assert sentence in str(caught.value)


def test_registered_names():
    assert {"knfu-m1", "knfu-m2", "lenet5", "mlp", "resnet11", "resnet8"} <= set(models)
    assert {"fedmd-cnn", "selective-cnn", "simple-cnn", "wrn"} <= set(models)


def test_unknown_model():
    refuse("resnet9", "there is no model 'resnet9'; did you mean 'resnet8'?")


@pytest.mark.parametrize(
    ("name", "option", "sentence"),
    [
        ("wrn", "dephth", "the model 'wrn' has no option 'dephth'; did you mean 'depth'?"),
        ("resnet8", "zzz", "the model 'resnet8' has no option 'zzz'; choose one of: norm, width"),
        ("lenet5", "width", "the model 'lenet5' has no option 'width'; it takes no options"),
    ],
)
def test_unknown_option(name, option, sentence):
    refuse(name, sentence, **{option: 1})


@pytest.mark.parametrize("name", list(models))
@pytest.mark.parametrize("key", ["classes", "channels", "size"])
@pytest.mark.parametrize("value", [0, -3, 1.5, "10", True, None])
def test_impossible_shape(name, key, value):
    refuse(name, f"the model '{name}' cannot be built: {key}={value!r} is impossible", **{key: value})


@pytest.mark.parametrize(
    ("name", "size"),
    [("lenet5", 30), ("simple-cnn", 15), ("selective-cnn", 15), ("knfu-m1", 30), ("knfu-m2", 6), ("fedmd-cnn", 4)]
    + [(name, size) for name in ("resnet8", "resnet11", "wrn") for size in (4, 30)],
)
def test_impossible_size(name, size):
    refuse(name, f"size={size}", size=size)
    refuse(name, "resize the images to", size=size)


@pytest.mark.parametrize(
    ("name", "size"), [("simple-cnn", 16), ("selective-cnn", 16), ("resnet8", 8), ("fedmd-cnn", 5), ("mlp", 1)]
)
def test_smallest_size(name, size):
    assert create(name, classes=10, channels=3, size=size)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("wrn", {"depth": 12}, "depth=12 is not 6n + 4; write 10 or 16"),
        ("wrn", {"depth": 4}, "depth=4 is impossible; write a whole number from 10 on"),
        ("wrn", {"width": 0}, "width=0 is impossible"),
        ("wrn", {"bias": "false"}, "bias='false' is impossible; write true or false"),
        ("wrn", {"norm": "bach"}, "norm='bach' is unknown; did you mean 'batch'?"),
        ("wrn", {"norm": 3}, "norm=3 is unknown; choose one of: batch, group, instance, none"),
        ("resnet8", {"width": 1.5}, "width=1.5 is impossible"),
        ("resnet8", {"width": 12, "norm": "group"}, "8 groups, which do not divide 12 channels"),
        ("resnet11", {"blocks": 2}, "blocks=2 is impossible; write a list"),
        ("resnet11", {"blocks": [1, 1]}, "blocks=[1, 1] is impossible; write three numbers"),
        ("resnet11", {"blocks": [1, 0, 1]}, "blocks=0 is impossible"),
        ("simple-cnn", {"projection": 1}, "projection=1 is impossible; write true or false"),
        ("selective-cnn", {"dropout": 1.0}, "dropout=1.0 is impossible"),
        ("selective-cnn", {"dropout": -0.1}, "dropout=-0.1 is impossible"),
        ("selective-cnn", {"dropout": float("nan")}, "dropout=nan is impossible"),
        ("selective-cnn", {"dropout": True}, "dropout=True is impossible"),
        ("fedmd-cnn", {"widths": [64]}, "widths=[64] is impossible; write two or three, such as [128, 256]"),
        ("fedmd-cnn", {"widths": [64, 0]}, "widths=0 is impossible"),
        ("fedmd-cnn", {"widths": [4, 4, 4], "size": 19}, "size=19 is too small for 3 convolutions; resize the images"),
        ("fedmd-cnn", {"dropout": 1}, "dropout=1 is impossible"),
        ("mlp", {"hidden": "64"}, "hidden='64' is impossible"),
        ("mlp", {"hidden": [64, 0]}, "hidden=0 is impossible"),
    ],
)
def test_impossible_option(name, options, sentence):
    refuse(name, f"the model '{name}' cannot be built: ", **options)
    refuse(name, sentence, **options)


def test_numbers_of_an_array_are_welcome():
    assert create("mlp", classes=np.int64(10), channels=1, size=8).head[-1].out_features == 10


@pytest.mark.parametrize("name", [name for name in models if name != "mlp"])
def test_a_table_is_for_the_mlp(name):
    refuse(name, f"the model '{name}' takes images; for a table write model = 'mlp'", channels=4, size=1)
