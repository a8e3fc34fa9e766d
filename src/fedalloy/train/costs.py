"""The costs of a run: bytes by kind and direction, passes through networks, FLOPs, seconds, memory.

Bytes are those of the tensors and numbers in the messages, by kind; names, shapes and other framing are counted
separately. Passes are counted as in FedKF's Table IX: one pass of one batch through a classifier counts 1, through its
head alone 0.5, and teacher and student are added. That table only counts clients; a record adds clients and server.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedalloy.base import tree
from fedalloy.base.tree import Tree

# The kind of each top-level name in a message; an unlisted name counts as "other" if it contains tensors.
KINDS = {
    "model": "weights",
    "teacher": "weights",
    "generator": "generator",
    "head": "weights",
    "logits": "logits",
    "soft": "logits",
    "answers": "logits",
    "scores": "scores",
    "counts": "counts",
    "labels": "counts",
    "data": "data",
}


def payload(body: Tree) -> Counter[str]:
    """Return the bytes of a message's content by kind.

    >>> payload({"model": {"w": torch.zeros(10)}, "n": 3})
    Counter({'weights': 40, 'scalars': 8})
    """
    found: Counter[str] = Counter()
    for path, leaf in tree.leaves(body):
        single = not isinstance(leaf, Tensor) or leaf.dim() == 0
        kind = KINDS.get(path.split("/")[0], "scalars" if single else "other")
        found[kind] += tree.leaf_bytes(leaf)
    return found


@dataclass
class Meter:
    """Counts the steps and passes of one client or of the server during one action."""

    steps: int = 0
    forward: float = 0.0
    backward: float = 0.0
    generator_forward: float = 0.0
    generator_backward: float = 0.0
    forward_samples: float = 0.0
    backward_samples: float = 0.0
    running: bool = True

    def count(self, output: Tensor, share: float, *, generator: bool = False) -> None:
        """Count one forward pass, and a backward pass if its output requires a gradient."""
        if not self.running:
            return
        back = share if output.requires_grad else 0.0
        if generator:
            self.generator_forward += share
            self.generator_backward += back
        else:
            self.forward += share
            self.backward += back
            self.forward_samples += share * len(output)
            self.backward_samples += back * len(output)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count inside the block: evaluation is not training."""
        before, self.running = self.running, False
        try:
            yield
        finally:
            self.running = before

    def add(self, other: Meter) -> None:
        """Add another meter's counts to this one."""
        for name in (f.name for f in fields(self) if f.name != "running"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def metered(net: nn.Module, meter: Meter, *, generator: bool = False) -> nn.Module:
    """Make a network report its passes to a meter; features and head count half a pass each."""
    if generator or not (hasattr(net, "features") and hasattr(net, "head")):
        net.register_forward_hook(lambda _net, _args, out: meter.count(out, 1.0, generator=generator))
        return net
    for part in ("features", "head"):
        _count_calls(net, part, meter)
    return net


def _count_calls(net: nn.Module, part: str, meter: Meter) -> None:
    inner = getattr(net, part)
    if isinstance(inner, nn.Module):
        # Hook the last layer, so that a head that is run layer by layer (for its projection) counts too.
        last = inner[-1] if isinstance(inner, nn.Sequential) and len(inner) else inner
        last.register_forward_hook(lambda _net, _args, out: meter.count(out, 0.5))
        return

    def counted(x: Tensor) -> Tensor:
        out: Tensor = inner(x)
        meter.count(out, 0.5)
        return out

    object.__setattr__(net, part, counted)


def forward_flops(net: nn.Module, example: Tensor) -> int:
    """Return the floating-point operations of a forward pass of one sample (multiply and add count one each)."""
    own = [module for module in net.modules() if list(module.parameters(recurse=False))]
    if not all(isinstance(module, _MULTIPLYING + _SCALING) for module in own):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net.eval()(example[:1])
        return int(counter.get_total_flops())
    # Torch's counter takes two seconds to import the first time, so the usual layers are counted here.
    found: list[int] = []
    hooks = [m.register_forward_hook(partial(_note_flops, found)) for m in own if isinstance(m, _MULTIPLYING)]
    with torch.no_grad():
        net.eval()(example[:1])
    for hook in hooks:
        hook.remove()
    return sum(found)


_MULTIPLYING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SCALING = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
)  # not counted, as in torch's counter


def _note_flops(found: list[int], layer: nn.Module, _: Any, out: Tensor) -> None:
    weight = layer.get_parameter("weight")
    found.append(2 * out.numel() * weight[0].numel())  # each output is a dot product with one row of weights


@dataclass
class Ledger:
    """The costs of one round so far."""

    down: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    clients: Meter = field(default_factory=Meter)
    server: Meter = field(default_factory=Meter)
    client_seconds: float = 0.0
    busy_seconds: float = 0.0

    def sent(self, body: Tree) -> None:
        """Count a message to a client."""
        _count(self.down, body)

    def received(self, body: Tree) -> None:
        """Count a client's reply."""
        _count(self.up, body)

    def passes(self) -> dict[str, float]:
        """Return the steps and passes of this round, clients and server together."""
        both = Meter()
        both.add(self.clients)
        both.add(self.server)
        names = ("steps", "forward", "backward", "generator_forward", "generator_backward")
        counts = asdict(both)
        return {name: counts[name] for name in names}

    def flops(self, per_sample: float) -> float:
        """Return the FLOPs of this round's classifier passes, without generators; a backward pass counts twice."""
        forward = self.clients.forward_samples + self.server.forward_samples
        backward = self.clients.backward_samples + self.server.backward_samples
        return per_sample * (forward + 2 * backward)


def _count(counter: Counter[str], body: Tree) -> None:
    counter.update(payload(body))
    if body:
        counter["framing"] += tree.framing_bytes(body)


def peak_memory() -> int:
    """Return the peak resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
