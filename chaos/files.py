"""Damaged files of every kind are refused in one sentence, or can be used.

In each trial a valid file is damaged, directly or, if it is packed, inside, and then used: a run's `run.json` or
`rounds.jsonl`, weights to start from, a message, a user's .npz file, and the published formats of all data sets. The
result must be a `FedalloyError` of one line, or valid. `configs.py` tests experiments, `checkpoints.py` checkpoints.

    python chaos/files.py --count 20000 --save
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints import StoppedError, prepared, stopped
from harness import Dice, FaultError, little_memory, one_line, run_from_command_line, show, told, trials
from specimens import (
    CLASSES,
    Hurt,
    cifar10,
    cifar100,
    cinic10,
    compact,
    idx,
    letters,
    message,
    network,
    svhn,
    users_own,
    weights,
)

from fedalloy.base import tree
from fedalloy.base.files import read_weights
from fedalloy.check import doctor
from fedalloy.data import from_arrays, load_data, readers
from fedalloy.engine.serial import Serial
from fedalloy.errors import FedalloyError
from fedalloy.report.export import export_model
from fedalloy.run.runner import resume
from fedalloy.storage.results import read
from fedalloy.storage.rows import rows
from fedalloy.train.fit import load as load_weights


@dataclass(frozen=True)
class Kind:
    """A kind of file: how to create one, with a change to its contents, and how to use it."""

    make: Callable[[Hurt], bytes]
    use: Callable[[Path], object]
    name: str = "file"


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test `count` damaged files."""
    with tempfile.TemporaryDirectory() as place, prepared(Path(place)), little_memory():
        report = trials("files", count, seed, file_trial, save=save, finish=breadth)
    show(report)
    return {"files": report}


def breadth(_: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report how many cases the trials were drawn from."""
    return {"kinds": sorted(KINDS)}


def file_trial(dice: Dice) -> str:
    """Damage a file and use it."""
    which = dice.choice(sorted(KINDS))
    kind = KINDS[which]
    content = kind.make(Hurt(dice)) if dice.random() < 0.5 else Hurt(dice)(kind.make(Hurt()))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / kind.name
        path.write_bytes(content)
        return outcome(which, kind.use, path)


def outcome(which: str, use: Callable[[Path], object], path: Path) -> str:
    """Return whether a file was used or refused; anything else is a fault."""
    try:
        use(path)
    except FedalloyError as error:
        one_line(error, str(path.parent))
        return f"{which}: refused"
    except FaultError:
        raise
    except Exception as error:
        raise FaultError(f"{which}: {told(error)}") from error
    return f"{which}: used"


# --- a run ------------------------------------------------------------------------------------------------------------


def of_a_run(name: str) -> Kind:
    """A file of a run's folder, in which values of a JSON table are changed."""
    return Kind(lambda hurt: hurt.lines((stopped("knfu", 5).folder / name).read_bytes()), use_run, name)


def use_run(path: Path) -> None:
    """Call everything that reads a run's folder: each may refuse, and the last refusal counts."""
    run = stopped("knfu", 5)
    folder = Path(shutil.copytree(run.folder, path.parent / "run"))
    shutil.copy(path, folder / path.name)
    if not doctor.run(folder):
        raise FaultError("doctor reports nothing")
    for work in (
        lambda: rows(read(folder)),
        lambda: export_model(folder, client=0, path=path.parent / "model.safetensors"),
    ):
        with _in_a_line(folder):
            work()

    def watch(_: Mapping[str, Any]) -> None:
        raise StoppedError  # one round is enough

    with suppress(StoppedError):
        resume(folder, built=run.built, engine=Serial(run.built.setting), watch=watch)


@contextmanager
def _in_a_line(folder: Path) -> Any:
    try:
        yield
    except FedalloyError as error:
        one_line(error, str(folder.parent))


# --- weights, messages and data ---------------------------------------------------------------------------------------


def use_weights(path: Path) -> None:
    """Start a run from these weights."""
    load_weights(network(), read_weights(path))


def use_message(path: Path) -> None:
    """Read a message; the result must be a tree."""
    tree.encode(tree.decode(path.read_bytes()))


def published(reading: Callable[[Path], readers.Arrays]) -> Callable[[Path], object]:
    """Read a published file and create a data set from it."""

    def use(path: Path) -> None:
        held = reading(path)
        from_arrays(
            held.x, held.y, x_test=held.x_test, y_test=held.y_test, classes=256
        )  # only few of the classes occur

    return use


def _pictures_and_labels(path: Path) -> readers.Arrays:
    labels = path.with_name("labels")
    labels.write_bytes(idx(2))
    return readers.read_mnist([path, labels, path, labels])


KINDS: dict[str, Kind] = {
    "run.json": of_a_run("run.json"),
    "rounds.jsonl": of_a_run("rounds.jsonl"),
    "weights": Kind(weights, use_weights),
    "message": Kind(message, use_message),
    "npz": Kind(users_own, lambda path: load_data(str(path)), "mine.npz"),
    "idx": Kind(lambda hurt: hurt(idx(2, 28, 28)), published(_pictures_and_labels)),
    "idx.gz": Kind(lambda hurt: gzip.compress(hurt(idx(2, 28, 28))), published(_pictures_and_labels)),
    "emnist": Kind(letters, published(readers.read_emnist_letters)),
    "cifar10": Kind(cifar10, published(readers.read_cifar10)),
    "cifar100": Kind(cifar100, published(lambda path: readers.read_cifar100(path, coarse=False))),
    "cinic10": Kind(cinic10, published(lambda path: readers.read_cinic10(path, CLASSES))),
    "svhn": Kind(svhn, published(lambda path: readers.read_svhn(path, path))),
    "compact": Kind(compact, published(readers.read_compact)),
}


def whole(kinds: Iterable[str] = KINDS) -> dict[str, str]:
    """Use the undamaged files: all of them must work."""
    found = {}
    for which in kinds:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / KINDS[which].name
            path.write_bytes(KINDS[which].make(Hurt()))
            found[which] = outcome(which, KINDS[which].use, path)
    return found


if __name__ == "__main__":
    run_from_command_line(main, 500)
