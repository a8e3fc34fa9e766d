"""How the names that were frozen are called today: a redesign writes its renames here, and nothing else changes.

`numbers.json` keeps the names it was made with. A case is carried over by `translate` before it is run and compared;
where a rename lies below the top level of a state or a memory, of which only a digest is kept, `old_state` and
`old_memory` give today's body its old shape before its digest is taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from fedalloy.base.options import options_of

# Old keys of experiments by their paths, and the paths that have taken their places: {"method.oca": "views.oca"}.
# Those of one method have its name before them, and go first: {"fedkf:method.gamma": "method.kd_weight"}.
EXPERIMENT: dict[str, str] = {
    **{f"method.{key}": f"aggregation.{key}" for key in ("weights", "combine", "trim", "clip")},
    **{f"method.disco_{key}": f"aggregation.disco_{key}" for key in ("a", "b", "metric", "normalise")},
    "method.oca": "cache.oca",
    "method.cache_init": "cache.unseen",
    "method.cache_dtype": "cache.dtype",
    "method.exact_up_to": "cache.exact_up_to",
    "feddf:method.clip": "method.clip_gradients",
    "ds-fl:method.aggregation": "method.ensemble",
}
# Top-level names of states, of memories, and those of records (views, metrics, kinds of bytes), wherever they stand.
STATE: dict[str, str] = {}
MEMORIES: dict[str, str] = {}
RECORDS: dict[str, str] = {}
# Frozen numbers that are no results and have gone, as patterns of flat names: "state/sizes", "*/framing".
DROPPED: tuple[str, ...] = ("state/cap",)  # it is the experiment's
# Frozen cases, by their ids, of combinations that are gone.
GONE: frozenset[str] = frozenset({"fedkf-minus generator_side=server", "fedkf-minus server_steps=2"})
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
    if new["method"].pop("generator_side", None) == "server":  # a method of its own
        new["method"]["name"] = "fedkf-server"
    if name == "fedmd" and new["method"].pop("mode", "original") == "knfu":  # a method of its own
        new["method"]["name"] = "fedmd-knfu"
    return _dafkd(new)


def _dafkd(new: dict[str, Any]) -> dict[str, Any]:
    """DaFKD's ablations and uploads are methods of their own; FedGen refuses a weight of what it does not do."""
    own = new["method"]
    if own["name"] == "fedgen" and not own.get("latent_kl"):
        own.pop("latent_weight", None)
    if own["name"] != "dafkd":
        return new
    names = {"scores": "dafkd-scores", "predictions": "dafkd-predictions", "features": "dafkd-features"}
    own["name"] = names.get(own.pop("upload", ""), names.get(own.pop("generator_output", ""), "dafkd"))
    if own["name"] == "dafkd-features":
        del own["generator_width"]  # which had no effect
    if not own.pop("correlation", True):
        own["name"] = "dafkd-no-correlation"
    if not own.pop("sharing", True):
        own["shared_layers"] = 0
    if "personal_heads" in own:
        own["common_head"] = not own.pop("personal_heads")
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


def old_address(method: Any, work: Any, privacy: Any) -> str:
    """Where the noise of a private run was addressed: by a method's options, which then held [aggregation] and [cache].

    The frozen numbers follow from that noise, so that it is drawn from there again.
    """
    values = {found.name: getattr(method, found.name) for found in options_of(method)}
    if hasattr(method, "cache"):
        rule, cache = method.aggregation, method.cache
        values |= {key: getattr(rule, key) for key in ("weights", "combine", "trim", "clip")}
        values |= {f"disco_{key}": getattr(rule, f"disco_{key}") for key in ("a", "b", "metric", "normalise")}
        values |= {"oca": cache.oca, "cache_init": None, "cache_dtype": cache.dtype, "exact_up_to": cache.exact_up_to}
    options = json.dumps(json.loads(json.dumps(values), parse_int=float), sort_keys=True)
    return f"privacy/{method.name}/{options}/{work}/{privacy.max_grad_norm}/{privacy.noise_multiplier}"


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
