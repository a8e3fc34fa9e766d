"""The comparison in a few sentences: is it worth federating, for which clients, and which method is best?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fedalloy.base.text import listed, number, series_names, shortened
from fedalloy.federation.core import methods
from fedalloy.report.gains import BOUNDS, CLEARLY, CONVERGED, EQUAL, POOLED, Gains, measured, ranking, score
from fedalloy.report.trained import Doubts
from fedalloy.storage.results import STAGES
from fedalloy.storage.rows import CombinedRow, Row, agreed

NOT, WITHHELD = "Do not federate", "No verdict"  # how these verdicts begin
NAMED = 4  # more clients than that are counted, not named


def verdict(
    rows: Iterable[Row],
    *,
    names: Mapping[str, str] | None = None,
    clients: Sequence[Gains] = (),
    doubts: Doubts | None = None,
) -> str:
    """Say which method is best, by how much it beats local training, and how close it is to training on pooled data.

    Methods are ranked by AMP, or by balanced accuracy where always giving the same answer would have a high AMP.

    With the clients' gains (`gains(runs)`) it starts with whether to federate, and for how many clients that pays. A
    bound that was not run is not mentioned. Of the two kinds of local training the better one counts; without the
    converged one, the verdict says that clients may reach more alone. `names` maps each label to its registered method,
    if the two differ. With `doubts` (`doubts(runs)`) there is no verdict if the best method or local training is not
    trained, and no advice against federating if any federated method is not.

    >>> verdict([])
    'There is no measured run to compare.'
    """
    rows = list(rows)
    told = _verdict(rows, names, clients, doubts)
    # Sentences are written for classes that are not rare, where the mean of the clients' scores is AMP.
    return told.replace(" AMP", f" {agreed(row.leads for row in rows).average}")


def _verdict(
    rows: Sequence[Row], names: Mapping[str, str] | None, clients: Sequence[Gains], doubts: Doubts | None
) -> str:
    given = ranking(rows)
    # A verdict is on one selection: the first one given.
    given = [line for line in given if line.selection == given[0].selection]
    lines = [line for line in given if measured(line)]
    shown = series_names((line.label, line.view) for line in lines)
    bounds = {bound: _top([x for x in lines if role(x.label, names) == bound]) for bound in BOUNDS}
    local, pooled = _top([line for line in (bounds[CONVERGED], bounds[EQUAL]) if line is not None]), bounds[POOLED]
    rivals = [line for line in lines if role(line.label, names) not in BOUNDS and line.view not in STAGES]
    leader = _top(rivals)
    if leader is None:
        return _bounds_only(local, pooled)
    name = shown[leader.label, leader.view]
    doubts = doubts or {}
    if pooled is not None and (pooled.label, pooled.view) in doubts:
        pooled = None
    if local is None:
        others = _top([line for line in rivals if line.label != leader.label])
        others = others or _top([line for line in rivals if line is not leader])
        ahead = "" if others is None else f", {_points(leader, others)} ahead of {shown[others.label, others.view]}"
        opening = f"{name} {'reaches' if others is None else 'leads with'} {_percent(leader)} AMP{ahead}"
        alone = [line for line in given if role(line.label, names) in (CONVERGED, EQUAL)]  # without a selected round
        told = f"{opening}{_beside(leader, pooled, alone)}"
        return _withheld([leader], doubts, told) or f"{told}."
    over = CONVERGED if local is bounds[CONVERGED] else EQUAL
    own = next((one for one in clients if (one.label, one.view, one.over) == (leader.label, leader.view, over)), None)
    doubt = _doubt(leader, local, own)
    lead = 0.0 if doubt else float(number(score(leader) - score(local), 1))
    told = f"{_against_local(name, leader, local, doubt)}{_towards(leader, local, pooled)}"
    best = [_best_view(rivals, label) for label in dict.fromkeys(line.label for line in rivals)]
    judged = [leader, local] if lead > 0 else [leader, local, *best]
    withheld = _withheld(judged, doubts, told)
    if withheld:
        return withheld
    if over == CONVERGED:
        basis = f"Local training ran until it converged{_cost(name, leader, local)}"
    elif bounds[CONVERGED]:
        basis = f"Local training had the same rounds as the federated methods; {CONVERGED} did no better"
    else:
        basis = (
            "Local training had the same rounds as the federated methods, which may not be all that a client can "
            f"reach alone; add {CONVERGED} to the comparison"
        )
    return f"{told if own is None else _for_clients(own, told, lead)}. {basis}."


def _withheld(judged: Sequence[CombinedRow], doubts: Doubts, told: str) -> str:
    """Why there is no verdict, and the results so far; empty if everything that is judged is trained."""
    doubt = next((doubts[line.label, line.view] for line in judged if (line.label, line.view) in doubts), None)
    if doubt is None:
        return ""
    so_far = "" if doubt.kind == "one class" else f" So far, {_within(told)}."
    return f"{WITHHELD}: {doubt.sentence}.{so_far}"


def _cost(name: str, leader: CombinedRow, local: CombinedRow) -> str:
    """The computation of local training, compared with the leader."""
    spent, other = (line.columns["flops"].mean for line in (local, leader))
    if not spent or not other:
        return ""
    ratio = f"{spent / other:.2g}"
    compared = "as much computation as" if ratio == "1" else f"{ratio} times the computation of"
    return f", with {compared} {name}"


def _best_view(lines: Sequence[CombinedRow], label: str) -> CombinedRow:
    return max((line for line in lines if line.label == label), key=score)


def _within(told: str) -> str:
    """A sentence as part of a longer one."""
    return told.replace("Local training", "local training", 1) if told.startswith("Local training") else told


def _for_clients(own: Gains, told: str, lead: float) -> str:
    """The same, after whether to federate; `lead` is zero if it is within the noise."""
    gain, lose = own.gaining, own.losing
    clients = f"{len(own.points)} client{'s' if len(own.points) > 1 else ''}"
    clients += f" in {own.splits} splits" if own.splits > 1 else ""
    if lead > 0 and len(gain) > len(own.points) / 2:
        opening = f"Federating pays for {len(gain)} of {clients}{_clearly(own, gain)}"
        return f"{opening}: {told}; {_others(own, lose, 'lose')}"
    if lead < 0 and len(lose) > len(own.points) / 2:
        opening = f"{NOT}: local training is better for {len(lose)} of {clients}{_clearly(own, lose)}"
        return f"{opening} and {told.removeprefix('Local training ')}; {_others(own, gain, 'gain')}"
    losers = [k for k in lose if own.clear[k]]
    if lead:
        opening = "Federating pays for some clients only"
    else:
        opening = "Federating does not pay for all clients" if losers else "Federating makes no clear difference"
    parts = [f"{_do(len(side), verb)}{_clearly(own, side)}" for side, verb in ((gain, "gain"), (lose, "lose"))]
    hurt = f"; {_others(own, losers, 'lose', 'clearly ')}" if losers else ""
    return f"{opening}: {_within(told)}; of {clients}, {parts[0]} and {parts[1]}{hurt}"


def _others(own: Gains, side: Sequence[int], verb: str, how: str = "") -> str:
    """The clients with the opposite result; the one that gains or loses most comes first in `side`."""
    if not side:
        return f"no client {verb}s"
    most = f"{_named(abs(own.points[side[0]]))}{_clearly(own, side)}"
    if len(side) == 1:
        return f"{_who(own, side)} {how}{verb}s {most}"
    who = _who(own, side) if len(side) <= NAMED else f"{len(side)} clients"
    return f"{who} {how}{verb} up to {most}"


def _who(own: Gains, side: Sequence[int]) -> str:
    """These clients by their names or numbers."""
    clients = listed([shortened(own.clients[k], 60) for k in sorted(side)])
    return clients if own.named else f"client{'' if len(side) == 1 else 's'} {clients}"


def _do(count: int, verb: str) -> str:
    return f"{count or 'none'} {verb}{'' if count > 1 else 's'}"


def _clearly(own: Gains, side: Sequence[int]) -> str:
    """How many of these gains or losses exceed two standard errors, if not all do."""
    clear = int(own.clear[side].sum())
    if clear == len(side):
        return ""
    return f" ({clear} clearly)" if clear else " (not clearly)" if len(side) == 1 else " (none clearly)"


def _doubt(leader: CombinedRow, local: CombinedRow, own: Gains | None) -> str:
    lead = abs(score(leader) - score(local))
    if lead < math.hypot(*(line.columns[line.leads.first].std or 0.0 for line in (leader, local))) * 100:
        return " (less than the spread over seeds)"
    unclear = own is not None and lead < CLEARLY * own.total_error
    return " (less than two standard errors of the test)" if unclear else ""


def _against_local(name: str, leader: CombinedRow, local: CombinedRow, doubt: str) -> str:
    lead = number(score(leader) - score(local), 1)
    if lead == "0.0":
        return f"{name} leads the federated methods and equals local training ({_percent(local)} AMP)"
    if lead.startswith("-"):
        return f"Local training is {_points(local, leader)} of AMP above the best federated method, {name}{doubt}"
    return f"{name} leads local training by {_points(leader, local)} of AMP{doubt}"


def _towards(leader: CombinedRow, local: CombinedRow, pooled: CombinedRow | None) -> str:
    """How much of the gap between local training and pooled data the leader closes."""
    if pooled is None:
        return ""
    gap = score(pooled) - score(local)
    if float(number(gap, 1)) <= 0:
        return ", while pooled data is no better than local training"
    if score(leader) <= score(local):
        return f", while pooled data would be {_points(pooled, local)} above it"
    if score(leader) >= score(pooled):
        return " and reaches what pooled data would give"
    # Rounded down: a gap that is still open must not be shown as "100 %" closed.
    return f" and closes {math.floor((score(leader) - score(local)) / gap * 100)} % of the gap to pooled data"


def _beside(leader: CombinedRow, pooled: CombinedRow | None, alone: Sequence[CombinedRow]) -> str:
    if pooled is None and alone:
        return f"; local training has no round '{leader.selection}', so it is unknown whether federating pays"
    if pooled is None:
        return "; without a run of local training, it is unknown whether federating pays"
    if score(leader) >= score(pooled):
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
    return max(lines, key=score, default=None)


def _percent(line: CombinedRow) -> str:
    return f"{number(score(line), 1)} %"


def _points(one: CombinedRow, other: CombinedRow) -> str:
    return _named(score(one) - score(other))


def _named(points: float) -> str:
    text = number(points, 1)
    return f"{text} point{'' if text == '1.0' else 's'}"


def role(label: str, names: Mapping[str, str] | None = None) -> str:
    """The registered method behind a label: "local-converged", "local" and "centralised" are the bounds.

    >>> role("Local, equal rounds"), role("no federation", {"no federation": "local"})
    ('local', 'local')
    """
    by_label = {method.label: name for name, method in methods.items()}
    return (names or {}).get(label) or by_label.get(label, label.casefold())
