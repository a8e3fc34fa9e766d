"""How many rounds each method takes to reach a target, and how much faster than FedAvg that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedalloy.base.registry import suggest
from fedalloy.base.text import MISSING, TIMES, number
from fedalloy.errors import UsageError
from fedalloy.federation.across import rounds_to_target
from fedalloy.federation.metrics import METRICS
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
        both = [(_reached(one, x), _reached(reference, x)) for x in targets]
        body.append([one.name, *(text for ours, theirs in both for text in (ours.text(), speed_up(ours, theirs)))])
    return Listing(
        "Rounds to reach a target",
        headings,
        body,
        words=1,
        note=f"> N: not reached in N rounds. The speed-up is the rounds of {reference.name} over those of the line.",
    )


@dataclass(frozen=True)
class Reached:
    """What each seed has spent until it reached a target, such as rounds (None: it did not), and in its whole run.

    >>> slow, fast = Reached([(40, 60), (50, 60)]), Reached([(10, 60), (20, 60)])
    >>> slow.text(), Reached([(40, 60), (None, 60)]).text(), Reached([(None, 60)]).text(), speed_up(fast, slow)
    ('45', '1 of 2 seeds', '> 60', '3.0×')
    """

    seeds: Sequence[tuple[float | None, float]]  # of those that have the metric

    @property
    def spent(self) -> list[float]:
        """Of the seeds that have reached it."""
        return [spent for spent, _ in self.seeds if spent is not None]

    @property
    def mean(self) -> float | None:
        """The mean over seeds, if all have reached the target: a mean over the others would be too optimistic."""
        return float(np.mean(self.spent)) if self.seeds and len(self.spent) == len(self.seeds) else None

    @property
    def last(self) -> float:
        """What the cheapest of the whole runs has spent."""
        return min(whole for _, whole in self.seeds)

    def text(self, write: Callable[[float], str] = lambda x: number(x, 0 if x == int(x) else 1)) -> str:
        """As a cell of a table."""
        if not self.seeds:
            return MISSING
        if not self.spent:
            return f"> {write(self.last)}"
        return f"{len(self.spent)} of {len(self.seeds)} seeds" if self.mean is None else write(self.mean)


def speed_up(ours: Reached, theirs: Reached) -> str:
    """How many times faster ours is than the reference; above a number if the reference does not reach the target."""
    if not ours.mean or not theirs.seeds:
        return MISSING
    if theirs.mean is None:  # the reference takes longer than its run
        return MISSING if theirs.spent else f"> {number(theirs.last / ours.mean, 1)}{TIMES}"
    return f"{number(theirs.mean / ours.mean, 1)}{TIMES}"


def _reached(one: Series, target: Target) -> Reached:
    curves = [run.series(one.view, target.metric) for run in one.runs]
    curves = [curve for curve in curves if not np.isnan(curve[1]).all()]
    hits = [(rounds, rounds_to_target(values, target.value)) for rounds, values in curves]
    return Reached([(None if hit is None else int(rounds[hit - 1]), int(rounds[-1])) for rounds, hit in hits])
