"""The limit: the tightest single-thread loop that takes the same steps, with everything that is known to help.

One network for all clients; its parameters and their gradients are views of one flat vector each, so that an optimiser
step is two operations; each client's data is in separate tensors; nothing is counted, checked or sent.
"""

from __future__ import annotations

import math
import time

import torch
import torch.nn.functional as F
from workloads import Workload

from fedalloy.base import rng
from fedalloy.base.layout import Layout
from fedalloy.base.tree import Tree
from fedalloy.federation.core import initial
from fedalloy.federation.setting import SERVER, Setting
from fedalloy.methods import Local
from fedalloy.train.fit import batches


class TightLoop:
    """FedAvg, or Local with its second phase, in a network with momentum SGD and no buffers."""

    def __init__(self, setting: Setting, work: Workload, layout: Layout) -> None:
        self.setting = setting
        self.net = initial(setting.network(SERVER), setting.seed, layout)
        parameters = list(self.net.parameters())
        assert not list(self.net.buffers())
        self.flat, self.gradient = (torch.zeros(sum(p.numel() for p in parameters)) for _ in range(2))
        at = 0
        for p in parameters:
            view = torch.as_strided(self.flat, p.shape, p.stride(), at)
            view.copy_(p.data)
            p.data = view
            p.grad = torch.as_strided(self.gradient, p.shape, p.stride(), at)
            at += p.numel()
        self.common = self.flat.clone()
        self.own: dict[int, torch.Tensor] | None = {} if isinstance(work.method, Local) else None
        self.stages = ["batches", "second phase"] if self.own is not None else ["batches"]
        self.data = [(site.train.inputs, site.train.labels) for site in setting.sites]

    def round(self, number: int) -> None:
        """Let each active client train from the common model, or from its own, then average or keep."""
        active = self.setting.active(number)
        total = torch.zeros(len(self.flat), dtype=torch.float64)
        everything = sum(self.setting.sizes[k] for k in active)
        for k in active:
            self.flat.copy_(self.common if self.own is None else self.own.get(k, self.common))
            for stage in self.stages:
                self.train(k, number, stage)
            if self.own is not None:
                self.own[k] = self.flat.clone()
            else:
                total.add_(self.flat, alpha=self.setting.sizes[k] / everything)
        if self.own is None:
            self.common = total.float()

    def train(self, k: int, number: int, stage: str = "batches") -> None:
        """Run one client's local work."""
        work, (x, y), net = self.setting.work, self.data[k], self.net
        order = rng.generator(self.setting.seed, stage, number, k)
        moving = torch.zeros_like(self.flat)
        for positions in batches(len(y), work.batch, self.setting.steps(k), order):
            self.gradient.zero_()
            loss = F.cross_entropy(net(x.index_select(0, positions)), y.index_select(0, positions))
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            moving.mul_(work.momentum).add_(self.gradient)
            self.flat.add_(moving, alpha=-work.lr)

    def distance(self, model: Tree, client: int | None = None) -> float:
        """Return the relative distance of another model from this loop's; another layout changes the last bits."""
        self.flat.copy_(self.common if self.own is None or client is None else self.own[client])
        apart = sum(float((p.detach() - model[name]).square().sum()) for name, p in self.net.named_parameters())
        return math.sqrt(apart / float(self.flat.square().sum()))


def fastest(setting: Setting, work: Workload, trials: int = 3) -> TightLoop:
    """Return the loop in the faster memory layout for this network: the best of alternating trials."""
    loops = [TightLoop(setting, work, layout) for layout in ("nchw", "channels_last")]
    took = [[_seconds(loop) for loop in loops] for _ in range(1 + trials)][1:]  # the first ones warm up
    best = min(loops, key=lambda loop: min(row[loops.index(loop)] for row in took))
    best.flat.copy_(best.common)
    return best


def _seconds(loop: TightLoop) -> float:
    begin = time.perf_counter()
    loop.train(0, 1)
    return time.perf_counter() - begin
