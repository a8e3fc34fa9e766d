"""The audit logs of sites: whose they are, what they say, and what the server has seen of them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedalloy.base.files import append_line
from fedalloy.base.text import human_bytes
from fedalloy.deploy.folder import Deployment, read_deployment
from fedalloy.errors import UsageError
from fedalloy.report.tables import Table
from fedalloy.storage.audit import HEAD, LOG, AuditLog, Entry, Verified, verify

HEADS = "audit-heads.jsonl"  # in the server's folder `state`
_HEAD = re.compile(r"[0-9]{1,15}:[0-9a-f]{64}")
_NOTED = re.compile(rf'\{{"client": ([0-9]{{1,9}}), "head": "({_HEAD.pattern})"\}}')


def site_log(folder: Path, client: int) -> AuditLog:
    """Return the log of a site, whose first line is bound to its number, its server and its experiment."""
    file = folder / "experiment.toml"
    experiment = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""
    about = {**_whose(folder, client), "server": _server(folder), "experiment": experiment}
    return AuditLog(folder / "memory" / str(client), about)


def _whose(folder: Path, client: int) -> dict[str, Any]:
    return {"client": client, "authority": authority(folder / "ca.crt")}


def authority(file: Path) -> str:
    """Return the SHA-256 fingerprint of a certificate authority, as openssl shows it; empty if there is none."""
    try:
        text = file.read_text(encoding="ascii")
        body = text.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END CERTIFICATE-----")[0]
        return hashlib.sha256(base64.b64decode("".join(body.split()))).hexdigest() if body else ""
    except (OSError, ValueError):
        return ""


def _server(folder: Path) -> str:
    script = folder / "start.sh"
    found = re.search(r"--superlink (\S+)", script.read_text(encoding="utf-8")) if script.is_file() else None
    return found[1] if found else ""


def site_folders(path: Path) -> list[Path]:
    """Return the folders of sites at a path: a site's own, or those in a deployment's folder."""
    path = Path(os.path.abspath(path))  # so that "." has a name
    if (path / "site.toml").is_file():
        return [path]
    found = sorted(file.parent for file in path.glob("sites/*/site.toml"))
    if not found:
        raise UsageError(f"'{path}' is neither a site's folder nor a deployment with sites; name one of them")
    return found


def site_names(path: Path) -> Sequence[str]:
    """Return the names of all sites by their numbers, as a deployment or a site's own experiment has them.

    They are empty if the experiment gives none, or if a site's file cannot be read: the log can be shown all the same.
    """
    if (path / "deployment.toml").is_file():
        return read_deployment(path).names
    try:
        clients = tomllib.loads((path / "experiment.toml").read_text(encoding="utf-8")).get("clients")
    except (OSError, ValueError):
        return ()
    listed = clients if isinstance(clients, list) else []
    return [str(one.get("name", "")) if isinstance(one, Mapping) else "" for one in listed]


def site_label(names: Sequence[str], folder: Path, client: int) -> str:
    """Return what a site is called: its name, or else that of its folder."""
    return (names[client] if client < len(names) else "") or folder.name


def audited(path: Path, noted: Collection[str] = ()) -> dict[tuple[Path, int], Verified]:
    """Verify the logs of all sites at a path, also against what the server has seen, if its files are there.

    `noted` are heads of a single site's log that somebody has written down.
    """
    if wrong := [head for head in noted if not _HEAD.fullmatch(head)]:
        raise UsageError(f"'{wrong[0]:.100}' is not a head; write it as `deploy audit` prints it, such as 12:0f3c...")
    folders, found = site_folders(path), {}
    if noted and len(folders) > 1:
        raise UsageError(f"'{path}' has {len(folders)} sites; name the folder of the one whose head you have noted")
    everything = _seen(path / "state" / HEADS)
    for folder in folders:
        memory = folder / "memory"
        numbers = {int(p.name) for p in memory.iterdir() if p.name.isdecimal()} if memory.is_dir() else set()
        numbers |= {number for number in everything if folder.name == f"site-{number}"}  # all of its memory may be gone
        for number in sorted(numbers):
            at, seen = memory / str(number), [*everything.get(number, ()), *noted]
            if any(os.path.lexists(at / name) for name in (LOG, HEAD)) or seen:
                found[folder, number] = verify(at, _whose(folder, number), seen)
    return found


def witnessed(deployment: Deployment, client: int, head: str) -> None:
    """Keep a head of a site's log that an answer has stated; none is ever replaced."""
    if _HEAD.fullmatch(head):
        append_line(deployment.state / HEADS, json.dumps({"client": client, "head": head}))


def _seen(file: Path) -> dict[int, list[str]]:
    """Return the heads of each site that the server has seen; what a crash left of a line is ignored."""
    found: dict[int, list[str]] = {}
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    for client, head in _NOTED.findall(text):
        found.setdefault(int(client), []).append(head)
    return found


_KINDS = {"evaluate.views": "evaluate", "query.introduce": "introduce", "query.summarise": "summarise"}


def name_of(entry: Entry) -> str:
    """Return what an entry is about: the method's action, or the kind of message."""
    kind = str(entry.get("kind", ""))
    return str(entry.get("action") or _KINDS.get(kind, kind))


def rows(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return a row for each round and action: messages, answers, refusals and bytes."""
    found: dict[tuple[Any, str], dict[str, Any]] = {}
    for entry in entries:
        if entry["event"] not in ("asked", "answered", "refused"):
            continue
        key = (entry["round"] if type(entry.get("round")) is int else "", name_of(entry))
        row = found.setdefault(key, {"round": key[0], "action": key[1], "asked": 0, "answered": 0, "refused": 0,
                                     "bytes in": 0, "bytes out": 0})  # fmt: skip
        row[entry["event"]] += 1
        row["bytes in"] += size_of(entry.get("in"))
        row["bytes out"] += max(size_of(entry.get("out")), sum(kinds_of(entry).values()))
    return list(found.values())


def size_of(sealed: Any) -> int:
    """Return the bytes of what an entry says came in or went out."""
    size = sealed.get("bytes") if isinstance(sealed, Mapping) else 0
    return size if type(size) is int else 0


def kinds_of(entry: Entry) -> dict[str, int]:
    """Return the bytes of each kind of information that an answer contained."""
    kinds = entry.get("kinds")
    return {str(k): v for k, v in kinds.items() if type(v) is int} if isinstance(kinds, Mapping) else {}


def table(title: str, found: Verified) -> Table:
    """Return a log as a table, with its refusals and its head as notes."""
    made = rows(found.entries)
    total = {key: sum(row[key] for row in made) for key in ("asked", "answered", "refused", "bytes in", "bytes out")}
    shown = [*made, {"round": "", "action": "total", **total}]
    notes = [f"refused, {name_of(e)}: {e.get('why', '')}" for e in found.entries if e["event"] == "refused"]
    verdict = f"NOT INTACT: {found.fault}" if found.fault else "intact"
    return Table(
        title,
        ("action", "round", "asked", "answered", "refused", "bytes in", "bytes out"),
        [
            (
                row["action"],
                str(row["round"]),
                *(str(row[key]) for key in ("asked", "answered", "refused")),
                *(human_bytes(row[key]) for key in ("bytes in", "bytes out")),
            )
            for row in shown
        ],
        notes=[*notes, *found.notes, verdict],
        rules=[len(made) - 1],
    )
