"""Today's verdicts on the papers' claims: from the runs in a folder, or those that come with the library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedalloy.base.text import MISSING
from fedalloy.report.tables import Table
from fedalloy.reproduce.catalogue import Claim, Item, Paper
from fedalloy.reproduce.claims import VERDICTS, Judgement, judge
from fedalloy.reproduce.plan import each_job
from fedalloy.reproduce.results import Results, finished, recorded

SHIPPED = Path(__file__).with_name("verdicts.json")  # written by tools/make_reproduction.py


@dataclass(frozen=True)
class Told:
    """A verdict in words, as lists show it."""

    verdict: str
    scale: str
    reason: str


def known(papers: Sequence[Paper], folder: Path) -> tuple[dict[str, Told], bool]:
    """The verdict on each claim: from the runs in a folder, or, where it has none, the one that comes with the library.

    Also whether any verdict but "not tested" is the library's and rests on runs that are not in the folder.
    """
    others_told = shipped()
    told: dict[str, Told] = {}
    for paper in papers if folder.is_dir() else ():
        results = {item.id: reached(item, folder) for item in paper.items}
        for claim in paper.claims:
            if results[claim.item].runs or claim.name not in others_told:
                told[claim.name] = told_of(claim, results[claim.item])
    here = {name for name, found in told.items() if found.verdict != "not tested" or name not in others_told}
    names = {claim.name for paper in papers for claim in paper.claims} - here
    come = [others_told[name] for name in names & others_told.keys()]
    others = any(verdict.scale and verdict.verdict != "not tested" for verdict in come)
    return {name: told[name] if name in here else others_told[name] for name in here | others_told.keys()}, others


def told_of(claim: Claim, results: Results) -> Told:
    """The verdict on a claim in words; quick if there are no runs to judge it by."""
    if not results.runs and claim.kind != "computed":
        return Told("not tested", results.scale if results.columns else "", "No runs are recorded.")
    found = judge(claim, results)
    return Told(found.verdict, found.scale, found.reason)


def shipped() -> dict[str, Told]:
    """The verdicts that come with the library."""
    values = json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}
    return {name: Told(**parts) for name, parts in values.items()}


def judged(paper: Paper, folder: Path) -> list[Judgement]:
    """A judgement of each claim, at the largest scale at which its item is recorded."""
    results = {item.id: reached(item, folder) for item in paper.items}
    return [judge(claim, results[claim.item]) for claim in paper.claims]


def reached(item: Item, folder: Path) -> Results:
    """An item at the largest scale of which a folder holds all; else at the scale `cpu`, as far as it goes."""
    first = None
    for first in each_job(item, "full"):
        if finished(folder / first.folder, first) is None:
            return recorded(item, "cpu", folder)
    return recorded(item, "cpu" if first is None else "full", folder)


def counted(told: Mapping[str, Told], claims: Sequence[Claim]) -> Counter[str]:
    """How many claims have each verdict."""
    return Counter(told[claim.name].verdict if claim.name in told else "not tested" for claim in claims)


def papers_table(papers: Sequence[Paper], told: Mapping[str, Told]) -> Table:
    """One line for each paper: how many of its claims have each verdict; the controls of ours are counted apart."""
    every = [claim for paper in papers for claim in paper.claims]
    lines = [(paper.id, f"{len(paper.items)}", [claim for claim in paper.claims if not claim.ours]) for paper in papers]
    if len(papers) > 1:
        items = sum(len(paper.items) for paper in papers)
        lines.append(("all", f"{items}", [claim for claim in every if not claim.ours]))
    lines.append(("our controls", MISSING, [claim for claim in every if claim.ours]))
    body = [[name, items, f"{len(chosen)}", *_counts(told, chosen)] for name, items, chosen in lines if chosen]
    headings = ["Paper", "Items", "Claims", "Reproduced", "Holds", "Not\nshown", "Contradicted", "Not\ntested"]
    notes = [
        "Items: tables and figures. Our controls: claims that the papers leave out.",
        "Holds: at a reduced scale. Not shown: an interval includes zero.",
    ]
    rules = (len(papers) - 1, len(papers)) if len(papers) > 1 else (0,)
    return Table("The papers' claims", headings, body, notes, rules=rules)


def _counts(told: Mapping[str, Told], claims: Sequence[Claim]) -> list[str]:
    counts = counted(told, claims)
    return [f"{counts[word] or MISSING}" for word in VERDICTS]


def told_or_not_tested(claim: Claim, told: Mapping[str, Told]) -> Told:
    """The verdict on a claim; one that is not among them has not been tested."""
    return told.get(claim.name, Told("not tested", "", "No runs are recorded."))


def claim_lines(claims: Sequence[Claim], told: Mapping[str, Told]) -> Iterator[tuple[str, str, str]]:
    """Each claim in three lines: its verdict and id, what the paper says, and why the verdict is so."""
    for claim in claims:
        found = told_or_not_tested(claim, told)
        whose = ", a control of ours" if claim.ours else ""
        yield f"{found.verdict.upper()}  {claim.id} ({claim.item}{whose})", claim.says, found.reason


def items_table(paper: Paper, folder: Path) -> Table:
    """One line for each table and figure of a paper: what it shows, and how many of its runs are there."""
    body = []
    for item in paper.items:
        cells = []
        for scale in ("full", "cpu"):
            found = recorded(item, scale, folder)
            runs = len(found.runs) + len(found.missing)
            cells.append(f"{len(found.runs)} of {runs}" if runs else "no runs")
        body.append([item.id, item.title, *cells])
    return Table(f"{paper.name}: tables and figures", ["Item", "What it shows", "Full", "CPU"], body, words=2)
