"""The values of an experiment before they are checked: a TOML file, and key=value overrides."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedalloy.base.checked import shown
from fedalloy.base.options import without_effect
from fedalloy.config.sections import CLOSED, NAMED_BY, OPEN, own_keys, usual_name
from fedalloy.data.own.dataset import SUFFIXES
from fedalloy.errors import UsageError

LARGEST_FILE = 1_000_000  # bytes; our longest has a few thousand
SHIPPED = Path(__file__).parents[1] / "experiments"  # the papers' settings, which a command can name without a path


def shipped(name: str | Path) -> Path:
    """The file of an experiment that comes with the library, if the name is one of theirs; else the same path.

    >>> shipped("knfu-mnist").name, shipped("mine.toml").name
    ('knfu-mnist.toml', 'mine.toml')
    """
    path, own = Path(name), SHIPPED / f"{name}.toml"
    return own if path.name == str(name) and not path.exists() and own.is_file() else path


def read_toml(path: str | Path, what: str = "experiment file") -> dict[str, Any]:
    """The values in a TOML file, or in a file that comes with the library (`kdia-cifar10`)."""
    name, path = f"the {what} {shown(str(path))}", shipped(path)
    try:
        look = os.stat(path)
        if look.st_size > LARGEST_FILE:
            raise UsageError(f"{name} has {look.st_size:,} bytes; it may have {LARGEST_FILE:,}")
        if stat.S_ISDIR(look.st_mode):
            raise UsageError(f"{name} is a folder{_as_data(path)}")
        if not stat.S_ISREG(look.st_mode):  # reading might never end
            raise UsageError(f"{name} cannot be read: it is a pipe or a device")
        if path.suffix.lower() in SUFFIXES:
            raise UsageError(f"{name} is not TOML{_as_data(path)}")
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"there is no {what} {shown(str(path))}{_instead(Path(path))}") from error
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply") from error
    except ValueError as error:  # bytes that are not UTF-8, a number with thousands of digits, an invalid path
        raise UsageError(f"{name} cannot be read: {error}") from error


def _as_data(path: Path) -> str:
    """What to write for a path that was given as an experiment, but looks like data."""
    return f"; if it has your data, write data={path}"


def _instead(path: Path) -> str:
    """A file nearby that was probably meant instead of one that does not exist."""
    near = get_close_matches(path.name, [file.name for file in path.parent.glob("*.toml")], n=1, cutoff=0.4)
    if near:
        return f"; did you mean {shown(str(path.with_name(near[0])))}?"
    near = get_close_matches(path.stem, [file.stem for file in SHIPPED.glob("*.toml")], n=1, cutoff=0.7)
    return f"; did you mean {shown(near[0])}, which comes with fedalloy?" if near else ""


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply `key=value` texts; a dotted key sets a key in a table, and `method=fedprox` chooses a name.

    A method listed under [methods] is chosen with its options from there.

    >>> override({"training": {"lr": 0.1}}, ["training.lr=0.01", "method=fedprox", "method.mu=1.0"])
    {'training': {'lr': 0.01}, 'method': {'name': 'fedprox', 'mu': 1.0}}
    >>> override({"partition": {"name": "dirichlet", "alpha": 0.1, "clients": 5}}, ["partition=iid"])
    {'partition': {'name': 'iid', 'clients': 5}}
    >>> override({"methods": {"mild": {"name": "fedprox", "mu": 0.001}}}, ["method=mild"])["method"]
    {'name': 'fedprox', 'mu': 0.001}
    """
    out: dict[str, Any] = {key: table(key, value) for key, value in values.items()}
    done: dict[str, tuple[str, Any]] = {}
    for text in overrides:
        key, sign, raw = text.partition("=")
        if not sign or not key:
            raise UsageError(f"'{text}' is not an override; write key=value, for instance training.lr=0.01")
        put(out, key, read_value(raw))
        done.pop(key, None)
        for earlier in (one for name, (one, was) in done.items() if at(out, name) != was):
            raise UsageError(f"{text} undoes {earlier}; leave one of them out, or write {earlier} after it")
        done |= {key: (text, now)} if not isinstance(now := at(out, key), Mapping) else {}
    return out


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a value under a dotted key; tables on the way are copied, not modified.

    Another name drops the options of the old one, and a choice in a section the keys that have no effect with it.

    >>> values = {"training": {"lr": 0.1}}
    >>> put(values, "training.batch", 8)
    >>> values
    {'training': {'lr': 0.1, 'batch': 8}}
    """
    *path, last = key.split(".")
    if not path and key in OPEN and isinstance(value, str):
        path, last = [key], NAMED_BY.get(key, "name")
    listed = values.get("methods") if path == ["method"] and last == "name" else None
    if isinstance(listed, Mapping) and isinstance(own := listed.get(value), Mapping):
        if at(values, "method.name") != value:
            values["method"] = {"name": value, **own}
        return
    node = values
    for part in path:
        inner = node.get(part, {})
        if not isinstance(inner, Mapping):
            raise UsageError(f"'{key}' cannot be set: {part} is not a table")
        node[part] = dict(inner)
        node = node[part]
    for other in _undone(path, node, last, value):
        del node[other]
    node[last] = value


def _undone(path: Sequence[str], table: Mapping[str, Any], key: str, value: Any) -> list[str]:
    """The keys of a table that do not outlast a new value of one of them."""
    section = "method" if len(path) == 2 and path[0] == "methods" else ".".join(path)
    if section in OPEN and key == NAMED_BY.get(section, "name"):
        if value == table.get(key, usual_name(section) if len(path) == 1 else path[1]):
            return []
        # The number of clients is kept for another partition, but not the options of the old one.
        kept = own_keys(OPEN[section]) if section != "method" else []
        return [k for k in table if k not in kept]
    part = CLOSED.get(path[-1]) if path else None
    return [k for k in without_effect(part, {key: value}) if k in table] if part is not None else []


def at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, or None if there is none.

    >>> at({"training": {"lr": 0.1}}, "training.lr"), at({}, "training.lr")
    (0.1, None)
    """
    found: Any = values
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def table(key: str, value: Any) -> Any:
    """Expand `method = "fedprox"`, which is short for a table with only that name."""
    return {NAMED_BY.get(key, "name"): value} if key in OPEN and isinstance(value, str) else value


def read_value(raw: str) -> Any:
    """Read a value as TOML; a bare word is a string, and so are bare words in a list, whose quotes a shell removes.

    >>> read_value("0.5"), read_value("fedprox"), read_value("[age, 3, patient id]"), read_value("[")
    (0.5, 'fedprox', ['age', 3, 'patient id'], '[')
    """
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        bare = raw.strip()
        if bare.startswith("[") and bare.endswith("]") and not any(sign in bare[1:-1] for sign in "[]{}\"'"):
            return [read_value(word.strip()) for word in bare[1:-1].split(",") if word.strip()]
        return raw  # anything unreadable is refused as a string
