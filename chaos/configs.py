"""Wrong experiments are refused in one sentence, and accepted experiments work.

First tables and then files with something wrong in them: each must be accepted or refused with a `FedalloyError` of one
line. An accepted table must survive a round trip through its own description, and sometimes what it names is built.
Then experiments drawn from everything that is registered, with any of their options, are run for a round or two. They
may only be refused before the first round, and refusals are counted: a draw may be impossible, but most must not be.

    python chaos/configs.py --count 100000 --save        and a fifth as many files, a fiftieth as many runs
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from harness import HERE, Dice, FaultError, little_memory, one_line, run_from_command_line, show, trials
from mutants import damaged, mutated, no_file
from valid import OTHER, an_experiment

from fedalloy.config import build
from fedalloy.config import experiment as config
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import make_method
from fedalloy.data import Dataset, load_data
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.engine.threads import Threads
from fedalloy.errors import FedalloyError
from fedalloy.federation.core import Method
from fedalloy.federation.quorum import QuorumError
from fedalloy.run.runner import simulate

MOST_REFUSED = 0.2  # of the experiments that should work
LEAST_RAN = 0.5  # of them: some have no quorum


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test `count` tables, a fifth as many files, a fiftieth as many runs."""
    with read_once(), little_memory():
        found = {
            "config-tables": trials("config-tables", count, seed, table_trial, save=save),
            "config-files": trials("config-files", max(1, count // 5), seed, file_trial, save=save),
            "config-runs": runs(max(1, count // 50), seed, save=save),
        }
    for report in found.values():
        show(report)
    return found


def runs(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test experiments that should work, and count how many ran and were refused."""
    return trials("config-runs", count, seed, run_trial, save=save, finish=counted)


def counted(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report how many experiments ran, the share that was refused, and whether both are within the limits."""
    ran, share = report["endings"].get("ran", 0), report["endings"].get("refused", 0) / report["trials"]
    return {
        "ran": ran,
        "refused": round(share, 3),
        "too_many_refused": share > MOST_REFUSED,
        "too_few_ran": ran < LEAST_RAN * report["trials"],
    }


BUILT_IN = ("tiny", OTHER)


@contextmanager
def read_once() -> Iterator[None]:
    """Unpack the built-in data once: it takes longer than a trial."""
    other = load_data(OTHER)
    few = replace(other, x=other.x[::10], y=other.y[::10], x_test=None, y_test=None)  # only used as a public set
    held = {"tiny": load_data("tiny"), OTHER: few}

    def loaded(name: str, **given: Any) -> Dataset:
        return held[name] if name in held and not given else load_data(name, **given)

    with patch.object(build, "load_data", loaded):
        yield


@cache
def texts() -> list[bytes]:
    """Return valid files: those of the project's experiments."""
    return [file.read_bytes() for file in sorted((HERE.parent / "src" / "fedalloy" / "experiments").glob("*.toml"))]


def table_trial(dice: Dice) -> str:
    """Test a table with something wrong in it."""
    right = tomllib.loads(dice.choice(texts()).decode()) if dice.random() < 0.2 else an_experiment(dice)
    try:
        exp = experiment(mutated(right, dice))
    except FedalloyError as error:
        return _refused(error)
    if experiment(exp.to_dict()).to_dict() != exp.to_dict():  # a list may have been a tuple
        raise FaultError("an accepted experiment does not survive a round trip")
    small = exp.data.name == "tiny" and (exp.data.size or 8) <= 32 and exp.device == "cpu"
    if dice.random() < 0.7 or not small or (exp.public is not None and exp.public.data not in ("own", "tiny", OTHER)):
        return "accepted"
    try:
        setting = build.build(exp).setting
        setting.check(make_method(exp))
        build.tried(setting)
    except FedalloyError as error:
        _refused(error)
        return "refused when built"
    return "built"


def file_trial(dice: Dice) -> str:
    """Test a file with something wrong in it, or something that is not a file."""
    with tempfile.TemporaryDirectory() as folder:
        if dice.random() < 0.05:
            path = no_file(Path(folder), dice)
        else:
            path = Path(folder) / "experiment.toml"
            path.write_bytes(damaged(dice.choice(texts()), dice))
        try:
            config.read(path)
        except FedalloyError as error:
            return _refused(error, folder)
    return "accepted"


def run_trial(dice: Dice) -> str:
    """Test an experiment that should work."""
    values = an_experiment(dice)
    engine: Noting | None = None
    try:
        exp = experiment(values)
        built = build.build(exp)
        built.setting.check(make_method(exp))
        engine = {"serial": Noting, "threads": NotingThreads}[exp.engine](built.setting)
        simulate(exp, built=built, engine=engine)
    except QuorumError:
        return "without a quorum"
    except FedalloyError as error:
        if engine is not None and engine.last > 0:
            raise FaultError(f"refused during the run: {error}; {values}") from error
        return _refused(error)
    except Exception as error:
        raise FaultError(f"{type(error).__name__}: {str(error)[:300]}; {values}") from error
    return "ran"


class Noting(Serial):
    """An engine that records whether the first round has begun."""

    last = -1

    def open(self, method: Method, round: int) -> Round:
        """Begin a round."""
        self.last = round
        return super().open(method, round)


class NotingThreads(Noting, Threads):
    """The same, with clients in threads."""


def _refused(error: FedalloyError, folder: str = "") -> str:
    one_line(error, folder)
    return "refused"


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_from_command_line(main, 1000)
