"""The cache of every client's last model, and their average: FedKF's technique T1 and the view `oca`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from fedalloy.aggregation.averaging import average, weighted_sum
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.options import Count, option, resolve
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.train.fit import params

Unseen = Literal["seen_only", "init_model", "global", "random"]
REFRESH = 100  # rounds after which a running sum is recomputed


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The last known model of every client, in the server's state: [cache] of an experiment.

    Its average, the overall client average (OCA), is a teacher in some methods and a view in all that average models.
    If it is only a view, it does not affect the training, so one run gives both rows of a table, `aca` and `oca`.

    For clients not yet seen, FedKF's Algorithm 1 uses the first model, while its code leaves them out (in the
    first rounds the former is mostly an untrained network). Models are combined as [aggregation] says, and stored as
    they are after `clip`. With `unseen = "init_model"`, a median is the first model until half the clients were seen.
    With `"random"`, as in KDIA's code, each of them holds a random network of its own: the state then has one model for
    each client from the start, as it would when all have been seen.

    With up to `exact_up_to` clients the sum is computed exactly, in ascending id. With more, a running sum is updated
    by the changes of the active clients; it is just as reproducible, but differs from the exact sum in the last bits.
    `bfloat16` halves the memory; OCA then has rounding errors of about 0.2 % of each weight, and no longer equals ACA
    when all clients take part.

    >>> Cache(unseen="global").dtype
    'float32'
    """

    oca: bool | None = option(None, "keep the cache and evaluate its average; unset: as the method usually does")
    unseen: Unseen | None = option(
        None,
        "what stands for a client not yet seen: nothing, the first model, the global one, or a random network of its "
        "own; unset: by method",
        only_with=("oca", True, None),
    )
    dtype: Literal["float32", "bfloat16"] = option(
        "float32", "how cached models are stored", only_with=("oca", True, None)
    )
    exact_up_to: Count = option(2000, "most clients for which the sum is exact", only_with=("oca", True, None))

    def __post_init__(self) -> None:
        resolve(self, "cache", derived=True)  # a method without a cache may be made with the experiment's keys

    def start(
        self, model: Tree, sizes: Sequence[int], rule: Aggregation, random_net: Callable[[int], nn.Module]
    ) -> dict[str, Any]:
        """The empty cache, and what its average needs to know; `random_net` makes one for a client."""
        if not self.oca:
            return {"cache": {}}
        if rule.needs_every_model and len(sizes) > self.exact_up_to:
            key = f"combine = '{rule.combine}'" if rule.combine != "mean" else f"cap = {rule.cap}"
            raise UsageError(
                f"aggregation.{key} needs the exact average of all clients, but {len(sizes)} clients are more than "
                f"cache.exact_up_to = {self.exact_up_to}; write cache.oca = false, or a larger cache.exact_up_to"
            )
        if rule.weights == "disco" and self.unseen != "seen_only":
            raise UsageError(
                "aggregation.weights = 'disco' needs every client's discrepancy, which clients not yet seen have not "
                "sent; write cache.unseen = 'seen_only'"
            )
        known: dict[str, Any] = {"cache": {}, "sizes": torch.tensor(sizes)}
        if self.unseen == "random":
            return known | {"random": {str(k): self._stored(params(random_net(k))) for k in range(len(sizes))}}
        return known | ({"start": model} if self.unseen == "init_model" else {})

    def updated(
        self,
        s: Mapping[str, Any],
        round: int,
        rule: Aggregation,
        models: Mapping[int, Tree],
        *,
        weighed_anew: bool = False,
    ) -> dict[str, Any]:
        """c_k <- w_k for the active clients; `weighed_anew` is for methods that pass their own weights to `overall`."""
        if not self.oca:
            return {}
        fresh = {str(k): self._stored(model) for k, model in models.items()}
        cache = {**s["cache"], **fresh}
        new: dict[str, Any] = {"cache": cache}
        if self.unseen == "random":
            new["random"] = {k: model for k, model in s["random"].items() if k not in fresh}
        # FedDisco's weights depend on which clients are present, so that a running sum cannot be continued.
        if weighed_anew or rule.weights == "disco" or len(cache) <= self.exact_up_to:
            return new
        return {**new, "sum": self._running_sum(s, round, rule, cache, fresh)}

    def overall(
        self,
        s: Mapping[str, Any],
        rule: Aggregation,
        weigh: Callable[[Sequence[int]], Sequence[float]] | None = None,
    ) -> Tree:
        """OCA: the average over the last known model of every client; `weigh` replaces the clients' weights."""
        model: Tree = s["model"]
        seen = sorted(int(k) for k in s["cache"])
        if not seen:
            return model
        sizes: list[int] = s["sizes"].tolist()
        clients = seen if self.unseen == "seen_only" else list(range(len(sizes)))
        stand_in = s["start"] if self.unseen == "init_model" else model
        random: Mapping[str, Tree] = s["random"] if self.unseen == "random" else {}
        apart = [s["discrepancy"][str(k)] for k in clients] if weigh is None and rule.weights == "disco" else []
        if weigh is None and rule.needs_every_model:
            held = {**random, **s["cache"]}
            known = [held.get(str(k), stand_in) for k in clients]
            return rule.combined(known, rule.bounded([sizes[k] for k in clients], apart), model)
        weights = rule.weigh([sizes[k] for k in clients], apart) if weigh is None else weigh(clients)
        weight = dict(zip(clients, weights, strict=True))
        models, parts = [s["cache"][str(k)] for k in seen], [weight.pop(k) for k in seen]
        if weigh is None and "sum" in s:
            models, parts = [{name: t / sum(parts) for name, t in s["sum"].items()}], [sum(parts)]
        if random:
            drawn = [k for k, part in weight.items() if part > 0]
            models, parts = [*models, *(random[str(k)] for k in drawn)], [*parts, *(weight[k] for k in drawn)]
        elif (unseen := sum(weight.values())) > 0:  # they all hold the same model, so they enter as one term
            models, parts = [*models, stand_in], [*parts, unseen]
        return average(models, parts, model)

    def _stored(self, model: Tree) -> Tree:
        if self.dtype == "float32":
            return model
        return {name: t.bfloat16() if t.is_floating_point() else t for name, t in model.items()}

    def _running_sum(self, s: Mapping[str, Any], round: int, rule: Aggregation, cache: Tree, fresh: Tree) -> Tree:
        """sum_k n_k c_k, updated by what the active clients changed; recomputed every `REFRESH` rounds."""
        weights = rule.weigh(s["sizes"].tolist())
        if "sum" not in s or round % REFRESH == 0:
            seen = sorted(int(k) for k in cache)
            return weighted_sum([cache[str(k)] for k in seen], [weights[k] for k in seen])
        moved = [(m, weights[int(k)]) for k, m in sorted(fresh.items(), key=lambda item: int(item[0]))]
        moved += [(s["cache"][k], -weights[int(k)]) for k in sorted(fresh, key=int) if k in s["cache"]]
        return weighted_sum([s["sum"], *(m for m, _ in moved)], [1.0, *(w for _, w in moved)])
