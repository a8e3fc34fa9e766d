"""Selective-FD: clients vote only on public samples that resemble their own, and only clear votes are learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.base.options import Count, Number, Positive, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Task
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, action, method, reply
from fedalloy.knowledge.selectors import Selectors
from fedalloy.knowledge.votes import Labels, ensemble, selected
from fedalloy.methods.soft_labels import SoftLabels
from fedalloy.train.losses import ce, soft_ce

TuneOn = Literal["all", "kept", "voted"]
DROPPED = -1  # in place of a label, where there is none


@method(
    "selective-fd",
    label="Selective-FD",
    card=Card(
        brief="clients answer where they know",
        paper="Shao, Wu and Zhang, Nature Communications 2024; as the baseline of KnFu, Seyedmohammadi et al., 2024",
        distils="the mean answer of the active clients that know a public sample, where it is clear",
        leaves_client="soft or hard labels of public samples, and which of them resemble its own",
        public=True,
        clients_hold_public=True,
        any_network=True,
        remembers="its model, which public samples resemble its own, and where it voted; "
        "with persist, its optimiser's state",
        quick={"samples": 8},
    ),
)
class SelectiveFD(Selectors, SoftLabels):
    """Each client answers where it is competent, and only clear ensemble labels come back.

    A round, for the clients k that take part:

    1. Local training with cross-entropy.
    2. Client-side selector, mask_k: the public samples that resemble the client's own by the density ratio KuLSIF. The
       client sends its labels of these only.
    3. Ensemble, on the server: q(x) = sum_k mask_k(x) f_k(x) / sum_k mask_k(x). Samples nobody selected are dropped.
    4. Server-side selector: ambiguous labels are dropped. The others go to every client that answered.
    5. Fine-tuning on these samples, with the cross-entropy of the labels; the public set needs none of its own.

    The server notes in each round on how many samples anybody voted, and how many of these it kept.

    >>> SelectiveFD(variant="knfu").client_selector, SelectiveFD(variant="reference").tune_steps
    ('label_match', 10)
    """

    variant: Literal["recommended", "reference", "knfu"] = option(
        "recommended", "whose choices: ours, the authors' code's, or KnFu's"
    )
    samples: Count | None = by_variant(None, "public samples used in a round; unset: all of them", reference=512)
    tune_steps: Number = by_variant(
        0, "steps of fine-tuning; 0: as many as tune_epochs makes", repeats=True, reference=10
    )
    tune_batch: Count | None = by_variant(None, "batch size of fine-tuning; unset: the local work's", reference=512)
    tune_on: TuneOn | None = option(
        None,
        "samples to fine-tune on: all of the round, those kept, or those kept that the client voted on itself; "
        "unset: all with ce_on = 'public', else those kept",
    )
    ce_on: Literal["public", "local", "none"] = by_variant("none", "whose labels are also learned from", knfu="public")
    kd: Literal["ce", "kl"] = by_variant(
        "ce", "loss towards soft labels: CE(q, own) or KL(q || own)", only_with=("labels", "soft"), knfu="kl"
    )
    temperature: Positive = option(1.0, "softens both sides of the KL term", only_with=("kd", "kl"))
    labels: Labels = option("soft", "what travels for each sample: probabilities, or one class")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels == "hard" and self.temperature != 1:  # as kd = 'kl' may be a variant's, it is not refused there
            raise UsageError(f"{self.name}.temperature has no effect without labels = 'soft'; leave it out")
        if self.tune_on is None:
            object.__setattr__(self, "tune_on", "all" if self.ce_on == "public" else "kept")
        elif self.tune_on == "all" and self.ce_on != "public":
            raise UsageError(f"{self.name}.tune_on = 'all' has no effect without ce_on = 'public'; leave it out")

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing; labels that are needed must be there."""
        if self.client_selector == "label_match":
            self.need_labels(fed, "client_selector = 'label_match'", instead="client_selector = 'kulsif'")
        return super().init(fed)

    # --- a client ----------------------------------------------------------------------------------------------------

    @action("-> answers")
    def learn(self, me: Client, msg: Message) -> Reply:
        """Train locally, then send labels for those of the round's public samples that the client selects."""
        done = super().learn(me, msg)
        soft, keep = done.body["soft"], dict(done.keep or {})
        if self.client_selector == "kulsif" and "familiar" not in keep:
            keep["familiar"] = self.familiar(me)  # estimated once
        mask = self.competent(me, self.part(me), soft, keep.get("familiar"))
        if self.tune_on == "voted":
            keep["voted"] = mask
        return reply(keep=keep, answers=self.table(mask, soft[mask]))

    def table(self, mask: Tensor, soft: Tensor) -> Tree:
        """What travels: which of the round's samples, and a label for each of these."""
        return {"mask": mask, self.labels: soft if self.labels == "soft" else soft.argmax(1)}

    @action("answers ->")
    def tune(self, me: Client, msg: Message) -> Reply:
        """Fine-tune on the samples that were kept, some of them, or all of the round's (`tune_on`)."""
        part, table = self.part(me), msg["answers"]
        kept = table["mask"]
        fused = table[self.labels].new_full((len(kept), *table[self.labels].shape[1:]), DROPPED)
        fused[kept] = table[self.labels]
        if self.tune_on == "all":
            return self.tuned(me, part, fused)
        chosen = (kept & me.memory["voted"] if self.tune_on == "voted" else kept).nonzero().flatten()
        return self.tuned(me, PublicSet(part.samples.subset(chosen), part.labelled, part.holder), fused[chosen])

    def distance(self, fused: Tensor, logits: Tensor, task: Task = "classes") -> Tensor:
        """The loss towards the ensemble's labels, a mean over the whole batch, in which dropped samples count 0."""
        kept = fused.reshape(len(fused), -1)[:, 0] != DROPPED
        if not kept.any():
            return logits.new_zeros(())
        target, own = fused[kept], logits[kept]
        if self.labels == "hard":
            loss = ce(own, target)
        else:
            loss = soft_ce(target, own) if self.kd == "ce" else super().distance(target, own)
        return loss * kept.double().mean().item()

    # --- the server --------------------------------------------------------------------------------------------------

    def fuse(self, replies: Sequence[Message], fed: Federation) -> tuple[Mapping[int, Tree], Mapping[str, Any]]:
        """The ensemble's labels of the samples that survive, the same for everybody."""
        masks = torch.stack([r["answers"]["mask"] for r in replies])
        votes = [r["answers"][self.labels] for r in replies]
        if self.labels == "hard":
            votes = [F.one_hot(classes, fed.outputs).float() for classes in votes]
        q = ensemble(masks, votes)
        kept = masks.any(0) & self.clear(q)
        fed.note("public samples voted on", int(masks.any(0).sum()))
        fed.note("public samples kept", int(kept.sum()))
        if self.tune_on != "all" and not kept.any():  # nothing to learn
            return {}, {}
        sent = self.table(kept, q[kept].to(votes[0].dtype))
        return {r.client: {"answers": sent} for r in replies}, {}

    def example(self, name: str, party: Client | Federation) -> Any:
        """A mask over the round's samples with a label for each one in it."""
        if name != "answers":
            return super().example(name, party)
        return selected(len(self.part(party)), party.outputs, self.labels)

    def leaves(self) -> str:
        """What leaves a client: labels of the kind that was chosen."""
        return super().leaves().replace("soft or hard", self.labels)
