"""Code shared by the programs in this folder: numbered trials, which can be resumed, and their report.

A trial is determined by the seed and its number: any trial can be repeated, and an interrupted campaign continues where
it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedalloy.errors import FedalloyError

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SHOWN = 20  # failures that are recorded in detail; all are counted
PATIENCE = 120  # seconds that a trial may take; longer is a failure
EVERY = 5.0  # seconds between two lines of progress
ABOUT = ("machine", "code", "command", "examples", "endings")  # entries of a report that its one line omits
LONGEST = 1000  # characters of an error message


class FaultError(Exception):
    """A trial did not end as expected."""


class LateError(BaseException):
    """A trial took too long; code that catches all exceptions must not catch this."""


class Dice(random.Random):
    """The random generator of one trial, and its number."""

    def __init__(self, seed: int, name: str, number: int) -> None:
        super().__init__(f"{seed}/{name}/{number}")
        self.number = number


Trial = Callable[[Dice], str]
"""Runs one random case, returns how it ended in a word or two, and raises if that is a failure."""


def trials(
    name: str,
    count: int,
    seed: int,
    trial: Trial,
    *,
    save: bool = False,
    patience: int = PATIENCE,
    finish: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {},
) -> dict[str, Any]:
    """Run trials 0 to `count` and report them; with `save`, continue after those that are already reported.

    If more are already reported, they all stay, with the command that made them. A trial that takes longer than
    `patience` seconds has failed. `finish` adds further entries to the report.
    """
    report = _begun(name, seed, count) if save else _blank(name, seed)
    begin, shown, first = time.monotonic(), 0.0, report["trials"]
    spent = report["seconds"]
    endings = Counter(report["endings"])
    for number in range(first, count):
        ending, fault = _tried(trial, Dice(seed, name, number), patience)
        endings[ending] += 1
        if fault is not None:
            report["failures"] += 1
            if len(report["examples"]) < SHOWN:
                report["examples"].append({"trial": number, "what": fault})
        now = time.monotonic() - begin
        report.update(trials=number + 1, endings=dict(sorted(endings.items())), seconds=round(spent + now, 1))
        if now - shown > EVERY:
            shown = now
            _say(name, number + 1, count, report["failures"], now / (number + 1 - first) * (count - number - 1))
            if save:
                _write(report)
    report.update(finish(report))
    _say(name, report["trials"], max(count, report["trials"]), report["failures"], 0.0)
    if save:
        _write(report)
    return report


def single(
    name: str, seed: int, failures: int, *, count: int, begin: float, save: bool = False, **facts: Any
) -> dict[str, Any]:
    """Create the report of something that is measured as a whole and began at this `time.monotonic()`."""
    seconds = round(time.monotonic() - begin, 1)
    report = {**_blank(name, seed), "trials": count, "failures": failures, "seconds": seconds, **facts}
    del report["endings"]
    if save:
        _write(report)
    return report


def show(report: Mapping[str, Any]) -> None:
    """Print a report's figures in one line, and what failed, if anything, on stderr."""
    figures = {key: value for key, value in report.items() if key not in ABOUT}
    sys.stdout.write(json.dumps(figures) + "\n")
    for example in report["examples"]:
        sys.stderr.write(f"{report['what']}, trial {example['trial']}: {example['what']}\n")


def run_from_command_line(main: Callable[..., Mapping[str, Any]], count: int, *names: str) -> None:
    """Call a program's `main`, and exit with status 1 if anything failed; `names` are aliases of `--count`."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument(
        "--count", *names, dest="count", type=int, default=count, help="how many trials (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="write to chaos/results, or continue an existing campaign")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch warns about the strange tensors that are created on purpose
    found = main(given.count, given.seed, save=given.save)
    wrong = ("failures", "too_many_refused", "too_few_ran")
    sys.exit(1 if any(report.get(key) for report in found.values() for key in wrong) else 0)


@contextmanager
def little_memory(room: int = 4 << 30) -> Iterator[None]:
    """Limit the process to `room` more bytes, so that a fault that takes more fails instead of the machine."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def peak(into: list[int]) -> Iterator[None]:
    """Append the peak resident size during the block, in bytes; Linux can reset an earlier peak."""
    Path("/proc/self/clear_refs").write_text("5")
    yield
    lines = Path("/proc/self/status").read_text().splitlines()
    into.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))


def one_line(error: FedalloyError, folder: str = "") -> None:
    """Check that an error message is one line of limited length, whatever the name of the folder."""
    sentence = str(error).replace(folder, "") if folder else str(error)
    if not sentence or len(sentence) > LONGEST or "\n" in sentence or "\x1b" in sentence:
        raise FaultError(f"the refusal is not one line: {sentence[:200]!r} ({len(sentence)} characters)")


def told(error: BaseException) -> str:
    """Return an error and its location in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:300]} ({Path(place.filename).name}, {place.name})"


def _tried(trial: Trial, dice: Dice, patience: int) -> tuple[str, str | None]:
    try:
        with _hurried(patience):
            return trial(dice), None
    except (FaultError, LateError) as fault:
        return "failed", str(fault)
    except Exception as error:  # any uncaught exception is a failure
        return "failed", told(error)


@contextmanager
def _hurried(patience: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise LateError(f"it took longer than {patience} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(patience)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _blank(name: str, seed: int) -> dict[str, Any]:
    return {
        "what": name,
        "trials": 0,
        "failures": 0,
        "examples": [],
        "endings": {},
        "seed": seed,
        "seconds": 0.0,
        "command": f"python chaos/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
        "code": _code(),
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }


def _code() -> str:
    """Return the hash of the tested code: trials of different code do not count."""
    found = hashlib.sha256()
    for file in sorted([*HERE.glob("*.py"), *(HERE.parent / "src").rglob("*.py")]):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def _begun(name: str, seed: int, count: int) -> dict[str, Any]:
    fresh = _blank(name, seed)
    file = RESULTS / f"{name}.json"
    old: dict[str, Any] = json.loads(file.read_text()) if file.exists() else fresh
    same = all(old[key] == fresh[key] for key in ("seed", "code", "machine"))
    if not same:
        return fresh
    return {**old, "command": fresh["command"]} if count > old["trials"] else old


def _write(report: Mapping[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    draft = RESULTS / f"{report['what']}.json.new"
    draft.write_text(json.dumps(report, indent=2) + "\n")
    draft.replace(RESULTS / f"{report['what']}.json")


def _say(name: str, done: int, count: int, failures: int, left: float) -> None:
    more = f", about {left / 60:.0f} min left" if left >= 60 else f", about {left:.0f} s left" if left else ""
    sys.stderr.write(f"{name}: {done:,} of {count:,}, {failures} failed{more}\n")
