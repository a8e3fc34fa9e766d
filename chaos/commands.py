"""Wrong command lines give one line and an exit status that says why.

In each trial, a command line, drawn from all commands and options, or a file or folder that it names has something
wrong. It is called like the installed command, in its own folder. It must exit with one of the documented statuses,
without a traceback and without calling anything a bug, print only one line on stderr if it fails, and write nothing
outside its folder.

    python chaos/commands.py --count 500 --save
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from checkpoints import PLACE, prepared, stopped
from harness import HERE, Dice, FaultError, run_from_command_line, show, told, trials
from mutants import damaged, no_file

from fedalloy import errors
from fedalloy.base import plugins
from fedalloy.cli.main import cli
from fedalloy.cli.main import main as command
from fedalloy.data import fetch
from fedalloy.federation.quorum import QuorumError
from fedalloy.report import html, plots

# Without `demo`, which takes long, and commands that listen on a network.
COMMANDS = (
    *("run", "compare", "table", "resume", "list", "partition", "report", "draw", "export", "check", "doctor"),
    "bench-attacks",
)
SMALL = ("data=tiny", "model=mlp", "rounds=1", "partition=iid", "partition.clients=2", "engine=serial")
WORDS = (
    *(
        "",
        " ",
        "=",
        "=1",
        "rounds=",
        "rounds=0",
        "rounds=-1",
        "rounds=x",
        "rounds=1e9999",
        "training.lr=nan",
        "seed=-1",
    ),
    *(
        "partition.clients=0",
        "partition.clients=10000",
        "method=fedavgg",
        "method=os.system",
        "model=../x",
        "nothing=1",
    ),
    *("training=3", "method.mu=1", "public.samples=0", "data=nowhere.npz", "data=/", "start=nowhere", "memory=much"),
    *("device=abacus", "engine=steam", "workers=0", "evaluate_every=0", "a.b.c.d=1", "[", "]=[", "\x00", "\ud800=1"),
    *(
        "\x1b[2J",
        "-",
        "--",
        "---",
        "-x",
        "--nothing",
        "--out",
        "--seeds",
        "--plugin",
        "--rounds",
        "--help",
        "--version",
    ),
    *("--debug=1", "--client=99", "--client=x", "--view=nothing", "--select=luck", "--methods=", "--methods=a,b"),
    *("--seeds=0", "--seeds=-1", "--seeds=1,1", "--seeds=x", "--rounds=0", "--rounds=x", "--attacks=none", "quorum=1"),
    *("--fraction=2", "--fraction=nan", "--where=a", "--where=a=b", "run", "resume", "n" * 5000, "é=ü", "\u202e", "٣"),
)


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test `count` command lines."""
    with tempfile.TemporaryDirectory() as place, prepared(Path(place)), quick():
        report = trials("commands", count, seed, command_trial, save=save, finish=breadth)
    show(report)
    return {"commands": report}


