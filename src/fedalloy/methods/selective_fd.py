"""Selective-FD: clients vote only on public samples that resemble their own, and only clear votes are learnt from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.base.registry import refuse_idle
from fedalloy.base.tree import Tree
from fedalloy.data.public import PublicSet
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, action, method, reply
from fedalloy.federation.gate import Contract, Sized, array, probabilities
from fedalloy.knowledge.density import REFERENCE_WIDTH, Width, select
from fedalloy.knowledge.exchange import numbered, public_part
from fedalloy.methods.soft_labels import SoftLabels
from fedalloy.train.losses import ce, soft_ce

Labels = Literal["soft", "hard"]
DROPPED = -1  # stands in the place of a label where there is none

# Options that say something only with one choice of another option; see `refuse_idle`.
SERVES = {
    **dict.fromkeys(("q", "width", "lam", "auxiliary", "known_share", "known_least"), ("client_selector", "kulsif")),
    "tau_server": ("server_selector", "l1"),
    "max_entropy": ("server_selector", "entropy"),
    "temperature": ("kd", "kl"),
    "kd": ("labels", "soft"),
}


@method(
    "selective-fd",
    label="Selective-FD",
    card=Card(
        paper="Shao, Wu and Zhang, Nature Communications 2024; as the baseline of KnFu, Seyedmohammadi et al., 2024",
        up="labels of the samples it selects",
        down="labels of the samples that survive",
        distils="the mean answer of the active clients that know a public sample, where it is clear",
        leaves_client="soft or hard labels of public samples, and which of them resemble its own",
        public=True,
        clients_hold_public=True,
        any_network=True,
        remembers="its model, and which public samples resemble its own",
        quick={"auxiliary": 20},
    ),
)
class SelectiveFD(SoftLabels):
    """Each client answers where it is competent, and only clear ensemble labels come back.

    A round, for the clients k that take part:

    1. Local training with cross-entropy.
    2. Client-side selector, mask_k: the public samples that the client votes on. It sends its labels of these only.
    3. Ensemble, on the server: q(x) = sum_k mask_k(x) f_k(x) / sum_k mask_k(x). Samples nobody selected are dropped.
    4. Server-side selector: what is ambiguous is dropped too. The labels of the samples that survive go to every client
       that answered, also to one that voted on none. In a round in which none survive nobody fine-tunes, unless on the
       public labels (`ce_on = "public"`).
    5. Fine-tuning on these samples, with the cross-entropy of the soft labels; the public set needs no labels.

    Client-side, `client_selector`:

    * `"kulsif"`, the paper's: samples whose density ratio is above the `q`-quantile of the client's own, by
      `knowledge.density`, where `width`, `lam`, `auxiliary`, `known_share` and `known_least` are explained. It is
      estimated once, in the client's first round, for the whole public set and in the space of the inputs; the paper
      takes features of a pretrained network for natural images.
    * `"label_match"`: in each round, the samples whose label its model predicts, which needs a labelled public set.
    * `"none"`: all of them.

    Server-side, `server_selector`:

    * `"l1"`, the paper's: x survives if the L1 distance of q(x) from the nearest one-hot vector, which is
      2 (1 - max_c q_c(x)), is at most `tau_server`. The paper's thresholds are not known here and the authors' code has
      no such selector: 2, the default, keeps everything, and 0 keeps only one-hot vectors.
    * `"entropy"`: if the entropy of q(x) is at most the share `max_entropy` of log C, that of a guess among C outputs.
      1 keeps everything, 0 only one-hot vectors.
    * `"none"`: all of them.

    `labels = "hard"`: one class travels for each sample, both ways. The server averages the votes as one-hot vectors,
    selects as above and sends the class with most votes, the lowest of equals; clients learn it by cross-entropy.

    What KnFu compares itself with under this name filters by the transfer set's labels and by entropy, and fine-tunes
    like KnFu, by Eq. 10: `client_selector = "label_match"`, `server_selector = "entropy"`, `kd = "kl"`,
    `ce_on = "public"`. That follows KnFu's sentence about it, and is not the authors' code, which has KuLSIF, the soft
    labels alone and no server-side selector. Its thresholds are not given; with the default nearly all samples survive
    after some rounds on MNIST (results/knfu-mnist). With `ce_on = "public"` a fine-tuning passes over all samples of
    the round; each has its cross-entropy, and those that survive the second term besides. A batch takes the mean over
    *all* its samples in both terms, so that one without survivors has the first term only. With `"none"` or `"local"`
    it passes over the surviving samples alone. A client cannot be made to learn only where it voted itself.

    * `kd`: `"ce"` is the cross-entropy of the soft labels, `"kl"` KL(q || own answer), both softened by `temperature`.
    * The authors' code takes one local step on a batch of 64 and then 10 steps on one batch of 512 selected samples;
      here it is `tune_epochs` passes over `samples` samples, with the batches, optimiser and rate of the local work.
      Fine-tuning has none of its own, so that that schedule cannot be written.
    * There is no `combine` to bound one client: its vote is a probability vector, so that it moves a sample that v
      clients vote on by a share of 1/v at most; on samples that few vote on, and a client chooses where, that is much.
    * Which samples were selected travels as a mask of one byte for each sample of the round. Places of 8 bytes would
      be cheaper only for fewer than an eighth of them.

    >>> SelectiveFD(client_selector="label_match", server_selector="entropy", kd="kl", ce_on="public").max_entropy
    0.5
    """

    ce_on: Literal["public", "local", "none"] = "none"
    kd: Literal["ce", "kl"] = "ce"
    labels: Labels = "soft"
    client_selector: Literal["kulsif", "label_match", "none"] = "kulsif"
    q: float = 0.25
    width: Width = REFERENCE_WIDTH
    lam: float | None = None
    auxiliary: int = 250
    known_share: float = 0.05
    known_least: int = 50
    server_selector: Literal["l1", "entropy", "none"] = "l1"
    tau_server: float = 2.0
    max_entropy: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("q", 1), ("tau_server", 2), ("max_entropy", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise UsageError(f"{self.name}.{name} = {getattr(self, name)} must lie in [0, {most}]")
        refuse_idle(self, self.name, SERVES)

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing; labels that are needed must be there, and the density's options possible."""
        if self.client_selector == "label_match" and fed.public is not None and not fed.public.labelled:
            raise UsageError(
                f"{self.name}.client_selector = 'label_match' needs labels; "
                "write public.labelled = true, or client_selector = 'kulsif'"
            )
        if self.client_selector == "kulsif":
            self.resembling(torch.zeros(2, 1), torch.zeros(1, 1), torch.Generator())  # only to see that it can be done
        return super().init(fed)

    # --- a client ---------------------------------------------------------------------------------------------------

    @action
    def learn(self, me: Client, msg: Message) -> Reply:
        """Local training, then labels for those of the round's public samples that the client selects."""
        done = super().learn(me, msg)
        soft, keep = done.body["soft"], dict(done.keep or {})
        part, whole = self.part(me), public_part(me, None, "all")
        mask = torch.ones(len(soft), dtype=torch.bool, device=soft.device)
        if self.client_selector == "label_match":
            mask = soft.argmax(1) == part.labels
        elif self.client_selector == "kulsif":
            if "familiar" not in keep:
                keep["familiar"] = self.resembling(me.train.inputs, whole.inputs, me.rng("selector"))
            mask = keep["familiar"][numbered(whole.samples).y[part.samples.index]]
        return reply(keep=keep, answers=self.table(mask, soft[mask]))

    def resembling(self, own: Tensor, public: Tensor, stream: torch.Generator) -> Tensor:
        """The client-side selector's mask over public inputs."""
        options: dict[str, Any] = {name: getattr(self, name) for name in ("q", "width", "lam", "auxiliary")}
        return select(own, public, stream, share=self.known_share, least=self.known_least, **options)

    def table(self, mask: Tensor, soft: Tensor) -> Tree:
        """What travels: which of the round's samples, and a label for each of these."""
        return {"mask": mask, self.labels: soft if self.labels == "soft" else soft.argmax(1)}

    def accepts(self, action: str, me: Client) -> Contract:
        """A mask over the round's samples with a label for each that survived, once all have answered."""
        return {} if action == "learn" else {"answers": selected(len(self.part(me)), me.outputs, self.labels)}

    @action
    def tune(self, me: Client, msg: Message) -> Reply:
        """Fine-tune on the samples that survived or, if their labels are used too, on all of the round's."""
        part = self.part(me)
        kept, fused = msg["answers"]["mask"], msg["answers"][self.labels]
        if self.ce_on == "public":
            survived, fused = fused, fused.new_full((len(kept), *fused.shape[1:]), DROPPED)
            fused[kept] = survived
        else:
            part = PublicSet(part.samples.subset(kept.nonzero().flatten()), part.labelled, part.holder)
        return self.tuned(me, part, fused)

    def distance(self, fused: Tensor, logits: Tensor) -> Tensor:
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

    # --- the server -------------------------------------------------------------------------------------------------

    def leaves(self) -> str:
        """What leaves a client: labels of the kind that was chosen."""
        return super().leaves().replace("soft or hard", self.labels)

    def expects(self, message: Message, fed: Federation) -> Contract:
        """A mask over the round's samples with a label for each one in it; nothing after fine-tuning."""
        if message.action != "learn":
            return {}
        return {"answers": selected(len(self.part(fed)), fed.outputs, self.labels)}

    def fuse(self, replies: Sequence[Message], fed: Federation) -> tuple[Mapping[int, Tree], Mapping[str, Any]]:
        """The ensemble's labels of the samples that survive, the same for everybody.

        Where none do nothing is sent, unless clients learn the public labels too, which is Eq. 10's first term.
        """
        masks = torch.stack([r["answers"]["mask"] for r in replies])
        votes = [r["answers"][self.labels] for r in replies]
        if self.labels == "hard":
            votes = [F.one_hot(classes, fed.outputs).float() for classes in votes]
        q = ensemble(masks, votes)
        kept = masks.any(0) & self.clear(q)
        if self.ce_on != "public" and not kept.any():
            return {}, {}
        sent = self.table(kept, q[kept].to(votes[0].dtype))
        return {r.client: {"answers": sent} for r in replies}, {}

    def clear(self, q: Tensor) -> Tensor:
        """The server-side selector's mask: which ensemble labels are not ambiguous."""
        if self.server_selector == "l1":
            return l1_to_one_hot(q) <= self.tau_server
        if self.server_selector == "entropy":
            guess = math.log(q.shape[1])
            entropy: Tensor = (
                torch.special.entr(q).sum(1).clamp_max(guess)
            )  # else rounding could lift it above a guess's
            return entropy <= self.max_entropy * guess
        return torch.ones(len(q), dtype=torch.bool, device=q.device)


