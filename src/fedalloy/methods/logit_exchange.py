"""What FedMD and FedMD+Global share: pre-training, logits on public samples, and their consensus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.base.options import Count, NotNegative, Number, Positive, option
from fedalloy.base.tree import Tree
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Task
from fedalloy.federation.core import Client, Federation, Message, Reply, action, reply
from fedalloy.federation.gate import array
from fedalloy.knowledge.exchange import OnPublicSamples, digest, public_part
from fedalloy.knowledge.pretraining import PretrainedAlone
from fedalloy.knowledge.teachers import LEAST, consensus, mean_centred_logits
from fedalloy.train.fit import Optimiser, params, predict


@dataclass(frozen=True, kw_only=True)
class Pretrained(PretrainedAlone, OnPublicSamples):
    """At its first participation, a client trains on the public samples and then on its own until it has converged."""

    pretrain_public: Number = option(20, "most epochs of pre-training on public samples; 0 leaves it out")
    public_batch: Count = option(128, "batch size of public pre-training")
    public_patience: Count = option(3, "epochs without a rise after which public pre-training ends")
    public_min_delta: NotNegative = option(0.005, "smallest gain in accuracy that counts as a rise there")

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing; labels that are needed must be there."""
        if self.pretrain_public:
            self.need_labels(fed, "pretrain_public", instead="pretrain_public = 0")
        return super().init(fed)

    def pretrained(self, me: Client) -> tuple[nn.Module, Optimiser]:
        """The client's network after the public samples and then its own, and the optimiser of the latter."""
        net = me.build()
        self.learn_public(net, me, public_part(me, None, "all"))
        optimiser = me.work.optimiser_for(net, round=1)
        self.learn_own(net, me, optimiser)
        return net, optimiser

    def learn_public(self, net: nn.Module, me: Client, public: PublicSet) -> None:
        """Train on the labels of the public samples, which are never augmented."""
        epochs, batch, patience = self.pretrain_public, self.public_batch, self.public_patience
        me = replace(me, augment=None, work=replace(me.work, class_weights=None))  # weights are about private labels
        self.converge(net, me, public.samples, epochs, batch, patience, self.public_min_delta, "public")


@dataclass(frozen=True, kw_only=True)
class LogitExchange(Pretrained):
    """Clients send logits on public samples before they train, and digest the consensus of all."""

    takes = frozenset({"combine"})

    digest_epochs: Number = option(1, "passes over the round's public samples in the digest", repeats=True)
    digest_batch: Count = option(256, "batch size of the digest")
    consensus_of: Literal["logits", "centred", "probabilities"] = option(
        "logits", "what is averaged: logits, logits less the client's mean over the samples, or probabilities"
    )
    clip_logits: Positive | None = option(
        None,
        "bound on logits, centred over the outputs, before they are combined; unset: none",
        only_with=("consensus_of", "logits", "centred"),
    )

    @action("-> logits")
    def answer(self, me: Client, msg: Message) -> Reply:
        """Logits for the round's public samples, in eval mode; a new client is pre-trained first."""
        if me.memory:
            net, keep = me.net(me.memory["model"]), None
        else:
            net, optimiser = self.pretrained(me)
            keep = {"model": params(net), **self.carried(optimiser)}
        return reply(keep=keep, logits=predict(net, self.part(me).samples))

    def carried(self, optimiser: Optimiser) -> dict[str, Any]:
        """What a client remembers of the optimiser of its private pre-training."""
        return {}

    def unfit_for(self, task: Task) -> str | None:
        """Some ways to combine logits are about classes: numbers have no probabilities and no common level."""
        if task == "numbers" and self.consensus_of != "logits":
            return f"consensus_of = '{self.consensus_of}' needs classes or labels; for numbers write 'logits'"
        if task != "classes" and self.clip_logits is not None:
            return f"clip_logits = {self.clip_logits} centres logits over classes; leave it out for this task"
        return super().unfit_for(task)

    def consensus(self, replies: Sequence[Message], task: Task = "classes") -> Tensor:
        """(1/K) sum_k z_k over those who answered, or what [aggregation] combines them to; sizes do not count."""
        rule, answers = self.aggregation, [r["logits"] for r in replies]
        if self.consensus_of == "probabilities" and task == "labels":  # logits of each label's mean probability
            return consensus([z.sigmoid() for z in answers], rule.combine, rule.trim).logit(eps=1e-6)
        if self.consensus_of == "probabilities":  # logits whose softmax is the mean probability
            return consensus([z.softmax(1) for z in answers], rule.combine, rule.trim).clamp_min(LEAST).log()
        if self.consensus_of == "centred":
            answers = [mean_centred_logits(z[None]) for z in answers]
        return consensus(answers, rule.combine, rule.trim, self.clip_logits)

    def approach(
        self,
        net: nn.Module,
        me: Client,
        public: PublicSet,
        target: Tensor,
        optimiser: Optimiser | None = None,
        epochs: int | None = None,
    ) -> None:
        """Digest: train a network to approach the consensus on the round's public samples."""
        epochs = self.digest_epochs if epochs is None else epochs

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            return self.digest_loss(net(x), target[rows], me.task) + self.penalty(net)

        digest(net, me, public.samples, loss, epochs=epochs, batch=self.digest_batch, optimiser=optimiser)

    def digest_loss(self, logits: Tensor, target: Tensor, task: Task = "classes") -> Tensor:
        """How far logits are from the consensus: the mean absolute error, over the batch and all outputs.

        Numbers are learned by squared error, as everywhere; this is ours, since the paper is about classes.
        """
        return F.mse_loss(logits, target) if task == "numbers" else F.l1_loss(logits, target)

    def example(self, name: str, party: Client | Federation) -> Any:
        """Logits for each of the round's public samples."""
        return array(len(self.part(party)), party.outputs) if name == "logits" else super().example(name, party)
