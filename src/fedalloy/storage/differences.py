"""The keys in which experiments differ: to recognise another run, to label runs, and to warn of unfair comparisons."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedalloy.base.options import options_of
from fedalloy.errors import UsageError
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.methods import methods
from fedalloy.storage.results import Run, Selection
from fedalloy.storage.store import FREE, METHOD_PARTS
from fedalloy.train.fit import LocalWork

# The keys in which the runs of one line in a table may differ. The number of rounds is not one of them: a longer run
# has another last round.
OF_ONE_LINE = FREE - {"rounds"} | {"seed"}
OWN_TRAINING = "method.training."
# The defaults of sections that all methods share: a run that was recorded before a key existed had its default.
SHARED: Mapping[str, LocalWork | Participation | Quorum] = {
    "training": LocalWork(),
    "participation": Participation(),
    "quorum": Quorum(),
}
LONGEST = 60  # characters of a value in a message
NAMED = 4  # keys in a message; if there are more, they are counted


def differing(experiments: Sequence[Mapping[str, Any]], free: Collection[str] = FREE) -> dict[str, list[Any]]:
    """The dotted keys in which experiments differ, in order, and the value in each; None if a key is not set.

    What a method sets of [training] is in that section, too, so it does not count twice.

    >>> one, other = ({"rounds": rounds, "training": {"lr": lr, "batch": 8}} for rounds, lr in ((1, 0.1), (2, 0.2)))
    >>> differing([one, other])
    {'training.lr': [0.1, 0.2]}
    """
    each = [flat({key: value for key, value in one.items() if key not in free}) for one in experiments]
    pairs = {key: [one.get(key) for one in each] for key in dict.fromkeys(key for one in each for key in one)}
    return {
        key: values
        for key, values in pairs.items()
        if any(value != values[0] for value in values) and not key.startswith(OWN_TRAINING)
    }


def told_apart(runs: Sequence[Run], selection: Selection = "last") -> list[Run]:
    """The same runs; if runs with one label differ in more than the seed, their labels say in what.

    >>> run = lambda seed, lr: Run({"label": "FedAvg", "seed": seed, "experiment": {"training": {"lr": lr}}}, ())
    >>> [one.label for one in told_apart([run(0, 0.1), run(1, 0.1)])]
    ['FedAvg', 'FedAvg']
    >>> [one.label for one in told_apart([run(0, 0.1), run(0, 0.5)])]
    ['FedAvg, training.lr = 0.1', 'FedAvg, training.lr = 0.5']
    """
    labels = [run.label for run in runs]
    for label in dict.fromkeys(labels):
        places = [i for i, run in enumerate(runs) if run.label == label]
        found = differing([_with_defaults(runs[i]) for i in places], _free(selection))
        for n, i in enumerate(places):
            told = [f"{key} = {values[n]}" for key, values in found.items() if values[n] is not None]
            labels[i] = ", ".join([label, *told])
    named = [
        replace(run, meta={**run.meta, "label": label, "named": run.label})
        for run, label in zip(runs, labels, strict=True)
    ]
    _refuse_twice(named)
    return named


def unequal(runs: Sequence[Run], selection: Selection = "last") -> list[str]:
    """What methods do not share, if anything: settings by accident, and keys of [training] that a file gives to one.

    >>> run = lambda label, lr: Run({"label": label, "experiment": {"training": {"lr": lr}}}, ())
    >>> unequal([run("FedAvg", 0.1), run("FedProx", 0.1)])
    []
    >>> unequal([run("FedAvg", 0.1), run("FedProx", 0.5)])[0]
    'The methods ran with different settings, so they are not comparable: training.lr is 0.1 (FedAvg), 0.5 (FedProx).'

    What clients are weighted by, and the cache, are part of a method; bounds on one client are not.
    """
    if len({run.label for run in runs}) < 2:
        return []
    found = differing([_with_defaults(run) for run in runs], _free(selection) | METHOD_PARTS)
    averaging = [run for run in runs if "weights" in _experiment(run).get("aggregation", {})]
    bounds = differing([_bounds(run) for run in averaging])
    meant = {key for key, values in found.items() if _is_meant(runs, key, values)}
    told = [f"{key} is {_whose(averaging, values)}" for key, values in bounds.items()]
    told += [f"{key} is {_whose(runs, values)}" for key, values in found.items() if key not in meant]
    own = [f"{key} is {_whose(runs, found[key])}" for key in found if key in meant]
    return [
        *_listed("The methods ran with different settings, so they are not comparable", told),
        *_listed("Some methods have their own [training]", own),
    ]


def _is_meant(runs: Sequence[Run], key: str, values: Sequence[Any]) -> bool:
    """Whether only methods that set a key of [training] themselves have another value than the rest."""
    section, _, name = key.partition(".")
    common = [
        value
        for run, value in zip(runs, values, strict=True)
        if section != "training" or name not in _experiment(run).get("method", {}).get("training", {})
    ]
    return all(value == common[0] for value in common)


def _listed(what: str, keys: Sequence[str]) -> list[str]:
    """A sentence about some keys, of which the first are named; none if there is no key."""
    more = [f"{len(keys) - NAMED} more keys differ"] if len(keys) > NAMED + 1 else []
    return [f"{what}: {'; '.join([*keys[: NAMED if more else None], *more])}."] if keys else []


def _free(selection: Selection) -> frozenset[str]:
    """The keys that may differ; the last round is evaluated however often the others are."""
    return OF_ONE_LINE | ({"evaluate_every"} if selection == "last" else set())


def _bounds(run: Run) -> dict[str, Any]:
    """The bounds on one client that a run had."""
    rule = _experiment(run)["aggregation"]
    return {"aggregation": {key: rule.get(key) for key in ("combine", "clip", "cap", "max_distance")}}


def _whose(runs: Sequence[Run], values: Sequence[Any]) -> str:
    labels: dict[str, tuple[Any, dict[str, None]]] = {}
    for run, value in zip(runs, values, strict=True):
        labels.setdefault(repr(value), (value, {}))[1][run.label] = None
    return ", ".join(f"{_brief(value)} ({', '.join(names)})" for value, names in labels.values())


def _brief(value: Any) -> str:
    """A value in a message; of a long list only the length is given."""
    if value is None:
        return "not set"
    if value and isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return f"{len(value)} table{'s' if len(value) > 1 else ''}"
    text = str(value)
    if len(text) <= LONGEST:
        return text
    return f"{len(value)} values" if isinstance(value, list) else f"{text[: LONGEST - 3]}..."


def _refuse_twice(runs: Sequence[Run]) -> None:
    first: dict[tuple[str, int], Run] = {}
    for run in runs:
        other = first.setdefault((run.label, run.seed), run)
        if other is not run:
            where = f" ('{other.folder}' and '{run.folder}')" if other.folder and run.folder else ""
            raise UsageError(
                f"two runs of {run.label} have the same experiment and the seed {run.seed}{where}; "
                "leave one of them out"
            )


def _with_defaults(run: Run) -> dict[str, Any]:
    """A run's experiment, in which keys that it did not record have their defaults.

    >>> old, new = ({"method": {"name": "fedprox"}}, {"method": {"name": "fedprox", "mu": 0.01}})
    >>> [_with_defaults(Run({"experiment": values}, ()))["quorum"]["skips"] for values in (old, new)]
    [5, 5]
    """
    values = dict(_experiment(run))
    for name, section in SHARED.items():
        known = {key: value for key, value in dataclasses.asdict(section).items() if value is not None}
        values[name] = _filled(values.get(name, {}), known)
    method: Mapping[str, Any] = values.get("method", {})
    if method.get("name") in methods:
        variant = method.get("variant")
        plain = {x.name: x.variants.get(str(variant), x.default) for x in options_of(methods[method["name"]])}
        values["method"] = _filled(method, plain)
    return values


def _filled(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {**given, **{key: value for key, value in defaults.items() if key not in given}}


def _experiment(run: Run) -> Mapping[str, Any]:
    values: Mapping[str, Any] = run.meta.get("experiment", {})
    return values


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key.

    >>> flat({"training": {"lr": 0.1}, "rounds": 2})
    {'training.lr': 0.1, 'rounds': 2}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
