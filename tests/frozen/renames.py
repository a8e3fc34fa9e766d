"""How the names that were frozen are called today: a redesign writes its renames here, and nothing else changes.

`numbers.json` keeps the names it was made with. A case is carried over by `translate` before it is run and compared;
where a rename lies below the top level of a state or a memory, of which only a digest is kept, `old_state` and
`old_memory` give today's body its old shape before its digest is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

# Old keys of experiments by their paths, and the paths that have taken their places: {"method.oca": "views.oca"}.
# Those of one method have its name before them, and go first: {"fedkf:method.gamma": "method.kd_weight"}.
EXPERIMENT: dict[str, str] = {
    **{f"method.{key}": f"aggregation.{key}" for key in ("weights", "combine", "trim", "clip")},
    **{f"method.disco_{key}": f"aggregation.disco_{key}" for key in ("a", "b", "metric", "normalise")},
    "method.oca": "cache.oca",
    "method.cache_init": "cache.unseen",
    "method.cache_dtype": "cache.dtype",
    "method.exact_up_to": "cache.exact_up_to",
    "feddf:method.clip": "method.clip",  # of gradients
}
# Top-level names of states, of memories, and those of records (views, metrics, kinds of bytes), wherever they stand.
STATE: dict[str, str] = {}
MEMORIES: dict[str, str] = {}
RECORDS: dict[str, str] = {}
# Frozen numbers that are no results and have gone, as patterns of flat names: "state/sizes", "*/framing".
DROPPED: tuple[str, ...] = ("state/cap",)  # it is the experiment's
# Numbers that have come since, and have nothing to be compared with.
ADDED: tuple[str, ...] = ()


def translate(case: Mapping[str, Any]) -> dict[str, Any]:
    """A frozen case with today's names: its experiment's keys, and its state's, memories' and records' names.

    For now nothing has another name. It carries old keys of an experiment (`EXPERIMENT`) and old names of numbers
    (`STATE`, `MEMORIES`, `RECORDS`) over to new ones; what the redesign removed since it is no result is `DROPPED`.
    """
    found = {**case, "experiment": new_experiment(case["experiment"])}
    return found if "numbers" not in case else {**found, "numbers": new_names(case["numbers"])}


def new_experiment(old: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment with today's keys; what no table can say, such as values that changed, is written here."""
    name = old["method"]["name"]
    new: dict[str, Any] = {}
    for path, value in _leaves(old):
        place = EXPERIMENT.get(f"{name}:{path}", EXPERIMENT.get(path, path)).split(".")
        part = new
        for key in place[:-1]:
            part = part.setdefault(key, {})
        part[place[-1]] = value
    return new


def new_names(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Frozen numbers under today's names."""
    return {
        **numbers,
        "state": {STATE.get(key, key): value for key, value in numbers["state"].items()},
        "memories": {
            client: {MEMORIES.get(key, key): value for key, value in memory.items()}
            for client, memory in numbers["memories"].items()
        },
        "records": _renamed(numbers["records"]),
    }


def old_state(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Today's state as its digests were taken of it, but for the names of its entries."""
    return body


def old_memory(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A client's memory today as its digests were taken of it, but for the names of its entries."""
    return body


def without(flat: Mapping[str, Any], patterns: tuple[str, ...]) -> dict[str, Any]:
    """The flat numbers that fit none of these patterns."""
    return {name: value for name, value in flat.items() if not any(fnmatchcase(name, p) for p in patterns)}


def _leaves(part: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in part.items():
        found += _leaves(value, f"{path}{key}.") if isinstance(value, Mapping) and value else [(f"{path}{key}", value)]
    return found


def _renamed(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {RECORDS.get(key, key): _renamed(value) for key, value in part.items()}
