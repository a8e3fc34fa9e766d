"""DS-FL: clients and server learn from the sharpened mean of all answers on unlabelled open data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedalloy.base.options import Count, NotNegative, Number, Positive, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Task
from fedalloy.federation.core import Federation, State, method
from fedalloy.knowledge.exchange import digest
from fedalloy.knowledge.teachers import consensus, consensus_of_probabilities
from fedalloy.methods.soft_labels import CARD, SoftLabels
from fedalloy.train.fit import params
from fedalloy.train.losses import soft_loss


@method(
    "ds-fl",
    label="DS-FL",
    card=replace(
        CARD,
        brief="sharpened mean of clients' answers",
        paper="Itahara, Nishio, Koda, Morikura and Yamamoto, IEEE TMC 2021",
        distils="the sharpened mean of all active clients' answers, on public samples, into them and a server's model",
        quick={"samples": 8},
    ),
)
class DSFL(SoftLabels):
    """Every client, and a model on the server, learns from the sharpened mean answer of all clients.

    A round, for the clients k that take part:

    1. Local training with cross-entropy, then probabilities p_k for the round's open (public) samples.
    2. On the server, the mean of the p_k, sharpened to softmax(mean / temperature): entropy reduction aggregation.
    3. Clients, and the server's own model, fine-tune on the open samples with the cross-entropy of these soft labels.

    The open set needs no labels. The server's model is never sent; its view is `global`.

    >>> DSFL().temperature, DSFL().ce_on
    (0.1, 'none')
    """

    takes = frozenset({"combine"})

    variant: Literal["recommended", "paper"] = option("recommended", "whose choices: ours, or the paper's")
    samples: Count | None = by_variant(None, "public samples used in a round; unset: all of them", paper=1000)
    tune_epochs: Number = by_variant(
        1, "passes over the round's public samples in fine-tuning", only_with=("tune_steps", 0), repeats=True, paper=5
    )
    tune_batch: Count | None = by_variant(None, "batch size of fine-tuning; unset: that of the local work", paper=50)
    tune_lr: Positive | None = by_variant(
        None, "learning rate of fine-tuning; unset: that of the local work", paper=0.1
    )
    ensemble: Literal["era", "mean"] = option("era", "sharpen the mean answer (ERA), or take it as it is")
    temperature: Positive = option(
        0.1, "temperature of the sharpening; smaller values sharpen more", only_with=("ensemble", "era")
    )
    kd_weight: NotNegative = option(1.0, "weight of the soft labels beside those of ce_on")
    ce_on: Literal["public", "local", "none"] = option("none", "labels that clients also learn from (not in the paper)")

    def init(self, fed: Federation) -> Tree:
        """The server's own model starts like a client's of its architecture."""
        return {**super().init(fed), "model": params(fed.build())}

    def round(self, s: State, fed: Federation) -> State:
        """Train and answer, average and sharpen, distil into the clients and into the server's model."""
        replies = fed.ask("learn", fed.sample())
        if not replies:
            return s.next()
        soft = self.global_labels(torch.stack([r["soft"] for r in replies]), fed.task)
        fed.ask("tune", [r.client for r in replies], soft=soft)
        return s.next(model=self.distil(s["model"], soft, fed))

    def global_labels(self, soft: Tensor, task: Task = "classes") -> Tensor:
        """The mean over the clients that answered, or what [aggregation] combines them to, sharpened.

        Beyond the paper, each of several labels is sharpened as a choice of two, and the mean of numbers is not.
        """
        combine, trim = self.aggregation.combine, self.aggregation.trim
        if task == "classes":
            mean = consensus_of_probabilities(soft, combine, trim)
        else:
            mean = consensus(soft.double(), combine, trim)
        if self.ensemble == "era" and task == "labels":
            mean = ((2 * mean - 1) / self.temperature).sigmoid()  # the softmax of (p, 1 - p) / temperature
        elif self.ensemble == "era" and task == "classes":
            mean = sharpened(mean, self.temperature)
        return mean.to(soft.dtype)

    def distance(self, fused: Tensor, logits: Tensor, task: Task = "classes") -> Tensor:
        """Cross-entropy with the soft labels; the network's own answers are not softened."""
        return soft_loss(task, fused, logits)

    def distil(self, model: Tree, soft: Tensor, fed: Federation) -> Tree:
        """The server's model after the same fine-tuning as the clients'."""
        public = self.part(fed).samples
        server = fed.learner(public, steps=1)
        net = server.net(model)
        digest(net, server, public, lambda x, rows: soft_loss(fed.task, soft[rows], net(x)), **self.schedule)
        return params(net)

    def models(self, s: State) -> Mapping[str, Tree]:
        """The server's model."""
        return {"global": s["model"]}


def sharpened(mean: Tensor, temperature: float) -> Tensor:
    """Entropy reduction aggregation: softmax(mean / temperature) of mean probabilities, not of their logarithms.

    >>> sharpened(torch.tensor([[0.5, 0.3, 0.2]]), 0.1)
    tensor([[0.8438, 0.1142, 0.0420]])
    """
    return (mean / temperature).softmax(1)
