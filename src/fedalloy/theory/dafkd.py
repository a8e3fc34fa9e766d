"""DaFKD's Theorem 1: what discriminators and generator are at the optimum of its Eq. 5, on discrete distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from fedalloy.base.rng import numpy_generator
from fedalloy.federation.across import Floats
from fedalloy.theory.finding import Finding

# Three clients and two kinds of samples: the smallest case in which the generator's optimum is not the mean.
EXAMPLE = ((1, 0), (1, 0), (0, 1))
PROBLEMS = 200  # random ones: three clients, five kinds of samples
CLOSE = 1e-6  # a search on values of a loss is no more exact than about 1e-8
GOLDEN = (math.sqrt(5) - 1) / 2


def adversarial_loss(clients: ArrayLike, generator: ArrayLike, scores: ArrayLike) -> float:
    """Eq. 5: the discriminators' mean cross-entropy; `scores` holds f for each client (row) and kind of sample.

    >>> round(adversarial_loss([[0.5, 0.5]], [0.5, 0.5], [[0.5, 0.5]]), 6) == round(2 * math.log(2), 6)
    True
    """
    p, g, f = (np.asarray(each, dtype=np.float64) for each in (clients, generator, scores))
    real = np.where(p > 0, p * np.log(np.where(p > 0, f, 1)), 0)
    made = np.where(g > 0, g * np.log(np.where(g > 0, 1 - f, 1)), 0)
    return float(-(real + made).sum() / len(p))


def best_scores(clients: ArrayLike, generator: ArrayLike) -> Floats:
    """The theorem's discriminators for any generator: p_k / (p_k + p_g).

    >>> best_scores([[0.75, 0.25]], [0.25, 0.75]).tolist()
    [[0.75, 0.25]]
    """
    p, g = np.asarray(clients, dtype=np.float64), np.asarray(generator, dtype=np.float64)
    return np.divide(p, p + g, out=np.zeros_like(p), where=p + g > 0)


def searched_scores(clients: ArrayLike, generator: ArrayLike) -> Floats:
    """The scores with the least Eq. 5, found by golden-section search on the loss alone.

    >>> searched_scores([[0.75, 0.25]], [0.25, 0.75]).round(6).tolist()
    [[0.75, 0.25]]
    """
    p, g = np.asarray(clients, dtype=np.float64), np.asarray(generator, dtype=np.float64)

    def terms(f: Floats) -> Floats:
        return np.asarray(-p * np.log(f) - g * np.log(1 - f), dtype=np.float64)

    low, high = np.full(p.shape, 1e-12), np.full(p.shape, 1 - 1e-12)
    for _ in range(60):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        lower = terms(left) < terms(right)
        low, high = np.where(lower, low, left), np.where(lower, right, high)
    return np.asarray((low + high) / 2, dtype=np.float64)


def divergence(clients: ArrayLike, generator: ArrayLike) -> float:
    """The mean Jensen-Shannon divergence of the generator from the clients, in nats.

    With the best discriminators, Eq. 5 is 2 log 2 minus twice this, so a generator that maximises Eq. 5 minimises it.

    >>> p, g = [[0.9, 0.1], [0.2, 0.8]], [0.5, 0.5]
    >>> at_best = adversarial_loss(p, g, best_scores(p, g))
    >>> math.isclose(at_best, 2 * math.log(2) - 2 * divergence(p, g))
    True
    """
    return math.log(2) - adversarial_loss(clients, generator, best_scores(clients, generator)) / 2


def best_generator(clients: ArrayLike) -> Floats:
    """The distribution with the least mean Jensen-Shannon divergence from the clients: the optimum of Eq. 5.

    The divergence is convex, and at its minimum the sum over clients of log(g / (p_k + g)) is equal for all kinds of
    samples that are generated; both the level and the probabilities are found by bisection. With more
    dimensions, `clients` holds several problems.

    >>> [round(float(p), 9) for p in best_generator(EXAMPLE)], round((1 + math.sqrt(13)) / 6, 9)
    ([0.767591879, 0.232408121], 0.767591879)
    """
    p = np.asarray(clients, dtype=np.float64)

    def at_level(level: Floats) -> Floats:
        low, high = np.zeros_like(p[..., 0, :]), np.ones_like(p[..., 0, :])
        for _ in range(60):
            g = (low + high) / 2
            below = np.log(g[..., None, :] / (p + g[..., None, :])).sum(-2) < level
            low, high = np.where(below, g, low), np.where(below, high, g)
        return np.where(p.any(-2), (low + high) / 2, 0)

    low, high = np.full_like(p[..., 0, :1], -50.0 * p.shape[-2]), np.zeros_like(p[..., 0, :1])
    for _ in range(60):
        level = (low + high) / 2
        short = at_level(level).sum(-1, keepdims=True) < 1
        low, high = np.where(short, level, low), np.where(short, high, level)
    return at_level((low + high) / 2)


def slopes(clients: Sequence[Sequence[int | Fraction]], generator: Sequence[Fraction]) -> list[Fraction]:
    """The exponential of each kind's derivative of the summed divergence, but for a common factor, in exact fractions.

    At an optimum all are equal where the generator is positive.

    >>> [str(slope) for slope in slopes(EXAMPLE, [Fraction(2, 3), Fraction(1, 3)])]
    ['4/25', '1/4']
    """
    kinds = zip(generator, zip(*clients, strict=True), strict=True)
    return [math.prod((g / (g + p) for p in column), start=Fraction(1)) for g, column in kinds]


def distance(left: ArrayLike, right: ArrayLike) -> float:
    """The total variation distance of two distributions: the share of the samples that differs.

    >>> distance([1, 0], [0.75, 0.25])
    0.25
    """
    return float(abs(np.asarray(left, dtype=np.float64) - np.asarray(right, dtype=np.float64)).sum() / 2)


def problems(count: int = PROBLEMS) -> Floats:
    """Random clients for `count` problems: problem, client, kind of sample.

    >>> problems(2).shape
    (2, 3, 5)
    """
    return np.asarray(numpy_generator(0, "dafkd theorem 1").dirichlet(np.ones(5), size=(count, 3)), dtype=np.float64)


def outlier(clients: int) -> Floats:
    """All clients have samples of the first kind, except one, which has only the second.

    >>> outlier(3).tolist() == [list(row) for row in EXAMPLE]
    True
    """
    return np.array([[1.0, 0.0]] * (clients - 1) + [[0.0, 1.0]])


def dafkd_theorem1_f() -> Finding:
    """Search for the best discriminators without using the theorem's formula, and compare them with it.

    >>> dafkd_theorem1_f().holds
    True
    """
    rng = numpy_generator(0, "dafkd generators")
    agree, literal = 0, 0.0
    for clients, optimum in zip(problems(), best_generator(problems()), strict=True):
        generator = rng.dirichlet(np.ones(5))
        formula = best_scores(clients, generator)
        agree += bool(abs(searched_scores(clients, generator) - formula).max() < CLOSE)
        differences = abs(best_scores(clients, optimum) - best_scores(clients, clients.mean(0)))
        literal = max(literal, float(differences.max()))
    numbers = {
        "problems": float(PROBLEMS),
        f"of these, searched scores within {CLOSE:g} of p_k / (p_k + p_g)": float(agree),
        "largest difference at the optimum from p_k / (p_k + p)": literal,
    }
    text = (
        f"In {agree} of {PROBLEMS} random problems with random generators, the scores with the least loss, found by a "
        f"search that knows only the loss, are p_k / (p_k + p_g) to within {CLOSE:g}. The theorem writes p for p_g, "
        "which needs its other half: at the generator's actual optimum the scores differ from p_k / (p_k + p) by up "
        f"to {literal:.2f}. The formula also needs as many real as generated samples, as in Eq. 5; with other counts "
        "in Eq. 2, p_k and p_g are weighed by them."
    )
    return Finding(agree == PROBLEMS, text, numbers)


def dafkd_theorem1_pg() -> Finding:
    """Compare the generator's optimum with the mean of the clients: a counterexample in fractions, and random problems.

    >>> dafkd_theorem1_pg().holds
    False
    """
    mean = [Fraction(sum(column), len(EXAMPLE)) for column in zip(*EXAMPLE, strict=True)]
    first, second = slopes(EXAMPLE, mean)
    optimum = best_generator(EXAMPLE)
    apart = [distance(g, p.mean(0)) for p, g in zip(problems(), best_generator(problems()), strict=True)]
    rare = float(best_generator(outlier(10))[1])
    numbers = {
        "share of the first kind by the theorem": float(mean[0]),
        "share of the first kind at the optimum": float(optimum[0]),
        "(1 + sqrt(13)) / 6": (1 + math.sqrt(13)) / 6,
        "mean divergence at the theorem's generator": divergence(EXAMPLE, [float(p) for p in mean]),
        "mean divergence at the optimum": divergence(EXAMPLE, optimum),
        "random problems: smallest distance of the optimum from the mean": min(apart),
        "random problems: median distance": float(np.median(apart)),
        "random problems: largest distance": max(apart),
        "one of ten clients has the second kind: its share at the optimum": rare,
    }
    text = (
        "Counterexample: clients (1, 0), (1, 0) and (0, 1). At an optimum the product over clients of p_g / (p_k + "
        f"p_g) is equal for both kinds of samples; at the theorem's p_g = (2/3, 1/3) it is {first} and {second}, in "
        "exact fractions. The optimum is the minimiser of the summed Jensen-Shannon divergences, a root of 3a² - a - "
        f"1: ({optimum[0]:.4f}, {optimum[1]:.4f}). In {PROBLEMS} random problems the optimum differs from the mean by "
        f"{min(apart):.3f} to {max(apart):.3f} in total variation. The optimum neglects rare samples: if one of ten "
        f"clients has the second kind alone, the theorem gives it 10 %, the optimum {100 * rare:.2f} %."
    )
    return Finding(first == second and max(apart) < 1e-9, text, numbers)
