"""Sources of randomness for private training: which samples are drawn, and the noise on their gradients.

* `Rehearsed`, in a simulation: streams derived from the experiment's seed. The run can be repeated bit for bit, and
  anyone who knows the seed can subtract the noise. Its epsilon is that of a rehearsal: what the same training would
  cost with secret noise.
* `Secret`, at the sites of a deployment: a keystream that nobody can repeat, not even the site itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

SUMMED = 4  # normal numbers that are combined into one; see `Secret`


class Noise(Protocol):
    """A source of random numbers for private steps; both kinds are float64."""

    def uniform(self, count: int) -> Tensor:
        """Draw `count` numbers from 0 (inclusive) to 1 (exclusive)."""

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Draw numbers with mean 0 and variance 1."""


class Rehearsed:
    """Repeatable noise from two streams, which `stream_of` returns by purpose."""

    def __init__(self, stream_of: Callable[[str], torch.Generator]) -> None:
        self._batches, self._noise = stream_of("batches"), stream_of("noise")

    def uniform(self, count: int) -> Tensor:
        """Draw `count` numbers from 0 (inclusive) to 1 (exclusive)."""
        return torch.rand(count, generator=self._batches, dtype=torch.float64)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Draw numbers with mean 0 and variance 1."""
        return torch.randn(tuple(shape), generator=self._noise, dtype=torch.float64)


class Secret:
    """Noise that nobody can repeat.

    Each draw is a ChaCha20 keystream with a key of 32 new random bytes from the operating system. A key is used once,
    never stored, and discarded after the draw, so that no crash, resumption or fork can repeat noise.

    A normal number is half the sum of four, each by the Box-Muller transform of 53-bit uniform numbers. A single one is
    not enough: floating-point numbers are not evenly spaced, so a noisy value reveals which values it can have had
    before the noise; with four, too many values remain possible (Holohan and Braghin, 2021).

    >>> Secret().normal((2, 3)).shape, bool((Secret().uniform(5) < 1).all())
    (torch.Size([2, 3]), True)
    """

    def uniform(self, count: int) -> Tensor:
        """Draw `count` numbers from 0 (inclusive) to 1 (exclusive)."""
        whole = np.frombuffer(keystream(8 * count), "<u8") >> np.uint64(11)  # 53 bits: the precision of float64
        return torch.from_numpy(whole.astype(np.float64) * 2.0**-53)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Draw numbers with mean 0 and variance 1."""
        drawn = self.uniform(SUMMED * math.prod(shape)).view(2, SUMMED // 2, *shape)
        radius = torch.sqrt(-2 * torch.log1p(-drawn[0]))  # 1 - u is never 0
        angle = 2 * math.pi * drawn[1]
        return (radius * (angle.cos() + angle.sin())).sum(0) / math.sqrt(SUMMED)


def secret_seed() -> int:
    """Return a secret seed, for streams that are not noise themselves."""
    return int.from_bytes(os.urandom(8), "big") >> 1


def keystream(count: int) -> bytes:
    """Return `count` secret random bytes."""
    # Installed with Flower, so every site has it; a simulation does not need it.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    once = algorithms.ChaCha20(os.urandom(32), nonce=bytes(16))  # the key is new, so the nonce need not be
    return Cipher(once, mode=None).encryptor().update(bytes(count))
