"""Figures of clients: their accuracies as boxes, and their weights in KDIA's teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedalloy.base.text import TIMES
from fedalloy.errors import DataError
from fedalloy.knowledge.trifreqs import Frequency
from fedalloy.report.attendance import took_part
from fedalloy.report.canvas import INK
from fedalloy.report.series import DASHES, HUES, Floats
from fedalloy.report.trifreqs_plot import weights_over_rounds
from fedalloy.reproduce.forms.figures_columns import column_titles
from fedalloy.reproduce.forms.figures_over import broken, hatch_of
from fedalloy.reproduce.forms.figures_page import (
    form,
    grid_of,
    hide_rest,
    looks,
    options,
    page,
    remarks,
    rows_with_runs,
    say_absent,
    title_of,
    with_runs,
)
from fedalloy.reproduce.results import Results
from fedalloy.storage.results import Run

FREQUENCIES: tuple[tuple[str, Frequency], ...] = (
    ("participation interval", "interval"),
    ("participation count", "participation"),
    ("share of data", "number"),
    ("triFreqs", "all"),
)


@form
def box(results: Results) -> list[Figure]:
    """The accuracies of the clients as a box for each row, a panel for each column.

    The clients of all seeds are in a box: they show the spread, and are not counted as samples.
    """
    rows, styles, titles = rows_with_runs(results), looks(results), column_titles(results)
    shape = grid_of(len(results.columns))
    size = (6.0, 2.8) if shape[1] == 1 else None
    shows = f"Each client's accuracy on its own test data, the clients of all seeds, round: {results.item.round}."
    legend = [
        Patch(facecolor=look.hue, alpha=0.75, hatch=hatch_of(look), edgecolor="white", linewidth=0, label=look.name)
        for look in (styles[row.label] for row in rows)
    ]
    made = page(
        title_of(results.item), remarks(results, shows), shape, panel=size, legend=legend, gaps=(0.62, 0.45), under=0.25
    )
    hide_rest(made.all, len(results.columns))
    for place, (axes, column) in enumerate(zip(made.all, results.columns, strict=False)):
        found = []
        for x, row in enumerate(rows):
            line = with_runs(styles[row.label], row, results, column)
            accuracies = [100 * accuracy for _, accuracy in line.clients(results.item.round)] if line.runs else []
            if accuracies:
                found.append((float(x), accuracies, line.hue, hatch_of(line)))
        axes.set_title(titles[column])
        if found:
            _boxes(axes, found, 0.6)
        else:
            say_absent(axes)
        axes.set(xticks=[], xlim=(-0.6, max(len(rows), 1) - 0.4))
        axes.grid(axis="x", visible=False)
        if place % shape[1] == 0:
            axes.set_ylabel("Accuracy of clients, %")
    return [made.figure]


def _boxes(axes: Axes, found: Sequence[tuple[float, Any, str, str]], width: float) -> None:
    """Boxes of quartiles at places, each in its hue; whiskers reach to the last value within 1.5 ranges."""
    drawn = axes.boxplot(
        [values for _, values, *_ in found], positions=[x for x, *_ in found], widths=width, patch_artist=True,
        manage_ticks=False, medianprops={"color": INK, "linewidth": 1.4}, boxprops={"linewidth": 0},
        whiskerprops={"color": INK, "linewidth": 0.8}, capprops={"color": INK, "linewidth": 0.8},
        flierprops={"marker": "o", "markersize": 2.5, "markerfacecolor": "none", "markeredgewidth": 0.6},
    )  # fmt: skip
    for patch, flier, (_, _, hue, hatch) in zip(drawn["boxes"], drawn["fliers"], found, strict=True):
        patch.set(facecolor=hue, alpha=0.75, hatch=hatch, edgecolor="white")
        flier.set(markeredgecolor=hue)


@form
def weights(results: Results) -> list[Figure]:
    """The clients' weights in KDIA's teacher: boxes by data alone and by triFreqs, and how their variance changes.

    All of it follows from who took part and how much data each client has, so that any method's runs will do. Option:
    `variance`, the column whose variance over the rounds is drawn; by default it is the middle one.
    """
    columns, titles = results.columns, column_titles(results)
    chosen = options(results).get("variance", columns[len(columns) // 2] if columns else "")
    if columns and chosen not in columns:
        raise DataError(f"{results.item.paper} {results.item.id}: the option variance names no column: '{chosen}'")
    shows = (
        "Weights after the last round, the clients of all seeds; variance over clients: mean and deviation of seeds."
    )
    legend: list[Any] = [Patch(facecolor=HUES[i], alpha=0.75, label=name) for i, name in enumerate(_KINDS)]
    legend += [Line2D([], [], color=HUES[i], label=name, **_dashed(i)) for i, (name, _) in enumerate(FREQUENCIES)]
    made = page(title_of(results.item), remarks(results, shows, ()), (1, 2), panel=(4.4, 2.6), legend=legend)
    boxes, lines = made.all
    boxes.set_title("(a) Weights of the clients, %")
    found = []
    for place, column in enumerate(columns):
        for i, use in enumerate(_KINDS.values()):
            last = [100 * weights_over_rounds(*_record(run), use=use)[-1] for run in _runs(results, column)]
            if last:
                found.append((place + 0.36 * (i - 0.5), np.concatenate(last), HUES[i], ""))
    if found:
        _boxes(boxes, found, 0.28)
    else:
        say_absent(boxes)
    boxes.set_xticks(range(len(columns)), [broken(titles[column]) for column in columns])
    boxes.set_xlim(-0.6, max(len(columns), 1) - 0.4)
    boxes.grid(axis="x", visible=False)
    lines.set_title(f"(b) Variance over clients {TIMES}10⁴, {titles.get(chosen, chosen)}")
    _variances(lines, _runs(results, chosen))
    return [made.figure]


_KINDS: dict[str, Frequency] = {"sinFreqs: by data alone": "number", "triFreqs": "all"}


def _dashed(place: int) -> dict[str, Any]:
    return {"linestyle": DASHES[place]}


def _variances(axes: Axes, runs: Sequence[Run]) -> None:
    """The variance over the clients of each frequency in each round."""
    if not runs:
        say_absent(axes)
        return
    for i, (_, use) in enumerate(FREQUENCIES):
        tables = [weights_over_rounds(*_record(run), use=use) for run in runs]
        rounds = min(map(len, tables))
        found: Floats = 1e4 * np.array([table[:rounds].var(axis=1) for table in tables])
        mean = found.mean(0)
        spread = found.std(0, ddof=1) if len(found) > 1 else np.zeros(rounds)
        numbered = np.arange(1, rounds + 1)
        axes.fill_between(numbered, mean - spread, mean + spread, color=HUES[i], alpha=0.13, linewidth=0)
        axes.plot(numbered, mean, color=HUES[i], linewidth=1.4, **_dashed(i))
    axes.set_xlabel("Round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=8, min_n_ticks=1))


def _runs(results: Results, column: str) -> list[Run]:
    """One run for each seed in a column: every method has the same clients in the same rounds."""
    found = {seed: run for (place, _, seed), run in reversed(list(results.runs.items())) if place == column}
    return [found[seed] for seed in sorted(found)]


def _record(run: Run) -> tuple[list[list[int]], list[int]]:
    """Who took part in each round, and how many samples each client has."""
    return took_part(run.rounds), list(run.meta["clients"]["train_sizes"])
