"""DS-FL: clients and server learn from the sharpened mean of all answers on unlabelled open data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedalloy.aggregation.robust import TRIMS, Combine, check_trim, combined_answers
from fedalloy.base.registry import refuse_idle
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Federation, State, method
from fedalloy.knowledge.exchange import digest
from fedalloy.methods.soft_labels import SoftLabels
from fedalloy.train.fit import params
from fedalloy.train.losses import soft_ce


@method(
    "ds-fl",
    label="DS-FL",
    card=Card(
        paper="Itahara, Nishio, Koda, Morikura and Yamamoto, IEEE TMC 2021",
        up="soft labels",
        down="soft labels",
        distils="the sharpened mean of all active clients' answers, on public samples, into them and a server's model",
        leaves_client="probabilities for public samples",
        public=True,
        clients_hold_public=True,
        any_network=True,
        remembers="its model",
        private=True,
        private_except={"ce_on": "local"},
    ),
)
class DSFL(SoftLabels):
    """Every client, and a model of the server's, learns from the mean answer of all, made more certain than it was.

    A round, for the clients k that take part: local training with cross-entropy; probabilities p_k for the round's
    open (public) samples; on the server the mean of the p_k, sharpened to softmax(mean / temperature); the clients, and
    the server's own model, then fine-tune on the open samples with the cross-entropy of these soft labels.

    * `aggregation`: `"era"`, entropy reduction aggregation, is the paper's proposal; `"mean"` is the plain mean, which
      it compares with. The softmax is taken of mean *probabilities*, not of their logarithms, so that a very large
      temperature gives the uniform distribution and not the mean.
    * `temperature` is the one of the sharpening; the networks' own answers are not softened.
    * `combine`, `trim`, not the paper's: instead of the mean, a median or trimmed mean of each probability, made to sum
      to 1 again, or the mean without the clients whose answers lie farthest from the others' (`krum`). A bound is not
      yet a gain: by `fedalloy bench-attacks -m ds-fl -a scaled-logits,rank-flip,label-flip -s 3` medians and trimmed
      means keep less accuracy than the mean, whose share for each client is bounded already; `krum` keeps no less.
    * The open set needs no labels. The paper draws some of it anew in each round: `samples`, with `policy = "fresh"`.
      Fine-tuning has the batches, optimiser and rate of the local work and none of its own, so that the paper's
      schedule (5 epochs, batches of 50, a rate of 0.1, 1,000 samples a round) can be had only if local work shares it.
    * `ce_on` and `kd_weight` are not the paper's: with them clients, but not the server's model, may learn from labels
      besides. The server's model starts like a client's of its architecture and is never sent; its view is `global`.

    >>> DSFL().temperature, DSFL().ce_on
    (0.1, 'none')
    """

    temperature: float = 0.1
    kd_weight: float = 1.0
    ce_on: Literal["public", "local", "none"] = "none"
    aggregation: Literal["era", "mean"] = "era"
    combine: Combine = "mean"
    trim: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trim(self.trim, f"{self.name}.trim")
        refuse_idle(self, self.name, {"temperature": ("aggregation", "era"), **TRIMS})

    def init(self, fed: Federation) -> Tree:
        """The server's own model."""
        return {**super().init(fed), "model": params(fed.build())}

    def round(self, s: State, fed: Federation) -> State:
        """One round: learn and answer, average and sharpen, distil into the clients and into the server's model."""
        replies = fed.ask("learn", fed.sample())
        if not replies:
            return s.next()
        soft = self.aggregate(torch.stack([r["soft"] for r in replies]))
        fed.ask("tune", [r.client for r in replies], soft=soft)
        return s.next(model=self.distil(s["model"], soft, fed))

    def aggregate(self, soft: Tensor) -> Tensor:
        """The mean over the clients that answered, or what `combine` says, sharpened."""
        mean = combined_answers(soft, self.combine, self.trim)
        return (sharpened(mean, self.temperature) if self.aggregation == "era" else mean).to(soft.dtype)

    def distance(self, fused: Tensor, logits: Tensor) -> Tensor:
        """Cross-entropy with the soft labels."""
        return soft_ce(fused, logits)

    def distil(self, model: Tree, soft: Tensor, fed: Federation) -> Tree:
        """The server's model after the clients' fine-tuning, which it does too."""
        public = self.part(fed).samples
        server = fed.learner(public, steps=1)
        net = server.net(model)
        digest(net, server, public, lambda x, rows: soft_ce(soft[rows], net(x)), epochs=self.tune_epochs, stage="tune")
        return params(net)

    def models(self, s: State) -> Mapping[str, Tree]:
        """The server's model."""
        return {"global": s["model"]}


def sharpened(mean: Tensor, temperature: float) -> Tensor:
    """Entropy reduction aggregation: softmax(mean / temperature) of mean probabilities.

    >>> sharpened(torch.tensor([[0.5, 0.3, 0.2]]), 0.1)
    tensor([[0.8438, 0.1142, 0.0420]])
    """
    return (mean / temperature).softmax(1)
