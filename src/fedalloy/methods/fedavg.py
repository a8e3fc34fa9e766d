"""FedAvg, and the cache of last known models (OCA) that works under every averaging method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from fedalloy.averaging import average
from fedalloy.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.losses import ce
from fedalloy.training import fit, params
from fedalloy.tree import Tree


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

    >>> FedAvg(weights="uniform").oca
    True
    """

    weights: Literal["size", "uniform"] = "size"
    oca: bool = True
    cache_init: Literal["seen_only", "init_model", "global"] = "seen_only"

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
        return {"cache": {**s["cache"], **{str(r.client): r["model"] for r in replies}}}

    def models(self, s: State) -> Mapping[str, Tree]:
        """The model of the active clients (`aca`) and, with the cache, that of all clients (`oca`)."""
        return {"aca": s["model"], "oca": self.overall(s)} if self.oca else {"aca": s["model"]}

    def overall(self, s: State) -> Tree:
        """OCA: the average over the last known model of every client."""
        weights = self.weigh(s["sizes"].tolist())
        seen = sorted(int(k) for k in s["cache"])
        cached = [s["cache"][str(k)] for k in seen]
        unseen = sum(w for k, w in enumerate(weights) if str(k) not in s["cache"])
        if self.cache_init == "seen_only" or unseen == 0:
            return average(cached, [weights[k] for k in seen], s["model"]) if cached else s["model"]
        # Clients not yet seen all hold the same model, so that they enter as one term.
        filler = s["start"] if self.cache_init == "init_model" else s["model"]
        return average([*cached, filler], [*(weights[k] for k in seen), unseen], s["model"])