def breadth(_: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report the documented exit statuses and the commands."""
    return {"codes": sorted(codes()), "commands": list(COMMANDS)}


def codes() -> set[int]:
    """Return the documented exit statuses."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FedalloyError)
    ]
    return {0, QuorumError.code, *(kind.code for kind in kinds)}


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Disable downloads, and the pages and figures, which are created after everything was checked."""
    plugins.load_installed()

    def offline(file: fetch.RemoteFile) -> Path:
        raise errors.DataError(f"{file.name} is not on this computer")

    with (
        patch.object(fetch, "_places", lambda _: []),
        patch.object(fetch, "_download", offline),
        patch.object(plugins, "load_installed", lambda: None),
        patch.object(html, "write_report", lambda _, path, **__: path),
        patch.object(plots, "save", lambda *_: None),
    ):
        yield


def command_trial(dice: Dice) -> str:
    """Test a command line with something wrong in it."""
    with tempfile.TemporaryDirectory(dir=PLACE[0], prefix="trial") as place:
        inside = Path(place) / "inside"
        inside.mkdir()
        words = a_command_line(inside, dice)
        before = outside(Path(place))
        code, said = called(inside, words)
        shown = " ".join(words)[:150]
        if code not in codes() or (code == 1 and words[:1] != ["check"]):
            raise FaultError(f"{shown!r} exited with status {code}: {said[:200]!r}")
        if "Traceback" in said or "a bug in fedalloy" in said:
            raise FaultError(f"{shown!r}: {said[:200]!r}")
        if code and not is_one_line(said) and ("doctor" not in words or said):  # its findings are on stdout
            raise FaultError(f"{shown!r} does not give one line: {said[:200]!r}")
        if outside(Path(place)) != before:
            raise FaultError(f"{shown!r} wrote outside its folder")
    return f"code {code}"


def is_one_line(said: str) -> bool:
    """Return whether a failure was reported in one line; a list of differing keys may follow on separate lines."""
    first, *rest = said.strip("\n").split("\n")
    return first.startswith("fedalloy: ") and all(line.startswith("  ") for line in rest) and len(said) < 3000


def called(folder: Path, words: Sequence[str]) -> tuple[int, str]:
    """Run a command line; return its exit status and its output on stderr."""
    out, err, home = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command(words)
    except SystemExit as left:
        return int(left.code or 0), err.getvalue()
    except BaseException as error:
        raise FaultError(f"{' '.join(words)[:150]!r}: {told(error)}") from error
    finally:
        os.chdir(home)


def outside(place: Path) -> set[str]:
    """Return the files next to the folder in which a command is called."""
    return {path.name for path in place.iterdir()}


# --- command lines ----------------------------------------------------------------------------------------------------


def a_command_line(folder: Path, dice: Dice) -> list[str]:
    """Return a command with its arguments, and then something added, removed or changed."""
    name = dice.choice(COMMANDS)
    words = [name, *_needed(name, folder, dice)]
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        at = dice.randrange(len(words) + 1)
        what = dice.random()
        if what < 0.6:
            words.insert(at, _word(folder, dice))
        elif at == len(words) or words[at] in SMALL:
            continue  # without these, a run that happens to be valid would take long
        elif what < 0.8:
            del words[at]
        else:
            words[at] = damaged(words[at].encode(errors="replace"), dice).decode(errors="replace")[:10_000]
    return words


def _needed(name: str, folder: Path, dice: Dice) -> list[str]:
    if name == "list":
        return [dice.choice(("methods", "models", "data", "partitions", "nothing"))]
    if name == "check":
        return [dice.choice(("fedavgg", "", "x" * 999))]
    if name in ("resume", "report", "draw", "export", "doctor"):
        return [_a_folder(folder, dice)]
    few = ["--methods", "fedavg", "--attacks", "nan"] if name == "bench-attacks" else []
    return [*([_a_file(folder, dice)] if name == "table" or dice.random() < 0.3 else []), *SMALL, *few]


def _a_folder(folder: Path, dice: Dice) -> str:
    """Return a run, a damaged run, or something else."""
    what = dice.randrange(4)
    if what == 0:
        return str(no_file(folder, dice))
    run = Path(shutil.copytree(stopped("knfu", 5).folder, folder / f"run{dice.randrange(1000)}", dirs_exist_ok=True))
    if what == 1:
        file = dice.choice([path for path in sorted(run.rglob("*")) if path.is_file()])
        file.write_bytes(damaged(file.read_bytes(), dice))
    elif what == 2:
        shutil.rmtree(run / "checkpoints")
    return run.name


@cache
def _texts() -> list[bytes]:
    return [file.read_bytes() for file in sorted((HERE.parent / "src" / "fedalloy" / "experiments").glob("*.toml"))]


def _a_file(folder: Path, dice: Dice) -> str:
    """Return a damaged experiment, or something that is not a file."""
    if dice.random() < 0.3:
        return str(no_file(folder, dice))
    path = folder / "experiment.toml"
    path.write_bytes(damaged(dice.choice(_texts()), dice))
    return path.name


def _word(folder: Path, dice: Dice) -> str:
    options = [name for each in COMMANDS for option in cli.commands[each].params for name in option.opts]
    drawn = dice.random()
    if drawn < 0.6:
        return dice.choice(WORDS)
    if drawn < 0.8:
        return dice.choice(options)
    return dice.choice((dice.choice(("method=local", "method=knfu")), _a_file(folder, dice), _a_folder(folder, dice)))


if __name__ == "__main__":
    run_from_command_line(main, 200)
