"""Keep BatchNorm's running statistics unchanged while a network trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def norms_kept(net: nn.Module, kept: bool = True) -> Iterator[None]:
    """If `kept`, BatchNorm uses its running statistics and does not update them while a network trains.

    >>> import torch
    >>> layer = nn.BatchNorm1d(1)
    >>> with norms_kept(layer.train()):
    ...     layer(torch.tensor([[5.0], [7.0]])).shape
    torch.Size([2, 1])
    >>> layer.running_mean
    tensor([0.])
    """
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)]
    hooks = [norm.register_forward_pre_hook(_to_eval) for norm in norms] if kept else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _to_eval(norm: nn.Module, _: Any) -> None:
    norm.eval()  # at each pass, because the training loop sets the whole network to training mode
