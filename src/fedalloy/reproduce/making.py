"""Make the runs that are missing: each once, some at a time, resumable after any stop."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedalloy.base.files import write_atomically
from fedalloy.base.text import human_seconds
from fedalloy.config.methods import for_method, make_method, naming
from fedalloy.config.sections import Experiment
from fedalloy.errors import FedalloyError
from fedalloy.reproduce.catalogue import Item
from fedalloy.reproduce.plan import Job, jobs
from fedalloy.reproduce.results import finished
from fedalloy.run.runner import resume, simulate
from fedalloy.storage.results import Run
from fedalloy.storage.store import Say, begun

KEPT = ("run.json", "rounds.jsonl", "extra.json")  # of a finished run; checkpoints are large and no longer needed
Extract = Callable[[Path], dict[str, object]]


@dataclass(frozen=True)
class Task:
    """A run to be made, and what is to be taken from its last checkpoint."""

    job: Job
    place: Path
    extract: Extract | None = None

    @property
    def name(self) -> str:
        """The run in a line of progress."""
        return ", ".join(filter(None, (self.job.label, self.job.column, f"seed {self.job.seed}")))


def tasks(planned: Sequence[Job], folder: Path, extract: Extract | None = None) -> list[Task]:
    """The runs that are not finished yet; a run that several items or columns need is there once."""
    found: dict[str, Task] = {}
    for job in planned:
        place = folder / job.folder
        done = finished(place) is not None and (extract is None or (place / "extra.json").is_file())
        if job.folder not in found and not done:
            found[job.folder] = Task(job, place, extract)
    return list(found.values())


def alone(job: Job) -> Experiment:
    """The experiment of a job on one core: two jobs side by side are faster than one on two."""
    exp = naming(
        replace(for_method(job.experiment, job.choice), seed=job.seed), make_method(job.experiment, job.choice)
    )
    return replace(exp, engine="serial")


def make(task: Task, say: Say = lambda _: None) -> Run:
    """Make one run, or resume it; keep its records and drop its checkpoints."""
    exp, method = alone(task.job), make_method(task.job.experiment, task.job.choice)
    if finished(task.place) is not None:  # it lacks what is taken from its last checkpoint, so it is made again
        shutil.rmtree(task.place)
    if begun(task.place):
        run = resume(task.place, say=say)
    else:
        run = simulate(exp, task.place, method=method, label=task.job.label, say=say)
    if task.extract is not None:
        extra = json.dumps(task.extract(task.place), separators=(",", ":"))
        write_atomically(task.place / "extra.json", extra.encode())
    for path in task.place.iterdir():
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return run


def make_all(todo: Sequence[Task], *, processes: int, expected: Mapping[str, float], say: Say) -> list[str]:
    """Make runs in separate processes and tell about each; returns the errors of those that failed.

    `expected` has the estimated seconds of each run by folder. One run that fails does not stop the others.
    """
    start, done, failed = time.perf_counter(), 0.0, []
    total = sum(expected.get(task.job.folder, 0.0) for task in todo)
    with _pool(processes) as pool:
        waiting = list(todo)
        running: dict[Future[float], Task] = {}
        while waiting or running:
            while waiting and len(running) < processes:
                task = waiting.pop(0)
                running[pool.submit(_timed, task)] = task
            ready, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                task = running.pop(future)
                done += expected.get(task.job.folder, 0.0)
                spent = time.perf_counter() - start
                left = f"; about {human_seconds(spent / done * (total - done))} left" if done and done < total else ""
                try:
                    say(f"{task.name}: {human_seconds(future.result())}{left}")
                except FedalloyError as error:
                    failed.append(f"{task.name}: {error}")
                    say(failed[-1])
    return failed


def _timed(task: Task) -> float:
    start = time.perf_counter()
    make(task)
    return time.perf_counter() - start


def estimate(todo: Sequence[Task], processes: int) -> dict[str, float]:
    """The seconds that each run will take, by folder, from one round of each kind of run on this machine."""
    kinds: dict[str, Task] = {}
    for task in todo:
        kinds.setdefault(_kind(task.job), task)
    with _pool(processes) as pool:
        seconds = dict(zip(kinds, pool.map(_one_round, kinds.values()), strict=True))
    return {task.job.folder: task.job.experiment.rounds * seconds[_kind(task.job)] for task in todo}


def _kind(job: Job) -> str:
    """Runs with equal words here take about equally long: they differ in how the data is split, or in the seed."""
    exp = alone(replace(job, seed=0)).to_dict()
    return json.dumps([exp["method"], exp["training"], exp["model"], exp["data"], exp["participation"]], sort_keys=True)


def _one_round(task: Task) -> float:
    start = time.perf_counter()
    exp = replace(alone(task.job), rounds=1)
    before = simulate(exp, method=make_method(task.job.experiment, task.job.choice))
    told = before.rounds[-1]["seconds"]["total"] if before.rounds else 0.0
    return float(told) or time.perf_counter() - start


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
    measure: bool = True,
) -> list[str]:
    """Make every run of an item that is missing; returns the errors of those that failed."""
    from fedalloy.reproduce.forms import EXTRACTS

    planned = [job for job in jobs(item, scale, seeds) if chosen(job)]
    todo = tasks(planned, folder, EXTRACTS.get(item.form))
    there = len({job.folder for job in planned}) - len(todo)
    if not todo:
        say(f"all {there} runs are there" if there else "it needs no runs")
        return []
    known = estimate(todo, processes) if measure else {}
    about = f"; about {human_seconds(sum(known.values()) / processes)}, measured on one round of each" if known else ""
    say(f"{len(todo)} runs to make, {there} are there{about}")
    return make_all(todo, processes=processes, expected=known, say=say)
