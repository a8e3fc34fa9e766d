"""FedAvgM: momentum on the server."""

from __future__ import annotations

from typing import Any, Literal

import torch

from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Federation, State, method
from fedalloy.methods.fedavg import FedAvg


@method(
    "fedavgm",
    label="FedAvgM",
    card=Card(
        paper="Hsu et al., 2019",
        up="model, n",
        down="model",
        private=True,
        private_except={"weights": "disco"},
    ),
)
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

    momentum: float = 0.9
    server_lr: float = 1.0
    variant: Literal["heavy_ball", "ema"] = "heavy_ball"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise UsageError(f"fedavgm.momentum = {self.momentum} must lie in [0, 1)")
        if self.server_lr <= 0:
            raise UsageError(f"fedavgm.server_lr = {self.server_lr} must be positive")

    def init(self, fed: Federation) -> Tree:
        """The velocity starts at zero."""
        trainable = {name: torch.zeros_like(p) for name, p in fed.build().named_parameters() if p.requires_grad}
        return {**super().init(fed), "velocity": trainable}

    def round(self, s: State, fed: Federation) -> State:
        """One round of FedAvg, then the momentum step."""
        replies = fed.ask("train", fed.sample(), model=s["model"])
        if not replies:
            return s.next()
        model, velocity = self.step(s, self.aggregate(s, replies, fed))
        return s.next(model=model, velocity=velocity, **self.cached(s, replies))

    def step(self, s: State, mean: Tree) -> tuple[Tree, Tree]:
        """Move the velocity by D and the model by the velocity."""
        fresh, rate = (1.0, self.server_lr) if self.variant == "heavy_ball" else (1 - self.momentum, 1.0)
        velocity: dict[str, Any] = {}
        model = dict(mean)
        for name, v in s["velocity"].items():
            velocity[name] = self.momentum * v + fresh * (s["model"][name] - mean[name])
            model[name] = s["model"][name] - rate * velocity[name]
        return model, velocity
