"""FedMD: clients with networks of their own agree on public samples, digest the consensus and revisit their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.aggregation.robust import TRIMS, Combine, check_trim, clipped, combined
from fedalloy.base.registry import refuse_idle
from fedalloy.base.tree import Tree
from fedalloy.data.public import Policy, PublicSet
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import Contract, array
from fedalloy.knowledge.exchange import OnPublicSamples, digest, public_part
from fedalloy.knowledge.pretraining import train_until_converged
from fedalloy.methods.soft_labels import SoftLabels
from fedalloy.train.fit import Optimiser, fit, params, predict
from fedalloy.train.losses import ce
from fedalloy.train.optimisers import adam, kept_moments


@dataclass(frozen=True, kw_only=True)
class LogitExchange(OnPublicSamples):
    """What FedMD and FedMD+Global share: pre-trained clients that send logits, and their consensus.

    * `samples`, `policy`: as in `OnPublicSamples`.
    * `digest_epochs`, `digest_batch`: passes over the round's public samples, and their batches. Optimiser and learning
      rate are those of the local work.
    * `combine`, `trim`, `clip_logits`: the consensus is the plain mean, a median or trimmed mean of each number, or the
      mean without the clients whose answers lie farthest from the others' (`krum`), of answers that are centred and
      clipped first if a bound is given.
    * At its first participation a client trains on the public samples and then on its own until it has converged, for
      `pretrain_public` and `pretrain_private` epochs at most (0 leaves a part out). Batches, patience, min_delta and
      the share `held_out` are those of `fedalloy.knowledge.pretraining`.
    """

    digest_epochs: int = 1
    digest_batch: int = 256
    combine: Combine = "mean"
    trim: float = 0.2
    clip_logits: float | None = None
    pretrain_public: int = 20
    public_batch: int = 128
    public_patience: int = 3
    public_min_delta: float = 0.005
    pretrain_private: int = 25
    private_batch: int = 32
    private_patience: int = 10
    private_min_delta: float = 0.001
    held_out: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("digest_epochs", "pretrain_public", "pretrain_private", "public_min_delta", "private_min_delta"):
            if getattr(self, name) < 0:
                raise UsageError(f"{self.name}.{name} = {getattr(self, name)} must not be negative")
        for name in ("digest_batch", "public_batch", "private_batch", "public_patience", "private_patience"):
            if getattr(self, name) < 1:
                raise UsageError(f"{self.name}.{name} = {getattr(self, name)} must be at least 1")
        if not 0 <= self.held_out < 1:
            raise UsageError(f"{self.name}.held_out = {self.held_out} must lie in [0, 1); 0.1 means a tenth")
        if self.clip_logits is not None and not self.clip_logits > 0:
            raise UsageError(f"{self.name}.clip_logits = {self.clip_logits} must be positive; leave it out for none")
        check_trim(self.trim, f"{self.name}.trim")
        refuse_idle(self, self.name, TRIMS)

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing; public samples and labels that are needed must be there."""
        if self.pretrain_public and fed.public is not None and not fed.public.labelled:
            raise UsageError(
                f"{self.name}.pretrain_public needs labels; write public.labelled = true, or pretrain_public = 0"
            )
        if fed.public is not None:
            self.part(fed)  # refuses now what no round could draw
        return {}

    def uncovered(self) -> str | None:
        """Held-out samples choose among the models of the pre-training, which no noise hides."""
        if self.pretrain_private and self.held_out:
            return f"{self.name}.held_out = {self.held_out} (write 0) uses a client's samples"
        return super().uncovered()

    @action
    def answer(self, me: Client, msg: Message) -> Reply:
        """Logits for the round's public samples, in eval mode; a client that is new is pre-trained first."""
        net = me.net(me.memory["model"]) if me.memory else self.pretrained(me)
        keep = None if me.memory else {"model": params(net)}
        return reply(keep=keep, logits=predict(net, self.part(me).samples))

    def expects(self, message: Message, fed: Federation) -> Contract:
        """Logits for each of the round's public samples; nothing after the digest."""
        return {"logits": array(len(self.part(fed)), fed.outputs)} if message.action == "answer" else {}

    def accepts(self, action: str, me: Client) -> Contract:
        """The consensus on the round's public samples, once all have answered."""
        return {} if action == "answer" else {"logits": array(len(self.part(me)), me.outputs)}

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

    def consensus(self, replies: Sequence[Message], key: str = "logits") -> Tensor:
        """(1/K) sum_k z_k over those who answered, whatever their sizes: in float64, cast once."""
        answers: list[Mapping[str, Tensor]] = [{key: r[key]} for r in replies]
        if self.clip_logits is not None:
            answers = [{key: clipped(a[key], self.clip_logits)} for a in answers]
        found: Tensor = combined(answers, [1.0] * len(answers), answers[0], self.combine, self.trim)[key]
        return found

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

    def penalty(self, net: nn.Module) -> Tensor | float:
        """What is added to every loss."""
        return 0.0

    def personal(self, me: Client) -> Tree:
        """The client's own model; before its first round, the common start of its architecture."""
        return me.memory["model"] if me.memory else params(me.build())


