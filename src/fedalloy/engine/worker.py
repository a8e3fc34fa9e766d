"""A worker of the pool: `python -m fedalloy.engine.worker FD PARENT`, started only by the pool.

It is a separate program, not a fork, so that a user's script needs no `if __name__ == "__main__"` and no thread of the
parent is interrupted. Its work is in `tasks.py`, which takes seconds to import because it needs torch; before that, a
worker makes sure that it ends with its parent.
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
    """Have this process killed when its parent ends for any reason, or immediately if it has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the line above
            os.kill(os.getpid(), signal.SIGKILL)


def main(pipe: int, parent: int) -> None:
    """Serve the pipe whose descriptor the pool passed."""
    end_with(parent)
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):  # Windows has no SIGHUP
        # The parent handles Ctrl-C and a closed terminal.
        signal.signal(number, signal.SIG_IGN)
    from fedalloy.engine.tasks import serve

    with suppress(EOFError, ConnectionError):
        serve(Connection(pipe))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
