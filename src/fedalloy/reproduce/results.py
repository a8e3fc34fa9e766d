"""The recorded runs of an item at a scale, and the values that its tables, figures and claims read from them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedalloy.base.registry import suggest
from fedalloy.errors import DataError
from fedalloy.federation.metrics import METRICS, rounds_to_target
from fedalloy.reproduce.catalogue import Item, Row
from fedalloy.reproduce.plan import Job, jobs, paper_column
from fedalloy.storage.results import Run, read, selected
from fedalloy.storage.rows import cost, rows

TARGET = re.compile(r"rounds to (\w+) (0\.\d+)")


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
                value = value_of(run, row.view, metric or self.item.metrics[0], round or self.item.round)
                if not math.isnan(value):
                    found[seed] = value
        return found

    def paper_column(self, column: str) -> str:
        """The paper's column that one of ours stands for."""
        return paper_column(self.item, self.scale, column)


def value_of(run: Run, view: str, metric: str, round: str) -> float:
    """One number of a run: a metric in the reported round, a cost, a note, or the rounds it takes to reach a target.

    It is in the unit that is printed: percent, not shares. A target that is not reached counts as twice the rounds that
    were run; `not_reached` tells.

    >>> run = Run({"label": "FedAvg", "seed": 0}, ({"round": 1, "views": {"aca": {"amp": 0.5}}},))
    >>> value_of(run, "aca", "amp", "last"), value_of(run, "aca", "rounds to amp 0.4", "last")
    (50.0, 1.0)
    """
    if target := TARGET.fullmatch(metric):
        reached = reached_in(run, view, target[1], float(target[2]))
        return float(2 * run.rounds[-1]["round"] if reached is None else reached)
    if metric.startswith("note "):
        rounds, values = run.noted(metric.removeprefix("note "))
        chosen = [float(v) for t, v in zip(rounds, values, strict=True) if t in selected(run, view, round)]
        return math.fsum(chosen) / len(chosen) if chosen else math.nan
    if metric not in METRICS:
        raise DataError(f"there is no metric '{metric}'; {suggest(metric, list(METRICS))}")
    if METRICS[metric].path:
        value = cost(METRICS[metric], run)
    else:
        value = next(row for row in rows(run, round) if row.view == view).values.get(metric)
    return math.nan if value is None else METRICS[metric].factor * value


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
        run = finished(folder / job.folder)
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


def finished(place: Path) -> Run | None:
    """The run in a folder, if it is there and done."""
    if not (place / "run.json").is_file():
        return None
    run = read(place)
    return run if run.meta.get("status") == "done" else None
