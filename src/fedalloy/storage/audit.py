"""A site's audit log: what it was asked and what it answered, in lines of which each contains the hash of the last.

Two files of mode 0600: `audit.jsonl` has the lines, and `audit.head` the newest of them, which is written first. A
crash or a full disk between the two loses nothing: before the next entry, the line is completed, and an entry says so.
Whoever can write both files can compute a new chain; only a head that was noted elsewhere, such as the server's copy,
reveals that. Each line has a random salt, so that its hash tells nobody what else is in the line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedalloy.base.files import PRIVATE, append_line, make_folder, read_file, write_atomically
from fedalloy.errors import DataError

LOG, HEAD, LOCK = "audit.jsonl", "audit.head", "audit.lock"
PRIVATE_FOLDER = 0o700
BEGUN, REPAIRED = "begun", "repaired"

Entry = dict[str, Any]

_FRAME = {"line": int, "time": str, "event": str, "salt": str, "previous": str, "hash": str}
_LINE = re.compile(rb'(\{.*), "hash": "([0-9a-f]{64})"\}', re.DOTALL)


class AuditError(DataError):
    """A site's audit log was changed, so the site must not answer."""

    def __init__(self, fault: str) -> None:
        super().__init__(
            f"the audit log of this site is not intact: {fault}; this site answers nothing until its operator has "
            f"looked at it and moved {LOG} and {HEAD} away"
        )


@dataclass(frozen=True)
class Verified:
    """The entries of a log, and its first fault, if any; `notes` are what is unusual but not wrong."""

    entries: list[Entry]
    fault: str | None
    notes: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """The number and the hash of the last line, to be noted elsewhere."""
        return f"{self.entries[-1]['line']}:{self.entries[-1]['hash']}" if self.entries else "0:"


