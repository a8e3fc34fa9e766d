"""The costs of a run: bytes by kind and direction, passes through networks, FLOPs, seconds, memory.

Bytes are those of the tensors and numbers in the messages, by kind; names, shapes and other framing are counted
separately. Passes are counted as in FedKF's Table IX: one pass of one batch through a classifier counts 1, through its
head alone 0.5, and teacher and student are added. FLOPs are those of every layer of every network: classifiers,
teachers, generators, discriminators. Clients and server are counted apart.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

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
    """Counts the steps, passes and FLOPs of one client or of the server during one action."""

    steps: int = 0
    forward: float = 0.0
    backward: float = 0.0
    generator_forward: float = 0.0
    generator_backward: float = 0.0
    flops: float = 0.0
    passes_count: bool = True
    flops_count: bool = True
    weights_learn: bool = True

    def count(self, output: Tensor, share: float, *, generator: bool = False) -> None:
        """Count one forward pass, and a backward pass if its output requires a gradient."""
        if not self.passes_count:
            return
        back = share if output.requires_grad else 0.0
        if generator:
            self.generator_forward += share
            self.generator_backward += back
        else:
            self.forward += share
            self.backward += back

    def multiplied(self, products: int, gradients: int) -> None:
        """Count multiply-adds, two FLOPs each: once forward, and once for each gradient that goes back."""
        if self.flops_count:
            self.flops += 2 * products * (1 + gradients)

    def heads(self, answers: Tensor, products: int) -> None:
        """Count one product that evaluates the heads of many clients: half a pass each; only their input learns."""
        for of_one in answers:
            self.count(of_one, 0.5)
        self.multiplied(products, int(answers.requires_grad))

    @contextmanager
    def paused(self, *, flops: bool = False) -> Iterator[None]:
        """Count no passes inside the block, since evaluation is not training, and FLOPs only if told to."""
        with self._with(passes_count=False, flops_count=flops and self.flops_count):
            yield

    @contextmanager
    def passed_through(self) -> Iterator[None]:
        """Count no gradients of weights inside the block: only what the networks are shown learns from them."""
        with self._with(weights_learn=False):
            yield

    @contextmanager
    def _with(self, **flags: bool) -> Iterator[None]:
        before = {name: getattr(self, name) for name in flags}
        vars(self).update(flags)
        try:
            yield
        finally:
            vars(self).update(before)

    def add(self, other: Meter) -> None:
        """Add another meter's counts to this one."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def counts(self) -> dict[str, float]:
        """The counts by name."""
        return {name: getattr(self, name) for name in COUNTS}


COUNTS = tuple(f.name for f in fields(Meter) if f.type != "bool")


def metered(net: nn.Module, meter: Meter, *, generator: bool = False) -> nn.Module:
    """Make a network report its passes and FLOPs to a meter; features and head count half a pass each."""
    count_flops(net, meter)
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


# --- FLOPs ------------------------------------------------------------------------------------------------------------

_BY_OUTPUT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # each output is a product with one row of weights
_BY_INPUT = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)  # so is what each input adds to
_NO_PRODUCTS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.Embedding,
)  # not counted, as in torch's counter


def count_flops(net: nn.Module, meter: Meter) -> list[RemovableHandle]:
    """Make every layer report its multiply-adds, forward and back; norms and activations have none.

    A layer that is computed in another way than its class suggests has a method `products(x, out)`. A network (or its
    features, or its head) with weights outside the usual layers is measured by torch's counter, once for each shape of
    its input, and a pass back counts as two forward.
    """
    owners = [m for m in net.modules() if any(True for _ in m.parameters(recurse=False))]
    if all(hasattr(m, "products") or isinstance(m, _BY_OUTPUT + _BY_INPUT + _NO_PRODUCTS) for m in owners):
        return [_layer(m, meter) for m in owners if not isinstance(m, _NO_PRODUCTS)]
    parts = [part for name, part in net.named_children() if name in ("features", "head")]
    return [hook for part in parts for hook in count_flops(part, meter)] if len(parts) == 2 else [_whole(net, meter)]


def _layer(layer: nn.Module, meter: Meter) -> RemovableHandle:
    own, by_input = getattr(layer, "products", None), isinstance(layer, _BY_INPUT)
    weight = layer.get_parameter("weight")
    row = weight.numel() // len(weight)

    def note(layer: Any, args: tuple[Tensor, ...], out: Tensor) -> None:
        x = args[0]
        products = own(x, out) if own is not None else row * (x if by_input else out).numel()
        gradients = x.requires_grad + (meter.weights_learn and layer.weight.requires_grad) if out.requires_grad else 0
        meter.multiplied(products, gradients)

    return layer.register_forward_hook(note)


def _whole(net: nn.Module, meter: Meter) -> RemovableHandle:
    known: dict[tuple[torch.Size, ...], int] = {}

    def note(net: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        shapes = tuple(x.shape for x in args)
        if shapes not in known:
            with meter.paused():
                known[shapes] = _measured(net, args) // 2
        meter.multiplied(known[shapes], 2 if out.requires_grad else 0)

    return net.register_forward_hook(note)


def _measured(net: nn.Module, args: tuple[Tensor, ...]) -> int:
    """FLOPs of a forward pass by torch's counter, which takes two seconds to import the first time."""
    from torch.utils.flop_counter import FlopCounterMode

    modes = [(module, module.training) for module in net.modules()]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        type(net).forward(net.eval(), *args)  # without hooks; in eval mode, so that no statistics or streams change
    for module, training in modes:
        module.training = training
    return int(counter.get_total_flops())


def forward_flops(net: nn.Module, example: Tensor) -> int:
    """Return the FLOPs of a forward pass of one sample (multiply and add count one each).

    >>> forward_flops(nn.Linear(10, 4), torch.zeros(1, 10))
    80
    """
    meter = Meter()
    hooks = count_flops(net, meter)
    with torch.no_grad():
        net.eval()(example[:1])
    for hook in hooks:
        hook.remove()
    return int(meter.flops)


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

    def passes(self) -> dict[str, dict[str, float]]:
        """Return the steps and passes of this round, of the clients and of the server."""
        return {
            who: {name: count for name, count in meter.counts().items() if name != "flops"}
            for who, meter in (("clients", self.clients), ("server", self.server))
        }

    def flops(self) -> dict[str, float]:
        """Return the FLOPs of this round, of the clients and of the server."""
        return {"clients": self.clients.flops, "server": self.server.flops}


def _count(counter: Counter[str], body: Tree) -> None:
    counter.update(payload(body))
    if body:
        counter["framing"] += tree.framing_bytes(body)


def peak_memory() -> int:
    """Return the peak resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
