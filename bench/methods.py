"""Every registered method: a round's clients in the pool of two workers against the same clients one after the other.

Sixteen clients with LeNet-5 and random images take ten steps each; a method that needs public data gets some. What a
method sets up itself (generators, rounds on the server) is as small as in `fedalloy check`, since this measures the
engine: the time in which clients work, pool against serial, divided by the speed-up of two processes of matrix products
over one in the same pass. Idle is the share of a pool's round in which its workers did not work, the engine's own cost:
unlike the ratio, it does not compare runs at different times. Serial and pool must have the same bits after every
round.

    python bench/methods.py                 all of them, a few minutes
    python bench/methods.py --only fedmd,kdia --passes 15
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np
from gemm import Gemm
from rich.console import Console
from workloads import Workload

from engine import WORKERS, Side, new_table, spread
from fedalloy.base import rng, tree
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import experiment
from fedalloy.data import from_arrays
from fedalloy.engine.malloc import tune_malloc
from fedalloy.engine.pool import Pool
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Method, methods
from fedalloy.train.fit import one_thread

CLIENTS, SAMPLES, PUBLIC, STEPS = 16, 160, 320, 10
TARGET = 1.10


def built_for(method: Method) -> Built:
    """Return the setting, with labelled public data for a method that needs it."""
    stream = rng.numpy_generator(0, "bench")
    rows = round(CLIENTS * SAMPLES / 0.8) + PUBLIC
    data = from_arrays(stream.integers(256, size=(rows, 1, 28, 28), dtype=np.uint8), np.arange(rows) % 10)
    values: dict[str, Any] = {
        "rounds": 1,
        "partition": {"name": "iid", "clients": CLIENTS},
        "model": "lenet5",
        "training": {"work": "fixed_steps", "steps": STEPS, "batch": 32},
        "method": method.name,
    }
    if method.card.public:
        values["public"] = {"data": "own", "samples": PUBLIC, "labelled": True}
    return build(experiment(values), data)


def measured(method: Method, gemm: Gemm, passes: int) -> dict[str, list[float]]:
    """Return the seconds of the clients' work in both engines, of idle workers, and the gain of two cores, per pass."""
    built = built_for(method)
    work = Workload(method.name, "lenet5", 1, 28, SAMPLES, CLIENTS, CLIENTS, method=method)
    found: dict[str, list[float]] = {"serial": [], "pool": [], "idle": [], "gain": []}
    with Pool(built.setting, workers=WORKERS) as pool:
        sides = {"serial": Side(work, Serial(built.setting)), "pool": Side(work, pool)}
        for number in range(1, passes + 2):
            for name in sorted(sides, reverse=bool(number % 2)):
                found[name].append(sides[name].round(number))
            found["idle"].append(sides["pool"].idle)
            found["gain"].append(gemm.scaling())
            assert tree.equal(sides["serial"].everything, sides["pool"].everything), f"{method.name}: the bits differ"
    return {name: values[1:] for name, values in found.items()}  # the first pass warms up


def main() -> None:
    """Measure and print one table."""
    import fedalloy.methods  # noqa: F401  # registers them

    parser = argparse.ArgumentParser(description="Every method's clients, pool against serial.")
    parser.add_argument("--only", metavar="METHODS", help="names, separated by commas")
    parser.add_argument("--passes", type=int, default=5)
    given = parser.parse_args()
    title = f"The clients of a round, median of {given.passes} passes; target: pool / limit at most {TARGET:.2f}"
    table = new_table(title, ["serial ms", "pool ms", "idle", "gain", "pool / limit"])
    tune_malloc()
    with Gemm() as gemm, one_thread():
        for name in given.only.split(",") if given.only else sorted(methods):
            cls = methods[name]
            found = measured(cls(**cls.card.quick), gemm, given.passes)
            if not all(found["serial"]):
                print(f"{name}: its clients do nothing")
                continue
            ratios = [p * g / s for p, g, s in zip(found["pool"], found["gain"], found["serial"], strict=True)]
            cells = [f"{1000 * statistics.median(found[side]):.0f}" for side in ("serial", "pool")]
            idle = statistics.median(i / p for i, p in zip(found["idle"], found["pool"], strict=True))
            table.add_row(name, *cells, f"{idle:.1%}", f"{statistics.median(found['gain']):.2f}", spread(ratios))
            print(f"{name}: {statistics.median(ratios):.3f}", flush=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
