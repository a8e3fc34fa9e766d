"""Evaluation after a round: every view on every client, active or not, each network run once over all test data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedalloy import metrics
from fedalloy.core import Method, Network, State
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
    if method.personal(setting.client(0, state.round, memories.get(0, {}))) is not None:
        views[PERSONAL] = _personal(setting, method, state.round, memories, threads)
    return views


def _place(weights: Tree, kept: list[Tree]) -> int:
    """Where in the list these weights stand; they are added if none there are equal."""
    for place, other in enumerate(kept):
        if weights.keys() == other.keys() and all(torch.equal(weights[name], other[name]) for name in weights):
            return place
    kept.append(weights)
    return len(kept) - 1


def _shared(setting: Setting, weights: Tree, threads: int) -> dict[str, Any]:
    net = setting.fitting(weights)
    confusion, loss = _tally(net, [site.test for site in setting.sites], setting.classes, threads)
    view = _view(setting, confusion, loss)
    if setting.holdout is not None:
        view["test"] = _accuracy(net, setting.holdout, threads)
    parts = [site.validation for site in setting.sites if site.validation is not None and len(site.validation)]
    if parts:
        view["validation"] = _accuracy(net, pooled(parts), threads)
    return view


def _personal(
    setting: Setting, method: Method, round: int, memories: Mapping[int, Tree], threads: int
) -> dict[str, Any]:
    confusion = np.zeros((len(setting.sites), setting.classes, setting.classes), dtype=np.int64)
    loss = np.zeros(len(setting.sites))
    right = np.zeros(len(setting.sites))  # of each client's validation share

    def evaluate_some(clients: Sequence[int]) -> None:
        nets: dict[Network, nn.Module] = {}  # built once: only the weights differ
        for k in clients:
            me, site = setting.client(k, round, memories.get(k, {})), setting.sites[k]
            weights = method.personal(me)
            assert weights is not None
            if me.network not in nets:
                nets[me.network] = setting.build(k)
            net = load(nets[me.network], weights)
            confusion[k : k + 1], loss[k : k + 1] = _tally(net, [site.test], setting.classes)
            if site.validation is not None and len(site.validation):
                right[k] = _accuracy(net, site.validation) * len(site.validation)

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
    net: nn.Module, parts: Sequence[Samples], classes: int, threads: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Confusion counts (true class, predicted class) and summed loss of each part."""
    confusion = torch.zeros(len(parts), classes, classes, dtype=torch.int64)
    loss = torch.zeros(len(parts), dtype=torch.float64)
    filled = [p for p in parts if len(p)]
    if filled:
        together = pooled(filled)
        logits, labels = predict(net, together, threads=threads).cpu(), together.labels.cpu()
        owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(p) for p in parts]))
        ones = torch.ones(len(labels), dtype=torch.int64)
        confusion.index_put_((owner, labels, logits.argmax(1)), ones, accumulate=True)
        loss.index_add_(0, owner, F.cross_entropy(logits, labels, reduction="none").double())
    return confusion.numpy(), loss.numpy()


def _accuracy(net: nn.Module, samples: Samples, threads: int = 1) -> float:
    right: Tensor = predict(net, samples, threads=threads).argmax(1) == samples.labels
    return float(right.double().mean())


def _or_none(value: float) -> float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
