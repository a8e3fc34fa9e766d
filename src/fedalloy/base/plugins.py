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

LONGEST = 500  # characters of an error's message
DIGEST = "__sha256__"
PREFIX = "fedalloy_plugin_"  # of module names, so that a plug-in called random.py does not replace `random`


def load_file(path: str | Path) -> None:
    """Run a user's Python file, which registers what it defines."""
    path = Path(path)
    name = f"{PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(
            f"the plug-in '{path}' does not exist or is not a Python file; name an existing FILE.py, or write one "
            f"with `fedalloy new method {path.stem or 'NAME'}`"
        )
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
    """Return the loaded files in order; another process must load them to know the same names."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(PREFIX)]


def fingerprints() -> dict[str, str]:
    """Return the first characters of each loaded file's SHA-256 at load time, by file name."""
    loaded = sorted((name, module) for name, module in sys.modules.items() if name.startswith(PREFIX))
    return {f"{name.removeprefix(PREFIX)}.py": module.__dict__.get(DIGEST, "")[:16] for name, module in loaded}


def load_installed() -> None:
    """Import every installed package with the entry point `fedalloy.plugins`."""
    for entry in importlib.metadata.entry_points(group="fedalloy.plugins"):
        try:
            entry.load()
        except BaseException as error:
            if by_signal(error):
                raise
            raise UsageError(f"the installed plug-in '{entry.value}' failed: {named(error)}") from error


def blamed(error: BaseException) -> str | None:
    """Describe where a user's file or a client's action failed, and how, or return None.

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
    """Return the innermost line of a user's file in an error's traceback, if there is one."""
    files, place = loaded_files(), None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in files:
            place = f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def named(error: BaseException) -> str:
    """Return the type and message of an error as one short, printable line.

    >>> named(ValueError("two\\nlines")), named(MemoryError())
    ('ValueError: two lines', 'MemoryError')
    """
    try:
        text = one_line(f"{error}")
    except BaseException:  # str() of a user's exception can raise anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def sentence(error: FedalloyError) -> str:
    """Return the message of an error; str() of a user's own subclass may fail."""
    try:
        return f"{error}"
    except BaseException:
        return named(error)


def one_line(text: str) -> str:
    """Put untrusted text on one line, without control characters, and shorten it if it is long."""
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text[:10_000].split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def by_signal(error: BaseException) -> bool:
    """Return whether an error comes from a signal by the user or the system, not from the code that was running.

    With Python's own Ctrl-C handler, as in a notebook, this cannot be distinguished from a KeyboardInterrupt in code.
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
