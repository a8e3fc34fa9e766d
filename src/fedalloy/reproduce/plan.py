"""From an item at a scale to its runs: one job for each column, method and seed, with a key that tells equal jobs."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedalloy.base.registry import suggest
from fedalloy.config.experiment import experiment
from fedalloy.config.grid import Cell, cells
from fedalloy.config.methods import for_method, make_method, naming
from fedalloy.config.overrides import SHIPPED, put, read_toml
from fedalloy.config.sections import Choice, Experiment
from fedalloy.errors import DataError, UsageError
from fedalloy.reproduce.catalogue import Item
from fedalloy.reproduce.smoke import small
from fedalloy.run.comparison import label_of, slug
from fedalloy.storage.store import FREE

GOLDEN = Path(__file__).with_name("golden.json")  # digests of every method's numbers; see tests/test_golden.py


@dataclass(frozen=True)
class Job:
    """One run that an item needs."""

    column: str
    method: str  # its key under [methods]
    seed: int
    experiment: Experiment
    choice: Choice
    identity: Mapping[str, Any]  # of its kind of run, see `identity`

    @property
    def label(self) -> str:
        """The method as tables name it."""
        return label_of(self.method, self.choice)

    @property
    def key(self) -> str:
        """A digest of all that changes a number: the experiment with its seed, and its method's golden numbers."""
        return key_of(self.identity, self.seed)

    @property
    def folder(self) -> str:
        """The name of its folder among the results."""
        return f"{slug(self.method)}-seed{self.seed}-{self.key}"


def identity(exp: Experiment, choice: Choice) -> dict[str, Any]:
    """What tells a kind of run from others, but for its seed: the experiment and its method's golden numbers.

    It does not change with engine, workers, or code that leaves all numbers alone.

    >>> exp = experiment({"rounds": 3})
    >>> one, other, more = exp, replace(exp, workers=2), experiment({"rounds": 4})
    >>> identity(one, exp.method) == identity(other, exp.method) != identity(more, exp.method)
    True
    """
    method = make_method(exp, choice)
    values = settings(naming(for_method(exp, choice), method))
    return {"experiment": values, "golden": golden(method.name, str(choice.options.get("variant", "")))}


def key_of(identity: Mapping[str, Any], seed: int) -> str:
    """The key of a run.

    >>> key_of({"experiment": {}, "golden": {}}, 0)
    'ab08fb6fcce1'
    """
    text = json.dumps([{**identity["experiment"], "seed": seed}, identity["golden"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def golden(name: str, variant: str = "") -> Mapping[str, str]:
    """The digests of a method's numbers in a small run; empty for a method that is not the library's."""
    cases = _golden()
    found = cases.get(f"{name} {variant}".strip(), cases.get(name, {}))
    return {part: found[part] for part in ("state", "memories") if part in found}


@functools.cache
def _golden() -> Mapping[str, Mapping[str, str]]:
    cases: Mapping[str, Mapping[str, str]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    return cases


def columns(item: Item, scale: str) -> list[Cell]:
    """The cells of an item at a scale, each with the experiment's values there."""
    chosen = item.scale(scale)
    values = read_toml(SHIPPED / f"{chosen.experiment}.toml")
    own = values.pop("axes", [])
    for key, value in (chosen.set or {}).items():
        put(values, key, value)
    axes = own if chosen.axes is None else list(chosen.axes)
    found = cells({**values, "axes": axes})[1] if axes else [Cell((), values)]
    if chosen.columns:
        _check(chosen.columns, found, item, scale)
        found = [cell for cell in found if cell.name in chosen.columns]
    _check(chosen.stands_for or (), found, item, scale)
    return [replace(cell, values=small(cell.values)) for cell in found] if scale == "smoke" else found


def _check(wanted: Iterable[str], found: Sequence[Cell], item: Item, scale: str) -> None:
    names = [cell.name for cell in found]
    for name in wanted:
        if name not in names:
            raise UsageError(f"{item.paper} {item.id} has no column '{name}' at {scale}; {suggest(name, names)}")


def jobs(item: Item, scale: str, seeds: Sequence[int] | None = None) -> list[Job]:
    """The runs that an item needs at a scale, in the order of its columns."""
    return list(each_job(item, scale, seeds))


def each_job(item: Item, scale: str, seeds: Sequence[int] | None = None) -> Iterator[Job]:
    """The same, one after the other, for those who may not need all: a plan of a large table takes a while."""
    chosen = item.scale(scale)
    if not chosen.experiment or not item.rows:
        return
    only = [item.row(label) for label in chosen.rows] or item.rows
    rows = [row for row in item.rows if row in only]
    for cell in columns(item, scale):
        exp = experiment({key: value for key, value in cell.values.items() if key != "published"})
        for row in rows:
            if row.method not in exp.methods:  # a method of that name with its defaults may be another one
                told = f"names the method '{row.method}', which {chosen.experiment} lacks"
                raise DataError(f"{item.paper} {item.id} {told}; {suggest(row.method, list(exp.methods))}")
        choices = {row.method: exp.methods[row.method] for row in rows}
        kinds = {key: identity(exp, choice) for key, choice in choices.items()}
        for seed in seeds or chosen.seeds:
            for key, choice in choices.items():
                yield Job(cell.name, key, seed, exp, choice, kinds[key])


def paper_column(item: Item, scale: str, column: str) -> str:
    """The paper's column that one of ours stands for."""
    return (item.scale(scale).stands_for or {}).get(column, column)


def settings(exp: Experiment) -> dict[str, Any]:
    """An experiment as a table of what matters, without machine and published figures."""
    return {key: value for key, value in exp.to_dict().items() if key not in FREE - {"rounds"}}
