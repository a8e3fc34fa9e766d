"""A site's own report: one page about what it was asked, what it sent and what it gained, made without the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedalloy import __version__
from fedalloy.base.files import PRIVATE, write_atomically
from fedalloy.base.text import human_bytes, printable, shortened
from fedalloy.config.methods import make_method
from fedalloy.config.sections import Experiment
from fedalloy.deploy.audit import audited, kinds_of, name_of, rows, site_label, site_names
from fedalloy.deploy.folder import Say
from fedalloy.deploy.site import agreed_experiment
from fedalloy.deploy.site_scores import Curves, gain, last_scores, over_rounds, picture, score_table, scored
from fedalloy.engine.flower.memory import Memory
from fedalloy.errors import FedalloyError, StorageError, UsageError
from fedalloy.federation import disclosure
from fedalloy.report.gains_table import Listing
from fedalloy.report.page import written
from fedalloy.storage.audit import BEGUN, Entry, Verified
from fedalloy.train.privacy import epsilon

PAGE = "report.html"
MOST = 300  # lines of a table on the page


def write_pages(path: Path, out: str, say: Say, *, alone: bool) -> list[Path]:
    """Write the page of each site at a path: a site's own folder, or a deployment's with its sites."""
    found = audited(path)
    if not found:
        raise UsageError(f"no site in '{path}' has an audit log yet; it begins with the first message")
    several = len(found) > 1
    names = site_names(path)
    written = []
    for (folder, client), log in found.items():
        name = site_label(names, folder, client)
        own = None
        if alone:
            from fedalloy.deploy.alone import trained_alone

            say(f"{printable(name)}: training alone, until the accuracy on held-out rows stops rising")
            own = trained_alone(folder, client)
        target = folder / PAGE if not out else Path(out) / f"{folder.name}.html" if several else Path(out)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the folder '{target.parent}' cannot be made: {error.strerror}") from error
        write_atomically(target, render(folder, client, log, name, own).encode(), PRIVATE)  # as private as the log
        written.append(target)
    return written


def render(folder: Path, client: int, log: Verified, name: str, alone: Mapping[str, Any] | None = None) -> str:
    """Return a site's page as text; `alone` has the scores of a model that it has trained by itself."""
    try:
        agreed, unread = agreed_experiment(folder), ""
    except FedalloyError as error:
        agreed, unread = None, str(error)
    entries = log.entries
    curves = over_rounds(entries)
    return written(
        "fedalloy.deploy",
        "site_report.html.j2",
        title=f"{shortened(name, 100)}: what this site was asked, sent and gained",
        verdict=_verdict(entries, curves, alone),
        facts=_facts(client, log, agreed),
        warnings=[
            *(
                [f"The audit log is not intact: {log.fault}. What follows is what precedes the fault."]
                * bool(log.fault)
            ),
            *([f"The experiment of this site cannot be read: {unread}"] * bool(unread)),
        ],
        notes=log.notes,
        drawing=picture(curves, alone) if curves else None,
        scores=score_table(curves, MOST),
        last=scored(last_scores(curves)),
        gain=gain(last_scores(curves), alone) if alone else None,
        unscored=disclosure.OFF if agreed is not None and agreed.privacy is not None else "no round was evaluated yet",
        rounds=_rounds(entries),
        refused=_refused(entries),
        left=_left(entries, agreed),
        kinds=_kinds(entries),
        spent=_spent(folder, client, agreed),
        head=log.head,
        folder=folder.name,
        version=__version__,
    )


def _verdict(entries: Sequence[Entry], curves: Curves, alone: Mapping[str, Any] | None) -> str:
    made = rows(list(entries))
    asked, refused = (sum(row[key] for row in made) for key in ("asked", "refused"))
    rounds = {row["round"] for row in made if row["round"] != ""}
    out = sum(row["bytes out"] for row in made)
    told = f"This site was asked {asked} times in {len(rounds)} rounds, refused {refused}, and sent {human_bytes(out)}."
    last = last_scores(curves)
    if alone is None or not last:
        return told
    found = gain(last, alone)
    return f"{told} {found.note}" if found.body else told


def _facts(client: int, log: Verified, agreed: Experiment | None) -> list[tuple[str, str]]:
    first = log.entries[0] if log.entries and log.entries[0]["event"] == BEGUN else {}
    times = [entry["time"] for entry in log.entries]
    return [
        ("Client", str(client)),
        ("Audit log", f"NOT INTACT: {log.fault}" if log.fault else f"intact, {len(log.entries)} lines"),
        ("From", times[0][:19].replace("T", " ") + " UTC" if times else "unknown"),
        ("To", times[-1][:19].replace("T", " ") + " UTC" if times else "unknown"),
        ("Method", "unknown" if agreed is None else make_method(agreed).label),
        ("Server", str(first.get("server") or "unknown")),
        ("Its authority, SHA-256", str(first.get("authority") or "none")),
        ("Experiment, SHA-256", str(first.get("experiment") or "unknown")),
    ]


