"""Any experiment in a second: the same methods with the same options, on data, networks and rounds that are tiny."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedalloy.base.options import without_effect
from fedalloy.federation.core import methods as registered

TINY: Mapping[str, Any] = {
    "rounds": 2,
    "engine": "serial",
    "data": {"name": "tiny"},
    "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.5},
    "model": {"name": "fedmd-cnn", "widths": [4, 6]},
    "training": {"work": "fixed_steps", "steps": 2, "batch": 8, "lr": 0.05},
    "participation": {"policy": "fraction", "fraction": 0.6},
}
PUBLIC = {"data": "own", "samples": 40, "labelled": True}


def small(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an experiment for a smoke test: every method keeps its options but those that make it slow.

    >>> found = small({"rounds": 200, "methods": {"kdia": {"lambda_kd": 0.5}, "mild": {"name": "fedprox", "mu": 0.1}}})
    >>> found["rounds"], found["methods"]["mild"], found["methods"]["kdia"]["lambda_kd"]
    (2, {'name': 'fedprox', 'mu': 0.1}, 0.5)
    """
    import fedalloy.methods  # noqa: F401  # registers the built-in methods

    found: dict[str, Any] = dict(TINY)
    if "public" in values:
        found["public"] = dict(PUBLIC)
    if "cache" in values:
        found["cache"] = values["cache"]
    found["methods"] = {key: _quick(key, options) for key, options in values.get("methods", {}).items()}
    if "method" in values and not found["methods"]:
        found["method"] = _quick("fedavg", values["method"])
    return found


def _quick(key: str, options: Mapping[str, Any]) -> dict[str, Any]:
    name = options.get("name", key)
    found = {k: v for k, v in options.items() if k != "training"}
    if name in registered:
        found |= registered[name].card.quick
        idle = without_effect(registered[name], {k: v for k, v in found.items() if k != "name"})
        found = {k: v for k, v in found.items() if k not in idle or k in options}
    return found
