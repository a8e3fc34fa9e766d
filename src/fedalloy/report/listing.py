"""Everything that is registered, as lists for the terminal and as data."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from fedalloy.base.checked import type_hints
from fedalloy.base.options import Option, kind, options_of, toml
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
GIVEN = ("classes", "channels", "size", "labels", "clients", "seed", "ids")  # what the experiment says by other keys
NARROWEST, WIDEST = 60, 100  # columns that lists are written for

# The groups of methods, by what an experiment must have for them.
GROUPS = {
    "plain": "Nothing more than clients with the same network",
    "features": "Networks with features and a head, as all built-in ones are",
    "public": "Public samples; each client may have its own network",
    "bound": "To compare with: alone, or pooled",
    "control": "Changed forms that papers compare a method with",
}
MARKS = "* also learns numbers and several labels a sample. `fedalloy list METHOD` is a method's page."


def listing(what: str, filters: Sequence[str] = (), *, privacy: bool = False, width: int = 80) -> str:
    """A list of everything registered of one kind, one line each; methods can be filtered by their card.

    With `privacy` it says of methods what leaves a client, by training and by evaluation, and what travels.

    >>> print(listing("methods", ["paper=stich"]))
    Public samples; each client may have its own network
      feddf *              Lin 2020            distil all models into the average
    * also learns numbers and several labels a sample. `fedalloy list METHOD` is a
    method's page.
    """
    if filters and what != "methods":
        raise UsageError("--where filters methods by their card; leave it out for other lists")
    if privacy and what != "methods":
        raise UsageError("--privacy is about methods; leave it out for other lists")
    room = min(max(width, NARROWEST), WIDEST)
    if what == "methods":
        found = chosen(filters)
        return _privacy(found, room) if privacy else _methods(found, room)
    lines = [(name, _idea(what, name)) for name in THINGS[what]]
    longest = max(len(name) for name, _ in lines) + 2
    told = [f"  {name:<{longest}}{_cut(idea, room - longest - 2)}" for name, idea in lines]
    return "\n".join([*told, f"`fedalloy list NAME`, for instance `fedalloy list {lines[0][0]}`, shows its options."])


def one_thing(name: str, width: int = 80) -> str:
    """All there is to say of one model, data set or partition: what it is, and its options.

    >>> print(one_thing("mlp"))
    mlp, a model: Hidden layers with ReLU and an output layer; the feature is the
    last hidden layer.
      Options: model.KEY=VALUE
        hidden = [64]
      fedalloy run model=mlp
    """
    what = next(what for what in ("models", "data", "partitions") if name in THINGS[what])
    key = {"models": "model", "data": "data", "partitions": "partition"}[what]
    about = f"{name}, a {key.replace('data', 'data set')}: {_idea(what, name)}"
    lines = textwrap.wrap(about, max(width, NARROWEST))
    if what == "data":
        source = datasets[name]
        lines += textwrap.wrap(f"Source: {source.source}", width, initial_indent="  ", subsequent_indent="    ")
        lines += textwrap.wrap(f"Its licence: {source.licence}", width, initial_indent="  ", subsequent_indent="    ")
    options = arguments(THINGS[what][name].read if what == "data" else THINGS[what][name], GIVEN)
    lines += (
        [f"  Options: {key}.KEY=VALUE", *(f"    {line}" for line in options)] if options else ["  It has no options."]
    )
    needed = "".join(f" {key}.{option.partition(' ')[0]}=..." for option in options if "must be given" in option)
    return "\n".join([*lines, f"  fedalloy run {key}={name}{needed}"])


def nameless(name: str) -> UsageError:
    """The error for a name that no list and nothing registered has."""
    every = [*KINDS, *methods, *(thing for things in THINGS.values() for thing in things)]
    hint = suggest(name, every)
    if not hint.endswith("?"):
        hint = f"`fedalloy list` shows the methods, other lists are: {', '.join(KINDS[1:])};"
    return UsageError(
        f"there is no list, method, model, data set or partition {name[:LONGEST]!r}; {hint} one of your own needs "
        "--plugin FILE.py"
    )


def entry(what: str, name: str) -> dict[str, Any]:
    """What is registered under a name, as data.

    >>> entry("models", "mlp")["options"]
    ['hidden = [64]']
    """
    if what == "methods":
        cls = methods[name]
        return {
            "name": name,
            "label": cls.label,
            "group": GROUPS[group(cls.card)],
            "card": dataclasses.asdict(cls.card),
            "evaluated": evaluated(cls),
            "aggregation": used(cls),
            "options": [_option(found) for found in options_of(cls)],
        }
    thing = THINGS[what][name]
    more = {"source": thing.source, "licence": thing.licence} if what == "data" else {}
    options = arguments(thing.read if what == "data" else thing, GIVEN)
    return {"name": name, "about": _idea(what, name), **more, "options": options}


def group(card: Card) -> str:
    """What an experiment must have for a method: the key of a group.

    >>> group(methods["fedavg"].card), group(methods["kdia"].card), group(methods["local"].card)
    ('plain', 'features', 'bound')
    """
    if card.role != "method":
        return card.role
    return "public" if card.public else "features" if card.features else "plain"


def needs(card: Card) -> list[str]:
    """What a method needs of an experiment, and what it does not.

    >>> needs(methods["feddf"].card)
    ['a public set', 'clients may have different networks']
    """
    return [
        *(["a public set" + (" that clients hold too" if card.clients_hold_public else "")] if card.public else []),
        *(["networks with features and a head"] if card.features else []),
        "clients may have different networks" if card.any_network else "all clients have the same network",
    ]


def used(cls: type[Method]) -> str:
    """The keys of [aggregation] that a method's server uses.

    >>> used(methods["dafkd"])
    'weights, combine = "krum", cap, max_distance'
    """
    order = {"weights": 0, "combine": 1, "clip": 2}
    keys = sorted((key.partition("=") for key in cls.takes), key=lambda parts: (order[parts[0]], parts[2]))
    named = [f'{key} = "{value}"' if value else key for key, _, value in keys]
    return ", ".join([*named, "cap", "max_distance"])


def short_paper(paper: str) -> str:
    """The first author of a paper, and its year.

    >>> short_paper("Lin, Kong, Stich and Jaggi, NeurIPS 2020"), short_paper("no sharing")
    ('Lin 2020', '')
    """
    author, year = re.match(r"[A-Z][\w-]+", paper), re.search(r"\b(19|20)\d\d\b", paper)
    return " ".join(found[0] for found in (author, year) if found) if author else ""


def _methods(found: Mapping[str, type[Method]], width: int) -> str:
    lines = []
    for key, heading in GROUPS.items():
        members = {name: cls for name, cls in found.items() if group(cls.card) == key}
        if members:
            lines.append(heading)
        for name, cls in members.items():
            mark = f"{name}{' *' if len(cls.card.tasks) > 1 else ''}"
            lines.append(_cut(f"  {mark:<21}{short_paper(cls.card.paper):<20}{cls.card.brief}", width))
    return "\n".join([*lines, *textwrap.wrap(MARKS, width)])


def _privacy(found: Mapping[str, type[Method]], width: int) -> str:
    """What leaves a client, said once of all methods of which the same is to be said."""
    told: dict[tuple[str, ...], list[str]] = {}
    for name, cls in found.items():
        card = cls.card
        told.setdefault((card.leaves_client, card.up, card.down, evaluated(cls)), []).append(name)
    lines = []
    for (leaves, up, down, evaluates), names in sorted(told.items(), key=lambda each: -len(each[1])):
        lines += textwrap.wrap(", ".join(names), width, break_on_hyphens=False)
        said = f"leaves: {leaves}. Up: {up}. Down: {down}. It evaluates {evaluates}."
        lines += textwrap.wrap(said, width, initial_indent="  ", subsequent_indent="  ")
    more = always()
    if any("weights" in cls.takes for cls in found.values()):
        more.append(
            'With aggregation.weights = "disco", every method that averages models also sends, once, how far the '
            "labels of a client are from uniform."
        )
    return "\n".join([*lines, *(line for sentence in more for line in textwrap.wrap(sentence, width))])


def chosen(filters: Sequence[str] = ()) -> dict[str, type[Method]]:
    """The methods whose cards pass all filters."""
    wanted = [_filter(text) for text in filters]
    return {
        name: cls for name, cls in methods.items() if all(_fits(getattr(cls.card, key), value) for key, value in wanted)
    }


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


THINGS: Mapping[str, Mapping[str, Any]] = {"models": models, "data": datasets, "partitions": partitions}


def _idea(what: str, name: str) -> str:
    """What a model, a data set or a partition is."""
    return str(datasets[name].about) if what == "data" else _first_line(THINGS[what][name])


def arguments(maker: Callable[..., Any], skip: Iterable[str] = ()) -> list[str]:
    """The options of a function or class, as they are written in a file.

    >>> def ring(*, classes: int, width: int | None = None, kind: Literal["flat", "round"] = "flat", thin=True): ...
    >>> arguments(ring, skip=["classes"])
    ['width (unset)', 'kind = "flat" (or round)', 'thin = true']
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
            shown.append(f"{name} = {toml(value)}{others and f' (or {others})'}")
    return shown


def _option(found: Option) -> dict[str, Any]:
    values = {"default": found.default, **found.variants}
    written = {key: None if value is dataclasses.MISSING else value for key, value in values.items()}
    variants = {key: value for key, value in written.items() if key != "default"}
    return {
        "name": found.name,
        "default": written["default"],
        "values": kind(found.hint),
        "meaning": found.meaning,
        "variants": variants,
    }


def _words(hint: Any) -> list[str]:
    """The strings that a type allows."""
    return [str(word) for part in (hint, *get_args(hint)) if get_origin(part) is Literal for word in get_args(part)]


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]


def _cut(text: str, width: int) -> str:
    """A text on one line of this width: as far as a semicolon in it, else as far as a word ends.

    >>> _cut("one two; three", 20), _cut("one two; three", 10), _cut("one two three", 10)
    ('one two; three', 'one two', 'one two …')
    """
    if len(text) <= width:
        return text
    first = text[: width + 1].rpartition(";")[0]
    return first or f"{text[: width - 1].rpartition(' ')[0]} …"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
