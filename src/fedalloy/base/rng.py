"""Every random stream is a function of (seed, purpose, round, client); nothing draws from a shared stream.

Because a stream is addressed and not consumed, an extra forward pass, a different number of workers, a different order
of arrival or a resumed run cannot shift it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

Address = str | int


def derive(seed: int, *address: Address) -> int:
    """Turn a seed and an address into a new seed (63 bits).

    >>> derive(0, "batches", 3, 7) == derive(0, "batches", 3, 7)
    True
    >>> derive(0, "batches", 3, 7) == derive(0, "batches", 37)
    False
    """
    text = "/".join(f"{type(part).__name__}:{part}" for part in (seed, *address))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *address: Address) -> torch.Generator:
    """Return a torch generator at this address.

    >>> torch.randperm(5, generator=generator(0, "batches", 1)).tolist()
    [4, 3, 0, 2, 1]
    """
    return torch.Generator().manual_seed(derive(seed, *address))


def numpy_generator(seed: int, *address: Address) -> np.random.Generator:
    """Return a NumPy generator at this address."""
    return np.random.default_rng(derive(seed, *address))


@contextmanager
def seeded(seed: int, *address: Address) -> Iterator[None]:
    """Seed torch's global stream inside the block, for layers that cannot use another one (initialisation, dropout).

    The stream outside the block is not changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(
            derive(seed, *address)
        )  # torch.manual_seed seeds every device, which is slow
        yield
