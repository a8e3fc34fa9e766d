"""Code shared by the commands: reading arguments, showing results, and handling interruptions.

Heavy imports stay inside the functions, so that `fedalloy --help` is fast.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fedalloy.base.text import printable
from fedalloy.cli.hints import refuse_strays
from fedalloy.errors import HangupError, InterruptionError, Signalled, TerminationError, UsageError

if TYPE_CHECKING:
    from fedalloy.config.build import Built
    from fedalloy.config.sections import Experiment
    from fedalloy.report.targets import Target
    from fedalloy.storage.results import Run


def parted(file: str | None, overrides: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Separate the file and the overrides; without a file, the first argument is an override.

    Other words are refused if it is clear what was meant by them.
    """
    refuse_strays([*([file] if file is not None else []), *overrides])
    if file is not None and "=" in file and not file.endswith(".toml"):
        return None, (file, *overrides)
    return file, overrides


def given_experiment(file: str | None, overrides: Sequence[str], plugins: Sequence[str]) -> Experiment:
    """Load plug-ins and read the experiment from a file, or the defaults, with overrides."""
    load_plugins(plugins)
    from fedalloy.config.experiment import experiment
    from fedalloy.config.overrides import override, read_toml

    return experiment(override(read_toml(file) if file else {}, overrides))


def refuse_idle_method(
    exp: Experiment, overrides: Sequence[str], names: Sequence[str] | None = None, *, has_names: bool = True
) -> None:
    """Refuse an override of `method` that would have no effect because --methods or [methods] lists the methods.

    `has_names` says whether the command has the option --methods.
    """
    from fedalloy.run.comparison import chosen

    if exp.method in chosen(exp, names).values() and (names is not None or not exp.methods):
        return
    for text in overrides:
        key, _, value = text.partition("=")
        if key in ("method", "method.name"):
            listed = ",".join([*(names or []), value])
            instead = f"--methods {listed}" if has_names else f"[methods.{value}] in the file"
            compared = "[methods]" if names is None else "--methods"
            raise UsageError(f"{text} has no effect, because {compared} lists the methods to compare; write {instead}")
        if key.startswith("method."):
            option = text.removeprefix("method.")
            raise UsageError(f"{text} has no effect on the compared methods; write methods.{exp.method.name}.{option}")


def load_plugins(files: Sequence[str]) -> None:
    """Load the installed plug-ins and these files."""
    from fedalloy.base.plugins import load_file, load_installed

    load_installed()
    for file in files:
        load_file(file)


def chosen_seeds(text: str, first: int) -> list[int]:
    """Parse --seeds: a number of seeds starting at `first`, or a list of seeds.

    >>> chosen_seeds("3", 5), chosen_seeds("0,7", 5)
    ([5, 6, 7], [0, 7])
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--seeds {text} must be a number of seeds (3) or a list of seeds (0,1,7)") from error
    seeds = numbers if "," in text else list(range(first, first + numbers[0]))
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UsageError(
            f"--seeds {text} must be a positive number of seeds (3) or a list of different, non-negative seeds (0,1,7)"
        )
    return seeds


# The error for each signal that ends a command; Windows has no SIGHUP.
ENDINGS: dict[int, type[InterruptionError]] = {signal.SIGINT: InterruptionError, signal.SIGTERM: TerminationError}
if hasattr(signal, "SIGHUP"):
    ENDINGS[signal.SIGHUP] = HangupError


@contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, as Ctrl-C does, so that workers end and shared memory is released.

    Further signals are ignored, so that they do not disturb the handling of the first one. Under `nohup`, SIGHUP stays
    ignored.
    """

    def end(number: int, _: object) -> NoReturn:
        for each in ENDINGS:
            signal.signal(each, signal.SIG_IGN)
        raise Signalled(number)

    if threading.current_thread() is not threading.main_thread():  # signals cannot be handled here
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in ENDINGS}
    if before.get(hangup := getattr(signal, "SIGHUP", 0)) == signal.SIG_IGN:
        del before[hangup]
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def resumable(*words: str) -> Iterator[None]:
    """If the user interrupts the block, say how to resume; the last completed round is on disk."""
    try:
        yield
    except KeyboardInterrupt as error:
        from fedalloy.base.plugins import blamed

        if not isinstance(error, Signalled) and blamed(error) is not None:
            raise  # raised by a plug-in
        kind = ENDINGS[error.number] if isinstance(error, Signalled) else InterruptionError
        raise kind(f"interrupted; `{as_typed(*words)}` continues from the last round") from error


