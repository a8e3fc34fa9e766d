"""What the server's part of a run reports, line by line in a file that the commands follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedalloy.base.files import append_line
from fedalloy.deploy.folder import Deployment


def events_file(deployment: Deployment, run: int | str) -> Path:
    """Return the file with the events of one submission."""
    return deployment.state / f"run-{run}.jsonl"


def tell(file: Path, kind: str, text: str = "", **more: Any) -> None:
    """Append an event: `said`, `ended` or `failed`."""
    append_line(file, json.dumps({"kind": kind, "text": text, **more}))


def events(file: Path, skip: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events of a file after the first `skip`; an unfinished line is left for the next call."""
    if not file.exists():
        return
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    yield from (json.loads(line) for line in lines[skip:])
