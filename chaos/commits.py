"""Every fault point of the commit path: if one call that changes the disk fails, the run resumes to the same bits.

For every registered method a small run is made on a disk that counts calls, and then repeated for each call and each
way in which it can fail: the process is killed before it, which is also after the previous call; a write is torn in the
middle; the disk reports an error; or it is full from then on. The same is done while resuming a folder with everything
that may have to be repaired: a damaged generation, torn records, temporary files, the lock of a dead process. A
reported round must be on disk, an error must be one sentence, and a resumed run must end like the undisturbed run. The
order of the points is random, and without a count all of them are tested.

    python chaos/commits.py --save
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from checkpoints import PLACE, prepared
from disks import FAULTS, Disk, KilledError, disturbed, points
from harness import Dice, FaultError, one_line, run_from_command_line, show, trials
from kills import ending

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.config.sections import Experiment
from fedalloy.errors import StorageError
from fedalloy.federation.core import methods
from fedalloy.run.runner import resume, simulate
from fedalloy.storage.results import Run
from fedalloy.storage.store import Store

METHODS = tuple(sorted(methods))
TASKS = ("run", "resumption")
ROUNDS = 3
WORDS = (
    *("data=tiny", "model=mlp", "model.hidden=[4]", f"rounds={ROUNDS}", f"evaluate_every={ROUNDS}", "partition=iid"),
    *(
        "partition.clients=3",
        "participation.policy=fraction",
        "participation.fraction=0.34",
    ),  # one client in each round
    *("training.lr=0.1", "training.batch=600", "engine=serial"),
)
ALL = 1_000_000  # more points than there are


Point = tuple[str, str, str, int]  # a method, a task, a fault, and the number of the call that fails


def main(count: int, seed: int, *, save: bool = False, names: Sequence[str] = METHODS) -> dict[str, Any]:
    """Test `count` fault points of these methods, or all of them."""

    def breadth(_: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"methods": list(names), "points": len(every)}

    def trial(dice: Dice) -> str:
        return point_trial(every[dice.number])

    with tempfile.TemporaryDirectory() as place, prepared(Path(place)):
        scene.cache_clear()  # its folders are in PLACE
        every = every_point(names, seed)
        report = trials("commits", min(count, len(every)), seed, trial, save=save, finish=breadth)
    show(report)
    return {"commits": report}


@dataclass(frozen=True)
class Scene:
    """A task on a folder, its calls, and its result if none of them fails."""

    exp: Experiment
    built: Built
    begun: Path | None  # the folder that is resumed; None for a new run
    calls: Sequence[str] = ()
    wanted: Mapping[str, Any] | None = None

    def do(self, disk: Disk, seen: list[int]) -> tuple[Run | None, BaseException | None]:
        """Run the task on a disk that may fail; `seen` collects the reported rounds."""
        folder = Path(disk.folder)

        def watch(record: Mapping[str, Any]) -> None:
            seen.append(record["round"])

        if self.begun is None:
            return disturbed(disk, lambda: simulate(self.exp, folder, built=self.built, watch=watch))
        shutil.copytree(self.begun, folder)
        return disturbed(disk, lambda: resume(folder, built=self.built, watch=watch))


@cache
def scene(name: str, task: str) -> Scene:
    """Run a task of a method once on a disk that only counts."""
    if task == "run":
        exp = experiment(_experiment(name))
        first = Scene(exp, build(exp), None)
    else:
        whole = scene(name, "run")
        first = Scene(whole.exp, whole.built, _hurt(whole, PLACE[0] / f"{name}-hurt"))
    disk = Disk(PLACE[0] / f"{name}-{task}")
    first.do(disk, [])
    found = Scene(first.exp, first.built, first.begun, disk.calls, ending(Path(disk.folder)))
    if task != "run":
        _same(f"{name}, {task}", found.wanted or {}, scene(name, "run").wanted or {}, ("run.json", "records", "bits"))
    return found


def _experiment(name: str) -> dict[str, Any]:
    card = methods[name].card
    public = {"public": {"samples": 60, "labelled": True}} if card.public else {}
    return {**override({}, WORDS), "method": {"name": name, **card.quick}, **public}


def _hurt(whole: Scene, folder: Path) -> Path:
    """Return the folder of a run with everything that may have to be repaired before it is resumed."""
    disturbed(Disk(folder), lambda: simulate(whole.exp, folder, built=whole.built))
    newest = folder / "checkpoints" / f"{ROUNDS:06}.safetensors"
    data = newest.read_bytes()
    newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with (folder / "rounds.jsonl").open("a") as log:
        log.write('{"round": 4, "vi')
    (folder / "checkpoints" / f".{ROUNDS + 1:06}.json.part").write_bytes(b"{")
    (folder / "run.lock").write_text("1\n")
    return folder


def every_point(names: Sequence[str], seed: int) -> list[Point]:
    """Return all fault points of these methods in random order, but so that the first few include every kind."""
    every = [
        (name, task, fault, at)
        for name in names
        for task in TASKS
        for fault in FAULTS
        for at in points(scene(name, task).calls, fault)
    ]
    seen: Counter[Sequence[str]] = Counter()
    ranked = []
    for point in random.Random(f"{seed}/commits").sample(every, len(every)):
        kind = point[:3]
        ranked.append((seen[kind], point))
        seen[kind] += 1
    return [point for _, point in sorted(ranked, key=lambda pair: pair[0])]


def point_trial(point: Point) -> str:
    """Test one fault, then repeat the command: nothing that was reported is lost, and it ends as if undisturbed."""
    name, task, fault, at = point
    at_rest, where = scene(name, task), f"{name}, {task}, {fault} at call {at} of {len(scene(name, task).calls)}"
    with tempfile.TemporaryDirectory(dir=PLACE[0], prefix="trial") as place:
        folder, seen = Path(place) / "run", [0]
        run, error = at_rest.do(Disk(folder, at, fault), seen)
        if run is None and isinstance(error, KilledError) != (fault in ("killed", "torn")):
            raise FaultError(f"{where}: {type(error).__name__}: {error}")
        if isinstance(error, StorageError):
            one_line(error, str(folder))
        if seen[-1]:
            saved = Store(folder).restore()
            if saved is None or saved[0].round < seen[-1]:
                raise FaultError(f"{where}: round {seen[-1]} was reported, but its checkpoint is missing")
        if (folder / "run.json").exists():
            resume(folder, built=at_rest.built)
        else:
            simulate(at_rest.exp, folder, built=at_rest.built)
        _same(where, ending(folder), at_rest.wanted or {})
    return f"{task}: {fault}"


def _same(where: str, found: Mapping[str, Any], wanted: Mapping[str, Any], parts: Sequence[str] = ()) -> None:
    if other := [part for part in parts or found if found[part] != wanted[part]]:
        raise FaultError(f"{where}: {other} differ from the undisturbed run")


if __name__ == "__main__":
    run_from_command_line(main, ALL)
