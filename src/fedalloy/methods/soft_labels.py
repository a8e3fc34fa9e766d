"""What KnFu and its relatives share: train, answer on public samples, fuse the answers, fine-tune."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedalloy.base.options import Count, NotNegative, Number, Positive, option
from fedalloy.base.tree import Tree
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import TASKS, Task
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, reply
from fedalloy.federation.gate import array, probabilities
from fedalloy.knowledge.exchange import OnPublicSamples, digest, own_batches
from fedalloy.knowledge.persistence import Persistent, kept
from fedalloy.train.fit import fit, params, predict
from fedalloy.train.losses import binary_kl, kl, soft_answers, soft_loss, task_loss

CARD = Card(
    paper="",  # and what is distilled: a method's own
    leaves_client="probabilities for public samples",
    public=True,
    clients_hold_public=True,
    any_network=True,
    remembers="its model; with persist, its optimiser's state",
    private=True,
    private_except={"ce_on": "local"},
    tasks=TASKS,
)
FLOOR = 1e-12  # smaller probabilities count as this, so that their logarithms exist


@dataclass(frozen=True, kw_only=True)
class SoftLabels(Persistent, OnPublicSamples):
    """Clients with networks of their own exchange probabilities on public samples, after their local training.

    A round has two exchanges. Clients train on their own data and answer on the round's public samples. The server
    fuses the answers, and clients fine-tune on CE(labels) + kd_weight KL(fused || own answer) (KnFu, Eq. 10). Both
    phases begin with a new optimiser; with `persist`, a client has one optimiser for both and for all rounds.

    Beyond the papers, which are about classes: with several labels a sample, clients exchange the probability of each
    and learn from the fused ones by binary KL; with numbers, they exchange predictions and learn by squared error.
    """

    tune_epochs: Number = option(
        1, "passes over the round's public samples in fine-tuning", only_with=("tune_steps", 0), repeats=True
    )
    tune_steps: Number = option(0, "steps of fine-tuning; 0: as many as tune_epochs makes", repeats=True)
    tune_batch: Count | None = option(None, "batch size of fine-tuning; unset: that of the local work")
    tune_lr: Positive | None = option(None, "learning rate of fine-tuning; unset: that of the local work")
    temperature: Positive = option(1.0, "softens both sides of the KL term")
    kd_weight: NotNegative | None = option(None, "weight of the KL term; unset: temperature^2")
    ce_on: Literal["public", "local", "none"] = option("public", "whose labels the cross-entropy term uses")

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing; labels that are needed must be there."""
        if self.ce_on == "public":
            self.need_labels(fed, "ce_on = 'public'", instead="ce_on = 'none'")
        self.need_state(fed)
        return super().init(fed)

    def round(self, s: State, fed: Federation) -> State:
        """Train and answer, fuse, fine-tune."""
        replies = fed.ask("learn", fed.sample())
        if not replies:
            return s.next()
        fused, notes = self.fuse(replies, fed)
        fed.ask("tune", fused)
        return s.next(**notes)

    def fuse(self, replies: Sequence[Message], fed: Federation) -> tuple[Mapping[int, Tree], Mapping[str, Any]]:
        """What each client is sent, and what the server notes of it."""
        raise UsageError(f"the method {self.name} has no fuse(self, replies, fed); it says what each client is sent")

    @action("-> soft")
    def learn(self, me: Client, msg: Message) -> Reply:
        """Train locally, then answer on the round's public samples, in eval mode."""
        net = me.net(self.personal(me))
        optimiser = self.optimiser(net, me)
        fit(net, me, lambda x, y: me.loss(net(x), y), optimiser=optimiser)  # KnFu, Eq. 3
        soft = soft_answers(me.task, predict(net, self.part(me).samples))  # KnFu, Eq. 4
        return reply(keep={**me.memory, "model": params(net), **kept(optimiser)}, soft=soft)

    @action("soft ->")
    def tune(self, me: Client, msg: Message) -> Reply:
        """Fine-tune on the round's public samples."""
        return self.tuned(me, self.part(me), msg["soft"])

    def tuned(self, me: Client, public: PublicSet, fused: Tensor) -> Reply:
        """The client after fine-tuning on these samples, each with its fused answer (KnFu, Eq. 10)."""
        net = me.net(me.memory["model"])
        optimiser = self.optimiser(net, me, lr=self.tune_lr)
        weight = self.temperature**2 if self.kd_weight is None else self.kd_weight
        labels = public.labels if self.ce_on == "public" else None
        steps = self.tune_steps or self.tune_epochs * len(public)  # one batch for each step, or more
        own = own_batches(me, steps, "tune/own")

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            logits = net(x)
            distance = weight * self.distance(fused[rows], logits, me.task)
            if labels is not None:
                return task_loss(me.task, logits, labels[rows]) + distance
            if self.ce_on == "local":
                x, y = next(own)
                return me.loss(net(x), y) + distance
            return distance

        digest(net, me, public.samples, loss, optimiser=optimiser, **self.schedule)
        return reply(keep={**me.memory, "model": params(net), **kept(optimiser)})

    @property
    def schedule(self) -> dict[str, Any]:
        """How long, and how, fine-tuning learns."""
        how = {"epochs": self.tune_epochs, "steps": self.tune_steps, "batch": self.tune_batch, "lr": self.tune_lr}
        return {**how, "stage": "tune"}

    def unfit_for(self, task: Task) -> str | None:
        """Numbers have no temperature."""
        if task == "numbers" and self.temperature != type(self)().temperature:
            return f"temperature = {self.temperature} softens probabilities, and numbers have none; leave it out"
        return super().unfit_for(task)

    def distance(self, fused: Tensor, logits: Tensor, task: Task = "classes") -> Tensor:
        """KL(fused || own); F^(1/T) / sum F^(1/T) softens the fused answers, which are probabilities.

        With several labels it is the mean of their binary KLs, and with numbers the squared error.
        """
        if task == "numbers":
            return soft_loss(task, fused, logits)
        if task == "labels":
            return binary_kl(fused.clamp(0, 1), logits, self.temperature)
        return kl(fused.clamp_min(FLOOR).log(), logits, self.temperature)

    def example(self, name: str, party: Client | Federation) -> Any:
        """For each of the round's public samples a distribution over the outputs, a share of each label, or numbers."""
        if name != "soft":
            return super().example(name, party)
        rows = len(self.part(party))
        if party.task == "classes":
            return probabilities(rows, party.outputs)
        least, most = (0.0, 1.0) if party.task == "labels" else (-math.inf, math.inf)
        return array(rows, party.outputs, least=least, most=most)
