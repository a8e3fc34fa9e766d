"""A convex problem with one parameter on which every constant of KDIA's Theorem 1 is known.

There are five kinds of clients, eight of each. A client of kind k has one input x_k > 0 and two classes; the
probability of the first is sigmoid(0.5 x_k). The model predicts sigmoid(theta x_k), so all clients' cross-entropies
have their minimum at theta = 0.5 (without a common minimum, bounded dissimilarity fails), and theta stays within
[-2, 2], since probabilities have no lower bound otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from fedalloy.federation.across import Floats

INPUTS = np.linspace(0.5, 1.5, 5)  # one for each kind
EACH = 8  # clients of each kind
OPTIMUM, LARGEST = 0.5, 2.0
SAMPLED = 5  # clients in a round, K in the paper


def sigmoid(z: ArrayLike) -> Floats:
    """The probability of the first class.

    >>> float(sigmoid(0.0))
    0.5
    """
    return np.asarray(1 / (1 + np.exp(-np.asarray(z, dtype=np.float64))), dtype=np.float64)


def loss(theta: ArrayLike) -> Floats:
    """The mean cross-entropy of all clients, at each theta.

    >>> bool(loss(0.5) < loss([0.4, 0.6]).min())
    True
    """
    z = np.multiply.outer(np.asarray(theta, dtype=np.float64), INPUTS)
    return np.asarray((np.logaddexp(0, z) - sigmoid(OPTIMUM * INPUTS) * z).mean(-1), dtype=np.float64)


def gradients(theta: ArrayLike) -> Floats:
    """The derivative of each kind's cross-entropy, at one theta or at one for each kind.

    >>> bool((gradients(1.0) > 0).all()), float(abs(gradients(0.5)).max())
    (True, 0.0)
    """
    return INPUTS * (sigmoid(np.asarray(theta, dtype=np.float64) * INPUTS) - sigmoid(OPTIMUM * INPUTS))


@dataclass(frozen=True)
class Constants:
    """What Theorem 1 needs: smoothness, least curvature, dissimilarity, least probability, Lipschitz constant."""

    L: float
    lowest: float  # lambda_min
    B: float
    delta: float
    L_h: float

    def strength(self, mu: float) -> float:
        """The factor of the squared distance that the theorem puts in place of distillation: mu L_h / delta.

        >>> Constants(L=1, lowest=0, B=1, delta=0.25, L_h=0.5).strength(2)
        4.0
        """
        return mu * self.L_h / self.delta

    def rho(self, mu: float, gamma: float = 0.0, sampled: int = SAMPLED) -> float:
        """The theorem's rho: by how much of the squared gradient a round is said to lower the loss.

        >>> known = Constants(L=0.1, lowest=0, B=1, delta=0.25, L_h=0.5)
        >>> round(known.rho(2, sampled=8), 6), known.rho(0.01) < 0
        (0.107813, True)
        """
        m, b, step = self.strength(mu), self.B, self.B * (1 + gamma)
        phi = m + self.lowest
        drift = (1 - gamma * b - self.L * step / phi) / m
        noise = math.sqrt(2 / sampled) * step + self.L * step**2 / (2 * phi)
        noise += (2 * math.sqrt(2 * sampled) + 2) * self.L * step**2 / (phi * sampled)
        return drift - noise / phi

    def allowed(self, mu: float) -> float:
        """The largest gamma in [0, 1) with a positive rho; NaN if there is none.

        >>> known = Constants(L=0.1, lowest=0, B=1, delta=0.25, L_h=0.5)
        >>> 0 < known.allowed(10) < 1, known.allowed(0.01)
        (True, nan)
        """
        if self.rho(mu) <= 0:
            return math.nan
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.rho(mu, middle) > 0 else (low, middle)
        return low


@cache
def constants() -> Constants:
    """The problem's constants, in closed form but for B, which is the largest ratio on a fine grid.

    >>> constants().L, round(constants().delta, 4)
    (0.5625, 0.0474)
    """
    edge = sigmoid(LARGEST * INPUTS)
    most = float(INPUTS.max())
    grid = np.linspace(-LARGEST, LARGEST, 4001)
    each = np.array([gradients(theta) for theta in grid[abs(grid - OPTIMUM) > 1e-6]])
    ratio = (each**2).mean(1) / each.mean(1) ** 2
    return Constants(
        L=most**2 / 4,
        lowest=float((INPUTS**2 * edge * (1 - edge)).min()),
        B=math.sqrt(ratio.max()),
        delta=float(1 - sigmoid(LARGEST * most)),
        L_h=math.sqrt(2) * most / 4,
    )


def pulled(anchor: float, strength: float, residual: ArrayLike = 0.0) -> Floats:
    """Each kind's minimiser of its loss plus strength / 2 times the squared distance to the anchor.

    The derivative is `residual` there instead of 0: an inexact solution.

    >>> bool(abs(gradients(new := pulled(1.0, 4.0)) + 4.0 * (new - 1.0)).max() < 1e-12)
    True
    """
    return _root(lambda theta: gradients(theta) + strength * (theta - anchor) - np.asarray(residual))


def distilled(anchor: float, mu: float) -> Floats:
    """Each kind's minimiser of what KDIA minimises: its loss plus mu / 2 times the divergence from the teacher.

    >>> new = distilled(1.0, 4.0)
    >>> bool((new > 0.5).all() and (new < 1.0).all())
    True
    """
    teacher = sigmoid(anchor * INPUTS)
    return _root(lambda theta: gradients(theta) + mu / 2 * INPUTS * (sigmoid(theta * INPUTS) - teacher))


def expected_loss(models: Floats, sampled: int = SAMPLED) -> float:
    """The expected loss of the mean model of `sampled` clients, over all choices of them; clients of a kind are equal.

    >>> bool(np.isclose(expected_loss(np.full(5, 0.5)), loss(0.5)))
    True
    >>> bool(np.isclose(expected_loss(np.arange(5) / 4, sampled=1), loss(np.arange(5) / 4).mean()))
    True
    """
    counts, chances = _choices(sampled)
    return float(chances @ loss(counts @ models / sampled))


@cache
def _choices(sampled: int) -> tuple[Floats, Floats]:
    """How many clients of each kind can be chosen, and the probability of each such choice."""
    every = itertools.product(range(min(EACH, sampled) + 1), repeat=len(INPUTS))
    counts = np.array([chosen for chosen in every if sum(chosen) == sampled], dtype=np.float64)
    ways = [math.prod(math.comb(EACH, int(n)) for n in chosen) for chosen in counts]
    return counts, np.array(ways) / math.comb(EACH * len(INPUTS), sampled)


def _root(derivative: Callable[[Floats], Floats]) -> Floats:
    low, high = np.full(len(INPUTS), -9.0), np.full(len(INPUTS), 9.0)
    for _ in range(60):
        middle = (low + high) / 2
        below = derivative(middle) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2, dtype=np.float64)
