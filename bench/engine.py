"""A round in the pool of two workers against its theoretical limit, against the serial engine, and inside `simulate`.

The limit is the time of the tightest single-thread loop (`tight.py`, in the faster memory layout and with malloc tuned)
divided by the speed-up of two processes of matrix products over one in the same pass (`gemm.py`): the best that two
cores could do. In every pass each side runs the same round once, in an order that changes from pass to pass, so that
other load affects all sides equally; medians and quartiles are those of the ratios, pass by pass. Serial and pool must
have the same bits after every round, and the tight loop the same model after the first.

    python bench/engine.py            W1 to W4, a few minutes
    python bench/engine.py --quick    W2 and a small W4 for CI; exits with status 1 only on a large regression
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gemm import Gemm
from rich.console import Console
from rich.table import Table
from tight import fastest
from whole_run import with_two_tests
from workloads import W1, W2, W3, W4, Workload

from fedalloy.base import tree
from fedalloy.config.build import Built
from fedalloy.engine.malloc import tune_malloc
from fedalloy.engine.pool import Pool
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import State
from fedalloy.federation.engine import Engine
from fedalloy.train.fit import one_thread

WORKERS = 2
PASSES, QUICK_PASSES = 5, 5
TARGET, WHOLE_TARGET = 1.10, 1.15
SAME = 1e-4  # relative distance of two models after one round
GROSS_POOL, GROSS_SERIAL = 1.5, 1.6  # pool / serial and serial / raw above which CI fails

FULL = (W1, W2, W3, W4)
QUICK = (W2, dataclasses.replace(W4, name="W4, small", clients=6, active=6))

Series = dict[str, list[float]]


class Side:
    """A method under an engine, round by round."""

    def __init__(self, work: Workload, engine: Engine) -> None:
        self.method, self.engine = work.method, engine
        self.state = State(0, self.method.init(engine.open(self.method, 0)))
        self.idle = 0.0

    def round(self, number: int) -> float:
        """Run a bare round (no evaluation, record or checkpoint), and return the seconds in which clients worked."""
        fed = self.engine.open(self.method, number)
        self.state = self.method.round(self.state, fed)
        self.idle = fed.ledger.client_seconds - fed.ledger.busy_seconds / self.engine.workers
        return fed.ledger.client_seconds

    @property
    def everything(self) -> dict[str, Any]:
        """The server's state and the clients' memories."""
        return {"state": self.state.body, "clients": {str(k): m for k, m in self.engine.memories.items()}}


def bare_rounds(work: Workload, built: Built, pool: Pool, gemm: Gemm, passes: int) -> Series:
    """Return the seconds of a round in the tight loop, the serial engine and the pool, and the gain of two cores."""
    setting = built.setting
    raw, serial, pooled = fastest(setting, work), Side(work, Serial(setting)), Side(work, pool)
    sides: dict[str, Callable[[int], object]] = {"raw": raw.round, "serial": serial.round, "pool": pooled.round}
    found: Series = {name: [] for name in (*sides, "gain", "idle")}
    for number in range(1, passes + 2):
        turn = number % len(sides)
        for name in [*sides][turn:] + [*sides][:turn]:
            begin = time.perf_counter()
            sides[name](number)
            found[name].append(time.perf_counter() - begin)
        found["gain"].append(gemm.scaling())
        found["idle"].append(pooled.idle)
        assert tree.equal(serial.everything, pooled.everything), "pool and serial engine differ"
        if number == 1:  # later rounds amplify the last bits in which two memory layouts differ
            models = [(None, pooled.state["model"])] if "model" in pooled.state.body else []
            models += [(k, memory["model"]) for k, memory in pool.memories.items()]
            apart = max(raw.distance(model, k) for k, model in models)
            assert apart < SAME, f"the tight loop produced a different model, {apart:.1e} away"
    return {name: values[1:] for name, values in found.items()}  # the first pass warms up


def memory_of(work: Workload) -> dict[str, int]:
    """Return the peak resident bytes of a parent and its workers, measured in a separate process."""
    command = [sys.executable, __file__, "--memory", work.name]
    answer: dict[str, int] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def _own_memory(work: Workload) -> dict[str, int]:
    setting = work.built().setting
    with Pool(setting, workers=WORKERS) as pool:
        side = Side(work, pool)
        for number in (1, 2):
            side.round(number)
        processes: list[int | str] = [worker.process.pid for worker in pool._workers]
        data = sum(t.numel() * t.element_size() for t in (setting.sites[0].train.x, setting.sites[0].train.y))
        workers = [_status(p) for p in processes]
        return {"parent": _status("self")["VmHWM"], "worker": max(w["VmHWM"] for w in workers), "data": data}


def _status(process: int | str) -> dict[str, int]:
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables; with --quick, return 1 on a large regression."""
    parser = argparse.ArgumentParser(description="The pool against its theoretical limit.")
    parser.add_argument("--quick", action="store_true", help="W2 and a small W4; fails only on a large regression")
    parser.add_argument("--only", metavar="NAME", help="one workload, for example W2")
    parser.add_argument("--memory", metavar="NAME", help="print one workload's peak memory as JSON and nothing else")
    given = parser.parse_args(arguments)
    if given.memory:
        print(json.dumps(_own_memory(next(w for w in FULL if w.name == given.memory))))
        return 0
    chosen = [w for w in (QUICK if given.quick else FULL) if given.only in (None, w.name)]
    passes = QUICK_PASSES if given.quick else PASSES
    bare = new_table(
        f"A bare round, median of {passes} passes; target: pool / limit at most {TARGET:.2f}",
        [
            "raw ms",
            "serial ms",
            "pool ms",
            "idle ms",
            "gain",
            "limit ms",
            "serial / raw",
            "pool / serial",
            "pool / limit",
        ],
    )
    whole = new_table(
        f"A whole round of simulate compared with a bare one, in the pool; target {WHOLE_TARGET:.2f} with the smaller "
        "test",
        [
            "test rows",
            "bare ms",
            "whole ms",
            "evaluation ms",
            "checkpoint ms",
            "evaluation in passes",
            "whole / bare",
            "without evaluation",
        ],
    )
    memory = new_table("Peak resident MiB", ["data", "parent", "a worker, including shared data"])
    sound = True
    tune_malloc()
    with Gemm() as gemm, one_thread():
        for work in chosen:
            built = work.built()
            with Pool(built.setting, workers=WORKERS) as pool:
                found = bare_rounds(work, built, pool, gemm, passes)
                entire = [] if given.quick else with_two_tests(work, built, pool, Side(work, pool).round, passes)
            found["limit"] = [raw / gain for raw, gain in zip(found["raw"], found["gain"], strict=True)]
            ratios = [_ratios(found, *pair) for pair in (("serial", "raw"), ("pool", "serial"), ("pool", "limit"))]
            sound = (
                sound and statistics.median(ratios[0]) <= GROSS_SERIAL and statistics.median(ratios[1]) <= GROSS_POOL
            )
            cells = [_ms(found[name]) for name in ("raw", "serial", "pool", "idle")]
            gain = f"{statistics.median(found['gain']):.2f}"
            bare.add_row(work.name, *cells, gain, _ms(found["limit"]), *map(spread, ratios))
            for both in entire:
                parts = [both.ms(part) for part in ("bare", "whole", "evaluation", "checkpoint")]
                spreads = [spread(both.ratios(evaluation=yes)) for yes in (True, False)]
                whole.add_row(work.name, f"{both.test_rows:,}", *parts, f"+{both.added:.0%}", *spreads)
            if entire:
                sizes = memory_of(work)
                memory.add_row(work.name, *(f"{sizes[name] / 2**20:.0f}" for name in ("data", "parent", "worker")))
    console = Console(width=160)
    for table in (bare,) if given.quick else (bare, whole, memory):
        console.print(table)
    console.print(
        "Pool and serial engine had the same bits after every round, the tight loop the same model after the first."
    )
    if given.quick and not sound:
        console.print(f"Above the CI limit: serial / raw {GROSS_SERIAL}, pool / serial {GROSS_POOL}.")
    return 1 if given.quick and not sound else 0


def new_table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title)
    table.add_column("workload")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _ratios(found: Series, above: str, below: str) -> list[float]:
    return [a / b for a, b in zip(found[above], found[below], strict=True)]


def _ms(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):.0f}"


def spread(ratios: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
