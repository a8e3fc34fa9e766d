"""Functions that distribute the rows of a data set among clients, from labels to row indices.

A partitioner is called as `(labels, clients, *, seed, **options)` and returns one array of row indices per client.
Unless its docstring says otherwise, the arrays are disjoint and contain every row. Register your own partition with
`@partitions.register("name")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.registry import Registry
from fedalloy.base.rng import numpy_generator
from fedalloy.errors import UsageError

Indices = NDArray[np.int64]
Partitioner = Callable[..., list[Indices]]

partitions: Registry[Partitioner] = Registry("partition")

MOST_DRAWS = 1_000  # settings from the literature need fewer than ten; more would only delay the error


@partitions.register("dirichlet")
def dirichlet(
    labels: Indices, clients: int, *, seed: int, alpha: float, min_size: int = 10, balanced: bool = True
) -> list[Indices]:
    """Distribute each class among the clients with shares drawn from a Dirichlet distribution.

    A small `alpha` gives each class to few clients, a large `alpha` gives every client the same class distribution.
    With `balanced`, a client that already has its fair share (rows / clients) gets nothing of the following classes, as
    in NIID-Bench (Li et al., ICDE 2022), MOON and KDIA; without it, this is the plain class-wise Dirichlet of Hsu et
    al. (2019). The whole draw is repeated, at most 1,000 times, until the smallest client has `min_size` rows. Cuts are
    rounded down, as in the published code, so the last client often gets a single row of a class that it should not
    have.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> [len(rows) for rows in dirichlet(labels, 4, seed=0, alpha=0.5)]
    [304, 175, 252, 269]
    """
    check_concentration("alpha", alpha)
    rng = numpy_generator(seed, "partition", "dirichlet")
    return _deal_by_shares(rng, rows_by_class(labels), clients, alpha, min_size, balanced=balanced, knob="alpha")


@partitions.register("quantity")
def quantity(labels: Indices, clients: int, *, seed: int, beta: float, min_size: int = 10) -> list[Indices]:
    """Draw the clients' sizes from a Dirichlet distribution and distribute rows at random: only sizes differ.

    The draw is repeated, at most 1,000 times, until the smallest client has `min_size` rows.

    >>> [len(rows) for rows in quantity(np.zeros(1000, np.int64), 4, seed=0, beta=0.5)]
    [335, 86, 562, 17]
    """
    check_concentration("beta", beta)
    rng = numpy_generator(seed, "partition", "quantity")
    everything = [np.arange(len(labels), dtype=np.int64)]  # treat the data as one class: only the sizes can differ
    return _deal_by_shares(rng, everything, clients, beta, min_size, balanced=False, knob="beta")


@partitions.register("classes")
def classes(labels: Indices, clients: int, *, seed: int, per_client: int) -> list[Indices]:
    """Give each client `per_client` classes, and divide each class evenly among its holders.

    Clients choose in turn among the classes with the fewest holders, so that the numbers of holders differ by at most
    one and no class is left over.

    >>> rows = classes(np.repeat(np.arange(10), 100), 5, seed=0, per_client=2)
    >>> [len(r) for r in rows], [sorted(set((r // 100).tolist())) for r in rows]
    ([200, 200, 200, 200, 200], [[0, 4], [8, 9], [5, 6], [1, 7], [2, 3]])
    """
    pools = [rows for rows in rows_by_class(labels) if len(rows)]
    check_whole("per_client", per_client, least=1, most=len(pools), of="the number of classes")
    if clients * per_client < len(pools):
        raise UsageError(
            f"{clients} clients with {per_client} classes each cannot cover all {len(pools)} classes; "
            f"write per_client={math.ceil(len(pools) / clients)} or more"
        )
    rng = numpy_generator(seed, "partition", "classes")
    holds = np.zeros((clients, len(pools)), dtype=bool)
    for client in range(clients):
        fewest_holders_first = np.lexsort((rng.random(len(pools)), holds.sum(axis=0)))
        holds[client, fewest_holders_first[:per_client]] = True
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c, rows in enumerate(pools):
        holders = np.flatnonzero(holds[:, c])
        counts[holders, c] = [len(part) for part in np.array_split(rows, len(holders))]
    return hand_out(rng, pools, counts)


@partitions.register("iid")
def iid(labels: Indices, clients: int, *, seed: int) -> list[Indices]:
    """Shuffle the rows and divide them into equal parts; sizes differ by at most one.

    >>> [len(rows) for rows in iid(np.zeros(10, np.int64), 3, seed=0)]
    [4, 3, 3]
    """
    rng = numpy_generator(seed, "partition", "iid")
    return np.array_split(rng.permutation(len(labels)).astype(np.int64), clients)


@partitions.register("natural")
def natural(labels: Indices, clients: int, *, seed: int, ids: NDArray[Any]) -> list[Indices]:
    """Give each client the rows with its id (a writer, a hospital); client k is the k-th id in sorted order.

    >>> [sorted(rows.tolist()) for rows in natural(np.zeros(4, np.int64), 2, seed=0, ids=np.array(list("baab")))]
    [[1, 2], [0, 3]]
    """
    ids = np.asarray(ids)
    if ids.shape != labels.shape:
        raise UsageError(f"there are {ids.size} ids for {len(labels)} rows; give exactly one id per row")
    names, owner = np.unique(ids, return_inverse=True)
    if len(names) != clients:
        raise UsageError(f"there are {len(names)} different ids, but clients = {clients}; write clients={len(names)}")
    return [own_order(rows, k, seed) for k, rows in enumerate(rows_by_class(owner.astype(np.int64)))]


def own_order(rows: Indices, client: int, seed: int) -> Indices:
    """Shuffle a natural client's rows, which may be all that it knows; the stream is this client's alone."""
    return numpy_generator(seed, "partition", "natural", client).permutation(rows)


def rows_by_class(labels: Indices) -> list[Indices]:
    """Return the rows of each class, from class 0 to the largest label; a class may be empty.

    >>> [rows.tolist() for rows in rows_by_class(np.array([1, 0, 1, 3]))]
    [[1], [0, 2], [], [3]]
    """
    order = np.argsort(labels, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def hand_out(rng: np.random.Generator, pools: list[Indices], counts: Indices) -> list[Indices]:
    """Shuffle each pool, give client k `counts[k, c]` rows of pool c, and shuffle each client's rows."""
    hands: list[list[Indices]] = [[] for _ in counts]
    for rows, share in zip(pools, counts.T, strict=True):
        for hand, part in zip(hands, np.split(rng.permutation(rows), np.cumsum(share)[:-1]), strict=True):
            hand.append(part)
    return [rng.permutation(np.concatenate(hand)) for hand in hands]


def check_concentration(name: str, value: float) -> None:
    """Refuse a Dirichlet concentration that is not a positive number or that is out of the numeric range."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not 1e-6 <= value <= 1e6:
        raise UsageError(f"{name} = {value!r} must be a number between 1e-6 and 1e6; write for example {name}=0.5")


def check_whole(name: str, value: int, *, least: int, most: int, of: str) -> None:
    """Refuse an option that is not an integer from `least` to `most`; `of` describes the upper limit.

    >>> check_whole("samples", 70, least=1, most=60, of="the number of rows")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: samples = 70 must be an integer from 1 to 60, the number of rows
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise UsageError(f"{name} = {value!r} must be an integer from {least} to {most}, {of}")


def _deal_by_shares(
    rng: np.random.Generator,
    pools: list[Indices],
    clients: int,
    concentration: float,
    min_size: int,
    *,
    balanced: bool,
    knob: str,
) -> list[Indices]:
    """Draw counts until every client has `min_size` rows, then distribute the rows; redrawing only counts is fast."""
    total = sum(len(rows) for rows in pools)
    check_whole("min_size", min_size, least=0, most=total, of="the number of rows")
    if min_size * clients > total:
        raise UsageError(
            f"{total:,} rows are too few for {clients} clients with at least {min_size} each; write "
            f"partition.clients = {total // min_size} or fewer, or partition.min_size = {total // clients} or less"
        )
    for _ in range(MOST_DRAWS):
        counts = _draw_counts(rng, [len(rows) for rows in pools], clients, concentration, balanced=balanced)
        if counts.sum(axis=1).min() >= min_size:
            return hand_out(rng, pools, counts)
    raise UsageError(
        f"in {MOST_DRAWS:,} draws with {knob} = {concentration} some client always had fewer than {min_size} of the "
        f"{total:,} rows; raise {knob}, lower min_size, or use fewer than {clients} clients"
    )


def _draw_counts(
    rng: np.random.Generator, sizes: list[int], clients: int, concentration: float, *, balanced: bool
) -> Indices:
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    total = sum(sizes)
    for c, size in enumerate(sizes):
        if size == 0:
            continue
        # The papers draw shares for all clients, set those of full clients to zero and renormalise, which divides by
        # zero if the draw had nothing for the others. A Dirichlet vector restricted to some entries and renormalised is
        # Dirichlet on these entries, so drawing for the open clients only gives the same distribution without that
        # problem. Some client is always open: rows remain, so not every client can have rows / clients.
        is_open = np.flatnonzero(held * clients < total) if balanced else np.arange(clients)
        shares = rng.dirichlet(np.full(len(is_open), concentration))
        cuts = np.floor(np.cumsum(shares)[:-1] * size).astype(np.int64)
        counts[is_open, c] = np.diff(cuts, prepend=0, append=size)
        held += counts[:, c]
    return counts
