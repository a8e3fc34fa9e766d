"""A site's two processes: Flower's SuperNode, which fetches messages, and the one next to it that answers them.

    python -m fedalloy.deploy.node [options of flower-supernode]

The SuperNode waits three seconds whenever there is no message, which is most of a round in a rehearsal. Here it waits a
share of the time since its last message, at most three seconds.

Messages are answered in forks of a warm process (see `warm`). With FEDALLOY_FORK=0 in the environment, and on systems
other than Linux, Flower's SuperExec answers them instead and starts Python for each message.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

from fedalloy.deploy.pauses import Pause, soon_again
from fedalloy.deploy.warm import end_with, serve, warmed

IDLE = 3.0  # Flower's seconds between two polls for messages, the longest here
SHORTEST = 0.1  # the shortest
REPLY = 0.02  # seconds between two looks for the answer, in this process's own memory


def forks() -> bool:
    """Return whether messages are answered in forks of a warm process."""
    return sys.platform.startswith("linux") and os.environ.get("FEDALLOY_FORK", "1") != "0"


def sleeps(alive: Callable[[], bool], sleep: Callable[[float], None] = time.sleep) -> Callable[[float], None]:
    """Return what the SuperNode calls to wait; it ends the SuperNode if nobody can answer messages any more."""
    pause = Pause(SHORTEST, IDLE)

    def wait(seconds: float) -> None:
        if not alive():
            sys.stderr.write("fedalloy: the process that answers messages has ended, so this site ends\n")
            signal.raise_signal(signal.SIGTERM)  # Flower tells the server and closes its connections
        if seconds >= IDLE:  # no message
            sleep(pause.next())
        else:  # a message is being answered
            pause.reset()
            sleep(REPLY)

    return wait


def started(runtime: str, secret: str) -> Callable[[], bool]:
    """Start the process that answers messages; return a function that says whether it is still running."""
    if not forks():
        options = ["--runtime-api-address", runtime, "--insecure", "--superexec-auth-secret-file", secret]
        process = subprocess.Popen(["flower-superexec", *options, "--parent-pid", str(os.getpid())])
        return lambda: process.poll() is None
    warmed()
    this = os.getpid()
    child = os.fork()
    if child == 0:
        end_with(this)
        serve(runtime, secret)
        sys.exit(0)
    return lambda: os.waitpid(child, os.WNOHANG) == (0, 0)


def main() -> None:
    """Start both processes; this one is the SuperNode."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True)
    parser.add_argument("--superexec-auth-secret-file", required=True)
    known, _ = parser.parse_known_args()
    soon_again()
    alive = started(f"{known.host}:{known.port}", known.superexec_auth_secret_file)

    from flwr.supernode import start_client_internal as flower
    from flwr.supernode.cli import flower_supernode

    # Flower has no setting for its pauses; a test checks that this module uses `time` for nothing else.
    vars(flower)["time"] = SimpleNamespace(sleep=sleeps(alive))
    flower_supernode()


if __name__ == "__main__":
    main()