def _rounds(entries: Sequence[Entry]) -> Listing:
    sent: dict[tuple[Any, str], dict[str, int]] = {}
    for entry in entries:
        into = sent.setdefault((entry.get("round", ""), name_of(entry)) if _plain(entry) else ("", name_of(entry)), {})
        for kind, size in kinds_of(entry).items() if entry["event"] == "answered" else ():
            into[kind] = into.get(kind, 0) + size
    made = rows(list(entries))
    keys = ("asked", "answered", "refused")
    total = [str(sum(row[key] for row in made)) for key in keys]
    total += [human_bytes(sum(row[key] for row in made)) for key in ("bytes in", "bytes out")]
    body = [
        [
            str(row["round"]) or "before",
            shortened(row["action"], 40),
            ", ".join(
                f"{kind} {human_bytes(size)}" for kind, size in sent.get((row["round"], row["action"]), {}).items()
            )
            or "nothing",
            *(str(row[key]) for key in keys),
            *(human_bytes(row[key]) for key in ("bytes in", "bytes out")),
        ]
        for row in made[-MOST:]
    ]
    note = (
        "Sent: tensors and numbers, by kind. Bytes in and out: with names and shapes; of an introduction, its header. "
        "An answer is counted when it is written to the log, just before it leaves."
    )
    if len(made) > MOST:
        note += f" The first {len(made) - MOST} lines are left out; `fedalloy deploy audit` shows all."
    headings = ("Round", "Asked to", "Sent", "Asked", "Answered", "Refused", "Bytes in", "Bytes out")
    return Listing("What was asked and sent", headings, [*body, ["all", "", "", *total]], words=3, note=note)


def _plain(entry: Entry) -> bool:
    return type(entry.get("round")) is int


def _refused(entries: Sequence[Entry]) -> Listing:
    found = [entry for entry in entries if entry["event"] == "refused"]
    body = [
        [
            entry["time"][:19].replace("T", " "),
            str(entry["round"]) if _plain(entry) else "before",
            shortened(name_of(entry), 40),
            shortened(str(entry.get("why", "")), 300),
        ]
        for entry in found[-MOST:]
    ]
    note = f"The last {MOST} of {len(found)}." if len(found) > MOST else ""
    return Listing("Refused", ("Time (UTC)", "Round", "Asked to", "Why"), body, words=4, note=note)


def _left(entries: Sequence[Entry], agreed: Experiment | None) -> Listing:
    """Return what kinds of information left the site, from the log, the method's card and what all clients send."""
    answers = [entry for entry in entries if entry["event"] == "answered"]
    method = None if agreed is None else make_method(agreed)
    without = {"counts"} if method is not None and not method.tells_counts else set()
    without |= {"ledger"} if agreed is not None and agreed.privacy is None else set()
    replied = "unknown: its experiment cannot be read" if method is None else method.leaves()
    body = []
    for action in dict.fromkeys(map(name_of, answers)):
        some = [entry for entry in answers if name_of(entry) == action]
        sent = {
            "summarise": disclosure.STATISTICS,
            "introduce": disclosure.INTRODUCTION,
            "evaluate": _evaluation(some),
        }.get(action, disclosure.REPLY)
        words = ", ".join(text for key, text in sent.items() if key not in without)
        if sent is disclosure.REPLY:
            words = f"{replied}; with it: {words}"
        size = sum(sum(kinds_of(entry).values()) for entry in some)
        body.append([shortened(action, 40), words, str(len(some)), human_bytes(size)])
    note = "Every answer also states the head of the audit log, which reveals nothing about the log's content."
    headings = ("Answer to", "What it contained", "Answers", "Bytes")
    return Listing("What left this site", headings, body, words=2, note=note)


def _evaluation(answers: Sequence[Entry]) -> Mapping[str, str]:
    scores = [one for entry in answers for one in _tables(entry.get("scores")).values()]
    if any("r2" in one for one in scores):
        return disclosure.NUMBERS
    return disclosure.LABELS if scores and not any("balanced" in one for one in scores) else disclosure.EVALUATION


def _tables(value: Any) -> dict[str, Mapping[str, Any]]:
    return {str(k): v for k, v in value.items() if isinstance(v, Mapping)} if isinstance(value, Mapping) else {}


def _kinds(entries: Sequence[Entry]) -> Listing:
    total: dict[str, list[int]] = {}
    for entry in entries:
        for kind, size in kinds_of(entry).items() if entry["event"] == "answered" else ():
            total.setdefault(kind, []).append(size)
    body = [[shortened(kind, 40), str(len(sizes)), human_bytes(sum(sizes))] for kind, sizes in sorted(total.items())]
    return Listing("Bytes by kind", ("Kind", "Answers", "Bytes"), body, words=1, note="")


def _spent(folder: Path, client: int, agreed: Experiment | None) -> str:
    """Return what the site's own ledger says, in a sentence; empty without [privacy]."""
    if agreed is None or agreed.privacy is None:
        return ""
    try:
        spent = Memory(folder / "memory" / str(client)).spent()
        steps = sum(count for by in spent.values() for count in by.values())
        value, delta = epsilon(spent, agreed.privacy.delta), agreed.privacy.delta
    except FedalloyError as error:
        return f"What was spent cannot be told: {error}."
    limit = "without a budget" if agreed.privacy.budget is None else f"of a budget of {agreed.privacy.budget:g}"
    shown = f"{value:.3g}" if math.isfinite(value) else "infinite"
    return (
        f"This site's ledger has {steps:,} private steps: epsilon {shown} at delta {delta:g}, {limit}. Epsilons of "
        "other deployments on the same rows add to it."
    )


__all__ = ["PAGE", "render", "write_pages"]
