"""The same seed gives the same bits, for any number of workers, order of arrival and Python hash seed.

One process per hash seed runs every method on the serial engine, in threads, and on pools of 1, 2 and 4 workers, once
with messages and answers in order and once with both shuffled: 30 cells for each method. All must give the same state,
the same memories and the same evaluation results.

    python chaos/exactness.py --count 23 --save        so many methods
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
from harness import run_from_command_line, show, single

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.check.probe import small_settings
from fedalloy.engine.base import Round
from fedalloy.engine.pool import Pool
from fedalloy.engine.serial import Serial
from fedalloy.engine.threads import Threads
from fedalloy.federation.core import Message, Method, methods, quick, run
from fedalloy.federation.engine import Answer, Failure
from fedalloy.federation.evaluation import evaluate

HASH_SEEDS = ("0", "1", "random")
ENGINES = ("serial", "threads", "1 worker", "2 workers", "4 workers")
ORDERS = ("in order", "shuffled")
ROUNDS = 2


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test all cells of `count` methods; a failure is a cell that differs from the first of its method."""
    begin = time.monotonic()
    names = random.Random(seed).sample(sorted(methods), min(count, len(methods)))
    tables = {hash_seed: _elsewhere(hash_seed, names, seed) for hash_seed in HASH_SEEDS}
    digests: dict[str, dict[str, str]] = {
        name: {f"hash seed {h}, {cell}": found for h, table in tables.items() for cell, found in table[name].items()}
        for name in names
    }
    examples = [
        {"trial": name, "what": f"{cell}: {digest[:12]}, not {next(iter(cells.values()))[:12]}"}
        for name, cells in digests.items()
        for cell, digest in cells.items()
        if digest != next(iter(cells.values()))
    ]
    cells = len(HASH_SEEDS) * len(ENGINES) * len(ORDERS)
    facts = {"cells": cells, "methods": sorted(names), "examples": examples[:20]}
    report = single("exactness", seed, len(examples), count=cells * len(names), begin=begin, save=save, **facts)
    show(report)
    return {"exactness": report}


def _elsewhere(hash_seed: str, names: Sequence[str], seed: int) -> dict[str, dict[str, str]]:
    """Return the digest of each cell of each method, from a process with this hash seed."""
    command = [sys.executable, __file__, "--cells", str(seed), *names]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": hash_seed}
    )
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def cells(names: Sequence[str], seed: int, engines: Sequence[str] = ENGINES) -> dict[str, dict[str, str]]:
    """Return the digest of each method's run on each engine, in both orders, in this process."""
    setting = small_settings()[1]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for kind in engines:
        with _engine(setting, kind) as engine:
            for name in names:
                for order in ORDERS:
                    engine.memories = {}
                    carrier = engine if order == "in order" else Shuffled(engine, seed)
                    found[name][f"{kind}, {order}"] = digest(quick(methods[name]), carrier)
    return found


@contextmanager
def _engine(setting: Any, kind: str) -> Iterator[Any]:
    if kind == "serial":
        yield Serial(setting)
    elif kind == "threads":
        yield Threads(setting, workers=2)
    else:
        with Pool(setting, workers=int(kind.split()[0])) as pool:
            yield pool


class Shuffled:
    """An engine whose messages and answers are shuffled."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.engine, self.dice = engine, random.Random(f"{seed}/arrival")
        self.setting, self.workers = engine.setting, engine.workers

    @property
    def memories(self) -> dict[int, Tree]:
        """The clients' memories, those of the wrapped engine."""
        found: dict[int, Tree] = self.engine.memories
        return found

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self.engine.memories = memories

    def open(self, method: Method, round: int) -> Round:
        """Begin a round."""
        return Round(self, method, round)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Return the same answers, shuffled."""
        answers = list(self.engine.carry(method, round, self.dice.sample(messages, len(messages))))
        self.dice.shuffle(answers)
        return answers


def digest(method: Method, engine: Any) -> str:
    """Return the digest of everything that some rounds leave behind."""
    state = run(method, engine, ROUNDS)
    views = evaluate(engine.setting, method, state, engine.memories, engine.workers)
    kept = {str(k): memory for k, memory in engine.memories.items()}
    left = tree.digest({"state": state.body, "memories": kept})
    return sha256((left + json.dumps(views, sort_keys=True)).encode()).hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--cells"]:
        warnings.simplefilter("ignore")
        sys.stdout.write(json.dumps(cells(sys.argv[3:], int(sys.argv[2]))))
    else:
        run_from_command_line(main, len(methods))
