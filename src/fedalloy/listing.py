"""What there is to choose from, as tables for the terminal."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich import box
from rich.table import Table

import fedalloy.methods  # noqa: F401  # registers the built-in methods
from fedalloy.core import Card, methods
from fedalloy.data.catalogue import datasets
from fedalloy.data.partition import partitions
from fedalloy.errors import UsageError
from fedalloy.models import models
from fedalloy.registry import suggest


def listing(what: str, filters: Sequence[str] = ()) -> Table:
    """A table of everything registered of one kind; methods can be filtered by their card.

    >>> listing("methods", ["any_network=yes"]).row_count >= 1
    True
    """
    if filters and what != "methods":
        raise UsageError("--where filters methods by their card; leave it out for other lists")
    makers: dict[str, Callable[[], Table]] = {
        "methods": lambda: _methods(filters),
        "models": _models,
        "data": _data,
        "partitions": _partitions,
    }
    return makers[what]()


def _methods(filters: Sequence[str]) -> Table:
    table = _table("Name", "Options", "Up", "Down", "Distils", "Public set", "Any network", "Paper")
    wanted = [_filter(text) for text in filters]
    for name, cls in methods.items():
        card = cls.card
        if not all(_fits(getattr(card, key), value) for key, value in wanted):
            continue
        options = ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(cls))  # type: ignore[arg-type]  # @method makes it a dataclass
        table.add_row(
            name, options, card.up, card.down, card.distils, _yes(card.public), _yes(card.any_network), card.paper
        )
    return table


def _filter(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    known = {f.name: f.type for f in dataclasses.fields(Card)}
    if key not in known:
        raise UsageError(f"--where {text}: a card has no key '{key}'; {suggest(key, known)}")
    value = value.lower()
    if not sign or not value or (known[key] == "bool" and value not in ("yes", "no")):
        raise UsageError(f"--where {text}: write {key}={'yes or no' if known[key] == 'bool' else 'a word of it'}")
    return key, value


def _fits(have: Any, want: str) -> bool:
    return _yes(have) == want if isinstance(have, bool) else want in str(have).lower()


def _models() -> Table:
    table = _table("Name", "Options", "What it is")
    for name, factory in models.items():
        table.add_row(name, _options(factory, skip=("classes", "channels", "size")), _first_line(factory))
    return table


def _data() -> Table:
    table = _table("Name", "Options", "What it is", "Source", "Licence")
    for name, source in datasets.items():
        table.add_row(name, _options(source.read), source.about, source.source, source.licence)
    return table


def _partitions() -> Table:
    table = _table("Name", "Options", "What it does")
    for name, function in partitions.items():
        table.add_row(name, _options(function, skip=("labels", "clients", "seed")), _first_line(function))
    return table


def _options(function: Callable[..., Any], skip: Iterable[str] = ()) -> str:
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in skip:
            required = parameter.default is inspect.Parameter.empty
            shown.append(name if required else f"{name}={parameter.default}")
    return ", ".join(shown)


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == "Name")
    return table
