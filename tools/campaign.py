"""Work through the papers' items at the scale `cpu`, in order of value: `make campaign`.

It runs at the lowest priority from a work tree of its own, pinned at the current commit, so that edits do not change
it. It can be stopped at any time: started again, it resumes interrupted runs and makes only those that are missing.
Finished runs are in results/runs; commit them, and run tools/make_reproduction.py to update docs/reproduction.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / ".campaign"  # the work tree

# In order of value. An item that takes something from checkpoints comes before others that share its runs.
QUEUE = [
    "knfu table1", "kdia table2", "fedkf tablexii", "fedkf fig8", "dafkd table3a", "fedmd-global table3", "fedkf fig7",
    "fedkf tablev", "dafkd table1", "kdia fig7", "kdia table7", "kdia table3", "fedmd-global table2",
    "fedkf text-server",
    "knfu fig1", "dafkd fig3", "kdia text-heterogeneity", "kdia fig5", "kdia table6", "fedkf fig3", "fedkf tableiv",
    "kdia fig8", "kdia fig8d", "kdia text-cifar100", "dafkd fig5", "dafkd fig6", "fedmd-global fig2",
    "fedmd-global fig3", "dafkd epochs", "dafkd local-work", "dafkd svhn-steps", "kdia text-mild", "kdia table5",
    "kdia text-fedgkd", "kdia fig1a", "kdia fig1", "knfu table2", "fedkf tablevi", "fedkf tablevii",
]  # fmt: skip


def main() -> None:
    """Pin a work tree at the current commit and run the queue there."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=ROOT / "results", help="where runs are kept")
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--pinned", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("items", nargs="*", help='such as "kdia table2"; default: the queue')
    given = options.parse_args()
    if given.pinned:
        for number in (signal.SIGINT, signal.SIGTERM):  # also in the background, where SIGINT is ignored
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            work(given.items or QUEUE, given.out, given.processes)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    lock = (given.out / ".campaign.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("a campaign is running already")
    os.set_inheritable(lock.fileno(), True)  # the lock is held for as long as the campaign runs
    pin()
    words = [HERE / "tools" / "campaign.py", "--pinned", "--out", given.out, "--processes", given.processes]
    command = ["nice", "-n", "19", sys.executable, *words, *given.items]
    os.execvpe("nice", [str(word) for word in command], {**os.environ, "PYTHONPATH": str(HERE / "src")})


def pin() -> None:
    """Check out the current commit in the campaign's work tree."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    if HERE.exists():
        subprocess.run(["git", "checkout", "--quiet", "--detach", "--force", commit.strip()], cwd=HERE, check=True)
    else:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", HERE, commit.strip()], cwd=ROOT, check=True)


def work(items: list[str], out: Path, processes: int) -> None:
    """Make every run of the items that is missing."""
    from fedalloy.base.text import human_seconds
    from fedalloy.reproduce.catalogue import paper
    from fedalloy.reproduce.making import make_item

    for name in items:
        which, _, item = name.partition(" ")
        say(f"{name}:")
        start = time.perf_counter()
        failed = make_item(paper(which).item(item), "cpu", out / "runs", processes=processes, say=say, measure=False)
        say(f"{name}: done in {human_seconds(time.perf_counter() - start)}, {len(failed)} failed")


def say(text: str) -> None:
    """A line of the log, with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
