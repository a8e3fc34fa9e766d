"""Should I federate? Each client's gain with each method over training alone, and over FedAvg."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.text import series_names
from fedalloy.errors import UsageError
from fedalloy.report.statistics import t_interval
from fedalloy.storage.results import STAGES, Run, Selection
from fedalloy.storage.rows import CombinedRow, Leads, Row, agreed, combine, gain_over, rows

Floats = NDArray[np.float64]
CONVERGED, EQUAL, POOLED = "local-converged", "local", "centralised"  # the bounds, by their registered names
BOUNDS = (CONVERGED, EQUAL, POOLED)
# The references of gains: a registered method and its view. Of the two kinds of local training the better one counts,
# since the best that a client reaches alone is what it has without federating.
REFERENCES = ((CONVERGED, "personal"), (EQUAL, "personal"), ("fedavg", "aca"))
CLEARLY = 2  # standard errors
SCORED = {"amp": "accuracy", "balanced": "balanced"}  # the score of a client behind that of all


@dataclass(frozen=True)
class Gains:
    """Each tested client's gain with one method over one reference, in percentage points of its score.

    The score is the accuracy; the balanced one if accuracy does not rank models (`fedalloy.storage.rows.leads`), which
    a client with test samples of one class only does not have; the share of right labels; or R2.

    A client is one of a split: where seeds divide the data alike its values are means over them, and where every seed
    has a split of its own, clients of the same number are different clients and are listed apart.
    """

    label: str
    view: str
    name: str  # label and view as tables show them
    over: str  # the registered name of the reference
    reference: str  # its label and view as tables show them
    clients: tuple[str, ...]
    points: Floats
    errors: Floats  # the standard error of each gain, from the size of the client's test set and the spread over seeds
    accuracy: Floats  # or what else the score is, under the method, in percent
    train: Floats  # training samples; nan if they were not recorded
    spread: Floats  # the standard deviation of each gain over seeds; nan where a client has one seed only
    networks: tuple[str, ...]  # each client's network if they differ, else empty
    named: bool  # whether `clients` are names
    seeds: int
    splits: int  # how many splits of the data these clients belong to
    total_error: float  # the standard error of the gain over all test sets together
    leads: Leads = field(default_factory=Leads)  # what the score is

    @property
    def gaining(self) -> list[int]:
        """The indices of the clients that gain, largest gain first."""
        return _above_zero(self.points)

    @property
    def losing(self) -> list[int]:
        """The indices of the clients that lose, largest loss first."""
        return _above_zero(-self.points)

    @property
    def clear(self) -> NDArray[np.bool_]:
        """Which clients gain or lose more than two standard errors; by chance, one in twenty would."""
        return np.asarray(np.abs(self.points) > CLEARLY * self.errors)


def gains(runs: Sequence[Run], selection: Selection = "last") -> list[Gains]:
    """The gains with every federated method, the leading one first, over each reference among the runs.

    A method speaks by its view with the highest AMP, or balanced accuracy if accuracy does not rank models; local
    training by its personal models, FedAvg by its ACA view.
    Runs of the same seed are compared, and only if they tested the same clients.

    >>> gains([])
    []
    """
    runs = [run for run in runs if run.views]
    lines = ranking(row for run in runs for row in rows(run, selection))
    ranked = sorted((line for line in lines if measured(line)), key=score, reverse=True)
    registered = {run.label: run.name for run in runs}
    shown = series_names((line.label, line.view) for line in lines)
    rivals: dict[str, CombinedRow] = {}
    for line in ranked:
        if registered[line.label] not in BOUNDS and line.view not in STAGES:
            rivals.setdefault(line.label, line)
    best = {(registered[line.label], line.view): line for line in reversed(ranked)}
    references = {name: best[name, view] for name, view in REFERENCES if (name, view) in best}
    if CONVERGED in references and EQUAL in references:
        references.pop(EQUAL if score(references[CONVERGED]) >= score(references[EQUAL]) else CONVERGED)
    found = []
    for line in rivals.values():
        for over, reference in references.items():
            if reference is line:
                continue
            seeds = _seeds(runs, line, reference)
            if any(np.isfinite(seed.gain).any() for seed in seeds):
                names = shown[line.label, line.view], over, shown[reference.label, reference.view]
                found.append(_over_seeds(seeds, line, *names))
    return found


def leading(found: Sequence[Gains]) -> list[Gains]:
    """The gains with the leading method, one for each reference."""
    return [one for one in found if (one.label, one.view) == (found[0].label, found[0].view)]


def ranking(found: Iterable[Row]) -> list[CombinedRow]:
    """The lines of these rows, ranked by the same score."""
    found = list(found)
    common = agreed(row.leads for row in found)
    return [replace(line, leads=common) for line in combine(found)]


def measured(line: CombinedRow) -> bool:
    """Whether a line has the score by which it is ranked."""
    return line.columns[line.leads.first].mean is not None


def score(line: CombinedRow) -> float:
    """The score of a line in percent by which methods are ranked: AMP, or balanced accuracy."""
    return (line.columns[line.leads.first].mean or 0.0) * 100


def standard_error(accuracy: Floats, size: Floats) -> Floats:
    """The standard error of the difference between two models with this mean accuracy on `size` samples.

    Were their answers independent it would be sqrt(2 a (1 - a) / n); but both answer the same samples and find the
    same ones hard, and with a correlation of one half the 2 goes.

    >>> standard_error(np.array([0.5, 0.9]), np.array([25, 100])).round(6).tolist()
    [0.1, 0.03]
    """
    with np.errstate(invalid="ignore", divide="ignore"):  # there is none without samples
        return np.asarray(np.sqrt(accuracy * (1 - accuracy) / size))


def difference_error(one: Floats, other: Floats) -> Floats:
    """The standard error of the difference between two scores with these errors, whose correlation is one half.

    >>> difference_error(np.array([0.3, 0.3]), np.array([0.3, 0.0])).tolist()
    [0.3, 0.3]
    """
    return np.asarray(np.sqrt(one**2 + other**2 - one * other))


@dataclass(frozen=True)
class _Seed:
    """What one seed measured, for each client."""

    number: int
    split: str
    gain: Floats
    accuracy: Floats
    error: Floats
    train: Floats
    total_error: float
    names: tuple[str, ...]
    networks: Mapping[int, str]


def _seeds(runs: Sequence[Run], line: CombinedRow, reference: CombinedRow) -> list[_Seed]:
    of = {(run.label, run.seed): run for run in runs}
    found = []
    for seed in line.seeds:
        one, other = of[line.label, seed], of.get((reference.label, seed))
        if other is None or any(_digest(one, part) != _digest(other, part) for part in ("data", "partition")):
            continue
        try:
            gain = gain_over(one, other, line.view, reference.view, line.selection, SCORED[line.leads.first])
        except UsageError:  # they were not tested on the same clients
            continue
        accuracy = one.clients(line.view, SCORED[line.leads.first], line.selection)
        error, total = _errors((one, line.view), (other, reference.view), line, accuracy - gain / 2)
        train = np.array(one.meta.get("clients", {}).get("train_sizes", []), dtype=np.float64)
        train = train if len(train) == len(gain) else np.full(len(gain), np.nan)
        split = split_of(one)
        names = one.client_names, one.networks
        found.append(_Seed(seed, split, gain, accuracy, error, train, float(total), *names))
    return found


def _errors(one: tuple[Run, str], other: tuple[Run, str], line: CombinedRow, middle: Floats) -> tuple[Floats, float]:
    """The standard errors of the clients' gains between two views, and of the gain over all test sets together.

    `middle` are the clients' scores between those of the two.
    """
    run, view = one
    size = run.clients(view, "size", line.selection)
    # If all clients are tested on the same samples, these count once.
    common = run.meta.get("experiment", {}).get("partition", {}).get("test") == "global"
    if line.leads.task != "numbers" and line.leads.first == "amp":
        total = standard_error(np.nansum(middle * size) / size.sum(), size.max() if common else size.sum())
        return standard_error(middle, size), float(total)
    # R2 and balanced accuracy are not shares: the clients have measured their standard errors.
    name = "error" if line.leads.task == "numbers" else "balanced_error"
    error = difference_error(*(r.clients(v, name, line.selection) for r, v in (one, other)))
    known = np.isfinite(error)
    if not known.any():
        return error, math.nan
    if common:
        return error, float(error[known].mean())
    if name == "error":
        return error, float(np.sqrt(((error * size)[known] ** 2).sum()) / size[known].sum())
    pooled = (np.asarray(r.at(v, name, line.selection)) for r, v in (one, other))
    return error, float(difference_error(*pooled))


def split_of(run: Run) -> str:
    """What identifies a split; clients of a natural partition, and real sites, are the same with every seed."""
    partition = run.meta.get("partition", {})
    if run.client_names:
        return str(run.client_names)
    return str("the same" if partition.get("name") in ("natural", "sites") else partition.get("counts"))


def _digest(run: Run, part: str) -> object:
    return run.meta.get("digests", {}).get(part)


def _over_seeds(seeds: Sequence[_Seed], line: CombinedRow, name: str, over: str, reference: str) -> Gains:
    splits: dict[str, list[_Seed]] = {}
    for seed in seeds:
        splits.setdefault(seed.split, []).append(seed)
    clients: list[str] = []
    networks: list[str] = []
    columns: list[Floats] = []
    for group in splits.values():
        gain = np.array([seed.gain for seed in group])
        error = np.mean([seed.error for seed in group], axis=0)
        if len(group) > 1:  # test samples and batches are two independent sources of variance
            error = np.hypot(error, gain.std(axis=0, ddof=1) / np.sqrt(len(group)))
        # Rounded, so that gains that cancel out over seeds are exactly zero.
        points = np.round(gain.mean(axis=0) * 100, 9) + 0.0
        accuracy, train = (np.mean([getattr(seed, x) for seed in group], axis=0) for x in ("accuracy", "train"))
        spread = np.array([_deviation(gains_of_one) for gains_of_one in (gain.T * 100).tolist()])
        columns.append(np.array([points, error * 100, accuracy * 100, train, spread]))
        suffix = f" (seed {group[0].number})" if len(splits) > 1 else ""
        names = group[0].names
        clients += [f"{names[k] if names else k}{suffix}" for k in range(len(points))]
        networks += [group[0].networks.get(k, "") for k in range(len(points))]
    table = np.concatenate(columns, axis=1)
    tested = np.flatnonzero(np.isfinite(table[0]))
    points, errors, accuracy, train, spread = table[:, tested]
    return Gains(
        label=line.label,
        view=line.view,
        name=name,
        over=over,
        reference=reference,
        clients=tuple(clients[k] for k in tested),
        points=points,
        errors=errors,
        accuracy=accuracy,
        train=train,
        spread=spread,
        networks=tuple(networks[k] for k in tested) if any(networks) else (),
        named=bool(seeds[0].names),
        seeds=len(seeds),
        splits=len(splits),
        total_error=float(np.mean([seed.total_error for seed in seeds])) * 100,
        leads=line.leads,
    )


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds; nan for one seed, or if a seed did not test the client."""
    return t_interval(values).sd if all(map(math.isfinite, values)) else math.nan


def _above_zero(points: Floats) -> list[int]:
    return [k for k in np.argsort(-points, kind="stable").tolist() if points[k] > 0]
