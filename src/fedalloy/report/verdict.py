"""The comparison in one sentence: which method leads, and is it worth federating?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fedalloy.report.format import number, role, series_names
from fedalloy.results import CombinedRow, Row, combine


def verdict(rows: Iterable[Row], *, names: Mapping[str, str] | None = None) -> str:
    """Say which method leads, by how much over local training, and how near it comes to training on pooled data.

    Where a bound was not run the sentence does without it. `names` gives the registered method of each label, where
    the two differ.

    >>> verdict([])
    'There is no measured run to compare.'
    """
    lines = combine(rows)
    # One sentence cannot hold several selections; the first one given is the one meant.
    lines = [line for line in lines if line.selection == lines[0].selection and line.columns["amp"].mean is not None]
    shown = series_names((line.label, line.view) for line in lines)
    local, pooled = (_top([x for x in lines if role(x.label, names) == bound]) for bound in ("local", "centralised"))
    rivals = [line for line in lines if role(line.label, names) not in ("local", "centralised")]
    leader = _top(rivals)
    if leader is None:
        return _bounds_only(local, pooled)
    name = shown[leader.label, leader.view]
    if local is None:
        others = _top([line for line in rivals if line is not leader])
        ahead = "" if others is None else f", {_points(leader, others)} ahead of {shown[others.label, others.view]}"
        opening = f"{name} {'reaches' if others is None else 'leads with'} {_percent(leader)} AMP{ahead}"
        return f"{opening}{_beside(leader, pooled)}."
    return f"{_against_local(name, leader, local)}{_towards(leader, local, pooled)}."


def _against_local(name: str, leader: CombinedRow, local: CombinedRow) -> str:
    lead = number(_amp(leader) - _amp(local), 1)
    if lead == "0.0":
        return f"{name} leads the federated methods and equals local training ({_percent(local)} AMP)"
    spread = math.hypot(*(line.columns["amp"].std or 0.0 for line in (leader, local))) * 100
    doubt = " (less than the spread over seeds)" if abs(_amp(leader) - _amp(local)) < spread else ""
    if lead.startswith("-"):
        return f"Local training stays {_points(local, leader)} of AMP above the best federated method, {name}{doubt}"
    return f"{name} leads local training by {_points(leader, local)} of AMP{doubt}"


def _towards(leader: CombinedRow, local: CombinedRow, pooled: CombinedRow | None) -> str:
    """How much of the way from local training to pooled data the leader goes."""
    if pooled is None:
        return ""
    gap = _amp(pooled) - _amp(local)
    if float(number(gap, 1)) <= 0:
        return ", while pooled data does no better than local training"
    if _amp(leader) <= _amp(local):
        return f", while pooled data would gain {_points(pooled, local)} on it"
    if _amp(leader) >= _amp(pooled):
        return " and reaches what pooled data would give"
    # Rounded down: "100 %" is not for a gap that is still open.
    return f" and closes {math.floor((_amp(leader) - _amp(local)) / gap * 100)} % of the gap to pooled data"


def _beside(leader: CombinedRow, pooled: CombinedRow | None) -> str:
    if pooled is None:
        return "; without local training beside it, nothing says whether federating pays"
    if _amp(leader) >= _amp(pooled):
        return ", and reaches what pooled data would give"
    return f", {_points(pooled, leader)} below pooled data"


def _bounds_only(local: CombinedRow | None, pooled: CombinedRow | None) -> str:
    if local and pooled:
        gap = f"local training reaches {_percent(local)} AMP, pooled data {_percent(pooled)}"
        return f"No federated method was run; {gap}."
    if local:
        return f"Only local training was run; it reaches {_percent(local)} AMP."
    if pooled:
        return f"Only training on pooled data was run; it reaches {_percent(pooled)} AMP."
    return "There is no measured run to compare."


def _top(lines: list[CombinedRow]) -> CombinedRow | None:
    return max(lines, key=_amp, default=None)


def _amp(line: CombinedRow) -> float:
    """AMP in percent; lines without one were left out before."""
    return (line.columns["amp"].mean or 0.0) * 100


def _percent(line: CombinedRow) -> str:
    return f"{number(_amp(line), 1)} %"


def _points(one: CombinedRow, other: CombinedRow) -> str:
    points = number(_amp(one) - _amp(other), 1)
    return f"{points} point{'' if points == '1.0' else 's'}"
