"""How many rounds each method takes to reach a target, and how much faster than FedAvg that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedalloy.base.registry import suggest
from fedalloy.base.text import MISSING, TIMES, number
from fedalloy.errors import UsageError
from fedalloy.federation.metrics import METRICS, rounds_to_target
from fedalloy.report.gains_table import Listing
from fedalloy.report.series import Series, series_of
from fedalloy.storage.results import Run

REACHABLE = tuple(
    name for name, one in METRICS.items() if (one.source, one.unit, one.better) == ("view", "percent", "high")
)


@dataclass(frozen=True)
class Target:
    """A value of a metric that is to be reached, as a share of 1."""

    metric: str
    value: float

    @property
    def heading(self) -> str:
        """The target as a column names it.

        >>> Target("test", 0.55).heading
        'Test 55 %'
        """
        return f"{METRICS[self.metric].heading.removesuffix(' %')} {100 * self.value:g} %"


def parse_target(text: str) -> Target:
    """A target as it is written on the command line; without a metric it is one of AMP.

    >>> parse_target("test=0.55"), parse_target("0.8")
    (Target(metric='test', value=0.55), Target(metric='amp', value=0.8))
    """
    metric, _, raw = text.rpartition("=")
    metric = metric or "amp"
    if metric not in REACHABLE:
        raise UsageError(
            f"--target {text}: there is no metric {metric[:60]!r} to reach; {suggest(metric, list(REACHABLE))}"
        )
    try:
        value = float(raw)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise UsageError(f"--target {text}: write a share of 1, for example {metric}=0.75")
    return Target(metric, value)


def targets_table(runs: Sequence[Run], targets: Sequence[Target]) -> Listing:
    """One line per method and view: for each target the first round that reaches it, and the speed-up over FedAvg.

    Without FedAvg, the speed-up is over the first line. Rounds are means over seeds.
    """
    lines = series_of(runs)
    reference = next((one for one in lines if (one.runs[0].name, one.view) == ("fedavg", "aca")), lines[0])
    headings = ["Method"]
    for target in targets:
        headings += [target.heading, "speed-up"]
    body = []
    for one in lines:
        figures = [text for x in targets for text in (_Reached.of(one, x).text, _speed_up(one, reference, x))]
        body.append([one.name, *figures])
    return Listing(
        "Rounds to reach a target",
        headings,
        body,
        words=1,
        note=f"> N: not reached in N rounds. The speed-up is the rounds of {reference.name} over those of the line.",
    )


@dataclass(frozen=True)
class _Reached:
    """The first round of each seed that reaches a target, if it does, and the last round of the shortest run."""

    rounds: Sequence[int]
    seeds: int  # that have the metric
    last: int

    @staticmethod
    def of(one: Series, target: Target) -> _Reached:
        curves = [run.series(one.view, target.metric) for run in one.runs]
        curves = [curve for curve in curves if not np.isnan(curve[1]).all()]
        hits = [(rounds, rounds_to_target(values, target.value)) for rounds, values in curves]
        last = min((int(rounds[-1]) for rounds, _ in curves), default=0)
        return _Reached([int(rounds[hit - 1]) for rounds, hit in hits if hit is not None], len(curves), last)

    @property
    def mean(self) -> float | None:
        """The mean over seeds, if all have reached the target: a mean over the others would be too optimistic."""
        return float(np.mean(self.rounds)) if self.seeds and len(self.rounds) == self.seeds else None

    @property
    def text(self) -> str:
        if not self.seeds:
            return MISSING
        if not self.rounds:
            return f"> {self.last}"
        if self.mean is None:
            return f"{len(self.rounds)} of {self.seeds} seeds"
        return number(self.mean, 0 if self.mean == int(self.mean) else 1)


def _speed_up(one: Series, reference: Series, target: Target) -> str:
    ours, theirs = _Reached.of(one, target), _Reached.of(reference, target)
    if not ours.mean or not theirs.seeds:
        return MISSING
    if theirs.mean is None:  # the reference takes longer than its run
        return MISSING if theirs.rounds else f"> {number(theirs.last / ours.mean, 1)}{TIMES}"
    return f"{number(theirs.mean / ours.mean, 1)}{TIMES}"
