"""Create a data set from your own arrays, tensors or torch data set."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import ArrayLike

from fedalloy.base.registry import suggest
from fedalloy.base.text import listed
from fedalloy.data.columns import Column, Recipe
from fedalloy.data.samples import TASKS, Array, Dataset, Task
from fedalloy.errors import DataError

_CHANNELS = (1, 3, 4)
_VOCABULARY, _WORDS = 1000, 4  # thresholds from which integers in a common range look like token ids
_WHOLE = "its integers are treated as quantities; one-hot encode token ids and categories"


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    name: str = "arrays",
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    label_names: Sequence[str] = (),
    client_ids: ArrayLike | None = None,
    client_names: Sequence[str] = (),
    task: Task = "classes",
    label_mean: Sequence[float] | None = None,
    label_std: Sequence[float] | None = None,
) -> Dataset:
    """Create a data set from NumPy arrays or torch tensors.

    The shape of `x` determines its meaning:

    * N x D: feature vectors. Every feature becomes a channel with one pixel, so each has its own mean and std.
    * N x H x W: grey images.
    * N x C x H x W: images. If only the *last* axis has length 1, 3 or 4, they are read as N x H x W x C.

    uint8 pixels are scaled to [0, 1]; other numbers are converted to float32 and otherwise unchanged. By default, the
    mean and std of images are those of the training part. Those of feature vectors are computed when the clients are
    known, from the counts, sums and sums of squares of their training rows, as a federation can. Labels are integers
    of any dtype, from 0 and without gaps, unless `classes` gives the number of classes. Integers that look like token
    ids are refused as features, because their size has no meaning. `client_ids` gives the natural client of each
    training row; with `client_names`, it is the position of the client's name in that list.

    With `task="labels"`, `y` is N x L: 1 for each label that a row has, else 0. With `task="numbers"` it holds what a
    regression predicts, N or N x T numbers. They are standardised with statistics of the clients' training rows, or
    with one `label_mean` and `label_std` for each; errors are reported in their own units.

    >>> data = from_arrays([[0.0, 1.0], [2.0, 1.0]], [0, 1])
    >>> data.x.shape, [column.name for column in data.columns]
    ((2, 2, 1, 1), ['0', '1'])
    >>> from_arrays(np.zeros((5, 28, 28, 3), np.uint8), np.arange(5)).x.shape
    (5, 3, 28, 28)
    >>> from_arrays([[0.0], [2.0]], [[1, 0, 1], [0, 0, 1]], task="labels").classes
    3
    """
    if task not in TASKS:
        raise DataError(f"data set '{name}': there is no task '{task}'; {suggest(task, [*TASKS])}")
    if task != "numbers" and (label_mean is not None or label_std is not None):
        raise DataError(f"data set '{name}': label_mean and label_std go with task = 'numbers', not '{task}'")
    inputs, labels = as_inputs(name, x), as_targets(name, y, task)
    test_inputs = None if x_test is None else as_inputs(name, x_test)
    test_labels = None if y_test is None else as_targets(name, y_test, task)
    if inputs.size == 0:
        raise DataError(f"data set '{name}': the training part is empty")
    said: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    recipe: Recipe | None = None
    if (mean is None) != (std is None):
        raise DataError(f"data set '{name}': mean and std must be given together, or neither")
    if mean is None or std is None:
        if np.asarray(x).ndim == 2:
            said, inputs = _said_of_columns(name, np.asarray(x)), inputs.astype(np.float32)
            test_inputs = None if test_inputs is None else test_inputs.astype(np.float32)
            columns = tuple(Column(str(place)) for place in range(inputs.shape[1]))
            mean, std, recipe = [0.0] * len(columns), [1.0] * len(columns), Recipe()
        else:
            mean, std = statistics(inputs)
    if task == "numbers":
        columns = columns or tuple(Column(str(place)) for place in range(inputs.shape[1]))
        recipe = replace(
            recipe or Recipe(mean=_floats(mean), std=_floats(std)),
            targets=tuple(label_names) or tuple(map(str, range(labels.shape[1]))),
            label_mean=None if label_mean is None else _floats(label_mean),
            label_std=None if label_std is None else _floats(label_std),
        )
    if classes is None and task != "classes":
        classes = labels.shape[1]
    if classes is None:
        classes = _counted(name, np.concatenate([part.ravel() for part in (labels, test_labels) if part is not None]))
    return Dataset(
        name,
        inputs,
        labels,
        test_inputs,
        test_labels,
        classes,
        _floats(mean),
        _floats(std),
        tuple(label_names),
        None if client_ids is None else as_labels(name, client_ids),
        client_names=tuple(map(str, client_names)),
        task=task,
        columns=columns,
        recipe=recipe,
        said=said,
    )


def _floats(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, numbers))


def from_torch(
    dataset: torch.utils.data.Dataset[Any],
    test: torch.utils.data.Dataset[Any] | None = None,
    *,
    name: str = "torch",
    classes: int | None = None,
) -> Dataset:
    """Create a data set from a torch data set of (input, label) pairs; each pair is read once, with its transform.

    >>> rows = torch.utils.data.TensorDataset(torch.rand(6, 1, 4, 4), torch.arange(6) % 3)
    >>> from_torch(rows).classes
    3
    """
    x, y = _pairs(name, dataset)
    x_test, y_test = (None, None) if test is None else _pairs(name, test)
    return from_arrays(x, y, x_test=x_test, y_test=y_test, name=name, classes=classes)


def statistics(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute the mean and std of every channel, on the scale [0, 1] for uint8; a constant channel gets std 1.

    >>> statistics(np.array([[[[0, 255]]]], np.uint8))
    ((0.5,), (0.5,))
    """
    moments = [_moments(x[:, channel]) for channel in range(x.shape[1])]
    return tuple(m for m, _ in moments), tuple(s or 1.0 for _, s in moments)


