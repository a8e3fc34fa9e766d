"""Experiments from nested values, checked before anything runs; unknown keys name the nearest one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fedalloy.base.checked import construct, refuse_unknown, refuse_unwritable, shown
from fedalloy.base.options import sections_of, without_effect
from fedalloy.base.registry import LONGEST
from fedalloy.base.text import name_fault
from fedalloy.config.conditions import refuse_unknown_keys
from fedalloy.config.methods import cache_keys, for_method, given_keys, make_method
from fedalloy.config.overrides import override, read_toml, table
from fedalloy.config.places import refuse_misplaced
from fedalloy.config.sections import CLOSED, OPEN, Choice, ClientPart, Experiment, Published, own_keys, usual_name
from fedalloy.data.catalogue import AGREED, LISTED, datasets
from fedalloy.data.own.dataset import Glance, glance, is_own
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method, methods
from fedalloy.nets.architectures import ModelPart
from fedalloy.storage.store import METHOD_PARTS

T = TypeVar("T")


def experiment(values: Mapping[str, Any]) -> Experiment:
    """Check and build an experiment from nested values, as read from TOML; `fedalloy table` handles [[axes]]."""
    refuse_unwritable(values, "the experiment")
    values = with_usual({key: value for key, value in values.items() if key != "axes"})
    known = [f.name for f in dataclasses.fields(Experiment)]
    refuse_misplaced(values, known)
    refuse_unknown(values, known, "the experiment")
    built: dict[str, Any] = {}
    for key, value in values.items():
        value = table(key, value)
        if not isinstance(value, Mapping) and (key in OPEN or key in CLOSED or key == "methods"):
            raise UsageError(_not_a_table(key, value))
        if key in OPEN:
            built[key] = _open_section(OPEN[key], {**_default_name(key), **value}, key)
        elif key in CLOSED:
            built[key] = construct(CLOSED[key], value, key)
        elif key in _LISTS:
            built[key] = tuple(_LISTS[key](part) for part in _tables(key, value))
        elif key == "methods":
            built[key] = {name: _labelled(name, part) for name, part in value.items()}
        else:
            built[key] = value
    if "partition" in values and "alpha" not in built["partition"].options and built["partition"].name == "dirichlet":
        built["partition"] = dataclasses.replace(
            built["partition"], options={"alpha": 0.1, **built["partition"].options}
        )
    exp = construct(Experiment, built, "")
    _check_clients(exp)
    for key in ("aggregation", "cache", "training"):
        refuse_unknown({key: 1} if getattr(exp.model, key) else {}, ["name"], "model")
    made = [make_method(exp, choice) for choice in (exp.method, *exp.methods.values())]
    for choice in (exp.method, *exp.methods.values()):
        for_method(exp, choice)
    meant = made if "method" in values or not exp.methods else made[1:]
    for key in (key for key in given_keys(exp.cache) if not any(key in cache_keys(method) for method in meant)):
        names = ", ".join(dict.fromkeys(method.name for method in meant))
        raise UsageError(f"cache.{key} has no effect with {names}; leave it out")
    listed = {label: choice.name for label, choice in exp.methods.items()}
    refuse_unknown_keys((key for part in exp.published for key in part.where), listed)
    return exp


def _not_a_table(key: str, value: Any) -> str:
    """Say that a section was given a single value, and which keys it has."""
    keys = f", or {key}.KEY=VALUE with one of its keys: {', '.join(own_keys(CLOSED[key]))}" if key in CLOSED else ""
    return f"{key} = {shown(value)} must be a table; write [{key}]{keys}"


def _check_clients(exp: Experiment) -> None:
    """Refuse a list of clients that does not go with the data."""
    if exp.data.name == LISTED and not exp.clients:
        raise UsageError(f"data.name = '{LISTED}' needs [[clients]] with a name and data for each; add them")
    if not exp.clients:
        return
    if fault := name_fault([client.name for client in exp.clients]):
        raise UsageError(f"clients: {fault}; give each client a name of its own")
    if exp.data.name not in (LISTED, AGREED):
        raise UsageError(
            f"data.name = {shown(exp.data.name)}, but [[clients]] says where the data is; leave one of them out"
        )
    pathless = [client.name for client in exp.clients if client.data is None]
    if exp.data.name == LISTED and pathless:
        raise UsageError(f"clients: {shown(pathless[0])} has no data; write the path of its file or folder")
    if exp.data.name == LISTED and exp.partition.name != "natural":
        raise UsageError(
            f"partition.name = '{exp.partition.name}', but with [[clients]] each client has its own rows; leave it out"
        )


def _tables(key: str, value: Any) -> Sequence[Mapping[str, Any]]:
    if key == "clients" and isinstance(value, int):
        raise UsageError(f"clients = {value}: the number of clients is partition.clients; [[clients]] lists them")
    if not isinstance(value, Sequence) or not all(isinstance(part, Mapping) for part in value):
        raise UsageError(f"{key} must be tables; write [[{key}]]")
    return value


def _published(part: Mapping[str, Any]) -> Published:
    rows = part.get("rows", ())
    if isinstance(rows, list):
        rows = tuple(tuple(row) if isinstance(row, list) else row for row in rows)
    return construct(Published, {**part, "rows": rows}, "published")


def _client(part: Mapping[str, Any]) -> ClientPart:
    network = part.get("network")
    if isinstance(network, str):
        network = {"name": network}
    if network is not None and (not isinstance(network, Mapping) or "name" not in network):
        raise UsageError(
            f"clients: network = {shown(network)} must be the name of a network, or a table with its name and options"
        )
    made = None if network is None else _open_section(Choice, network, "clients.network")
    return construct(ClientPart, {**part, "network": made}, "clients")


def with_usual(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the data suggests where an experiment says nothing: its own clients, and a network for tables.

    >>> with_usual({"data": {"name": "nowhere.csv"}})["model"]
    {'name': 'mlp'}
    """
    out = dict(values)
    data, listed_clients = table("data", out.get("data", {})), out.get("clients")
    if not isinstance(data, Mapping):
        return out
    if listed_clients and data.get("name", LISTED) == LISTED:
        out["data"] = data = {"name": LISTED, **data}
    seen = _glance(data, listed_clients)
    model = table("model", out.get("model", {}))
    if (network := _usual_network(data, seen)) and isinstance(model, Mapping) and "name" not in model:
        out["model"] = {"name": network, **model}
    if seen is None:
        return out
    partition = table("partition", out.get("partition", {}))
    if seen.clients and isinstance(partition, Mapping) and "name" not in partition:
        if "clients" in partition:
            given = f"partition.clients = {shown(partition['clients'])}"
            if data.get("name") == AGREED:
                raise UsageError(f"{given}, but each site is a client; remove it and write --sites or [[clients]]")
            raise UsageError(
                f"{given}, but this data has clients of its own; remove it, or pool the rows and divide them anew "
                'with partition.name = "dirichlet", "iid", ...'
            )
        out["partition"] = {"name": "natural", **partition}
    return out


