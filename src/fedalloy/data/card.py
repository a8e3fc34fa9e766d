"""The card of a partition: which client has what, how skewed it is, and a hash to compare two runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedalloy.base.text import client_label
from fedalloy.data.partition import Partition
from fedalloy.data.partitioners import Indices
from fedalloy.data.samples import Task
from fedalloy.errors import UsageError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PartitionCard:
    """Statistics of a partition; `counts[k, c]` is how many rows of class c client k has in the training pool.

    `divergence` is each client's Jensen-Shannon divergence, in bits, between its label distribution and that of all
    clients together: 0 means the same distribution, 1 means no class in common. With several labels a row, the counts
    are of rows that have each label, and a distribution is over these; numbers are one class that all rows have.
    """

    partition: Partition
    counts: Indices
    sizes: Indices
    classes_per_client: float
    largest_share: float
    divergence: Floats
    size_variation: float
    size_gini: float
    sha256: str
    task: Task = "classes"

    def to_json(self, *, indices: bool = False) -> dict[str, Any]:
        """Return the card as plain numbers, lists and strings; with `indices`, include every client's rows."""
        p = self.partition
        plain: dict[str, Any] = {
            "name": p.name,
            "seed": p.seed,
            "options": dict(p.options),
            "clients": p.clients,
            "classes": self.counts.shape[1],
            "sizes": self.sizes.tolist(),
            "train": [len(rows) for rows in p.train],
            "val": [len(rows) for rows in p.val],
            "test": [len(rows) for rows in p.test],
            "test_from": p.test_from,
            "counts": self.counts.tolist(),
            "skew": {
                "classes_per_client": self.classes_per_client,
                "largest_share": self.largest_share,
                "divergence_mean": float(self.divergence.mean()),
                "divergence_max": float(self.divergence.max()),
                "size_variation": self.size_variation,
                "size_gini": self.size_gini,
                "smallest": int(self.sizes.min()),
                "largest": int(self.sizes.max()),
            },
            "sha256": self.sha256,
        }
        if indices:
            parts = {"train": p.train, "val": p.val, "test": p.test}
            plain["indices"] = {part: [rows.tolist() for rows in arrays] for part, arrays in parts.items()}
        return plain

    def describe(self, names: Sequence[str] = ()) -> str:
        """Return a readable summary of four lines, with clients by their `names`; of two if there are only numbers."""
        p, sizes, far = self.partition, self.sizes, self.divergence
        options = ", ".join(f"{key}={value}" for key, value in p.options.items())
        kinds = {"classes": f" of {self.counts.shape[1]} classes", "labels": f" with {self.counts.shape[1]} labels"}
        what, few = kinds.get(self.task, ""), "labels" if self.task == "labels" else "classes"
        lines = [
            f"{p.name}{f' ({options})' if options else ''}, seed {p.seed}: {sizes.sum():,} rows{what}"
            f" on {p.clients} clients; sha256 {self.sha256[:12]}",
            f"sizes: smallest {sizes.min():,} ({client_label(names, int(sizes.argmin()))}), mean {sizes.mean():,.0f}, "
            f"largest {sizes.max():,} ({client_label(names, int(sizes.argmax()))}); "
            f"coefficient of variation {self.size_variation:.2f}, Gini {self.size_gini:.2f}",
            f"labels: {self.classes_per_client:.1f} {few} per client, of which the largest has "
            f"{self.largest_share:.0%} of its {'ones' if self.task == 'labels' else 'rows'}, on average",
            f"distance from the overall label distribution (Jensen-Shannon, 0 to 1): mean {far.mean():.2f}, "
            f"largest {far.max():.2f} ({client_label(names, int(far.argmax()))})",
        ]
        return "\n".join(lines if self.task != "numbers" else lines[:2])


def card(partition: Partition, labels: ArrayLike, classes: int, task: Task = "classes") -> PartitionCard:
    """Measure a partition of a data set with these labels and this number of classes.

    >>> from fedalloy.data.partition import split
    >>> labels = np.repeat(np.arange(10), 100)
    >>> print(card(split(labels, name="classes", clients=5, seed=0, per_client=2), labels, 10).describe())
    classes (per_client=2), seed 0: 1,000 rows of 10 classes on 5 clients; sha256 cd7b3b2498ea
    sizes: smallest 200 (client 0), mean 200, largest 200 (client 0); coefficient of variation 0.00, Gini 0.00
    labels: 2.0 classes per client, of which the largest has 50% of its rows, on average
    distance from the overall label distribution (Jensen-Shannon, 0 to 1): mean 0.61, largest 0.61 (client 0)
    """
    pool = np.asarray(labels)
    if task == "numbers":
        pool, classes = np.zeros(len(pool), np.int64), 1
    if pool.ndim == 1 and pool.max() >= classes:
        raise UsageError(f"the largest label is {pool.max()}, but classes = {classes}; write classes={pool.max() + 1}")
    rows = [partition.rows(client) for client in range(partition.clients)]
    held = [pool[mine].sum(0) if task == "labels" else np.bincount(pool[mine], minlength=classes) for mine in rows]
    counts = np.stack(held).astype(np.int64)
    sizes = np.array([len(mine) for mine in rows], np.int64)
    mixtures = counts / np.maximum(counts.sum(axis=1), 1)[:, None]
    return PartitionCard(
        partition=partition,
        counts=counts,
        sizes=sizes,
        classes_per_client=float((counts > 0).sum(axis=1).mean()),
        largest_share=float(mixtures.max(axis=1).mean()),
        divergence=jensen_shannon(mixtures, counts.sum(axis=0) / max(counts.sum(), 1)),
        size_variation=float(sizes.std() / sizes.mean()),
        size_gini=gini(sizes),
        sha256=fingerprint(partition),
        task=task,
    )


def fingerprint(partition: Partition) -> str:
    """Return a SHA-256 over all row indices in order, the same on every platform."""
    digest = hashlib.sha256()
    for arrays in (partition.train, partition.val, partition.test):
        for rows in arrays:
            # Include the length, or moving the border between two clients would not change the hash.
            digest.update(np.array([len(rows), *rows], dtype="<i8").tobytes())
    return digest.hexdigest()


def jensen_shannon(p: Floats, q: Floats) -> Floats:
    """Compute the Jensen-Shannon divergence, in bits, between each row of p and q.

    >>> jensen_shannon(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0.5, 0.5])).round(4).tolist()
    [0.3113, 0.0]
    """
    middle = (p + q) / 2

    def kl(a: Floats) -> Floats:
        ratio = np.divide(a, middle, out=np.ones_like(middle), where=a > 0)
        return np.asarray((a * np.log2(ratio)).sum(axis=1))

    return np.maximum(0.0, (kl(p) + kl(np.broadcast_to(q, p.shape))) / 2)  # rounding may give a tiny negative number


def gini(sizes: Indices) -> float:
    """Compute the Gini coefficient: 0 if all sizes are equal, near 1 if one client has everything.

    >>> gini(np.array([5, 5, 5])), gini(np.array([1, 3]))
    (0.0, 0.25)
    """
    n = len(sizes)
    rank = 2 * np.arange(1, n + 1) - n - 1
    return float((rank * np.sort(sizes)).sum() / (n * sizes.sum()))
