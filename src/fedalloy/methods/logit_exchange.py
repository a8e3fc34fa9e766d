"""What FedMD and FedMD+Global share: pre-training, logits on public samples, and their consensus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.base.options import Count, Fraction, NotNegative, Number, Positive, option
from fedalloy.base.tree import Tree
from fedalloy.data.public import PublicSet
from fedalloy.federation.core import Client, Federation, Message, Reply, action, reply
from fedalloy.federation.gate import array
from fedalloy.knowledge.exchange import OnPublicSamples, digest, public_part
from fedalloy.knowledge.pretraining import train_until_converged
from fedalloy.knowledge.teachers import consensus
from fedalloy.train.fit import Optimiser, params, predict
from fedalloy.train.losses import ce


@dataclass(frozen=True, kw_only=True)
class Pretrained(OnPublicSamples):
    """At its first participation, a client trains on the public samples and then on its own until it has converged."""

    pretrain_public: Number = option(20, "most epochs of pre-training on public samples; 0 leaves it out")
    public_batch: Count = option(128, "batch size of public pre-training")
    public_patience: Count = option(3, "epochs without a rise after which public pre-training ends")
    public_min_delta: NotNegative = option(0.005, "smallest gain in accuracy that counts as a rise there")
    pretrain_private: Number = option(25, "most epochs of pre-training on a client's own samples; 0 leaves it out")
    private_batch: Count = option(32, "batch size of private pre-training")
    private_patience: Count = option(10, "epochs without a rise after which private pre-training ends")
    private_min_delta: NotNegative = option(0.001, "smallest gain in accuracy that counts as a rise there")
    held_out: Fraction = option(0.1, "share of the samples held out in pre-training, to tell when it has converged")

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing; labels that are needed must be there."""
        if self.pretrain_public:
            self.need_labels(fed, "pretrain_public", instead="pretrain_public = 0")
        return super().init(fed)

    def pretrained(self, me: Client) -> nn.Module:
        """The client's network after the public samples and then its own."""
        net = me.build()
        self.learn_public(net, me, public_part(me, None, "all"))
        train_until_converged(
            net,
            me,
            me.train,
            lambda x, y: ce(net(x), y) + self.penalty(net),
            epochs=self.pretrain_private,
            batch=self.private_batch,
            patience=self.private_patience,
            min_delta=self.private_min_delta,
            held_out=self.held_out,
            stage="pretraining/private",
        )
        return net

    def learn_public(self, net: nn.Module, me: Client, public: PublicSet) -> None:
        """Train on the labels of the public samples, which are never augmented."""
        train_until_converged(
            net,
            replace(me, augment=None),
            public.samples,
            lambda x, y: ce(net(x), y) + self.penalty(net),
            epochs=self.pretrain_public,
            batch=self.public_batch,
            patience=self.public_patience,
            min_delta=self.public_min_delta,
            held_out=self.held_out,
            stage="pretraining/public",
        )

    def penalty(self, net: nn.Module) -> Tensor | float:
        """What is added to every loss."""
        return 0.0

    def uncovered(self) -> str | None:
        """Held-out samples choose among the models of private pre-training, and no noise hides that choice."""
        if self.pretrain_private and self.held_out:
            return f"{self.name}.held_out = {self.held_out} (write 0) uses a client's samples"
        return super().uncovered()


@dataclass(frozen=True, kw_only=True)
class LogitExchange(Pretrained):
    """Clients send logits on public samples before they train, and digest the consensus of all."""

    takes = frozenset({"combine"})

    digest_epochs: Number = option(1, "passes over the round's public samples in the digest")
    digest_batch: Count = option(256, "batch size of the digest")
    clip_logits: Positive | None = option(None, "bound on centred logits before they are combined; unset: none")

    @action("-> logits")
    def answer(self, me: Client, msg: Message) -> Reply:
        """Logits for the round's public samples, in eval mode; a new client is pre-trained first."""
        net = me.net(me.memory["model"]) if me.memory else self.pretrained(me)
        keep = None if me.memory else {"model": params(net)}
        return reply(keep=keep, logits=predict(net, self.part(me).samples))

    def consensus(self, replies: Sequence[Message]) -> Tensor:
        """(1/K) sum_k z_k over those who answered, or what [aggregation] combines them to; sizes do not count."""
        rule = self.aggregation
        return consensus([r["logits"] for r in replies], rule.combine, rule.trim, self.clip_logits)

    def approach(
        self, net: nn.Module, me: Client, public: PublicSet, target: Tensor, optimiser: Optimiser | None = None
    ) -> None:
        """Digest: train a network to approach the consensus on the round's public samples."""

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            return self.digest_loss(net(x), target[rows]) + self.penalty(net)

        digest(net, me, public.samples, loss, epochs=self.digest_epochs, batch=self.digest_batch, optimiser=optimiser)

    def digest_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """How far logits are from the consensus: the mean absolute error, over the batch and all outputs."""
        return F.l1_loss(logits, target)

    def example(self, name: str, party: Client | Federation) -> Any:
        """Logits for each of the round's public samples."""
        return array(len(self.part(party)), party.outputs) if name == "logits" else super().example(name, party)
