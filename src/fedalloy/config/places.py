"""Where a key belongs that was written elsewhere: in a section, or among the options of what the experiment names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from fedalloy.base.checked import shown
from fedalloy.base.options import options_of
from fedalloy.base.text import listed
from fedalloy.config.sections import CLOSED, NAMED_BY, OPEN, own_keys, usual_name
from fedalloy.data.catalogue import datasets
from fedalloy.data.partition import partitions
from fedalloy.errors import UsageError
from fedalloy.methods import methods
from fedalloy.nets.models import models

SECTIONS: Mapping[str, type] = {**CLOSED, **OPEN}


def places(key: str, values: Mapping[str, Any] | None = None) -> list[str]:
    """The dotted keys that end with this one: of sections, else of what the experiment's values name.

    >>> places("lr"), places("alpha"), places("mu"), places("mu", {"method": {"name": "fedprox"}})
    (['training.lr'], ['partition.alpha'], [], ['method.mu'])
    """
    found = [f"{section}.{key}" for section, cls in SECTIONS.items() if key in own_keys(cls) and key != "name"]
    return found or [f"{section}.{key}" for section in OPEN if key in _options(section, values or {})]


def refuse_misplaced(values: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a key that is no key of the experiment but belongs somewhere else, and name that place."""
    for key, value in values.items():
        if key not in known and key not in ("name", "options") and (hint := _hint(key, value, values, known)):
            raise UsageError(f"the experiment has no key {shown(key)}; {hint}")


def refuse_foreign(name: str, given: Mapping[str, Any], *, alone: bool) -> None:
    """Refuse an option that a method does not have but another method or a section has, and name the place.

    `alone` says that it is the experiment's only method.
    """
    own = [found.name for found in options_of(methods[name])]
    for key in given:
        if key in own or get_close_matches(key, own, n=1, cutoff=0.6):
            continue
        homes, others = _sections_with(key), _owners(key)
        others = [other for other in others if other != name]
        if homes:
            raise UsageError(f"{name} has no key {shown(key)}; write {' or '.join(homes)}")
        if others:
            choose = f" (write method={others[0]})" if alone and not own else ""
            has = f"; {name} has {', '.join(own)}" if own else ""
            raise UsageError(f"{name} has no key {shown(key)}, which is an option of {_some(others)}{choose}{has}")


def _hint(key: str, value: Any, values: Mapping[str, Any], known: Sequence[str]) -> str:
    """What to write instead of a key, or nothing if nothing is like it."""
    if key in methods:
        given = next(iter(value.items()), None) if isinstance(value, Mapping) else None
        option = given[0] if given else "KEY"
        end = f"={given[1]}" if given else "=VALUE"
        return f"write method={key} method.{option}{end}, or in a comparison methods.{key}.{option}{end}"
    if found := places(key, values):
        return f"write {' or '.join(found)}"
    if get_close_matches(key, known, n=1, cutoff=0.6):
        return ""  # the nearest key is suggested
    if others := _owners(key):
        return f"it is an option of {_some(others)}; write for example method={others[0]} method.{key}=VALUE"
    every = {name: f"{section}.{name}" for section, cls in SECTIONS.items() for name in own_keys(cls)}
    near = get_close_matches(key, every, n=1, cutoff=0.6)
    return f"did you mean '{every[near[0]]}'?" if near else ""


def _sections_with(key: str) -> list[str]:
    """The sections that every experiment has, with a key of this name."""
    return [f"{section}.{key}" for section, cls in CLOSED.items() if key in {f.name for f in dataclasses.fields(cls)}]


def _owners(key: str) -> list[str]:
    """The methods that have an option of this name, without changed forms of them."""
    having = {name: cls for name, cls in methods.items() if key in {found.name for found in options_of(cls)}}
    return [name for name, cls in having.items() if cls.card.role != "control"] or list(having)


def _some(names: Sequence[str]) -> str:
    """The first names of many.

    >>> _some(["a", "b"]), _some(["a", "b", "c", "d", "e", "f"])
    ('a and b', 'a, b, c, d and 2 more')
    """
    return listed(names) if len(names) < 6 else f"{', '.join(names[:4])} and {len(names) - 4} more"


def _options(section: str, values: Mapping[str, Any]) -> list[str]:
    """The options of what a section names."""
    part = values.get(section, {})
    name = part.get(NAMED_BY.get(section, "name")) if isinstance(part, Mapping) else part
    name = usual_name(section) if name is None and section != "public" else name
    if not isinstance(name, str):
        return []
    if section == "method":
        return [found.name for found in options_of(methods[name])] if name in methods else []
    things: Mapping[str, Mapping[str, Any]] = {"model": models, "partition": partitions, "data": datasets}
    if name not in things.get(section, {}):
        return []
    maker = datasets[name].read if section == "data" else things[section][name]
    given = ("classes", "channels", "size", "labels", "clients", "seed", "ids")
    return [key for key in inspect.signature(maker).parameters if key not in given]
