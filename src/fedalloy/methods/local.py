"""Local: do not federate. The bound from below, with the budget of a federated run."""

from __future__ import annotations

from dataclasses import replace

from fedalloy.base.options import Number, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.knowledge.persistence import Persistent, kept
from fedalloy.train.fit import fit, params


class Alone(Method):
    """Every client keeps a model of its own; the server has nothing."""

    def init(self, fed: Federation) -> Tree:
        """The server has nothing."""
        return {}

    def personal(self, me: Client) -> Tree:
        """The client's own model; before its first round, the common start."""
        return me.memory["model"] if me.memory else params(me.build())


@method(
    "local",
    label="Local, equal rounds",
    card=Card(
        role="bound",
        brief="each alone, for the same rounds",
        paper="no sharing; with a second phase as in KnFu, Seyedmohammadi et al., 2024",
        leaves_client="nothing",
        tasks=TASKS,
        any_network=True,
        remembers="its model; with persist, its optimiser's state",
        private=True,
    ),
)
class Local(Persistent, Alone):
    """Every client trains alone, in the rounds in which it is sampled.

    A client has the same budget as under every other method of a comparison. Where only some clients take part in a
    round, it trains less than it would by itself; `local-converged` is what you have without federating.

    >>> Local().second_phase
    0
    """

    second_phase: Number = option(0, "more passes over the client's own data in each round, as in KnFu's 'Local'")

    def init(self, fed: Federation) -> Tree:
        """The server has nothing."""
        self.need_state(fed)
        return super().init(fed)

    def round(self, s: State, fed: Federation) -> State:
        """Tell the sampled clients that a round has begun."""
        fed.ask("train", fed.sample())
        return s.next()

    @action("->")
    def train(self, me: Client, msg: Message) -> Reply:
        """Go on training the client's own model."""
        net = me.net(self.personal(me))
        optimiser = self.optimiser(net, me)
        fit(net, me, lambda x, y: me.loss(net(x), y), optimiser=optimiser)
        if self.second_phase:
            more = replace(me.work, work="epochs", epochs=self.second_phase).steps_for(n=me.n, mean_size=me.n)
            fit(net, me, lambda x, y: me.loss(net(x), y), stage="second phase", steps=more, optimiser=optimiser)
        return reply(keep={"model": params(net), **kept(optimiser)})
