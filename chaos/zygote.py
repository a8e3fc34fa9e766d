"""Commands in processes that are forked from this one, which has imported everything.

Imports take longer than a small run. The workers of a pool are forked too, instead of being started as programs; they
do the same work. Nothing may be trained in this process itself: forking a process that has trained is not safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn
from unittest.mock import patch

import torch
from configs import read_once
from harness import FaultError

from fedalloy.base import plugins
from fedalloy.cli.main import main as command
from fedalloy.engine import arena, pool, worker
from fedalloy.report import html

PR_SET_CHILD_SUBREAPER = 36
ORPHANS = 10.0  # seconds in which the workers of a killed run must have ended, even on a busy machine


@contextmanager
def warmed(memory: Path) -> Iterator[None]:
    """Read data and plug-ins once, and skip the pages of reports; shared memory is put into a folder."""
    torch.set_num_threads(1)
    plugins.load_installed()
    # Orphans become children of this process, which can then wait for their end.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with (
        read_once(),
        patch.object(plugins, "load_installed", lambda: None),
        patch.object(html, "write_report", lambda _, path, **__: path),
        patch.object(arena, "_MEMORY", memory),
        patch.object(pool, "subprocess", SimpleNamespace(Popen=ForkedWorker)),
    ):
        yield


class Command:
    """A `fedalloy` command in its own process."""

    def __init__(self, words: Sequence[str], errors: Path, *, fresh: bool = False) -> None:
        self.words, self.errors, self.modules = words, errors, errors.with_name("modules")
        self.status: int | None = None
        with errors.open("wb") as file:
            if fresh:
                program = [sys.executable, "-c", "from fedalloy.cli.main import main; main()"]
                self.pid = subprocess.Popen([*program, *words], stdout=subprocess.DEVNULL, stderr=file).pid
            elif (pid := os.fork()) != 0:
                self.pid = pid
            else:
                _be(words, file.fileno(), self.modules)

    @property
    def running(self) -> bool:
        """Return whether it is still running; if not, it must have succeeded."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                return True
            self._ended(status)
        return False

    def kill(self) -> bool:
        """Kill it, unless it has finished; return whether it was killed. Its workers must not outlive it."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self._ended(os.waitpid(self.pid, 0)[1])
        none_left()
        return self.status == signal.SIGKILL

    def finish(self) -> None:
        """Wait for its end."""
        if self.status is None:
            self._ended(os.waitpid(self.pid, 0)[1])
        none_left()

    def learn(self) -> None:
        """Import here what it has imported, so that later commands need not."""
        for name in self.modules.read_text().splitlines():
            if name not in sys.modules:
                with contextlib.suppress(Exception):  # some names do not exist
                    importlib.import_module(name)

    def workers(self) -> list[int]:
        """Return its running child processes."""
        with contextlib.suppress(OSError):  # it has ended
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def _ended(self, status: int) -> None:
        self.status = status
        if status not in (0, signal.SIGKILL):
            said = self.errors.read_text(errors="replace").splitlines()
            code = os.waitstatus_to_exitcode(status)
            raise FaultError(f"`fedalloy {' '.join(self.words)}` exited with status {code}: {said[-1] if said else ''}")


def none_left() -> None:
    """Check that no process that was started here is left."""
    patience = time.monotonic() + ORPHANS
    with contextlib.suppress(ChildProcessError):  # there are none
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                if time.monotonic() > patience:
                    raise FaultError(f"a worker outlived its run by {ORPHANS} s")
                time.sleep(0.001)


def nothing_shared() -> None:
    """Check that nothing is left in the folder of shared memory."""
    if left := sorted(path.name for path in arena._MEMORY.iterdir()):
        raise FaultError(f"{len(left)} files are left in shared memory, for example {left[0]}")


def _be(words: Sequence[str], errors: int, modules: Path) -> NoReturn:
    """Run a command in a forked process; at its end, record what it has imported."""
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors, 2)
        command(words)
    except SystemExit as left:
        code = int(left.code or 0)
        modules.write_text("\n".join(sys.modules))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class ForkedWorker:
    """A worker of the pool with the interface of `subprocess.Popen`."""

    def __init__(self, program: Sequence[str], pass_fds: Sequence[int]) -> None:
        (pipe,) = pass_fds
        self.pid = os.fork()
        if self.pid != 0:
            return
        # A separate program would have none of its parent's files, such as the lock of the run folder.
        os.closerange(3, pipe)
        os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            worker.main(pipe, int(program[-1]))
        finally:
            os._exit(0)

    def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 0
