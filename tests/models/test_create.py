"""What `create` refuses, and the sentences it answers with."""

import re

import numpy as np
import pytest

from fedalloy.errors import UsageError
from fedalloy.nets.models import create, models


def refuse(name: str, sentence: str, **changes: object) -> None:
    with pytest.raises(UsageError) as caught:
        create(name, **{"classes": 10, "channels": 3, "size": 32, **changes})
    assert re.search(sentence, str(caught.value))


def test_registered_names():
    assert {"knfu-m1", "knfu-m2", "lenet5", "mlp", "resnet11", "resnet8"} <= set(models)
    assert {"fedmd-cnn", "selective-cnn", "simple-cnn", "wrn"} <= set(models)


def test_unknown_model():
    refuse("resnet9", r"'resnet9'.*'resnet8'")


@pytest.mark.parametrize(
    ("name", "option", "sentence"),
    [
        ("wrn", "dephth", r"'wrn'.*'dephth'.*'depth'"),
        ("resnet8", "zzz", r"'resnet8'.*'zzz'.*norm, projection, width"),
        ("lenet5", "width", r"'lenet5'.*'width'.*projection"),
    ],
)
def test_unknown_option(name, option, sentence):
    refuse(name, sentence, **{option: 1})


@pytest.mark.parametrize("name", list(models))
@pytest.mark.parametrize("key", ["classes", "channels", "size"])
@pytest.mark.parametrize("value", [0, -3, 1.5, "10", True, None])
def test_impossible_shape(name, key, value):
    refuse(name, rf"'{name}'.*\b{key}={re.escape(repr(value))} ", **{key: value})


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
        ("wrn", {"depth": 12}, r"\bdepth=12 .*write 10 or 16"),
        ("wrn", {"depth": 4}, r"\bdepth=4 .*\b10\b"),
        ("wrn", {"width": 0}, r"\bwidth=0 "),
        ("wrn", {"bias": "false"}, r"\bbias='false' .*true or false"),
        ("wrn", {"norm": "bach"}, r"\bnorm='bach' .*'batch'"),
        ("wrn", {"norm": 3}, r"\bnorm=3 .*batch, group, instance, none"),
        ("resnet8", {"width": 1.5}, r"\bwidth=1\.5 "),
        ("resnet8", {"width": 12, "norm": "group"}, r"norm='group'.*\b8\b.*\b12\b"),
        ("resnet11", {"blocks": 2}, r"\bblocks=2 .*write a list"),
        ("resnet11", {"blocks": [1, 1]}, r"\bblocks=\[1, 1\] .*three"),
        ("resnet11", {"blocks": [1, 0, 1]}, r"\bblocks=0 "),
        ("simple-cnn", {"projection": 256}, r"\bprojection=256 .*true or false"),  # it has its own
        ("lenet5", {"projection": 0}, r"\bprojection=0 .*at least 1"),
        ("lenet5", {"projection": True}, r"\bprojection=True "),
        ("fedmd-cnn", {"projection": 256}, r"\bprojection=256 .*57600 x 57600 weights"),
        ("selective-cnn", {"dropout": 1.0}, r"\bdropout=1\.0 "),
        ("selective-cnn", {"dropout": -0.1}, r"\bdropout=\-0\.1 "),
        ("selective-cnn", {"dropout": float("nan")}, r"\bdropout=nan "),
        ("selective-cnn", {"dropout": True}, r"\bdropout=True "),
        ("fedmd-cnn", {"widths": [64]}, r"\bwidths=\[64\] .*two or three"),
        ("fedmd-cnn", {"widths": [64, 0]}, r"\bwidths=0 "),
        ("fedmd-cnn", {"widths": [4, 4, 4], "size": 19}, r"\bsize=19 .*\b3 convolutions.*resize the images to 20\b"),
        ("fedmd-cnn", {"dropout": 1}, r"\bdropout=1 "),
        ("mlp", {"hidden": "64"}, r"\bhidden='64' "),
        ("mlp", {"hidden": [64, 0]}, r"\bhidden=0 "),
    ],
)
def test_impossible_option(name, options, sentence):
    refuse(name, f"the model '{name}' ", **options)
    refuse(name, sentence, **options)


def test_numbers_of_an_array_are_welcome():
    assert create("mlp", classes=np.int64(10), channels=1, size=8).head[-1].out_features == 10


@pytest.mark.parametrize("name", [name for name in models if name != "mlp"])
def test_a_table_is_for_the_mlp(name):
    refuse(name, f"'{name}'.*model = 'mlp'", channels=4, size=1)
