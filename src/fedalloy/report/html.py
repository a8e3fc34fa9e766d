"""One self-contained HTML page about finished runs, without scripts and without requests to the network."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from fedalloy import __version__
from fedalloy.base.files import write_atomically
from fedalloy.errors import DataError, StorageError
from fedalloy.federation import disclosure
from fedalloy.federation.metrics import SCORES
from fedalloy.report import facts
from fedalloy.report.canvas import HALF, NARROW, WIDE
from fedalloy.report.decisions import tested
from fedalloy.report.gains import Gains, gains, leading
from fedalloy.report.gains_plot import gain_picture
from fedalloy.report.gains_table import each_client, summary, who_gains
from fedalloy.report.partition_plot import bubble_plot
from fedalloy.report.plots import client_picture, cost_picture, learning_curves, note_curves
from fedalloy.report.published import beside
from fedalloy.report.svg import to_svg
from fedalloy.report.table import Shown, cells, in_words, meanings, note_on_marks
from fedalloy.report.targets import Target, targets_table
from fedalloy.report.trained import doubts, told
from fedalloy.report.verdict import verdict
from fedalloy.storage.differences import told_apart, unequal
from fedalloy.storage.results import Run, Selection
from fedalloy.storage.rows import agreed, check_selection, rows, task_of, too_few
from fedalloy.train.privacy import SECRET

# Characters that must not be on a page: control characters, and those that change the direction of text.
UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff]"
)

# The text alternatives for screen readers; the tables on the page hold the same numbers.
SPOKEN = {
    "curves": "Line chart: {} of each method and view over the rounds.",
    "notes": "Line chart: {} over the rounds, as each method's server noted it.",
    "clients": "Dot plot: the accuracy of each client under each method; accuracies are {}.",
    "gains": "Bar chart: each client's gain or loss with the leading method, and its number of training samples.",
    "cost": "Line chart: AMP of each method against the bytes it has sent.",
    "split": "Bubble chart: how many samples of each class each client holds.",
}


SHOWN: tuple[Shown, ...] = ("costs", "decisions")


def write_report(
    runs: Sequence[Run],
    path: str | Path,
    *,
    title: str = "Comparison of federated methods",
    selection: Selection = "last",
    targets: Sequence[Target] = (),
    partition: Sequence[Figure] | None = None,
    command: str = "",
) -> Path:
    """Write the report on these runs and return its path; the file is written atomically.

    `partition` gives figures of how the data was split; by default, one is drawn from the first run's class counts.
    `command` is the command that repeats the runs. `targets` add a table of the rounds that each method takes to reach
    them.
    """
    path = Path(path)
    page = render(runs, title=title, selection=selection, targets=targets, partition=partition, command=command)
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
    partition: Sequence[Figure] | None = None,
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
    compared, mixed = cells(table, names, doubted), cells(table, names, doubted, "mixtures")
    spent, decided = (cells(table, names, doubted, part) for part in SHOWN)
    leading, task = agreed(row.leads for row in table), task_of(runs)
    counts = facts.class_counts(runs[0])
    if partition is None:
        classes = runs[0].meta.get("clients", {}).get("label_names")
        partition = (
            []
            if counts is None or task == "numbers"
            else [bubble_plot(counts, classes, client_names=runs[0].client_names)]
        )
    found = gains(runs, selection)
    groups = [[run for run in runs if run.label == label] for label in names]
    environment = Environment(
        loader=PackageLoader("fedalloy.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("template.html.j2").render(
        title=title,
        verdict=(
            "The sites evaluated nothing, because [privacy] is on."
            if all(map(facts.is_unevaluated, runs))
            else verdict(table, names=names, clients=found, doubts=doubted)
        ),
        setting=facts.setting(runs),
        warnings=[*told(doubted), *too_few(runs, selection), *facts.warnings(runs), *warnings],
        reported=in_words(selection),
        seeds=max(map(len, groups)),
        compared=compared,
        marked=note_on_marks(table, names, doubted),
        mixed=mixed if len(mixed[0]) > 2 else None,
        spent=spent if len(spent[0]) > 2 else None,
        decided=decided if len(decided[0]) > 2 else None,
        tested=tested(runs),
        task=task,
        score=SCORES[task],
        leading=leading,
        average=leading.average[:1].upper() + leading.average[1:],
        meanings=meanings([*compared[0], *decided[0], *mixed[0], *spent[0]], task),
        targets=targets_table(runs, targets) if targets else None,
        published=beside(runs),
        curves={metric: _curves(runs, metric) for metric in (leading.first, "wlp", "fm")},
        notes=[(name, _notes(runs, name, place)) for place, name in enumerate(_noted(runs))],
        clients=both_widths(
            lambda width: client_picture(runs, selection, width=width),
            "clients",
            SPOKEN["clients"].format(in_words(selection)),
        ),
        gains=_gains(found),
        split=[_svg(figure, f"split-{place}", SPOKEN["split"]) for place, figure in enumerate(partition)],
        split_seed=runs[0].seed,
        skew="" if counts is None else facts.skew(counts) if task == "classes" else facts.held(runs[0]),
        cost=both_widths(lambda width: cost_picture(runs, width=width), "cost", SPOKEN["cost"]),
        traffic=[line for group in groups for line in facts.traffic(group)],
        left=[(group[0].label, facts.left(group[0]), facts.evaluated(group[0])) for group in groups],
        always=disclosure.always(),
        times=[facts.times(group) for group in groups],
        experiments=[(group[0].label, facts.experiment(group)) for group in groups],
        versions=facts.versions(runs),
        secret=any(record.get("noise") == SECRET for run in runs for record in run.rounds),
        command=command,
        version=__version__,
    )
    return UNFIT.sub("?", page)


def _curves(runs: Sequence[Run], metric: str) -> dict[str, Markup]:
    spoken = SPOKEN["curves"].format(metric.upper())
    wide = HALF if metric in ("wlp", "fm") else WIDE
    return both_widths(lambda width: learning_curves(runs, metric, width=width), f"curves-{metric}", spoken, wide)


def _noted(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.notes))


def _notes(runs: Sequence[Run], name: str, place: int) -> dict[str, Markup]:
    spoken = SPOKEN["notes"].format(name)
    return both_widths(lambda width: note_curves(runs, name, width=width), f"notes-{place}", spoken, HALF)


def _gains(found: Sequence[Gains]) -> dict[str, Any]:
    """The section on gains; empty if there is no reference."""
    if not found:
        return {}
    both = leading(found)
    return {
        "picture": both_widths(lambda width: gain_picture(both, width=width), "gains", SPOKEN["gains"]),
        "leader": both[0],
        "other": both[1] if len(both) > 1 else None,
        "who": who_gains(both[0]),
        "summary": summary(found),
        "clients": each_client(found),
    }


def both_widths(draw: Callable[[float], Figure], ids: str, spoken: str, wide: float = WIDE) -> dict[str, Markup]:
    """The same figure drawn for a wide page and for a phone; the style sheet shows one of them."""
    sizes = {"wide": wide, "narrow": NARROW}
    return {size: _svg(draw(width), f"{ids}-{size}", spoken) for size, width in sizes.items()}


def _svg(figure: Figure, ids: str, spoken: str) -> Markup:
    return Markup(to_svg(figure, label=spoken, ids=ids))  # safe: written from a parsed tree, which escapes text
