"""The data sets that fedalloy knows by name, where they come from, and how to load one."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedalloy.base.registry import LONGEST, Registry, suggest
from fedalloy.data import files, heart, readers
from fedalloy.data.arrays import from_arrays
from fedalloy.data.columns import Impute, Recipe
from fedalloy.data.fetch import RemoteFile, fetch, find
from fedalloy.data.normalisation import Constants, normalisation
from fedalloy.data.own.dataset import is_own, own_dataset
from fedalloy.data.samples import Array, Dataset
from fedalloy.errors import UsageError

Pick = Literal["first", "random"]

_DIGITS = tuple(string.digits)
_CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
AGREED = "sites"  # the name of data that stays at the sites of a deployment
LISTED = "clients"  # the name of the data that [[clients]] lists
GIVEN = ("source", "size", "agreed", "labelled")  # what a reader of own files takes besides the keys of [data]
_EMBEDDED = Path(__file__).with_name("embedded") / "fashion_mini.npz"
HOSPITALS = Path(__file__).with_name("embedded") / "hospitals"


@dataclass(frozen=True)
class Source:
    """A data set in the catalogue: how to read it, what it is, where it comes from and under which licence."""

    name: str
    read: Callable[..., Dataset]
    about: str
    source: str
    licence: str
    clients: bool = False  # whether its rows have natural clients
    table: bool = False
    small: bool = False  # whether its images are too small for the usual network


datasets: Registry[Source] = Registry("data set")


def dataset(
    name: str,
    *,
    about: str,
    source: str,
    licence: str,
    clients: bool = False,
    table: bool = False,
    small: bool = False,
) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Register a function that reads a data set; its keyword arguments are the options of `load_data`."""

    def add(read: Callable[..., Dataset]) -> Callable[..., Dataset]:
        datasets.register(name, by=read)(Source(name, read, about, source, licence, clients, table, small))
        return read

    return add


def load_data(name_or_path: str | Path, **options: Any) -> Dataset:
    """Load a data set by its name, or your own files by their path.

    >>> data = load_data("tiny")
    >>> data.x.shape, data.classes
    ((600, 1, 8, 8), 10)
    >>> load_data("tiny", normalise="kdia")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: data set 'tiny' has no option 'normalise'; it has no options
    """
    name = str(name_or_path)
    read = reader(name)
    known = options_of(read)
    for option in options.keys() - {"size"}:
        if option not in known:
            hint = suggest(option, known) if known else "it has no options"
            raise UsageError(f"data set '{name}' has no option '{option}'; {hint}")
    return read(**options)


def reader(name: str) -> Callable[..., Dataset]:
    """Return the function that reads a data set or own files; its keyword arguments are the options of `load_data`."""
    if name in datasets:
        return datasets[name].read
    if name == AGREED:
        raise UsageError(
            f"'{AGREED}' stands for data that only real sites have; for a simulation, give the path of a file or folder"
        )
    if name == LISTED:
        raise UsageError(f"'{LISTED}' stands for the files under [[clients]]; write name and data for each client")
    if is_own(name):
        return partial(own_dataset, Path(name))
    hint = suggest(name, datasets)
    own = "" if hint.endswith("?") else "; your own is the path of a file or folder, or needs --plugin FILE.py"
    raise UsageError(f"there is no data set {name[:LONGEST]!r}; {hint}{own}")


def options_of(read: Callable[..., Dataset]) -> list[str]:
    """The options of a reader that users choose."""
    return [key for key in inspect.signature(read).parameters if key not in GIVEN]


def first_per_class(y: Array, k: int) -> Array:
    """Return the rows of the first `k` samples of every class, in file order; a smaller class gives all its rows.

    >>> first_per_class(np.array([0, 1, 0, 0, 1]), 2).tolist()
    [0, 1, 2, 4]
    """
    if k < 1:
        raise UsageError(f"per_class = {k} must be at least 1")
    return np.sort(np.concatenate([np.flatnonzero(y == label)[:k] for label in np.unique(y)]))