def ensemble(masks: Tensor, votes: Sequence[Tensor]) -> Tensor:
    """q(x), the mean vote of the clients that selected x, in float64; zeros where nobody did.

    A row of `masks` is a client's; its votes are those on the samples that are true there.

    >>> ensemble(torch.tensor([[True, True, False], [True, False, False]]), [torch.eye(2), torch.tensor([[0.5, 0.5]])])
    tensor([[0.7500, 0.2500],
            [0.0000, 1.0000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    total = votes[0].new_zeros(masks.shape[1], votes[0].shape[1], dtype=torch.float64)
    for mask, own in zip(masks, votes, strict=True):
        total[mask] += own.double()
    return total / masks.sum(0).clamp_min(1)[:, None]


def l1_to_one_hot(q: Tensor) -> Tensor:
    """The L1 distance of each distribution from the nearest one-hot vector, which is 2 (1 - max_c q_c).

    >>> l1_to_one_hot(torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    tensor([0.5000, 0.0000])
    """
    return 2 * (1 - q.max(1).values)


def selected(rows: int, outputs: int, labels: Labels) -> Sized:
    """A mask over so many samples, and a label for each sample in it: a distribution over the outputs, or a class.

    >>> selected(2, 3, "hard")({"mask": torch.tensor([True, False]), "hard": torch.tensor([0, 1])})
    'hard has the shape (2,), not (1,)'
    """
    a_mask = array(rows, dtype=torch.bool)

    def a_label(count: int) -> Sized:
        classes = array(count, least=0, most=outputs - 1, dtype=torch.int64)
        return probabilities(count, outputs) if labels == "soft" else classes

    def check(value: Any) -> str | None:
        if not isinstance(value, Mapping) or value.keys() != {"mask", labels}:
            return f"is not a table of 'mask' and '{labels}'"
        if (fault := a_mask(value["mask"])) is not None:
            return f"mask {fault}"
        fault = a_label(int(value["mask"].sum()))(value[labels])
        return None if fault is None else f"{labels} {fault}"

    return Sized(check, {"mask": a_mask.largest, labels: a_label(rows).largest})
