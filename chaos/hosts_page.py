"""The section of `docs/reliability.md` about a deployment between hosts of their own, from `results/hosts.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "hosts.json"


def between_hosts(file: Path = RESULTS) -> Iterator[str]:
    """Yield the section, or nothing if there are no results."""
    if not file.exists():
        return
    found: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    yield from [
        "## A deployment between hosts of their own",
        "",
        "A server and three sites in network namespaces with addresses of their own; each site has its folder and",
        "nothing else. `make chaos-hosts` repeats it and writes [results/hosts.json](../results/hosts.json).",
        "",
        "| what happens | rounds | deadline | missed | ended | time |",
        "|---|---|---|---|---|---|",
    ]
    yield from (_row(row) for row in found.values())
    yield ""
    if any(row.get("link") == "emulated" for row in found.values()):
        yield from [
            "The kernel had no netem: a program delayed, limited and dropped the frames of the slow link between two",
            "TAP devices.",
        ]
    yield from [_about(found), ""]


def _row(row: Mapping[str, Any]) -> str:
    deadline = f"{row['deadline']:g} s" if "deadline" in row else ""
    missed = "; ".join(f"{site}: {', '.join(map(str, rounds))}" for site, rounds in row.get("missed", {}).items())
    ended = f"{row['checks']} requests and scans: {row['ended']}" if "checks" in row else row["ended"]
    cells = (row["what"], str(row.get("rounds", "")), deadline, missed or "none", ended, f"{row['seconds']:.0f} s")
    return f"| {' | '.join(cells)} |"


def _about(found: Mapping[str, Mapping[str, Any]]) -> str:
    runs = dict.fromkeys(
        f"`{row['command']}`, {row['date']}, {row['machine']['cores']} cores, {row['machine']['system']}, "
        f"Python {row['machine']['python']}, Flower {row['machine']['flwr']}"
        for row in found.values()
    )
    return f"Made by {'; '.join(runs)}."