def drawn_per_class(y: Array, k: int, seed: int) -> Array:
    """Return the rows of `k` samples of every class, drawn at random; a smaller class gives all its rows.

    This is FedKF's draw, with NumPy's legacy generator: each class is shuffled, in the order of their first rows. The
    rows stay in the order drawn, class by class, so that FedKF's partition of them is FedKF's too.

    >>> drawn_per_class(np.array([1, 0, 1, 1, 0]), 2, seed=0).tolist()
    [3, 2, 1, 4]
    """
    if k < 1:
        raise UsageError(f"per_class = {k} must be at least 1")
    if not 0 <= seed < 2**32:
        raise UsageError(f"pick_seed = {seed} does not fit NumPy's legacy generator; write one from 0 to 4294967295")
    stream = np.random.RandomState(seed)
    labels, first = np.unique(y, return_index=True)
    drawn = [stream.permutation(np.flatnonzero(y == label))[:k] for label in labels[np.argsort(first)]]
    return np.concatenate(drawn)


def only_classes(arrays: readers.Arrays, only: Sequence[int], names: tuple[str, ...]) -> readers.Arrays:
    """Keep only the rows of some classes, which are numbered from 0 in the given order.

    >>> y = np.array([0, 1, 2, 1])
    >>> few = only_classes(readers.Arrays(np.arange(4), y, None, None), [2, 1], ("ape", "bee", "cow"))
    >>> few.x.tolist(), few.y.tolist(), few.label_names
    ([1, 2, 3], [1, 0, 1], ('cow', 'bee'))
    """
    if len(only) < 2 or len(set(only)) < len(only) or not all(0 <= label < len(names) for label in only):
        raise UsageError(
            f"only = {list(only)} is invalid; write two or more different classes from 0 to {len(names) - 1}"
        )
    number = np.full(len(names), -1)
    number[list(only)] = np.arange(len(only))
    x_test, y_test = arrays.x_test, arrays.y_test
    if x_test is not None and y_test is not None:
        tested = number[y_test] >= 0
        x_test, y_test = x_test[tested], number[y_test[tested]]
    rows = number[arrays.y] >= 0
    return readers.Arrays(arrays.x[rows], number[arrays.y[rows]], x_test, y_test, tuple(names[label] for label in only))


@dataclass(frozen=True)
class _Few:
    """How many training samples of each class, and which; an option without an effect is refused."""

    per_class: int | None = None
    pick: Pick | None = None
    pick_seed: int | None = None

    def __post_init__(self) -> None:
        if self.pick not in (None, "first", "random"):
            raise UsageError(f'pick = {self.pick!r} is invalid; write "first" or "random"')
        if self.pick is not None and self.per_class is None:
            raise UsageError(f"pick = '{self.pick}' has no effect without per_class; write per_class, or leave it out")
        if self.pick_seed is not None and self.pick != "random":
            raise UsageError('pick_seed has no effect without pick = "random"; write that, or leave it out')

    def rows(self, y: Array) -> Array:
        assert self.per_class is not None
        if self.pick == "random":
            return drawn_per_class(y, self.per_class, self.pick_seed or 0)
        return first_per_class(y, self.per_class)


@dataset(
    "mnist",
    about="70,000 handwritten digits, 28 x 28 grey",
    source="LeCun, Cortes and Burges; yann.lecun.com/exdb/mnist",
    licence="CC BY-SA 3.0 as commonly given; the authors state none",
)
def _mnist(
    normalise: str = "default", per_class: int | None = None, pick: Pick | None = None, pick_seed: int | None = None
) -> Dataset:
    constants, few = normalisation("mnist", normalise), _Few(per_class, pick, pick_seed)
    return _part_of("mnist", constants, readers.read_mnist([fetch(file) for file in files.MNIST]), _DIGITS, "", few)


@dataset(
    "fashion-mnist",
    about="70,000 pieces of clothing, 28 x 28 grey",
    source="Xiao, Rasul and Vollgraf 2017; github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
)
def _fashion_mnist(
    normalise: str = "default", per_class: int | None = None, pick: Pick | None = None, pick_seed: int | None = None
) -> Dataset:
    constants, few = normalisation("fashion-mnist", normalise), _Few(per_class, pick, pick_seed)
    arrays = readers.read_mnist([fetch(file) for file in files.FASHION_MNIST])
    return _part_of("fashion-mnist", constants, arrays, _FASHION_NAMES, "", few)


