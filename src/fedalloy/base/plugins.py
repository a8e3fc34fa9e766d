"""A user's own methods, models, data sets and partitions: a file named on the command line, or an entry point."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import signal
import sys
import threading
from pathlib import Path

from fedalloy.errors import FedalloyError, Signalled, UsageError

LONGEST = 500  # letters of an error's own words
DIGEST = "__sha256__"
PREFIX = "fedalloy_plugin_"  # of modules, so that a plug-in called random.py does not stand for `random`


def load_file(path: str | Path) -> None:
    """Run a Python file of the user's, which registers what it defines."""
    path = Path(path)
    name = f"{PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"the plug-in '{path}' is not a Python file that can be read")
    module = importlib.util.module_from_spec(spec)
    module.__dict__[DIGEST] = hashlib.sha256(path.read_bytes()).hexdigest()
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, FedalloyError) or by_signal(error):
            raise
        raise UsageError(f"the plug-in '{path}' failed{_line(error, path)}: {named(error)}") from error


def loaded_files() -> list[str]:
    """The files that were loaded, in their order: what another process must load to know the same names."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(PREFIX)]


def fingerprints() -> dict[str, str]:
    """The beginning of the SHA-256 of each file as it was when it was loaded, by the file's name."""
    loaded = sorted((name, module) for name, module in sys.modules.items() if name.startswith(PREFIX))
    return {f"{name.removeprefix(PREFIX)}.py": module.__dict__.get(DIGEST, "")[:16] for name, module in loaded}


def load_installed() -> None:
    """Import every installed package that announces itself under the entry point `fedalloy.base.plugins`."""
    for entry in importlib.metadata.entry_points(group="fedalloy.base.plugins"):
        try:
            entry.load()
        except BaseException as error:
            if by_signal(error):
                raise
            raise UsageError(f"the installed plug-in '{entry.value}' failed: {named(error)}") from error


def blamed(error: BaseException) -> str | None:
    """Where a user's own file or a client's action failed, and how: the innermost line of such a file, if there is one.

    >>> error = KeyError("model")
    >>> error.add_note("client 3, action 'train'")  # as `act` does
    >>> blamed(error)
    "client 3, action 'train': KeyError: 'model'"
    """
    place = own_line(error)
    found = getattr(error, "__notes__", ())
    notes = one_line("; ".join(note for note in found if isinstance(note, str)) if isinstance(found, list) else "")
    if place is None:
        return f"{notes}: {named(error)}" if notes else None
    return f"{place}: {named(error)}{f' ({notes})' if notes else ''}"


def own_line(error: BaseException) -> str | None:
    """The innermost line of a user's own file on the way to an error, if there is one."""
    files, place = loaded_files(), None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in files:
            place = f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def named(error: BaseException) -> str:
    """The kind of an error and what it says, as one short line that can be shown anywhere.

    >>> named(ValueError("two\\nlines")), named(MemoryError())
    ('ValueError: two lines', 'MemoryError')
    """
    try:
        text = one_line(f"{error}")
    except BaseException:  # whose text fails, in whatever way, has none
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def sentence(error: FedalloyError) -> str:
    """What a refusal says; one of a user's own kind may fail to say it."""
    try:
        return f"{error}"
    except BaseException:
        return named(error)


def one_line(text: str) -> str:
    """A stranger's text on one line, without what moves the cursor, cut if it is long."""
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text[:10_000].split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def by_signal(error: BaseException) -> bool:
    """Whether the user or the system ends the command, and not the code that was under way when this was raised.

    Where Python's own handler serves Ctrl-C, as in a notebook, nobody can tell a KeyboardInterrupt that code raised.
    """
    if isinstance(error, Signalled):
        return True
    pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and pythons and threading.current_thread() is threading.main_thread()


def _line(error: BaseException, path: Path) -> str:
    trace, found = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path.absolute()):
            found = f" in line {trace.tb_lineno}"
        trace = trace.tb_next
    return found
