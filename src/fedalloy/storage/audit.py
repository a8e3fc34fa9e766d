"""A site's audit log: what it was asked and what it answered, in lines of which each contains the hash of the last.

Two files of mode 0600: `audit.jsonl` has the lines, and `audit.head` the newest of them, which is written first. A
crash between the two loses nothing: the next entry is preceded by the line that is missing. What a crash left of a line
stays in the file, and an entry says so. Whoever can write both files can compute a new chain; only a head that was
noted elsewhere, such as the server's copy, reveals that.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedalloy.base.files import PRIVATE, append_line, make_folder, read_file, write_atomically
from fedalloy.errors import DataError

LOG, HEAD, LOCK = "audit.jsonl", "audit.head", "audit.lock"
PRIVATE_FOLDER = 0o700
BEGUN, REPAIRED = "begun", "repaired"

Entry = dict[str, Any]


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
            head = _head(self.folder)
            if head is None:
                if (self.folder / LOG).exists():
                    raise AuditError(f"{HEAD} is missing")
                head = self._write(0, _origin(self.about), BEGUN, self.about)
            else:
                head = self._mended(head)
            head = self._write(head["line"], head["hash"], event, what)
            return f"{head['line']}:{head['hash']}"

    def _write(self, number: int, previous: str, event: str, what: Mapping[str, Any]) -> Entry:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"line": number + 1, "time": now, "event": event, **what, "previous": previous}
        entry["hash"] = _hash(entry)
        text = json.dumps(entry)
        write_atomically(self.folder / HEAD, text.encode(), PRIVATE)
        append_line(self.folder / LOG, text)
        return entry

    def _mended(self, head: Entry) -> Entry:
        """Return the head after what a crash interrupted has been completed and noted."""
        file, text = self.folder / LOG, json.dumps(head)
        data = read_file(file) if file.exists() else b""
        lines = data.split(b"\n")
        if lines[-1] == b"" and len(lines) > 1 and lines[-2] == text.encode():
            return head
        torn, last = lines[-1], lines[-2] if len(lines) > 1 else b""
        before = _parsed(last)
        if (
            not text.encode().startswith(torn)
            or (before is None and data != torn)
            or ((before or {"hash": head["previous"]})["hash"] != head["previous"])
        ):
            raise AuditError("its last line is not the one that was written last")
        append_line(file, ("\n" if torn else "") + text)
        about = {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()}
        return self._write(head["line"], head["hash"], REPAIRED, {"torn": about})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # released when the process ends for any reason
            yield
        finally:
            os.close(handle)


def verify(folder: Path, about: Mapping[str, Any] | None = None, witness: str = "") -> Verified:
    """Read a log and check every line, the head, whose log it is, and a head that was noted elsewhere."""
    file = folder / LOG
    if not file.exists():
        lost = f"{LOG} is missing, but {HEAD} is there" if (folder / HEAD).exists() else None
        return Verified([], lost or (f"{LOG} is missing, but the server has seen line {witness.partition(':')[0]}"
                                     if witness else None))  # fmt: skip
    lines = read_file(file).split(b"\n")
    rest, entries, torn = lines.pop(), list[Entry](), dict[str, int]()
    notes: list[str] = []
    for place, data in enumerate(lines, 1):
        entry = _parsed(data)
        if entry is None:
            torn[hashlib.sha256(data).hexdigest()] = place
            continue
        if (fault := _fault(entry, entries)) is not None:
            return Verified(entries, f"line {place} {fault}")
        if entry["event"] == REPAIRED:
            digest = entry.get("torn", {}).get("sha256", "")
            part = torn.pop(digest, None)
            where = f" (its part is line {part})" if part else ""
            notes.append(f"a crash interrupted the writing of line {entries[-1]['line']}; it was completed{where}")
        entries.append(entry)
    if torn:
        return Verified(entries, f"line {min(torn.values())} cannot be read")
    return Verified(entries, _ending(folder, entries, rest, notes, about, witness), tuple(notes))


def _fault(entry: Entry, before: list[Entry]) -> str | None:
    number = before[-1]["line"] + 1 if before else 1
    if entry.get("hash") != _hash(entry):
        return "was changed: its hash is wrong"
    if entry.get("line") != number:
        return (
            f"has number {entry.get('line')} instead of {number}: lines were removed, inserted or exchanged before it"
        )
    expected = before[-1]["hash"] if before else _origin({k: v for k, v in entry.items() if k not in _FRAME})
    if entry.get("previous") != expected:
        return "does not continue the line before it: one of the two was replaced"
    return None if before or entry.get("event") == BEGUN else "is the first but does not say whose log this is"


def _ending(
    folder: Path, entries: list[Entry], rest: bytes, notes: list[str], about: Mapping[str, Any] | None, witness: str
) -> str | None:
    head, first = _head(folder), entries[0] if entries else {}
    for key, value in (about or {}).items():
        if entries and first.get(key) != value:
            return f"line 1 begins the log of another site or deployment: {key} is {first.get(key)}, not {value}"
    if head is None:
        return f"{HEAD} is missing or cannot be read, so nobody knows whether lines are missing at the end"
    count, last = (entries[-1]["line"], entries[-1]["hash"]) if entries else (0, head["previous"])
    whole = head["hash"] == last and not rest
    started = head["line"] == count + 1 and head["previous"] == last and json.dumps(head).encode().startswith(rest)
    if started:
        notes.append(f"a crash interrupted the writing of line {count + 1}; the next entry completes it")
    if not whole and not started:
        if head["line"] > count:
            return f"line {count + 1} and what follows were removed: {HEAD} has line {head['line']}"
        return f"line {min(head['line'], count) + (head['line'] < count)} was not written by this site: {HEAD} differs"
    number, _, digest = witness.partition(":")
    seen = [head, *entries] if started else entries
    if witness and not any(e["line"] == int(number) and e["hash"] == digest for e in seen):
        return f"line {number} is not the one that the server has seen: both files were replaced"
    return None


_FRAME = ("line", "time", "event", "previous", "hash")


def _origin(about: Mapping[str, Any]) -> str:
    """Return what the first line continues: whose log it is."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _hash(entry: Mapping[str, Any]) -> str:
    told = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _parsed(data: bytes) -> Entry | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "hash" in found else None


def _head(folder: Path) -> Entry | None:
    file = folder / HEAD
    found = _parsed(read_file(file)) if file.exists() else None
    return found if found is not None and found["hash"] == _hash(found) else None
