"""Finished runs as data: loaded from their folders, selected, as a data frame, as a table and as plots."""

from __future__ import annotations

import glob
import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

from matplotlib.figure import Figure

from fedalloy.base.plain import as_text
from fedalloy.base.registry import suggest
from fedalloy.base.text import client_label
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.metrics import METRICS
from fedalloy.report.canvas import WIDE
from fedalloy.report.compared import compared
from fedalloy.report.frame import Frame
from fedalloy.report.improvement_plot import improvement_picture
from fedalloy.report.leads import RECORD
from fedalloy.report.leads import records as lead_records
from fedalloy.report.plots import client_picture, cost_picture, learning_curves
from fedalloy.report.svg import save as save_picture
from fedalloy.report.svg import to_svg
from fedalloy.report.table import records as table_records
from fedalloy.report.tables import Table
from fedalloy.storage.differences import OF_ONE_LINE, differing, flat
from fedalloy.storage.results import Run, Selection, check_word, read
from fedalloy.storage.rows import rows
from fedalloy.storage.store import METHOD_PARTS

Per = Literal["run", "round", "client"]
Kind = Literal["curves", "clients", "cost", "improvement"]
Form = Literal["latex", "csv", "md", "json"]
FORMS: tuple[Form, ...] = ("latex", "csv", "md", "json")
KINDS: tuple[Kind, ...] = ("curves", "clients", "cost", "improvement")
SCORES = tuple(name for name, metric in METRICS.items() if metric.source == "view")


