"""FedKF's Lemma 1 and Theorem 5.1: no mixture of clients is harder than the worst client."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from fedalloy.base.rng import numpy_generator
from fedalloy.federation.across import Floats, fm
from fedalloy.theory.finding import Finding

# Five kinds of samples, of which the model classifies the first three correctly, at three clients. The clients'
# accuracies are those of w_1 in the paper's Table II.
RIGHT = (True, True, True, False, False)
CLIENTS = tuple(
    tuple(Fraction(tenths, 10) for tenths in row) for row in ((3, 2, 1, 2, 2), (1, 2, 4, 2, 1), (4, 3, 1, 0, 2))
)
PARTS = 12  # the mixtures tried have shares in twelfths
FRESH = 100  # samples in a finite test set
ONE_WEAK = (0.4, *[0.8] * 19)  # accuracies of twenty clients
DRAWS = 200


def accuracy(domain: Sequence[Fraction], right: Sequence[bool] = RIGHT) -> Fraction:
    """The probability of the samples that are classified correctly.

    >>> [str(accuracy(client)) for client in CLIENTS]
    ['3/5', '7/10', '4/5']
    """
    return sum((p for p, correct in zip(domain, right, strict=True) if correct), Fraction(0))


def mixture(shares: Sequence[Fraction], clients: Sequence[Sequence[Fraction]] = CLIENTS) -> list[Fraction]:
    """The distribution of samples in a domain that mixes the clients by their shares.

    >>> half = Fraction(1, 2)
    >>> [str(p) for p in mixture([half, half, Fraction(0)])]
    ['1/5', '1/5', '1/4', '1/5', '3/20']
    """
    return [sum((s * p for s, p in zip(shares, kind, strict=True)), Fraction(0)) for kind in zip(*clients, strict=True)]


def all_shares(clients: int, parts: int = PARTS) -> Iterator[list[Fraction]]:
    """Every way to divide a whole among the clients in equal parts.

    >>> [[str(share) for share in shares] for shares in all_shares(2, parts=2)]
    [['0', '1'], ['1/2', '1/2'], ['1', '0']]
    """
    if clients == 1:
        yield [Fraction(1)]
        return
    for first in range(parts + 1):
        rest = Fraction(parts - first, parts)
        if not rest:
            yield [Fraction(1), *[Fraction(0)] * (clients - 1)]
        else:
            yield from (
                [Fraction(first, parts), *(rest * s for s in more)] for more in all_shares(clients - 1, parts - first)
            )


def chance_below(accuracy: Fraction, samples: int = FRESH) -> float:
    """The probability that so many fresh samples score below the accuracy that they have in expectation.

    >>> chance_below(Fraction(1, 2), 3)
    0.5
    """
    p = float(accuracy)
    return sum(
        math.comb(samples, n) * p**n * (1 - p) ** (samples - n) for n in range(samples + 1) if n < accuracy * samples
    )


def fedkf_lemma1() -> Finding:
    """Evaluate a model on every mixture of three clients in exact fractions, and on a domain outside them.

    >>> fedkf_lemma1().holds
    True
    """
    worst = min(accuracy(client) for client in CLIENTS)
    reached = [accuracy(mixture(shares)) for shares in all_shares(len(CLIENTS))]
    outside = [Fraction(correct is False, RIGHT.count(False)) for correct in RIGHT]
    numbers = {
        "accuracy on the worst client": float(worst),
        "mixtures tried": float(len(reached)),
        "lowest accuracy on a mixture": float(min(reached)),
        "accuracy on a domain that is no mixture": float(accuracy(outside)),
        f"chance that {FRESH} fresh samples of the worst client score below": chance_below(worst),
    }
    text = (
        f"On all {len(reached)} mixtures of three clients with shares in twelfths, in exact fractions, the accuracy is "
        f"at least that on the worst client ({float(worst):g}), and one mixture, that client alone, attains it. The "
        "accuracy on a domain that has the same kinds of samples, but is no mixture of the clients, can be 0. On "
        f"{FRESH} fresh samples of the worst client it is below {float(worst):g} with probability "
        f"{chance_below(worst):.2f}: the lemma is about expected accuracies."
    )
    return Finding(min(reached) >= worst, text, numbers)


def lowest_of(accuracies: Sequence[float], domains: int, draws: int = DRAWS) -> Floats:
    """The lowest accuracy on the first 1, 2, ... of `domains` random mixtures, one row for each of `draws` repetitions.

    >>> lowest = lowest_of([0.6, 0.7, 0.8], domains=50, draws=2)
    >>> lowest.shape, bool((lowest >= 0.6).all()), bool((np.diff(lowest) <= 0).all())
    ((2, 50), True, True)
    """
    drawn = numpy_generator(0, "domains").dirichlet(np.ones(len(accuracies)), size=(draws, domains))
    return np.minimum.accumulate(drawn @ np.asarray(accuracies), axis=1)


def fedkf_bound() -> Finding:
    """Compare the worst of many random domains with the worst client, and what the theorem does not say about fairness.

    >>> fedkf_bound().holds
    True
    """
    three = [float(accuracy(client)) for client in CLIENTS]
    few, many = lowest_of(three, 1000), lowest_of(ONE_WEAK, 1000)
    extremes = [min(three), max(three)]
    numbers = {
        "3 clients: worst client": min(three),
        "3 clients: worst of 1000 domains (mean)": float(few[:, -1].mean()),
        "20 clients, one weak: worst client": min(ONE_WEAK),
        "20 clients, one weak: worst of 1000 domains (mean)": float(many[:, -1].mean()),
        "FM over the 3 clients": fm(three),
        "FM over two domains, the worst and the best client": fm(extremes),
    }
    below = min(float(few.min()) - min(three), float(many.min()) - min(ONE_WEAK))
    text = (
        f"In {DRAWS} draws of 1000 random mixtures, no domain falls below the worst client. With three clients the "
        f"worst domain comes close to it ({few[:, -1].mean():.3f} against {min(three):g}). With one weak client among "
        f"twenty the bound says little ({many[:, -1].mean():.2f} against {min(ONE_WEAK):g}), since a random mixture "
        "consists of one client only with a tiny probability. Nothing follows for fairness: the variance over two "
        f"domains, the worst and the best of the three clients, is {fm(extremes):.4f}, above the clients' own "
        f"{fm(three):.4f}."
    )
    return Finding(below >= -1e-12, text, numbers)
