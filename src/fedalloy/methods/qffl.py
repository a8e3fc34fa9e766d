"""q-FFL, optimised by q-FedAvg: clients with a larger loss weigh more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from fedalloy.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.errors import UsageError
from fedalloy.losses import ce
from fedalloy.methods.fedavg import FedAvg
from fedalloy.training import fit, params, predict
from fedalloy.tree import Tree


@method(
    "qffl",
    label="q-FFL",
    card=Card(
        paper="Li et al., ICLR 2020",
        up="model, loss of the received model",
        down="model",
        leaves_client="model weights, mean training loss, number of samples",
    ),
)
class QFFL(FedAvg):
    """Minimise sum_k p_k F_k^{q+1} / (q+1): reweight by loss^q and take a step of an adapted size.

    F_k is the mean cross-entropy of the *received* model over the client's whole training set, before training (FedKF's
    code takes a random part of it). q = 0 is FedAvg with uniform weights, not with weights by size. The client sends its
    model and F_k, from which the server forms Delta_k and h_k: the same information in one scalar more than FedAvg. The
    paper draws clients with probability proportional to their size (`sampling = "size"`), FedKF's code uniformly.
    Buffers (BatchNorm statistics) are plainly averaged with uniform weights.

    >>> QFFL(q=1.0).sampling
    'uniform'
    """

    q: float = 1e-4
    sampling: Literal["uniform", "size"] = "uniform"
    weights: Literal["size", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        if self.q < 0:
            raise UsageError(f"qffl.q = {self.q} must not be negative; 0 is FedAvg with uniform weights")

    def round(self, s: State, fed: Federation) -> State:
        """One round, with clients drawn uniformly or by size."""
        replies = fed.ask("train", fed.sample(by_size=self.sampling == "size"), model=s["model"])
        if not replies:
            return s.next()
        return s.next(model=self.aggregate(s, replies, fed), **self.cached(s, replies))

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Measure the received model's loss, then train as FedAvg does."""
        net = me.net(msg["model"])
        with me.meter.paused():
            loss = ce(predict(net, me.train), me.train.labels)
        fit(net, me, lambda x, y: ce(net(x), y))
        return reply(model=params(net), loss=loss.float(), n=me.n)

    def aggregate(self, s: State, replies: Sequence[Message], fed: Federation) -> Tree:
        """w <- w - sum_k Delta_k / sum_k h_k, with g_k = (w - w_k) / eta and eta the local learning rate."""
        eta = fed.work.lr_at(fed.round)
        trainable = [name for name, p in fed.build().named_parameters() if p.requires_grad]
        return q_step(s["model"], [r["model"] for r in replies], [float(r["loss"]) for r in replies], self.q, eta) | {
            name: value for name, value in super().aggregate(s, replies, fed).items() if name not in trainable
        }


def q_step(model: Tree, locals: Sequence[Tree], losses: Sequence[float], q: float, eta: float) -> dict[str, Any]:
    """The server's step, in float64.

    >>> w, clients = {"w": torch.tensor([1.0])}, [{"w": torch.tensor([0.9])}, {"w": torch.tensor([0.5])}]
    >>> round(q_step(w, clients, [1.0, 4.0], q=1.0, eta=0.1)["w"].item(), 7)
    0.7236842
    """
    floats = [name for name, tensor in model.items() if tensor.is_floating_point()]
    moved = {name: torch.zeros(model[name].shape, dtype=torch.float64) for name in floats}
    h = 0.0
    for local, loss in zip(locals, losses, strict=True):
        f = loss + 1e-10
        gradient = {name: (model[name].double() - local[name].double()) / eta for name in floats}
        norm2 = sum(float((g**2).sum()) for g in gradient.values())
        h += q * f ** (q - 1) * norm2 + f**q / eta
        for name in floats:
            moved[name].add_(gradient[name], alpha=f**q)  # Delta_k = F_k^q g_k
    return {name: (model[name].double() - moved[name] / h).to(model[name].dtype) for name in floats}
