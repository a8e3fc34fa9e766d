"""Trials and their budget: what was tried, how it scored on validation data, and the file that records it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from fedalloy.base.checked import shown, type_hints, typed_value
from fedalloy.base.files import PRIVATE, append_line, read_file, write_atomically
from fedalloy.base.text import human_seconds
from fedalloy.errors import DataError, UsageError
from fedalloy.storage.results import STAGES, Run, Selection

TRIALS = "trials.jsonl"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting of one method that was run to be judged on validation data, and what that cost.

    A method's trials are counted from 1. The score is that of the method's best view; None if the run failed, with
    the reason. `method` is the key of the method in the comparison.
    """

    method: str
    number: int
    values: Mapping[str, Any]
    score: float | None
    view: str = ""
    rounds: int = 0
    cpu_seconds: float = 0.0
    seed: int = 0
    failed: str = ""

    @property
    def setting(self) -> str:
        """The values in a few words.

        >>> Trial(method="fedprox", number=1, values={"training.lr": 0.0123456, "fedprox.mu": 1}, score=0.5).setting
        'training.lr = 0.01235, fedprox.mu = 1'
        """
        told = [
            f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}"
            for key, value in self.values.items()
        ]
        return ", ".join(told) or "as it is"

    @property
    def outcome(self) -> str:
        """How it ended, in a few words."""
        ended = f"failed: {self.failed}" if self.score is None else f"{100 * self.score:.2f} % on validation"
        return f"{ended}, {human_seconds(self.cpu_seconds)}"


@dataclass(frozen=True)
class Budget:
    """What each method may spend on its trials: a number of runs, or of CPU seconds."""

    amount: float
    unit: Literal["runs", "CPU seconds"] = "runs"

    def allows(self, spent: Sequence[Trial]) -> bool:
        """Whether another trial may begin: one of average cost must fit; the first always may.

        >>> trials = [Trial(method="fedavg", number=n, values={}, score=None, cpu_seconds=4.0) for n in (1, 2)]
        >>> [budget_of(given).allows(trials) for given in (2, 3, "12s", "11.9s")]
        [False, True, True, False]
        """
        if self.unit == "runs":
            return len(spent) < self.amount
        total = self.spent(spent)
        return not spent or total + total / len(spent) <= self.amount

    def spent(self, trials: Sequence[Trial]) -> float:
        """What these trials have used of it."""
        return len(trials) if self.unit == "runs" else math.fsum(trial.cpu_seconds for trial in trials)

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit}"


def budget_of(given: int | str) -> Budget:
    """A budget as it is written: `20` runs, or `600s`, CPU seconds.

    >>> str(budget_of("20")), str(budget_of("600s"))
    ('20 runs', '600 CPU seconds')
    """
    text = str(given).strip()
    try:
        found = Budget(float(text[:-1]), "CPU seconds") if text.endswith("s") else Budget(int(text))
    except ValueError:
        found = Budget(0)
    if isinstance(given, bool) or not (found.amount > 0 and math.isfinite(found.amount)):
        raise UsageError(f"the budget is {shown(given)}; write a number of runs (20) or of CPU seconds (600s)")
    return found


def judged(run: Run, select: Selection) -> tuple[float | None, str]:
    """A run's validation score in the selected round, and the view that has it; the method's best view counts."""
    scores = [(run.at(view, "validation", select), view) for view in run.views if view not in STAGES]
    known = [(score, view) for score, view in scores if math.isfinite(score)]
    return max(known, key=lambda pair: pair[0]) if known else (None, "")


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest score, the first of equals; None if all failed."""
    known = [trial for trial in trials if trial.score is not None]
    return max(known, key=lambda trial: trial.score or 0.0) if known else None


def cpu_seconds() -> float:
    """The CPU time of this process and of the worker processes that have ended."""
    return sum(os.times()[:4])


def record(folder: Path, trial: Trial) -> None:
    """Append a trial to the file; after this, it is not run again."""
    append_line(folder / TRIALS, json.dumps(asdict(trial), allow_nan=False))


def recorded(folder: Path) -> list[Trial]:
    """The trials in the file; a line that a crash has truncated is removed from it."""
    file = folder / TRIALS
    if not file.exists():
        return []
    content = read_file(file)
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_atomically(file, whole, PRIVATE)
    return [_read(line, f"line {number} of {file}") for number, line in enumerate(whole.splitlines(), start=1)]


def _read(line: bytes, where: str) -> Trial:
    hints = type_hints(Trial)
    try:
        found = json.loads(line)
        values = {f.name: typed_value(hints[f.name], found[f.name], f.name) for f in fields(Trial)}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{where} is not the record of a trial; remove it, and the trial is run again") from error
    return Trial(**values)


def spent_words(budget: Budget, trials: Sequence[Trial]) -> str:
    """What a method has used, in words: its runs and their CPU time.

    >>> trials = [Trial(method="fedavg", number=1, values={}, score=None, cpu_seconds=4.0)]
    >>> spent_words(Budget(20), trials), spent_words(Budget(600, "CPU seconds"), trials)
    ('1 of 20 runs, 4.0 s', '1 run, 4.0 s')
    """
    time = human_seconds(math.fsum(trial.cpu_seconds for trial in trials))
    if budget.unit == "runs":
        return f"{len(trials)} of {budget.amount:g} runs, {time}"
    return f"{len(trials)} run{'s' if len(trials) > 1 else ''}, {time}"
