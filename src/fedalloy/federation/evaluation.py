"""Evaluation after a round: every view on every client, active or not, each network run once over all test data.

If the data is local, `evaluate` does everything. If it stays with the clients, each client counts its own results
(`at_client`), and `from_clients` builds the same record from their counts; no sample leaves its owner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.federation.core import Client, Method, Network, State, group_of, initial
from fedalloy.federation.gate import Check, like, optional, real, refusal
from fedalloy.federation.setting import Setting, pooled
from fedalloy.federation.tally import counted, miscount, or_none, score_of, view_of
from fedalloy.train.fit import load, predict, side_by_side

PERSONAL = "personal"
VIEWS = 3  # models of a round that a client evaluates, in addition to one for each group of equal networks
STAGES, LONGEST = 16, 100  # that a client may have, and characters in the name of one


def evaluate(
    setting: Setting, method: Method, state: State, memories: Mapping[int, Tree], threads: int = 1
) -> dict[str, Any]:
    """The record of a round's views: the summary over clients and each client's own figures.

    Equal models, such as ACA and OCA when all clients take part, are evaluated once.
    """
    which, kept = distinct(method.models(state))
    found = side_by_side(lambda view: _shared(setting, view, kept[view], threads), list(kept), threads)
    records = dict(zip(kept, found, strict=True))
    views = {name: records[view] for name, view in which.items()}
    first = setting.client(0, state.round, memories.get(0, {}))
    if method.personal(first) is not None:
        views[PERSONAL] = _each(setting, method.personal, state.round, memories, threads)
    for stage in method.stages(first):
        views[stage] = _each(setting, partial(_stage, method, stage), state.round, memories, threads)
    return views


def distinct(models: Mapping[str, Tree]) -> tuple[dict[str, str], dict[str, Tree]]:
    """The distinct models by the name of their first view, and for each view the name of its model.

    >>> distinct({"a": {"w": torch.ones(1)}, "b": {"w": torch.ones(1)}})
    ({'a': 'a', 'b': 'a'}, {'a': {'w': tensor([1.])}})
    """
    which: dict[str, str] = {}
    kept: dict[str, Tree] = {}
    for view, weights in models.items():
        # Two groups may have equal weights but networks that compute different things with them.
        alike = (other for other in kept if group_of(other) == group_of(view) and _equal(weights, kept[other]))
        which[view] = next(alike, view)
        kept.setdefault(which[view], weights)
    return which, kept


def announced(models: Mapping[str, Tree]) -> str:
    """The digest of each model, as the text that announces the models in a message."""
    return json.dumps({view: tree.digest(weights) for view, weights in models.items()}, sort_keys=True)


def unfit(setting: Setting, models: Tree) -> str | None:
    """Why no method could ask a client of this setting to evaluate these models, if so."""
    most = VIEWS + len(setting.groups)
    if len(models) > most:
        return f"it holds {len(models)} models; at most {most} are evaluated at once"
    kinds = [like(initial(network, setting.seed).state_dict()) for network in setting.kinds]

    def check(weights: Any) -> str | None:
        faults = [kind(weights) for kind in kinds]
        return None if None in faults else faults[0]

    return refusal(models, dict.fromkeys(models, check))


def at_client(
    setting: Setting, method: Method, id: int, round: int, memory: Tree, models: Mapping[str, Tree]
) -> dict[str, Any]:
    """One client's counts for each of the given models, for its own model, and for each of its stages."""
    me = setting.client(id, round, memory)
    own, stages = method.personal(me), method.stages(me)
    return {
        "models": {view: _counts(setting.fitting(weights, view), setting, id) for view, weights in models.items()},
        PERSONAL: {} if own is None else _counts(load(setting.build(id), own), setting, id),
        "stages": {name: _counts(load(setting.build(id), weights), setting, id) for name, weights in stages.items()},
        "order": "\n".join(stages),  # the keys of a tree come back sorted
    }


def _counts(net: nn.Module, setting: Setting, id: int) -> Tree:
    site = setting.sites[id]
    (found,) = _tally(net, [site.test], setting)
    score = _score(net, site.validation, setting) if site.validation else math.nan
    return {**found, "validation": score} if math.isfinite(score) else found


def from_clients(
    setting: Setting, which: Mapping[str, str], kept: Mapping[str, Tree], counts: Mapping[int, Tree]
) -> dict[str, Any]:
    """The record as `evaluate` would make it, from the counts of the clients that answered; others have no samples.

    `which` and `kept` are the results of `distinct` for the method's models; the common test set is the server's.
    """
    records: dict[str, Any] = {}
    for view, weights in kept.items():
        records[view] = _counted(setting, {k: c["models"][view] for k, c in counts.items()}, exact=True)
        if setting.holdout is not None:
            records[view]["test"] = or_none(_score(setting.fitting(weights, view), setting.holdout, setting))
    views = {name: records[view] for name, view in which.items()}
    own = {k: {**({PERSONAL: c[PERSONAL]} if c[PERSONAL] else {}), **c["stages"]} for k, c in counts.items()}
    order = [PERSONAL, *(stage for c in counts.values() for stage in c["order"].split("\n"))]
    for name in dict.fromkeys(order):
        having = {k: mine[name] for k, mine in own.items() if name in mine}
        if 2 * len(having) > len(own):  # a single client cannot invent a view
            views[name] = _counted(setting, having)
    return views


def unevaluated(setting: Setting, method: Method, which: Mapping[str, str], kept: Mapping[str, Tree]) -> dict[str, Any]:
    """The record of a round in which clients evaluate nothing; the common test set is the server's."""
    own = {PERSONAL: _counted(setting, {})} if type(method).personal is not Method.personal else {}
    return {**from_clients(setting, which, kept, {}), **own}


