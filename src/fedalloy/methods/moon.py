"""MOON: clients represent inputs as the global model does, and not as their own previous model did."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.base.options import NotNegative, Positive, option
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Client, Message, Reply, action, method, reply
from fedalloy.methods.fedavg import FedAvg
from fedalloy.nets.models import FeatureNet, in_two_parts
from fedalloy.train.costs import Meter
from fedalloy.train.fit import fit, frozen, params


@method(
    "moon",
    label="MOON",
    card=Card(
        brief="contrast of representations",
        paper="Li, He and Song, CVPR 2021",
        features=True,
        tasks=TASKS,
        remembers="its model as it was at the end of its last training",
    ),
)
class MOON(FedAvg):
    """FedAvg plus a contrastive term: near the global model's representation, far from the client's previous one.

    The term compares the representations of one batch by three models: the one in training (z), the received one
    (z_glob, the positive pair) and the client's own at the end of its last training (z_prev, the negative pair). The
    latter two are frozen. The representation is what enters the output layer: with MOON's projection head, which
    `simple-cnn` has and `model.projection` gives to any other network, its 256 numbers, otherwise the penultimate
    features. In the first round nobody has a previous model, and clients train as in FedAvg; `unseen` says what happens
    later to a client that was never there.

    >>> MOON(mu=1.0).tau
    0.5
    """

    mu: NotNegative = option(5.0, "weight of the contrastive term; 0 is FedAvg")
    tau: Positive = option(0.5, "temperature of the cosines")
    unseen: Literal["random", "skip"] = option(
        "random",
        "the previous model of a client that was never there, after round 1: a random network of its own, as in MOON's "
        "and KDIA's code, or none, so that it trains as in FedAvg",
    )

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE + mu l_con; the client keeps what it ends with as its next previous model."""
        net = in_two_parts(me.net(msg["model"]), self.name)
        former = self.previous(me)
        if former is not None:
            glob, prev = (in_two_parts(frozen(n), self.name) for n in (me.net(msg["model"]), former))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.project(x)
            l_sup = me.loss(net.output(z), y)
            if former is None:
                return l_sup
            l_con = contrastive(z, seen(glob, x, me.meter), seen(prev, x, me.meter), self.tau)
            return l_sup + self.mu * l_con

        fit(net, me, loss)
        model = params(net)
        return reply(model=model, **self.about(me), keep={"model": model})

    def previous(self, me: Client) -> nn.Module | None:
        """The client's model at the end of its last training, or what stands for it."""
        if me.memory:
            return me.net(me.memory["model"])
        return me.random_net() if self.unseen == "random" and me.round > 1 else None


def contrastive(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """l_con = -log[ e^(cos(z, z_glob)/tau) / (e^(cos(z, z_glob)/tau) + e^(cos(z, z_prev)/tau)) ], mean over the batch.

    >>> import torch
    >>> east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(contrastive(east, east, north, tau=0.5).item(), 6)
    0.126928
    """
    z, z_glob, z_prev = F.normalize(z), F.normalize(z_glob), F.normalize(z_prev)
    # The two cosines are subtracted before the product with z: equal pairs then have no gradient, to the bit.
    return -F.logsigmoid((z * (z_glob - z_prev)).sum(1) / tau).mean()


def seen(net: FeatureNet, x: Tensor, meter: Meter) -> Tensor:
    """A frozen network's representation of a batch."""
    z = net.project(x)
    meter.count(z, 0.5)  # only the output layer is left out, so this is a whole pass, not the features' half
    return z
