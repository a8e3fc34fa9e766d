"""The process at a site that answers messages in forks of itself, so that Python and torch are started only once.

Flower's SuperExec starts a new Python process for each message, and importing torch, Flower and fedalloy takes longer
than most answers. This process imports them once, asks for tasks with Flower's own loop, and forks for each message.
The fork runs Flower's own function for a ClientApp and ends with it, so each message still has a process and memory of
its own. This process itself never reads data or runs a method, and has no threads that a fork could miss.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from fedalloy.deploy.pauses import Pause

if TYPE_CHECKING:
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult

# What a message needs beyond the imports of `fedalloy.deploy.app`; otherwise each fork would import it again.
MODULES = (
    "fedalloy.deploy.app",
    "flwr.supernode.runtime.run_clientapp",
    "fedalloy.methods",
    "numpy.ma",
    "numpy.random",
)
SHORTEST, LONGEST = 0.02, 0.5  # seconds between two requests for a task
NAME = "flwr-clientapp"  # of a fork, in the list of processes
_DEATH_SIGNAL, _SET_NAME = 1, 15  # of prctl


class Forks:
    """An executor for Flower's SuperExec that runs each task in a fork of this process."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.pause = Pause(SHORTEST, LONGEST)

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        """Return the tasks that this site accepts: messages for its ClientApp, and no others."""
        from flwr.supercore.constant import TaskType

        return supported_task_types & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(
        self,
        task_type: TaskType | None = None,
        *,
        fab_hash: str | None = None,
        insecure: bool = False,
        root_certificates_path: str | None = None,
    ) -> None:
        """Return immediately: there is no limit."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Fork, and answer a message there."""
        from flwr.supercore.constant import TaskType
        from flwr.supercore.superexec.executor import LaunchResult

        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed(f"a site does not run tasks of the type {spec.task_type}")
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _end_after(lambda: _answer(spec))
        self.running.add(child)
        self.pause.reset()
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Wait until the next request is due, and collect forks that have ended."""
        time.sleep(self.pause.next())
        self.running -= {child for child in self.running if os.waitpid(child, os.WNOHANG)[0]}

    def close(self) -> None:
        """Leave the forks alone: each of them ends by itself when this process has ended."""


def serve(runtime: str, secret: str) -> None:
    """Ask the SuperNode at this address for tasks, with Flower's own loop, until this process is ended."""
    from flwr.supercore.auth import load_superexec_auth_secret
    from flwr.supercore.superexec import run_superexec as flower
    from flwr.supercore.utils import disable_process_dumping

    disable_process_dumping(strict=False)
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.01"  # the shortest; `Forks.reconcile` waits
    # Flower has no public way to pass another executor; a test checks that it still calls this.
    vars(flower)["get_executor"] = lambda *_, **__: Forks()
    flower.run_superexec(runtime, insecure=True, superexec_auth_secret=load_superexec_auth_secret(secret_file=secret))


def warmed() -> None:
    """Import everything that a message needs, and keep the garbage collector from copying it in each fork."""
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def end_with(parent: int) -> None:
    """End this process when its parent process ends, even if that is killed."""
    _prctl(_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before this was set
        os._exit(1)


def _answer(spec: ExecutionSpec) -> None:
    """Answer one message with Flower's own function, as if this process had been started for it."""
    import numpy as np
    from flwr.supercore.exit import exit_handler
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    _prctl(_SET_NAME, ctypes.c_char_p(NAME.encode()))
    exit_handler.registered_exit_handlers.clear()  # those of the process that was forked
    for number in exit_handler.SIGNAL_TO_EXIT_CODE:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    # Forks must not draw the same numbers, for example in a plug-in; Python's own generator does this by itself.
    np.random.seed()  # noqa: NPY002
    run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        parent_pid=spec.parent_pid,
        runtime_dependency_install=spec.runtime_dependency_install,
    )


def _end_after(work: Callable[[], None]) -> NoReturn:
    """Do this in a fork, and end it without running anything that its parent process has registered for its exit."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
