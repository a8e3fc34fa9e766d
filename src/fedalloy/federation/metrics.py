"""How well a federation performs: the table of all metrics, and pure functions of accuracies and confusion counts.

`METRICS` is the only place that defines a metric: its column, unit, direction and meaning. Records, tables, plots, the
report and the docs all read it from there.

Accuracies are fractions, one for each client, active or not. A client without test samples has no accuracy: it is
`nan`, and every function skips it. If no client is left, the result is `nan`.
AMP, FM and WLP are defined in FedKF (Zhou et al.), ALMA in KnFu (Seyedmohammadi et al.).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedalloy.base.rng import numpy_generator
from fedalloy.base.text import TIMES, human_bytes, human_seconds, number, plus_minus
from fedalloy.errors import UsageError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Tolerance for >= between accuracies: far below one test sample in a billion, far above the rounding of a sum.
TINY = 1e-12

Unit = Literal["percent", "thousandths", "number", "power", "count", "client", "bytes", "seconds"]
FACTORS: dict[Unit, float] = {"percent": 100.0, "thousandths": 1000.0}  # factor for a value when written


@dataclass(frozen=True)
class Metric:
    """One metric: where it comes from, how it is written, and which direction is better.

    >>> METRICS["amp"].write(0.8407, 0.0012), METRICS["bytes_total"].write(1500.0)
    ('84.07 ± 0.12', '1.50 kB')
    """

    name: str  # its key in records, rows and `table.json`
    heading: str
    unit: Unit
    better: Literal["high", "low", ""]
    meaning: str
    source: Literal["view", "curve", "run"] = "view"  # recorded for each view; of a view's curve; of the whole run
    path: tuple[str, ...] = ()  # where a round's record has it, if it is summed over all rounds
    plus: tuple[str, ...] = ()  # where the record has a second part of it
    per: tuple[str, ...] = ()  # where the record has what it is divided by; it is then that of the last round
    table: Literal["comparison", "mixtures", "costs", ""] = ""  # the table that shows it

    @property
    def factor(self) -> float:
        """What a value is multiplied by when it is written or plotted."""
        return FACTORS.get(self.unit, 1.0)

    @property
    def title(self) -> str:
        """The heading of a plot."""
        return f"{self.heading}, lower is better" if self.better == "low" else self.heading

    def write(self, mean: float | None, std: float | None = None) -> str:
        """A value as text; scores are followed by their standard deviation over seeds, if there is one."""
        if self.unit == "bytes":
            return human_bytes(mean)
        if self.unit == "seconds":
            return human_seconds(mean)
        if self.unit in ("count", "client"):
            return number(mean, 0)
        if self.unit == "power":
            return number(mean) if mean is None else f"{mean:.3g}"
        mean, std = (None if value is None else value * self.factor for value in (mean, std))
        return plus_minus(mean, std)


# In the order of the columns of a table.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "amp", "AMP %", "percent", "high", table="comparison",
            meaning="Average model performance: correct predictions over all clients' test samples. A client counts "
            "by the size of its test set, or of its training data with `amp_weights = \"train\"`.",
        ),
        Metric(
            "fm", f"FM {TIMES}10³", "thousandths", "low", table="comparison",
            meaning="Fairness: the variance of accuracy across clients, each counted once.",
        ),
        Metric(
            "wlp", "WLP %", "percent", "high", table="comparison",
            meaning="Worst local performance: the accuracy of the worst client. No mixture of the clients' test sets "
            "has a lower accuracy.",
        ),
        Metric(
            "worst_client", "Worst", "client", "", table="comparison",
            meaning="The id of the client with the lowest accuracy; a mean over several rounds has none.",
        ),
        Metric(
            "bottom10", "Low 10 %", "percent", "high", table="comparison",
            meaning="The mean accuracy of the worst 10 % of the clients.",
        ),
        Metric(
            "balanced", "Balanced %", "percent", "high", table="comparison",
            meaning="Balanced accuracy: the mean recall over the classes, pooled over all clients' test samples.",
        ),
        Metric(
            "macro_f1", "Macro-F1 %", "percent", "high", table="comparison",
            meaning="The mean F1 score over the classes, pooled over all clients' test samples.",
        ),
        Metric(
            "test", "Test %", "percent", "high", table="comparison",
            meaning="The accuracy on a common test set, if there is one.",
        ),
        Metric(
            "gap", "Gap %", "percent", "low", source="curve", table="comparison",
            meaning="The accuracy that local training loses after distillation: AMP of the distilled view minus AMP "
            "of the personal view.",
        ),
        Metric(
            "bytes_total", "Bytes", "bytes", "low", source="run", path=("bytes",), table="comparison",
            meaning="Bytes sent in all rounds, to the clients and back.",
        ),
        Metric(
            "seconds", "Time", "seconds", "low", source="run", path=("seconds", "total"), table="comparison",
            meaning="Wall-clock time of all rounds, including evaluation.",
        ),
        Metric(
            "round", "Round", "count", "", source="curve", table="comparison",
            meaning="The round that the scores are taken from; a mean over several has none.",
        ),
        Metric(
            "mixture_min", "Lowest %", "percent", "high", table="mixtures",
            meaning="The lowest accuracy on 100 random mixtures of the clients' test sets.",
        ),
        Metric(
            "mixture_mean", "Mean %", "percent", "high", table="mixtures",
            meaning="The mean accuracy on these mixtures.",
        ),
        Metric(
            "mixture_var", f"Variance {TIMES}10³", "thousandths", "low", table="mixtures",
            meaning="The variance of accuracy across these mixtures.",
        ),
        Metric(
            "alma", "ALMA %", "percent", "high",
            meaning="Average local model accuracy: the mean accuracy over clients, each counted once.",
        ),
        Metric(
            "validation", "Validation %", "percent", "high",
            meaning="The accuracy on the clients' validation data, pooled, if any was set aside.",
        ),
        Metric("loss", "Loss", "number", "low", meaning="The mean cross-entropy per test sample."),
        Metric(
            "stability", "Stability %", "percent", "low", source="curve",
            meaning="The standard deviation of AMP over the last 20 evaluated rounds.",
        ),
        Metric("rounds", "Rounds", "count", "", source="run", meaning="The number of the last round."),
        Metric(
            "bytes_up", "Bytes up", "bytes", "low", source="run", path=("bytes", "up"),
            meaning="Bytes sent from the clients in all rounds.",
        ),
        Metric(
            "bytes_down", "Bytes down", "bytes", "low", source="run", path=("bytes", "down"),
            meaning="Bytes sent to the clients in all rounds.",
        ),
        Metric(
            "flops", "FLOPs", "power", "low", source="run", path=("flops", "clients"), plus=("flops", "server"),
            table="costs", meaning="Floating-point operations of all networks in all rounds, clients and server.",
        ),
        Metric(
            "client_flops", "Client FLOPs", "power", "low", source="run", path=("flops", "clients"), table="costs",
            meaning="The clients' part of them.",
        ),
        *(
            Metric(
                name, heading, "number", "low", source="run", path=("passes", "clients", name),
                per=("passes", "clients", "steps"), table="costs",
                meaning=f"{passes} of a client's step, as in FedKF's Table IX, in the last round.",
            )
            for name, heading, passes in (
                ("forward", "Forward", "Forward passes through classifiers"),
                ("backward", "Backward", "Backward passes through classifiers"),
                ("generator_forward", "Generator forward", "Forward passes through generators"),
                ("generator_backward", "Generator backward", "Backward passes through generators"),
            )
        ),
        Metric(
            "training_seconds", "Training", "seconds", "low", source="run", path=("seconds", "client"),
            plus=("seconds", "server"), table="costs",
            meaning="Wall-clock time of all rounds without evaluation and checkpoints, clients and server.",
        ),
    )
}  # fmt: skip

AmpWeights = Literal["test", "train"]

# The choices of an experiment's `stop.metric` and of the metrics of a `[[published]]` table.
StopMetric = Literal["amp", "wlp", "alma", "test", "validation"]
PublishedMetric = Literal["amp", "alma", "fm", "wlp", "test"]


def accuracy_per_client(confusion: Counts) -> Floats:
    """The share of correct predictions from confusion counts (rows true, columns predicted), `nan` for no samples.

    >>> accuracy_per_client(np.array([[[3, 1], [0, 4]], [[0, 0], [0, 0]]]))
    array([0.875,   nan])
    """
    return _ratio(_diagonal(confusion).sum(-1), confusion.sum((-2, -1)))


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
    assert reached.min() >= agnostic_lower_bound(a) - TINY, "a mixture fell below the worst client"
    return float(reached.min()), float(reached.mean()), float(reached.var())


def balanced_accuracy(confusion: Counts) -> Floats:
    """The mean recall over the classes that are present: per client for [K, C, C], pooled for their sum [C, C].

    >>> float(balanced_accuracy(np.array([[9, 0, 0], [1, 1, 0], [0, 0, 0]])))
    0.75
    """
    return _mean_of_known(_ratio(_diagonal(confusion), confusion.sum(-1)))


def macro_f1(confusion: Counts) -> Floats:
    """The mean F1 score over the classes that are present or predicted: per client for [K, C, C], pooled for [C, C].

    >>> float(macro_f1(np.array([[1, 1, 0], [0, 2, 0], [0, 0, 0]]))) == (2 / 3 + 4 / 5) / 2
    True
    """
    predicted = confusion.sum(-2)[..., : confusion.shape[-2]]
    return _mean_of_known(_ratio(2 * _diagonal(confusion), confusion.sum(-1) + predicted))


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
    confusion: Counts, loss_sum: Floats, *, seed: int, q: int = 100, weights: ArrayLike | None = None
) -> dict[str, float]:
    """All metrics of one view in one round, from counts [K, C, C] and the sum of losses over each test set [K].

    In AMP, clients count by their `weights`, by default the sizes of their test sets.
    The loss is per sample, over all samples; `balanced` and `macro_f1` are pooled; `worst_client` is an id (see there).
    There may be more columns than rows: a network may also predict classes that do not occur in any test set.

    >>> counts = np.array([[[3, 1], [0, 4]], [[1, 1], [0, 0]]])
    >>> row = summarise(counts, np.array([4.0, 1.0]), seed=0)
    >>> row["amp"], row["alma"], row["wlp"], row["worst_client"], row["loss"]
    (0.8, 0.6875, 0.5, 1, 0.5)
    """
    if confusion.ndim != 3 or confusion.shape[1] > confusion.shape[2] or loss_sum.shape != confusion.shape[:1]:
        raise UsageError(
            f"the counts have the shape {confusion.shape} and the losses {loss_sum.shape}; give [K, C, C] and [K]"
        )
    acc, sizes, pooled = accuracy_per_client(confusion), confusion.sum((1, 2)), confusion.sum(0)
    lowest, mean, variance = mixtures(acc, q, seed)
    return {
        "amp": amp(acc, sizes if weights is None else np.where(sizes > 0, weights, 0)),
        "fm": fm(acc),
        "wlp": wlp(acc),
        "alma": alma(acc),
        "bottom10": bottom(acc),
        "balanced": float(balanced_accuracy(pooled)),
        "macro_f1": float(macro_f1(pooled)),
        "loss": float(loss_sum[sizes > 0].sum() / sizes.sum()) if sizes.any() else math.nan,
        "mixture_min": lowest,
        "mixture_mean": mean,
        "mixture_var": variance,
        "worst_client": worst_client(acc),
    }


def _measured(values: ArrayLike) -> Floats:
    a = np.asarray(values, dtype=np.float64)
    return a[~np.isnan(a)]


def _pair(left: ArrayLike, right: ArrayLike) -> tuple[Floats, Floats]:
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if a.shape != b.shape:
        raise UsageError(f"two values per client are needed, but there are {a.size} and {b.size}; give one of each")
    return a, b


def _diagonal(confusion: Counts) -> Counts:
    return np.diagonal(confusion, axis1=-2, axis2=-1)


def _ratio(part: ArrayLike, whole: ArrayLike) -> Floats:
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    quotient = np.full(whole.shape, math.nan)
    np.divide(part, whole, out=quotient, where=whole > 0)
    return quotient


def _mean_of_known(values: Floats) -> Floats:
    return _ratio(np.nansum(values, -1), (~np.isnan(values)).sum(-1))
