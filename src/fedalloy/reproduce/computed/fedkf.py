"""FedKF's claims that are not differences of two rows: passes, bytes, ratios of time, places in an order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev

from fedalloy.federation.across import amp, fm, wlp
from fedalloy.federation.metrics import METRICS
from fedalloy.reproduce.computed.answer import Computed
from fedalloy.reproduce.published import published
from fedalloy.reproduce.results import Results, reached_in
from fedalloy.storage.results import Run
from fedalloy.storage.rows import cost

FORMS = ("FedKF- (ACA)", "FedKF- (OCA)", "FedKF (ACA)", "FedKF (OCA)")
NONE = Computed(None, None, "No runs are recorded.")
LAST = 20  # rounds over which fluctuation is measured, as `stability` does
TARGET = 0.60  # of AMP, as in Table VIII at reduced scale


def top_two(results: Results | None) -> Computed:
    """F2: at alpha = 1, one of FedKF's forms is among the best two in AMP, FM and WLP.

    The number is by how much the best form leads the third best of all rows, in the metric where this is least.
    """
    column = "alpha = 1"
    if results is None or column not in results.columns:
        return Computed(None, None, "alpha = 1 is not run at this scale.")
    names = [row.label for row in results.item.rows if not row.control]
    leads: dict[int, float] = {}
    for seed in results.seeds:
        margins = []
        for metric in ("amp", "fm", "wlp"):
            sign = -1 if METRICS[metric].better == "low" else 1
            found = {name: results.values(results.item.row(name), column, metric).get(seed) for name in names}
            if None in found.values():
                return Computed(None, None, f"Missing runs with seed {seed}.")
            scores = sorted((sign * value for value in found.values() if value is not None), reverse=True)
            margins.append(max(sign * (found[name] or 0.0) for name in FORMS) - scores[2])
        leads[seed] = min(margins)
    return Computed(leads, None, "The least lead of FedKF's best form over the third best row, in AMP, FM and WLP")


def fm_fluctuation(results: Results | None) -> Computed:
    """The FM of FedKF (OCA) fluctuates less than that of FedKF (ACA): deviations over the last rounds."""

    def lead(runs: Mapping[str, Run]) -> float:
        return _deviation(runs["FedKF (ACA)"], "aca") - _deviation(runs["FedKF (OCA)"], "oca")

    text = f"FedKF (ACA) - FedKF (OCA), deviation of FM (thousandths) over the last {LAST} evaluated rounds"
    return _by_seed(results, ("FedKF (ACA)", "FedKF (OCA)"), lead, text)


def _deviation(run: Run, view: str) -> float:
    values = run.series(view, "fm")[1][-LAST:]
    return float(METRICS["fm"].factor * stdev(values.tolist())) if len(values) > 1 else math.nan


def passes(results: Results | None) -> Computed:
    """Table IX: passes in a client's step, of every method that the table has."""
    if results is None or not results.runs:
        return NONE
    wrong, count = [], 0
    for (label, column, metric), theirs in published(results.item).items():
        ours = [
            value
            for name in results.columns
            if results.paper_column(name) == column
            for value in results.values(results.item.row(label), name, metric).values()
        ]
        if not ours:
            return Computed(None, None, f"Missing runs: {label}.")
        count += 1
        if any(abs(value - theirs.value) > 0.005 for value in ours):
            wrong.append(f"{label}, {METRICS[metric].heading.lower()}: {fmean(ours):.3g} instead of {theirs.value:g}")
    if not count:
        return Computed(None, None, "The paper's text does not hold the counts.")
    if wrong:
        return Computed(None, False, f"{len(wrong)} of {count} counts differ: {'; '.join(wrong[:3])}.")
    return Computed(None, True, f"All {count} counts of Table IX are those of the records.")


def sent(results: Results | None) -> Computed:
    """Bytes in a round: FedKF as much up and twice as much down as FedAvg, FedKF- as much both ways, within 1 %."""
    if results is None or not results.runs:
        return NONE
    up, down = "bytes_up", "bytes_down"
    wanted = {("FedKF", up): 1, ("FedKF", down): 2, ("FedKF-", up): 1, ("FedKF-", down): 1}
    told, holds = [], True
    for (label, metric), times in wanted.items():
        ratios = [a / b for a, b in _pairs(results, label, "FedAvg", metric)]
        if not ratios:
            return Computed(None, None, f"Missing runs: {label} or FedAvg.")
        holds = holds and all(abs(ratio - times) < 0.01 * times for ratio in ratios)
        told.append(f"{label} {metric.removeprefix('bytes_')} {fmean(ratios):.3f}")
    return Computed(None, holds, f"Bytes over FedAvg's: {', '.join(told)}.")


def bytes_to_target(results: Results | None) -> Computed:
    """FedKF and FedKF- reach an AMP with fewer bytes than FedAvg; a run that does not counts twice its bytes."""

    def lead(runs: Mapping[str, Run]) -> float:
        others = [_spent(runs[name], "oca", "bytes_total") for name in ("FedKF (OCA)", "FedKF- (OCA)")]
        return (_spent(runs["FedAvg"], "aca", "bytes_total") - max(others)) / 1e6

    text = f"FedAvg - the larger of FedKF and FedKF- (OCA), megabytes to an AMP of {TARGET:.0%}"
    return _by_seed(results, ("FedAvg", "FedKF (OCA)", "FedKF- (OCA)"), lead, text)


