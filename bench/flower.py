"""Flower's simulation compared with the embedded engines: the same bits, and the cost.

python bench/flower.py bits [METHOD ...]     # final states and memories on Ray and on the serial engine
python bench/flower.py cost                  # start, seconds per round, memory, bytes at 10 and 100 clients
python bench/flower.py network               # which addresses the processes talk to

Bits and cost go to `results/flower.md`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flower_page import save, table

from fedalloy.base import tree
from fedalloy.engine.base import REFERENCE
from fedalloy.engine.flower.memory import Memory
from fedalloy.run.runner import MEMORIES, simulate
from fedalloy.storage.store import Store

SIX = ("fedavg", "fedkf", "knfu", "kdia", "dafkd", "fedmd-global")
TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": 16},
    "rounds": 2,
    "partition": {"clients": 4, "alpha": 1.0, "validation": 0.1},
    "participation": {"policy": "fraction", "fraction": 0.5},
    "public": {"data": "own", "samples": 40, "labelled": True},
}


def left(folder: Path) -> dict[str, Any]:
    """Return the last state of a run, and its clients' memories, wherever they are stored."""
    saved = Store(folder).restore()
    assert saved is not None
    state, memories = saved
    found = {}
    for k, memory in memories.items():
        own = Memory(folder / MEMORIES / str(k)).read(memory[REFERENCE]) if REFERENCE in memory else memory
        assert own is not None
        found[str(k)] = own
    return {"state": state.body, "memories": found}


def bits(names: list[str]) -> None:
    """Compare each method on Ray and on the serial engine."""
    import fedalloy.methods  # noqa: F401
    from fedalloy.federation.core import methods

    rows = []
    for name in names:
        options = {"method": {"name": name, **methods[name].card.quick}}
        digests, views, seconds = [], [], []
        for engine in ("serial", "flower"):
            with tempfile.TemporaryDirectory() as folder:
                begun = time.perf_counter()
                run = simulate({**TINY, **options, "engine": engine, "workers": 2}, Path(folder) / "run", say=print)
                seconds.append(time.perf_counter() - begun)
                digests.append(tree.digest(left(Path(folder) / "run")))
                views.append([(r["views"], r["bytes"], r["passes"], r["active"]) for r in run.rounds])
        same = "equal" if digests[0] == digests[1] else "DIFFERENT"
        records = "equal" if views[0] == views[1] else "DIFFERENT"
        rows.append([methods[name].label, same, records, digests[1][:16], f"{seconds[0]:.1f}", f"{seconds[1]:.1f}"])
        print(*rows[-1], flush=True)
    head = ["method", "state and memories", "records", "digest", "s, serial", "s, Flower on Ray"]
    save("bits", table(head, rows))


def cost() -> None:
    """Measure the cost of a round on Ray and on the embedded engines, for small and large models."""
    rows = []
    for clients, rounds in ((10, 5), (100, 3)):
        for hidden, name in ((75, "250 kB"), (1500, "5 MB")):
            for engine in ("serial", "pool", "flower"):
                rows.append([clients, name, engine, *_cost(clients, rounds, hidden, engine)])
                print(*rows[-1], flush=True)
    head = ["clients", "model", "engine", "start s", "s/round", "evaluation s", "ledger B/round", "memory MiB"]
    save("cost", table(head, rows))


def _cost(clients: int, rounds: int, hidden: int, engine: str) -> list[str]:
    exp = {
        "data": {"name": "fashion-mini"},
        "model": {"name": "mlp", "hidden": hidden},
        "rounds": rounds,
        "partition": {"name": "iid", "clients": clients},
        "training": {"work": "fixed_steps", "steps": 1, "batch": 16},
        "engine": engine,
    }
    marks: list[float] = []
    with peak() as memory:
        begun = time.perf_counter()
        run = simulate(exp, watch=lambda _: marks.append(time.perf_counter()))
    later = run.rounds[1:]  # the first round builds the settings
    each = [r["seconds"]["client"] + r["seconds"]["server"] for r in later]
    look = [r["seconds"]["evaluation"] for r in later]
    ledger = sum(sum(way.values()) for way in run.rounds[-1]["bytes"].values())
    start = marks[0] - begun - run.rounds[0]["seconds"]["total"]
    times = [f"{start:.1f}", f"{sum(each) / len(each):.3f}", f"{sum(look) / len(look):.3f}"]
    return [*times, f"{ledger:,}", f"{memory[0] / 2**20:.0f}"]


def network() -> None:
    """Run a small experiment, and list every peer that its processes communicated with."""
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            mine = {str(pid) for pid in family(os.getpid())}
            out = subprocess.run(["ss", "-tunapH"], capture_output=True, text=True).stdout
            for line in out.splitlines():
                if any(f"pid={pid}," in line for pid in mine):
                    fields = line.split()
                    seen.add(
                        f"{fields[0]} {fields[1]:10} {fields[4].rsplit(':', 1)[0]} -> {fields[5].rsplit(':', 1)[0]}"
                    )

    watcher = threading.Thread(target=look)
    watcher.start()
    simulate({**TINY, "engine": "flower", "workers": 2}, say=print)
    done.set()
    watcher.join()
    print("\n".join(sorted(seen)))
    if any("127.0.0.1" not in line for line in seen):
        sys.exit("a process used an address other than 127.0.0.1")


@contextmanager
def peak() -> Iterator[list[int]]:
    """Measure the peak memory (PSS) of this process and its children, every second and at the end."""
    found, done = [0], threading.Event()

    def look() -> None:
        found[0] = max(found[0], sum(held(pid) for pid in family(os.getpid())))

    def watch() -> None:
        while not done.wait(1.0):  # measuring is slow
            look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
        look()
    finally:
        done.set()
        watcher.join()


def held(pid: int) -> int:
    """Return the memory of a process (PSS) in bytes."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


def family(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += parents.get(pid, [])
    return found


if __name__ == "__main__":
    what, *names = sys.argv[1:] or ["bits"]
    {"bits": lambda: bits(names or list(SIX)), "cost": cost, "network": network}[what]()
