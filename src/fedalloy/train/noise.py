"""Where private training takes its randomness from: which samples are drawn, and the noise on their gradients.

* `Rehearsed`, in a simulation: streams that follow from the experiment's seed. The run can be repeated bit for bit, and
  anyone who knows the seed can subtract the noise again. Its epsilon is a rehearsal's: what the same training would
  cost with noise that is secret.
* `Secret`, at the sites of a deployment: a keystream that nobody can repeat, the site itself included.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

SUMMED = 4  # normal numbers that make one; see `Secret`


class Noise(Protocol):
    """A source of random numbers for private steps; both kinds are float64."""

    def uniform(self, count: int) -> Tensor:
        """So many numbers from 0 up to, but not including, 1."""

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Numbers of mean 0 and variance 1."""


class Rehearsed:
    """Noise that can be repeated: two streams, which `stream_of` gives by their purpose."""

    def __init__(self, stream_of: Callable[[str], torch.Generator]) -> None:
        self._batches, self._noise = stream_of("batches"), stream_of("noise")

    def uniform(self, count: int) -> Tensor:
        """So many numbers from 0 up to, but not including, 1."""
        return torch.rand(count, generator=self._batches, dtype=torch.float64)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Numbers of mean 0 and variance 1."""
        return torch.randn(tuple(shape), generator=self._noise, dtype=torch.float64)


class Secret:
    """Noise that nobody can repeat.

    Each draw is a ChaCha20 keystream under 32 fresh bytes of the operating system's randomness. A key is used once, is
    never written anywhere and is forgotten with the draw, so that no crash, resumption or fork can bring noise back.

    A normal number is half the sum of four, by Box and Muller's formula from 53-bit uniform numbers. A single one is
    not enough: floating-point numbers are not evenly spaced, so that a noisy value tells which values it can have been
    before the noise; with four, too many remain (Holohan and Braghin, 2021).

    >>> Secret().normal((2, 3)).shape, bool((Secret().uniform(5) < 1).all())
    (torch.Size([2, 3]), True)
    """

    def uniform(self, count: int) -> Tensor:
        """So many numbers from 0 up to, but not including, 1."""
        whole = np.frombuffer(keystream(8 * count), "<u8") >> np.uint64(11)  # 53 bits: all that a float64 can hold
        return torch.from_numpy(whole.astype(np.float64) * 2.0**-53)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Numbers of mean 0 and variance 1."""
        drawn = self.uniform(SUMMED * math.prod(shape)).view(2, SUMMED // 2, *shape)
        radius = torch.sqrt(-2 * torch.log1p(-drawn[0]))  # 1 - u is never 0
        angle = 2 * math.pi * drawn[1]
        return (radius * (angle.cos() + angle.sin())).sum(0) / math.sqrt(SUMMED)


def secret_seed() -> int:
    """A seed that nobody else can know, for streams that are not noise themselves."""
    return int.from_bytes(os.urandom(8), "big") >> 1


def keystream(count: int) -> bytes:
    """So many bytes that nobody else can know."""
    # It comes with Flower, and so is wherever a site is; a simulation does not need it.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    once = algorithms.ChaCha20(os.urandom(32), nonce=bytes(16))  # the key is new, so that the nonce need not be
    return Cipher(once, mode=None).encryptor().update(bytes(count))
