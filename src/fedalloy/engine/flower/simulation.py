"""Flower's simulation runtime as an engine: clients in Ray's processes, on this machine or on a cluster.

Flower expects to be the caller; here it runs in a thread and hands over its Grid. Every Ray process builds the setting
once from the experiment. Only this machine is contacted unless RAY_ADDRESS names a cluster.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedalloy.base.files import as_json
from fedalloy.base.plugins import load_file, loaded_files
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.config.sections import Experiment
from fedalloy.engine.cores import usable_cores
from fedalloy.engine.flower.carrier import Flower
from fedalloy.engine.flower.client import PARTITION, client_app
from fedalloy.engine.flower.roster import one_line
from fedalloy.errors import FedalloyError, UsageError
from fedalloy.federation.core import Message, Method, State
from fedalloy.federation.engine import Answer, Failure
from fedalloy.federation.setting import Setting
from fedalloy.storage.store import FREE, METHOD_PARTS, Say

# Ray replaces 127.0.0.1 by the machine's own address, where others could reach it, unless it is told that there will be
# no cluster; it reads this on import.
if "RAY_ADDRESS" not in os.environ:
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
try:
    import ray  # without it, Flower would end this process
except ImportError as error:
    raise UsageError(
        'engine = "flower" needs Ray; install it with `pip install ".[flower]"` in a clone of the repository'
    ) from error

START = 600.0  # seconds until Ray's processes must be ready
END = 60.0  # seconds until they must have ended
TRIES = 3  # Ray gives up after 30 s, which a busy machine may need


class SimulationError(FedalloyError):
    """Flower's simulation runtime did not start, or ended unexpectedly."""


@dataclass
class Here:
    """How a simulated client finds its setting and its folder; it is sent with each message, so it is small."""

    folder: Path
    plugins: tuple[str, ...] = field(default_factory=lambda: tuple(loaded_files()))

    def __call__(self, context: Context, asked: dict[str, Any], _: str | None = None) -> tuple[int, Setting, Path]:
        """Return the client's id, its setting and its memory folder."""
        told = {key: value for key, value in asked.items() if key not in {*FREE, *METHOD_PARTS, "stop"}}
        return int(context.node_config[PARTITION]), _setting(as_json(told), self.plugins), self.folder


@lru_cache(maxsize=2)  # a comparison runs one seed after the other; more would waste memory
def _setting(told: bytes, plugins: tuple[str, ...]) -> Setting:
    """Build the setting of an experiment, once per process."""
    for file in plugins:
        if file not in loaded_files():
            load_file(file)
    return build(experiment(json.loads(told))).setting


