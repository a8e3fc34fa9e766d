"""Evaluation after a round: every view on every client, active or not, each network run once over all test data.

If the data is local, `evaluate` does everything. If it stays with the clients, each client counts its own results
(`at_client`), and `from_clients` builds the same record from their counts; no sample leaves its owner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.federation import metrics
from fedalloy.federation.core import Client, Method, Network, State, group_of, initial
from fedalloy.federation.gate import Check, array, like, real, refusal
from fedalloy.federation.setting import Setting, pooled
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


def _counts(net: nn.Module, setting: Setting, id: int) -> dict[str, Any]:
    site = setting.sites[id]
    confusion, loss = _tally(net, [site.test], setting)
    found = {"confusion": torch.from_numpy(confusion[0]), "loss": float(loss[0])}
    return {**found, "validation": _accuracy(net, site.validation, setting)} if site.validation else found


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
            records[view]["test"] = _accuracy(setting.fitting(weights, view), setting.holdout, setting)
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
    contract: dict[str, Check] = {
        "confusion": array(setting.classes, setting.answers, least=0, most=len(site.test), dtype=torch.int64),
        # A model that diverged has a NaN or infinite loss; no loss is negative.
        "loss": lambda value: None if isinstance(value, float) and not value < 0 else "is not a loss",
        **({"validation": real(0, 1)} if site.validation else {}),
    }

    def counts(value: Any) -> str | None:
        fault = refusal(value, contract)
        if fault is None and (n := int(value["confusion"].sum())) != len(site.test):
            return f"counts {n} samples, not {len(site.test)}"
        return fault

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
    confusion = np.zeros((len(setting.sites), setting.classes, setting.answers), dtype=np.int64)
    loss = np.zeros(len(setting.sites))
    for k, found in counts.items():
        confusion[k], loss[k] = found["confusion"].numpy(), found["loss"]
    view = _view(setting, confusion, loss)
    sizes = {k: len(site.validation) for k, site in enumerate(setting.sites) if k in counts and site.validation}
    right = [counts[k]["validation"] * n for k, n in sizes.items()]
    if right:
        view["validation"] = sum(map(round, right) if exact else right) / sum(sizes.values())
    return view


def _stage(method: Method, stage: str, me: Client) -> Tree:
    return method.stages(me)[stage]


def _equal(weights: Tree, other: Tree) -> bool:
    return weights.keys() == other.keys() and all(torch.equal(weights[name], other[name]) for name in weights)


def _shared(setting: Setting, view: str, weights: Tree, threads: int) -> dict[str, Any]:
    net = setting.fitting(weights, view)
    confusion, loss = _tally(net, [site.test for site in setting.sites], setting, threads)
    record = _view(setting, confusion, loss)
    if setting.holdout is not None:
        record["test"] = _accuracy(net, setting.holdout, setting, threads)
    parts = [site.validation for site in setting.sites if site.validation is not None and len(site.validation)]
    if parts:
        record["validation"] = _accuracy(net, pooled(parts), setting, threads)
    return record


def _each(
    setting: Setting, model: Callable[[Client], Tree | None], round: int, memories: Mapping[int, Tree], threads: int
) -> dict[str, Any]:
    """A view in which each client has its own model."""
    confusion = np.zeros((len(setting.sites), setting.classes, setting.answers), dtype=np.int64)
    loss = np.zeros(len(setting.sites))
    right = np.zeros(len(setting.sites))  # of each client's validation share

    def evaluate_some(clients: Sequence[int]) -> None:
        nets: dict[Network, nn.Module] = {}  # built once: only the weights differ
        for k in clients:
            me, site = setting.client(k, round, memories.get(k, {})), setting.sites[k]
            weights = model(me)
            assert weights is not None
            if me.network not in nets:
                nets[me.network] = setting.build(k)
            net = load(nets[me.network], weights)
            confusion[k : k + 1], loss[k : k + 1] = _tally(net, [site.test], setting)
            if site.validation is not None and len(site.validation):
                right[k] = _accuracy(net, site.validation, setting) * len(site.validation)

    side_by_side(evaluate_some, [setting.ids[first::threads] for first in range(threads)], threads)
    view = _view(setting, confusion, loss)
    seen = sum(len(site.validation) for site in setting.sites if site.validation is not None)
    if seen:
        view["validation"] = sum(right.tolist()) / seen
    return view


def _view(setting: Setting, confusion: NDArray[np.int64], loss: NDArray[np.float64]) -> dict[str, Any]:
    sizes = confusion.sum(axis=(1, 2))
    found = metrics.summarise(confusion, loss, seed=setting.seed, weights=setting.counted_by(sizes.tolist()))
    with np.errstate(invalid="ignore"):
        mean_loss = loss / sizes
    return {
        **{name: _or_none(value) for name, value in found.items()},
        "test": None,
        "validation": None,
        "clients": {
            "accuracy": [_or_none(a) for a in metrics.accuracy_per_client(confusion).tolist()],
            "loss": [_or_none(value) for value in mean_loss.tolist()],
            "size": sizes.tolist(),
        },
    }


def _tally(
    net: nn.Module, parts: Sequence[Samples], setting: Setting, threads: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Confusion counts (true class, predicted class) and summed loss of each part."""
    if len(parts) > 1 and all(part is parts[0] for part in parts):  # all are tested on the same samples
        counts, losses = _tally(net, parts[:1], setting, threads)
        return counts.repeat(len(parts), 0), losses.repeat(len(parts))
    confusion = torch.zeros(len(parts), setting.classes, setting.answers, dtype=torch.int64)
    loss = torch.zeros(len(parts), dtype=torch.float64)
    filled = [p for p in parts if len(p)]
    if filled:
        together = pooled(filled)
        logits = predict(net, together, threads=threads)[:, : setting.answers].cpu()
        labels = together.labels.cpu()
        owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(p) for p in parts]))
        ones = torch.ones(len(labels), dtype=torch.int64)
        confusion.index_put_((owner, labels, logits.argmax(1)), ones, accumulate=True)
        loss.index_add_(0, owner, F.cross_entropy(logits, labels, reduction="none").double())
    return confusion.numpy(), loss.numpy()


def _accuracy(net: nn.Module, samples: Samples, setting: Setting, threads: int = 1) -> float:
    right: Tensor = predict(net, samples, threads=threads)[:, : setting.answers].argmax(1) == samples.labels
    return float(right.double().mean())


def _or_none(value: float) -> float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
