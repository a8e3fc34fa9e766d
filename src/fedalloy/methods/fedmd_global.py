"""FedMD+Global: the server learns from the clients' consensus too; clients may learn without forgetting it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.base.registry import refuse_idle
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.exchange import numbered, public_part
from fedalloy.methods.fedmd import LogitExchange
from fedalloy.train.fit import fit, frozen, params, predict
from fedalloy.train.losses import ce, soft_ce

# Options that say something only with one choice of another option; see `refuse_idle`.
SERVES = {"beta": ("lwof", True), "rho": ("lwof", True), "l1_reduction": ("loss", "l1")}


@method(
    "fedmd-global",
    label="FedMD+Global",
    card=Card(
        paper="Shi, Radu and Yang, 2022",
        up="logits on public samples",
        down="their mean",
        distils="the mean answer of all active clients, on public samples, into the server's and each client's network",
        leaves_client="logits on public samples",
        public=True,
        clients_hold_public=True,
        any_network=True,
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
    """FedMD with a model on the server, which learns from the consensus like a client and is never sent (Algorithm 1).

    Views: `global` is the server's model; `initial`, `distilled` and `personal` are each client's own after
    pre-training, after the digest and after the local update.

    * `loss`: Eq. 1 is an L1 norm; its footnote allows L2 and cross-entropy (of the softmax of both sides). Read
      literally, a norm sums over the outputs, which is `l1_reduction = "sum_class"`; the default `"mean"` is over the
      batch and all outputs, as FedMD's, with gradients as many times smaller as there are outputs. No recorded result
      has `"sum_class"`. L2 is the mean square.
    * `digest_epochs` is for clients and server alike: the server cannot be given more passes than they have.
    * `lwof`: learning without forgetting. The local update adds beta H(p, q) (Eqs. 3 and 4), where p is the answer of a
      frozen copy of the just distilled model, q that of the model in training, both at temperature `rho` and on the
      client's own samples; summed over all outputs (Eq. 3 lacks the sum), without a factor rho^2. The paper gives no
      value for rho; 2 is that of Li and Hoiem's learning without forgetting. Much hangs on it: results/
      fedmd-global-small has three values, though not all in one setting.
    * `init_global`: the paper does not say how the server's model begins; `"public"` trains it on the labels of the
      public samples before its first digest, as clients are.
    * `policy`: new public samples in every round, as in FedMD, or `"fixed"`; the text fits both.
    * `freeze_norm`: clients' BatchNorm layers use and keep their running statistics during the digest, which else
      move them towards the public samples. The server's own always follow the public samples: it sees no others.

    Pre-training "until converge" is that of FedMD; `initial` is its result, as in the paper's tables (its text once
    calls so the model "after transfer from server"). Whether a prediction is the best of all outputs or of the private
    classes is not stated either; `public.answers` chooses, of all outputs by default.

    >>> FedMDGlobal(lwof=True).rho
    2.0
    """

    digest_epochs: int = 5
    digest_batch: int = 64
    loss: Literal["l1", "l2", "ce"] = "l1"
    l1_reduction: Literal["mean", "sum_class"] = "mean"
    lwof: bool = False
    beta: float = 1.0
    rho: float = 2.0
    init_global: Literal["random", "public"] = "random"
    freeze_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 0:
            raise UsageError(f"{self.name}.beta = {self.beta} must not be negative")
        if self.rho <= 0:
            raise UsageError(f"{self.name}.rho = {self.rho} must be positive")
        if self.init_global == "public" and self.pretrain_public == 0:
            raise UsageError(f"{self.name}.init_global = 'public' needs pretrain_public of at least one epoch")
        refuse_idle(self, self.name, SERVES)

    def init(self, fed: Federation) -> Tree:
        """The server's model, of an architecture of its own."""
        return {**super().init(fed), "model": params(fed.build()), "digests": 0}

    def round(self, s: State, fed: Federation) -> State:
        """Global update: answers, consensus, digest; then the local updates (Algorithm 1)."""
        replies = fed.ask("answer", fed.sample())
        if not replies:
            return s.next()
        logits = self.consensus(replies)
        model = self.global_model(s, fed, logits)
        fed.ask("learn", [r.client for r in replies], logits=logits)
        return s.next(model=model, digests=s["digests"] + 1)

    def global_model(self, s: State, fed: Federation, logits: Tensor) -> dict[str, Any]:
        """M_g after the digest (Eq. 1); nothing of it reaches a client."""
        public = self.part(fed)
        me = fed.learner(public.samples, steps=1)
        net = me.net(s["model"])
        if self.init_global == "public" and s["digests"] == 0:  # not in init, so that a round's costs hold it
            self.learn_public(net, me, public_part(fed, None, "all"))
        self.approach(net, me, public, logits)
        return params(net)

    @action
    def learn(self, me: Client, msg: Message) -> Reply:
        """Digest the consensus (Eq. 1), then the local update (Eq. 2, or 4)."""
        net = me.net(me.memory["model"])
        with norms_kept(net) if self.freeze_norm else nullcontext():
            self.approach(net, me, self.part(me), msg["logits"])
        distilled = params(net)
        self.update(net, me)
        # Before its first digest the model is the one that pre-training left.
        initial = me.memory.get("initial", me.memory["model"])
        return reply(keep={"model": params(net), "distilled": distilled, "initial": initial})

    def digest_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """L_g of Eq. 1."""
        if self.loss == "ce":
            return soft_ce(target.softmax(1), logits)
        if self.loss == "l2":
            return F.mse_loss(logits, target)
        if self.l1_reduction == "sum_class":
            return (logits - target).abs().sum(1).mean()
        return super().digest_loss(logits, target)

    def update(self, net: nn.Module, me: Client) -> None:
        """The local update: CE, and with LwoF beta H(p, q) towards the model as it is now."""
        if not self.lwof:
            fit(net, me, lambda x, y: ce(net(x), y))
            return
        teacher = frozen(me.net(params(net)))
        # Without augmentation the teacher sees the same inputs in every epoch and answers once.
        known = self.soften(predict(teacher, me.train)) if me.augment is None else None
        labels = me.train.labels

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            p = self.soften(teacher(x)) if known is None else known[rows]
            logits = net(x)
            return ce(logits, labels[rows]) + self.beta * self.forgetting(p, logits)

        fit(net, me, loss, samples=numbered(me.train))

    def soften(self, logits: Tensor) -> Tensor:
        """p(x; rho) of Eq. 3."""
        return (logits / self.rho).softmax(1)

    def forgetting(self, p: Tensor, logits: Tensor) -> Tensor:
        """H(p, q) of Eq. 3, mean over the batch."""
        return soft_ce(p, logits / self.rho)

    def models(self, s: State) -> Mapping[str, Tree]:
        """The server's model."""
        return {"global": s["model"]}

    def stages(self, me: Client) -> Mapping[str, Tree]:
        """The client's model after pre-training and after its last digest."""
        model = self.personal(me)
        return {stage: me.memory.get(stage, model) for stage in ("initial", "distilled")}


@contextmanager
def norms_kept(net: nn.Module) -> Iterator[None]:
    """BatchNorm in a network in training uses its running statistics and leaves them as they are.

    >>> import torch
    >>> layer = nn.BatchNorm1d(1)
    >>> with norms_kept(layer.train()):
    ...     layer(torch.tensor([[5.0], [7.0]])).shape
    torch.Size([2, 1])
    >>> layer.running_mean
    tensor([0.])
    """
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)]
    hooks = [norm.register_forward_pre_hook(_to_eval) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _to_eval(norm: nn.Module, _: Any) -> None:
    norm.eval()  # at each pass, because the training loop sets the whole network to training