@dataset(
    "emnist-letters",
    about="145,600 handwritten letters, 28 x 28 grey, 26 classes; FedKF draws 480 of each at random",
    source="Cohen et al. 2017; www.nist.gov/itl/products-and-services/emnist-dataset",
    licence="none stated; made from NIST Special Database 19",
)
def _emnist_letters(
    normalise: str = "default",
    per_class: int | None = None,
    pick: Pick | None = None,
    pick_seed: int | None = None,
    only: Sequence[int] | None = None,
) -> Dataset:
    constants, few = normalisation("emnist-letters", normalise), _Few(per_class, pick, pick_seed)
    arrays, note = _whole_or_compact(
        files.EMNIST,
        readers.read_emnist_letters,
        files.COMPACT_EMNIST,
        readers.read_compact,
        "10,000 of 124,800 training and 1,924 test letters",
    )
    return _part_of("emnist-letters", constants, arrays, tuple(string.ascii_lowercase), note, few, only)


@dataset(
    "svhn",
    about="99,289 cropped house numbers, 32 x 32 colour",
    source="Netzer et al. 2011; ufldl.stanford.edu/housenumbers",
    licence="non-commercial use only",
)
def _svhn(normalise: str = "default") -> Dataset:
    constants = normalisation("svhn", normalise)
    compact = None if find(files.SVHN_TRAIN) else find(files.COMPACT_SVHN)
    if compact is None:
        return _build("svhn", constants, readers.read_svhn(fetch(files.SVHN_TRAIN), fetch(files.SVHN_TEST)), _DIGITS)
    note = "15,000 of 73,257 training and 5,000 of 26,032 test digits"
    return _build("svhn", constants, readers.read_compact(compact), _DIGITS, note)


@dataset(
    "cifar10",
    about="60,000 small photographs, 32 x 32 colour, 10 classes",
    source="Krizhevsky 2009; www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated",
)
def _cifar10(
    normalise: str = "default",
    per_class: int | None = None,
    pick: Pick | None = None,
    pick_seed: int | None = None,
    only: Sequence[int] | None = None,
) -> Dataset:
    constants, few = normalisation("cifar10", normalise), _Few(per_class, pick, pick_seed)
    arrays, _ = _whole_or_compact(files.CIFAR10, readers.read_cifar10, files.COMPACT_CIFAR10, readers.read_compact, "")
    return _part_of("cifar10", constants, arrays, _CIFAR10_NAMES, "", few, only)


@dataset(
    "cifar100",
    about='60,000 small photographs, 32 x 32 colour, 100 classes or, with labels="coarse", 20',
    source="Krizhevsky 2009; www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated",
)
def _cifar100(
    normalise: str = "default",
    labels: str = "fine",
    per_class: int | None = None,
    pick: Pick | None = None,
    pick_seed: int | None = None,
    only: Sequence[int] | None = None,
) -> Dataset:
    if labels not in ("fine", "coarse"):
        raise UsageError(f'labels = \'{labels}\' is invalid; write "fine" (100 classes) or "coarse" (20 classes)')
    constants, coarse = normalisation("cifar100", normalise), labels == "coarse"
    few = _Few(per_class, pick, pick_seed)
    arrays, note = _whole_or_compact(
        files.CIFAR100,
        lambda path: readers.read_cifar100(path, coarse=coarse),
        files.COMPACT_CIFAR100,
        lambda path: readers.read_compact(path, coarse=coarse),
        "10,000 of 50,000 training and 2,000 of 10,000 test images, the same number of every class",
    )
    return _part_of("cifar100", constants, arrays, arrays.label_names, note, few, only)


@dataset(
    "cinic10",
    about="CIFAR-10's classes with ImageNet images added, 32 x 32 colour, 90,000 for training and 90,000 for testing",
    source="Darlow et al. 2018; doi.org/10.7488/ds/2448",
    licence="CC BY 4.0",
)
def _cinic10(normalise: str = "default") -> Dataset:
    constants = normalisation("cinic10", normalise)
    return _build("cinic10", constants, readers.read_cinic10(fetch(files.CINIC10), _CIFAR10_NAMES), _CIFAR10_NAMES)


@dataset(
    "fashion-mini",
    about="7,000 pieces of clothing from Fashion-MNIST, 28 x 28 grey; comes with fedalloy",
    source="the first 600 training and 100 test images of each class of fashion-mnist",
    licence="MIT",
)
def _fashion_mini(normalise: str = "default") -> Dataset:
    constants = normalisation("fashion-mini", normalise)
    return _build("fashion-mini", constants, readers.read_npz(_EMBEDDED), _FASHION_NAMES)


