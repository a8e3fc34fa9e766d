"""FedMD: clients with networks of their own agree on public samples, digest the consensus and revisit their data."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from fedalloy.base.options import Count, NotNegative, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.public import Policy
from fedalloy.data.samples import TASKS
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.persistence import Persistent, kept
from fedalloy.knowledge.pretraining import ConvergedBy
from fedalloy.methods.logit_exchange import LogitExchange
from fedalloy.train.fit import Optimiser, fit, params


@method(
    "fedmd",
    label="FedMD",
    card=Card(
        brief="agree on logits of public samples",
        paper="Li and Wang, 2019",
        distils="the mean answer of all active clients, on public samples, into each client's network",
        leaves_client="logits on public samples",
        public=True,
        clients_hold_public=True,
        any_network=True,
        tasks=TASKS,
        remembers="its model, and the states of two optimisers",
        private=True,
        quick={"samples": 8, "digest_batch": 8, "pretrain_public": 2, "pretrain_private": 2, "private_batch": 8},
    ),
)
class FedMD(Persistent, LogitExchange):
    """Agree on the logits of public samples, regress to their mean, go back to the private data (Algorithm 1).

    Before its first round a client trains on the public samples and then on its own until it has converged (transfer
    learning). A round, for the clients k that take part:

    1. Communicate: logits z_k of the round's public samples, *before* any training.
    2. Aggregate, on the server: the consensus, the plain mean of the z_k.
    3. Distribute and digest: each client trains to approach the consensus, by the mean absolute error.
    4. Revisit: each client trains on its own data.

    Digest and revisit each have an optimiser of their own. What KnFu's tables call FedMD is another method,
    `fedmd-knfu`.

    >>> FedMD(digest_epochs=3).policy
    'stratified'
    """

    variant: Literal["recommended", "reference"] = option("recommended", "whose choices: ours, or the authors' code's")
    samples: Count | None = by_variant(None, "public samples used in a round; unset: all of them", reference=5000)
    policy: Policy = option("stratified", "how a round's samples are drawn; by class", only_with=("samples",))
    converged_by: ConvergedBy = by_variant(
        "held_out",
        "whose accuracy ends pre-training: of held-out samples, best weights kept; of all, last ones kept",
        reference="training",
    )
    persist: bool = option(True, "carry the optimiser's states of digest and revisit over to the next round")
    from_pretraining: bool = by_variant(
        False,
        "the first revisit continues with the optimiser of private pre-training",
        reference=True,
        only_with=("persist", True),
    )
    l2: NotNegative = by_variant(0.0, "weight of ||w||^2 of the last linear layer in every loss", reference=0.001)

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing."""
        for clients in fed.groups if self.l2 else ():
            self.penalty(fed.build(clients[0]))  # refuses now a network that has no such layer
        return super().init(fed)

    def round(self, s: State, fed: Federation) -> State:
        """Communicate, aggregate, distribute; then clients digest and revisit."""
        replies = fed.ask("answer", fed.sample())
        if replies:
            fed.ask("revisit", [r.client for r in replies], logits=self.consensus(replies, fed.task))
        return s.next()

    @action("logits ->")
    def revisit(self, me: Client, msg: Message) -> Reply:
        """Digest the consensus, then go back to the client's own data."""
        net = me.net(me.memory["model"])
        digest = self.optimiser(net, me, "digest")
        self.approach(net, me, self.part(me), msg["logits"], digest)
        revisit = self.optimiser(net, me, "revisit")
        fit(net, me, lambda x, y: me.loss(net(x), y) + self.penalty(net), optimiser=revisit)
        return reply(keep={"model": params(net), **kept(digest, "digest"), **kept(revisit, "revisit")})

    def carried(self, optimiser: Optimiser) -> dict[str, Any]:
        """What the first revisit continues with."""
        return kept(optimiser, "revisit") if self.persist and self.from_pretraining else {}

    def penalty(self, net: nn.Module) -> Tensor | float:
        """l2 ||w||^2 of the last linear layer."""
        if self.l2 == 0:
            return 0.0
        linear = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise UsageError(f"{self.name}.l2 = {self.l2} needs a network with a linear layer; leave it out")
        return self.l2 * linear[-1].weight.square().sum()