def time_to_target(results: Results | None) -> Computed:
    """FedKF reaches an AMP in less time than FedAvg; a run that does not reach it counts twice its time."""

    def lead(runs: Mapping[str, Run]) -> float:
        theirs = _spent(runs["FedAvg"], "aca", "training_seconds")
        return theirs - _spent(runs["FedKF (OCA)"], "oca", "training_seconds")

    text = f"FedAvg - FedKF (OCA), seconds of training to an AMP of {TARGET:.0%}"
    return _by_seed(results, ("FedAvg", "FedKF (OCA)"), lead, text, ["EMNIST"])


def _spent(run: Run, view: str, metric: str) -> float:
    reached = reached_in(run, view, "amp", TARGET)
    spent = cost(METRICS[metric], run, until=reached)
    return math.nan if spent is None else spent * (1 if reached is not None else 2)


def example(_: Results | None) -> Computed:
    """Table II: AMP, FM and WLP of three models on three clients."""
    shown = {
        (0.6, 0.7, 0.8): (0.7, 0.00667, 0.6),
        (0.65, 0.65, 0.8): (0.7, 0.005, 0.65),
        (0.7, 0.8, 0.9): (0.8, 0.00667, 0.7),
    }
    found = {accuracies: (amp(accuracies, [1, 1, 1]), fm(accuracies), wlp(accuracies)) for accuracies in shown}
    holds = all(abs(a - b) < 5e-6 for key in shown for a, b in zip(found[key], shown[key], strict=True))
    return Computed(None, holds, "AMP, FM and WLP of the three models, to the digits that are printed.")


def worst_and_fair(_: Results | None) -> Computed:
    """Whether of two models with equal AMP the one with the higher WLP always has the lower FM: a counterexample."""
    one, other = (0.61, 0.61, 0.88), (0.6, 0.75, 0.75)
    equal = math.isclose(amp(one, [1, 1, 1]), amp(other, [1, 1, 1]))
    holds = not (equal and wlp(one) > wlp(other) and fm(one) > fm(other))
    told = f"the first has the higher WLP and the higher FM, {fm(one):.4f} against {fm(other):.4f}"
    return Computed(None, holds, f"{one} and {other} have equal AMP; {told}.")


def time_ratio(results: Results | None) -> Computed:
    """FedKF's training takes less than twice as long as FedAvg's."""

    def room(runs: Mapping[str, Run]) -> float:
        mine, theirs = (cost(METRICS["training_seconds"], runs[name]) for name in ("FedKF", "FedAvg"))
        return math.nan if not mine or not theirs else 2 - mine / theirs

    return _by_seed(results, ("FedKF", "FedAvg"), room, "2 - the ratio of FedKF's to FedAvg's training time")


def participation_gap(results: Results | None) -> Computed:
    """What FedAvg's ACA model loses with 20 % instead of all clients active, at alpha = 0.01 minus at 0.1."""
    if results is None or not results.runs:
        return NONE
    row = results.item.row("ACA")

    def loss(alpha: str) -> dict[int, float]:
        every, some = (results.values(row, f"EMNIST, K = 20, alpha = {alpha}, C = {share}") for share in ("1", "0.2"))
        return {seed: every[seed] - some[seed] for seed in every.keys() & some.keys()}

    strong, weak = loss("0.01"), loss("0.1")
    values = {seed: strong[seed] - weak[seed] for seed in sorted(strong.keys() & weak.keys())}
    if not values:
        return Computed(None, None, "Missing runs of ACA.")
    text = "What FedAvg loses of AMP by 20 % instead of all clients, at alpha = 0.01 minus at 0.1"
    return Computed(values, None, text)


def _by_seed(
    results: Results | None,
    labels: tuple[str, ...],
    of: Callable[[Mapping[str, Run]], float],
    text: str,
    columns: Sequence[str] | None = None,
) -> Computed:
    """A number for each seed from the runs of some rows: the least over the columns, by default all."""
    if results is None or not results.runs:
        return NONE
    values: dict[int, float] = {}
    for column in columns if columns is not None else results.columns:
        for seed in results.seeds:
            runs = {label: results.run(results.item.row(label), column, seed) for label in labels}
            there = {label: run for label, run in runs.items() if run is not None}
            if len(there) < len(runs):
                absent = ", ".join(label for label in labels if label not in there)
                return Computed(None, None, f"Missing runs with seed {seed}: {absent}.")
            value = of(there)  # `nan` stays: min keeps it only if it comes first
            values[seed] = value if math.isnan(value) else min(values.get(seed, math.inf), value)
    return Computed(values, None, text)


def _pairs(results: Results, label: str, other: str, metric: str) -> Iterator[tuple[float, float]]:
    for column in results.columns:
        mine, theirs = (results.values(results.item.row(name), column, metric) for name in (label, other))
        yield from ((mine[seed], theirs[seed]) for seed in mine.keys() & theirs.keys())