@method(
    "fedmd",
    label="FedMD",
    card=Card(
        paper="Li and Wang, 2019; mode 'knfu': as the baseline of KnFu, Seyedmohammadi et al., 2024",
        up="logits on public samples",
        down="their mean",
        distils="the mean answer of all active clients, on public samples, into each client's network",
        leaves_client="logits on public samples",
        public=True,
        clients_hold_public=True,
        any_network=True,
        remembers="its model; with Adam, two sets of moments",
        private=True,
        private_except={"ce_on": "local"},
        quick={
            "samples": 8,
            "digest_batch": 8,
            "pretrain_public": 2,
            "pretrain_private": 2,
            "private_batch": 8,
        },
    ),
)
class FedMD(LogitExchange, SoftLabels):
    """Agree on the logits of public samples, regress to their mean, go back to the private data.

    `mode = "original"`. Before the first round a client trains on the public and then on its own samples. In a round
    clients send logits *before* they train; the server averages them with equal weights; each client digests the
    consensus (mean absolute error, a loss that the paper leaves open and its code chooses) and revisits its own data.
    The defaults are those of the code, which takes 5000 public samples a round, Adam with a rate of 1e-3 everywhere and
    private batches of 5; these belong to the experiment. Where the code stops pre-training by the private test set and
    keeps the last weights, here the share `held_out` of the training samples is held out and the best epoch is kept.
    With very few samples that does harm: of FedMD's own 18 samples a client, the default of 0.1 holds out one, which
    then decides alone; write `held_out = 0`, or a share that is less than one sample. `public_min_delta` is the code's
    for CIFAR; for EMNIST it has 0.001.

    * `policy`: public samples are drawn by class (`"stratified"`), as in the code.
    * `persist`: with `training.optimiser = "adam"`, digest and revisit each go on with the moments of their own last
      round, as in the code, but for the first revisit, which there goes on with the moments of private pre-training.
      SGD's momentum is fresh in every round.
    * `l2`: adds l2 ||w||^2 of the last linear layer's weights to every loss. The code has 1e-3, the paper nothing; off.

    `mode = "knfu"` is what KnFu compares itself with under this name: probabilities instead of logits, sent after
    local training, and a fine-tuning on CE + kd_weight KL towards their mean; see `knfu` for its options, `tune_epochs`
    to `ce_on`. If `samples` of the public set are used, they are drawn as KnFu and Selective-FD draw them: `policy` is
    `"fresh"` unless it is given. Options of the other mode are refused.

    >>> FedMD(mode="knfu", digest_epochs=3)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: fedmd.digest_epochs has no effect without mode = 'original'; leave it out
    """

    policy: Policy | None = None  # type: ignore[assignment]  # None: as the mode says
    mode: Literal["original", "knfu"] = "original"
    persist: bool = True
    l2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l2 < 0:
            raise UsageError(f"fedmd.l2 = {self.l2} must not be negative")
        own = {f.name for f in fields(LogitExchange)} | {"persist", "l2"}
        theirs = {f.name for f in fields(SoftLabels)} | {"combine", "trim"}
        for mode, only in (("original", own - theirs), ("knfu", theirs - own)):
            refuse_idle(self, self.name, dict.fromkeys(sorted(only), ("mode", mode)))

    @property
    def drawn_by(self) -> Policy:
        """How a round's samples are drawn: as written, or else as the mode's code or paper does."""
        return self.policy or ("stratified" if self.mode == "original" else "fresh")

    def init(self, fed: Federation) -> Tree:
        """The server remembers nothing."""
        if self.mode == "knfu":
            return SoftLabels.init(self, fed)
        for clients in fed.groups if self.l2 else ():
            self.penalty(fed.build(clients[0]))  # refuses now a network that has no such layer
        return LogitExchange.init(self, fed)

    def round(self, s: State, fed: Federation) -> State:
        """One round: answers, their consensus, digest and revisit."""
        if self.mode == "knfu":
            return SoftLabels.round(self, s, fed)
        replies = fed.ask("answer", fed.sample())
        if not replies:
            return s.next()
        fed.ask("revisit", [r.client for r in replies], logits=self.consensus(replies))
        return s.next()

    def uncovered(self) -> str | None:
        """What [privacy] does not cover; in KnFu's mode nothing is held out."""
        return SoftLabels.uncovered(self) if self.mode == "knfu" else super().uncovered()

    def expects(self, message: Message, fed: Federation) -> Contract:
        """Answers on the round's public samples: logits, or probabilities."""
        return SoftLabels.expects(self, message, fed) if self.mode == "knfu" else super().expects(message, fed)

    def accepts(self, action: str, me: Client) -> Contract:
        """The consensus: logits, or probabilities, which a median or trimmed mean need not leave with a sum of 1."""
        if self.mode != "knfu":
            return super().accepts(action, me)
        if action == "tune" and self.combine in ("median", "trimmed"):
            return {"soft": array(len(self.part(me)), me.outputs, least=0.0, most=1.0)}
        return SoftLabels.accepts(self, action, me)

    @action
    def revisit(self, me: Client, msg: Message) -> Reply:
        """Digest the consensus, then go back to the client's own data."""
        net = me.net(me.memory["model"])
        moments = {phase: self.moments(net, me, phase) for phase in ("digest", "revisit")} if self.keeps(me) else {}
        self.approach(net, me, self.part(me), msg["logits"], moments.get("digest"))
        fit(net, me, lambda x, y: ce(net(x), y) + self.penalty(net), optimiser=moments.get("revisit"))
        return reply(keep={"model": params(net), **{phase: kept_moments(own) for phase, own in moments.items()}})

    def keeps(self, me: Client) -> bool:
        """Whether moments outlive the round."""
        return self.persist and me.work.optimiser == "adam"

    def moments(self, net: nn.Module, me: Client, phase: str) -> torch.optim.Adam:
        """Adam as this phase left it in the client's last round."""
        parameters = [p for p in net.parameters() if p.requires_grad]
        return adam(parameters, me.work.lr_at(me.round), me.work.weight_decay, me.memory.get(phase))

    def penalty(self, net: nn.Module) -> Tensor | float:
        """l2 ||w||^2 of the last layer."""
        if self.l2 == 0:
            return 0.0
        linear = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise UsageError("fedmd.l2 needs a network with a linear layer; leave it out")
        return self.l2 * linear[-1].weight.square().sum()

    def fuse(self, replies: Sequence[Message], fed: Federation) -> tuple[Mapping[int, Tree], Mapping[str, Any]]:
        """The plain mean of the probabilities, for everybody."""
        mean = self.consensus(replies, "soft")
        return {r.client: {"soft": mean} for r in replies}, {}
