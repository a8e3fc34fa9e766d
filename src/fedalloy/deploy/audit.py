"""The audit logs of sites: whose they are, what they say, and what the server has seen of them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedalloy.base.files import PRIVATE, as_json, write_atomically
from fedalloy.base.text import human_bytes
from fedalloy.deploy.folder import Deployment
from fedalloy.errors import UsageError
from fedalloy.report.tables import Table
from fedalloy.storage.audit import HEAD, LOG, AuditLog, Entry, Verified, verify

_HEAD = re.compile(r"\d{1,15}:[0-9a-f]{64}")


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
    if (path / "site.toml").is_file():
        return [path]
    found = sorted(file.parent for file in path.glob("sites/*/site.toml"))
    if not found:
        raise UsageError(f"'{path}' is neither a site's folder nor a deployment with sites; name one of them")
    return found


def audited(path: Path) -> dict[tuple[Path, int], Verified]:
    """Verify the logs of all sites at a path, also against what the server has seen, if its files are there."""
    found = {}
    for folder in site_folders(path):
        memory = folder / "memory"
        numbers = {int(p.name) for p in memory.iterdir() if p.name.isdecimal()} if memory.is_dir() else set()
        seen = _seen(path / "state" / "audit-heads.json")
        numbers |= {int(key) for key in seen if folder.name == f"site-{key}"}  # the whole memory may have been removed
        for number in sorted(numbers):
            at = memory / str(number)
            if (at / LOG).exists() or (at / HEAD).exists() or str(number) in seen:
                found[folder, number] = verify(at, _whose(folder, number), seen.get(str(number), ""))
    return found


def witnessed(deployment: Deployment, client: int, head: str) -> None:
    """Keep the newest head of a site's log that an answer has stated."""
    if _HEAD.fullmatch(head):
        file = deployment.state / "audit-heads.json"
        write_atomically(file, as_json({**_seen(file), str(client): head}), PRIVATE)


def _seen(file: Path) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def name_of(entry: Entry) -> str:
    """Return what an entry is about: the method's action, or the kind of message."""
    return str(entry.get("action") or {"evaluate.views": "evaluate", "query.introduce": "introduce"}.get(
        entry.get("kind", ""), entry.get("kind", "")))  # fmt: skip


def rows(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return a row for each round and action: messages, answers, refusals and bytes."""
    found: dict[tuple[Any, str], dict[str, Any]] = {}
    for entry in entries:
        if entry["event"] not in ("asked", "answered", "refused"):
            continue
        key = (entry.get("round", ""), name_of(entry))
        row = found.setdefault(key, {"round": key[0], "action": key[1], "asked": 0, "answered": 0, "refused": 0,
                                     "bytes in": 0, "bytes out": 0})  # fmt: skip
        row[entry["event"]] += 1
        row["bytes in"] += _size(entry.get("in"))
        row["bytes out"] += _size(entry.get("out"))
    return list(found.values())


def _size(sealed: Any) -> int:
    return int(sealed.get("bytes", 0)) if isinstance(sealed, Mapping) else 0


def table(title: str, found: Verified) -> Table:
    """Return a log as a table, with its refusals and its head as notes."""
    made = rows(found.entries)
    total = {key: sum(row[key] for row in made) for key in ("asked", "answered", "refused", "bytes in", "bytes out")}
    shown = [*made, {"round": "", "action": "total", **total}]
    notes = [f"refused, {name_of(e)}: {e['why']}" for e in found.entries if e["event"] == "refused"]
    verdict = f"NOT INTACT: {found.fault}" if found.fault else f"intact; head {found.head}"
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
