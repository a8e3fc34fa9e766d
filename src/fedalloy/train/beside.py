"""A network that learns beside the one in training, such as a client's generator, with its own Adam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedalloy.train.fit import load, params
from fedalloy.train.optimisers import adam, kept_moments


class Beside:
    """A network with its Adam; `kept` carries both over to the next round.

    >>> net = Beside(nn.Linear(2, 1), lr=0.1)
    >>> net.step(net(torch.ones(3, 2)).mean())
    >>> sorted(net.kept("generator"))
    ['generator', 'moments']
    """

    def __init__(
        self, net: nn.Module, lr: float, weight_decay: float = 0.0, moments: Mapping[str, Any] | None = None
    ) -> None:
        self.net = net.train()
        self.adam = adam(net.parameters(), lr, weight_decay, moments)

    @classmethod
    def carried_on(cls, net: nn.Module, kept: Mapping[str, Any], name: str, lr: float) -> Beside:
        """The network as `kept` left it; as it is, where nothing was kept."""
        return cls(load(net, kept[name]) if name in kept else net, lr, moments=kept.get("moments"))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the network makes of its inputs."""
        made: Tensor = self.net(*inputs)
        return made

    def step(self, loss: Tensor) -> None:
        """One step of Adam on a loss; no other network gets a gradient."""
        self.adam.zero_grad()
        loss.backward(inputs=list(self.net.parameters()))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.adam.step()

    def kept(self, name: str) -> dict[str, Any]:
        """The weights under this name, and Adam's moments, to be kept until the next round."""
        return {name: params(self.net), "moments": kept_moments(self.adam)}


def normal(rows: int, width: int, stream: torch.Generator, device: torch.device) -> Tensor:
    """Rows of normal noise from an addressed stream, on a device."""
    return torch.randn(rows, width, generator=stream).to(device, non_blocking=True)
