"""A worker of the pool: `python -m fedalloy.engine.worker FD PARENT`, started by the pool and by nobody else.

It is a program of its own and not a fork, so that a user's script needs no `if __name__ == "__main__"` and no thread of
the parent is left half-way. What it does is in `tasks.py`, which takes seconds to import, because it needs torch;
before that a worker makes sure that it ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, however that ends; at once, if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os.kill(os.getpid(), signal.SIGKILL)


def main(pipe: int, parent: int) -> None:
    """Serve the pipe whose descriptor the pool passed on."""
    end_with(parent)
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):  # Windows has none
        # Ctrl-C and a closed terminal are the parent's affair.
        signal.signal(number, signal.SIG_IGN)
    from fedalloy.engine.tasks import serve

    with suppress(EOFError, ConnectionError):
        serve(Connection(pipe))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
