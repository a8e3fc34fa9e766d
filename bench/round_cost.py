"""One round of FedAvg against the raw PyTorch loop that takes the same steps.

Both sides run in this process, on one thread and in turn, so that whatever else the machine does meets both alike. Both
draw the same batches, so that they must arrive at the same model bit for bit, and this is checked. What is reported is
the median over the pairs of (time of ours) / (time of the raw loop).

    python bench/round_cost.py            the two workloads, about three minutes
    python bench/round_cost.py --quick    small rounds, a few seconds
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedalloy import rng, tree
from fedalloy.build import Built, build
from fedalloy.config import Experiment, experiment
from fedalloy.core import State, initial
from fedalloy.data import Dataset, from_arrays
from fedalloy.engine.serial import Serial
from fedalloy.methods import FedAvg
from fedalloy.setting import SERVER, Setting
from fedalloy.simulate import one_thread, simulate
from fedalloy.store import Store
from fedalloy.training import batches

T = TypeVar("T")
Weights = Mapping[str, Tensor]

LIMIT, QUICK_LIMIT = 1.10, 1.50
TEST_SHARE = 0.2  # of each client's rows, for its local test


@dataclass(frozen=True)
class Workload:
    """A federation on random images; every client holds `samples` of them for training."""

    name: str
    model: str
    channels: int
    size: int
    samples: int
    clients: int
    active: int
    epochs: int = 2
    batch: int = 64
    classes: int = 10

    def experiment(self, rounds: int) -> Experiment:
        """The experiment that `simulate` runs."""
        return experiment(
            {
                "rounds": rounds,
                "partition": {"name": "iid", "clients": self.clients, "test_fraction": TEST_SHARE},
                "model": self.model,
                "training": {"epochs": self.epochs, "batch": self.batch, "momentum": 0.9},
                "participation": {"policy": "fraction", "fraction": self.active / self.clients},
            }
        )

    def data(self) -> Dataset:
        """Random pixels and labels."""
        stream = rng.numpy_generator(0, "bench")
        rows = round(self.clients * self.samples / (1 - TEST_SHARE))
        pixels = stream.integers(256, size=(rows, self.channels, self.size, self.size), dtype=np.uint8)
        return from_arrays(pixels, np.arange(rows) % self.classes)

    def built(self) -> Built:
        """The setting of this workload."""
        built = build(self.experiment(1), self.data())
        assert set(built.setting.sizes) == {self.samples}
        return built


FULL = (
    Workload("W1", "simple-cnn", 3, 32, samples=500, clients=10, active=10),
    Workload("W2", "lenet5", 1, 28, samples=580, clients=20, active=4),
)
QUICK = (
    Workload("W1, small", "simple-cnn", 3, 32, samples=256, clients=2, active=2),
    Workload("W2, small", "lenet5", 1, 28, samples=256, clients=4, active=2),
)


class RawLoop:
    """What one would write by hand: one network, each client's data in tensors of its own, and nothing else."""

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
            F.cross_entropy(net(x.index_select(0, positions)), y.index_select(0, positions)).backward()
            optimiser.step()
        return {name: t.clone() for name, t in net.state_dict().items()}


@dataclass(frozen=True)
class Pairs:
    """Seconds of rounds that were taken in turn."""

    raw: Sequence[float]
    ours: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """Ours over raw, pair by pair."""
        return [b / a for a, b in zip(self.raw, self.ours, strict=True)]

    @property
    def median(self) -> float:
        """The middle ratio."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratios."""
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high


def engine_rounds(work: Workload, pairs: int) -> Pairs:
    """Raw, ours, raw, ours, ...: the round itself, without evaluation and checkpoint."""
    setting = work.built().setting
    raw_loop, engine, method = RawLoop(setting), Serial(setting), FedAvg()
    state = State(0, method.init(engine.open(method, 0)))
    raw, ours = [], []
    with one_thread():
        for number in range(1, pairs + 2):
            raw.append(_timed(lambda number=number: raw_loop.round(number))[0])
            seconds, state = _timed(
                lambda state=state, number=number: method.round(state, engine.open(method, number))
            )
            ours.append(seconds)
            _assert_equal(raw_loop.model, state["model"])
    return Pairs(raw[1:], ours[1:])  # the first pair warms up


def simulate_rounds(work: Workload, pairs: int) -> Pairs:
    """Ours, raw, ours, raw, ...: whole rounds of `simulate`, with evaluation, record and checkpoint on disk."""
    built = work.built()
    raw_loop = RawLoop(built.setting)
    raw: list[float] = []
    ours: list[float] = []
    begin = time.perf_counter()

    def watch(record: Mapping[str, Any]) -> None:
        nonlocal begin
        ours.append(time.perf_counter() - begin)
        raw.append(_timed(lambda: raw_loop.round(record["round"]))[0])
        begin = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        simulate(work.experiment(pairs + 1), folder, built=built, watch=watch)
        saved = Store(Path(folder)).restore()
    assert saved is not None
    _assert_equal(raw_loop.model, saved[0]["model"])
    return Pairs(raw[1:], ours[1:])  # the first round also sets the run up


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _assert_equal(raw: Weights, ours: Weights) -> None:
    assert tree.equal(raw, ours), "the raw loop and the engine arrived at different models"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and say whether the engine keeps to its limit."""
    parser = argparse.ArgumentParser(description="One round of FedAvg against the raw PyTorch loop.")
    parser.add_argument("--quick", action="store_true", help=f"small rounds; the limit is {QUICK_LIMIT}")
    parser.add_argument("--pairs", type=int, default=9, help="pairs of rounds to measure, at least 7")
    asked = parser.parse_args(arguments)
    if asked.pairs < 7:
        parser.error("a median of fewer than 7 pairs says too little; write --pairs 7 or more")
    limit = QUICK_LIMIT if asked.quick else LIMIT
    table = Table(title=f"Median of {asked.pairs} pairs, one thread; limit of the engine {limit:.2f}")
    for heading in ("workload", "what", "raw, ms", "ours, ms", "ratio", "quartiles", "range"):
        table.add_column(heading, justify="left" if heading in ("workload", "what") else "right")
    kept = True
    for work in QUICK if asked.quick else FULL:
        engine, whole = engine_rounds(work, asked.pairs), simulate_rounds(work, asked.pairs)
        kept = kept and engine.median <= limit
        table.add_row(f"{work.name}: {work.model}, {work.active} clients", "engine", *_cells(engine))
        table.add_row("", "simulate: + evaluation, checkpoint", *_cells(whole))
    console = Console()
    console.print(table)
    console.print("Both sides arrived at the same models, bit for bit.")
    if not kept:
        console.print(f"The engine is over its limit of {limit:.2f}.")
    return 0 if kept else 1


def _cells(pairs: Pairs) -> list[str]:
    raw, ours = (f"{1000 * statistics.median(seconds):.1f}" for seconds in (pairs.raw, pairs.ours))
    low, high = pairs.spread
    return [raw, ours, f"{pairs.median:.3f}", f"{low:.3f}-{high:.3f}", f"{min(pairs.ratios):.3f}-{max(pairs.ratios):.3f}"]


if __name__ == "__main__":
    sys.exit(main())
