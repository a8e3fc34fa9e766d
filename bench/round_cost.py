"""One round of FedAvg against the raw PyTorch loop that takes the same steps.

Both sides run in this process, on one thread, alternating, so that other load affects both equally. Both draw the same
batches, so they must produce the same model bit for bit, which is checked. The report shows the median over the pairs
of (time of ours) / (time of the raw loop). An engine's round never waits, so its time is CPU time, which other
processes affect less; a whole round of `simulate` waits for the disk, so its time is wall-clock time.

    python bench/round_cost.py            the two workloads, a few minutes
    python bench/round_cost.py --quick    small rounds, a few seconds
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from workloads import W1, W2, Workload

from fedalloy.base import rng, tree
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import State, initial
from fedalloy.federation.setting import SERVER, Setting
from fedalloy.methods import FedAvg
from fedalloy.run.runner import simulate
from fedalloy.storage.store import Store
from fedalloy.train.fit import batches, one_thread

Weights = Mapping[str, Tensor]

LIMIT, QUICK_LIMIT = 1.10, 1.50
PAIRS, QUICK_PAIRS = 11, 7


FULL = (
    replace(W1, clients=10),  # idle clients cost nothing here, so their data is not created
    W2,
)
QUICK = (
    Workload("W1, small", "simple-cnn", 3, 32, samples=128, clients=2, active=2, epochs=1),
    Workload("W2, small", "lenet5", 1, 28, samples=128, clients=4, active=2, epochs=1),
)


class RawLoop:
    """The hand-written loop: one network, each client's data in separate tensors, and nothing else."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.net = initial(setting.network(SERVER), setting.seed)
        self.data = [(site.train.inputs, site.train.labels) for site in setting.sites]
        self.model: Weights = {name: t.clone() for name, t in self.net.state_dict().items()}

    def round(self, number: int) -> None:
        """Let each active client train from the common model, then average."""
        active = self.setting.active(number)
        locals = [self._train(k, number) for k in active]
        sizes = [len(self.data[k][1]) for k in active]
        mean = {name: torch.zeros(t.shape, dtype=torch.float64) for name, t in self.model.items()}
        for weights, n in zip(locals, sizes, strict=True):
            for name, t in weights.items():
                mean[name].add_(t.double(), alpha=n / sum(sizes))
        self.model = {name: t.to(self.model[name].dtype) for name, t in mean.items()}

    def _train(self, k: int, number: int) -> Weights:
        work, (x, y), net = self.setting.work, self.data[k], self.net
        order = rng.generator(self.setting.seed, "batches", number, k)
        net.load_state_dict(self.model)
        net.train()
        optimiser = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
        for positions in batches(len(y), work.batch, self.setting.steps(k), order):
            optimiser.zero_grad(set_to_none=True)
            loss = F.cross_entropy(net(x.index_select(0, positions)), y.index_select(0, positions))
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
        return {name: t.clone() for name, t in net.state_dict().items()}


@dataclass(frozen=True)
class Pairs:
    """Seconds of alternating rounds."""

    raw: Sequence[float]
    ours: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """The ratio of ours to raw, pair by pair."""
        return [b / a for a, b in zip(self.raw, self.ours, strict=True)]

    @property
    def median(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratios."""
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high


def engine_rounds(work: Workload, pairs: int) -> Pairs:
    """Measure raw, ours, ours, raw, raw, ...: the round itself, without evaluation and checkpoint."""
    setting = work.built().setting
    raw_loop, engine, method = RawLoop(setting), Serial(setting), FedAvg()
    state = State(0, method.init(engine.open(method, 0)))
    seconds: dict[str, list[float]] = {"raw": [], "ours": []}
    with one_thread():
        for number in range(1, pairs + 2):
            for side in ("raw", "ours") if number % 2 else ("ours", "raw"):  # neither side always has the warm cache
                begin = time.process_time()
                if side == "raw":
                    raw_loop.round(number)
                else:
                    state = method.round(state, engine.open(method, number))
                seconds[side].append(time.process_time() - begin)
            _assert_equal(raw_loop.model, state["model"])
    return Pairs(seconds["raw"][1:], seconds["ours"][1:])  # the first pair warms up


def simulate_rounds(work: Workload, pairs: int) -> Pairs:
    """Measure ours, raw, ours, raw, ...: whole rounds of `simulate`, with evaluation, record and checkpoint on disk."""
    built = work.built()
    raw_loop = RawLoop(built.setting)
    raw: list[float] = []
    ours: list[float] = []
    begin = time.perf_counter()

    def watch(record: Mapping[str, Any]) -> None:
        nonlocal begin
        middle = time.perf_counter()
        raw_loop.round(record["round"])
        ours.append(middle - begin)
        begin = time.perf_counter()
        raw.append(begin - middle)

    with tempfile.TemporaryDirectory() as folder:
        simulate(work.experiment(pairs + 1), folder, built=built, watch=watch)
        saved = Store(Path(folder)).restore()
    assert saved is not None
    _assert_equal(raw_loop.model, saved[0]["model"])
    return Pairs(raw[1:], ours[1:])  # the first round also sets the run up


def _assert_equal(raw: Weights, ours: Weights) -> None:
    assert tree.equal(raw, ours), "the raw loop and the engine produced different models"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and return 1 if the engine is above its limit."""
    parser = argparse.ArgumentParser(description="One round of FedAvg against the raw PyTorch loop.")
    parser.add_argument("--quick", action="store_true", help=f"small rounds, for CI; the limit is {QUICK_LIMIT}")
    quick = parser.parse_args(arguments).quick
    workloads, pairs, limit = (QUICK, QUICK_PAIRS, QUICK_LIMIT) if quick else (FULL, PAIRS, LIMIT)
    table = Table(title=f"Medians of {pairs} pairs of rounds; the engine's limit is {limit:.2f}")
    for heading in ("workload", "measured"):
        table.add_column(heading)
    for heading in ("raw ms", "ours ms", "ratio", "quartiles"):
        table.add_column(heading, justify="right", no_wrap=True)
    kept = True
    for work in workloads:
        engine, whole = engine_rounds(work, pairs), simulate_rounds(work, pairs)
        kept = kept and engine.median <= limit
        table.add_row(work.name, "engine", *_cells(engine))
        table.add_row("", "simulate", *_cells(whole), end_section=True)
    console = Console()
    console.print(table)
    console.print("Both sides produced the same models, bit for bit.")
    if not kept:
        console.print(f"The engine is above its limit of {limit:.2f}.")
    return 0 if kept else 1


def _cells(pairs: Pairs) -> list[str]:
    raw, ours = (f"{1000 * statistics.median(seconds):.0f}" for seconds in (pairs.raw, pairs.ours))
    low, high = pairs.spread
    return [raw, ours, f"{pairs.median:.3f}", f"{low:.3f} - {high:.3f}"]


if __name__ == "__main__":
    sys.exit(main())