class Results(Sequence[Run]):
    """Finished runs, in order; a slice or a selection of them is again `Results`.

    >>> made = Run({"name": "fedavg", "label": "FedAvg", "seed": 3}, ({"round": 1, "views": {"aca": {"amp": 0.5}}},))
    >>> results = Results([made])
    >>> len(results), results[0].label, len(results.select(method="kdia"))
    (1, 'FedAvg', 0)
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = tuple(runs)

    def __len__(self) -> int:
        return len(self.runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> Results: ...
    def __getitem__(self, place: int | slice) -> Run | Results:
        return Results(self.runs[place]) if isinstance(place, slice) else self.runs[place]

    def __repr__(self) -> str:
        return f"<Results: {self._summary()}>"

    def select(self, *, method: object = None, seed: object = None, **settings: object) -> Results:
        """The runs of a method (its name or label), of a seed and with these settings; a list means any of its values.

        Settings are keys of the experiment: `select(rounds=30)`, `select(**{"training.lr": [0.1, 0.01]})`.
        """
        chosen = list(self.runs)
        if method is not None:
            chosen = [run for run in chosen if _among(run.name, method) or _among(run.label, method)]
        if seed is not None:
            chosen = [run for run in chosen if _among(run.seed, seed)]
        each = [(run, flat(run.meta.get("experiment", {}))) for run in chosen]
        known = {key for run in self.runs for key in flat(run.meta.get("experiment", {}))}
        for key in settings:
            if self.runs and key not in known:
                raise UsageError(f"no run has the setting '{key}'; {suggest(key, sorted(known))}")
        return Results(run for run, has in each if all(_among(has.get(key), value) for key, value in settings.items()))

    def to_frame(self, per: Per = "run", selection: Selection = "last") -> Any:
        """A pandas DataFrame, or a `Frame`, which needs no pandas: one row for each run and view.

        With `per="round"` there is one for each evaluated round, with `per="client"` one for each client in the
        selected round. Settings in which the runs differ are columns, under their keys; metrics that no run has are
        left out. Numbers are not rounded; accuracies are shares of 1.
        """
        check_word(selection)
        make = {"run": _per_run, "round": _per_round, "client": _per_client}.get(per)
        if make is None:
            raise UsageError(f"per={per!r} is not known; {suggest(str(per), ['run', 'round', 'client'])}")
        settings = _settings(self.runs)
        found = [
            {**_known(run), "view": view, **settings[i], **line}
            for i, run in enumerate(self.runs)
            for view, line in make(run, selection)
        ]
        columns = dict.fromkeys(name for line in found for name in line)
        empty = {name for name in METRICS if all(line.get(name) is None for line in found)}
        return _frame([name for name in columns if name not in empty or name == "amp"], found)

    def table(self, selection: Selection = "last") -> Table:
        """The table that `fedalloy compare` prints, with all its columns; it has `latex()`, `markdown()`, `csv()`."""
        return compared(self._any(), selection).table()

    def exported(self, form: Form = "latex", selection: Selection = "last") -> str:
        """The table as the text of a file: "latex" (needs booktabs), "md", "csv" or "json".

        "csv" has a row for each method and view with unrounded means and deviations over seeds; "json" has the same
        under `records`, beside the table's texts.
        """
        if form not in FORMS:
            raise UsageError(f"there is no format {form!r}; {suggest(str(form), list(FORMS))}")
        found = compared(self._any(), selection)
        records = table_records(found.rows, found.names, found.doubts)
        if form == "csv":
            columns = [name for name in records[0] if any(record[name] is not None for record in records)]
            return Frame(tuple(columns), [{**record, "best": " ".join(record["best"])} for record in records]).csv()
        table = found.table()
        if form == "json":
            return as_text({**table.parts(), "records": records}) + "\n"
        return table.latex() if form == "latex" else table.markdown()

    def differences(self, metric: str = "", selection: Selection = "last") -> Any:
        """A data frame of the differences between each two methods over the seeds, with intervals and p-values."""
        if metric and (metric not in METRICS or not METRICS[metric].better):
            better = [name for name, one in METRICS.items() if one.better]
            raise UsageError(f"methods cannot be compared by {metric!r}; {suggest(metric, better)}")
        return _frame(RECORD, lead_records(compared(self._any(), selection).rivals(metric)))

    def plot(
        self,
        kind: Kind = "curves",
        metric: str = "amp",
        *,
        selection: Selection = "last",
        width: float = WIDE,
        save: str | Path | None = None,
    ) -> Figure:
        """A matplotlib figure, which a notebook shows; `save` writes it as .png, .pdf or .svg.

        "curves" shows the metric over the rounds, "clients" each client's accuracy, "cost" AMP against bytes, and
        "improvement" how likely it is that a run of one method is better than a run of another.
        """
        found = compared(self._any(), selection)
        if kind == "curves":
            figure = learning_curves(found.runs, metric, width=width)
        elif kind == "clients":
            figure = client_picture(found.runs, selection, width=width)
        elif kind == "cost":
            figure = cost_picture(found.runs, width=width)
        elif kind == "improvement":
            figure = improvement_picture(found.rivals(metric), width=width)
        else:
            raise UsageError(f"there is no plot {kind!r}; {suggest(str(kind), list(KINDS))}")
        if save is not None:
            save_picture(figure, save)
        # A notebook shows figures of pyplot only, whose global state is not used here.
        figure.__dict__["_repr_html_"] = partial(to_svg, figure)
        return figure

    def _any(self) -> tuple[Run, ...]:
        if not any(run.views for run in self.runs):
            raise DataError("there are no runs with an evaluated round here; load or select other ones")
        return self.runs

    def _summary(self) -> str:
        labels = dict.fromkeys(run.label for run in self.runs)
        names = f" ({', '.join(labels)})" if 0 < len(labels) <= 6 else ""
        seeds = len({run.seed for run in self.runs})
        methods = f"{_counted(len(labels), 'method')}{names}"
        return f"{_counted(len(self), 'run')} of {methods} with {_counted(seeds, 'seed')}"

    def _repr_html_(self) -> str:
        head = f"<p>{self._summary()}</p>"
        return head + self.table().html() if any(run.views for run in self.runs) else head


def load(paths: str | Path | Iterable[str | Path]) -> Results:
    """Load runs: from a run's folder, a folder that contains runs, a pattern such as "runs/*", or several of these.

    >>> import fedalloy, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exp = {"data": "tiny", "model": "mlp", "rounds": 2, "partition": {"name": "iid", "clients": 3}}
    ...     _ = fedalloy.compare(exp, ["fedavg", "local"], seeds=[0, 1], folder=folder)
    ...     results = fedalloy.load(f"{folder}/fed*")
    >>> results
    <Results: 2 runs of 1 method (FedAvg) with 2 seeds>
    >>> [(run.name, run.seed, len(run.rounds)) for run in results.select(seed=1)]
    [('fedavg', 1, 2)]
    >>> sorted(results.to_frame(per="round")["round"])
    [1, 1, 1, 1, 2, 2, 2, 2]
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    folders = [folder for path in given for folder in _folders(Path(path))]
    return Results(read(folder) for folder in dict.fromkeys(folders))


