"""Killed runs resume to the same bits.

In each trial a small run of one method, serial or with two workers, is killed with SIGKILL at a random moment of a
random round, resumed, perhaps killed again, and finally allowed to finish; there a worker may be killed instead. Its
last state, the clients' memories, its records and run.json must be those of an undisturbed run. A kill may only cost
the round in progress, leaves neither workers nor shared memory behind, and needs no manual help: the next command is
the same `fedalloy run` again, or `fedalloy resume`.

Processes are forked from one that has imported everything; one trial in fifty starts fresh interpreters instead.

    python chaos/kills.py --kills 1000 --save
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness import Dice, FaultError, run_from_command_line, show, trials
from zygote import Command, nothing_shared, warmed

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.base import tree
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.federation.core import methods
from fedalloy.storage.results import read
from fedalloy.storage.store import Store

ROUNDS = 5
WORDS = (
    *("data=tiny", "model=mlp", "model.hidden=[4]", f"rounds={ROUNDS}", "evaluate_every=2", "partition=iid"),
    *("partition.clients=4", "participation.policy=fraction", "participation.fraction=0.5"),
    *("training.lr=0.1", "training.batch=200"),
)
PUBLIC = ("public.samples=60", "public.labelled=true")
PRIVATE = "fedavg with privacy"
FRESH = 50  # one in this many trials starts interpreters
PATIENCE = 900  # seconds for a trial: interpreters take long to start on a busy machine
POLL = 0.003  # seconds between two polls of a run
TRIES = 50  # a run that ends before it is killed is started again, up to this many times
ENDING = re.compile(r"(.+): (\d+) kills, (\d+) in a commit, (\d+) workers")


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test `count` runs, each killed at least once."""
    with tempfile.TemporaryDirectory() as memory, warmed(Path(memory)):
        rehearse()
        report = trials("kills", count, seed, kill_trial, save=save, patience=PATIENCE, finish=tally)
    show(report)
    return {"kills": report}


def rehearse() -> None:
    """Prepare this process without training: imports, and the types of all experiments."""
    for words in cast().values():
        experiment(override({}, words))
    for words in (cast()["fedavg"], [*cast().values()][-1]):
        with tempfile.TemporaryDirectory() as place:
            first = Command(["run", *words, "--out", f"{place}/run"], Path(place) / "errors")
            first.finish()
            first.learn()


