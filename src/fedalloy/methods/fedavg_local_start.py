"""FedAvg from a start that clients have trained: the first model is the average of models that converged alone."""

from __future__ import annotations

from fedalloy.base.options import Count, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.pretraining import PretrainedAlone
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.fit import params


@method(
    "fedavg-local-start",
    label="FedAvg, local start",
    card=Card(
        role="control",
        brief="FedAvg from locally trained models",
        paper="Shi, Radu and Yang, 2022, as the baseline of FedMD+Global; after McMahan et al., AISTATS 2017",
        tasks=TASKS,
        quick={"pretrain_private": 2, "private_batch": 8},
    ),
)
class FedAvgLocalStart(PretrainedAlone, FedAvg):
    """FedAvg whose w_0 is not random: it is "initialised on local data", as the rows of FedMD+Global's Table 2.

    In the first round, the active clients train the common random model on their own samples until it has converged.
    The average of their models is w_0, and the round goes on as in FedAvg.

    >>> FedAvgLocalStart().pretrain_private
    25
    """

    pretrain_private: Count = option(25, "most epochs of pre-training on a client's own samples")

    def init(self, fed: Federation) -> Tree:
        """The random model that clients start from."""
        return {**super().init(fed), "started": 0}

    def round(self, s: State, fed: Federation) -> State:
        """FedAvg's round; before the first one, w_0 = sum_k (n_k / n) w_k of the models that converged."""
        if s["started"]:
            return super().round(s, fed)
        replies = fed.ask("start", fed.sample(), model=s["model"])
        if not replies:
            return s.next()
        s = State(s.round, {**s.body, "model": self.aggregate(s, replies, fed), "started": 1})
        return self.averaged(s, fed.ask("train", [r.client for r in replies], model=s["model"]), fed)

    @action("model -> model, n, counts if tells_counts")
    def start(self, me: Client, msg: Message) -> Reply:
        """Train the model on the client's own samples until it has converged."""
        net = me.net(msg["model"])
        self.learn_own(net, me)
        return reply(model=params(net), **self.about(me))
