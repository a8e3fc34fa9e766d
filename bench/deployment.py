"""Three sites with TLS and keys, all on this machine, compared with the serial engine: the same bits, and the cost.

    python bench/deployment.py bits [METHOD ...]     # is the model that of `fedalloy run`?
    python bench/deployment.py cost                  # start, seconds per round, memory, bytes on the wire
    python bench/deployment.py steps                 # where the time of one message goes

The commands are those of docs/deploy.md. A forwarder between the sites and the server counts bytes, so that everything
that would leave a site's machine, or reach it, is counted: TLS, headers, polling. The figures go to
`results/flower.md`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import tomli_w
from flower_page import save, table

from fedalloy.base import tree
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import with_cap
from fedalloy.run.runner import simulate
from fedalloy.storage.store import Store
from flower import SIX, TINY, family, held

SITES, ROUNDS, PORT = 3, 6, 18700
FEDALLOY = [sys.executable, "-c", "from fedalloy.cli.main import main; main()"]


def bits(names: Sequence[str]) -> None:
    """Compare each method at three sites and on the serial engine."""
    import fedalloy.methods  # noqa: F401  # registers them
    from fedalloy.federation.core import methods

    rows = []
    for name in names:
        values = {**TINY, "partition": {"clients": SITES, "alpha": 1.0}, "participation": {"policy": "full"}}
        with deployed({**values, "method": {"name": name, **methods[name].card.quick}}) as lab:
            begun = time.perf_counter()
            command("run", str(lab.deployment.folder))
            seconds = time.perf_counter() - begun
            found, expected = (state(folder) for folder in (lab.deployment.run, lab.alone))
            rows.append(
                [methods[name].label, "equal" if found == expected else "DIFFERENT", found[:16], f"{seconds:.0f}"]
            )
            print(*rows[-1], flush=True)
    save("sites", table(["method", "state after two rounds", "digest", "s, whole run"], rows))


def state(folder: Path) -> str:
    """Return the digest of the server's state after a run's last round."""
    saved = Store(folder).restore()
    assert saved is not None
    return tree.digest(saved[0].body)


def cost() -> None:
    """Measure two models, with and without evaluation in every round."""
    rows = []
    for hidden, name in ((75, "250 kB"), (1500, "5 MB")):
        for every in (100, 1):
            rows.append([name, "each round" if every == 1 else "at the end", *measured(hidden, every)])
            print(*rows[-1], flush=True)
    head = ["model", "evaluation", "init s", "up s", "first round s", "s/round", "best s/round"]
    head += ["CPU s/round", "serial s/round", "ledger B/round", "wire B/round", "wire / ledger", "memory MiB"]
    save("deployment", table(head, rows))


def measured(hidden: int, every: int) -> list[str]:
    """Measure one step of an MLP at each site, so that messages dominate a round."""
    values = {
        "data": {"name": "fashion-mini"},
        "model": {"name": "mlp", "hidden": hidden},
        "rounds": ROUNDS,
        "evaluate_every": every,
        "partition": {"name": "iid", "clients": SITES},
        "training": {"work": "fixed_steps", "steps": 1, "batch": 16},
    }
    with deployed(values) as lab:
        watch = Watch(lab.deployment, lab.forwarder)
        command("run", str(lab.deployment.folder))
        watch.end()
        rounds, alone = records(lab.deployment.run), records(lab.alone)
    middle = slice(1, ROUNDS - 1)  # in the first round sites introduce themselves, and the last is always evaluated
    each, embedded = (fmean(r["seconds"]["total"] for r in found[middle]) for found in (rounds, alone))
    ledger = fmean(sum(sum(way.values()) for way in r["bytes"].values()) for r in rounds[middle])
    wire = (watch.bytes[ROUNDS - 2] - watch.bytes[0]) / (ROUNDS - 2)
    times = [
        f"{lab.init:.1f}",
        f"{lab.up:.1f}",
        f"{rounds[0]['seconds']['total']:.1f}",
        f"{each:.2f}",
        f"{min(r['seconds']['total'] for r in rounds[middle]):.2f}",
        f"{(watch.cpu[ROUNDS - 2] - watch.cpu[0]) / (ROUNDS - 2):.1f}",
        f"{embedded:.3f}",
    ]
    return [*times, f"{ledger:,.0f}", f"{wire:,.0f}", f"{wire / ledger:.3f}", f"{watch.memory / 2**20:.0f}"]


def records(folder: Path) -> list[dict[str, Any]]:
    """Return a run's rounds."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@dataclass(frozen=True)
class Lab:
    """A running deployment, how long `init` and `up` took, and the folder of the serial run of the same experiment."""

    deployment: Deployment
    forwarder: Forwarder
    init: float
    up: float
    alone: Path


