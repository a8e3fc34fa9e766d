"""One self-contained HTML page about finished runs, which makes no requests and can be read without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedalloy import __version__
from fedalloy.base.files import write_atomically
from fedalloy.base.text import all_shortened
from fedalloy.errors import DataError, StorageError
from fedalloy.federation import disclosure
from fedalloy.federation.metrics import SCORES
from fedalloy.report import facts
from fedalloy.report.chart import Chart, look_of
from fedalloy.report.client_charts import accuracy_chart, accuracy_table, gain_chart, split_chart
from fedalloy.report.curves import metric_chart, note_chart, noted
from fedalloy.report.decisions import tested
from fedalloy.report.gains import Gains, gains, leading
from fedalloy.report.gains_table import each_client, summary, who_gains
from fedalloy.report.leads import rivals
from fedalloy.report.page import written
from fedalloy.report.partition_plot import Counts
from fedalloy.report.published import beside
from fedalloy.report.run_pictures import run_pictures
from fedalloy.report.series import Series, series_of
from fedalloy.report.significance import significance
from fedalloy.report.table import Shown, cells, in_words, meanings, note_on_marks
from fedalloy.report.targets import Target, targets_table
from fedalloy.report.trained import doubts, told
from fedalloy.report.verdict import verdict
from fedalloy.storage.differences import told_apart, unequal
from fedalloy.storage.results import Run, Selection
from fedalloy.storage.rows import agreed, check_selection, rows, task_of, too_few
from fedalloy.train.privacy import SECRET

SHOWN: tuple[Shown, ...] = ("comparison", "mixtures", "costs", "decisions")


def write_report(
    runs: Sequence[Run],
    path: str | Path,
    *,
    title: str = "Comparison of federated methods",
    selection: Selection = "last",
    targets: Sequence[Target] = (),
    command: str = "",
) -> Path:
    """Write the report on these runs and return its path; the file is written atomically.

    `command` is the command that repeats the runs. `targets` add a table of the rounds that each method takes to reach
    them. Runs that were read from their folders also show what `fedalloy draw` draws of them.
    """
    path = Path(path)
    page = render(runs, title=title, selection=selection, targets=targets, command=command)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the folder '{path.parent}' cannot be made: {error.strerror}") from error
    write_atomically(path, page.encode())
    return path


def render(
    runs: Sequence[Run],
    *,
    title: str,
    selection: Selection = "last",
    targets: Sequence[Target] = (),
    command: str = "",
) -> str:
    """The whole page as text; equal runs give equal text."""
    runs = [run for run in runs if run.views]
    if not runs:
        raise DataError("there is nothing to report; give at least one run with an evaluated round")
    check_selection(runs, selection)
    warnings = unequal(runs, selection)
    runs = told_apart(runs, selection)
    names = {run.label: run.name for run in runs}
    table = [row for run in runs for row in rows(run, selection)]
    doubted = doubts(runs, selection)
    groups = [[run for run in runs if run.label == label] for label in names]
    seeds = max(map(len, groups))
    compared, mixed, spent, decided = (cells(table, names, doubted, part) for part in SHOWN)
    first, task = agreed(row.leads for row in table), task_of(runs)
    counts = facts.class_counts(runs[0])
    found = gains(runs, selection)
    series = series_of(runs)
    return written(
        "fedalloy.report",
        "template.html.j2",
        looks=_looks(series),
        title=title,
        verdict=(
            "The sites evaluated nothing, because [privacy] is on."
            if all(map(facts.is_unevaluated, runs))
            else verdict(table, names=names, clients=found, doubts=doubted)
        ),
        setting=facts.setting(runs),
        warnings=[*told(doubted), *too_few(runs, selection), *facts.warnings(runs), *warnings],
        reported=in_words(selection),
        seeds=seeds,
        compared=compared,
        marked=note_on_marks(table, names, doubted),
        mixed=mixed if len(mixed[0]) > 2 else None,
        spent=spent if len(spent[0]) > 2 else None,
        decided=decided if len(decided[0]) > 2 else None,
        tested=tested(runs),
        task=task,
        score=SCORES[task],
        leading=first,
        average=first.average[:1].upper() + first.average[1:],
        meanings=meanings([*compared[0], *decided[0], *mixed[0], *spent[0]], task),
        targets=targets_table(runs, targets) if targets else None,
        published=beside(runs),
        significance=significance(rivals(table, names, doubted), series),
        curves={
            metric: metric_chart(runs, series, metric, costs=metric == first.first)
            for metric in (first.first, "wlp", "fm")
        },
        notes=[note_chart(series, name, place) for place, name in enumerate(noted(runs))],
        clients=accuracy_chart(runs, series, selection, in_words(selection)),
        each=accuracy_table(runs, series, selection, found),
        gains=_gains(found, series),
        split=None if counts is None or task == "numbers" else _split(runs[0], counts),
        skew="" if counts is None else facts.skew(counts) if task == "classes" else facts.held(runs[0]),
        pictures=run_pictures(groups),
        traffic=[line for group in groups for line in facts.traffic(group)],
        left=[(group[0].label, facts.left(group[0]), facts.evaluated(group[0])) for group in groups],
        always=disclosure.always(),
        times=[facts.times(group) for group in groups],
        experiments=[(group[0].label, facts.experiment(group)) for group in groups],
        repeat=facts.repeat(runs),
        secret=any(record.get("noise") == SECRET for run in runs for record in run.rounds),
        command=command,
        version=__version__,
    )


def _looks(series: Sequence[Series]) -> dict[str, str]:
    """The colour of each method in tables, by the names that tables give it."""
    methods = all_shortened(one.label for one in series)
    found = {shown: one for one in reversed(series) for shown in (methods[one.label], one.label, one.name)}
    return {name: look_of(one).split()[0] for name, one in found.items()}


def _gains(found: Sequence[Gains], series: Sequence[Series]) -> dict[str, Any]:
    """The section on gains, in the order of all tables; empty if there is no reference."""
    if not found:
        return {}
    both = leading(found)
    order = [(one.label, one.view) for one in series]
    return {
        "chart": gain_chart(both, "gains-table"),
        "leader": both[0],
        "who": who_gains(both[0]),
        "summary": summary(sorted(found, key=lambda one: order.index((one.label, one.view)))),
        "clients": each_client(found),
    }


def _split(run: Run, counts: Counts) -> Chart:
    return split_chart(counts, run.meta.get("clients", {}).get("label_names"), run.client_names, run.seed)
