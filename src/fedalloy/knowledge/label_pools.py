"""Labels for generated features: drawn uniformly into a pool, which is shuffled in every epoch (KDIA, Section 5.3)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedalloy.federation.core import Client
from fedalloy.train.fit import batches


def from_pool(classes: int, size: int, batch: int, steps: int, draw: torch.Generator) -> Iterator[Tensor]:
    """The labels of each batch, out of a pool of `size` labels that every epoch passes through in another order.

    >>> [y.tolist() for y in from_pool(1, 5, batch=3, steps=3, draw=torch.Generator())]
    [[0, 0, 0], [0, 0], [0, 0, 0]]
    """
    pool = torch.randint(classes, (size,), generator=draw)
    return (pool[positions] for positions in batches(size, batch, steps, draw))


def client_labels(me: Client) -> Iterator[Tensor]:
    """The labels beside each of a client's batches: as many as an epoch has samples (KDIA, Algorithm 2, lines 2 to 5).

    A client whose epoch is a single batch draws fresh labels for every epoch. In the paper that is a client with fewer
    samples than a batch. Here one sample more than a batch is a single batch too, since a last batch of one sample joins
    the one before it.
    """
    n, batch, draw = me.n, me.work.batch, me.rng("generator/labels")
    visited = n - n % batch if me.work.drop_last and n > batch else n
    joined = n % batch == 1
    if visited <= batch + joined:
        return iter(torch.randint(me.classes, (me.steps, visited), generator=draw))
    return from_pool(me.classes, visited, batch, me.steps, draw)
