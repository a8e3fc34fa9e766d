"""A live display of several runs with an estimate of the remaining time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedalloy.base.text import human_seconds
from fedalloy.federation.metrics import AVERAGES
from fedalloy.report.spent import epsilon_of
from fedalloy.run.runner import Watch

MANY = 30  # runs; more bars than that would not fit on the screen


class Display:
    """Show one bar for each run, and estimate the remaining time from completed rounds.

    Runs come one after the other. The current run is estimated by the mean of its last five rounds, runs to come by the
    mean of those so far. There is no estimate before the first round. If there are many runs, only the current one is
    shown.
    """

    def __init__(self, runs: int, rounds: int, console: Console | None = None) -> None:
        self._runs, self._rounds = runs, rounds
        self._begun = self._round = 0
        self._ended: list[float] = []  # seconds of each run before
        self._seconds: list[float] = []  # of each round of the run that is running
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>3.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[score]}", justify="right"),
            TextColumn("[dim]{task.fields[left]}"),
            console=console,
        )

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end()
        elif (
            not (self._ended or self._seconds) and self._task is not None
        ):  # refused before it started: the error message is enough
            self._progress.update(self._task, visible=False)
        self._progress.stop()

    def begin(self, label: str, seed: int) -> Watch:
        """Add a bar for a run and return the function that advances it."""
        self._end()
        self._begun, self._round, self._seconds = self._begun + 1, 0, []
        name = f"{label}, seed {seed}"
        task = self._progress.add_task(escape(f"{name:<22}"), total=self._rounds, score="", left=self._left())
        self._task = task
        last = time.perf_counter()

        def watch(record: Mapping[str, Any]) -> None:
            nonlocal last
            now = time.perf_counter()
            self._seconds.append(now - last)
            self._round, last = record["round"], now
            self._progress.update(task, completed=self._round, left=self._left())
            if amps := [view["amp"] for view in record["views"].values() if view["amp"] is not None]:
                kind = next(iter(record["views"].values())).get("task", "classes")
                score = [f"{AVERAGES[kind]} {100 * max(amps):5.1f} %", epsilon_of(record)]
                self._progress.update(task, score=", ".join(filter(None, score)))

        return watch

    def seconds_left(self) -> float | None:
        """The estimated seconds left for all runs; None before the first round."""
        runs, recent = self._ended, self._seconds[-5:]
        if recent:
            left = (self._rounds - self._round) * sum(recent) / len(recent)
            runs = [*runs, sum(self._seconds) + left]
        if not runs:
            return None
        usual = sum(runs) / len(runs)
        return (left if recent else usual) + (self._runs - self._begun) * usual

    def _end(self) -> None:
        """End the bar of the previous run, which may have stopped early or have been finished before."""
        if self._task is None:
            return
        if self._seconds:
            self._ended.append(sum(self._seconds))
            self._progress.update(self._task, left="", total=self._round)
        else:
            self._progress.update(self._task, left="already finished")
        self._progress.update(self._task, visible=self._runs <= MANY)

    def _left(self) -> str:
        left = self.seconds_left()
        if left is None:
            return "estimating"
        return f"about {human_seconds(left)} left in total" if left else ""
