"""The recorded runs of an item at a scale, and the values that its tables, figures and claims read from them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedalloy.base.checked import shown
from fedalloy.base.registry import suggest
from fedalloy.errors import DataError
from fedalloy.federation.across import rounds_to_target
from fedalloy.federation.metrics import METRICS
from fedalloy.reproduce.catalogue import Item, Row
from fedalloy.reproduce.plan import Job, jobs, paper_column
from fedalloy.storage.differences import differing
from fedalloy.storage.results import Run, read, selected
from fedalloy.storage.rows import value
from fedalloy.storage.store import FREE

MEASURED = ("seconds", "memory")  # differ each time
TARGET = re.compile(r"rounds to (\w+) (0\.\d+)")
REMEDY = "remove the folder, and the run can be made again"


@dataclass(frozen=True)
class Results:
    """What is recorded of an item at a scale; runs that are not finished are not there."""

    item: Item
    scale: str
    columns: tuple[str, ...]  # as the scale's experiment names them
    seeds: tuple[int, ...]
    runs: Mapping[tuple[str, str, int], Run]  # by column, the method's key and seed
    missing: tuple[Job, ...] = ()

    def run(self, row: Row, column: str, seed: int) -> Run | None:
        """The run behind a row in a column; None if it is not recorded."""
        return self.runs.get((column, row.method, seed))

    def values(self, row: Row, column: str, metric: str = "", round: str = "") -> dict[int, float]:
        """A metric of a row in a column by seed, in the unit that is printed; seeds without a value are left out."""
        found = {}
        for seed in self.seeds:
            run = self.run(row, column, seed)
            if run is not None and row.view in run.views:
                number = value_of(run, row.view, metric or self.item.metrics[0], round or self.item.round)
                if not math.isnan(number):
                    found[seed] = number
        return found

    def paper_column(self, column: str) -> str:
        """The paper's column that one of ours stands for."""
        return paper_column(self.item, self.scale, column)


def value_of(run: Run, view: str, metric: str, round: str) -> float:
    """One number of a run: a metric in the reported round, a cost, a note, or the rounds it takes to reach a target.

    It is in the unit that is printed: percent, not shares.

    >>> run = Run({"label": "FedAvg", "seed": 0}, ({"round": 1, "views": {"aca": {"amp": 0.5}}},))
    >>> value_of(run, "aca", "amp", "last"), value_of(run, "aca", "rounds to amp 0.4", "last")
    (50.0, 1.0)
    """
    if target := TARGET.fullmatch(metric):
        return rounds_to(run, view, target[1], float(target[2]))
    if metric.startswith("note "):
        rounds, values = run.noted(metric.removeprefix("note "))
        chosen = [float(v) for t, v in zip(rounds, values, strict=True) if t in selected(run, view, round)]
        return math.fsum(chosen) / len(chosen) if chosen else math.nan
    if metric not in METRICS:
        raise DataError(f"there is no metric '{metric}'; {suggest(metric, list(METRICS))}")
    found = value(run, view, metric, round)
    return math.nan if found is None else METRICS[metric].factor * found


def rounds_to(run: Run, view: str, metric: str, share: float) -> float:
    """The rounds it takes to reach a share, or twice those of the experiment; `nan` if it was never measured."""
    if metric in METRICS and METRICS[metric].better != "high":
        raise DataError(f"rounds are counted to a metric that should be high, and '{metric}' should not")
    if np.isnan(run.series(view, metric)[1]).all():
        return math.nan
    reached = reached_in(run, view, metric, share)
    rounds = run.meta.get("experiment", {}).get("rounds", run.rounds[-1]["round"])  # it may have ended sooner
    return float(2 * rounds if reached is None else reached)


def reached_in(run: Run, view: str, metric: str, share: float) -> int | None:
    """The first round in which a metric reaches a share; None if it never does."""
    rounds, values = run.series(view, metric)
    hit = rounds_to_target(values, share)
    return None if hit is None else int(rounds[hit - 1])


def recorded(item: Item, scale: str, folder: Path, seeds: Sequence[int] | None = None) -> Results:
    """What a folder holds of an item at a scale."""
    planned = jobs(item, scale, seeds)
    runs, missing = {}, []
    for job in planned:
        run = finished(folder / job.folder, job)
        if run is None:
            missing.append(job)
        else:
            runs[job.column, job.method, job.seed] = run
    return Results(
        item,
        scale,
        tuple(dict.fromkeys(job.column for job in planned)),
        tuple(dict.fromkeys(job.seed for job in planned)),
        runs,
        tuple(missing),
    )


def digest(run: Run) -> str:
    """A digest of all that a run has recorded but times and memory: who repeats it on the same kind of machine has it.

    >>> one, other = (Run({}, ({"round": 1, "seconds": {"total": s}, "views": {}},)) for s in (1.0, 2.0))
    >>> digest(one) == digest(other)
    True
    """
    records = [{key: value for key, value in record.items() if key not in MEASURED} for record in run.rounds]
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()[:16]


def finished(place: Path, job: Job) -> Run | None:
    """The run in a folder, if it is there and done; a folder that holds another run, or a part of it, is refused."""
    if not (place / "run.json").is_file():
        return None
    run = read(place)
    if run.meta.get("status") != "done":
        return None
    refuse_another(place, run.meta, job)
    there = len(run.rounds)
    last = max([record["round"] for record in run.rounds], default=1)
    wanted = job.experiment.rounds if run.meta.get("stopped_by", "rounds") == "rounds" else last
    if there != wanted:
        raise DataError(f"'{place}' has the records of {there} of {wanted} rounds; {REMEDY}")
    return run


def refuse_another(place: Path, meta: Mapping[str, Any], job: Job) -> None:
    """Refuse the run in a job's folder if its description is not that of the job."""
    found = meta.get("experiment", {})
    wanted = json.loads(json.dumps({**job.identity["experiment"], "seed": job.seed}))  # as it would be recorded
    seeds = [[job.seed, seed] for seed in (meta["seed"], found.get("seed")) if seed != job.seed]
    differ = {"seed": seeds[0]} if seeds else differing([wanted, found], FREE - {"rounds"})
    if differ:
        key, (right, wrong) = next(iter(differ.items()))
        told = f"{key} is {shown(wrong)} instead of {shown(right)}"
        raise DataError(f"'{place}' holds another run than its name says: {told}; {REMEDY}")
