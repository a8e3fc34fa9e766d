"""FedProx: keep each client near the model it was sent, and let slow ones do less."""

from __future__ import annotations

from typing import Any, Literal

from fedalloy.base.options import NotNegative, by_variant, option
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import whole
from fedalloy.federation.participation import Participation
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.fit import fit, params
from fedalloy.train.losses import sq_dist


@method(
    "fedprox",
    label="FedProx",
    card=Card(brief="FedAvg, pulled to the global model", paper="Li et al., MLSys 2020", private=True, tasks=TASKS),
)
class FedProx(FedAvg):
    """FedAvg plus a pull of mu/2 ||w - w^t||^2 to the received model, over trainable parameters, summed.

    With `participation.stragglers`, clients that have time for some of their epochs only are averaged all the same,
    where FedAvg leaves them out.

    >>> FedProx().mu, FedProx(variant="fedkf").mu
    (0.01, 0.001)
    """

    variant: Literal["recommended", "fedkf"] = option("recommended", "whose choices: ours or FedKF's")
    mu: NotNegative = by_variant(0.01, "weight of the pull to the received model; 0 is FedAvg", fedkf=1e-3)
    stragglers: Literal["partial", "drop"] = option(
        "partial", "average what stragglers have done, or leave them out; goes with participation.stragglers"
    )

    def idle(self, participation: Participation) -> str | None:
        """There may be no stragglers to leave out."""
        if self.stragglers == "partial" or participation.stragglers:
            return None
        return "stragglers = 'drop' has no effect without participation.stragglers"

    def round(self, s: State, fed: Federation) -> State:
        """FedAvg's round, in which each straggler stops after the epochs that it has time for (Algorithm 2)."""
        late = fed.stragglers() if self.stragglers == "partial" else {}
        asked: dict[int, dict[str, Any]] = {k: {"epochs": epochs} for k, epochs in late.items()}
        asked |= {k: {} for k in fed.sample()}
        return self.averaged(s, fed.ask("train", asked, model=s["model"]), fed)

    def example(self, name: str, party: Client | Federation) -> Any:
        """A straggler is told how many epochs it has time for."""
        return whole(1, party.work.epochs) if name == "epochs" else super().example(name, party)

    @action("model, epochs? -> model, n, counts if tells_counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE + mu/2 ||w - w^t||^2, by a straggler for fewer epochs."""
        net = me.net(msg["model"])
        steps = me.steps // me.work.epochs * msg["epochs"] if "epochs" in msg else me.steps
        fit(net, me, lambda x, y: me.loss(net(x), y) + self.mu / 2 * sq_dist(net, msg["model"]), steps=steps)
        return reply(model=params(net), **self.about(me))
