"""Processes that a command starts and a later one ends: identified by their ids and start times."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedalloy.base.files import PRIVATE, remove_file, write_atomically
from fedalloy.errors import StorageError, UsageError

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
GRACE = 10.0  # seconds to end before SIGKILL


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, with the same installation's Flower commands first on PATH."""
    here = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([here, os.environ.get("PATH", "")]), **more}


def start(script: Path, name: str, state: Path, **more: str) -> None:
    """Start a script in its own session; write its output to a log and its id to a file."""
    log = os.open(state / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
    try:
        process = subprocess.Popen(
            ["/bin/sh", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment(**more),
        )
    finally:
        os.close(log)
    write_atomically(_file(state, name), f"{process.pid} {_born(process.pid)}\n".encode(), PRIVATE)


def known(state: Path) -> list[str]:
    """Return the processes that were started and not stopped."""
    return sorted(file.stem for file in state.glob("*.pid"))


def is_running(state: Path, name: str) -> bool:
    """Return whether a process that was started is still running."""
    pid, born = _read(state, name)
    return pid != 0 and _born(pid) == born


def stop(state: Path, names: Iterable[str]) -> list[str]:
    """Stop processes and their children, with SIGTERM first; return the names of those that were running."""
    groups = {name: _group(state, name) for name in names}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in filter(None, groups.values()):
            if _members(pid):
                os.killpg(pid, number)
        end = time.monotonic() + GRACE
        while time.monotonic() < end and any(_members(pid) for pid in groups.values() if pid):
            time.sleep(0.1)
    left = [name for name, pid in groups.items() if pid and _members(pid)]
    if left:
        raise StorageError(f"{', '.join(left)} did not stop; the process ids are in '{state}'")
    for name in groups:
        remove_file(_file(state, name))
    return [name for name, pid in groups.items() if pid]


def refuse_busy(host: str, ports: Iterable[int]) -> None:
    """Raise an error if a port is already in use."""
    for port in ports:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except OSError as error:
                raise UsageError(
                    f"port {port} of {host} cannot be used: {error.strerror}; stop the process that uses it, or create "
                    "the deployment with another --address"
                ) from error


def answers(port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex(("127.0.0.1", port)) == 0


def last_line(state: Path, name: str) -> str:
    """Return the last line of a process's output."""
    try:
        lines = (state / f"{name}.log").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    plain = ("".join(c for c in COLOUR.sub("", line) if c.isprintable()).strip() for line in lines)
    said = [line for line in plain if line]
    return said[-1][:200] if said else ""


def _file(state: Path, name: str) -> Path:
    return state / f"{name}.pid"


def _read(state: Path, name: str) -> tuple[int, str]:
    try:
        pid, _, born = _file(state, name).read_text().strip().partition(" ")
        return int(pid), born
    except (OSError, ValueError):
        return 0, ""


def _group(state: Path, name: str) -> int:
    """Return the process group that was started, or 0 if its id belongs to another process by now."""
    pid, born = _read(state, name)
    if pid == 0:
        return 0
    now = _born(pid)
    # An id is not reused while a group has it: if its leader is gone, the remaining members are ours.
    return pid if now in ("", born) and _members(pid) else 0


def _members(group: int) -> list[int]:
    """Return the live processes of a session and group."""
    return [pid for pid, (state, pgrp, session, _) in _table().items() if pgrp == session == group and state != "Z"]


def _born(pid: int) -> str:
    """Return the start time of a process in clock ticks, which distinguishes it from a later one with the same id."""
    found = _table([pid]).get(pid)
    return "" if found is None or found[0] == "Z" else found[3]


def _table(pids: Iterable[int] | None = None) -> Mapping[int, tuple[str, int, int, str]]:
    """Return state, group, session and start time of each process from /proc."""
    found = {}
    for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()) if pids is None else pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = (fields[0], int(fields[2]), int(fields[3]), fields[19])
    return found
