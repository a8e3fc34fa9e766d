"""The progress of several runs, with an estimate of the remaining time: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedalloy.base.text import human_bytes, human_seconds, printable
from fedalloy.federation.metrics import AVERAGES
from fedalloy.report.spent import epsilon_of
from fedalloy.run.runner import Watch

MANY = 30  # runs; more bars than that would not fit on the screen
SELDOM = 30.0  # seconds; lines are at least this far apart


class Display:
    """Show the progress of runs that come one after the other, and estimate the remaining time from completed rounds.

    The current run is estimated by the mean of its last five rounds, a run to come by the mean of the runs so far that
    have its label (`runs` has the labels of all, or only their number), or else of all labels. There is no estimate
    before the first round. In a terminal there is a bar for each run, or for the current one if there are many.
    Elsewhere there is a line on stderr for each round, but at most one in 30 seconds.
    """

    def __init__(self, runs: int | Sequence[str], rounds: int, console: Console | None = None) -> None:
        self._labels = [""] * runs if isinstance(runs, int) else list(runs)
        self._rounds = rounds
        self._begun = self._round = 0
        self._ended: list[tuple[str, float]] = []  # label and seconds of each run before
        self._seconds: list[float] = []  # of each round of the run that is running
        self._task: TaskID | None = None
        self._name = ""
        console = console or Console()
        self._bars, self._told = console.is_terminal, time.perf_counter()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>3.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[score]}", justify="right"),
            TextColumn("[dim]{task.fields[left]}"),
            console=console,
        )

    def __enter__(self) -> Display:
        if self._bars:
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
        if self._bars:
            self._progress.stop()

    def begin(self, label: str, seed: int) -> Watch:
        """Begin a run and return the function that is told of its rounds."""
        self._end()
        self._begun, self._round, self._seconds = self._begun + 1, 0, []
        self._name = name = f"{label}, seed {seed}"
        task = self._progress.add_task(escape(f"{name:<22}"), total=self._rounds, score="", left=self._left())
        self._task = task
        last, sent, resumed, scores = time.perf_counter(), 0, False, ""

        def watch(record: Mapping[str, Any]) -> None:
            nonlocal last, sent, resumed, scores
            now = time.perf_counter()
            resumed = resumed or (not self._seconds and record["round"] > 1)
            self._seconds.append(now - last)
            self._round, last = record["round"], now
            sent += sum(sum(kinds.values()) for kinds in record.get("bytes", {}).values())
            self._progress.update(task, completed=self._round, left=self._left())
            if best := _best(record):
                self._progress.update(task, score=", ".join(filter(None, [best[0], epsilon_of(record)])))
                scores = " ".join(", ".join(best).split())
            if not self._bars and now - self._told >= SELDOM:
                since = "since it was resumed" if resumed else "so far"
                parts = [scores, epsilon_of(record), f"{human_bytes(sent)} {since}", self._left()]
                of = f" (run {self._begun} of {len(self._labels)})" if len(self._labels) > 1 else ""
                head = f"round {self._round} of {self._rounds}, {name}{of}"
                self._told = now
                _tell(f"{head}: {', '.join(filter(None, parts))}")

        return watch

    def seconds_left(self) -> float | None:
        """The estimated seconds left for all runs; None before the first round."""
        known, recent, left = list(self._ended), self._seconds[-5:], 0.0
        if recent:
            left = (self._rounds - self._round) * sum(recent) / len(recent)
            known.append((self._label, sum(self._seconds) + left))
        if not known:
            return None
        means = {
            label: sum(own) / len(own)
            for label in dict(known)
            for own in [[seconds for other, seconds in known if other == label]]
        }
        other = sum(means.values()) / len(means)
        coming = self._labels[self._begun - (not recent) :]
        return left + sum(means.get(label, other) for label in coming)

    def _end(self) -> None:
        """End the bar of the previous run, which may have stopped early or have been finished before."""
        if self._task is None:
            return
        if self._seconds:
            self._ended.append((self._label, sum(self._seconds)))
            self._progress.update(self._task, left="", total=self._round)
        else:
            self._progress.update(self._task, left="already finished")
            if not self._bars:
                _tell(f"{self._name}: already finished")
        self._progress.update(self._task, visible=len(self._labels) <= MANY)

    @property
    def _label(self) -> str:
        """The label of the current run in the list of all."""
        return self._labels[self._begun - 1]

    def _left(self) -> str:
        left = self.seconds_left()
        if left is None:
            return "estimating"
        untried = len(set(self._labels[self._begun - 1 :]) - {label for label, _ in self._ended} - {self._label})
        others = "the other method is" if untried == 1 else f"{untried} other methods are"
        doubt = f" if {others} as fast" if untried else ""
        of_all = " in total" if len(self._labels) > 1 else ""
        return f"about {human_seconds(left)} left{of_all}{doubt}" if left else ""


def watched(label: str, seed: int, rounds: int) -> Watch | None:
    """Watch one run in plain lines, for a command without bars; in a terminal, nothing is shown."""
    console = Console()
    return None if console.is_terminal else Display(1, rounds, console).begin(label, seed)


def _best(record: Mapping[str, Any]) -> list[str]:
    """The scores of the best view of a round as text: its average, and the worst client's; empty if there are none."""
    views = [view for view in record["views"].values() if view["amp"] is not None]
    if not views:
        return []
    best = max(views, key=lambda view: float(view["amp"]))
    kind = best.get("task", "classes")
    worst = "WLP" if kind == "classes" else f"worst {AVERAGES[kind]}"
    rest = [f"{worst} {100 * best['wlp']:.1f} %"] if best.get("wlp") is not None else []
    return [f"{AVERAGES[kind]} {100 * best['amp']:5.1f} %", *rest]


def _tell(line: str) -> None:
    """Write a line to stderr at once; a log that is gone stops no run."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(line)}\n")
        sys.stderr.flush()
