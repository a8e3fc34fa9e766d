"""Twenty small networks on 100 samples each: one after the other, as one batched network, or in parallel.

Clients with one architecture and equal sizes could train as one network with an additional axis (`torch.vmap`): one
step of all for one step of each. A round of Local is run in this way, on one torch thread and on as many as there are
workers, by the serial engine, and by the pool, alternating in one run. The report shows each time relative to the
serial engine's, pass by pass. The batched models must equal the serial engine's except for rounding.

    python bench/batched.py    a few minutes
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor
from torch.func import functional_call, grad, vmap
from workloads import W4, Workload

from engine import SAME, WORKERS, Side, new_table, spread
from fedalloy.base import rng
from fedalloy.base.tree import Tree
from fedalloy.engine.malloc import tune_malloc
from fedalloy.engine.pool import Pool
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import initial
from fedalloy.federation.setting import SERVER, Setting
from fedalloy.train.fit import batches, one_thread

PASSES = 5
THREADS = f"batched, {WORKERS} threads"
WORKLOADS = {"knfu-m1 (W4)": W4, "mlp, 64 hidden": replace(W4, model="mlp")}


class Batched:
    """The local work of all clients at once; every weight, sample and label has a leading client axis."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.net = initial(setting.network(SERVER), setting.seed)
        self.weights: Mapping[str, Tensor] = {
            name: p.detach().expand(len(setting.sites), *p.shape).clone() for name, p in self.net.named_parameters()
        }
        self.x = torch.stack([site.train.inputs for site in setting.sites])
        self.y = torch.stack([site.train.labels for site in setting.sites])
        self.gradients = vmap(grad(self._loss))

    def _loss(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(self.net, dict(weights), (x,)), y)

    def round(self, number: int) -> None:
        """Run one round of Local with its second phase, for all clients."""
        setting, work, who = self.setting, self.setting.work, torch.arange(len(self.setting.sites))[:, None]
        for stage in ("batches", "second phase"):
            orders = [
                batches(len(self.y[k]), work.batch, setting.steps(k), rng.generator(setting.seed, stage, number, k))
                for k in setting.ids
            ]
            moving = {name: torch.zeros_like(t) for name, t in self.weights.items()}
            for rows in map(torch.stack, zip(*orders, strict=True)):
                for name, g in self.gradients(self.weights, self.x[who, rows], self.y[who, rows]).items():
                    moving[name].mul_(work.momentum).add_(g)
                    self.weights[name].sub_(moving[name], alpha=work.lr)

    def distance(self, client: int, model: Tree) -> float:
        """Return the relative distance of a client's model from this one."""
        mine = {name: t[client] for name, t in self.weights.items()}
        apart = sum(float((mine[name] - model[name]).square().sum()) for name in mine)
        return float(apart / sum(float(t.square().sum()) for t in mine.values())) ** 0.5


def measured(work: Workload) -> dict[str, list[float]]:
    """Return the seconds of a round for each way, pass by pass."""
    setting = work.built().setting
    with Pool(setting, workers=WORKERS) as pool:
        serial, pooled = Side(work, Serial(setting)), Side(work, pool)
        batched, threaded = Batched(setting), Batched(setting)
        ways: dict[str, Callable[[int], object]] = {
            "serial": serial.round,
            "batched": batched.round,
            THREADS: threaded.round,
            "pool": pooled.round,
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(1, PASSES + 2):
            for way in sorted(ways, reverse=bool(number % 2)):
                torch.set_num_threads(WORKERS if way == THREADS else 1)
                begin = time.perf_counter()
                ways[way](number)
                found[way].append(time.perf_counter() - begin)
            if number == 1:  # later rounds amplify differences in the last bits
                apart = max(batched.distance(k, memory["model"]) for k, memory in serial.engine.memories.items())
                assert apart < SAME, f"the batched networks differ by {apart:.1e}"
    return {way: took[1:] for way, took in found.items()}  # the first pass warms up


def main() -> None:
    """Measure and print one table."""
    title = f"A round of 20 clients relative to the serial engine's time, medians of {PASSES} passes"
    table = new_table(title, ["serial ms", "batched", THREADS, f"pool of {WORKERS}"])
    tune_malloc()
    with one_thread():
        for name, work in WORKLOADS.items():
            found = measured(work)
            serial = found.pop("serial")
            shares = [[a / b for a, b in zip(took, serial, strict=True)] for took in found.values()]
            table.add_row(name, f"{1000 * statistics.median(serial):.0f}", *(spread(share) for share in shares))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