def _folders(path: Path) -> list[Path]:
    """The folders of the runs that a path stands for."""
    if not path.exists() and glob.has_magic(f"{path}"):
        matched = [Path(name) for name in sorted(glob.glob(f"{path}", recursive=True))]
        inside = [folder for one in matched if one.is_dir() for folder in _inside(one)]
        if not inside:
            raise DataError(f"no folder with a run matches '{path}'; name a run, or a folder that contains runs")
        return inside
    return _inside(path) or [path]


def _inside(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("**/run.json"))


def _known(run: Run) -> dict[str, Any]:
    return {"method": run.name, "label": run.label, "seed": run.seed}


def _settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each run, the keys in which the runs differ; options of methods only where runs of one method differ."""
    each = [flat(run.meta.get("experiment", {})) for run in runs]
    found = differing([run.meta.get("experiment", {}) for run in runs], OF_ONE_LINE) if runs else {}
    keys = [key for key in found if key != "rounds" and key.partition(".")[0] not in METHOD_PARTS]
    for name in dict.fromkeys(run.name for run in runs):
        keys += differing([run.meta.get("experiment", {}) for run in runs if run.name == name], OF_ONE_LINE)
    return [{key: has.get(key) for key in dict.fromkeys(keys) if key != "rounds"} for has in each]


def _per_run(run: Run, selection: Selection) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in rows(run, selection):
        folder = None if run.folder is None else f"{run.folder}"
        yield row.view, {"selection": selection, **{name: row.values.get(name) for name in METRICS}, "folder": folder}


def _per_round(run: Run, _: Selection) -> Iterator[tuple[str, dict[str, Any]]]:
    for record in run.rounds:
        alone = Run(run.meta, (record,))
        costs = {"bytes": alone.total("bytes"), "seconds": alone.total("seconds", "total")}
        for view in (name for name in run.views if name in record.get("views", {})):
            scores = record["views"][view]
            yield view, {"round": record["round"], **{name: scores.get(name) for name in SCORES}, **costs}


def _per_client(run: Run, selection: Selection) -> Iterator[tuple[str, dict[str, Any]]]:
    sizes = run.meta.get("clients", {}).get("train_sizes", ())
    for row in rows(run, selection):
        if row.amp is None:  # no round is selected, or nobody was tested
            continue
        number = row.values["round"]
        recorded = run.series(row.view, "amp")[0][-1] if number is None else number
        metrics = list(run.view(row.view, int(recorded))["clients"])
        values = {metric: run.clients(row.view, metric, selection).tolist() for metric in metrics}
        for k in range(len(values["accuracy"])):
            yield (
                row.view,
                {
                    "selection": selection,
                    "client": k,
                    "name": client_label(run.client_names, k),
                    "network": run.networks.get(k),
                    "train_size": sizes[k] if k < len(sizes) else None,
                    **{metric: None if math.isnan(each[k]) else each[k] for metric, each in values.items()},
                },
            )


def _frame(columns: Sequence[str], found: Iterable[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame if pandas is installed."""
    body = [{name: line.get(name) for name in columns} for line in found]
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        return Frame(tuple(columns), body)
    return pandas.DataFrame(body, columns=list(columns))


def _among(value: object, wanted: object) -> bool:
    return value in wanted if isinstance(wanted, list | tuple | set | range) else value == wanted


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