class AuditLog:
    """The log in a folder; `about` says whose it is, and binds the first line to that.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "0"
    >>> log = AuditLog(folder, {"client": 0})
    >>> head = log.append("asked", {"round": 1})
    >>> [(e["line"], e["event"]) for e in verify(folder).entries], verify(folder).fault
    ([(1, 'begun'), (2, 'asked')], None)
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, dict(about)

    def append(self, event: str, what: Mapping[str, Any]) -> str:
        """Add an entry durably, and return the new head; raise if the end of the log is not what was written last."""
        make_folder(self.folder, PRIVATE_FOLDER)
        with self._alone():
            found = _head(self.folder)
            if found is None:
                for name in (HEAD, LOG):
                    if os.path.lexists(self.folder / name):
                        raise AuditError(f"{HEAD} is {'damaged' if name == HEAD else 'missing'}")
                head = self._write(0, _origin(self.about), BEGUN, self.about)
            else:
                head = self._completed(*found)
            head = self._write(head["line"], head["hash"], event, what)
            return f"{head['line']}:{head['hash']}"

    def _write(self, number: int, previous: str, event: str, what: Mapping[str, Any]) -> Entry:
        entry = {"line": number + 1, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        entry |= {**what, "salt": secrets.token_hex(16), "previous": previous}
        entry, text = _sealed(entry)
        write_atomically(self.folder / HEAD, text, PRIVATE)
        append_line(self.folder / LOG, text.decode())
        return entry

    def _completed(self, head: Entry, text: bytes) -> Entry:
        """Return the head after a line whose writing was interrupted has been completed and noted."""
        file = self.folder / LOG
        if _tail(file, len(text) + 2) in (b"\n" + text + b"\n", text + b"\n"):
            return head
        data = read_file(file) if file.exists() else b""
        whole, _, torn = data.rpartition(b"\n")
        before = _parsed(whole.rpartition(b"\n")[2])
        continued = (before["line"] + 1, before["hash"]) if before else (1, head["previous"])
        if (
            (before is None and data != torn)  # complete lines, of which the last cannot be read
            or not text.startswith(torn)
            or (head["line"], head["previous"]) != continued
        ):
            raise AuditError("its last line is not the one that was written last")
        append_line(file, text[len(torn) :].decode())  # only the rest, so that this may be interrupted again
        return self._write(head["line"], head["hash"], REPAIRED, {"completed": head["line"], "found": len(torn)})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # released when the process ends for any reason
            yield
        finally:
            os.close(handle)


def verify(folder: Path, about: Mapping[str, Any] | None = None, seen: Collection[str] = ()) -> Verified:
    """Read a log and check every line, the head, whose log it is, and heads that were noted elsewhere."""
    file = folder / LOG
    if file.is_symlink():
        return Verified([], f"{LOG} is a link, which no site writes to")
    with _unchanging(folder):
        head = _head(folder)
        data = read_file(file) if file.exists() else None
    if data is None:
        lost = [f"{HEAD} is there"] if os.path.lexists(folder / HEAD) else []
        lost += [f"line {head.partition(':')[0]} of it was seen elsewhere" for head in list(seen)[-1:]]
        return Verified([], f"{LOG} is missing, but {lost[0]}" if lost else None)
    *lines, rest = data.split(b"\n")
    entries = list[Entry]()
    for place, line in enumerate(lines, 1):
        entry = _parsed(line)
        if entry is None:
            return Verified(entries, f"line {place} cannot be read")
        if (fault := _fault(line, entry, entries)) is not None:
            return Verified(entries, f"line {place} {fault}")
        entries.append(entry)
    notes = _notes(entries)
    return Verified(entries, _ending(head, entries, rest, notes, about, seen), tuple(notes))


def _fault(line: bytes, entry: Entry, before: list[Entry]) -> str | None:
    if not _is_sealed(line):
        return "was changed: its hash is wrong"
    number = before[-1]["line"] + 1 if before else 1
    if entry["line"] != number:
        return f"has number {entry['line']} instead of {number}: lines were removed, inserted or exchanged before it"
    expected = before[-1]["hash"] if before else _origin({k: v for k, v in entry.items() if k not in _FRAME})
    if entry["previous"] != expected:
        return "does not continue the line before it: one of the two was replaced"
    return None if before or entry["event"] == BEGUN else "is the first but does not say whose log this is"


def _notes(entries: list[Entry]) -> list[str]:
    found = [
        f"the writing of line {entry['line'] - 1} was interrupted by a crash or a full disk; it was completed"
        for entry in entries
        if entry["event"] == REPAIRED
    ]
    back = [b["line"] for a, b in pairwise(entries) if b["time"] < a["time"]]
    if back:
        found.append(f"the clock went back before line {back[0]}" + (f" and {len(back) - 1} more" * (len(back) > 1)))
    return found


def _ending(
    newest: tuple[Entry, bytes] | None,
    entries: list[Entry],
    rest: bytes,
    notes: list[str],
    about: Mapping[str, Any] | None,
    seen: Collection[str],
) -> str | None:
    first = entries[0] if entries else {}
    for key, value in (about or {}).items():
        if entries and first.get(key) != value:
            return f"line 1 begins the log of another site or deployment: {key} is {first.get(key)}, not {value}"
    if newest is None:
        return f"{HEAD} is missing or cannot be read, so nobody knows whether lines are missing at the end"
    head, text = newest
    count, last = (entries[-1]["line"], entries[-1]["hash"]) if entries else (0, head["previous"])
    whole = head["hash"] == last and not rest
    started = head["line"] == count + 1 and head["previous"] == last and text.startswith(rest)
    if started:
        notes.append(f"the writing of line {count + 1} was interrupted; the next entry completes it")
    if not whole and not started:
        if head["line"] > count:
            return f"line {count + 1} and what follows were removed: {HEAD} has line {head['line']}"
        return f"line {min(head['line'], count) + (head['line'] < count)} was not written by this site: {HEAD} differs"
    own = {f"{entry['line']}:{entry['hash']}" for entry in ([*entries, head] if started else entries)}
    other = [noted for noted in seen if noted not in own]
    if other:
        number = other[0].partition(":")[0]
        return f"line {number} is not the one that was seen elsewhere: both files were replaced, or set back"
    return None


def _origin(about: Mapping[str, Any]) -> str:
    """Return what the first line continues: whose log it is."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _sealed(entry: Mapping[str, Any]) -> tuple[Entry, bytes]:
    """Return an entry with its hash, which is that of the line's own bytes without it, and the line."""
    text = json.dumps(entry)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {**entry, "hash": digest}, f'{text[:-1]}, "hash": "{digest}"}}'.encode()


def _is_sealed(line: bytes) -> bool:
    found = _LINE.fullmatch(line)
    return found is not None and hashlib.sha256(found[1] + b"}").hexdigest().encode() == found[2]


def _parsed(line: bytes) -> Entry | None:
    """Return the entry of a line, or None if no site writes such a line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(found, dict) and all(type(found.get(key)) is kind for key, kind in _FRAME.items())
    return found if sound else None


def _head(folder: Path) -> tuple[Entry, bytes] | None:
    """Return the entry that was written last, and its line."""
    file = folder / HEAD
    text = read_file(file) if file.exists() else b""
    found = _parsed(text)
    return (found, text) if found is not None and _is_sealed(text) else None


def _tail(file: Path, size: int) -> bytes:
    """Return the last bytes of a file; nothing if there is none."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise AuditError(f"{LOG} cannot be opened ({error.strerror})") from error
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise AuditError(f"{LOG} is not a file")
        return os.pread(handle, size, max(0, about.st_size - size))
    finally:
        os.close(handle)


@contextmanager
def _unchanging(folder: Path) -> Iterator[None]:
    """Keep a running site from writing while both files are read; a copy of a log may have no lock file."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)
