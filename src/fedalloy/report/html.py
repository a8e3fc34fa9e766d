"""One self-contained HTML page about finished runs; it asks nothing of the network and needs no script."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from fedalloy import __version__
from fedalloy.errors import StorageError, UsageError
from fedalloy.report.canvas import HALF, NARROW, WIDE
from fedalloy.report.format import human_bytes, human_seconds, listed
from fedalloy.report.partition_plot import Counts, bubble_plot
from fedalloy.report.plots import client_picture, cost_picture, learning_curves
from fedalloy.report.svg import to_svg
from fedalloy.report.table import cells
from fedalloy.report.verdict import verdict
from fedalloy.results import Run, Selection, rows

TIMES_OF_A_ROUND = ("client", "server", "evaluation", "checkpoint", "total")


def write_report(
    runs: Sequence[Run],
    path: str | Path,
    *,
    title: str = "Comparison of federated methods",
    selection: Selection = "last",
    label_names: Sequence[str] | None = None,
    partition: Sequence[Figure] | None = None,
    command: str = "",
) -> Path:
    """Write the report on these runs and return its path; the file is either whole or not there.

    `partition` gives pictures of how the data was split; by default it is drawn from the recorded class counts, whose
    classes `label_names` names. `command` is what somebody would type to repeat the runs.
    """
    path = Path(path)
    page = render(runs, title=title, selection=selection, label_names=label_names, partition=partition, command=command)
    # A reader, or a crash, must never meet half a page: it is written beside its place and then moved there.
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(page, encoding="utf-8", newline="\n")
        os.replace(draft, path)
    except OSError as error:
        raise StorageError(f"the report {path} cannot be written ({error.strerror}); name another file") from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def render(
    runs: Sequence[Run],
    *,
    title: str,
    selection: Selection = "last",
    label_names: Sequence[str] | None = None,
    partition: Sequence[Figure] | None = None,
    command: str = "",
) -> str:
    """The whole page as text; equal runs give equal text."""
    runs = [run for run in runs if run.views]
    if not runs:
        raise UsageError("there is nothing to report; give at least one run with an evaluated round")
    names = {run.label: run.name for run in runs}
    table = [row for run in runs for row in rows(run, selection)]
    headings, body = cells(table, names)
    counts = _class_counts(runs[0])
    if partition is None:
        partition = [] if counts is None else [bubble_plot(counts, label_names)]
    split = [
        _svg(figure, f"split{i}", "How many samples of each class each client holds.")
        for i, figure in enumerate(partition)
    ]
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    page = Environment(
        loader=PackageLoader("fedalloy.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("template.html.j2")
    return page.render(
        title=title,
        verdict=verdict(table, names=names),
        facts=_facts(runs),
        warnings=[text for run in runs if (text := _unfinished(run))],
        selection=selection,
        seeds=sorted({run.seed for run in runs}),
        headings=headings,
        body=body,
        curves={
            m: _pictures(runs, learning_curves, m, wide=WIDE if m == "amp" else HALF) for m in ("amp", "wlp", "fm")
        },
        clients=_pictures(runs, client_picture),
        split=split,
        skew=None if counts is None else skew_text(counts),
        split_seed=runs[0].seed,
        cost=_pictures(runs, cost_picture),
        traffic=[line for label, group in by_label.items() for line in _traffic(label, group)],
        times=[_times(label, group) for label, group in by_label.items()],
        settings={label: _settings(group) for label, group in by_label.items()},
        versions=dict(sorted({pair for run in runs for pair in run.meta.get("versions", {}).items()})),
        command=command,
        version=__version__,
    )


def skew_text(counts: Counts) -> str:
    """Say in words how unequal the clients are: in size, in classes, in the share of their commonest class.

    >>> print(skew_text(np.array([[30, 0, 0], [5, 5, 0], [5, 10, 5]])).replace(". ", ".\\n"))
    3 clients hold 10 to 30 training samples each (median 20).
    The median client has 2 of 3 classes, and 50 % of its samples are of one class.
    """
    sizes = counts.sum(axis=1)
    held = counts[sizes > 0]
    share = np.median(held.max(axis=1) / held.sum(axis=1)) * 100 if len(held) else 0.0
    return (
        f"{len(counts)} clients hold {sizes.min():,} to {sizes.max():,} training samples each "
        f"(median {np.median(sizes):,.0f}). The median client has {np.median((counts > 0).sum(axis=1)):.0f} of "
        f"{counts.shape[1]} classes, and {share:.0f} % of its samples are of one class."
    )


def _pictures(runs: Sequence[Run], draw: Callable[..., Figure], *metric: str, wide: float = WIDE) -> dict[str, Markup]:
    """The same picture for a wide page and for a phone."""
    name = "-".join([draw.__name__.replace("_", "-"), *metric])
    words = {
        "learning_curves": f"{''.join(metric).upper()} of each method over the rounds.",
        "client_picture": "Accuracy of each client under each method, in the last round.",
        "cost_picture": "AMP of each method against the bytes it has sent.",
    }[draw.__name__]
    said = f"{words} The numbers are in the tables of this page."
    sizes = {"wide": wide, "narrow": NARROW}
    return {size: _svg(draw(runs, *metric, width=width), f"{name}-{size}", said) for size, width in sizes.items()}


def _svg(figure: Figure, ids: str, label: str) -> Markup:
    return Markup(to_svg(figure, label=label, ids=ids))  # safe: serialised from a parsed tree, which escapes text


def _class_counts(run: Run) -> Counts | None:
    counts = run.meta.get("clients", {}).get("class_counts")
    return np.asarray(counts, dtype=np.int64) if counts else None


def _facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The few things to know before reading any number."""

    def named(part: str) -> str:
        found = [run.meta.get("experiment", {}).get(part) for run in runs]
        return listed(list(dict.fromkeys(str(f.get("name", "") if isinstance(f, Mapping) else f) for f in found if f)))

    sizes = {len(run.meta.get("clients", {}).get("train_sizes", [])) for run in runs} - {0}
    facts = {
        "Data": named("data"),
        "Partition": named("partition"),
        "Clients": listed([str(size) for size in sorted(sizes)]),
        "Model": listed(list(dict.fromkeys(_model(run) for run in runs))),
        "Rounds": listed([str(n) for n in sorted({run.rounds[-1]["round"] for run in runs})]),
        "Seeds": listed([str(seed) for seed in sorted({run.seed for run in runs})]),
    }
    return [(term, text) for term, text in facts.items() if text]


