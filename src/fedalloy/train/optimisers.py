"""Adam with moments that can be kept between rounds as plain tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from fedalloy.base.tree import Tree

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def adam(
    parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0, moments: Tree | None = None
) -> torch.optim.Adam:
    """Create Adam over these parameters, new or from saved moments.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> first = adam([weight], lr=0.1)
    >>> weight.grad = torch.ones(1)
    >>> first.step()
    >>> again = adam([weight], lr=0.1, moments=kept_moments(first))
    >>> again.state[weight]["exp_avg"]
    tensor([0.1000])
    """
    optimiser = torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True)  # one pass over each tensor
    own = optimiser.param_groups[0]["params"]
    for number, entry in (moments or {}).items():
        parameter = own[int(number)]
        # In the parameter's memory layout: the fused step walks through memory and ignores strides.
        moved = {name: torch.empty_like(parameter).copy_(entry[name]) for name in MOMENTS[1:]}
        optimiser.state[parameter] = {"step": entry["step"].clone(), **moved}
    return optimiser


def kept_moments(optimiser: torch.optim.Adam) -> dict[str, Any]:
    """Return a copy of an Adam optimiser's moments, by parameter index."""
    own = optimiser.param_groups[0]["params"]
    return {
        str(number): {name: optimiser.state[p][name].clone() for name in MOMENTS}
        for number, p in enumerate(own)
        if p in optimiser.state
    }
