"""What KnFu and the methods beside it share: learn, answer on public samples, fuse the answers, fine-tune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedalloy.base.tree import Tree
from fedalloy.data.public import PublicSet
from fedalloy.errors import UsageError
from fedalloy.federation.core import Client, Federation, Message, Reply, State, action, reply
from fedalloy.federation.gate import Contract, probabilities
from fedalloy.knowledge.exchange import OnPublicSamples, digest
from fedalloy.train.fit import batches, fit, params, predict
from fedalloy.train.losses import ce, kl

FLOOR = 1e-12  # below it a probability counts as this, so that its logarithm exists


@dataclass(frozen=True, kw_only=True)
class SoftLabels(OnPublicSamples):
    """Clients with networks of their own exchange probabilities on public samples, after their local training.

    A round has two exchanges: clients train on their own data and answer on the round's public samples; the server
    fuses the answers, and clients fine-tune on CE(labels) + kd_weight KL(fused || own answer) (KnFu, Eq. 10).

    * `samples`, `policy`: as in `OnPublicSamples`; new public samples in every round, if not all.
    * `temperature` softens both sides of the KL term; the fused answers, being probabilities, are softened as
      F^(1/T) / sum F^(1/T). `kd_weight` is temperature^2 unless it is given: KnFu squares its lambda, which it calls
      a temperature in one place and a weight in another.
    * `ce_on`: the labels of the first term are the public samples' as in Eq. 10, the client's own as in the text below
      it, or none.
    """

    tune_epochs: int = 1
    temperature: float = 1.0
    kd_weight: float | None = None
    ce_on: Literal["public", "local", "none"] = "public"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise UsageError(f"{self.name}.temperature = {self.temperature} must be positive")
        if self.tune_epochs < 0 or (self.kd_weight or 0) < 0:
            raise UsageError(f"{self.name}.tune_epochs and kd_weight must not be negative")

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing; public samples and labels that are needed must be there."""
        if self.ce_on == "public" and fed.public is not None and not fed.public.labelled:
            raise UsageError(
                f"{self.name}.ce_on = 'public' needs labels; write public.labelled = true, or ce_on = 'none'"
            )
        if fed.public is not None:
            self.part(fed)  # refuses now what no round could draw
        return {}

    def round(self, s: State, fed: Federation) -> State:
        """One round: learn and answer, fuse, fine-tune."""
        replies = fed.ask("learn", fed.sample())
        if not replies:
            return s.next()
        fused, notes = self.fuse(replies, fed)
        fed.ask("tune", fused)
        return s.next(**notes)

    @action
    def learn(self, me: Client, msg: Message) -> Reply:
        """Local training, then probabilities for the round's public samples, in eval mode (KnFu, Eqs. 3 and 4)."""
        net = me.net(self.personal(me))
        fit(net, me, lambda x, y: ce(net(x), y))
        return reply(keep={**me.memory, "model": params(net)}, soft=predict(net, self.part(me).samples).softmax(1))

    def expects(self, message: Message, fed: Federation) -> Contract:
        """A distribution over the outputs for each of the round's public samples; nothing after fine-tuning."""
        return {"soft": probabilities(len(self.part(fed)), fed.outputs)} if message.action == "learn" else {}

    def accepts(self, action: str, me: Client) -> Contract:
        """A distribution over the outputs for each of the round's public samples, once all have answered."""
        return {} if action == "learn" else {"soft": probabilities(len(self.part(me)), me.outputs)}

    def fuse(self, replies: Sequence[Message], fed: Federation) -> tuple[Mapping[int, Tree], Mapping[str, Any]]:
        """What each client is sent, and what the server notes of it."""
        raise UsageError(f"the method {self.name} has no fuse(self, replies, fed); it says what each client is sent")

    @action
    def tune(self, me: Client, msg: Message) -> Reply:
        """Fine-tune on the public samples (KnFu, Eq. 10)."""
        return self.tuned(me, self.part(me), msg["soft"])

    def tuned(self, me: Client, public: PublicSet, fused: Tensor) -> Reply:
        """The client after fine-tuning on these samples, each with its fused answer."""
        net = me.net(me.memory["model"])
        weight = self.temperature**2 if self.kd_weight is None else self.kd_weight
        labels = public.labels if self.ce_on == "public" else None
        own = batches(me.n, me.work.batch, self.tune_epochs * len(public), me.rng("tune/own"))  # one for each step
        noise = me.rng("tune/own/augment")

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            logits = net(x)
            distance = weight * self.distance(fused[rows], logits)
            if labels is not None:
                return ce(logits, labels[rows]) + distance
            if self.ce_on == "local":
                mine, y = me.train.take(next(own))
                if me.augment is not None:
                    mine = me.augment(mine, noise)
                if len(y) == 1:  # which BatchNorm cannot take; twice the same has the same mean loss
                    mine, y = mine.repeat(2, *[1] * (mine.dim() - 1)), y.repeat(2)
                return ce(net(mine), y) + distance
            return distance

        digest(net, me, public.samples, loss, epochs=self.tune_epochs, stage="tune")
        return reply(keep={**me.memory, "model": params(net)})

    def distance(self, fused: Tensor, logits: Tensor) -> Tensor:
        """How far a network's answers are from the fused ones: KL(fused || own), both softened."""
        return kl(fused.clamp_min(FLOOR).log(), logits, self.temperature)

    def personal(self, me: Client) -> Tree:
        """The client's own model; before its first round, the common start of its architecture."""
        return me.memory["model"] if me.memory else params(me.build())
