"""Local: do not federate. Two bounds from below, one with the budget of a federated run and one without a limit."""

from __future__ import annotations

from dataclasses import replace

from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.federation.gate import Contract
from fedalloy.knowledge.pretraining import rounds_until_converged
from fedalloy.train.fit import fit, params
from fedalloy.train.losses import ce


class Alone(Method):
    """Every client trains alone; nothing travels."""

    def init(self, fed: Federation) -> Tree:
        """The server has nothing."""
        return {}

    def expects(self, message: Message, fed: Federation) -> Contract:
        """Clients say nothing."""
        return {}

    def accepts(self, action: str, me: Client) -> Contract:
        """Clients are sent nothing."""
        return {}

    def personal(self, me: Client) -> Tree:
        """The client's own model; before its first round, the common start."""
        return me.memory["model"] if me.memory else params(me.build())


@method(
    "local",
    label="Local, equal rounds",
    card=Card(
        paper="no sharing; with a second phase as in KnFu, Seyedmohammadi et al., 2024",
        up="nothing",
        down="nothing",
        leaves_client="nothing",
        any_network=True,
        remembers="its model",
        private=True,
    ),
)
class Local(Alone):
    """Every client trains alone, round after round, in the rounds in which it is sampled.

    So it has the same budget as under every other method of a comparison, as in papers. Where only some clients take
    part in a round, that is less than a client would train by itself: what you have without federating is
    `local-converged`.

    KnFu's distillation methods spend two phases a round, local training and fine-tuning on a transfer set of the same
    size; its "Local" spends both on local data. `second_phase` is that many more passes over the client's own data,
    drawn in an order of their own; 0 is plain local training.

    >>> Local().second_phase
    0
    """

    second_phase: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.second_phase < 0:
            raise UsageError(f"local.second_phase = {self.second_phase} must not be negative")

    def round(self, s: State, fed: Federation) -> State:
        """Tell the clients that a round has begun."""
        fed.ask("train", fed.sample())
        return s.next()

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Go on training the client's own model."""
        net = me.net(self.personal(me))
        fit(net, me, lambda x, y: ce(net(x), y))
        if self.second_phase:
            more = replace(me.work, work="epochs", epochs=self.second_phase).steps_for(n=me.n, mean_size=me.n)
            fit(net, me, lambda x, y: ce(net(x), y), stage="second phase", steps=more)
        return reply(keep={"model": params(net)})


@method(
    "local-converged",
    label="Local, converged",
    card=Card(
        paper="no sharing",
        up="nothing",
        down="nothing",
        leaves_client="nothing",
        any_network=True,
        remembers="its model",
        once=True,
        quick={"patience": 2},
    ),
)
class LocalConverged(Alone):
    """Every client trains alone until its own validation stops improving: what you have without federating.

    All clients train in round 1, whoever takes part in rounds, and the run ends with it: it depends on split and seed
    only, not on `rounds` or `participation`.

    A round of local work is that of `local`, with the same optimiser, learning rates and order of batches. A client
    first holds out the share `held_out` of its training samples and trains on the others until `patience` rounds of
    local work in a row answer them no better. Then it starts again and trains on all of its samples, up to the last
    round that was as good as the best one within a standard error, so that holding out costs it no data: what it then
    has is what `local` has after so many rounds with everybody taking part. Both trainings are counted in its costs.

    There is no limit on rounds, and none is needed: the accuracy on n held-out samples cannot rise more than n times.
    A client with fewer than 1 / `held_out` samples trains for `patience` rounds.

    >>> LocalConverged(held_out=0.0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: local-converged.held_out = 0.0 must lie between 0 and 1; 0.2 means a fifth
    """

    patience: int = 20
    held_out: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience < 1:
            raise UsageError(f"{self.name}.patience = {self.patience} must be 1 or more")
        if not 0 < self.held_out < 1:
            raise UsageError(f"{self.name}.held_out = {self.held_out} must lie between 0 and 1; 0.2 means a fifth")

    def round(self, s: State, fed: Federation) -> State:
        """Tell all clients to train; those that have trained do nothing."""
        fed.ask("train", range(len(fed.sizes)))
        return s.next()

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Find out how many rounds the client's own samples bear, then train on all of them for so many."""
        if me.memory:
            return reply()
        model: Tree = params(me.build())
        for t in range(1, 1 + rounds_until_converged(me, work_alone, patience=self.patience, held_out=self.held_out)):
            model = work_alone(replace(me, round=t), model)
        return reply(keep={"model": model})


def work_alone(me: Client, weights: Tree) -> Tree:
    """The client's own model after one more round of local work."""
    net = me.net(weights)
    fit(net, me, lambda x, y: ce(net(x), y))
    return params(net)
