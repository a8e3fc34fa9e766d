"""Make the runs that are missing: each once, some at a time, resumable after any stop."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedalloy.base.files import locked, make_folder, write_atomically
from fedalloy.base.text import human_seconds
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import for_method, make_method, naming
from fedalloy.config.sections import Experiment
from fedalloy.errors import CheckpointError, FedalloyError
from fedalloy.report.progress import watched
from fedalloy.reproduce.catalogue import Item
from fedalloy.reproduce.plan import Job, jobs
from fedalloy.reproduce.results import finished, refuse_another
from fedalloy.run.runner import resume, simulate
from fedalloy.storage.results import Run, read_meta
from fedalloy.storage.store import Say, begun

UNFINISHED = "unfinished"  # the folder of runs that are being made
KEPT = ("run.json", "rounds.jsonl", "extra.json")  # of a finished run; checkpoints are large and no longer needed
Extract = Callable[[Path], dict[str, object]]


@dataclass(frozen=True)
class Task:
    """A run to be made, and what is to be taken from its last checkpoint."""

    job: Job
    folder: Path
    extract: Extract | None = None
    engine: str = "serial"

    @property
    def experiment(self) -> Experiment:
        """The experiment of the method alone, with its seed."""
        method = make_method(self.job.experiment, self.job.choice)
        exp = naming(replace(for_method(self.job.experiment, self.job.choice), seed=self.job.seed), method)
        return experiment({**exp.to_dict(), "engine": self.engine})

    @property
    def place(self) -> Path:
        """Where the finished run is kept."""
        return self.folder / self.job.folder

    @property
    def workplace(self) -> Path:
        """Where it is while it runs, with its checkpoints."""
        return self.folder / UNFINISHED / self.job.folder

    @property
    def lock(self) -> Path:
        """The file that is locked by the process that makes it."""
        return self.workplace.with_name(f"{self.job.folder}.lock")

    @property
    def labelled(self) -> str:
        """The method and the column of the table that the run is made for."""
        return ", ".join(filter(None, (self.job.label, self.job.column)))

    @property
    def name(self) -> str:
        """The run in a line of progress."""
        return f"{self.labelled}, seed {self.job.seed}"


def tasks(planned: Sequence[Job], folder: Path, extract: Extract | None = None, engine: str = "serial") -> list[Task]:
    """The runs that are not finished yet; a run that several items or columns need is there once."""
    found: dict[str, Task] = {}
    for task in (Task(job, folder, extract, engine) for job in planned):
        if task.job.folder not in found and made(task) is None:
            found[task.job.folder] = task
    return list(found.values())


def made(task: Task) -> Run | None:
    """The finished run, if it is there with all that is to be taken from its last checkpoint."""
    run = finished(task.place, task.job)
    return run if task.extract is None or (task.place / "extra.json").is_file() else None


def make(task: Task, say: Say = lambda _: None) -> Run:
    """Make one run, or resume it; keep its records and drop its checkpoints."""
    make_folder(task.workplace.parent)
    with locked(task.lock):
        return made(task) or _make(task, say)  # another process may have made it since


def _make(task: Task, say: Say) -> Run:
    place, job = task.workplace, task.job
    watch = watched(task.labelled, job.seed, job.experiment.rounds)
    if begun(place):
        refuse_another(place, read_meta(place / "run.json"), task.job)
        try:
            run = resume(place, watch=watch, say=say)
        except CheckpointError as error:
            raise CheckpointError(f"{error}: remove '{place}'") from error
    else:
        method = make_method(task.job.experiment, task.job.choice)
        run = simulate(task.experiment, place, method=method, label=task.job.label, watch=watch, say=say)
    if task.extract is not None:
        write_atomically(place / "extra.json", json.dumps(task.extract(place), separators=(",", ":")).encode())
    if task.place.exists():  # it lacked what is taken from its last checkpoint
        shutil.rmtree(task.place)
    place.rename(task.place)
    tidy(task.place)
    return replace(run, folder=task.place)


def tidy(place: Path) -> None:
    """Remove all but the records from the folder of a finished run."""
    for path in place.iterdir():
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_all(todo: Sequence[Task], *, processes: int, expected: Mapping[str, float], say: Say) -> list[str]:
    """Make runs in separate processes and tell about each; returns the errors of those that failed.

    `expected` has the estimated seconds of each run by folder. One run that fails does not stop the others.
    """
    spent = planned = 0.0  # seconds of the runs that are finished, and those that were expected of them
    ahead, failed = sum(expected.values()), []
    for task, result in _each(todo, processes):
        ahead -= expected.get(task.job.folder, 0.0)
        if isinstance(result, Exception):
            failed.append(f"{task.name}: {result}")
            say(failed[-1])
            continue
        spent, planned = spent + result, planned + expected.get(task.job.folder, 0.0)
        left = f"; about {human_seconds(ahead * spent / planned / processes)} left" if planned and ahead > 0 else ""
        say(f"{task.name}: {human_seconds(result)}{left}")
    return failed


def _each(todo: Sequence[Task], processes: int) -> Iterator[tuple[Task, float | Exception]]:
    """Each run with its seconds, or with its error, as it finishes; a single process needs no pool."""
    if processes == 1:
        for task in todo:
            yield task, _timed(task)
        return
    with _pool(processes) as pool:
        running = {pool.submit(_timed, task): task for task in todo}
        for future in as_completed(running):
            yield running[future], future.result()


def _timed(task: Task) -> float | Exception:
    start = time.perf_counter()
    try:
        make(task)
    except (FedalloyError, OSError) as error:  # such as a full disk
        return error
    return time.perf_counter() - start


def estimate(todo: Sequence[Task], processes: int) -> dict[str, float]:
    """The seconds that each run will take, by folder, from two rounds of each kind of run on this machine."""
    kinds: dict[str, Task] = {}
    for task in todo:
        kinds.setdefault(_kind(task), task)
    with _pool(processes) as pool:
        seconds = dict(zip(kinds, pool.map(_one_round, kinds.values()), strict=True))
    return {task.job.folder: task.job.experiment.rounds * seconds[_kind(task)] for task in todo}


def _kind(task: Task) -> str:
    """Runs with equal words here take about equally long: they differ in how the data is split, or in the seed."""
    exp = task.experiment.to_dict()
    return json.dumps([exp["method"], exp["training"], exp["model"], exp["data"], exp["participation"]], sort_keys=True)


def _one_round(task: Task) -> float:
    """The seconds of a round: the second one, since the first also warms up."""
    exp = task.experiment
    try:
        run = simulate(replace(exp, rounds=2), method=make_method(task.job.experiment, task.job.choice))
    except FedalloyError:
        return 0.0  # the run itself will tell
    spent = run.rounds[-1]["seconds"]
    return float(spent["total"] - spent["evaluation"] + spent["evaluation"] / exp.evaluate_every)


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that are as nice as this one; spawned, because torch's threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin) as pool:
        try:
            yield pool
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise


def _begin() -> None:
    import signal

    import fedalloy.methods  # noqa: F401  # registers the built-in methods

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the parent, which stops its children


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_item(
    item: Item,
    scale: str,
    folder: Path,
    *,
    processes: int,
    say: Say,
    chosen: Callable[[Job], bool] = lambda _: True,
    seeds: Sequence[int] | None = None,
    engine: str = "serial",
    measure: bool = True,
    only_estimate: bool = False,
) -> list[str]:
    """Make every run of an item that is missing; returns the errors of those that failed.

    `processes` runs are made side by side, each on one core, which is faster than one run on all of them; an engine
    other than "serial" has workers of its own and needs one process. `measure` tries two rounds of each kind of run
    first, for an estimate. Without it, all runs count as equally long.
    """
    from fedalloy.reproduce.forms import EXTRACTS

    planned = [job for job in jobs(item, scale, seeds) if chosen(job)]
    todo = tasks(planned, folder, EXTRACTS.get(item.form), engine)
    for job in planned:
        if job.folder not in {task.job.folder for task in todo}:
            tidy(folder / job.folder)  # a process that was killed may have left its checkpoints there
    there = len({job.folder for job in planned}) - len(todo)
    if not todo:
        say(f"all {there} runs are there" if there else "it needs no runs")
        return []
    known = estimate(todo, processes) if measure else {task.job.folder: 1.0 for task in todo}
    total = human_seconds(sum(known.values()) / processes)
    about = f"; about {total}, measured on two rounds of each" if measure else ""
    runs = "1 run" if len(todo) == 1 else f"{len(todo)} runs"
    say(f"{runs} to make, {there} {'is' if there == 1 else 'are'} there{about}")
    return [] if only_estimate else make_all(todo, processes=processes, expected=known, say=say)
