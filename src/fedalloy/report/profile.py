"""How a run spent its time."""

from __future__ import annotations

from rich import box
from rich.table import Table

from fedalloy.base.text import MISSING, human_seconds
from fedalloy.storage.results import Run

PHASES = {
    "client": "clients train",
    "idle": "  of which a worker waits for another",
    "server": "server combines",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "total": "all",
}


def phases(run: Run) -> dict[str, float]:
    """The seconds of each phase over the whole run."""
    return {phase: run.total("seconds", phase) or 0.0 for phase in PHASES}


def profile_table(run: Run) -> Table:
    """The time of each phase: in total, per round, and its share."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("Phase", "Time", "Per round", "Share"):
        table.add_column(heading, justify="left" if heading == "Phase" else "right")
    found = phases(run)
    whole = found["total"]
    for phase, name in PHASES.items():
        spent = found[phase]
        share = f"{spent / whole:.0%}" if whole else MISSING
        table.add_row(name, human_seconds(spent), human_seconds(spent / max(1, len(run.rounds))), share)
    return table