def selecting(select: str) -> list[str]:
    """Return the option --select as it was typed; nothing if it is the default."""
    return ["--select", select] if select != "last" else []


def refuse_select(select: str, exp: Experiment, built: Iterable[Built]) -> None:
    """Refuse a selection of rounds by what the experiment will not record, before it runs."""
    from fedalloy.storage.rows import NEEDS

    lacking = {
        "best by test": all(one.setting.holdout is None for one in built),
        "best by validation": exp.partition.validation == 0,
    }
    if lacking.get(select):
        raise UsageError(f"--select '{select}' cannot select a round: {NEEDS[select]}")


def show(runs: list[Run], select: str = "last", targets: Sequence[Target] = ()) -> None:
    """Print the comparison of runs, with published figures and each client's gain."""
    from fedalloy.report.facts import warnings
    from fedalloy.report.gains import gains
    from fedalloy.report.gains_table import ALL, each_client, summary
    from fedalloy.report.published import beside
    from fedalloy.report.table import comparison_table
    from fedalloy.report.targets import targets_table
    from fedalloy.report.trained import doubts, told
    from fedalloy.report.verdict import verdict
    from fedalloy.storage.differences import told_apart, unequal
    from fedalloy.storage.rows import check_selection, rows, too_few

    runs = [run for run in runs if run.views]
    check_selection(runs, select)
    differences = unequal(runs, select)
    runs = told_apart(runs, select)
    table = [row for run in runs for row in rows(run, select)]
    names = {run.label: run.name for run in runs}
    console = screen()
    console.print()
    doubted = doubts(runs, select)
    console.print(comparison_table(table, width=console.width, names=names, doubts=doubted))
    for sentence in [*told(doubted), *too_few(runs, select), *warnings(runs), *differences]:
        say(sentence)
    others = [targets_table(runs, targets).table()] if targets else []
    for other in [*others, *(found.table() for found in beside(runs))]:
        console.print()
        console.print(other)
    if len(names) > 1:
        found = gains(runs, select)
        for listing in [summary(found), each_client(found, ALL)] if found else []:
            console.print()
            console.print(listing.table())
        console.print()
        console.print(verdict(table, names=names, clients=found, doubts=doubted), highlight=False, markup=False)


def write_page(runs: list[Run], path: Path, command: str, select: str = "last", targets: Sequence[Target] = ()) -> None:
    """Write the report on runs, and say where."""
    from fedalloy.report.html import write_report

    say(f"report: {write_report(runs, path, command=command, selection=select, targets=targets)}")


def read_runs(folders: Sequence[str]) -> list[Run]:
    """Read the runs in folders; a folder that contains several runs stands for all of them."""
    from fedalloy.storage.results import read

    found: list[Path] = []
    for folder in map(Path, folders):
        inside = sorted(file.parent for file in folder.glob("**/run.json"))
        found += inside or [folder]
    return [read(folder) for folder in found]


def fresh(parent: Path, name: str) -> Path:
    """Return a folder that does not exist yet: name, name-2, name-3, ..."""
    tried = parent / name
    number = 2
    while tried.exists():
        tried, number = parent / f"{name}-{number}", number + 1
    return tried


def words_of(file: str | None, overrides: Sequence[str], plugins: Sequence[str]) -> list[str]:
    """Return the arguments that were typed after a command."""
    return [*([file] if file else []), *overrides, *plugged(plugins)]


def plugged(plugins: Sequence[str]) -> list[str]:
    """Return the --plugin options."""
    return [word for file in plugins for word in ("--plugin", file)]


def as_typed(*words: str) -> str:
    """Return a command as it would be typed.

    >>> as_typed("resume", "my run")
    "fedalloy resume 'my run'"
    """
    import shlex

    return shlex.join(["fedalloy", *words])


def screen() -> Any:
    """Return the console on which tables are printed."""
    from rich.console import Console

    return Console()


def say(text: str) -> None:
    """Print lines; control characters in them cannot affect the terminal."""
    click.echo("\n".join(map(printable, text.split("\n"))))
