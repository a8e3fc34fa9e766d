"""A round of ten clients in federations of 100 to 100,000: its time and memory must not depend on the others.

LeNet-5, FedAvg with the OCA cache, the serial engine and the pool, bare rounds. All clients draw their rows from one
small pool of random images, so that the federation grows and not the data. Each size runs in a separate process; the
processes alternate. Memory is what is resident after the last round minus what was resident before the federation was
created, including the shared memory of the pool; it contains the cache of the models seen so far.

    python bench/growth.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

SIZES = (100, 1_000, 10_000, 100_000)
ACTIVE, ROWS, EACH = 10, 2_000, 64
ROUNDS = 15
TARGET, MEMORY_TARGET = 1.10, 2 * 2**30


def serve(clients: int, kind: str) -> None:
    """Create the federation, then run one round per input line; write JSON."""
    import torch  # imported here, because the parent does not need it

    from fedalloy.base import rng
    from fedalloy.data.samples import Samples
    from fedalloy.engine.malloc import tune_malloc
    from fedalloy.engine.pool import Pool
    from fedalloy.engine.serial import Serial
    from fedalloy.federation.core import State
    from fedalloy.federation.participation import Participation
    from fedalloy.federation.setting import Setting, Site
    from fedalloy.methods import FedAvg
    from fedalloy.nets import models
    from fedalloy.train.fit import LocalWork

    torch.set_num_threads(1)
    tune_malloc()
    stream = rng.generator(0, "bench")
    x, y = torch.rand(ROWS, 1, 28, 28, generator=stream), torch.arange(ROWS) % 10
    rows = torch.randint(ROWS, (clients, EACH), generator=stream)
    nobody = torch.empty(0, dtype=torch.int64)
    models.create("lenet5", classes=10, channels=1, size=28)(x[:EACH])  # initialises torch
    before, begin = _resident(), time.perf_counter()
    setting = Setting(
        sites=[Site(Samples(x, y, own), Samples(x, y, nobody)) for own in rows],
        networks=[partial(models.create, "lenet5", classes=10, channels=1, size=28)],
        classes=10,
        work=LocalWork(epochs=5, batch=64, momentum=0.9),
        participation=Participation(policy="fraction", fraction=ACTIVE / clients),
    )
    engine = Pool(setting, workers=2) if kind == "pool" else Serial(setting)
    method = FedAvg()
    state = State(0, method.init(engine.open(method, 0)))
    _say(start=time.perf_counter() - begin)
    for number, _ in enumerate(sys.stdin, start=1):
        begin = time.perf_counter()
        state = method.round(state, engine.open(method, number))
        seconds = time.perf_counter() - begin
        workers = [_resident(w.process.pid) for w in engine._workers] if isinstance(engine, Pool) else []
        _say(seconds=seconds, memory=_resident() - before, worker=max(workers, default=0))
    if isinstance(engine, Pool):
        engine.close()


def _say(**what: float) -> None:
    print(json.dumps(what), flush=True)


def _resident(process: int | str = "self") -> int:
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return next(1024 * int(words[1]) for words in lines if words[0] == "VmRSS:")


class Federation:
    """A federation in a separate process."""

    def __init__(self, clients: int, kind: str) -> None:
        command = [sys.executable, __file__, "--serve", str(clients), kind]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.start = self._heard()["start"]
        self.rounds: list[dict[str, float]] = []

    def round(self) -> None:
        """Run one round."""
        assert self.process.stdin is not None
        self.process.stdin.write("round\n")
        self.rounds.append(self._heard())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def _heard(self) -> dict[str, float]:
        assert self.process.stdout is not None
        answer: dict[str, float] = json.loads(self.process.stdout.readline())
        return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="A round of ten clients in federations of increasing size.")
    parser.add_argument("--serve", nargs=2, metavar=("CLIENTS", "ENGINE"), help="serve one federation (internal)")
    served = parser.parse_args(arguments).serve
    if served:
        serve(int(served[0]), served[1])
        return 0
    table = Table(title=f"Medians of {ROUNDS} alternating rounds; targets at {SIZES[-1]:,}: {TARGET:.2f} and 2 GiB")
    table.add_column("engine")
    for heading in ("clients", "start s", "round ms", f"round / {SIZES[0]}", "quartiles", "MiB", "MiB of a worker"):
        table.add_column(heading, justify="right")
    for kind in ("serial", "pool"):
        federations = [Federation(clients, kind) for clients in SIZES]
        for number in range(ROUNDS + 2):
            turn = number % len(SIZES)
            for federation in federations[turn:] + federations[:turn]:
                federation.round()
        seconds = [[r["seconds"] for r in f.rounds[2:]] for f in federations]  # the first rounds warm up
        for clients, federation, own in zip(SIZES, federations, seconds, strict=True):
            federation.close()
            last = federation.rounds[-1]
            low, middle, high = statistics.quantiles(
                [a / b for a, b in zip(own, seconds[0], strict=True)], n=4, method="inclusive"
            )
            table.add_row(
                kind,
                f"{clients:,}",
                f"{federation.start:.1f}",
                f"{1000 * statistics.median(own):.1f}",
                f"{middle:.3f}",
                f"{low:.2f}-{high:.2f}",
                f"{last['memory'] / 2**20:.0f}",
                f"{last['worker'] / 2**20:.0f}" if kind == "pool" else "",
            )
        table.add_section()
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
