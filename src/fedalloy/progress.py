"""A live display of several runs with an honest estimate of the time that is left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedalloy.report.format import human_seconds
from fedalloy.runner import Watch


class Display:
    """Shows one bar for each run; the estimate rests on rounds that were really run.

    A run's pace is its own mean over its last five rounds; a run that has not begun is given the mean of all rounds so
    far. Before the first round there is no estimate.
    """

    def __init__(self, runs: int, rounds: int, console: Console | None = None) -> None:
        self._runs, self._rounds = runs, rounds
        self._begun = 0
        self._paces: dict[TaskID, list[float]] = {}
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
        self._progress.stop()

    def begin(self, label: str, seed: int) -> Watch:
        """Add a bar for a run and return what moves it."""
        self._begun += 1
        name = f"{label}, seed {seed}"
        task = self._progress.add_task(f"{name:<22}", total=self._rounds, score="", left=self._left())
        self._paces[task] = []
        last = time.perf_counter()

        def watch(record: Mapping[str, Any]) -> None:
            nonlocal last
            now = time.perf_counter()
            self._paces[task].append(now - last)
            last = now
            best = max((v["amp"] or 0.0 for v in record["views"].values()), default=None)
            score = "" if best is None else f"AMP {100 * best:5.1f} %"
            ended = record["round"] >= self._rounds
            self._progress.update(task, completed=record["round"], left="" if ended else self._left())
            if score:
                self._progress.update(task, score=score)

        return watch

    def seconds_left(self) -> float | None:
        """What is left of all runs at the pace seen so far; None before the first round."""
        done = [second for paces in self._paces.values() for second in paces]
        if not done:
            return None
        usual = sum(done) / len(done)
        left = (self._runs - self._begun) * self._rounds * usual
        for task, paces in self._paces.items():
            if not self._progress.tasks[task].finished:
                recent = paces[-5:] or [usual]
                todo = self._rounds - self._progress.tasks[task].completed
                left += todo * sum(recent) / len(recent)
        return left

    def _left(self) -> str:
        left = self.seconds_left()
        return "estimating" if left is None else f"about {human_seconds(left)} left in all"
