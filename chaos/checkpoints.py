"""Damaged checkpoints are refused, or skipped for the older generation, which leads to the same bits.

Runs of several methods are stopped after a completed round. In each trial, a copy of such a folder is damaged in one to
three ways and resumed. Either it is refused in one line, with every file unchanged, or the run ends with the state, the
memories and the records that it would have had. Anything else that is accepted is a failure, and so is any other error.
`doctor`, which only reads, must report something for every folder.

    python chaos/checkpoints.py --count 10000 --save
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from configs import read_once
from damage import DAMAGE, Site, is_plain
from harness import Dice, FaultError, little_memory, one_line, run_from_command_line, show, told, trials
from kills import WORDS, ending

from fedalloy.check import doctor
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.errors import FedalloyError, SecurityError, StorageError
from fedalloy.federation.core import methods
from fedalloy.run.runner import resume, simulate

# A cache of models on the server; only memories; a generator with its optimiser; answers on a public set.
METHODS = ("fedavg", "local", "fedkf", "knfu")
STOPPED = (1, 2, 5)  # after how many rounds
ROUNDS = 6


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test `count` damaged folders."""
    with tempfile.TemporaryDirectory() as place, prepared(Path(place)), little_memory():
        report = trials("checkpoints", count, seed, damage_trial, save=save, finish=breadth)
    show(report)
    return {"checkpoints": report}


def breadth(_: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report how many cases the trials were drawn from."""
    return {"kinds": len(DAMAGE), "methods": list(METHODS)}


@dataclass(frozen=True)
class Stopped:
    """A run that was stopped, and its result if it had not been stopped."""

    folder: Path
    built: Built
    wanted: Mapping[str, Any]
    others: list[Path]  # folders of other runs


PLACE: list[Path] = []


@contextmanager
def prepared(place: Path) -> Iterator[None]:
    """Keep runs in a folder; writes need not reach the disk, since there is no power cut."""
    PLACE.append(place)
    torch.set_num_threads(1)
    with read_once(), patch.object(os, "fsync", lambda _: None):
        yield
    stopped.cache_clear()
    PLACE.clear()


@cache
def stopped(name: str, rounds: int) -> Stopped:
    """Return a run of a method that was stopped after `rounds` rounds, with runs of other seeds and methods."""
    exp = _experiment(name, 0)
    built = build(experiment(exp))
    whole = PLACE[0] / f"{name}-whole"
    if not whole.exists():
        simulate(exp, whole, built=built)
        _stop(_experiment(name, 1), PLACE[0] / f"{name}-other", ROUNDS - 1)
    folder = PLACE[0] / f"{name}-{rounds}"
    _stop(exp, folder, rounds)
    others = [path for path in sorted(PLACE[0].iterdir()) if path != folder and not path.name.startswith("trial")]
    return Stopped(folder, built, ending(whole), others)


def _experiment(name: str, seed: int) -> dict[str, Any]:
    card = methods[name].card
    quick = {"engine": "serial", "rounds": ROUNDS, "seed": seed, "method": {"name": name, **card.quick}}
    public = {"public": {"samples": 60, "labelled": True}} if card.public else {}
    return {**override({}, WORDS), **quick, **public}


class StoppedError(Exception):
    """Raised to stop a run."""


def _stop(exp: Mapping[str, Any], folder: Path, rounds: int) -> None:
    def watch(record: Mapping[str, Any]) -> None:
        if record["round"] == rounds:
            raise StoppedError

    with suppress(StoppedError):
        simulate(exp, folder, watch=watch)


def damage_trial(dice: Dice) -> str:
    """Damage a folder and resume it."""
    run = stopped(dice.choice(METHODS), dice.choice(STOPPED))
    with tempfile.TemporaryDirectory(dir=PLACE[0], prefix="trial") as place:
        folder = Path(shutil.copytree(run.folder, Path(place) / "run"))
        kinds = [dice.choice(sorted(DAMAGE)) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
        site = Site(folder, dice.choice(run.others), dice)
        for kind in kinds:
            DAMAGE[kind](site)
        where = f"{run.folder.name}, {' and '.join(kinds)}"
        before = content(folder)
        if dice.random() < 0.2 and not doctor.run(folder):
            raise FaultError(f"{where}: doctor reports nothing")
        said: list[str] = []
        refused = gone_on_with(folder, run, where, said)
        if refused is not None and refused.code in (StorageError.code, SecurityError.code):
            clear(folder)  # as the message asks
            before, refused = content(folder), gone_on_with(folder, run, where, said)
        if refused is not None:
            if content(folder) != before:
                raise FaultError(f"{where}: it was refused ({refused}), but something was written")
            return f"refused with code {refused.code}"
        found = ending(folder)
        if other := [part for part in ("run.json", "records", "bits") if found[part] != run.wanted[part]]:
            raise FaultError(f"{where}: it was accepted, but {other} differ from the undisturbed run")
    return "passed over" if said else "mended or no harm"


def gone_on_with(folder: Path, run: Stopped, where: str, said: list[str]) -> FedalloyError | None:
    """Resume a run; return the error if it is refused."""
    try:
        resume(folder, built=run.built, say=said.append)
    except FedalloyError as error:
        one_line(error, str(folder))
        return error
    except Exception as error:
        raise FaultError(f"{where}: {told(error)}") from error
    return None


def clear(folder: Path) -> None:
    """Remove everything that is not a file where files belong."""
    for path in [*(folder / "checkpoints").iterdir(), folder / "rounds.jsonl"]:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        elif not is_plain(path):
            path.unlink(missing_ok=True)


def content(folder: Path) -> dict[str, Any]:
    """Return the contents of every file except the lock, and the type of everything that is not a file."""
    found: dict[str, Any] = {}
    for path in (path for path in folder.rglob("*") if path.name != "run.lock"):
        found[str(path.relative_to(folder))] = path.read_bytes() if is_plain(path) else path.lstat().st_mode
    return found


if __name__ == "__main__":
    run_from_command_line(main, 500)
