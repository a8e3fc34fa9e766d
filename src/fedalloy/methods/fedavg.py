"""FedAvg, and the cache of last known models (OCA) that works under every averaging method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from fedalloy.averaging import average, weighted_sum
from fedalloy.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.losses import ce
from fedalloy.training import fit, params
from fedalloy.tree import Tree

REFRESH = 100  # rounds after which a running sum is taken anew


@method(
    "fedavg",
    label="FedAvg",
    card=Card(
        paper="McMahan et al., AISTATS 2017; the OCA view is T1 of FedKF, Zhou et al., IoT-J 2023",
        up="model, n",
        down="model",
    ),
)
class FedAvg(Method):
    """Average the active clients' models, weighted by their data.

    The view `aca` is the average of the active clients, which is also what the next round starts from. The view `oca`
    (overall client average, FedKF's technique T1) averages the last known model of every client; it never touches the
    training, so one run gives both rows of a table.

    FedKF's Algorithm 1 fills the cache of clients not yet seen with the first model (`cache_init = "init_model"`), its
    code leaves them out (`"seen_only"`, the default: in the first rounds the former is mostly an untrained network);
    `"global"` takes the current global model for them.

    The sum over the cache is taken exactly, in ascending id, up to `exact_up_to` clients; beyond, a running sum is
    moved by what the active clients changed and taken anew every 100 rounds. It is as reproducible, but differs from
    the exact one in the last bits. `cache_dtype = "bfloat16"` halves the cache; OCA then carries rounding errors of
    about 0.2 % of each weight, and no longer equals ACA when all clients take part. Neither touches the training.

    >>> FedAvg(weights="uniform").oca
    True
    """

    weights: Literal["size", "uniform"] = "size"
    oca: bool = True
    cache_init: Literal["seen_only", "init_model", "global"] = "seen_only"
    cache_dtype: Literal["float32", "bfloat16"] = "float32"
    exact_up_to: int = 2000

    def init(self, fed: Federation) -> Tree:
        """The server starts from one common model."""
        start = params(fed.build())
        state: dict[str, Any] = {"model": start, "cache": {}}
        if self.oca:
            state["sizes"] = torch.tensor(fed.sizes)
            state |= {"start": start} if self.cache_init == "init_model" else {}
        return state

    def round(self, s: State, fed: Federation) -> State:
        """One round: send, train, average, remember."""
        replies = fed.ask("train", fed.sample(), model=s["model"])
        if not replies:
            return s.next()
        return s.next(model=self.aggregate(s, replies, fed), **self.cached(s, replies))

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on cross-entropy, from the received model."""
        net = me.net(msg["model"])
        fit(net, me, lambda x, y: ce(net(x), y))
        return reply(model=params(net), n=me.n)

    def aggregate(self, s: State, replies: Sequence[Message], fed: Federation) -> Tree:
        """w^t = sum_k (n_k / n) w_k over the active clients, in ascending id."""
        return average([r["model"] for r in replies], self.weigh([r["n"] for r in replies]), s["model"])

    def weigh(self, sizes: Sequence[int]) -> list[float]:
        """The weight of each client before normalisation."""
        return [float(n) for n in sizes] if self.weights == "size" else [1.0] * len(sizes)

    def cached(self, s: State, replies: Sequence[Message]) -> Mapping[str, Tree]:
        """c_k <- w_k for the active clients."""
        if not self.oca:
            return {}
        fresh = {str(r.client): self.stored(r["model"]) for r in replies}
        cache = {**s["cache"], **fresh}
        if len(cache) <= self.exact_up_to:
            return {"cache": cache}
        return {"cache": cache, "sum": self.running_sum(s, cache, fresh)}

    def stored(self, model: Tree) -> Tree:
        """A model as the cache holds it."""
        if self.cache_dtype == "float32":
            return model
        return {name: t.bfloat16() if t.is_floating_point() else t for name, t in model.items()}

    def running_sum(self, s: State, cache: Tree, fresh: Tree) -> Tree:
        """sum_k n_k c_k, moved by what the active clients changed; taken anew every `REFRESH` rounds."""
        weights = self.weigh(s["sizes"].tolist())
        if "sum" not in s.body or (s.round + 1) % REFRESH == 0:
            seen = sorted(int(k) for k in cache)
            return weighted_sum([cache[str(k)] for k in seen], [weights[k] for k in seen])
        moved = [(m, weights[int(k)]) for k, m in sorted(fresh.items(), key=lambda item: int(item[0]))]
        moved += [(s["cache"][k], -weights[int(k)]) for k in sorted(fresh, key=int) if k in s["cache"]]
        return weighted_sum([s["sum"], *(m for m, _ in moved)], [1.0, *(w for _, w in moved)])

    def models(self, s: State) -> Mapping[str, Tree]:
        """The model of the active clients (`aca`) and, with the cache, that of all clients (`oca`)."""
        return {"aca": s["model"], "oca": self.overall(s)} if self.oca else {"aca": s["model"]}

    def overall(self, s: State) -> Tree:
        """OCA: the average over the last known model of every client."""
        weights = self.weigh(s["sizes"].tolist())
        seen = sorted(int(k) for k in s["cache"])
        if not seen:
            return s["model"]  # type: ignore[no-any-return]  # a state's entries are untyped
        models, parts = [s["cache"][str(k)] for k in seen], [weights[k] for k in seen]
        if "sum" in s.body:
            models, parts = [{name: t / sum(parts) for name, t in s["sum"].items()}], [sum(parts)]
        unseen = sum(weights) - sum(weights[k] for k in seen)
        if self.cache_init != "seen_only" and len(seen) < len(weights):
            # Clients not yet seen all hold the same model, so that they enter as one term.
            models, parts = [*models, s["start"] if self.cache_init == "init_model" else s["model"]], [*parts, unseen]
        return average(models, parts, s["model"])
