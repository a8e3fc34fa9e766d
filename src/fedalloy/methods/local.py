"""Local: do not federate. The bound from below that every comparison needs."""

from __future__ import annotations

from dataclasses import replace

from fedalloy.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.errors import UsageError
from fedalloy.gate import Contract
from fedalloy.losses import ce
from fedalloy.training import fit, params
from fedalloy.tree import Tree


@method(
    "local",
    label="Local",
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
class Local(Method):
    """Every client trains alone, round after round, in the rounds in which it is sampled.

    So it has the same budget as under every other method of a comparison. Where only a fraction of the clients is
    sampled, that is less than a client alone could do: it trains in that fraction of the rounds. To see what it has
    without federating, run `local` with `participation.policy = "full"`, too.

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

    def init(self, fed: Federation) -> Tree:
        """The server has nothing."""
        return {}

    def round(self, s: State, fed: Federation) -> State:
        """Tell the clients that a round has begun."""
        fed.ask("train", fed.sample())
        return s.next()

    def expects(self, message: Message, fed: Federation) -> Contract:
        """Clients say nothing."""
        return {}

    def accepts(self, action: str, me: Client) -> Contract:
        """Clients are sent nothing."""
        return {}

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Go on training the client's own model."""
        net = me.net(self.personal(me))
        fit(net, me, lambda x, y: ce(net(x), y))
        if self.second_phase:
            more = replace(me.work, work="epochs", epochs=self.second_phase).steps_for(n=me.n, mean_size=me.n)
            fit(net, me, lambda x, y: ce(net(x), y), stage="second phase", steps=more)
        return reply(keep={"model": params(net)})

    def personal(self, me: Client) -> Tree:
        """The client's own model; before its first round, the common start."""
        return me.memory["model"] if me.memory else params(me.build())
