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
    from fedalloy.report.gains_table import Listing
    from fedalloy.report.published import Beside
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


def named_methods(text: str | None) -> list[str] | None:
    """Parse --methods.

    >>> named_methods("fedavg, kdia"), named_methods(None)
    (['fedavg', 'kdia'], None)
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--methods '{text}' names no method; write for example --methods fedavg,fedprox")
    return names


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


def show(runs: list[Run], select: str = "last", targets: Sequence[Target] = ()) -> dict[str, Any]:
    """Print the comparison of runs, with published figures and each client's gain; returns it as plain values."""
    from fedalloy.report.compared import compared, sentences
    from fedalloy.report.gains_table import ALL, each_client, summary
    from fedalloy.report.leads import leads_table
    from fedalloy.report.published import beside
    from fedalloy.report.table import comparison_table
    from fedalloy.report.tables import parts_of
    from fedalloy.report.targets import targets_table

    found = compared(runs, select)
    console = screen()
    console.print()
    console.print(comparison_table(found.rows, width=console.width, names=found.names, doubts=found.doubts))
    for sentence in sentences(found):
        say(sentence)
    answer = found.answer()
    if (lead := leads_table(found.rivals())) is not None:
        console.print()
        console.print(lead.rich())
    reached = [targets_table(found.runs, targets)] if targets else []
    published = beside(found.runs)
    for other in (*(one.table() for one in reached), *(one.table() for one in published)):
        console.print()
        console.print(other)
    clients = found.gains()
    listings = [summary(clients), each_client(clients)] if clients else []
    for listing in [*listings[:1], each_client(clients, ALL)] if clients else []:
        console.print()
        console.print(listing.table())
    if answer["verdict"]:
        console.print()
        console.print(answer["verdict"], highlight=False, markup=False)
    others: dict[str, Sequence[Listing | Beside]] = {"targets": reached, "published": published, "gains": listings}
    return answer | {name: [parts_of(one) for one in several] for name, several in others.items()}


def write_page(runs: list[Run], path: Path, command: str, select: str = "last", targets: Sequence[Target] = ()) -> Path:
    """Write the report on runs, say where, and return its path."""
    from fedalloy.report.html import write_report

    written = write_report(runs, path, command=command, selection=select, targets=targets)
    say(f"report: {written}")
    return written


def read_runs(folders: Sequence[str]) -> list[Run]:
    """Read the runs in folders; a folder that contains several runs stands for all of them."""
    from fedalloy.report.results import load

    return list(load(folders))


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


def tracked(tracks: Sequence[str]) -> list[str]:
    """Return the --track options."""
    return [word for text in tracks for word in ("--track", text)]


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