def _moments(values: Array) -> tuple[float, float]:
    if values.dtype == np.uint8:  # from the histogram: exact, without a float64 copy of every image
        share = np.bincount(values.reshape(-1), minlength=256) / values.size
        level = np.arange(256) / 255
        mean = float(share @ level)
        return mean, float(np.sqrt(share @ (level - mean) ** 2))
    return float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))


def as_inputs(name: str, x: ArrayLike) -> Array:
    """Convert inputs to N x C x H x W, uint8 or float32, by the rules of `from_arrays`."""
    a = np.asarray(x)
    if a.dtype.kind not in "uif":
        raise DataError(f"data set '{name}': inputs have dtype {a.dtype}, but must be numbers")
    if a.ndim not in (2, 3, 4):
        raise DataError(
            f"data set '{name}': inputs have shape {a.shape}, but must be N x D, N x H x W or N x C x H x W"
        )
    if a.ndim == 2:
        a = a[:, :, None, None]
    elif a.ndim == 3:
        a = a[:, None]
    elif [length in _CHANNELS for length in a.shape[1:]] == [False, False, True]:
        a = a.transpose(0, 3, 1, 2)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused later with their position
        return np.ascontiguousarray(a, a.dtype if a.dtype == np.uint8 else np.float32)


def as_labels(name: str, y: ArrayLike) -> Array:
    """Convert labels to a 1-D int64 array; anything but integers is refused."""
    a = np.asarray(y)
    with np.errstate(invalid="ignore"):  # values beyond int64 change in the conversion, which is detected below
        whole: Array = a.astype(np.int64) if a.dtype.kind in "buif" and np.isfinite(a).all() else np.empty(0, np.int64)
    if whole.shape != a.shape or not (whole == a).all():
        raise DataError(
            f"data set '{name}': labels and client ids must be integers, but some are not (dtype {a.dtype})"
        )
    return whole.reshape(-1) if whole.ndim == 2 and whole.shape[1] == 1 else whole


def as_targets(name: str, y: ArrayLike, task: Task) -> Array:
    """Convert what is to be predicted to what `Dataset` asks for: classes, or float32 rows of one target or more."""
    if task == "classes":
        return as_labels(name, y)
    a = np.asarray(y)
    if a.dtype.kind not in "buif":
        raise DataError(f"data set '{name}': targets have dtype {a.dtype}, but must be numbers")
    if task == "numbers" and a.ndim == 1:
        a = a[:, None]
    if a.ndim != 2 or a.shape[1] == 0:
        shape = "N x L, a column for each label" if task == "labels" else "N or N x T"
        raise DataError(f"data set '{name}': targets have shape {a.shape}, but with task='{task}' they must be {shape}")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused later with their position
        return np.ascontiguousarray(a, np.float32)


def _counted(name: str, labels: Array) -> int:
    """Return the number of classes, if the labels are all numbers from 0 to the largest."""
    found = np.unique(labels)
    if found.size and not np.array_equal(found, np.arange(len(found))):
        few = [str(label) for label in (found if len(found) <= 6 else [*found[:3], "...", found[-1]])]
        shift = "subtract 1" if found[0] == 1 and found[-1] == len(found) else ""
        steps = shift or "write y = numpy.unique(y, return_inverse=True)[1]"
        missing = f", or give classes = {found[-1] + 1} if the missing classes exist but have no rows here"
        raise DataError(
            f"data set '{name}': the labels are {listed(few)}, but classes must be numbered from 0 without gaps; "
            f"{steps}{missing if found[0] >= 0 else ''}"
        )
    if len(found) == 1:
        raise DataError(f"data set '{name}': all labels are 0, but a classifier needs at least 2 classes")
    return max(2, len(found))


def _said_of_columns(name: str, x: Array) -> tuple[str, ...]:
    """Return what a user should know about feature vectors that are standardised; refuse those that look like text."""
    if x.dtype.kind not in "iu":
        return ()
    most = x.max(axis=0, initial=0)
    largest = int(most.max(initial=0))
    alike = np.count_nonzero(most >= largest / 2) * 2 >= len(most)
    if largest >= _VOCABULARY and len(most) >= _WORDS and alike and x.min(initial=0) >= 0:
        raise DataError(
            f"data set '{name}': its {len(most)} columns are integers from 0 to {largest} in one common range, like "
            "token "
            "ids, whose size has no meaning; write x.astype(numpy.float32) if they are quantities, or embed the tokens "
            "first"
        )
    return (_WHOLE,)


def _pairs(name: str, dataset: torch.utils.data.Dataset[Any]) -> tuple[Array, Array]:
    if not isinstance(dataset, Sized):
        raise DataError(f"data set '{name}': the torch data set has no length; collect its pairs and use from_arrays")
    pairs = [dataset[i] for i in range(len(dataset))]
    if not pairs:
        raise DataError(f"data set '{name}': the torch data set is empty")
    inputs, labels = [np.asarray(x) for x, _ in pairs], [np.asarray(y) for _, y in pairs]
    shapes = {x.shape for x in inputs}
    if len(shapes) > 1:
        raise DataError(f"data set '{name}': inputs have different shapes ({sorted(shapes)[:3]}); resize them first")
    if any(y.size != 1 for y in labels):
        raise DataError(
            f"data set '{name}': a label is not a single number; give each input one class number, starting at 0"
        )
    return np.stack(inputs), np.array([y.reshape(()) for y in labels])