def _model(run: Run) -> str:
    model = run.meta.get("model", {})
    size = f" ({model['parameters']:,} parameters)" if model.get("parameters") else ""
    return f"{model.get('name', '')}{size}"


def _unfinished(run: Run) -> str:
    status = run.meta.get("status", "finished")
    planned = run.meta.get("experiment", {}).get("rounds")
    if status == "finished":
        return ""
    done = f"{run.rounds[-1]['round']}{f' of {planned}' if planned else ''} rounds"
    return f"{run.label}, seed {run.seed}, is not finished ({status}): it stands here with {done}."


def _traffic(label: str, runs: Sequence[Run]) -> list[dict[str, str]]:
    """What travelled, by kind: the mean over seeds of all rounds' bytes."""
    sent: dict[str, Counter[str]] = {"down": Counter(), "up": Counter()}
    for run in runs:
        for record in run.rounds:
            for way, kinds in record.get("bytes", {}).items():
                sent[way].update(kinds)
    mean = {way: {kind: n / len(runs) for kind, n in kinds.items()} for way, kinds in sent.items()}
    kinds = sorted({*mean["down"], *mean["up"]}, key=lambda k: -(mean["down"].get(k, 0) + mean["up"].get(k, 0)))
    lines = [(kind, mean["down"].get(kind, 0), mean["up"].get(kind, 0)) for kind in kinds] or [("nothing", 0, 0)]
    return [
        {"label": label if i == 0 else "", "kind": kind}
        | {"down": human_bytes(down), "up": human_bytes(up), "total": human_bytes(down + up)}
        for i, (kind, down, up) in enumerate(lines)
    ]


def _times(label: str, runs: Sequence[Run]) -> list[str]:
    totals = [[run.total("seconds", part) for run in runs] for part in TIMES_OF_A_ROUND]
    means = [None if None in seeds else sum(s for s in seeds if s is not None) / len(seeds) for seeds in totals]
    return [label, *(human_seconds(mean) for mean in means)]


def _settings(runs: Sequence[Run]) -> str:
    """The experiment in full; seeds differ in nothing else."""
    experiment: dict[str, Any] = dict(runs[0].meta.get("experiment", {}))
    experiment["seed"] = [run.seed for run in runs] if len(runs) > 1 else runs[0].seed
    return json.dumps(experiment, indent=2, ensure_ascii=False)
