"""How well a federation performs over its clients: pure functions of one score for each client.

The score of a client is its accuracy if a sample has one class, the share of right answers about labels if it has
several, and R2 if numbers are predicted. A client without test samples has no score: it is `nan`, and every function
skips it. If no client is left, the result is `nan`.
AMP, FM and WLP are defined in FedKF (Zhou et al.), ALMA in KnFu (Seyedmohammadi et al.).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedalloy.base.rng import numpy_generator
from fedalloy.errors import UsageError

Floats = NDArray[np.float64]

# Tolerance for >= between accuracies: far below one test sample in a billion, far above the rounding of a sum.
TINY = 1e-12


def amp(acc: ArrayLike, sizes: ArrayLike) -> float:
    """Average model performance: the mean accuracy, weighted by each client's size.

    FedKF's code takes the sizes of the test sets, which makes it all correct answers over all samples; its Definition 1
    takes |D_k|, the size of a client's data. See the key `amp_weights` of an experiment.

    >>> round(amp([0.6, 0.7, 0.8], [10, 10, 80]), 9)
    0.77
    """
    a, u = _pair(acc, sizes)
    held = u > 0
    return float(u[held] @ a[held] / u[held].sum()) if held.any() else math.nan


def alma(acc: ArrayLike) -> float:
    """Average local model accuracy: the unweighted mean over clients.

    >>> round(alma([0.6, 0.7, 0.8]), 9)
    0.7
    """
    a = _measured(acc)
    return float(a.mean()) if a.size else math.nan


def fm(acc: ArrayLike) -> float:
    """Fairness: the population variance of the clients' accuracies around their unweighted mean; smaller is fairer.

    The three cases of FedKF's Table II:

    >>> [round(fm(a), 7) for a in ([0.6, 0.7, 0.8], [0.65, 0.65, 0.8], [0.7, 0.8, 0.9])]
    [0.0066667, 0.005, 0.0066667]
    """
    a = _measured(acc)
    return float(a.var()) if a.size else math.nan


def wlp(acc: ArrayLike) -> float:
    """Worst local performance: the lowest accuracy of any client.

    >>> wlp([0.65, float("nan"), 0.8])
    0.65
    """
    a = _measured(acc)
    return float(a.min()) if a.size else math.nan


def worst_client(acc: ArrayLike) -> int:
    """The id of the client with the lowest accuracy, the first one in a tie; -1 if no client was measured.

    >>> worst_client([0.7, float("nan"), 0.6, 0.6])
    2
    """
    a = np.asarray(acc, dtype=np.float64)
    return -1 if np.isnan(a).all() else int(np.nanargmin(a))


def bottom(acc: ArrayLike, share: float = 0.1) -> float:
    """The mean accuracy of the worst `share` of the clients, rounded up to whole clients.

    >>> round(bottom([0.9, 0.2, 0.4, 0.8], share=0.5), 9)
    0.3
    """
    if not 0 < share <= 1:
        raise UsageError(f"bottom: the share of clients is {share}; write a number above 0 and up to 1")
    a = np.sort(_measured(acc))
    # Rounded first, because 0.07 * 100 is 7.000000000000001 and must not become eight clients.
    return float(a[: math.ceil(round(share * a.size, 9))].mean()) if a.size else math.nan


def agnostic_lower_bound(acc: ArrayLike) -> float:
    """The accuracy that no mixture of the clients' test sets can fall below (FedKF, Lemma 1 and Theorem 5.1).

    The bound is WLP, reached by the mixture that consists of the worst client only. It holds for any model: a mean with
    weights >= 0 that sum to one is never below its smallest term. For fresh samples it holds in expectation only.

    >>> agnostic_lower_bound([0.6, 0.7, 0.8])
    0.6
    """
    return wlp(acc)


def mixtures(acc: ArrayLike, q: int, seed: int, concentration: float = 1.0) -> tuple[float, float, float]:
    """The minimum, mean and population variance of the accuracy on `q` Dirichlet mixtures of the clients.

    The mixtures depend only on the seed and the number of measured clients, so all methods and rounds share them.

    >>> lowest, mean, variance = mixtures([0.6, 0.7, 0.8], q=100, seed=0)
    >>> 0.6 <= lowest < mean < 0.8
    True
    """
    if q < 1 or concentration <= 0:
        raise UsageError(f"mixtures: q is {q} and the concentration {concentration}; write q >= 1 and one above 0")
    a = _measured(acc)
    if not a.size:
        return math.nan, math.nan, math.nan
    reached = numpy_generator(seed, "mixtures").dirichlet(np.full(a.size, concentration), size=q) @ a
    # R2 has no lower bound, and the rounding of a sum grows with its terms.
    rounding = TINY * max(1.0, float(np.abs(a).max()))
    assert reached.min() >= agnostic_lower_bound(a) - rounding, "a mixture fell below the worst client"
    return float(reached.min()), float(reached.mean()), float(reached.var())


def gain(acc: ArrayLike, acc_local: ArrayLike) -> Floats:
    """How much each client gains over its own local model; `nan` if either was not measured.

    >>> gain([0.75, 0.5], [0.5, 0.75]).tolist()
    [0.25, -0.25]
    """
    a, alone = _pair(acc, acc_local)
    return a - alone


def stability(series: ArrayLike, last: int = 20) -> float:
    """The population standard deviation over the last values of a series; `nan` for fewer than two.

    >>> stability([0.0, 0.5, 0.75, 0.5, 0.75], last=4)
    0.125
    """
    values = _measured(series)[-last:]
    return float(values.std()) if values.size > 1 else math.nan


def rounds_to_target(series: ArrayLike, target: float, smoothing: int = 1) -> int | None:
    """The first round, counted from 1, that reaches the target, or None.

    With `smoothing`, the mean of that many rounds, ending with this one, must reach it.

    >>> rounds_to_target([0.1, 0.6, 0.4, 0.5, 0.7], target=0.5)
    2
    >>> rounds_to_target([0.1, 0.6, 0.4, 0.5, 0.7], target=0.5, smoothing=3)
    4
    """
    if smoothing < 1:
        raise UsageError(
            f"rounds to target: smoothing is {smoothing}; write the number of rounds to average, 1 or more"
        )
    values = np.asarray(series, dtype=np.float64)
    if values.size < smoothing:
        return None
    means = np.lib.stride_tricks.sliding_window_view(values, smoothing).mean(-1)
    hits = np.flatnonzero(means >= target - TINY)
    return int(hits[0]) + smoothing if hits.size else None


def summarise(
    score: ArrayLike,
    loss_sum: ArrayLike,
    sizes: ArrayLike,
    *,
    seed: int,
    q: int = 100,
    weights: ArrayLike | None = None,
) -> dict[str, float]:
    """The metrics over clients of one view in one round, from each client's score, summed loss and test size.

    In AMP, clients count by their `weights`, by default the sizes of their test sets.
    The loss is per sample, over all samples; `worst_client` is an id (see there).

    >>> row = summarise([0.875, 0.5], [4.0, 1.0], [8, 2], seed=0)
    >>> row["amp"], row["alma"], row["wlp"], row["worst_client"], row["loss"]
    (0.8, 0.6875, 0.5, 1, 0.5)
    """
    acc, lost = _pair(score, loss_sum)
    _, tested = _pair(score, sizes)
    counted = tested if weights is None else np.asarray(weights, dtype=np.float64)
    lowest, mean, variance = mixtures(acc, q, seed)
    return {
        "amp": amp(acc, np.where(np.isnan(acc), 0, counted)),
        "fm": fm(acc),
        "wlp": wlp(acc),
        "alma": alma(acc),
        "bottom10": bottom(acc),
        "loss": float(lost[tested > 0].sum() / tested.sum()) if tested.any() else math.nan,
        "mixture_min": lowest,
        "mixture_mean": mean,
        "mixture_var": variance,
        "worst_client": worst_client(acc),
    }


def weighted(values: ArrayLike, sizes: ArrayLike) -> float:
    """The mean of what clients measured, by the sizes of their test sets; those that measured nothing are left out.

    >>> weighted([0.5, float("nan"), 0.75], [1, 5, 3])
    0.6875
    """
    a, u = _pair(values, sizes)
    return amp(a, np.where(np.isnan(a), 0, u))


def _measured(values: ArrayLike) -> Floats:
    a = np.asarray(values, dtype=np.float64)
    return a[~np.isnan(a)]


def _pair(left: ArrayLike, right: ArrayLike) -> tuple[Floats, Floats]:
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if a.shape != b.shape:
        raise UsageError(f"two values per client are needed, but there are {a.size} and {b.size}; give one of each")
    return a, b
