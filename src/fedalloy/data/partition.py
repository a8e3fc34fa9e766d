"""Split one data set among clients: each client's training, validation and test rows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedalloy.base.registry import suggest
from fedalloy.base.rng import numpy_generator
from fedalloy.data.partition_fixed import Priors, class_priors, draw_tests
from fedalloy.data.partition_legacy import at_least_one, local_split
from fedalloy.data.partitioners import Indices, own_order, partitions
from fedalloy.data.samples import Task
from fedalloy.errors import UsageError

__all__ = ["Partition", "local_split", "partitions", "split"]


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of every client, and how they were drawn.

    Rows of `train` and `val` are indices into the training pool. So are rows of `test`, unless `test_from` is
    "official": then they are indices into the common test set. A local test may be empty; metrics leave that client
    out. `priors` are the clients' true class distributions if the partition has them ("dirichlet-fixed").
    """

    name: str
    seed: int
    options: Mapping[str, Any]
    train: tuple[Indices, ...]
    val: tuple[Indices, ...]
    test: tuple[Indices, ...]
    test_from: Literal["train", "official"] = "train"
    priors: Priors | None = None

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.train)

    def rows(self, client: int) -> Indices:
        """All rows of the training pool that belong to this client."""
        local_test = [self.test[client]] if self.test_from == "train" else []
        return np.concatenate([self.train[client], self.val[client], *local_test])


