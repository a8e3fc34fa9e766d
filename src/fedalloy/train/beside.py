"""A second network that is trained along with the main one, for example a client's generator, with its own Adam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedalloy.train.fit import load, params
from fedalloy.train.optimisers import adam, kept_moments


class Beside:
    """A network with its own Adam optimiser; `kept` saves both for the next round.

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
    def carried_on(
        cls, net: nn.Module, kept: Mapping[str, Any], name: str, lr: float, weight_decay: float = 0.0
    ) -> Beside:
        """Restore the network and its moments from `kept`; if nothing was kept, use the network as it is."""
        return cls(load(net, kept[name]) if name in kept else net, lr, weight_decay, kept.get("moments"))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the network's output."""
        made: Tensor = self.net(*inputs)
        return made

    def step(self, loss: Tensor) -> None:
        """Take one step of Adam on a loss; no other network gets a gradient."""
        self.adam.zero_grad()
        loss.backward(inputs=list(self.net.parameters()))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.adam.step()

    def kept(self, name: str) -> dict[str, Any]:
        """Return the weights under this name, and Adam's moments, to keep for the next round."""
        return {name: params(self.net), "moments": kept_moments(self.adam)}


def normal(rows: int, width: int, stream: torch.Generator, device: torch.device) -> Tensor:
    """Draw rows of normal noise from an addressed stream, on a device."""
    return torch.randn(rows, width, generator=stream).to(device, non_blocking=True)
