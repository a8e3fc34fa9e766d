"""q-FFL, optimised by q-FedAvg: clients with a larger loss weigh more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval

from fedalloy.aggregation.robust import bounded
from fedalloy.aggregation.rule import Weights
from fedalloy.base.options import by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import array
from fedalloy.federation.participation import Participation
from fedalloy.knowledge.averaged import models
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.fit import fit, params, predict

MOST_GUESSES = 50  # times the loss of a model that guesses: no client may report more


@method(
    "qffl",
    label="q-FFL",
    card=Card(
        brief="more weight to clients that lag",
        paper="Li et al., ICLR 2020",
        leaves_client="model weights, mean training loss, number of samples",
        tasks=TASKS,
    ),
)
class QFFL(FedAvg):
    """Minimise sum_k p_k F_k^{q+1} / (q + 1): reweight the clients by loss^q, and adapt the size of the step.

    F_k is the mean loss (for classes, cross-entropy) of the *received* model over the client's whole training set,
    before training. A client sends its model and F_k, one number more than in FedAvg; from these the server forms
    Delta_k and h_k. A loss beyond reason is refused, but nobody knows what is beyond reason for numbers.

    q = 0 is FedAvg with equal weights. A larger q also shortens the step, the more the farther clients move.

    >>> QFFL().q, QFFL(variant="fedkf").q, QFFL().aggregation.weights
    (0.1, 0.0001, 'uniform')
    """

    takes = frozenset({"weights=uniform"})  # losses weigh the clients; others would move buffers and `oca` only

    variant: Literal["recommended", "reference", "fedkf"] = option(
        "recommended", "whose choices: ours, those of the authors' code for its Vehicle data, or FedKF's"
    )
    q: Annotated[float, Interval(ge=0, le=100)] = by_variant(
        0.1, "how much more a larger loss counts; 0 is FedAvg with equal weights", reference=5.0, fedkf=1e-4
    )
    sampling: Literal["uniform", "size"] = by_variant(
        "uniform", "how participation.policy = 'fraction' draws clients: uniformly, or by size", reference="size"
    )

    @property
    def usual_weights(self) -> Weights:
        """All clients count alike where the loss does not weigh them."""
        return "uniform"

    def idle(self, participation: Participation) -> str | None:
        """Only one policy draws clients by their sizes."""
        if self.sampling == "uniform" or self.variant == "reference" or participation.policy == "fraction":
            return None
        return f"sampling = 'size' has no effect with participation.policy = '{participation.policy}'"

    def round(self, s: State, fed: Federation) -> State:
        """FedAvg's round, with clients drawn uniformly or by size."""
        return self.averaged(s, fed.ask("train", fed.sample(by_size=self.sampling == "size"), model=s["model"]), fed)

    def example(self, name: str, party: Client | Federation) -> Any:
        """The loss decides how much a client counts, so it must be within reason."""
        if name == "loss" and party.task == "numbers":  # nobody knows how far numbers are from a guess
            return array(least=0.0)
        if name == "loss":
            return array(least=0.0, most=MOST_GUESSES * math.log(party.classes if party.task == "classes" else 2))
        return super().example(name, party)

    @action("model -> model, n, loss")
    def train(self, me: Client, msg: Message) -> Reply:
        """Measure the received model's loss F_k, then train as FedAvg does."""
        net = me.net(msg["model"])
        with me.meter.paused(flops=True):
            loss = me.loss(predict(net, me.train), me.train.labels)
        fit(net, me, lambda x, y: me.loss(net(x), y))
        return reply(model=params(net), loss=loss.float(), **self.about(me))

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """w <- w - sum_k Delta_k / sum_k h_k for trained parameters; buffers have no gradient and are averaged."""
        eta = fed.work.lr_at(fed.round)
        if eta == 0:  # the end of a cosine schedule: nobody has moved
            return {"model": s["model"]}
        trained = {name: s["model"][name] for name, p in fed.build().named_parameters() if p.requires_grad}
        losses = [float(r["loss"]) for r in replies]
        return {"model": {**mean, **q_step(trained, models(replies), losses, self.q, eta, self.aggregation.cap)}}


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
        gradient = {name: (w.double() - local[name].double()) / eta for name, w in model.items()}  # g_k = (w - w_k)/eta
        norm2 = sum(float((g**2).sum()) for g in gradient.values())
        h += q * (f ** (q - 1) if cap is None else a / f) * norm2 + a / eta  # h_k = q F_k^{q-1} |g_k|^2 + F_k^q / eta
        for name, g in gradient.items():
            moved[name].add_(g, alpha=a)  # Delta_k = F_k^q g_k
    return {name: (w.double() - moved[name] / h).to(w.dtype) for name, w in model.items()}
