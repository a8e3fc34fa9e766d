"""FedAvgM: momentum on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from fedalloy.base.options import Fraction, Positive, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Card, Federation, Message, State, method
from fedalloy.methods.fedavg import FedAvg


@method(
    "fedavgm",
    label="FedAvgM",
    card=Card(brief="FedAvg with momentum at the server", paper="Hsu et al., 2019", private=True, tasks=TASKS),
)
class FedAvgM(FedAvg):
    """FedAvg whose average update D = w^{t-1} - avg passes through a velocity, in one of three forms.

    `heavy_ball`: v <- beta v + D, w <- w - server_lr v. `nesterov`: the same v, w <- w - server_lr (beta v + D).
    `ema`: v <- beta v + (1 - beta) D, w <- w - v. For a constant D, the first two move 1 / (1 - beta) times as far as
    the third: their betas do not mean the same. Only trainable parameters have a velocity; buffers are averaged.

    >>> FedAvgM().form, FedAvgM(variant="paper").form, FedAvgM(variant="kdia").form
    ('heavy_ball', 'nesterov', 'ema')
    """

    variant: Literal["recommended", "paper", "kdia"] = option(
        "recommended", "whose choices: ours, those of the paper's experiments, or KDIA's"
    )
    form: Literal["heavy_ball", "nesterov", "ema"] = by_variant(
        "heavy_ball", "how the velocity follows the updates and moves the model", paper="nesterov", kdia="ema"
    )
    momentum: Fraction = option(0.9, "beta, the share of the velocity that is kept")
    server_lr: Positive = option(1.0, "the server's learning rate", only_with=("form", "heavy_ball", "nesterov"))

    def init(self, fed: Federation) -> Tree:
        """The velocity starts at zero."""
        trainable = {name: torch.zeros_like(p) for name, p in fed.build().named_parameters() if p.requires_grad}
        return {**super().init(fed), "velocity": trainable}

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """Move the velocity by D and the model by the velocity; Nesterov's form looks one step ahead of it."""
        fresh = 1 - self.momentum if self.form == "ema" else 1.0
        velocity: dict[str, Any] = {}
        model = dict(mean)
        for name, v in s["velocity"].items():
            update = s["model"][name] - mean[name]  # D
            velocity[name] = self.momentum * v + fresh * update
            moved = self.momentum * velocity[name] + update if self.form == "nesterov" else velocity[name]
            model[name] = s["model"][name] - self.server_lr * moved
        return {"model": model, "velocity": velocity}
