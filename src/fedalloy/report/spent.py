"""The privacy budget that runs have spent, in words; the epsilon of a simulation is always marked as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedalloy.storage.results import Run
from fedalloy.train.privacy import SECRET

WHY = (
    "The epsilon of a rehearsal protects nobody: in a simulation the noise follows from the experiment's seed, and "
    "anyone who knows the seed can subtract it. At the sites of a deployment the noise is secret."
)


def epsilon_of(record: Mapping[str, Any]) -> str:
    """The epsilon after a round, if training was private, and whether it is that of a rehearsal.

    >>> epsilon_of({"epsilon": 3.1234, "noise": "secret"}), epsilon_of({"epsilon": 3.1234}), epsilon_of({})
    ('epsilon 3.12', 'epsilon 3.12 (rehearsal)', '')
    """
    value = record.get("epsilon")
    if not isinstance(value, int | float):
        return ""
    return f"epsilon {value:.3g}{'' if record.get('noise') == SECRET else ' (rehearsal)'}"


def private(runs: Sequence[Run]) -> list[str]:
    """A sentence for each method whose clients trained privately, and one on the epsilon of a rehearsal."""
    largest: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        last = run.rounds[-1]
        if epsilon_of(last) and last["epsilon"] >= largest.get(run.label, last)["epsilon"]:
            largest[run.label] = last
    found = [f"{label}: no client has spent more than {epsilon_of(last)}." for label, last in largest.items()]
    return [*found, WHY] if any(last.get("noise") != SECRET for last in largest.values()) else found
