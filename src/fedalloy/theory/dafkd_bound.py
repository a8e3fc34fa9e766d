"""DaFKD's Theorem 2: a bound on the error of the weighted ensemble, with finite and with unlimited data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedalloy.base.rng import numpy_generator
from fedalloy.federation.across import Floats
from fedalloy.theory.dafkd import best_generator, best_scores
from fedalloy.theory.finding import Finding

DELTA = 0.05
TWO, KINDS, SAMPLES = 2, 100_000, 1_000  # clients that memorise, equally likely inputs, samples of each client
TEN, RARE = 10, 0.001
PROBLEMS = 900


def bound(
    global_loss: float, clients: int, samples: float = math.inf, *, delta: float = DELTA, sigma: float = 1.0
) -> float:
    """Eq. 10's right-hand side: (K + 1) times the global model's loss plus (K + 1) sqrt(sigma² log(2K / delta) / 2m).

    >>> bound(0.1, clients=3)
    0.4
    >>> round(bound(0.0, clients=2, samples=1000), 4)
    0.1404
    """
    return (clients + 1) * (global_loss + math.sqrt(sigma**2 * math.log(2 * clients / delta) / (2 * samples)))


def memorised_loss(clients: int, samples: int, kinds: int) -> float:
    """The least loss that models which memorise can have if they answer 0 for what they never saw.

    Half of the equally likely inputs have the label 1, and the loss is |prediction - label|. All clients together have
    seen at most K m inputs. All other inputs with label 1 are lost, whatever was drawn.

    >>> memorised_loss(clients=2, samples=1000, kinds=100_000)
    0.48
    """
    return 0.5 - clients * samples / kinds


def weights(clients: ArrayLike, generator: ArrayLike) -> Floats:
    """Eq. 7: the clients' best scores for each kind of sample, as shares that sum to 1.

    >>> weights([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5]).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    scores = best_scores(clients, generator)
    return np.asarray(scores / scores.sum(0), dtype=np.float64)


@dataclass(frozen=True)
class Outcome:
    """The loss of the best single model on all clients' data, and of the ensemble of the clients' own best models."""

    best: float
    ensemble: float


def ensemble(clients: ArrayLike, errors: ArrayLike, generator: ArrayLike) -> Outcome:
    """Let every client choose the model that is best on its own distribution, and weigh their answers by Eq. 7.

    `errors` holds the losses of all models that can be learned, one row for each; columns are kinds of samples.
    The loss |prediction - label| of a weighted answer is the weighted loss if predictions are 0 or 1.

    >>> ensemble([[1.0, 0.0], [0.0, 1.0]], [[0, 1], [1, 0]], [0.5, 0.5])
    Outcome(best=0.5, ensemble=0.0)
    """
    p, wrong = np.asarray(clients, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    own = wrong[(wrong @ p.T).argmin(0)]
    mean = p.mean(0)
    return Outcome(float((wrong @ mean).min()), float(((weights(p, generator) * own).sum(0) * mean).sum()))


def rare_kind(share: float, clients: int = TEN) -> tuple[Floats, Floats]:
    """Clients of which all but one hardly have the third kind of sample, and two models, each wrong on one kind.

    >>> [row.tolist() for row in rare_kind(0.25, clients=2)[0]]
    [[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]
    """
    return (
        np.array([[1 - 3 * share, 2 * share, share]] * (clients - 1) + [[0.0, 0.0, 1.0]]),
        np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]),
    )


def dafkd_theorem2() -> Finding:
    """Look for problems that break the bound: models that memorise, and the generator's actual optimum.

    >>> dafkd_theorem2().holds
    False
    """
    lost, limit = memorised_loss(TWO, SAMPLES, KINDS), bound(0.0, TWO, SAMPLES)
    clients, errors = rare_kind(RARE)
    actual = ensemble(clients, errors, best_generator(clients))
    assumed = ensemble(clients, errors, clients.mean(0))
    reach = bound(actual.best, TEN)
    numbers = {
        "memorising: least loss of the ensemble": lost,
        "memorising: bound": limit,
        "unlimited data: bound": reach,
        "unlimited data: loss with the generator's optimum": actual.ensemble,
        "unlimited data: loss with p_g = p": assumed.ensemble,
        "samples a client needs for a bound below 1, with 20 clients and no loss": 21**2 * math.log(40 / DELTA) / 2,
    }
    text = (
        f"Two counterexamples. (1) {TWO} clients with the same distribution, {KINDS:,} equally likely inputs and "
        f"{SAMPLES:,} samples each. Models that memorise have no loss on their data, so the bound is {limit:.2f} "
        f"(delta = {DELTA}, losses in [0, 1]); the ensemble's loss is at least {lost:.2f} whatever was drawn. Eq. 10 "
        f"has no term for how much a model can memorise. (2) Unlimited data, {TEN} clients, one of them with a kind of "
        f"sample that the others hardly have ({100 * RARE:g} %). With the generator's actual optimum, the weights let "
        f"the others answer for it: the loss is {actual.ensemble:.3f}, the bound {reach:.3f}. With p_g = p it would be "
        f"{assumed.ensemble:.4f}."
    )
    return Finding(lost <= limit and actual.ensemble <= reach, text, numbers)


def tried(count: int = PROBLEMS) -> list[tuple[int, Outcome]]:
    """Random problems with p_g = p: the number of clients, and the losses.

    >>> [clients for clients, _ in tried(3)]
    [2, 3, 4]
    """
    found = []
    for number in range(count):
        rng = numpy_generator(0, "dafkd theorem 2", number)
        k = 2 + number % 9
        clients = rng.dirichlet(np.full(8, 0.1 if number % 2 else 1.0), size=k)
        errors = (rng.random((rng.integers(2, 20), 8)) < rng.choice([0.2, 0.5])).astype(np.float64)
        found.append((k, ensemble(clients, errors, clients.mean(0))))
    return found


def dafkd_theorem2_limit() -> Finding:
    """Evaluate the bound with unlimited data and p_g = p, where it can be proved.

    >>> dafkd_theorem2_limit().holds
    True
    """
    outcomes = tried()
    shares = [one.ensemble / bound(one.best, k) for k, one in outcomes if one.best > 0]
    exact = max(one.ensemble for _, one in outcomes if one.best == 0)
    numbers = {
        "problems": float(PROBLEMS),
        "largest loss as a share of the bound": max(shares),
        "median share": float(np.median(shares)),
        "largest loss where one model is right everywhere": exact,
    }
    text = (
        f"In {PROBLEMS} random problems with 2 to 10 clients, 8 kinds of samples and up to 19 models, the ensemble's "
        f"loss is at most {max(shares):.2f} of (K + 1) times the loss of the best single model, in the median "
        f"{np.median(shares):.2f}."
    )
    return Finding(max(shares) <= 1 and exact == 0, text, numbers)
