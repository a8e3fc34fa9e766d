"""Local, converged: what a client has without federating, when it trains for as long as that helps."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from annotated_types import Interval

from fedalloy.base.options import Count, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.pretraining import rounds_until_converged
from fedalloy.methods.local import Alone
from fedalloy.train.fit import fit, params


@method(
    "local-converged",
    label="Local, converged",
    card=Card(
        role="bound",
        brief="each alone, as long as it helps",
        paper="no sharing",
        leaves_client="nothing",
        tasks=TASKS,
        any_network=True,
        remembers="its model",
        once=True,
        quick={"patience": 2},
    ),
)
class LocalConverged(Alone):
    """Every client trains alone until its accuracy on held-out samples stops rising.

    All clients train in round 1, and the run ends with it: the result depends on split and seed, not on `rounds` or
    [participation]. A client first trains without its held-out samples, to find out how many rounds of local work help
    it; then it starts again and trains on all of its samples for that many rounds, so that holding out costs it no
    data. It ends with what `local` has after as many rounds with everybody taking part.

    >>> LocalConverged(held_out=0.0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: local-converged.held_out = 0.0 must be greater than 0
    """

    patience: Count = option(20, "rounds of local work without a better accuracy after which a client stops")
    held_out: Annotated[float, Interval(gt=0, lt=1)] = option(0.2, "share of a client's samples to validate on")

    def round(self, s: State, fed: Federation) -> State:
        """Tell all clients to train, whoever is sampled."""
        fed.ask("train", range(len(fed.sizes)))
        return s.next()

    @action("->")
    def train(self, me: Client, msg: Message) -> Reply:
        """Find out how many rounds help, then train on all samples for that many; do nothing a second time."""
        if me.memory:
            return reply()
        rounds = rounds_until_converged(me, one_round, patience=self.patience, held_out=self.held_out)
        model: Tree = params(me.build())
        for t in range(1, 1 + rounds):
            model = one_round(replace(me, round=t), model)
        return reply(keep={"model": model})


def one_round(me: Client, weights: Tree) -> Tree:
    """The client's own model after one more round of local work."""
    net = me.net(weights)
    fit(net, me, lambda x, y: me.loss(net(x), y))
    return params(net)
