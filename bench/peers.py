"""A round of FedAvg in fedalloy's pool, in pfl and in Flower's simulation: the same task on two cores, alternating.

Each peer is installed from PyPI into its own environment under `build/peers`, with the same torch as fedalloy. All
three train the same network on the same data: two processes with one torch thread each, the same optimiser, batches,
epochs and number of clients, no evaluation. They alternate, several rounds at a time, in one run; the others wait
meanwhile. The first rounds warm up. Medians and quartiles are those of the ratios, pass by pass.

Ray, which Flower's simulation uses, looks for a cloud provider's metadata service even when its dashboard and its usage
statistics are off. Therefore everything is measured in a network namespace that only has loopback (Linux).

    python bench/peers.py             W1 and W2, a few minutes, plus the downloads the first time
    python bench/peers.py --only W2
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from workloads import W1, W2, Workload

from engine import WORKERS, Series, Side, _ratios, new_table, spread
from fedalloy.config.build import Built
from fedalloy.engine.pool import Pool
from fedalloy.federation.setting import SERVER
from fedalloy.nets.models import parameter_count
from fedalloy.train.fit import one_thread

ROOT = Path(__file__).parent.parent
HOME = ROOT / "build" / "peers"
TORCH = torch.__version__.split("+")[0]
WARM_UP, PASSES = 2, 5
ROUNDS = {"W1": 4, "W2": 8}  # rounds of one pass: a few seconds
TARGETS = {"pfl": 0.75, "flower": 0.55}  # ours / theirs, at most
PATIENCE = 30  # seconds that a peer may take to end


class PeerError(Exception):
    """A peer cannot be installed or does not run."""


@dataclass(frozen=True)
class Peer:
    """A package and the program that runs the task in it."""

    name: str
    package: str
    processes: int

    @property
    def python(self) -> Path:
        """The Python interpreter of its environment."""
        return HOME / self.name / "bin" / "python"


PEERS = (Peer("pfl", "pfl==0.6.*", processes=WORKERS), Peer("flower", "flwr[simulation]==1.41.*", processes=1))


def install(peer: Peer) -> None:
    """Create the peer's environment if it does not exist; torch is installed first, so that nothing replaces it."""
    ready, wanted = HOME / peer.name / ".ready", f"{peer.package} torch=={TORCH}"
    if ready.exists() and ready.read_text() == wanted:
        return
    print(f"Installing {peer.package} into {ready.parent.relative_to(ROOT)} ...", file=sys.stderr)
    pip = [str(peer.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"torch=={TORCH}"]
    for command in ([sys.executable, "-m", "venv", str(ready.parent)], [*pip, "numpy"], [*pip, peer.package]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            raise PeerError(f"{peer.package} could not be installed, so there is nothing to compare with: {said[-1]}")
    ready.write_text(wanted)


class Running:
    """A peer's processes, which wait until they are asked; use it in a `with` block."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer, self.log = peer, HOME / f"{peer.name}.log"
        addresses = ",".join(f"localhost:{_free_port()}" for _ in range(peer.processes))
        common = {
            "PEERS_TASK": str(folder),
            "PYTHONPATH": str(ROOT / "src"),  # for the networks
            "OMP_NUM_THREADS": "1",
            "PFL_WORKER_ADDRESSES": addresses,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        command = [peer.python, ROOT / "bench" / "peers" / f"{peer.name}_run.py"]
        with self.log.open("w") as log:
            self.crew = [
                subprocess.Popen(
                    command,
                    env={**os.environ, **common, "PFL_WORKER_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    bufsize=1,
                )
                for rank in range(peer.processes)
            ]
        self.facts = self._answers()[0]

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.crew:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.crew:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()

    def rounds(self, number: int) -> tuple[float, int]:
        """Run `rounds` rounds; return their seconds, and the optimiser steps of all processes."""
        for process in self.crew:
            assert process.stdin is not None
            process.stdin.write(f"{number}\n")
        answers = self._answers()
        return max(a["seconds"] for a in answers), sum(a["steps"] for a in answers)

    def _answers(self) -> list[dict[str, Any]]:
        lines = [process.stdout.readline() for process in self.crew if process.stdout is not None]
        if not all(lines):
            raise PeerError(f"{self.peer.name} stopped; its output is in {self.log.relative_to(ROOT)}")
        return [json.loads(line) for line in lines]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_task(work: Workload, built: Built, folder: Path) -> None:
    """Write the task and the clients' training data for programs that do not use fedalloy."""
    local = asdict(built.setting.work)
    facts = {name: getattr(work, name) for name in ("model", "channels", "size", "classes", "clients", "active")}
    facts |= {name: local[name] for name in ("epochs", "batch", "lr", "momentum")}
    facts["rounds"] = WARM_UP + PASSES * ROUNDS[work.name]
    (folder / "task.json").write_text(json.dumps(facts))
    np.save(folder / "x.npy", np.stack([site.train.inputs.numpy() for site in built.setting.sites]))
    np.save(folder / "y.npy", np.stack([site.train.labels.numpy() for site in built.setting.sites]))


def compare(work: Workload) -> tuple[Series, list[str]]:
    """Return the seconds of a round of each side, pass by pass, and the versions used."""
    built = work.built()
    numbers = parameter_count(built.setting.network(SERVER)())
    steps = work.active * built.setting.steps(0)
    found: Series = {"ours": [], **{peer.name: [] for peer in PEERS}}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=HOME)))
        write_task(work, built, folder)
        ours = Side(work, stack.enter_context(Pool(built.setting, workers=WORKERS)))
        theirs = {peer.name: stack.enter_context(Running(peer, folder)) for peer in PEERS}
        for side in theirs.values():
            assert (side.facts["torch"], side.facts["parameters"]) == (torch.__version__, numbers), side.facts
        done = 0
        for rounds in [WARM_UP] + PASSES * [ROUNDS[work.name]]:
            begin = time.perf_counter()
            for number in range(done + 1, done + rounds + 1):
                ours.round(number)
            found["ours"].append((time.perf_counter() - begin) / rounds)
            for name, side in theirs.items():
                seconds, taken = side.rounds(rounds)
                assert taken == rounds * steps, f"{name} took {taken} steps in {rounds} rounds, not {rounds * steps}"
                found[name].append(seconds / rounds)
            done += rounds
        versions = [side.facts["peer"] for side in theirs.values()]
    return {name: values[1:] for name, values in found.items()}, versions


