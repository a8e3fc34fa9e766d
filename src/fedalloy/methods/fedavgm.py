"""FedAvgM: momentum on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from fedalloy.base.options import Fraction, Positive, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Federation, Message, State, method
from fedalloy.methods.fedavg import FedAvg


@method("fedavgm", label="FedAvgM", card=Card(paper="Hsu et al., 2019", private=True))
class FedAvgM(FedAvg):
    """FedAvg whose average update D = w^{t-1} - avg passes through a velocity.

    `heavy_ball` (Hsu et al.): v <- beta v + D, w <- w - server_lr v. `ema` (the code of MOON and of KDIA):
    v <- beta v + (1 - beta) D, w <- w - v. For a constant D the first is 1 / (1 - beta) times the second: the two betas
    are not the same. KDIA's table uses `ema`; its script passes a momentum of 1, with which the model never moves, and
    which is refused here. Only trainable parameters have a velocity; buffers are plainly averaged. There is no Nesterov
    form, which Hsu et al. are said to have used.

    >>> FedAvgM(variant="ema").momentum
    0.9
    """

    momentum: Fraction = option(0.9, "beta, the share of the velocity that is kept")
    server_lr: Positive = option(1.0, "the server's learning rate", only_with=("variant", "heavy_ball"))
    variant: Literal["heavy_ball", "ema"] = option("heavy_ball", "how the velocity follows the updates")

    def init(self, fed: Federation) -> Tree:
        """The velocity starts at zero."""
        trainable = {name: torch.zeros_like(p) for name, p in fed.build().named_parameters() if p.requires_grad}
        return {**super().init(fed), "velocity": trainable}

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """Move the velocity by D and the model by the velocity."""
        fresh, rate = (1.0, self.server_lr) if self.variant == "heavy_ball" else (1 - self.momentum, 1.0)
        velocity: dict[str, Any] = {}
        model = dict(mean)
        for name, v in s["velocity"].items():
            velocity[name] = self.momentum * v + fresh * (s["model"][name] - mean[name])
            model[name] = s["model"][name] - rate * velocity[name]
        return {"model": model, "velocity": velocity}
