"""Evaluation after a round: every view on every client, active or not, each network run once over all test data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedalloy import metrics
from fedalloy.core import Client, Method, Network, State
from fedalloy.data.samples import Samples
from fedalloy.setting import Setting, pooled
from fedalloy.training import load, predict, side_by_side
from fedalloy.tree import Tree

PERSONAL = "personal"


def evaluate(
    setting: Setting, method: Method, state: State, memories: Mapping[int, Tree], threads: int = 1
) -> dict[str, Any]:
    """The record of a round's views: the summary over clients and each client's own figures.

    Equal models, such as ACA and OCA where all clients take part, are evaluated once.
    """
    models = method.models(state)
    kept: list[Tree] = []
    which = {name: _place(weights, kept) for name, weights in models.items()}
    found = side_by_side(lambda weights: _shared(setting, weights, threads), kept, threads)
    views = {name: found[place] for name, place in which.items()}
    first = setting.client(0, state.round, memories.get(0, {}))
    if method.personal(first) is not None:
        views[PERSONAL] = _each(setting, method.personal, state.round, memories, threads)
    for stage in method.stages(first):
        views[stage] = _each(setting, partial(_stage, method, stage), state.round, memories, threads)
    return views


def _stage(method: Method, stage: str, me: Client) -> Tree:
    return method.stages(me)[stage]


def _place(weights: Tree, kept: list[Tree]) -> int:
    """Where in the list these weights stand; they are added if none there are equal."""
    for place, other in enumerate(kept):
        if weights.keys() == other.keys() and all(torch.equal(weights[name], other[name]) for name in weights):
            return place
    kept.append(weights)
    return len(kept) - 1


def _shared(setting: Setting, weights: Tree, threads: int) -> dict[str, Any]:
    net = setting.fitting(weights)
    confusion, loss = _tally(net, [site.test for site in setting.sites], setting, threads)
    view = _view(setting, confusion, loss)
    if setting.holdout is not None:
        view["test"] = _accuracy(net, setting.holdout, setting, threads)
    parts = [site.validation for site in setting.sites if site.validation is not None and len(site.validation)]
    if parts:
        view["validation"] = _accuracy(net, pooled(parts), setting, threads)
    return view


def _each(
    setting: Setting, model: Callable[[Client], Tree | None], round: int, memories: Mapping[int, Tree], threads: int
) -> dict[str, Any]:
    """A view in which every client has a model of its own."""
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
    with np.errstate(invalid="ignore"):
        mean_loss = loss / sizes
    return {
        **{name: _or_none(value) for name, value in metrics.summarise(confusion, loss, seed=setting.seed).items()},
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
    if len(parts) > 1 and all(part is parts[0] for part in parts):  # everybody is tested on the same samples
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