@contextmanager
def deployed(values: Mapping[str, Any]) -> Iterator[Lab]:
    """Start a deployment of an experiment, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="fedalloy-bench-") as scratch:
        alone = Path(scratch) / "alone"
        simulate({**with_cap(values), "engine": "serial"}, alone)
        file, folder = Path(scratch) / "exp.toml", Path(scratch) / "lab"
        file.write_text(tomli_w.dumps(dict(values)))
        address = f"127.0.0.1:{PORT}"
        init = command("init", str(file), "--out", str(folder), "--sites", str(SITES), "--address", address)
        with Forwarder(PORT + 50, PORT) as forwarder:
            deployment = Deployment(folder, "127.0.0.1", PORT, SITES)
            for k in range(SITES):
                script = deployment.site(k) / "start.sh"
                option = f"--superlink {address}"
                script.write_text(script.read_text().replace(option, f"--superlink 127.0.0.1:{forwarder.port}"))
            try:
                up = command("up", str(folder), "--local", str(SITES))
                yield Lab(deployment, forwarder, init, up, alone)
            finally:
                command("down", str(folder))


def command(*words: str) -> float:
    """Run `fedalloy deploy`; return how long it took."""
    begun = time.perf_counter()
    done = subprocess.run([*FEDALLOY, "deploy", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"fedalloy deploy {' '.join(words)}: {done.stderr}")
    return time.perf_counter() - begun


def spent(leaders: Sequence[int]) -> float:
    """Return the CPU seconds of these processes, of their sessions, and of the children that have ended."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdecimal() else []
        except OSError:
            continue
        if fields and int(fields[3]) in leaders:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


STEPS = """
import os, sys, time
from pathlib import Path

marks = []

def mark(name):
    marks.append((name, time.perf_counter(), time.process_time()))

mark("")
import flwr.supernode.runtime.run_clientapp
mark("import Flower")
import torch
mark("import torch")
import fedalloy.deploy.app
mark("import fedalloy")
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
mark("a fork instead of these three")
from fedalloy.deploy.site import site_setting
site_setting(Path(sys.argv[1]), int(sys.argv[2]))
mark("read the experiment and the data, build the setting")
for (_, wall, cpu), (name, later, more) in zip(marks, marks[1:]):
    print(name, later - wall, more - cpu, sep="|")
"""


def steps() -> None:
    """Measure the parts of one message at a site, the best of five new processes."""
    with tempfile.TemporaryDirectory(prefix="fedalloy-bench-") as scratch:
        file, folder = Path(scratch) / "exp.toml", Path(scratch) / "lab"
        file.write_text(tomli_w.dumps({"data": {"name": "fashion-mini"}, "partition": {"clients": SITES}}))
        command("init", str(file), "--out", str(folder), "--sites", str(SITES))
        site = str(Deployment(folder, "127.0.0.1", PORT, SITES).site(0))
        best: dict[str, tuple[float, float]] = {}
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, "-c", STEPS, site, str(SITES)], capture_output=True, text=True, check=True
            )
            for line in done.stdout.splitlines():
                name, wall, cpu = line.split("|")
                best[name] = min(best.get(name, (float("inf"), 0.0)), (float(wall), float(cpu)))
    rows = [[name, f"{wall:.3f}", f"{cpu:.3f}"] for name, (wall, cpu) in best.items()]
    for row in rows:
        print(*row, flush=True)
    save("steps", table(["step", "s", "CPU s"], rows))


class Forwarder:
    """Forwards connections to a port of this machine, and counts the bytes in both directions."""

    def __init__(self, port: int, to: int) -> None:
        self.port, self.to, self.bytes = port, to, 0
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", port))

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)  # wakes up the waiting thread
        self._door.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # closed, or nothing listens behind it
                return
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while part := source.recv(1 << 16):
                sink.sendall(part)
                with self._lock:
                    self.bytes += len(part)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one end has closed the connection
            return


class Watch:
    """The forwarder's count and the CPU seconds after each round, and the peak memory of all processes together."""

    def __init__(self, deployment: Deployment, forwarder: Forwarder) -> None:
        self.bytes: list[int] = []
        self.cpu: list[float] = []
        self.memory = 0
        self._file, self._state, self._forwarder = deployment.run / "rounds.jsonl", deployment.state, forwarder
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._count), threading.Thread(target=self._weigh)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop: no more rounds will follow."""
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _count(self) -> None:
        while not self._done.wait(0.02):
            done = self._file.read_text().count("\n") if self._file.exists() else 0
            if done > len(self.bytes):
                self.cpu += [spent(self._leaders())] * (done - len(self.bytes))
                self.bytes += [self._forwarder.bytes] * (done - len(self.bytes))

    def _leaders(self) -> list[int]:
        return [int(file.read_text().split()[0]) for file in self._state.glob("*.pid")]

    def _weigh(self) -> None:
        while not self._done.wait(1.0):
            self.memory = max(self.memory, sum(held(pid) for leader in self._leaders() for pid in family(leader)))


if __name__ == "__main__":
    what, *names = sys.argv[1:] or ["bits"]
    {"bits": lambda: bits(names or SIX), "cost": cost, "steps": steps}[what]()
