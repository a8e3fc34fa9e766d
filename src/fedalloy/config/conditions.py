"""Conditions on an experiment, such as those of a published table: which keys they may name, and what these are."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from fedalloy.base.checked import refuse_unknown, shown
from fedalloy.base.options import ByVariant, options_of
from fedalloy.base.registry import suggest
from fedalloy.config.overrides import at
from fedalloy.config.sections import CLOSED, NAMED_BY, OPEN, Experiment, own_keys
from fedalloy.data import catalogue
from fedalloy.data.catalogue import datasets, reader
from fedalloy.data.partition import partitions
from fedalloy.errors import UsageError
from fedalloy.federation.core import methods
from fedalloy.nets.models import models

# Keywords of the factories of partitions and networks that users cannot choose.
GIVEN: Mapping[str, tuple[str, ...]] = {
    "partition": ("labels", "clients", "seed", "ids"),
    "model": ("classes", "channels", "size"),
    "data": catalogue.GIVEN,
    "public": catalogue.GIVEN,
}
PARTS = ("aggregation", "cache", "training")  # the sections of which a method may have keys of its own
FEW = 20  # names that a message lists


def refuse_unknown_keys(keys: Iterable[str], listed: Mapping[str, str]) -> None:
    """Refuse a key that no experiment can have; `listed` are the methods' names by their label, if they are known.

    >>> refuse_unknown_keys(["rounds", "data.per_class", "partition.min_size", "methods.FedAvg.cache.oca"], {})
    >>> refuse_unknown_keys(["training.momentun"], {})
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: published.where: training has no key 'momentun'; did you mean 'momentum'?
    """
    top = [f.name for f in dataclasses.fields(Experiment) if f.name not in ("models", "published")]
    for key in map(_whole, keys):
        section, _, rest = key.partition(".")
        refuse_unknown({section: 1}, top, "published.where")
        label = None
        if section == "methods":
            label, rest = _below_label(rest, listed)
        known = _keys_of(section) if section not in ("method", "methods") else _keys_of_method(listed.get(label or ""))
        if rest not in known:
            near = get_close_matches(rest, known, n=1) or len(known) <= FEW
            hint = (
                suggest(rest, known)
                if near
                else f"`fedalloy list {listed.get(label or '', 'METHOD')}` shows its options"
            )
            place = section if label is None else f"methods.{label}"
            raise UsageError(f"published.where: {place} has no key {shown(rest)}; {hint}")


def value_of(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key in an experiment as a run records it, or its default; None if it is not set.

    >>> recorded = {"partition": {"name": "dirichlet", "alpha": 0.1}, "training": {"lr": 0.1}}
    >>> [value_of(recorded, key) for key in ("partition.alpha", "partition.min_size", "training.momentum")]
    [0.1, 10, 0.0]
    """
    section, _, rest = _whole(key).partition(".")
    table = values.get(section)
    if section == "method" and rest.partition(".")[0] in PARTS:
        return value_of(values, rest)
    if not rest or not isinstance(table, Mapping):
        return table if not rest else None
    found = at(table, rest)
    found = _default(section, table, rest) if found is None else found
    return list(found) if isinstance(found, tuple) else found


def _whole(key: str) -> str:
    """A key in full: `data` is short for `data.name`, as in an experiment."""
    return f"{key}.{NAMED_BY.get(key, 'name')}" if key in OPEN else key


def _below_label(key: str, listed: Mapping[str, str]) -> tuple[str | None, str]:
    """The label and the key of [methods.LABEL]; if none are listed, the label may be anything."""
    label = max((label for label in listed if key.startswith(f"{label}.")), key=len, default=None)
    if label is not None:
        return label, key.removeprefix(f"{label}.")
    if listed:
        first = key.partition(".")[0]
        raise UsageError(f"published.where: [methods] has no {shown(first)}; {suggest(first, listed)}")
    rest = key.partition(".")[2]
    while "." in rest and rest.partition(".")[0] not in PARTS:  # of a label with dots
        rest = rest.partition(".")[2]
    return None, rest


def _keys_of_method(name: str | None) -> list[str]:
    """All keys of a method's table, or of any method's."""
    import fedalloy.methods  # noqa: F401  # registers the built-in methods

    classes = [methods[name]] if name is not None and name in methods else methods.values()
    own = [f"{part}.{key}" for part in PARTS for key in own_keys(CLOSED[part])]
    return ["name", *dict.fromkeys(option.name for cls in classes for option in options_of(cls)), *own]


def _keys_of(section: str) -> list[str]:
    """All keys that a section can have, whatever it names; the empty one for a key at the top."""
    if section in CLOSED:
        return own_keys(CLOSED[section])
    if section not in OPEN:
        return [""]
    made = [option for maker in _makers(section) for option in _options(section, maker)]
    own = own_keys(OPEN[section])
    return [*(key for key in own if key not in PARTS), *dict.fromkeys(made)]


def _makers(section: str) -> list[Callable[..., Any]]:
    if section in ("data", "public"):
        return [reader("own.npz"), *(found.read for found in datasets.values())]
    return list(partitions.values() if section == "partition" else models.values())


def _options(section: str, maker: Callable[..., Any]) -> dict[str, Any]:
    """The options of a factory, with their defaults."""
    parameters = inspect.signature(maker).parameters
    return {key: found.default for key, found in parameters.items() if key not in GIVEN.get(section, ())}


def _default(section: str, table: Mapping[str, Any], key: str) -> Any:
    """The default of a key in a section that names something."""
    name = table.get(NAMED_BY.get(section, "name"), "")
    if section == "method":
        import fedalloy.methods  # noqa: F401  # registers the built-in methods

        options = options_of(methods[name]) if name in methods else []
        usual = {option.name: ByVariant(option.default, option.variants) for option in options}
        return usual[key].of(table.get("variant")) if key in usual else None
    part = CLOSED.get(section) or OPEN[section]
    defaults = {f.name: f.default for f in dataclasses.fields(part)}
    if section in OPEN and key not in defaults:
        defaults = _options(section, maker) if (maker := _maker(section, name)) is not None else {}
    found = defaults.get(key)
    return None if found is dataclasses.MISSING or found is inspect.Parameter.empty else found


def _maker(section: str, name: str) -> Callable[..., Any] | None:
    """The factory of what a section names; None if it is not known here."""
    try:
        if section in ("data", "public"):
            return reader(name) if name != "own" else None
        return partitions[name] if section == "partition" else models[name]
    except UsageError:
        return None