@dataset(
    "tiny",
    about="800 pieces of clothing, 8 x 8 grey, for tests; comes with fedalloy",
    source="the first 60 training and 20 test images of each class of fashion-mini, downscaled",
    licence="MIT",
    small=True,
)
def _tiny() -> Dataset:
    whole = readers.read_npz(_EMBEDDED)
    assert whole.x_test is not None
    assert whole.y_test is not None
    train, test = first_per_class(whole.y, 60), first_per_class(whole.y_test, 20)
    return from_arrays(
        _eighth(whole.x[train]),
        whole.y[train],
        x_test=_eighth(whole.x_test[test]),
        y_test=whole.y_test[test],
        name="tiny",
        label_names=_FASHION_NAMES,
    )


@dataset(
    "heart-disease",
    about="920 patients of four hospitals, 13 attributes, many of them missing; are coronary arteries narrowed?",
    source="Janosi, Steinbrunn, Pfisterer and Detrano 1989; UCI, doi.org/10.24432/C52P4X",
    licence="CC BY 4.0",
    clients=True,
    table=True,
)
def _heart_disease(keep: heart.Keep = "all", impute: Impute = "median") -> Dataset:
    patients = heart.read_heart(heart.find_heart(), keep=keep)
    x, columns = heart.as_table(patients)
    return Dataset(
        "heart-disease",
        x[:, :, None, None],
        patients.y,
        None,
        None,
        2,
        (0.0,) * len(columns),
        (1.0,) * len(columns),
        ("healthy", "narrowed"),
        patients.client_ids,
        "FLamby's 740 of 920 patients, with its test" if keep == "flamby" else "",
        patients.client_names,
        columns=columns,
        recipe=Recipe(impute=impute),
        own_tests=patients.test,
    )


@dataset(
    "hospitals",
    about="569 patients of five invented hospitals, 6 attributes, some missing; is a tumour malignant? For the demo",
    source="Wolberg, Mangasarian, Street and Street 1993; UCI, doi.org/10.24432/C5DW2B, divided by a feature",
    licence="CC BY 4.0",
    clients=True,
    table=True,
)
def _hospitals(impute: Impute = "mean") -> Dataset:
    return replace(own_dataset(HOSPITALS, label="diagnosis", impute=impute), name="hospitals")


def _eighth(x: Array) -> Array:
    """Pad 28 x 28 pixels to 32 x 32 and average over blocks of 4 x 4."""
    framed = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    small: Array = framed.reshape(len(x), 1, 8, 4, 8, 4).mean(axis=(3, 5))
    return small.round().astype(np.uint8)


def _whole_or_compact(
    whole: RemoteFile,
    read_whole: Callable[[Path], readers.Arrays],
    compact: RemoteFile,
    read_compact: Callable[[Path], readers.Arrays],
    note: str,
) -> tuple[readers.Arrays, str]:
    """Read the published archive if it is here, else its compact copy if that is here, else download the archive."""
    if (found := find(whole)) is None and (smaller := find(compact)) is not None:
        return read_compact(smaller), note
    return read_whole(found or fetch(whole)), ""


def _part_of(
    name: str,
    constants: Constants,
    arrays: readers.Arrays,
    label_names: tuple[str, ...],
    note: str,
    few: _Few,
    only: Sequence[int] | None = None,
) -> Dataset:
    """Build a data set, with `only` some classes or a `few` training samples of each class."""
    parts = [note] if note else []
    if few.per_class is not None:
        rows = few.rows(arrays.y)
        arrays = arrays._replace(x=arrays.x[rows], y=arrays.y[rows])
        parts.insert(0, f"{'random' if few.pick == 'random' else 'the first'} {few.per_class} of each class")
    if only is not None:
        arrays = only_classes(arrays, only, label_names)
        label_names = arrays.label_names
        parts.insert(0, f"{len(only)} classes")
    return _build(name, constants, arrays, label_names, " of ".join(parts))


def _build(
    name: str, constants: Constants, arrays: readers.Arrays, label_names: tuple[str, ...], note: str = ""
) -> Dataset:
    mean, std = constants
    return Dataset(
        name,
        arrays.x,
        arrays.y.astype(np.int64),
        arrays.x_test,
        None if arrays.y_test is None else arrays.y_test.astype(np.int64),
        len(label_names),
        mean,
        std,
        label_names,
        note=note,
    )
