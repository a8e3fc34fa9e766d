"""Score against budget: each method's best validation score so far, by trials or by CPU seconds."""

from __future__ import annotations

from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedalloy.base.text import all_shortened
from fedalloy.report.canvas import WIDE, canvas, name_ends, styled
from fedalloy.report.series import Series, series_of
from fedalloy.tuning.result import Tuned

Spent = Literal["runs", "CPU seconds"]
AXES: dict[Spent, str] = {"runs": "Trials", "CPU seconds": "CPU seconds of all trials so far"}


@styled
def budget_picture(tuned: Tuned, by: Spent = "runs", *, width: float = WIDE) -> Figure:
    """One line per method, in the colour that it has in the report; a method with a single trial is a level line."""
    names = all_shortened(tuned.labels.values())
    hues = {one.label: one.hue for one in reversed(series_of(tuned.runs))}
    lines = []
    for key, label in tuned.labels.items():
        spent, best = progress(tuned, key, by)
        one = Series(label, "", names[label], (), hues[label], (0, (1, 1.5)) if len(spent) == 1 else (0, None), "")
        lines.append((one, spent, best))
    figure, axes = canvas(width, 3.6, [one for one, *_ in lines], xlabel=AXES[by])
    axes.set_title("Best validation score so far, %")
    end = max(spent[-1] for _, spent, _ in lines)
    ends = []
    for one, spent, best in lines:
        last = end if len(spent) == 1 else spent[-1]
        axes.step([*spent, last], [*best, best[-1]], where="post", color=one.hue, linestyle=one.dash)
        axes.plot(spent, best, "o", color=one.hue, markersize=3)
        ends.append((one, float(last), float(best[-1])))
    if by == "runs":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.02)
    name_ends(figure, axes, ends, led=True)
    return figure


def progress(tuned: Tuned, key: str, by: Spent) -> tuple[list[float], list[float]]:
    """What a method had spent after each of its trials, and its best validation score by then in percent."""
    trials = [trial for trial in tuned.trials if trial.method == key]
    cost = [1.0 if by == "runs" else trial.cpu_seconds for trial in trials]
    scores = [np.nan if trial.score is None else 100 * trial.score for trial in trials]
    return np.cumsum(cost).tolist(), np.fmax.accumulate(scores).tolist()