def miscounted(setting: Setting, client: int, found: Any, models: Collection[str]) -> str | None:
    """What is wrong with the counts that a client reports for these models, if anything."""
    site = setting.sites[client]
    validated = real(0, 1) if setting.task != "numbers" else optional(real(most=1.0))

    def counts(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return "is not a table"
        if site.validation and (fault := refusal(_of(value, "validation"), {"validation": validated})) is not None:
            return fault
        rest = {key: part for key, part in value.items() if not (site.validation and key == "validation")}
        return miscount(setting, rest, len(site.test))

    def views(value: Any) -> str | None:
        return refusal(value, dict.fromkeys(value, counts)) if isinstance(value, Mapping) else "is not a table"

    wanted: dict[str, Check] = {
        "models": views,
        PERSONAL: lambda value: counts(value) if value else None,
        "stages": lambda value: views(value) or _unnamed(value),
        "order": lambda value: None if isinstance(value, str) else "is not text",
    }
    fault = refusal(found, wanted)
    if fault is None and found["models"].keys() != set(models):
        return "models has the wrong keys"
    if fault is None and sorted(found["order"].split("\n", STAGES)) != sorted(found["stages"] or [""]):
        return "order does not name its stages"
    return fault


def _unnamed(stages: Mapping[str, Any]) -> str | None:
    """What is wrong with the names of a client's stages, which become view names."""
    sound = all(name.isprintable() and 0 < len(name) <= LONGEST for name in stages)
    return None if sound and len(stages) <= STAGES else f"has more than {STAGES} names, or invalid ones"


def _counted(setting: Setting, counts: Mapping[int, Tree], *, exact: bool = False) -> dict[str, Any]:
    """A view from clients' counts; `exact`: all had the same model, so the number of correct answers is whole."""
    view = view_of(setting, counts)
    view["validation"] = _validated(
        setting, {k: c["validation"] for k, c in counts.items() if "validation" in c}, exact
    )
    return view


def _validated(setting: Setting, scores: Mapping[int, float], exact: bool) -> float | None:
    """The score on validation data, in which clients count by how much they have."""
    sizes = {k: len(site.validation) for k, site in enumerate(setting.sites) if k in scores and site.validation}
    if not sizes:
        return None
    right = [scores[k] * n for k, n in sizes.items()]
    return sum(map(round, right) if exact and setting.task == "classes" else right) / sum(sizes.values())


def _stage(method: Method, stage: str, me: Client) -> Tree:
    return method.stages(me)[stage]


def _equal(weights: Tree, other: Tree) -> bool:
    return weights.keys() == other.keys() and all(torch.equal(weights[name], other[name]) for name in weights)


def _shared(setting: Setting, view: str, weights: Tree, threads: int) -> dict[str, Any]:
    net = setting.fitting(weights, view)
    found = _tally(net, [site.test for site in setting.sites], setting, threads)
    record = view_of(setting, dict(enumerate(found)))
    if setting.holdout is not None:
        record["test"] = or_none(_score(net, setting.holdout, setting, threads))
    parts = {k: site.validation for k, site in enumerate(setting.sites) if site.validation}
    if parts:
        scores = zip(parts, _scores(net, list(parts.values()), setting, threads), strict=True)
        record["validation"] = _validated(setting, {k: v for k, v in scores if math.isfinite(v)}, exact=True)
    return record


def _each(
    setting: Setting, model: Callable[[Client], Tree | None], round: int, memories: Mapping[int, Tree], threads: int
) -> dict[str, Any]:
    """A view in which each client has its own model."""
    counts: dict[int, Tree] = {}

    def evaluate_some(clients: Sequence[int]) -> None:
        nets: dict[Network, nn.Module] = {}  # built once: only the weights differ
        for k in clients:
            me = setting.client(k, round, memories.get(k, {}))
            weights = model(me)
            assert weights is not None
            if me.network not in nets:
                nets[me.network] = setting.build(k)
            counts[k] = _counts(load(nets[me.network], weights), setting, k)

    side_by_side(evaluate_some, [setting.ids[first::threads] for first in range(threads)], threads)
    return _counted(setting, {k: counts[k] for k in setting.ids})


def _tally(net: nn.Module, parts: Sequence[Samples], setting: Setting, threads: int = 1) -> list[Tree]:
    """What the owner of each part counts for this network."""
    if len(parts) > 1 and all(part is parts[0] for part in parts):  # all are tested on the same samples
        return _tally(net, parts[:1], setting, threads) * len(parts)
    return [counted(setting, logits, targets) for logits, targets in _outputs(net, parts, setting, threads)]


def _scores(net: nn.Module, parts: Sequence[Samples], setting: Setting, threads: int = 1) -> list[float]:
    return [score_of(setting, logits, targets) for logits, targets in _outputs(net, parts, setting, threads)]


def _score(net: nn.Module, samples: Samples, setting: Setting, threads: int = 1) -> float:
    return _scores(net, [samples], setting, threads)[0]


def _outputs(
    net: nn.Module, parts: Sequence[Samples], setting: Setting, threads: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The outputs that answer for each part, and its targets; the network runs once over all of them."""
    filled = [part for part in parts if len(part)]
    whole = pooled(filled) if filled else parts[0]
    logits = (
        predict(net, whole, threads=threads)[:, : setting.answers].cpu() if filled else torch.zeros(0, setting.answers)
    )
    sizes = [len(part) for part in parts]
    yield from zip(torch.split(logits, sizes), torch.split(whole.labels.cpu(), sizes), strict=True)


def _of(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {key: value[key]} if key in value else {}
