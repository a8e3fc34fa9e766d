"""FedAvg: average the models that clients trained on their own data."""

from __future__ import annotations

from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.averaged import Averaged
from fedalloy.train.fit import fit, params


@method(
    "fedavg",
    label="FedAvg",
    card=Card(brief="average of the clients' models", paper="McMahan et al., AISTATS 2017", private=True, tasks=TASKS),
)
class FedAvg(Averaged):
    """Average the active clients' models, weighted by their data (Algorithm 1).

    The view `aca` is the average of the active clients, which the next round starts from. The view `oca` (overall
    client average, FedKF's technique T1) averages the last known model of every client; see `aggregation/cache.py`.

    >>> FedAvg().aggregation.weights
    'size'
    """

    def init(self, fed: Federation) -> Tree:
        """Initialise w_0."""
        model = params(fed.build())
        return {"model": model, **self.cache.start(model, fed.sizes, self.aggregation, fed.random_net)}

    def round(self, s: State, fed: Federation) -> State:
        """Draw S_t; let its clients train w_t in parallel; w_{t+1} = sum_k (n_k / n) w_k."""
        replies = fed.ask("train", fed.sample(), model=s["model"])
        return self.averaged(s, replies, fed)

    @action("model -> model, n, counts if tells_counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """ClientUpdate(k, w): epochs of mini-batch SGD on cross-entropy."""
        net = me.net(msg["model"])
        fit(net, me, lambda x, y: me.loss(net(x), y))
        return reply(model=params(net), **self.about(me))
