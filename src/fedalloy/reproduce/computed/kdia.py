"""KDIA's claims that are not differences of two rows: the clients' weights, similarities, bytes, shares of a lead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedalloy.federation.across import Floats
from fedalloy.knowledge.trifreqs import Frequency
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import create, in_two_parts
from fedalloy.report.attendance import took_part
from fedalloy.report.trifreqs_plot import weights_over_rounds
from fedalloy.reproduce.catalogue import paper
from fedalloy.reproduce.computed.answer import Computed
from fedalloy.reproduce.forms.figures_extract import extra
from fedalloy.reproduce.results import Results, rounds_to
from fedalloy.storage.results import Run

NONE = Computed(None, None, "No runs are recorded.")
EARLY = 10  # the participation counts' variance is compared with that after a tenth of the rounds


# --- weights of the clients, Fig. 5 -----------------------------------------------------------------------------------


def participation_variance(results: Results | None) -> Computed:
    """By how much the variance of the participation counts' frequency has fallen at the end, at beta = 0.5."""

    def fall(run: Run) -> float:
        variance = weights(run, "participation").var(axis=1)
        return 1 - float(variance[-1] / variance[len(variance) // EARLY])

    return _by_seed(results, ["0.5"], fall, "1 - the ratio of F^part's variance at the end to that after a tenth of it")


def interval_variance(results: Results | None) -> Computed:
    """By how much the variance of the intervals' frequency in the second half exceeds that after the first round."""

    def rise(run: Run) -> float:
        variance = weights(run, "interval").var(axis=1)
        return float(variance[len(variance) // 2 :].mean() / variance[0]) - 1

    return _by_seed(results, ["0.5"], rise, "F^intv's variance in the second half over that after round 1, less 1")


def more_even(results: Results | None) -> Computed:
    """By how much triFreqs spread less over the clients than shares of data, at beta = 0.1."""
    text = "Deviation over clients of the weights by data less that by triFreqs, percentage points"
    return _by_seed(results, ["0.1"], lambda run: -_wider(run), text)


def less_even(results: Results | None) -> Computed:
    """By how much triFreqs spread more over the clients than shares of data, at beta = 0.5 and 5, where it is least."""
    text = "Deviation over clients of the weights by triFreqs less that by data, percentage points, at the lower beta"
    return _by_seed(results, ["0.5", "5.0"], _wider, text)


def fewer_outliers(results: Results | None) -> Computed:
    """How many more outliers a box plot of the weights by data has than one by triFreqs, at the beta where it is least.

    An outlier is further than 1.5 interquartile ranges from the box.
    """

    def more(run: Run) -> float:
        data, three = (weights(run, use)[-1] for use in ("number", "all"))
        return float(outliers(data) - outliers(three))

    return _by_seed(results, ["0.1", "0.5", "5.0"], more, "Outliers among the weights by data less those by triFreqs")


def weights(run: Run, use: Frequency) -> Floats:
    """The clients' weights after each round, by all frequencies or one of them."""
    return weights_over_rounds(took_part(run.rounds), run.meta["clients"]["train_sizes"], use=use)


def outliers(values: Floats) -> int:
    """How many values are further than 1.5 interquartile ranges from the quartiles.

    >>> outliers(np.array([1.0, 2.0, 3.0, 4.0, 99.0]))
    1
    """
    low, high = np.quantile(values, [0.25, 0.75])
    reach = 1.5 * (high - low)
    return int(((values < low - reach) | (values > high + reach)).sum())


def _wider(run: Run) -> float:
    data, three = (100 * float(weights(run, use)[-1].std()) for use in ("number", "all"))
    return three - data


def _by_seed(results: Results | None, columns: Sequence[str], of: Callable[[Run], float], text: str) -> Computed:
    """A number for each seed: the least over some columns of what a run of theirs gives, whichever its method."""
    if results is None or not results.runs:
        return NONE
    row, values = results.item.rows[0], {}
    for seed in results.seeds:
        runs = [results.run(row, column, seed) for column in columns]
        there = [run for run in runs if run is not None]
        if len(there) < len(runs):
            return Computed(None, None, f"Missing runs with seed {seed} at beta {', '.join(columns)}.")
        values[seed] = min(of(run) for run in there)
    return Computed(values, None, text)


# --- similarity of generated features, Fig. 7 -------------------------------------------------------------------------


def adjusted_similarity(results: Results | None) -> Computed:
    """How much more similar to real features those for uniform labels are than those for the batch's own."""
    return _similarity(results, "adjusted", "unadjusted")


def trained_similarity(results: Results | None) -> Computed:
    """How much more similar to real features those of a trained generator are than those of an untrained one."""
    return _similarity(results, "adjusted", "untrained generator")


def _similarity(results: Results | None, left: str, right: str) -> Computed:
    if results is None or not results.runs:
        return NONE
    values, told = {}, []
    for seed in results.seeds:
        leads = []
        for column in results.columns:
            found = [_mean_similarity(results, name, column, seed) for name in (left, right)]
            if None in found:
                return Computed(None, None, f"Features of seed {seed} are not kept; make the figure's runs.")
            told.append(found)
            leads.append((found[0] or 0.0) - (found[1] or 0.0))
        values[seed] = float(np.mean(leads))
    means = np.mean(np.array(told, dtype=np.float64), axis=0)
    text = f"Mean cosine similarity over classes, {left} ({means[0]:.3f}) less {right} ({means[1]:.3f})"
    return Computed(values, None, text)


def _mean_similarity(results: Results, label: str, column: str, seed: int) -> float | None:
    """Over the classes, of a row's generated features to those of the centrally trained network."""
    row, real = results.item.row(label), results.item.row("centralised")
    ours, central = (results.run(one, column, seed) for one in (row, real))
    made = None if ours is None else extra(ours, "generated_directions")
    known = None if central is None else extra(central, "real_directions")
    if made is None or known is None:
        return None
    pairs = [(a, b) for a, b in zip(made, known, strict=True) if a is not None and b is not None]
    return float(np.mean([np.dot(a, b) for a, b in pairs]))


# --- rounds and bytes to FedAvg's best, Table 4 -----------------------------------------------------------------------


def fewer_rounds(results: Results | None) -> Computed:
    """How many rounds sooner than the soonest of the others KDIA reaches FedAvg's best accuracy, at beta = 0.1."""
    return _sooner(results, ("FedAvg", "MOON", "FedGKD", "FedDisco"))


def fewer_rounds_than_control(results: Results | None) -> Computed:
    """How many rounds sooner KDIA's teacher reaches FedAvg's best than FedAvg's clients with the same weights."""
    return _sooner(results, ("FedAvg, triFreqs",))


def _sooner(results: Results | None, others: Sequence[str]) -> Computed:
    """The least lead over some rows and all columns of beta = 0.1; a run that fails counts as twice its rounds."""
    if results is None or not results.runs:
        return NONE
    here = [column for column in results.columns if results.paper_column(column).endswith("0.1")]
    values = {}
    for seed in results.seeds:
        leads = []
        for column in here:
            found = {label: _rounds_to_best(results, label, column, seed) for label in ("Ours", *others)}
            if missing := [label for label, rounds in found.items() if rounds is None]:
                return Computed(None, None, f"Missing runs: {', '.join(missing)}, seed {seed}.")
            leads.append(min(found[label] or 0 for label in others) - (found["Ours"] or 0))
        values[seed] = float(min(leads, default=math.nan))
    text = f"Rounds to FedAvg's best test accuracy, {' or '.join(others)}, whichever is first, less those of KDIA"
    return Computed(values, None, text)


def _rounds_to_best(results: Results, label: str, column: str, seed: int) -> float | None:
    base, row = results.item.row("FedAvg"), results.item.row(label)
    fedavg, run = (results.run(one, column, seed) for one in (base, row))
    if fedavg is None or run is None:
        return None
    tested = fedavg.series(base.view, "test")[1]
    rounds = math.nan if np.isnan(tested).all() else rounds_to(run, row.view, "test", float(np.nanmax(tested)))
    return None if math.isnan(rounds) else rounds


def bytes_to_target(_: Results | None) -> Computed:
    """Whether KDIA sends less than FedAvg until it reaches FedAvg's best, by Table 4's rounds and the paper's networks.

    In a round a client receives student, teacher and generator and sends a model; FedAvg sends a model both ways.
    """
    ratios, without, sizes = [], [], []
    for column in paper("kdia").item("table4").published:
        model, generator = _sizes(100 if column.column.startswith("CIFAR-100") else 10)
        rounds = {row[0]: row[1] for row in column.rows}
        ours, fedavg = float(rounds["Ours"]), float(rounds["FedAvg"])
        ratios.append(ours * (3 * model + generator) / (fedavg * 2 * model))
        without.append(ours * 3 / (fedavg * 2))
        sizes.append(generator / model)
    text = (
        f"With a generator {min(sizes):.1f} to {max(sizes):.1f} times as large as the model, KDIA sends "
        f"{min(ratios):.1f} to {max(ratios):.1f} times as much as FedAvg until it reaches FedAvg's best, by Table 4's "
        f"rounds; without the generator it would be {min(without):.2f} to {max(without):.2f} times as much."
    )
    return Computed(None, max(ratios) < 1, text)


def _sizes(classes: int) -> tuple[int, int]:
    """The numbers of weights of the paper's model and of its generator."""
    net = in_two_parts(create("simple-cnn", classes=classes, channels=3, size=32), "kdia")
    generator = ConditionalGenerator(net.feature_shape, classes, 100, 512)
    model, made = (sum(p.numel() for p in one.parameters()) for one in (net, generator))
    return model, made


# --- the teacher's lead, Table 2 --------------------------------------------------------------------------------------


def mostly_averaging(results: Results | None) -> Computed:
    """What averaging FedAvg's clients adds, less what distillation adds to that, at beta = 0.1."""

    def more(found: Mapping[str, float]) -> float:
        return 2 * found["FedAvg, triFreqs"] - found["FedAvg"] - found["Ours(T)"]

    return _scores(results, more, "(FedAvg, triFreqs - FedAvg) - (Ours(T) - FedAvg, triFreqs)", [""])


def lead_by_round(results: Results | None) -> Computed:
    """By how much the teacher's lead over the student is larger in the last round than by each one's best round."""

    def larger(found: Mapping[str, float]) -> float:
        late, best = (found[f"Ours(T){when}"] - found[f"Ours(S){when}"] for when in (" last", ""))
        return late - best

    return _scores(results, larger, "Ours(T) - Ours(S) in the last round, less that by best rounds", ["", "last"])


def _scores(
    results: Results | None, of: Callable[[Mapping[str, float]], float], text: str, rounds: Sequence[str]
) -> Computed:
    """A number for each seed from the rows' scores in the first column, each in the item's round and in others."""
    if results is None or not results.runs:
        return NONE
    column, values = results.columns[0], {}
    for seed in results.seeds:
        found = {
            f"{row.label} {when}".strip(): results.values(row, column, round=when).get(seed, math.nan)
            for row in results.item.rows
            for when in rounds
        }
        values[seed] = of(found)
        if math.isnan(values[seed]):
            return Computed(None, None, f"Missing runs with seed {seed}.")
    return Computed(values, None, text)
