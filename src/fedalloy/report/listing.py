"""Everything that is registered, as tables for the terminal."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args, get_origin

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedalloy.base.checked import type_hints
from fedalloy.base.options import kind, options_of, toml
from fedalloy.base.registry import LONGEST, suggest
from fedalloy.data.catalogue import datasets
from fedalloy.data.partition import partitions
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Method
from fedalloy.federation.disclosure import always, evaluated
from fedalloy.methods import methods
from fedalloy.nets.models import models

KINDS = ("methods", "models", "data", "partitions")
NOTHING = ("", "no", "nothing")  # the entries of a card that mean none


def listing(what: str, filters: Sequence[str] = (), *, privacy: bool = False) -> Table:
    """A table of everything registered of one kind; methods can be filtered by their card.

    With `privacy` it says of methods only what leaves a client, by training and by evaluation, and what travels.

    >>> listing("methods", ["any_network=yes"]).row_count >= 1
    True
    """
    if filters and what != "methods":
        raise UsageError("--where filters methods by their card; leave it out for other lists")
    if privacy and what != "methods":
        raise UsageError("--privacy is about methods; leave it out for other lists")
    makers: dict[str, Callable[[], Table]] = {
        "methods": lambda: _privacy(filters) if privacy else _methods(filters),
        "models": _models,
        "data": _data,
        "partitions": _partitions,
    }
    return makers[what]()


def one_method(name: str) -> Group:
    """All there is to say of one method: its card, and its options with their meanings.

    >>> len(one_method("fedprox").renderables)
    2
    """
    if name not in methods:
        raise UsageError(f"there is no list or method {name[:LONGEST]!r}; {suggest(name, [*KINDS, *methods])}")
    cls = methods[name]
    card = cls.card
    facts = [
        f"{cls.label}: {card.paper}",
        _first_line(cls),
        f"up: {card.up}; down: {card.down}",
        f"leaves the client: {card.leaves_client}",
        _needs(card),
        f"learns: {', '.join(card.tasks)}",
        *([f"distils: {card.distils}"] if card.distils != "no" else []),
        f"a client remembers: {card.remembers}",
        f"uses of [aggregation]: {used(cls)}",
    ]
    options = options_of(cls)
    if not options:
        return Group(Text("\n".join([*facts, "It has no options of its own."])))
    table = Table("Option", "Recommended", "Values", "Meaning", box=SIMPLE_HEAD)
    for found in options:
        variants = "".join(f"\n{word}: {toml(value)}" for word, value in found.variants.items())
        table.add_row(Text(found.name, style="bold"), toml(found.default) + variants, kind(found.hint), found.meaning)
    table.columns[0].no_wrap = True  # a name must not be cut
    table.columns[0].min_width = max(len(found.name) for found in options)
    return Group(Text("\n".join(facts)), table)


def used(cls: type[Method]) -> str:
    """The keys of [aggregation] that a method's server uses.

    >>> used(methods["dafkd"])
    'weights, combine = "krum", cap, max_distance'
    """
    order = {"weights": 0, "combine": 1, "clip": 2}
    keys = sorted((key.partition("=") for key in cls.takes), key=lambda parts: (order[parts[0]], parts[2]))
    named = [f'{key} = "{value}"' if value else key for key, _, value in keys]
    return ", ".join([*named, "cap", "max_distance"])


def _methods(filters: Sequence[str]) -> Table:
    table = _table()
    for name, cls in _chosen(filters):
        _add(table, name, f"{cls.label}: {cls.card.paper}", _first_line(cls), _needs(cls.card), "")
    table.caption = Text(
        "`fedalloy list METHOD` describes one method and its options. All learn classes; `--where tasks=numbers` shows "
        "those that also learn numbers (regression), `tasks=labels` several labels a sample."
    )
    table.caption_justify = "left"
    return table


def _needs(card: Card) -> str:
    return "; ".join(
        [
            "clients may have different networks" if card.any_network else "all clients have the same network",
            *(["needs a public set"] if card.public else []),
            *(["needs networks with features and a head"] if card.features else []),
            *([f"also learns {' and '.join(card.tasks[1:])}"] if len(card.tasks) > 1 else []),
        ]
    )


def _privacy(filters: Sequence[str]) -> Table:
    chosen = _chosen(filters)
    headings = ("Method", "Leaves a client in training", "Sent up", "Sent down", "Models it evaluates")
    table = Table(*headings, box=SIMPLE_HEAD, caption_justify="left")
    for name, cls in chosen:
        card = cls.card
        table.add_row(Text(name, style="bold"), card.leaves_client, card.up, card.down, evaluated(cls))
    table.columns[0].no_wrap = True
    said = always()
    if any("weights" in cls.takes for _, cls in chosen):
        said.append(
            'With aggregation.weights = "disco", every method that averages models also sends, once, how far the '
            "labels of a client are from uniform."
        )
    table.caption = Text("\n".join(said))
    return table


def _chosen(filters: Sequence[str]) -> list[tuple[str, type[Method]]]:
    """The methods whose cards pass all filters."""
    wanted = [_filter(text) for text in filters]
    return [
        (name, cls)
        for name, cls in methods.items()
        if all(_fits(getattr(cls.card, key), value) for key, value in wanted)
    ]


def _filter(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    known = {f.name: f.type for f in dataclasses.fields(Card)}
    if key not in known:
        raise UsageError(f"--where {text}: a card has no key '{key}'; {suggest(key, known)}")
    value = value.lower()
    if not sign or not value or (known[key] == "bool" and value not in ("yes", "no")):
        raise UsageError(f"--where {text}: write {key}={'yes or no' if known[key] == 'bool' else 'part of its text'}")
    return key, value


def _fits(have: Any, want: str) -> bool:
    """Whether an entry of a card matches: yes, no, or a substring of its text.

    >>> [_fits("the global model", want) for want in ("yes", "no", "global")], _fits("nothing", "no")
    ([True, False, True], True)
    """
    there = have not in NOTHING if isinstance(have, str) else bool(have)
    return _yes(there) == want if isinstance(have, bool) or want in ("yes", "no") else want in str(have).lower()


def _models() -> Table:
    table = _table()
    for name, factory in models.items():
        _add(table, name, _first_line(factory), _options(factory, skip=("classes", "channels", "size")))
    return table


def _data() -> Table:
    table = _table()
    for name, source in datasets.items():
        _add(table, name, source.about, f"{source.source}; licence: {source.licence}", _options(source.read))
    return table


def _partitions() -> Table:
    table = _table()
    for name, function in partitions.items():
        _add(table, name, _first_line(function), _options(function, skip=("labels", "clients", "seed", "ids")))
    return table


def _add(table: Table, name: str, *lines: str) -> None:
    """A name with its description, and its options last, if it has any."""
    *said, options = lines
    body = Text("\n".join(said))
    if options:
        body.append(f"\noptions: {options}", style="dim")
    table.add_row(Text(name, style="bold"), body)


def _options(maker: Callable[..., Any], skip: Iterable[str] = ()) -> str:
    """The options of a function or class, as they are written on the command line.

    >>> def ring(*, classes: int, width: int | None = None, kind: Literal["flat", "round"] = "flat", thin=True): ...
    >>> _options(ring, skip=["classes"])
    'width (unset), kind="flat" (or round), thin=true'
    """
    hints = type_hints(maker)
    shown = []
    for name, parameter in inspect.signature(maker).parameters.items():
        if name in skip:
            continue
        value = parameter.default
        others = ", ".join(word for word in _words(hints.get(name)) if word != value)
        if value is inspect.Parameter.empty:
            shown.append(f"{name} (must be given{others and f': {others}'})")
        elif value is None:
            shown.append(f"{name} (unset{others and f'; or {others}'})")
        else:
            shown.append(f"{name}={toml(value)}{others and f' (or {others})'}")
    return ", ".join(shown)


def _words(hint: Any) -> list[str]:
    """The strings that a type allows."""
    return [str(word) for part in (hint, *get_args(hint)) if get_origin(part) is Literal for word in get_args(part)]


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _table() -> Table:
    table = Table.grid(padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    return table