class Simulation(Flower):
    """Carry messages to clients that Flower simulates on Ray; use it in a `with` block.

    Each client takes one core while it acts. Memories are in the run's folder, or in a temporary one if it has none; on
    a cluster of several machines, that folder must be on shared storage.
    """

    simulated = True

    def __init__(
        self, setting: Setting, exp: Experiment, workers: int | None = None, say: Say = lambda _: None
    ) -> None:
        if setting.device.type != "cpu":
            raise UsageError(
                f"engine = 'flower' simulates on CPUs, but the data is on '{setting.device}'; write engine = 'auto'"
            )
        self._temporary = tempfile.mkdtemp(prefix="fedalloy-")
        self._here = Here(Path(self._temporary))
        cores = min(workers or usable_cores(), len(setting.sites))
        self._ill = False  # whether one of its processes has died
        try:
            super().__init__(self._started(len(setting.sites), cores), setting, exp, say=say, patience=START)
        except BaseException:
            self.close()
            raise
        self.workers = cores

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop Flower's and Ray's processes, and remove temporary memories."""
        self._runtime.stop()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def begin(self, folder: Path | None) -> None:
        """Begin a run whose clients keep their memories in this folder."""
        super().begin(folder)
        self._here.folder = Path(self._temporary) if folder is None else folder.absolute()

    def check(self) -> None:
        """Raise if the runtime has ended."""
        self._runtime.check()

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterator[Answer | Failure]:
        """Let clients act; one whose process died is asked once more, alone, as in the pool.

        Flower keeps sending messages to a Ray process that has died, so that other clients fail through no fault of
        theirs.
        """
        again = []
        self._mend()
        for answer in super().carry(method, round, messages):
            if self._died(answer):
                again += [message for message in messages if message.client == answer.client]
            else:
                yield answer
        for message in again:
            self._mend()
            for answer in super().carry(method, round, [message]):
                yield (
                    Failure(answer.client, "its process died twice, perhaps because memory ran out")
                    if self._died(answer)
                    else answer
                )

    def evaluate(self, method: Method, state: State) -> dict[str, Any]:
        """Return the record of a round's views."""
        self._mend()
        return super().evaluate(method, state)

    def _died(self, answer: Answer | Failure) -> bool:
        died = isinstance(answer, Failure) and "ray.exceptions." in answer.reason
        self._ill = self._ill or died
        return died

    def _mend(self) -> None:
        """Start new processes if one has died."""
        if self._ill:
            self._runtime.stop()
            self.move(self._started(len(self.setting.sites), self.workers))
            self._ill = False

    def _started(self, clients: int, cores: int) -> Grid:
        for left in reversed(range(TRIES)):
            self._runtime = Runtime(self._here, clients, cores)
            try:
                return _with_own_signals(self._runtime.start)
            except SimulationError as error:
                if not left or "timed out" not in str(error):
                    raise
        raise AssertionError  # the last try returns or raises


class Runtime:
    """Flower's simulation runtime in a thread of this process."""

    def __init__(self, here: Here, clients: int, cores: int) -> None:
        self.here, self.clients, self.cores = here, clients, cores
        self._grid: Grid | None = None
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="flower", daemon=True)

    def start(self) -> Grid:
        """Start it, and wait until Ray is ready; Flower hands over its Grid earlier."""
        self._thread.start()
        end = time.monotonic() + START
        while self._thread.is_alive() and time.monotonic() < end:
            if self._grid is not None and ray.is_initialized():
                return self._grid
            time.sleep(0.05)
        raise SimulationError(f"Flower's simulation did not start: {self._why()}")

    def stop(self) -> None:
        """Stop it, and wait until its processes have ended."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(END)

    def check(self) -> None:
        """Raise if it has ended."""
        if not self._thread.is_alive():
            raise SimulationError(f"Flower's simulation has ended: {self._why()}")

    def _why(self) -> str:
        return one_line(f"{type(self._error).__name__}: {self._error}" if self._error else "no reason given")

    def _run(self) -> None:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, _: Context) -> None:
            self._grid = grid
            self._end.wait()

        try:
            with _quiet(), _backend(self.cores) as backend:
                run_simulation(app, client_app(self.here), self.clients, backend_config=backend)
        except BaseException as error:
            while error.__cause__ is not None:  # Flower wraps the cause in errors that do not name it
                error = error.__cause__
            self._error = error


@contextmanager
def _backend(cores: int) -> Iterator[dict[str, Any]]:
    """Return Flower's options for Ray: only this machine and this many cores, unless there is a cluster."""
    init: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
    told = {"init_args": init, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    with socket.socket() as taken:
        if "RAY_ADDRESS" not in os.environ:
            # Even without a dashboard, Ray starts its process, which asks cloud services where it is running, unless
            # its port is already in use.
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            init |= {"num_cpus": cores, "_node_ip_address": "127.0.0.1", "dashboard_port": taken.getsockname()[1]}
        yield told


def _with_own_signals(start: Callable[[], Grid]) -> Grid:
    """Start Ray, but keep this process's signal handlers: Ray's would answer SIGTERM with a stack trace."""
    grid = start()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.getsignal(number) or signal.SIG_DFL)
    return grid


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Flower's log, and restore the search path that it leaves in the environment."""
    log, path = logging.getLogger("flwr"), os.environ.get("PYTHONPATH")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
        if path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = path
