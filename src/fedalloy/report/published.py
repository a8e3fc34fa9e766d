"""Our results beside a paper's, taken from the round that the paper reports, if the experiment names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedalloy.base.checked import shown
from fedalloy.base.registry import suggest
from fedalloy.base.text import MISSING, printable, view_name
from fedalloy.config.conditions import value_of
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import read_toml
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.metrics import METRICS
from fedalloy.methods import methods
from fedalloy.storage.results import SELECTIONS, Run, Selection, is_selection
from fedalloy.storage.rows import COLUMNS, caveats, combine, rows


@dataclass(frozen=True)
class Beside:
    """A paper's table with our results: its source, the round that ours are from, headings and lines as text."""

    source: str
    round: Selection
    headings: Sequence[str]
    body: Sequence[Sequence[str]]
    notes: Sequence[str]  # on rounds that ours lack

    @property
    def title(self) -> str:
        """What stands above the table."""
        return f"Compared with {self.source}; ours: {self.round}"

    def table(self) -> Table:
        """For a terminal."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
        table.title = Text(printable(self.title))
        if self.notes:
            table.caption, table.caption_justify = Text(printable("\n".join(self.notes)), style="dim"), "left"
        for i, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
        for line in self.body:
            table.add_row(*(Text(printable(text)) for text in line))
        return table


def beside(runs: Sequence[Run]) -> list[Beside]:
    """The published tables that apply to these runs, with our results; methods that were not run are omitted.

    Ours are from the round that the table names, whichever round is reported elsewhere.

    >>> beside([])
    []
    """
    tables = [_one(table, runs) for table in holding(runs)]
    return [table for table in tables if table.body]


def with_published(runs: Sequence[Run], tables: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The same runs with these published tables in place of those that they recorded."""
    return [
        replace(run, meta={**run.meta, "experiment": {**run.meta.get("experiment", {}), "published": list(tables)}})
        for run in runs
    ]


def read_published(file: str) -> list[dict[str, Any]]:
    """The published tables of an experiment file."""
    tables = read_toml(file).get("published", [])
    if not tables:
        raise UsageError(f"{shown(file)} has no [[published]] tables; name another file")
    found: list[dict[str, Any]] = experiment({"published": tables}).to_dict()["published"]
    return found


def reported(table: Mapping[str, Any]) -> Selection:
    """The round that a published table reports; "last" if it names none.

    >>> reported({"round": "best by amp"}), reported({})
    ('best by amp', 'last')
    """
    return str(table.get("round", "last"))


def holding(runs: Sequence[Run]) -> list[Mapping[str, Any]]:
    """The published tables that apply to these runs' experiment, without rows of methods that trained otherwise."""
    tables = runs[0].meta.get("experiment", {}).get("published", []) if runs else []
    found: list[Mapping[str, Any]] = [{**table, "rows": _rows(table, runs)} for table in tables if _holds(table, runs)]
    for table in found:
        if not is_selection(reported(table)):
            known = suggest(reported(table), list(SELECTIONS))
            raise DataError(f"a run's published results have the round {shown(reported(table))}; {known}")
        for metric in table["metrics"]:
            if metric not in COLUMNS:
                known = suggest(metric, list(COLUMNS))
                raise DataError(f"a run's published results have the metric {shown(metric)}; {known}")
    return found


def _holds(table: Mapping[str, Any], runs: Sequence[Run]) -> bool:
    """Whether a table applies to these runs; of [aggregation] and [cache], not all methods use every key."""
    found = ((wanted, key, _values(runs, key)) for key, wanted in table.get("where", {}).items())
    return all(
        (any if key.startswith(("aggregation.", "cache.")) else all)(_allowed(value, wanted) for value in values)
        for wanted, key, values in found
    )


def _allowed(value: Any, wanted: Any) -> bool:
    """Whether a value is the wanted one, or one of several."""
    each = [wanted, *(wanted if isinstance(wanted, list) else [])]
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in each)


def _values(runs: Sequence[Run], key: str) -> list[Any]:
    """The values of a dotted key: of the runs with a label below `methods.`, else of all.

    A key of [training] that a method has for itself is tested only below its label.
    """
    section, _, rest = key.partition(".")
    tables = [(run, run.meta.get("experiment", {})) for run in runs]
    if section == "methods":
        named = [(table, label) for run, table in tables for label in _labels(run) if rest.startswith(f"{label}.")]
        return [value_of(table, f"method.{rest.removeprefix(f'{label}.')}") for table, label in named]
    own = [table.get("method", {}).get("training", {}) if section == "training" else {} for _, table in tables]
    return [value_of(table, key) for (_, table), keys in zip(tables, own, strict=True) if rest not in keys]


def _labels(run: Run) -> list[str]:
    """What a run's method can be called under [methods]: its label, and its name unless it has a label of its own."""
    plain = run.name in methods and methods[run.name].label == run.label
    return list(dict.fromkeys([run.label, *([run.name] if plain else [])]))


def _rows(table: Mapping[str, Any], runs: Sequence[Run]) -> list[Sequence[str]]:
    """A table's rows, without those of methods whose own [training] it does not hold for."""
    otherwise = {run.meta.get("named", run.label) for run in runs if not _meets(table, run)}
    return [row for row in table["rows"] if row[0] not in otherwise]


def _meets(table: Mapping[str, Any], run: Run) -> bool:
    """Whether a method's own keys of [training] are those of the table, which was tested with the common ones."""
    values = run.meta.get("experiment", {})
    own = [f"training.{key}" for key in values.get("method", {}).get("training", {})]
    return all(_allowed(value_of(values, key), wanted) for key, wanted in table.get("where", {}).items() if key in own)


def _one(table: Mapping[str, Any], runs: Sequence[Run]) -> Beside:
    printed = {(label, view): figures for label, view, *figures in table["rows"]}
    named = {run.label: run.meta.get("named", run.label) for run in runs}  # before runs were told apart
    selection = reported(table)
    headings = ["Method", "View"]
    for metric in table["metrics"]:
        headings += [METRICS[metric].heading, "paper"]

    def lines() -> Iterator[list[str]]:
        for line in combine(row for run in runs for row in rows(run, selection)):
            figures = printed.get((named[line.label], line.view))
            if figures is not None:
                ours = [line.written(metric) for metric in table["metrics"]]
                pairs = [text for pair in zip(ours, figures, strict=True) for text in pair]
                yield [line.label, view_name(line.view) or MISSING, *pairs]

    compared = [run for run in runs if any(label == named[run.label] for label, _ in printed)]
    return Beside(table["source"], selection, headings, list(lines()), caveats(compared, selection))
