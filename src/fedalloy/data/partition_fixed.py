"""Equally sized clients with different class distributions (KnFu, FedDyn, FedFTG), and matching test sets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.rng import numpy_generator
from fedalloy.data.partitioners import Indices, check_concentration, check_whole, partitions, rows_by_class

Priors = NDArray[np.float64]


@partitions.register("dirichlet-fixed")
def dirichlet_fixed(labels: Indices, clients: int, *, seed: int, alpha: float, samples: int) -> list[Indices]:
    """Give each client exactly `samples` rows, with a class distribution drawn from a Dirichlet distribution.

    Not every row is used. Rows are dealt from a shuffled ring for each class: clients are disjoint until a class has
    run out; then the ring starts again, so two clients may share a row, but no client has a row twice. We prefer this
    to giving late clients a different distribution from the one drawn. Only if a client needs more rows of a class than
    there are, it gets the rest from its other classes, in proportion to its distribution.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> rows = dirichlet_fixed(labels, 3, seed=0, alpha=0.1, samples=50)
    >>> [np.bincount(labels[r], minlength=10).tolist() for r in rows]
    [[0, 1, 0, 0, 3, 0, 26, 0, 2, 18], [0, 2, 2, 0, 15, 30, 0, 1, 0, 0], [0, 0, 0, 0, 1, 13, 4, 32, 0, 0]]
    """
    check_whole("samples", samples, least=1, most=len(labels), of="the number of rows")
    priors = class_priors(labels, clients, seed=seed, alpha=alpha)
    rng = numpy_generator(seed, "partition", "dirichlet-fixed")
    pools = rows_by_class(labels)
    room = np.array([len(rows) for rows in pools])
    return _deal_from_rings(rng, pools, [_exact_counts(rng, prior, room, samples) for prior in priors])


def class_priors(labels: Indices, clients: int, *, seed: int, alpha: float) -> Priors:
    """Draw the class distribution of each client for `dirichlet-fixed`; a class without rows has share 0.

    >>> class_priors(np.array([0, 1, 3]), 2, seed=0, alpha=1.0).round(2).tolist()
    [[0.02, 0.31, 0.0, 0.68], [0.54, 0.22, 0.0, 0.25]]
    """
    check_concentration("alpha", alpha)
    sizes = np.bincount(labels)
    priors = np.zeros((clients, len(sizes)))
    present = sizes > 0
    rng = numpy_generator(seed, "partition", "dirichlet-fixed", "priors")
    priors[:, present] = rng.dirichlet(np.full(present.sum(), alpha), size=clients)
    return priors


def draw_tests(priors: Priors, test_labels: Indices, *, seed: int, samples: int) -> list[Indices]:
    """Draw each client's test rows from a common test set, according to the client's class distribution.

    The rows come from rings, as in `dirichlet-fixed`. If a class has too few rows, rows of other classes do not replace
    them, since that would change the distribution; such a client gets fewer than `samples` rows.

    >>> tests = draw_tests(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 1, 1, 1, 1]), seed=0, samples=3)
    >>> [sorted(rows.tolist()) for rows in tests]
    [[0], [2, 3, 4]]
    """
    check_whole("test_samples", samples, least=1, most=len(test_labels), of="the number of test rows")
    rng = numpy_generator(seed, "partition", "test")
    known = priors.shape[1]
    pools = [np.flatnonzero(test_labels == c).astype(np.int64) for c in range(known)]
    room = np.array([len(rows) for rows in pools])
    return _deal_from_rings(rng, pools, [np.minimum(rng.multinomial(samples, prior), room) for prior in priors])


def _exact_counts(rng: np.random.Generator, prior: NDArray[np.float64], room: Indices, samples: int) -> Indices:
    """Draw multinomial class counts that sum to `samples` and fit into `room`."""
    counts = np.zeros(len(room), dtype=np.int64)
    while missing := samples - counts.sum():
        is_open = counts < room
        weights = prior * is_open if (prior * is_open).sum() > 0 else is_open.astype(np.float64)
        counts = np.minimum(counts + rng.multinomial(missing, weights / weights.sum()), room)
    return counts


def _deal_from_rings(rng: np.random.Generator, pools: list[Indices], counts: list[Indices]) -> list[Indices]:
    rings = [rng.permutation(rows) for rows in pools]
    hands = []
    for wanted in counts:
        hands.append(rng.permutation(np.concatenate([ring[:n] for ring, n in zip(rings, wanted, strict=True)])))
        rings = [np.roll(ring, -n) for ring, n in zip(rings, wanted, strict=True)]
    return hands
