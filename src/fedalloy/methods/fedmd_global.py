"""FedMD+Global: the server learns from the clients' consensus too; clients may learn without forgetting it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.base.options import Count, NotNegative, Number, Positive, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS, Task
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.exchange import numbered, public_part
from fedalloy.methods.logit_exchange import LogitExchange
from fedalloy.train.fit import fit, frozen, params, predict
from fedalloy.train.losses import soft_answers, soft_loss
from fedalloy.train.norms import norms_kept


@method(
    "fedmd-global",
    label="FedMD+Global",
    card=Card(
        brief="FedMD with a model on the server",
        paper="Shi, Radu and Yang, 2022",
        distils="the mean answer of all active clients, on public samples, into the server's and each client's network",
        leaves_client="logits on public samples",
        public=True,
        clients_hold_public=True,
        any_network=True,
        tasks=TASKS,
        remembers="its model, as it was after pre-training, after the digest and after the local update",
        private=True,
        quick={
            "samples": 8,
            "digest_epochs": 2,
            "digest_batch": 4,
            "pretrain_public": 2,
            "pretrain_private": 2,
            "private_batch": 8,
        },
    ),
)
class FedMDGlobal(LogitExchange):
    """FedMD with a model on the server, which learns from the consensus like a client and is never sent.

    Before its first round a client trains on the public samples and then on its own until it has converged. A round
    (Algorithm 1):

    1. Global update: clients send logits of the round's public samples; the server averages them; the server's model
       and all clients' models train to approach the average (Eq. 1).
    2. Local update: clients train on their own data (Eq. 2). With `lwof`, learning without forgetting, they also stay
       near the answers of the model that they had just distilled (Eqs. 3 and 4).

    Views: `global` is the server's model; `initial`, `distilled` and `personal` are a client's after pre-training,
    after the global update and after the local update.

    >>> FedMDGlobal(lwof=True).rho
    2.0
    """

    variant: Literal["recommended", "paper"] = option("recommended", "whose choices: ours, or the paper's")
    samples: Count | None = by_variant(None, "public samples used in a round; unset: all of them", paper=5000)
    digest_epochs: Number = option(5, "passes over the round's public samples in the global update", repeats=True)
    server_digest_epochs: Number | None = option(None, "passes of the server's model there; unset: digest_epochs")
    digest_batch: Count = option(64, "batch size of the global update")
    loss: Literal["l1", "l2", "ce"] = option("l1", "distance from the consensus in Eq. 1")
    l1_reduction: Literal["mean", "sum_class"] = by_variant(
        "mean", "L1: the mean over all outputs, or their sum", only_with=("loss", "l1"), paper="sum_class"
    )
    lwof: bool = option(False, "learn without forgetting in the local update")
    beta: NotNegative = option(1.0, "weight of learning without forgetting in Eq. 4", only_with=("lwof", True))
    rho: Positive = option(2.0, "temperature of learning without forgetting in Eq. 3", only_with=("lwof", True))
    init_global: Literal["random", "public"] = option("random", "pre-train the server's model on public labels, or not")
    freeze_norm: bool = option(False, "leave clients' BatchNorm statistics as they are during the global update")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init_global == "public" and self.pretrain_public == 0:
            raise UsageError(f"{self.name}.init_global = 'public' needs pretrain_public of at least one epoch")

    def init(self, fed: Federation) -> Tree:
        """The server's model, of an architecture of its own."""
        return {**super().init(fed), "model": params(fed.build()), "digests": 0}

    def round(self, s: State, fed: Federation) -> State:
        """The global update, then the clients' local updates."""
        replies = fed.ask("answer", fed.sample())  # z_k
        if not replies:
            return s.next()
        consensus = self.consensus(replies, fed.task)  # (1/N) sum_k z_k
        model = self.global_model(s, fed, consensus)  # M_g
        fed.ask("learn", [r.client for r in replies], logits=consensus)  # M_k
        return s.next(model=model, digests=s["digests"] + 1)

    def global_model(self, s: State, fed: Federation, consensus: Tensor) -> dict[str, Any]:
        """M_g after the global update; nothing of it reaches a client."""
        public = self.part(fed)
        me = fed.learner(public.samples, steps=1)
        net = me.net(s["model"])
        if self.init_global == "public" and s["digests"] == 0:  # not in init, so that a round's costs include it
            self.learn_public(net, me, public_part(fed, None, "all"))
        self.approach(net, me, public, consensus, epochs=self.server_digest_epochs)  # Eq. 1
        return params(net)

    @action("logits ->")
    def learn(self, me: Client, msg: Message) -> Reply:
        """A client's part of the global update, then its local update."""
        net = me.net(me.memory["model"])
        with norms_kept(net, self.freeze_norm):
            self.approach(net, me, self.part(me), msg["logits"])  # Eq. 1
        distilled = params(net)
        self.update(net, me)  # Eq. 2 or 4
        initial = me.memory.get("initial", me.memory["model"])  # in its first round, the pre-trained model
        return reply(keep={"model": params(net), "distilled": distilled, "initial": initial})

    def unfit_for(self, task: Task) -> str | None:
        """Numbers have no cross-entropy."""
        if task == "numbers" and self.loss == "ce":
            return "loss = 'ce' needs classes or labels; for numbers write 'l1' or 'l2'"
        return super().unfit_for(task)

    def digest_loss(self, logits: Tensor, target: Tensor, task: Task = "classes") -> Tensor:
        """L_g of Eq. 1; the cross-entropy of several labels is binary."""
        if self.loss == "ce":
            return soft_loss(task, soft_answers(task, target), logits)
        if self.loss == "l2":
            return F.mse_loss(logits, target)
        if self.l1_reduction == "sum_class":
            return (logits - target).abs().sum(1).mean()
        return F.l1_loss(logits, target)

    def update(self, net: nn.Module, me: Client) -> None:
        """The local update; with LwoF, towards the answers of the network as it is now."""
        if not self.lwof:
            fit(net, me, lambda x, y: me.loss(net(x), y))  # Eq. 2
            return
        teacher, labels = frozen(me.net(params(net))), me.train.labels
        # Without augmentation the teacher sees the same inputs in every epoch, so it answers once.
        known = self.soften(predict(teacher, me.train), me.task) if me.augment is None else None

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            p = self.soften(teacher(x), me.task) if known is None else known[rows]
            logits = net(x)
            return me.loss(logits, labels[rows]) + self.beta * self.forgetting(p, logits, me.task)  # Eq. 4

        fit(net, me, loss, samples=numbered(me.train))

    def soften(self, logits: Tensor, task: Task = "classes") -> Tensor:
        """p(x; rho) of Eq. 3; numbers stay as they are."""
        return soft_answers(task, logits if task == "numbers" else logits / self.rho)

    def forgetting(self, p: Tensor, logits: Tensor, task: Task = "classes") -> Tensor:
        """H(p, q) of Eq. 3, summed over the outputs, mean over the batch; the squared error of numbers."""
        return soft_loss(task, p, logits if task == "numbers" else logits / self.rho)

    def models(self, s: State) -> Mapping[str, Tree]:
        """The server's model."""
        return {"global": s["model"]}

    def stages(self, me: Client) -> Mapping[str, Tree]:
        """The client's model after pre-training and after its last global update."""
        model = self.personal(me)
        return {stage: me.memory.get(stage, model) for stage in ("initial", "distilled")}
