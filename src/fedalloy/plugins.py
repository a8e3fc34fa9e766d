"""A user's own methods, models, data sets and partitions: a file named on the command line, or an entry point."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from fedalloy.errors import FedalloyError, UsageError

PREFIX = "fedalloy_plugin_"  # of modules, so that a plug-in called random.py does not stand for `random`


def load_file(path: str | Path) -> None:
    """Run a Python file of the user's, which registers what it defines."""
    path = Path(path)
    name = f"{PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"the plug-in '{path}' is not a Python file that can be read")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, FedalloyError):
            raise
        raise UsageError(f"the plug-in '{path}' failed{_line(error, path)}: {_named(error)}") from error


def loaded_files() -> list[str]:
    """The files that were loaded, in their order: what another process must load to know the same names."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(PREFIX)]


def load_installed() -> None:
    """Import every installed package that announces itself under the entry point `fedalloy.plugins`."""
    for entry in importlib.metadata.entry_points(group="fedalloy.plugins"):
        try:
            entry.load()
        except Exception as error:
            raise UsageError(f"the installed plug-in '{entry.value}' failed: {_named(error)}") from error


def blamed(error: BaseException) -> str | None:
    """Where a user's own file failed, and how: its innermost line on the way to an error, if there is one."""
    files, place = loaded_files(), None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in files:
            place = f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if place is None:
        return None
    notes = "; ".join(getattr(error, "__notes__", ()))  # such as whose action it was
    return f"{place}: {_named(error)}{f' ({notes})' if notes else ''}"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _line(error: BaseException, path: Path) -> str:
    trace, found = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path.absolute()):
            found = f" in line {trace.tb_lineno}"
        trace = trace.tb_next
    return found
