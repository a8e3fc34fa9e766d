"""MOON: clients represent inputs as the global model does, and not as their own previous model did."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Message, Reply, action, method, reply
from fedalloy.methods.fedavg import FedAvg
from fedalloy.nets.models import FeatureNet, in_two_parts
from fedalloy.train.costs import Meter
from fedalloy.train.fit import fit, frozen, params
from fedalloy.train.losses import ce


@method(
    "moon",
    label="MOON",
    card=Card(
        paper="Li, He and Song, CVPR 2021",
        up="model, n",
        down="model",
        features=True,
        remembers="its model as it was at the end of its last training",
    ),
)
class MOON(FedAvg):
    """FedAvg plus a contrastive term: near the global model's representation, far from the client's previous one.

    L = CE + mu l_con, where l_con compares the representations of the same batch by the model in training (z), by the
    model that was received (z_glob, the positive pair) and by the client's own model at the end of its last training
    (z_prev, the negative pair); both of these are frozen. The history is one model long, as in the paper's experiments.

    The representation is what enters the output layer: with `simple-cnn` the 256 numbers of MOON's projection head
    (`model.projection = true`), in a network without such a head the penultimate features, which is what FedDisco's and
    FedCOG's own versions of MOON compare.

    A client without a previous model trains as FedAvg does: the term needs one. The authors' code, and KDIA's, skip the
    term in the first round only, and later take a random network for clients never seen, for which there is no option
    here. It matters if few take part: with 10 of 100 clients in 60 rounds, 90 of 600 trainings are concerned. Only
    `simple-cnn` has a projection head. The paper's full text was not at hand; what is said of it is from its code and
    from papers that cite it.

    mu is tuned over {0.1, 1, 5, 10}: 5 is best on CIFAR-10, 1 on CIFAR-100 and Tiny-ImageNet, 1 is the code's default;
    KDIA takes 5 from {1, 5, 10}.

    >>> MOON(mu=1.0).tau
    0.5
    """

    mu: float = 5.0
    tau: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise UsageError(f"moon.mu = {self.mu} must not be negative; 0 is FedAvg")
        if self.tau <= 0:
            raise UsageError(f"moon.tau = {self.tau} must be positive")

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE + mu l_con; the client keeps what it ends with as its next previous model."""
        net = in_two_parts(me.net(msg["model"]), self.name)
        if me.memory:
            glob, prev = (in_two_parts(frozen(me.net(w)), self.name) for w in (msg["model"], me.memory["model"]))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.project(x)
            l_sup = ce(net.output(z), y)
            if not me.memory:
                return l_sup
            l_con = contrastive(z, seen(glob, x, me.meter), seen(prev, x, me.meter), self.tau)
            return l_sup + self.mu * l_con

        fit(net, me, loss)
        model = params(net)
        return reply(model=model, **self.about(me), keep={"model": model})


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
