"""Processes that a command starts and a later one ends: known by their ids and what else was true of them."""

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
GRACE = 10.0  # seconds to end before being made to


def environment(**more: str) -> dict[str, str]:
    """This process's environment, in which Flower's commands are those of the same installation."""
    here = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([here, os.environ.get("PATH", "")]), **more}


def start(script: Path, name: str, state: Path, **more: str) -> None:
    """Start a script in a session of its own; its output goes to a log, its id to a file."""
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
    """The processes that were started and not ended."""
    return sorted(file.stem for file in state.glob("*.pid"))


def is_running(state: Path, name: str) -> bool:
    """Whether a process that was started is still there."""
    pid, born = _read(state, name)
    return pid != 0 and _born(pid) == born


def stop(state: Path, names: Iterable[str]) -> list[str]:
    """End processes with all they have started, politely first; returns those that there was something to end of."""
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
        raise StorageError(f"{', '.join(left)} did not end; their process ids are in '{state}'")
    for name in groups:
        remove_file(_file(state, name))
    return [name for name, pid in groups.items() if pid]


def refuse_busy(host: str, ports: Iterable[int]) -> None:
    """Refuse to start where a port is taken."""
    for port in ports:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except OSError as error:
                raise UsageError(
                    f"port {port} of {host} cannot be used: {error.strerror}; stop what uses it, or make the "
                    "deployment with another --address"
                ) from error


def answers(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex(("127.0.0.1", port)) == 0


def last_line(state: Path, name: str) -> str:
    """The last thing a process said."""
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
    """The process group that was started, unless its number is another's by now."""
    pid, born = _read(state, name)
    if pid == 0:
        return 0
    now = _born(pid)
    # A number is not given away while a group has it: with its leader gone, those left in it are ours.
    return pid if now in ("", born) and _members(pid) else 0


def _members(group: int) -> list[int]:
    """The living processes of a session and group."""
    return [pid for pid, (state, pgrp, session, _) in _table().items() if pgrp == session == group and state != "Z"]


def _born(pid: int) -> str:
    """When a process began, in the system's ticks, by which it is told from a later one of the same number."""
    found = _table([pid]).get(pid)
    return "" if found is None or found[0] == "Z" else found[3]


def _table(pids: Iterable[int] | None = None) -> Mapping[int, tuple[str, int, int, str]]:
    """State, group, session and beginning of each process, as Linux shows them."""
    found = {}
    for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()) if pids is None else pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = (fields[0], int(fields[2]), int(fields[3]), fields[19])
    return found
