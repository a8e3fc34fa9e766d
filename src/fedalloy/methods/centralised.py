"""Centralised: pool everything. The bound from above that every comparison needs."""

from __future__ import annotations

from collections.abc import Mapping

from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Federation, Method, State, method
from fedalloy.train.fit import fit, params


@method(
    "centralised",
    label="Centralised",
    card=Card(
        role="bound",
        brief="one model on all clients' data",
        paper="training on pooled data",
        up="all data, once",
        leaves_client="all training data",
        tasks=TASKS,
    ),
)
class Centralised(Method):
    """Train one model on all clients' data. A federation may not do this; only a simulation can.

    A round takes as many optimiser steps as its active clients take together, so that the curve can be compared with
    the others at an equal budget. The data counts as uploaded once.

    >>> Centralised().card.leaves_client
    'all training data'
    """

    def init(self, fed: Federation) -> Tree:
        """Start from the same model as every other method."""
        return {"model": params(fed.build())}

    def round(self, s: State, fed: Federation) -> State:
        """Go on training on the pool."""
        steps = sum(fed.steps(client) for client in fed.sample())
        me = fed.learner(fed.pool(), steps)
        net = me.net(s["model"])
        if steps:
            fit(net, me, lambda x, y: me.loss(net(x), y))
        return s.next(model=params(net))

    def models(self, s: State) -> Mapping[str, Tree]:
        """The one model."""
        return {"global": s["model"]}
