"""Today's verdicts on the papers' claims: from the runs in a folder, or those that come with the library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalloy.base.text import MISSING
from fedalloy.report.tables import Table
from fedalloy.reproduce.catalogue import Claim, Item, Paper
from fedalloy.reproduce.claims import VERDICTS, Judgement, judge
from fedalloy.reproduce.results import Results, recorded

SHIPPED = Path(__file__).with_name("verdicts.json")  # written by tools/make_reproduction.py


@dataclass(frozen=True)
class Told:
    """A verdict in words, as lists show it."""

    verdict: str
    scale: str
    reason: str


def known(papers: Sequence[Paper], folder: Path) -> dict[str, Told]:
    """The verdict on each claim: from the runs in a folder, or, where it has none, from those of the library."""
    told = {name: Told(**values) for name, values in _shipped().items()}
    if folder.is_dir():
        for found in (judgement for paper in papers for judgement in judged(paper, folder)):
            if found.verdict != "not tested" or found.claim.name not in told:
                told[found.claim.name] = Told(found.verdict, found.scale, found.reason)
    return told


def _shipped() -> Mapping[str, Any]:
    return json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}


def judged(paper: Paper, folder: Path) -> list[Judgement]:
    """A judgement of each claim, at the largest scale at which its item is recorded."""
    results = {item.id: reached(item, folder) for item in paper.items}
    return [judge(claim, results[claim.item]) for claim in paper.claims]


def reached(item: Item, folder: Path) -> Results:
    """An item at the largest scale of which a folder holds all; else at the scale `cpu`, as far as it goes."""
    full = recorded(item, "full", folder)
    return full if full.runs and not full.missing else recorded(item, "cpu", folder)


def counted(told: Mapping[str, Told], claims: Sequence[Claim]) -> Counter[str]:
    """How many claims have each verdict."""
    return Counter(told[claim.name].verdict if claim.name in told else "not tested" for claim in claims)


def papers_table(papers: Sequence[Paper], told: Mapping[str, Told]) -> Table:
    """One line for each paper: how many of its claims have each verdict."""
    body = []
    for paper in papers:
        counts = counted(told, paper.claims)
        sizes = [f"{len(paper.items)}", f"{len(paper.claims)}"]
        body.append([paper.id, *sizes, *(f"{counts[word] or MISSING}" for word in VERDICTS)])
    every = counted(told, [claim for paper in papers for claim in paper.claims])
    sums = [f"{sum(len(getattr(paper, part)) for paper in papers)}" for part in ("items", "claims")]
    body.append(["all", *sums, *(f"{every[word] or MISSING}" for word in VERDICTS)])
    short = [word.removesuffix(" at reduced scale").capitalize() for word in VERDICTS]
    headings = ["Paper", "Items", "Claims", *short]
    note = "Items: tables and figures. Holds: at a reduced scale. Not shown: the interval includes zero."
    return Table("The papers' claims", headings, body, notes=[note], rules=(len(papers) - 1,))


def claim_lines(paper: Paper, told: Mapping[str, Told]) -> Iterator[str]:
    """Each claim of a paper in a few lines: its verdict and id, what the paper says, and why the verdict is so."""
    for claim in paper.claims:
        found = told.get(claim.name, Told("not tested", "", "No runs are recorded."))
        yield f"{found.verdict.upper()}  {claim.id} ({claim.item}{', a control of ours' if claim.ours else ''})"
        yield f"  {claim.says}"
        yield f"  {found.reason}"


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