def split(
    labels: ArrayLike,
    *,
    name: str,
    clients: int,
    seed: int,
    test_fraction: float = 0.2,
    validation: float = 0.0,
    test_labels: ArrayLike | None = None,
    test_samples: int | None = None,
    ids: ArrayLike | None = None,
    own_tests: NDArray[np.bool_] | None = None,
    **options: Any,
) -> Partition:
    """Split a data set among clients with the named partition, and each client's rows into train, val and test.

    Without `test_labels`, each client keeps `test_fraction` of its rows for its local test. With them, all its rows are
    used for training, and the local test is drawn from that common test set according to the client's class
    distribution: `test_samples` rows each, by default an equal share of the test set. Then `validation` of the training
    rows are set aside. A client with any rows trains on at least one; a local test may be empty. A client with rows in
    `own_tests` has these as its local test.

    >>> part = split(np.repeat(np.arange(10), 100), name="dirichlet", clients=4, seed=0, alpha=0.5, validation=0.1)
    >>> [(len(a), len(b), len(c)) for a, b, c in zip(part.train, part.val, part.test)]
    [(218, 25, 61), (126, 14, 35), (180, 21, 51), (193, 22, 54)]
    """
    pool = _as_labels(labels, "labels")
    _check_clients(clients, len(pool))
    _check_fraction("test_fraction", test_fraction)
    _check_fraction("validation", validation)
    partitioner = partitions[name]
    given = options if ids is None else {**options, "ids": np.asarray(ids)}
    settings = complete(name, given)

    rows = partitioner(pool, clients, seed=seed, **settings)
    _refuse_empty(rows, settings)
    settings.pop("ids", None)  # as long as the data; the rows already say who owns what
    priors = class_priors(pool, clients, seed=seed, alpha=settings["alpha"]) if name == "dirichlet-fixed" else None

    if test_labels is None:
        if test_samples is not None:
            raise UsageError("test_samples needs test_labels to draw from; pass test_labels too, or use test_fraction")
        halves = [_halves(r, k, test_fraction, own_tests) for k, r in enumerate(rows)]
        learn, test = [half[0] for half in halves], [half[1] for half in halves]
    else:
        common = _as_labels(test_labels, "test_labels")
        share = max(1, len(common) // clients) if test_samples is None else test_samples
        mixtures = priors if priors is not None else _mixtures(pool, rows)
        learn, test = rows, draw_tests(mixtures, common, seed=seed, samples=share)

    train, val = zip(*(_validated(mine, k, seed, validation) for k, mine in enumerate(learn)), strict=True)
    test_from: Literal["train", "official"] = "train" if test_labels is None else "official"
    return Partition(name, seed, settings, tuple(train), tuple(val), tuple(test), test_from, priors)


def own_split(
    n: int,
    client: int,
    seed: int,
    test_fraction: float = 0.2,
    validation: float = 0.0,
    own_tests: NDArray[np.bool_] | None = None,
) -> tuple[Indices, Indices, Indices]:
    """Split a client's `n` rows into train, val and test as `split` does for a natural client, knowing no other.

    >>> part = split([0] * 9, name="natural", clients=2, seed=0, ids=[0, 1, 1, 1, 1, 1, 1, 0, 0], validation=0.3)
    >>> [(rows + 1).tolist() for rows in own_split(6, 1, 0, validation=0.3)]
    [[5, 3], [4, 2], [1, 6]]
    >>> part.train[1].tolist(), part.val[1].tolist(), part.test[1].tolist()
    ([5, 3], [4, 2], [1, 6])
    """
    learn, test = _halves(own_order(np.arange(n), client, seed), client, test_fraction, own_tests)
    train, val = _validated(learn, client, seed, validation)
    return train, val, test


def _halves(
    rows: Indices, client: int, test_fraction: float, own_tests: NDArray[np.bool_] | None
) -> tuple[Indices, Indices]:
    """A client's rows to learn from, and those of its local test."""
    if own_tests is not None and own_tests[rows].any():
        return rows[~own_tests[rows]], rows[own_tests[rows]]
    return local_split(rows, client_id=client, fraction=1 - test_fraction)


def _validated(rows: Indices, client: int, seed: int, validation: float) -> tuple[Indices, Indices]:
    """A client's rows to train on, and those set aside for validation."""
    if validation > 0:
        rows = numpy_generator(seed, "partition", "validation", client).permutation(rows)
    kept = at_least_one(1 - validation, len(rows))
    return rows[:kept], rows[kept:]


LABEL_FREE = ("iid", "quantity", "natural")  # partitions that do not look at classes


def strata(name: str, targets: NDArray[Any], task: Task) -> NDArray[Any]:
    """The classes by which a partition divides rows: their own, or one for all where the task has none.

    >>> strata("iid", np.array([[0.5], [2.5]], np.float32), "numbers")
    array([0, 0])
    >>> strata("dirichlet", np.array([[0.5], [2.5]], np.float32), "numbers")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: the partition 'dirichlet' divides rows by their class, but with task = 'numbers' they \
have none; use one of: iid, quantity, natural
    """
    if task == "classes":
        return targets
    if name not in LABEL_FREE:
        raise UsageError(
            f"the partition '{name}' divides rows by their class, but with task = '{task}' they have none; "
            f"use one of: {', '.join(LABEL_FREE)}"
        )
    return np.zeros(len(targets), np.int64)


def _as_labels(values: ArrayLike, what: str) -> Indices:
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise UsageError(f"{what} must be a non-empty list of class numbers 0, 1, 2, ..., one for each row")
    return labels.astype(np.int64)


def _check_clients(clients: int, rows: int) -> None:
    if not isinstance(clients, (int, np.integer)) or isinstance(clients, bool) or clients < 1:
        raise UsageError(
            f"partition.clients = {clients!r} must be an integer of at least 1; write for example partition.clients=10"
        )
    if clients > rows:
        raise UsageError(f"{clients} clients cannot share {rows} rows; write clients={rows} or fewer")


def _check_fraction(name: str, value: float) -> None:
    if not isinstance(value, (int, float, np.number)) or not 0 <= value < 1:
        raise UsageError(f"{name} = {value!r} must be at least 0 and less than 1; write for example {name}=0.2")


def complete(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a partition's options with their defaults; unknown and missing options are refused.

    >>> complete("dirichlet", {"alpha": 0.5})
    {'alpha': 0.5, 'min_size': 10, 'balanced': True}
    """
    known = {
        key: parameter.default
        for key, parameter in inspect.signature(partitions[name]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and key != "seed"
    }
    for key in given:
        if key not in known:
            hint = suggest(key, known) if known else "it has no options"
            raise UsageError(f"the partition '{name}' has no option '{key}'; {hint}")
    settings = {**known, **given}
    missing = [key for key, value in settings.items() if value is inspect.Parameter.empty]
    if missing:
        raise UsageError(f"the partition '{name}' needs {' and '.join(missing)}; write partition.{missing[0]}=...")
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in settings.items()}


def _refuse_empty(rows: list[Indices], settings: Mapping[str, Any]) -> None:
    empty = [client for client, mine in enumerate(rows) if len(mine) == 0]
    if empty:
        knob = next((f"raise {key} or " for key in ("alpha", "beta", "per_client") if key in settings), "")
        others = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise UsageError(f"client {empty[0]}{others} would get no rows; {knob}lower the number of clients")


def _mixtures(labels: Indices, rows: list[Indices]) -> Priors:
    classes = int(labels.max()) + 1
    return np.stack([np.bincount(labels[mine], minlength=classes) / len(mine) for mine in rows])
