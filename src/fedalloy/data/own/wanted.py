"""What is wanted of a user's own files, what several files must have in common, and what is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.registry import suggest
from fedalloy.data.columns import Column, Impute
from fedalloy.data.samples import TASKS, Array, Task
from fedalloy.errors import UsageError

IMPUTE: tuple[str, ...] = get_args(Impute)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The keys of [data] about a user's own files.

    >>> Wanted(label="diagnosis", drop=("patient_id",)).labels
    ('diagnosis',)
    """

    label: str | tuple[str, ...] | None = None  # what to predict; by default the last column
    drop: tuple[str, ...] = ()
    client: str | None = None  # a column with the name of each row's client
    categorical: tuple[str, ...] = ()  # columns whose values are categories
    impute: str | None = None  # None: missing values are refused
    task: Task = "classes"
    classes: int | None = None  # labels are then numbers from 0 to classes - 1, and some may have no rows
    names: tuple[str, ...] = ()  # the names of the classes in their order, or of the labels or numbers of an .npz file
    size: int | None = None  # pixels a side, to which images are resized
    labelled: bool = True  # otherwise labels are not read, and tables need none

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict that were named."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label or ())


@dataclass(frozen=True)
class Format:
    """What all clients' files have in common; sites agree on it before they have seen each other's data."""

    columns: tuple[str, ...]  # of tables, in order; () for images
    categorical: tuple[str, ...]
    label_names: tuple[str, ...]  # class names, or the names of the labels or numbers to predict
    task: Task
    shape: tuple[int, ...]  # of a sample: (columns, 1, 1), or (channels, height, width)


@dataclass(frozen=True, eq=False)
class Own:
    """What was read of a user's own files.

    `x` is N x C x H x W. Images are uint8, or float32 if an .npz file has them so. Tables are float32, N x C x 1 x 1,
    with NaN where a value is missing and with the code of a category, its position in `columns[c].categories`. The
    images of an .npz file are not resized: they may have another size than `format.shape`, which follows `size`.
    """

    x: Array
    y: Array
    format: Format
    columns: tuple[Column, ...] = ()
    x_test: Array | None = None
    y_test: Array | None = None
    client_ids: Array | None = None
    client_names: tuple[str, ...] = ()
    tests: NDArray[np.bool_] | None = None  # the rows of x that several clients keep for testing
    said: tuple[str, ...] = ()  # sentences for the user


def checked(wanted: Wanted, agreed: Format | None) -> Wanted:
    """Refuse keys that contradict each other, and complete them with what was agreed on.

    >>> checked(Wanted(label=("a", "b")), None)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: data.label has 2 columns, but classes have one; write data.task = "labels" or "numbers"
    """
    if agreed is not None:
        wanted = replace(wanted, task=agreed.task, categorical=agreed.categorical)
    if wanted.task not in TASKS:
        raise UsageError(f"data.task = {shown(wanted.task)}: {suggest(str(wanted.task), [*TASKS])}")
    if wanted.impute is not None and wanted.impute not in IMPUTE:
        raise UsageError(f"data.impute = {shown(wanted.impute)}: {suggest(str(wanted.impute), [*IMPUTE])}")
    if len(wanted.labels) > 1 and wanted.task == "classes":
        raise UsageError(
            f"data.label has {len(wanted.labels)} columns, but classes have one; "
            'write data.task = "labels" or "numbers"'
        )
    if wanted.classes is not None and wanted.task != "classes":
        raise UsageError(f'data.classes has no meaning with data.task = "{wanted.task}"; remove it')
    if wanted.classes is not None and wanted.classes < 2:
        raise UsageError(f"data.classes = {wanted.classes}, but a classifier needs at least 2")
    if wanted.classes is not None and wanted.names and len(wanted.names) != wanted.classes:
        raise UsageError(f"data.names has {len(wanted.names)} names, but data.classes = {wanted.classes}")
    for key, names in (("names", wanted.names), ("label", wanted.labels)):
        if len(set(names)) != len(names):
            raise UsageError(f"data.{key} has a name twice: {shown(list(names))}")
    used = {**dict.fromkeys(wanted.labels, "label"), **({wanted.client: "client"} if wanted.client else {})}
    for name in wanted.drop:
        if name in used:
            raise UsageError(
                f"data.drop contains {shown(name)}, which is data.{used[name]}; remove it from one of them"
            )
    if wanted.client in wanted.labels:
        raise UsageError(f"data.client and data.label are both {shown(wanted.client)}; they must be different columns")
    return wanted
