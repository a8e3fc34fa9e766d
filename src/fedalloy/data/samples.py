"""Data sets as arrays, and the samples of a client as tensors.

`Dataset` contains the published data: integer pixels (or features), labels and normalisation constants.
`tensors` turns it into one normalised pool; a client's `Samples` are indices into that pool, never a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedalloy.base.text import name_fault
from fedalloy.data.columns import LEAST_STD, Column, Preparation, PreparedColumn, Recipe
from fedalloy.errors import DataError, UsageError

Array = NDArray[Any]
Task = Literal["classes", "labels", "numbers"]  # one class a sample; any of several labels; numbers (regression)
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True)
class Scale:
    """The normalisation of inputs per channel, so that generated images can be normalised in the same way.

    >>> Scale((0.5,), (0.25,)).normalise(torch.ones(1, 1, 1, 1))
    tensor([[[[2.]]]])
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def normalise(self, x: Tensor) -> Tensor:
        """Normalise raw values, for example pixels in [0, 1]."""
        return (x - x.new_tensor(self.mean).view(-1, 1, 1)) / x.new_tensor(self.std).view(-1, 1, 1)

    def restore(self, x: Tensor) -> Tensor:
        """Convert normalised values back to raw values."""
        return x * x.new_tensor(self.std).view(-1, 1, 1) + x.new_tensor(self.mean).view(-1, 1, 1)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images or features with their metadata; validated on creation.

    `x` is N x C x H x W, either uint8 pixels (scaled to [0, 1] later) or float32; `mean` and `std` have one number per
    channel on that scale. `client_ids` gives the natural client of each training row, if known: the position of its
    name in `client_names`, if there are names. `note` describes how these rows differ from the full published set; it
    is empty if they are the full set.

    With a `recipe`, `x` is as it was read: what becomes of its `columns` (or of the channels of images) follows from
    the clients' statistics, and `prepared` does it. Until then, missing values are NaN and categories are codes.
    `own_tests` marks the rows that a client's own file sets aside as its test. `said` is what a user should know about
    how the data was read.

    `task` says what `y` holds: a class number per row (int64), or a row of `classes` float32 numbers, which are 0 or 1
    for "labels" and anything finite for "numbers". `classes` is the number of outputs in every task. `targets` says how
    `prepared` has standardised the numbers to predict, whose names are in the recipe; without it they are as they are.

    >>> x = np.zeros((2, 1, 4, 4), np.uint8)
    >>> Dataset("dots", x, np.array([0, 1]), None, None, classes=2, mean=(0.5,), std=(0.25,)).black
    (-2.0,)
    >>> Dataset("dots", x, np.array([0, 2]), None, None, classes=2, mean=(0.5,), std=(0.25,))
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: data set 'dots': training label 1 is 2, but with 2 classes labels must be 0 to 1
    """

    name: str
    x: Array
    y: Array
    x_test: Array | None
    y_test: Array | None
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_names: tuple[str, ...] = ()
    client_ids: Array | None = None
    note: str = ""
    client_names: tuple[str, ...] = ()
    task: Task = "classes"
    columns: tuple[Column, ...] = ()
    recipe: Recipe | None = None
    own_tests: NDArray[np.bool_] | None = None
    said: tuple[str, ...] = ()
    targets: tuple[PreparedColumn, ...] = ()

    def __post_init__(self) -> None:
        if self.classes < 2 and self.task == "classes":
            raise self._wrong(f"classes = {self.classes}, but a classifier needs at least 2")
        if self.classes < 1:
            raise self._wrong("there is nothing to predict; give at least one label or number")
        self._check_split("training", self.x, self.y)
        if self.x_test is not None and self.y_test is not None:
            self._check_split("test", self.x_test, self.y_test)
            if self.x_test.shape[1:] != self.x.shape[1:]:
                raise self._wrong(
                    f"test samples have shape {self.x_test.shape[1:]}, but training samples {self.x.shape[1:]}"
                )
        elif self.x_test is not None or self.y_test is not None:
            raise self._wrong("x_test and y_test must be given together or not at all")
        channels = self.x.shape[1]
        if len(self.mean) != channels or len(self.std) != channels:
            what = "columns" if self.x.shape[2:] == (1, 1) else "channels"
            raise self._wrong(f"mean and std need one number for each of the {channels} {what}")
        if not np.isfinite(self.mean).all():
            raise self._wrong(f"every mean must be a finite number, but mean = {self.mean}")
        if not all(LEAST_STD <= s < np.inf for s in self.std):
            raise self._wrong(f"every std must be greater than 0, but std = {self.std}")
        if self.label_names and len(self.label_names) != self.classes:
            raise self._wrong(f"there are {len(self.label_names)} label names for {self.classes} classes")
        if self.client_ids is not None and self.client_ids.shape != self.y.shape[:1]:
            raise self._wrong(
                f"there must be one client id per training label, but their shapes are {self.client_ids.shape} and "
                f"{self.y.shape}"
            )
        if fault := name_fault(self.client_names):
            raise self._wrong(f"{fault}; rename it in client_names")
        if self.client_names and self.client_ids is None:
            raise self._wrong("client names need client_ids, the client of each training row")
        if self.recipe is not None and len(self.columns) != channels:
            raise self._wrong(f"there are {len(self.columns)} column names for {channels} columns")
        if self.recipe is not None and self.recipe.targets and len({*self.recipe.targets}) != self.classes:
            raise self._wrong(f"the {self.classes} numbers to predict must have {self.classes} different names")
        if self.client_names and self.client_ids is not None:
            stray = np.flatnonzero((self.client_ids < 0) | (self.client_ids >= len(self.client_names)))
            if stray.size:
                raise self._wrong(
                    f"row {stray[0]} belongs to client {self.client_ids[stray[0]]}, but only "
                    f"{len(self.client_names)} clients have names"
                )

    def prepared(self, preparation: Preparation) -> Dataset:
        """Return the data set with inputs and targets as all clients have agreed to prepare them."""
        return self.standardised(preparation)._with_inputs(preparation)

    def standardised(self, preparation: Preparation) -> Dataset:
        """Return the data set with numbers to predict as all clients have agreed to standardise them."""
        if not preparation.targets:
            return self
        y_test = None if self.y_test is None else preparation.standardised(self.y_test)
        return replace(self, y=preparation.standardised(self.y), y_test=y_test, targets=preparation.targets)

    def _with_inputs(self, preparation: Preparation) -> Dataset:
        if self.x.shape[2:] != (1, 1) or self.x.dtype == np.uint8:  # images: only their scale was open
            mean, std = (tuple(getattr(c, key) for c in preparation.columns) for key in ("mean", "std"))
            return replace(self, mean=mean, std=std, columns=(), recipe=None)

        def ready(x: Array) -> Array:
            return preparation.apply(x[:, :, 0, 0], self.columns)[:, :, None, None]

        width = len(preparation.inputs)
        return replace(
            self,
            x=ready(self.x),
            x_test=None if self.x_test is None else ready(self.x_test),
            mean=(0.0,) * width,
            std=(1.0,) * width,
            columns=(),
            recipe=None,
        )

    @property
    def scale(self) -> Scale:
        """The normalisation of the inputs."""
        return Scale(self.mean, self.std)

    @property
    def black(self) -> tuple[float, ...]:
        """The value of a black pixel (0) after normalisation, per channel."""
        return tuple((0.0 - m) / s for m, s in zip(self.mean, self.std, strict=True))

    def _check_split(self, split: str, x: Array, y: Array) -> None:
        if x.ndim != 4:
            raise self._wrong(
                f"{split} samples have shape {x.shape}; they must be N x C x H x W (see fedalloy.data.from_arrays)"
            )
        if x.dtype not in (np.uint8, np.float32):
            raise self._wrong(f"{split} samples have dtype {x.dtype}; they must be uint8 or float32")
        self._check_targets(split, y)
        if len(x) != len(y):
            raise self._wrong(f"there are {len(x)} {split} samples but {len(y)} {split} labels")
        if x.size == 0:
            raise self._wrong(f"the {split} part is empty")
        filled = self.recipe is not None and self.recipe.impute is not None
        if x.dtype == np.float32 and not (np.isfinite(x) | (np.isnan(x) & filled)).all():
            row, channel = (int(place) for place in np.argwhere(~np.isfinite(x))[0][:2])
            where = f"row {row}, column {channel}," if x.shape[2:] == (1, 1) else f"sample {row}"
            raise self._wrong(f"{split} {where} contains NaN or infinity; remove or correct it")

    def _check_targets(self, split: str, y: Array) -> None:
        if self.task == "classes":
            if y.dtype != np.int64 or y.ndim != 1:
                raise self._wrong(
                    f"{split} labels have dtype {y.dtype} and shape {y.shape}; they must be a 1-D int64 array"
                )
            stray = np.flatnonzero((y < 0) | (y >= self.classes))
            if stray.size:
                raise self._wrong(
                    f"{split} label {stray[0]} is {y[stray[0]]}, "
                    f"but with {self.classes} classes labels must be 0 to {self.classes - 1}"
                )
            return
        if y.dtype != np.float32 or y.ndim != 2 or y.shape[1] != self.classes:
            raise self._wrong(
                f"{split} targets have dtype {y.dtype} and shape {y.shape}; they must be float32, N x {self.classes}"
            )
        sound = np.isfinite(y) if self.task == "numbers" else (y == 0) | (y == 1)
        if not sound.all():
            row, column = np.argwhere(~sound)[0]
            kind = "a finite number" if self.task == "numbers" else "0 or 1"
            raise self._wrong(f"{split} row {row}, target {column} is {y[row, column]}, but it must be {kind}")

    def _wrong(self, what: str) -> DataError:
        return DataError(f"data set '{self.name}': {what}")


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows of a shared pool.

    >>> pool = Samples(torch.arange(4.0).reshape(4, 1), torch.tensor([0, 1, 1, 0]), torch.arange(4))
    >>> mine = pool.subset([1, 2, 3])
    >>> len(mine), mine.labels.tolist(), mine.counts(3).tolist()
    (3, [1, 1, 0], [1, 2, 0])
    >>> mine.take([2])
    (tensor([[3.]]), tensor([0]))
    """

    x: Tensor
    y: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    @property
    def inputs(self) -> Tensor:
        """The inputs of these samples, copied from the pool."""
        return self.x.index_select(0, self.index)

    @property
    def labels(self) -> Tensor:
        """The labels of these samples."""
        return self.y.index_select(0, self.index)

    def take(self, positions: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels at these positions (0 is the first of *these* samples, not of the pool)."""
        rows = self.index[torch.as_tensor(positions, dtype=torch.int64).to(self.index.device, non_blocking=True)]
        return self.x.index_select(0, rows), self.y.index_select(0, rows)

    def subset(self, positions: Tensor | Sequence[int]) -> Samples:
        """Return the samples at these positions, over the same pool."""
        rows = torch.as_tensor(positions, dtype=torch.int64).to(self.index.device)
        return Samples(self.x, self.y, self.index[rows])

    def to(self, device: str | torch.device) -> Samples:
        """Move the pool of these samples to a device."""
        return Samples(self.x.to(device), self.y.to(device), self.index.to(device))

    def counts(self, classes: int) -> Tensor:
        """Count the samples of each class; with several labels a sample, those that have each label."""
        labels = self.labels
        return torch.bincount(labels, minlength=classes) if labels.ndim == 1 else labels.sum(0).long()


def tensors(dataset: Dataset, *, size: int | None = None) -> tuple[Samples, Samples | None]:
    """Normalise a data set into a training pool and, if it has test data, a test pool.

    Pixels are scaled to [0, 1], resized bilinearly to `size` x `size` if their size differs, then normalised; feature
    vectors cannot be resized. To normalise a public set with the private statistics, use
    `tensors(replace(public, mean=private.mean, std=private.std))`.

    >>> data = Dataset("dot", np.full((1, 1, 2, 2), 255, np.uint8), np.array([0]), None, None, 2, (0.5,), (0.5,))
    >>> train, test = tensors(data, size=4)
    >>> train.inputs.shape, train.inputs.max().item(), test
    (torch.Size([1, 1, 4, 4]), 1.0, None)
    """
    if size not in (None, 1) and dataset.x.shape[2:] == (1, 1):  # would turn each feature into a constant square
        raise UsageError(
            f"the data set '{dataset.name}' contains feature vectors, which cannot be resized to {size} x {size} "
            "pixels; "
            "remove data.size, or use images"
        )
    train = _pool(dataset, dataset.x, dataset.y, size)
    if dataset.x_test is None or dataset.y_test is None:
        return train, None
    return train, _pool(dataset, dataset.x_test, dataset.y_test, size)


def _pool(dataset: Dataset, x: Array, y: Array, size: int | None) -> Samples:
    out = torch.from_numpy(x.astype(np.float32))  # always a copy: the steps below work in place
    if x.dtype == np.uint8:
        out.div_(255)
    if size is not None and tuple(out.shape[-2:]) != (size, size):
        # Antialiasing has no effect on upscaling (28 -> 32) and avoids artefacts in downscaling.
        out = F.interpolate(out, (size, size), mode="bilinear", antialias=True)
    out.sub_(torch.tensor(dataset.mean).view(-1, 1, 1)).div_(torch.tensor(dataset.std).view(-1, 1, 1))
    if not all(torch.isfinite(end) for end in torch.aminmax(out)):
        raise DataError(f"data set '{dataset.name}': some values are infinite after normalisation with mean and std")
    return Samples(out, torch.tensor(y), torch.arange(len(y)))
