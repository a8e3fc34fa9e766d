"""q-FFL, optimised by q-FedAvg: clients with a larger loss weigh more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from fedalloy.aggregation.robust import bounded
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import Contract, array
from fedalloy.methods.fedavg import FedAvg, Weights
from fedalloy.train.fit import fit, params, predict
from fedalloy.train.losses import ce

MOST_GUESSES = 50  # times the loss of a model that guesses: no client may report more
LARGEST_Q = 100.0  # beyond it a loss to that power cannot be computed


@method(
    "qffl",
    label="q-FFL",
    card=Card(
        paper="Li et al., ICLR 2020",
        up="model, n, loss of the received model",
        down="model",
        leaves_client="model weights, mean training loss, number of samples",
    ),
)
class QFFL(FedAvg):
    """Minimise sum_k p_k F_k^{q+1} / (q+1): reweight by loss^q and take a step of an adapted size.

    F_k is the mean cross-entropy of the *received* model over the client's whole training set, before training (FedKF's
    code takes a random part of it). q = 0 is FedAvg with uniform weights, not with weights by size. The client sends
    its model and F_k, from which the server forms Delta_k and h_k: the same information in one scalar more than FedAvg.
    The paper draws clients with probability proportional to their size (`sampling = "size"`, which has an effect under
    `participation.policy = "fraction"` only), FedKF's code uniformly. In that code a client passes `epochs` times over
    its own data, also where the other methods take equal numbers of steps. `weights` moves no trained parameter: only
    buffers (BatchNorm statistics) and the view `oca` follow it.

    The default q = 1e-4, FedKF's best, is next to FedAvg with uniform weights: where one client's loss is ten times
    another's, their weights differ by 0.02 %.

    >>> QFFL(q=1.0).sampling
    'uniform'
    """

    q: float = 1e-4
    sampling: Literal["uniform", "size"] = "uniform"
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_bounds("clients are weighed by the losses that they report", "combine", "clip")
        if not 0 <= self.q <= LARGEST_Q:
            raise UsageError(f"qffl.q = {self.q} must lie between 0, FedAvg with uniform weights, and {LARGEST_Q}")

    def round(self, s: State, fed: Federation) -> State:
        """One round, with clients drawn uniformly or by size."""
        replies = fed.ask("train", fed.sample(by_size=self.sampling == "size"), model=s["model"])
        if not replies:
            return s.next()
        return s.next(model=self.aggregate(s, replies, fed), **self.cached(s, replies))

    def expects(self, message: Message, fed: Federation) -> Contract:
        """As under FedAvg, and the loss before training, which decides how much a client counts."""
        return {**super().expects(message, fed), "loss": array(least=0.0, most=MOST_GUESSES * math.log(fed.classes))}

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Measure the received model's loss, then train as FedAvg does."""
        net = me.net(msg["model"])
        with me.meter.paused():
            loss = ce(predict(net, me.train), me.train.labels)
        fit(net, me, lambda x, y: ce(net(x), y))
        return reply(model=params(net), loss=loss.float(), **self.about(me))

    def aggregate(self, s: State, replies: Sequence[Message], fed: Federation) -> Tree:
        """w <- w - sum_k Delta_k / sum_k h_k, with g_k = (w - w_k) / eta and eta the local learning rate."""
        eta = fed.work.lr_at(fed.round)
        if eta == 0:  # the end of a cosine schedule: nobody has moved
            return s["model"]  # type: ignore[no-any-return]  # a state's entries are untyped
        # Only trainable parameters: statistics have no gradient and must not enter the norm in h_k.
        trained = {name: s["model"][name] for name, p in fed.build().named_parameters() if p.requires_grad}
        losses = [float(r["loss"]) for r in replies]
        moved = q_step(trained, [r["model"] for r in replies], losses, self.q, eta, fed.cap)
        return {**super().aggregate(s, replies, fed), **moved}


def q_step(
    model: Tree, locals: Sequence[Tree], losses: Sequence[float], q: float, eta: float, cap: float | None = None
) -> dict[str, Any]:
    """The server's step on the parameters in `model`, in float64; no client has a larger share of it than `cap`.

    >>> w, clients = {"w": torch.tensor([1.0])}, [{"w": torch.tensor([0.9])}, {"w": torch.tensor([0.5])}]
    >>> round(q_step(w, clients, [1.0, 4.0], q=1.0, eta=0.1)["w"].item(), 7)
    0.7236842
    """
    moved = {name: torch.zeros(w.shape, dtype=torch.float64) for name, w in model.items()}
    h = 0.0
    shifted = [loss + 1e-10 for loss in losses]
    for local, f, a in zip(locals, shifted, bounded([f**q for f in shifted], cap), strict=True):
        gradient = {name: (w.double() - local[name].double()) / eta for name, w in model.items()}
        norm2 = sum(float((g**2).sum()) for g in gradient.values())
        h += q * (f ** (q - 1) if cap is None else a / f) * norm2 + a / eta
        for name, g in gradient.items():
            moved[name].add_(g, alpha=a)  # Delta_k = F_k^q g_k
    return {name: (w.double() - moved[name] / h).to(w.dtype) for name, w in model.items()}
