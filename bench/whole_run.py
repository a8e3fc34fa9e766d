"""A whole round of `simulate` compared with a bare one, with two test sizes, since evaluation is requested work.

The larger test is a fifth of each client's rows, the smaller one a tenth of the samples that a round trains on. Besides
the seconds, this reports what evaluation adds in passes, where a training step counts as three forward passes, and what
a round takes without it: training, records, checkpoint.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workloads import Workload

from fedalloy.config.build import Built
from fedalloy.engine.pool import Pool
from fedalloy.run.runner import simulate

SMALL_TEST = 0.1  # of the samples that a round trains on


@dataclass(frozen=True)
class WholeRounds:
    """Seconds of alternating whole and bare rounds, and their passes of samples, counted as forward passes."""

    test_rows: int
    tested: float
    trained: float
    seconds: Mapping[str, list[float]]

    @property
    def added(self) -> float:
        """Return what evaluation adds to the passes of training."""
        return self.tested / self.trained

    def ratios(self, *, evaluation: bool) -> list[float]:
        """Return the ratio of whole to bare, round by round, with or without evaluation."""
        s = self.seconds
        rows = zip(s["whole"], s["bare"], s["evaluation"], strict=True)
        return [(whole if evaluation else whole - tested) / bare for whole, bare, tested in rows]

    def ms(self, part: str) -> str:
        """Return the median of a part of the seconds."""
        return f"{1000 * statistics.median(self.seconds[part]):.0f}"


def with_two_tests(
    work: Workload, built: Built, pool: Pool, bare: Callable[[int], object], passes: int
) -> list[WholeRounds]:
    """Measure whole rounds with a fifth of the rows as test data, and with a tenth of a round's training samples."""
    large = whole_rounds(work, built, pool, bare, passes)
    setting = built.setting
    rows = max(1, round(SMALL_TEST * large.trained / 3 / len(setting.sites)))
    sites = [dataclasses.replace(site, test=site.test.subset(range(rows))) for site in setting.sites]
    pool.setting = dataclasses.replace(setting, sites=sites)  # its own test rows are evaluated
    smaller = whole_rounds(work, dataclasses.replace(built, setting=pool.setting), pool, bare, passes)
    pool.setting = setting
    return [large, smaller]


def whole_rounds(work: Workload, built: Built, pool: Pool, bare: Callable[[int], object], passes: int) -> WholeRounds:
    """Alternate whole rounds of `simulate` and bare ones in the same pool."""
    seconds: dict[str, list[float]] = {name: [] for name in ("whole", "bare", "evaluation", "checkpoint")}
    begin = time.perf_counter()

    def watch(record: Mapping[str, Any]) -> None:
        nonlocal begin
        middle = time.perf_counter()
        seconds["whole"].append(middle - begin)
        bare(record["round"])
        begin = time.perf_counter()
        seconds["bare"].append(begin - middle)
        for name in ("evaluation", "checkpoint"):
            seconds[name].append(record["seconds"][name])

    with tempfile.TemporaryDirectory() as folder:
        run = simulate(work.experiment(passes + 1), folder, method=work.method, built=built, engine=pool, watch=watch)
    last = run.rounds[-1]
    return WholeRounds(
        test_rows=sum(next(iter(last["views"].values()))["clients"]["size"]),
        tested=sum(sum(view["clients"]["size"]) for view in last["views"].values()),
        trained=sum(last["flops"].values()) / run.meta["model"]["flops_per_sample"],
        seconds={name: values[1:] for name, values in seconds.items()},  # the first round also sets up the run
    )
