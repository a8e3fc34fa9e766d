"""The result of a tuning: what was tried, what was chosen, and how it did on the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from fedalloy.base.text import human_seconds, number, view_name
from fedalloy.config.sections import Experiment
from fedalloy.federation.metrics import METRICS, heading_of
from fedalloy.report.tables import Table
from fedalloy.storage.results import Run, Selection
from fedalloy.storage.rows import combine, rows, task_of
from fedalloy.tuning.trials import Budget, Trial, spent_words


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """All trials, the best one of each method by its key, and the runs of the chosen settings on the test.

    `experiment` has the chosen settings under [methods]: a comparison of it with the seeds of `runs` repeats the test.
    """

    trials: tuple[Trial, ...]
    best: Mapping[str, Trial]
    runs: tuple[Run, ...]
    labels: Mapping[str, str]
    budget: Budget
    select: Selection
    experiment: Experiment
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """One line for each method: the chosen setting, its scores on validation and test, and what tuning it took.

        The test score is that of the view with the best validation score, as a mean over seeds.
        """
        tested = {
            (one.label, one.view): one for one in combine(row for run in self.runs for row in rows(run, self.select))
        }
        lines = []
        for key, trial in self.best.items():
            spent = [other for other in self.trials if other.method == key]
            scores = tested[self.labels[key], trial.view].written("amp")
            words = (self.labels[key], view_name(trial.view), trial.setting)
            lines.append((*words, _percent(trial.score), scores, spent_words(self.budget, spent)))
        test = heading_of("amp", task_of(self.runs))
        headings = ("Method", "View", "Chosen", "Validation %", f"Test: {test}", "Tuned with")
        return Table("Chosen by validation score, then tested", headings, lines, notes=self.notes, words=3)

    def tried(self) -> Table:
        """One line for each trial; a star marks the chosen ones."""
        lines = [
            (
                self.labels[trial.method],
                trial.setting,
                f"{trial.number}{'*' if trial is self.best[trial.method] else ''}",
                _percent(trial.score) if not trial.failed else "failed",
                str(trial.rounds),
                human_seconds(trial.cpu_seconds),
            )
            for trial in self.trials
        ]
        ends = [i for i, (one, after) in enumerate(pairwise(lines)) if one[0] != after[0]]
        headings = ("Method", "Setting", "Trial", "Validation %", "Rounds", "CPU time")
        title = f"All trials (seed {self.trials[0].seed}, budget of each method: {self.budget})"
        return Table(title, headings, lines, words=2, rules=ends)


def _percent(score: float | None) -> str:
    return number(None if score is None else score * METRICS["validation"].factor)