def cut_off(arguments: Sequence[str]) -> int:
    """Run this program again without network access."""
    inside = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, __file__, "--measure", *arguments]
    try:
        return subprocess.call(["unshare", "--map-root-user", "--net", *inside])
    except FileNotFoundError:
        raise PeerError("the command 'unshare' is missing, but Ray must not reach the network; use Linux") from None


def measure(workloads: Sequence[Workload]) -> None:
    """Run the workloads and print the table."""
    wanted = ", ".join(f"{name} {target:.2f}" for name, target in TARGETS.items())
    table = new_table(
        f"Seconds of a round, medians of {PASSES} passes; ours / theirs with quartiles; targets: {wanted}",
        ["ours", *TARGETS, *(f"ours / {name}" for name in TARGETS)],
    )
    load = os.getloadavg()
    versions: list[str] = []
    with one_thread():
        for work in workloads:
            found, versions = compare(work)
            ratios = (spread(_ratios(found, "ours", name)) for name in TARGETS)
            table.add_row(work.name, *(f"{statistics.median(s):.3f}" for s in found.values()), *ratios)
    console = Console(width=120)
    console.print(table)
    console.print(f"{', '.join(versions)}, torch {torch.__version__}; load before the start {load[0]:.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, measure, print a table; return 1 if a peer is not available."""
    parser = argparse.ArgumentParser(description="A round of FedAvg here, in pfl and in Flower's simulation.")
    parser.add_argument("--only", choices=list(ROUNDS), help="one workload")
    parser.add_argument(
        "--measure", action="store_true", help=argparse.SUPPRESS
    )  # already installed and without network access
    given = parser.parse_args(arguments)
    try:
        if given.measure:
            measure([w for w in (W1, W2) if given.only in (None, w.name)])
            return 0
        HOME.mkdir(parents=True, exist_ok=True)
        for peer in PEERS:
            install(peer)
        return cut_off(["--only", given.only] if given.only else [])
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