def _usual_network(data: Mapping[str, Any], seen: Glance | None) -> str | None:
    """The network for this data where an experiment names none, if the usual one does not go with it."""
    name = data.get("name")
    small = isinstance(name, str) and name in datasets and datasets[name].small and data.get("size") is None
    return "mlp" if small or (seen is not None and seen.table) else None


def _glance(data: Mapping[str, Any], listed_clients: Any) -> Glance | None:
    """What is known about the data without reading it; None for most data sets with a name."""
    name, column = data.get("name"), data.get("client")
    if not isinstance(name, str):
        return None
    if name in datasets:
        return Glance(datasets[name].clients, datasets[name].table)
    if name == AGREED:
        return Glance(clients=True, table="columns" in data)
    if isinstance(listed_clients, list | tuple) and listed_clients:
        parts = [part for part in listed_clients if isinstance(part, Mapping)]
        paths = [(str(k), Path(str(part.get("data", "")))) for k, part in enumerate(parts)]
        return replace(glance(paths), clients=True)
    return glance(Path(name), column if isinstance(column, str) else None) if is_own(name) else None


def _one_of_several(part: Mapping[str, Any]) -> ModelPart:
    return _open_section(ModelPart, part, "models")


_LISTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "published": _published,
    "models": _one_of_several,
    "clients": _client,
}


def _open_section(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    known = own_keys(cls)
    own = {key: value for key, value in values.items() if key in known}
    return construct(cls, {**own, "options": {k: v for k, v in values.items() if k not in known}}, where)


def _labelled(label: str, part: Any) -> Choice:
    if not isinstance(part, Mapping):
        raise UsageError(f"methods.{label} must be a table; write [methods.{label}]")
    return _open_section(Choice, {"name": label, **part}, f"methods.{label}")


def _default_name(key: str) -> dict[str, str]:
    """Read `method.momentum = 0.5` without a name as an option of the default method."""
    return {"name": usual_name(key)} if key in ("method", "model") else {}


def recorded(meta: Mapping[str, Any]) -> Experiment:
    """The experiment of a run as stored in `run.json`; a method that is unknown here came from a plug-in."""
    import fedalloy.methods  # noqa: F401  # registers the built-in methods

    part = meta["experiment"].get("method")
    name = part.get("name") if isinstance(part, Mapping) else part
    if isinstance(name, str) and name not in methods:
        raise UsageError(
            f"the run's method {name[:LONGEST]!r} is not built in; a plug-in's method needs --plugin FILE.py, "
            "and in Python its file must be imported first"
        )
    values = dict(meta["experiment"])
    # A run of an earlier version may have recorded keys without an effect.
    if isinstance(name, str) and "cache" not in sections_of(methods[name]):
        values.pop("cache", None)
    for key in ("training", "cache"):
        if isinstance(part := values.get(key), Mapping):
            idle = without_effect(CLOSED[key], part)
            values[key] = {k: v for k, v in part.items() if k not in idle}
    return experiment(values)


def made_from(values: Mapping[str, Any]) -> Method:
    """The method of an experiment that is known only as values, for example a server's."""
    parts = (METHOD_PARTS | {"training"}) & values.keys()
    return make_method(experiment({key: values[key] for key in sorted(parts)}))


def read(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment file and apply key=value overrides."""
    return experiment(override(read_toml(path), overrides))