def tally(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report the number of kills by method, how many were within a commit, and how many workers were killed."""
    of: Counter[str] = Counter()
    torn = workers = 0
    for ending, times in report["endings"].items():
        if (found := ENDING.fullmatch(ending)) is not None:
            of[found[1]] += times * int(found[2])
            torn, workers = torn + times * int(found[3]), workers + times * int(found[4])
    least = min(of[name] for name in cast())
    return {"kills": of.total(), "in_a_commit": torn, "workers_killed": workers, "least": least}


@cache
def cast() -> dict[str, tuple[str, ...]]:
    """Return the runs by name, as command-line arguments: every method, and one with differential privacy."""
    found = {name: _words(name) for name in sorted(methods)}
    private = (*_words("fedavg"), "privacy.noise_multiplier=1.0")
    return {**found, PRIVATE: private} if importlib.util.find_spec("opacus") is not None else found


def _words(name: str) -> tuple[str, ...]:
    card = methods[name].card
    quick = [f"method.{key}={json.dumps(value)}" for key, value in card.quick.items()]
    return (*WORDS, f"method={name}", *quick, *(PUBLIC if card.public else ()))


@dataclass(frozen=True)
class Undisturbed:
    """An undisturbed run: what it leaves behind, and how long it took."""

    ending: Mapping[str, Any]
    first: float  # seconds until its first round was recorded
    each: float  # seconds for each of the other rounds


@cache
def undisturbed(name: str) -> Undisturbed:
    """Return the run with which killed runs are compared."""
    with tempfile.TemporaryDirectory() as place:
        folder, begin, first = Path(place) / "run", time.monotonic(), 0.0
        run = Command(["run", *cast()[name], "engine=serial", "--out", str(folder)], Path(place) / "errors")
        while run.running:
            first = first or (time.monotonic() - begin if recorded(folder) else 0.0)
            time.sleep(POLL)
        return Undisturbed(ending(folder), first, (time.monotonic() - begin - first) / (ROUNDS - 1))


def kill_trial(dice: Dice) -> str:
    """Test a run that is killed one to three times."""
    name = sorted(cast())[dice.number % len(cast())]
    reference = undisturbed(name)
    two, fresh = dice.random() < 0.5, dice.number % FRESH == FRESH - 1
    engine = ("engine=pool", "workers=2") if two else ("engine=serial",)
    planned, kills, torn, workers = dice.choice((1, 1, 1, 2, 3)), 0, 0, 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"

        def begun() -> Command:
            again = (folder / "run.json").exists() and dice.random() < 0.5
            words = ["resume"] if again else ["run", *cast()[name], *engine, "--out"]
            return Command([*words, str(folder)], Path(place) / "errors", fresh=fresh)

        for _ in range(TRIES):
            if kills == planned:
                break
            if struck(begun(), folder, dice, reference):
                kills, torn = kills + 1, torn + in_a_commit(folder)
            elif kills:  # it finished before it was killed again
                break
            else:
                shutil.rmtree(folder)
        else:
            raise FaultError(f"{name}: no run could be killed before it finished")
        last = begun()
        if two:
            workers = worker_struck(last, folder, dice, reference)
        last.finish()
        nothing_shared()
        found = ending(folder)
        if other := [part for part in found if found[part] != reference.ending[part]]:
            raise FaultError(f"{name}, {engine}, killed {kills} times: {other} differ from the undisturbed run")
    return f"{name}: {kills} kills, {torn} in a commit, {workers} workers"


def struck(run: Command, folder: Path, dice: Dice, reference: Undisturbed) -> bool:
    """Kill a run in one of its remaining rounds, or after the last; return whether it was not yet finished."""
    done = recorded(folder)
    after = dice.randint(done, ROUNDS)
    while recorded(folder) < after and run.running:
        time.sleep(POLL)
    time.sleep(dice.random() * (reference.first if after == done else reference.each))
    killed = run.kill()
    nothing_shared()
    return killed


def worker_struck(run: Command, folder: Path, dice: Dice, reference: Undisturbed) -> int:
    """Kill a worker of a run with two workers, if there is a round left; return how many were killed."""
    done = recorded(folder)
    if done + 1 >= ROUNDS:
        return 0
    while recorded(folder) <= done and run.running:  # from then on all workers are running
        time.sleep(POLL)
    time.sleep(dice.random() * reference.each)
    workers = run.workers()
    if not workers or recorded(folder) == ROUNDS:
        return 0
    os.kill(dice.choice(workers), signal.SIGKILL)
    return 1


def in_a_commit(folder: Path) -> bool:
    """Return whether a kill was between the first and the last write of a round; at most one round may be lost."""
    if not (folder / "run.json").exists():
        return False
    saved = Store(folder).restore()
    whole, written = saved[0].round if saved is not None else 0, recorded(folder)
    if not 0 <= written - whole <= 1:
        raise FaultError(f"of {written} recorded rounds, {whole} have a checkpoint")
    return written != whole or any(folder.rglob(".*.part"))


def recorded(folder: Path) -> int:
    """Return how many rounds have been recorded; a torn line does not count."""
    try:
        return (folder / "rounds.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def ending(folder: Path) -> dict[str, Any]:
    """Return what a run leaves behind except times: run.json, records, the last state, all memories, stray files."""
    run, saved = read(folder), Store(folder).restore()
    if saved is None:
        raise FaultError("no round was completed")
    exp = {key: value for key, value in run.meta["experiment"].items() if key not in ("engine", "workers")}
    records = [{key: value for key, value in r.items() if key not in ("seconds", "memory")} for r in run.rounds]
    memories = {str(k): memory for k, memory in saved[1].items()}
    bits = tree.digest({"round": saved[0].round, "state": saved[0].body, "memories": memories})
    left = {file.name for file in folder.rglob(".*")} | {"run.lock", "quarantine"} & {*os.listdir(folder)}
    return {"run.json": {**run.meta, "experiment": exp}, "records": records, "bits": bits, "leftovers": left}


if __name__ == "__main__":
    run_from_command_line(main, 100, "--kills")
