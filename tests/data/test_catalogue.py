"""Data sets by name and from arrays, their checks, and the samples that are made of them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.data import Dataset, Samples, catalogue, datasets, from_arrays, from_torch, load_data, readers, tensors
from fedalloy.data.arrays import statistics
from fedalloy.data.catalogue import drawn_per_class, first_per_class, only_classes
from fedalloy.data.columns import Recipe
from fedalloy.data.fetch import find
from fedalloy.data.files import FASHION_MNIST
from fedalloy.data.normalisation import NORMALISATIONS, normalisation
from fedalloy.errors import DataError, UsageError

IMAGES = ["cifar10", "cifar100", "cinic10", "emnist-letters", "fashion-mini", "fashion-mnist", "mnist", "svhn", "tiny"]
NAMES = sorted([*IMAGES, "heart-disease", "hospitals"])
real = pytest.mark.skipif("FEDALLOY_DATA" not in os.environ, reason="FEDALLOY_DATA names no folder")


def small(**changes: object) -> Dataset:
    rng = np.random.default_rng(0)
    made = Dataset(
        "small",
        rng.integers(0, 256, (6, 3, 4, 4), np.uint8),
        np.array([0, 1, 2, 0, 1, 2]),
        rng.integers(0, 256, (2, 3, 4, 4), np.uint8),
        np.array([2, 1]),
        3,
        (0.5, 0.4, 0.3),
        (0.1, 0.2, 0.25),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def bad_float() -> np.ndarray:
    x = np.zeros((6, 3, 4, 4), np.float32)
    x[4, 0, 0, 0] = np.nan
    return x


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"y": np.array([0, 1, 2, 3, 1, 2])}, r"training label 3 is 3.*\b3 classes.*0 to 2\b"),
        ({"y": np.array([0, 1, -1, 0, 1, 2])}, "training label 2 is -1"),
        ({"y_test": np.array([2, 9])}, "test label 1 is 9"),
        ({"y": np.array([0, 1])}, r"\b6 training samples.*\b2 training labels"),
        ({"x": bad_float()}, r"training sample 4 .*NaN"),
        ({"x": np.zeros((6, 4, 4), np.uint8)}, r"training samples.*\(6, 4, 4\).*N x C x H x W"),
        ({"x": np.zeros((6, 3, 4, 4))}, "training samples.*float64"),
        ({"y": np.zeros(6, np.int32)}, "training labels.*int32"),
        ({"x": np.zeros((0, 3, 4, 4), np.uint8), "y": np.zeros(0, np.int64)}, "training.*empty"),
        ({"x_test": None}, "x_test and y_test"),
        ({"x_test": np.zeros((2, 1, 4, 4), np.uint8)}, r"test samples.*\(1, 4, 4\).*training samples \(3, 4, 4\)"),
        ({"mean": (0.5,)}, r"mean and std.*\b3 channels"),
        ({"std": (0.1, 0.0, 0.1)}, r"std .*\b0\b.*\(0\.1, 0\.0, 0\.1\)"),
        ({"label_names": ("a", "b")}, r"\b2 label names.*\b3 classes"),
        ({"client_ids": np.zeros(5, np.int64)}, r"client id.*\(5,\).*\(6,\)"),
        ({"classes": 1}, r"\b1\b.*at least 2\b"),
    ],
)
def test_a_wrong_data_set_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        small(**changes)
    assert str(caught.value).startswith("data set 'small': ")
    assert re.search(sentence, str(caught.value))


def test_tensors_normalise_by_hand() -> None:
    data = small()
    train, test = tensors(data)
    assert test is not None
    assert train.x.dtype == torch.float32
    for c in range(3):
        expected = (data.x[4, c, 1, 2] / 255 - data.mean[c]) / data.std[c]
        assert train.inputs[4, c, 1, 2].item() == pytest.approx(expected, abs=1e-5)
    assert test.labels.tolist() == [2, 1]
    assert train.index.tolist() == [0, 1, 2, 3, 4, 5]


def test_tensors_leave_float_data_alone() -> None:
    x = np.ones((2, 1, 2, 2), np.float32)
    data = Dataset("f", x, np.array([0, 1]), None, None, 2, (0.5,), (2.0,))
    train, test = tensors(data)
    assert test is None
    assert train.inputs.unique().tolist() == [0.25]  # not divided by 255
    assert (x == 1).all()  # and the array itself is untouched


def test_resizing_is_bilinear() -> None:
    ramp = np.tile(np.array([0, 255], np.uint8), (1, 1, 2, 1))
    data = Dataset("ramp", ramp, np.array([0]), None, None, 2, (0.0,), (1.0,))
    train, _ = tensors(data, size=4)
    assert torch.allclose(train.inputs[0, 0], torch.tensor([0, 0.25, 0.75, 1]).expand(4, 4), atol=1e-6)


def test_samples_share_one_pool() -> None:
    train, _ = tensors(small())
    client = train.subset([5, 3, 1])
    assert client.x.data_ptr() == train.x.data_ptr()
    x, y = client.take(torch.tensor([2, 0]))
    assert y.tolist() == [1, 2]
    assert torch.equal(x, train.x[[1, 5]])
    assert client.subset([1]).index.tolist() == [3]
    assert client.counts(4).tolist() == [1, 1, 1, 0]
    assert torch.equal(client.inputs, train.x[[5, 3, 1]])
    empty = client.subset([])
    assert len(empty) == 0
    assert empty.counts(2).tolist() == [0, 0]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 9))
def test_first_per_class_takes_the_first_of_each(labels: list[int], k: int) -> None:
    y = np.array(labels)
    rows = first_per_class(y, k)
    for label in set(labels):
        assert rows[y[rows] == label].tolist() == [i for i, value in enumerate(labels) if value == label][:k]
    assert (np.diff(rows) > 0).all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_drawn_per_class_takes_as_many_of_each(labels: list[int], k: int, seed: int) -> None:
    y = np.array(labels)
    rows = drawn_per_class(y, k, seed)
    assert len(set(rows.tolist())) == len(rows)
    assert np.bincount(y[rows], minlength=5).tolist() == np.minimum(np.bincount(y, minlength=5), k).tolist()
    # Class by class, in the order of their first rows.
    assert list(dict.fromkeys(y[rows].tolist())) == list(dict.fromkeys(labels))


def test_drawn_per_class_is_random_and_follows_its_seed() -> None:
    y = np.repeat([1, 0], 500)
    one, again, other = (drawn_per_class(y, 20, seed) for seed in (3, 3, 4))
    assert one.tolist() == again.tolist()
    assert not set(one) <= set(other)
    assert not set(one) <= set(first_per_class(y, 20))


def test_only_some_classes_train_and_test() -> None:
    x, y = np.arange(6), np.array([3, 0, 2, 0, 1, 3])
    few = only_classes(readers.Arrays(x, y, x[::-1], y[::-1]), [3, 0], tuple("abcd"))
    assert few.label_names == ("d", "a")
    assert few.x.tolist() == [0, 1, 3, 5]
    assert few.y.tolist() == [0, 1, 1, 0]
    assert few.x_test is not None
    assert few.y_test is not None
    assert few.x_test.tolist() == [5, 3, 1, 0]
    assert few.y_test.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("only", [[], [1], [1, 1], [0, 4], [-1, 2]])
def test_only_refuses_what_are_no_classes(only: list[int]) -> None:
    arrays = readers.Arrays(np.arange(4), np.arange(4), None, None)
    with pytest.raises(UsageError, match=r"only = \[.*\].*from 0 to 3\b"):
        only_classes(arrays, only, tuple("abcd"))


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((4, 7), np.float64, (4, 7, 1, 1)),
        ((4, 9, 8), np.uint8, (4, 1, 9, 8)),
        ((4, 9, 8, 3), np.uint8, (4, 3, 9, 8)),
        ((4, 3, 9, 8), np.uint8, (4, 3, 9, 8)),
        ((4, 3, 9, 3), np.uint8, (4, 3, 9, 3)),  # ambiguous: channels first wins
        ((4, 9, 8, 3), np.float32, (4, 3, 9, 8)),
        ((4, 9, 8, 1), np.float64, (4, 1, 9, 8)),
        ((4, 16, 1, 1), np.float32, (4, 16, 1, 1)),  # features, not the last axis alone
        ((4, 8, 3, 3), np.float32, (4, 8, 3, 3)),
    ],
)
def test_the_shape_rule(shape: tuple[int, ...], dtype: type, expected: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    assert from_arrays(x, np.arange(4)).x.shape == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_last_images_keep_their_pixels(dtype: type) -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3)).astype(dtype)
    assert np.array_equal(from_arrays(x, [0, 1]).x[1, 2], x[1, :, :, 2])


def test_from_arrays_measures_and_infers() -> None:
    rng = np.random.default_rng(1)
    x, x_test = rng.normal(3, 2, (50, 4)), rng.normal(size=(5, 4))
    data = from_arrays(torch.tensor(x), torch.arange(50) % 3, x_test=x_test, y_test=[3.0] * 5, client_ids=[7] * 50)
    assert data.classes == 4
    assert data.client_ids is not None
    assert (data.mean, [column.name for column in data.columns]) == ((0.0,) * 4, ["0", "1", "2", "3"])
    assert data.recipe == Recipe()  # who tells what about the columns is not known yet
    pixels = rng.integers(0, 256, (9, 2, 5, 5), np.uint8)
    mean, std = statistics(pixels)
    assert np.allclose(mean, (pixels / 255).mean(axis=(0, 2, 3)))
    assert np.allclose(std, (pixels / 255).std(axis=(0, 2, 3)))
    assert statistics(np.full((2, 1, 2, 2), 51, np.uint8)) == (pytest.approx((0.2,)), (1.0,))


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (np.zeros((2, 3)), [0.5, 1], "labels.*integers.*float64"),
        (np.zeros((2, 3)), ["a", "b"], "labels.*integers.*<U1"),
        (np.zeros((2, 3)), [np.nan, 1], "labels.*integers.*float64"),
        (np.array([["a"], ["b"]]), [0, 1], "inputs.*<U1.*numbers"),
        (np.zeros(2), [0, 1], r"inputs.*\(2,\)"),
        (np.zeros((0, 3)), [], "training.*empty"),
        (np.zeros((2, 3)), [0, -1], "labels.*-1 and 0"),
        (np.full((2, 3), np.nan), [0, 1], "training row 0, column 0.*NaN"),
    ],
)
def test_wrong_arrays_are_refused(x: np.ndarray, y: list[float], sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        from_arrays(x, y)
    assert re.search(sentence, str(caught.value))


def test_many_classes_are_believed_where_they_are_given_or_all_have_rows() -> None:
    assert from_arrays(np.zeros((2, 3)), [0, 5000], classes=5001).classes == 5001
    assert from_arrays(np.zeros((1502, 3)), [*range(1501), 1501]).classes == 1502


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ((torch.tensor(0.5), 1), "labels.*integers"),
        (("cat", "dog"), "labels.*integers"),
        ((torch.eye(2)[0], 1), "label.*number"),
    ],
)
def test_labels_of_a_torch_data_set_are_as_strict(labels: tuple[object, object], sentence: str) -> None:
    pairs = [(torch.rand(3, generator=torch.Generator().manual_seed(0)), label) for label in labels]
    with pytest.raises(DataError, match=sentence):
        from_torch(pairs)  # type: ignore[arg-type]


def test_from_torch_takes_whole_labels_of_any_kind() -> None:
    for labels in ([1.0, 0.0], [True, False], [torch.tensor([1]), torch.tensor(0)], [np.int8(1), 0]):
        assert from_torch(
            [(torch.rand(3, generator=torch.Generator().manual_seed(1)), label) for label in labels]
        ).y.tolist() == [1, 0]  # type: ignore[arg-type]


def test_feature_vectors_have_no_size() -> None:
    data = from_arrays(np.eye(4), [0, 1, 0, 1], name="wards")
    assert tensors(data, size=1)[0].x.shape == (4, 4, 1, 1)
    with pytest.raises(UsageError, match=r"'wards'.*feature vectors.*8 x 8.*data\.size"):
        tensors(data, size=8)


def test_from_torch() -> None:
    x, y = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(2)), torch.arange(6) % 3
    rows = torch.utils.data.TensorDataset(x, y)
    data = from_torch(rows, torch.utils.data.Subset(rows, [1, 2]), name="mine")
    assert np.array_equal(data.x, x.numpy())
    assert data.y_test is not None
    assert data.y_test.tolist() == [1, 2]
    with pytest.raises(DataError, match="is empty"):
        from_torch(torch.utils.data.Subset(rows, []))
    uneven = [
        (torch.rand(1, 2, 2, generator=torch.Generator().manual_seed(3)), 0),
        (torch.rand(1, 3, 3, generator=torch.Generator().manual_seed(4)), 1),
    ]
    with pytest.raises(DataError, match=r"shapes.*\(1, 2, 2\).*\(1, 3, 3\)"):
        from_torch(uneven)  # type: ignore[arg-type]


def test_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "wards.npz"
    np.savez_compressed(path, x=np.eye(4), y=[0, 1, 0, 1], client=[2, 2, 5, 5])
    data = load_data(path)
    assert data.name == "wards"
    assert data.x.shape == (4, 4, 1, 1)
    assert data.x_test is None
    assert data.client_ids is not None
    assert data.client_ids.tolist() == [2, 2, 5, 5]
    assert load_data(str(path), classes=7).classes == 7
    with pytest.raises(UsageError, match=r"'clases'.*'classes'"):
        load_data(path, clases=7)
    with pytest.raises(DataError, match=r"absent\.npz"):
        load_data(tmp_path / "absent.npz")


@pytest.mark.parametrize("name", ["data.csv", "folder/data", "./tiny"])
def test_a_path_where_nothing_is_is_told_what_could_be_there(name: str) -> None:
    with pytest.raises(DataError, match=rf"'{Path(name)}'.*\.csv.*\.npz.*folder"):
        load_data(name)


def test_the_catalogue_is_complete() -> None:
    assert list(datasets) == NAMES
    for source in datasets.values():
        assert source.about
        assert source.source
        assert source.licence
    with pytest.raises(UsageError, match=r"'cifar-10'.*'cifar10'"):
        load_data("cifar-10")


def test_every_normalisation_belongs_to_a_data_set_and_fits_it() -> None:
    colour = {"svhn", "cifar10", "cifar100", "cinic10"}
    for (name, _), (mean, std) in NORMALISATIONS.items():
        assert name in NAMES
        assert len(mean) == len(std) == (3 if name in colour else 1)
    assert normalisation("cifar100", "fedkf") == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert normalisation("cifar10", "kdia")[0] == pytest.approx((0.49137, 0.48235, 0.44667), abs=1e-5)
    with pytest.raises(UsageError, match="'fedkf'"):
        normalisation("cifar10", "fedfk")


def test_fashion_mini_is_balanced_and_unchanged() -> None:
    data = load_data("fashion-mini")
    assert data.x.shape == (6000, 1, 28, 28)
    assert data.x_test is not None
    assert data.y_test is not None
    assert np.bincount(data.y).tolist() == [600] * 10
    assert np.bincount(data.y_test).tolist() == [100] * 10
    assert int(data.x.sum(dtype=np.int64)) + int(data.x_test.sum(dtype=np.int64)) == 401134185
    assert data.y[:8].tolist() == [9, 0, 0, 3, 0, 2, 7, 2]  # how Fashion-MNIST begins
    assert load_data("fashion-mini", normalise="dafkd").mean == (0.5,)


def test_tiny_is_the_mean_of_blocks() -> None:
    tiny, mini = load_data("tiny"), load_data("fashion-mini")
    assert tiny.x.shape == (600, 1, 8, 8)
    assert tiny.x_test is not None
    assert tiny.x_test.shape == (200, 1, 8, 8)
    assert np.bincount(tiny.y).tolist() == [60] * 10
    # The first image of both is the same shoe; block (3, 3) of the framed image is rows and columns 10 to 13.
    assert tiny.x[0, 0, 3, 3] == round(mini.x[0, 0, 10:14, 10:14].mean())
    train, _ = tensors(tiny)
    assert train.inputs.mean().item() == pytest.approx(0, abs=1e-4)
    assert train.inputs.std().item() == pytest.approx(1, abs=1e-3)


def test_options_are_checked_before_anything_is_fetched() -> None:
    with pytest.raises(UsageError, match='write "fine"'):
        load_data("cifar100", labels="course")
    with pytest.raises(UsageError, match=r"'cinic10'.*'kdai'.*'kdia'"):
        load_data("cinic10", normalise="kdai")
    with pytest.raises(UsageError, match=r"'svhn'.*'per_class'.*normalise"):
        load_data("svhn", per_class=3)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist-letters", "cifar10", "cifar100"])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pick": "random"}, "pick = 'random' has no effect without per_class"),
        ({"pick": "first"}, "pick = 'first' has no effect without per_class"),
        ({"per_class": 5, "pick": "last"}, 'pick = \'last\'.*"first" or "random"'),
        ({"per_class": 5, "pick_seed": 1}, 'pick_seed has no effect without pick = "random"'),
        ({"per_class": 5, "pick": "first", "pick_seed": 0}, "pick_seed has no effect"),
    ],
)
def test_a_pick_without_effect_is_refused(name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load_data(name, **options)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_some_digits_and_clothes_of_each_class(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.random.default_rng(0).integers(0, 10, 400).astype(np.uint8)
    x = np.arange(400, dtype=np.uint16).view(np.uint8).reshape(400, 1, 1, 2)  # every image says which row it is
    monkeypatch.setattr(catalogue, "fetch", lambda file: Path(file.name))
    monkeypatch.setattr(readers, "read_mnist", lambda _: readers.Arrays(x, y, x[:10], y[:10]))
    first = load_data(name, per_class=7)
    assert (
        load_data(name, per_class=7, pick="first").x.tolist() == first.x.tolist() == x[first_per_class(y, 7)].tolist()
    )
    drawn = load_data(name, per_class=7, pick="random", pick_seed=5)
    assert drawn.x.tolist() == x[drawn_per_class(y, 7, 5)].tolist()
    assert drawn.y.tolist() == y[drawn_per_class(y, 7, 5)].tolist()
    assert (first.note, drawn.note) == ("the first 7 of each class", "random 7 of each class")
    assert drawn.x_test is not None
    assert len(drawn.x_test) == 10
    with pytest.raises(UsageError, match="pick_seed = -1"):
        load_data(name, per_class=7, pick="random", pick_seed=-1)


PUBLISHED = {  # training rows, test rows, classes, mean of the first channel: of the whole sets
    "mnist": (60_000, 10_000, 10, 0.1307),
    "fashion-mnist": (60_000, 10_000, 10, 0.2860),
    "emnist-letters": (124_800, 20_800, 26, 0.1722),
    "svhn": (73_257, 26_032, 10, 0.4377),
    "cifar10": (50_000, 10_000, 10, 0.4914),
    "cifar100": (50_000, 10_000, 100, 0.5071),
}
COMPACT = {"emnist-letters": (10_000, 1_924), "svhn": (15_000, 5_000), "cifar100": (10_000, 2_000)}


@real
@pytest.mark.real
@pytest.mark.parametrize("name", PUBLISHED)
def test_real_sets_are_what_was_published(name: str) -> None:
    if name == "fashion-mnist" and find(FASHION_MNIST[0]) is None:
        pytest.skip("Debian's package dataset-fashion-mnist is not installed, and FEDALLOY_DATA has no such set")
    data = load_data(name)
    train, test, classes, mean = PUBLISHED[name]
    assert data.x_test is not None
    assert (len(data.x), len(data.x_test)) == (COMPACT[name] if data.note else (train, test))
    assert data.classes == classes == len(np.unique(data.y))
    measured = statistics(data.x)
    assert measured[0][0] == pytest.approx(mean, abs=0.003 if data.note else 0.0001)
    assert measured[1] == pytest.approx(data.std, abs=0.002 if data.note else 0.0001)


@real
@pytest.mark.real
def test_real_cifar100_has_twenty_coarse_classes() -> None:
    data = load_data("cifar100", labels="coarse", normalise="kdia")
    assert data.classes == 20
    assert len(set(np.bincount(data.y))) == 1


@real
@pytest.mark.real
def test_real_classes_of_fedmd() -> None:
    data = load_data("cifar100", only=[0, 2, 20, 63, 71, 82], per_class=30)
    assert data.label_names == ("apple", "baby", "chair", "porcupine", "sea", "sunflower")
    assert np.bincount(data.y).tolist() == [30] * 6
    assert data.y_test is not None
    assert len(np.bincount(data.y_test)) == data.classes == 6
    assert data.note.startswith("6 classes of the first 30 of each class")
    letters = load_data("emnist-letters", only=[0, 1, 2, 3, 4, 5])
    assert letters.label_names == tuple("abcdef")


@real
@pytest.mark.real
def test_real_photographs_per_class() -> None:
    data = load_data("cifar10", per_class=20, only=[3, 5])
    assert data.label_names == ("cat", "dog")
    assert np.bincount(data.y).tolist() == [20, 20]
    assert data.y_test is not None
    assert len(data.y_test) == 2_000


@real
@pytest.mark.real
def test_real_letters_per_class() -> None:
    whole, few = load_data("emnist-letters"), load_data("emnist-letters", per_class=480, normalise="fedkf")
    assert np.bincount(few.y).tolist() == np.minimum(np.bincount(whole.y), 480).tolist()
    train, _ = tensors(few, size=32)
    assert isinstance(train, Samples)
    assert train.inputs.mean().item() == pytest.approx(0, abs=0.01)
    assert train.inputs.std().item() == pytest.approx(1, abs=0.01)
    assert "480" in few.note
