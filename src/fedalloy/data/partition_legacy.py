"""FedKF's partition and local split, with NumPy's legacy generator: its code's, draw for draw."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fedalloy.data.partitioners import Indices, check_concentration, partitions, rows_by_class
from fedalloy.errors import UsageError

MOST_DRAWS = 10_000  # for one class; the last of m clients to become dominant takes m draws on average


@partitions.register("dirichlet-dominant")
def dirichlet_dominant(
    labels: Indices, clients: int, *, seed: int, alpha: float, order: Literal["appearance", "label"] = "appearance"
) -> list[Indices]:
    """Distribute each class by Dirichlet shares, with a different client getting most of each class in turn (FedKF).

    Clients are divided into groups of at most as many clients as there are classes. Each class is first divided among
    the groups in proportion to their sizes. Inside a group, shares are drawn until the largest belongs to a client that
    has not been dominant yet; when all have been, the cycle starts again. Every client is dominant in some class, which
    makes sizes far more even than with a plain Dirichlet.

    FedKF's code shuffles the classes in the `order` of their first rows; `"label"` shuffles them in ascending order,
    which gives another split unless the first rows come in that order. The draws that follow are always in ascending
    order. Recorded runs depend on every draw.

    >>> labels = np.repeat(np.arange(10), 5000)
    >>> [len(rows) for rows in dirichlet_dominant(labels, 20, seed=123456, alpha=0.1)][:4]
    [1924, 2223, 1760, 2036]
    """
    check_concentration("alpha", alpha)
    if order not in ("appearance", "label"):
        raise UsageError(f'order = {order!r} is invalid; write "appearance" (as in FedKF\'s code) or "label"')
    if not 0 <= seed < 2**32:
        raise UsageError(
            f"seed = {seed} does not fit NumPy's legacy generator, which 'dirichlet-dominant' uses; "
            "write a seed from 0 to 4294967295"
        )
    stream = np.random.RandomState(seed)
    pools = [rows for rows in rows_by_class(labels) if len(rows)]
    starts = range(0, clients, len(pools))
    groups = [range(start, min(start + len(pools), clients)) for start in starts]

    proportions = np.array([len(group) for group in groups]) / clients  # not in whole numbers: rounded as in the code
    walk = sorted(range(len(pools)), key=lambda c: pools[c][0]) if order == "appearance" else range(len(pools))
    shares_of_groups: dict[int, list[Indices]] = {}
    for c in walk:
        shuffled = stream.permutation(pools[c])
        counts = (proportions * len(shuffled)).astype(np.int64)
        counts[stream.randint(len(groups))] += len(shuffled) - counts.sum()
        shares_of_groups[c] = np.split(shuffled, np.cumsum(counts)[:-1])

    hands: list[list[Indices]] = [[] for _ in range(clients)]
    for g, group in enumerate(groups):
        was_dominant: set[int] = set()
        for c in range(len(pools)):
            rows = shares_of_groups[c][g]
            q = _draw_with_new_dominant(stream, alpha, len(group), was_dominant)
            was_dominant.add(int(q.argmax()))
            if len(was_dominant) == len(group):
                was_dominant.clear()
            counts = np.floor(q * len(rows)).astype(np.int64)
            counts[stream.randint(len(group))] += len(rows) - counts.sum()
            for client, part in zip(group, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
                hands[client].append(part)
    return [np.concatenate(hand) for hand in hands]


def local_split(indices: Indices, *, client_id: int, fraction: float = 0.8) -> tuple[Indices, Indices]:
    """Split a client's rows into training and test rows, shuffled with its id as the seed (FedKF).

    The first floor(fraction n) shuffled rows are for training, the rest for testing, so that the local test follows the
    local distribution. A client with any rows trains on at least one; its test may then be empty.

    >>> train, test = local_split(np.arange(10), client_id=0)
    >>> train.tolist(), test.tolist()
    ([2, 8, 4, 9, 1, 6, 7, 3], [0, 5])
    """
    shuffled = np.random.RandomState(client_id).permutation(indices)
    kept = at_least_one(fraction, len(shuffled))
    return shuffled[:kept], shuffled[kept:]


def at_least_one(fraction: float, n: int) -> int:
    """Return the floor of fraction times n, but at least 1 if n is positive.

    >>> at_least_one(1 - 0.9, 10), at_least_one(0.5, 1), at_least_one(0.5, 0)
    (1, 1, 0)
    """
    return min(n, max(1, math.floor(fraction * n + 1e-9)))  # 1 - 0.9 is slightly less than 0.1


def _draw_with_new_dominant(
    stream: np.random.RandomState, alpha: float, size: int, was_dominant: set[int]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    for _ in range(MOST_DRAWS):
        q = stream.dirichlet([alpha] * size)
        # With a tiny alpha the legacy generator may divide zero by zero.
        if np.isfinite(q).all() and int(q.argmax()) not in was_dominant:
            return q
    raise UsageError(f"no new dominant client in {MOST_DRAWS:,} draws with alpha = {alpha}; raise alpha")
