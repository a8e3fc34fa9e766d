"""Pages about the papers: every claim with its verdict and what it rests on, every table and figure as it came out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedalloy.base.text import MISSING, number
from fedalloy.data.fetch import offline
from fedalloy.errors import DataError
from fedalloy.report.tables import Table
from fedalloy.reproduce.blocks import Block, Heading, Items, Picture, Text, html
from fedalloy.reproduce.catalogue import Item, Paper
from fedalloy.reproduce.claims import VERDICTS, Judgement, judge
from fedalloy.reproduce.forms import FORMS
from fedalloy.reproduce.plan import jobs
from fedalloy.reproduce.results import Results, recorded
from fedalloy.reproduce.verdicts import Told, counted, papers_table, reached

MEANINGS = {
    "reproduced": "at the paper's own size, the difference is there and as large as the paper has it; or it is a count "
    "or a theorem, which does not depend on the size",
    "holds at reduced scale": "in a smaller setting the 95 % interval lies on the paper's side",
    "not shown": "the interval includes zero",
    "contradicted": "the interval lies on the other side",
    "not tested": "runs are missing, or there are fewer than three seeds",
}


def paper_blocks(paper: Paper, folder: Path, scale: str | None = None) -> list[Block]:
    """A paper's page: its claims, then its tables and figures, at a scale or at the largest that is recorded."""
    results = {item.id: recorded(item, scale, folder) if scale else reached(item, folder) for item in paper.items}
    judgements = [judge(claim, results[claim.item]) for claim in paper.claims]
    blocks: list[Block] = [
        Heading(f"{paper.name}: what holds", 1),
        Text(f"{paper.authors}: {paper.title}. {paper.venue}."),
    ]
    for title, ours in (("The paper's claims", False), ("Controls of ours", True)):
        chosen = [one for one in judgements if one.claim.ours == ours]
        if chosen:
            blocks += [Heading(title), verdict_table(chosen)]
            blocks += [block for one in chosen for block in claim_blocks(one, results[one.claim.item])]
    blocks.append(Heading("Tables and figures"))
    for item in paper.items:
        blocks += item_blocks(item, results[item.id])
    return blocks


def claim_blocks(found: Judgement, results: Results) -> list[Block]:
    """A claim: what is said, the verdict, the differences behind it, the runs, and what differs from the paper."""
    claim, item = found.claim, results.item
    scale = item.scale(found.scale) if found.scale else None
    told = [f"Section {claim.section}; from [{item.name or item.title}](#{item.id})."]
    told += [f"In the paper: {claim.paper_says}"] if claim.paper_says else []
    told += [f"Here: {scale.differs}"] if scale is not None and scale.differs and found.comparisons else []
    told += [f"Round: {found.round}."] if found.round and found.comparisons else []
    blocks: list[Block] = [
        Heading(f"{claim.says.rstrip('.')}: {found.verdict}", 3, claim.id),
        Text(found.reason),
        Items(told),
    ]
    if any(one.values for one in found.comparisons):
        blocks.append(differences_table(found))
    if claim.ambiguous:
        blocks.append(Items(claim.ambiguous, "What the paper leaves open"))
    if found.runs:
        runs = [f"`{source.name}`: `{source.digest}`" for source in found.runs]
        which = f"The {len(runs)} runs it rests on, with a digest of all their numbers but times and memory"
        blocks.append(Items(runs, which))
    return blocks


def differences_table(found: Judgement) -> Table:
    """The paired differences behind a verdict: by seed, with their mean and interval, and the paper's."""
    seeds = found.seeds
    body = [
        [
            one.text,
            *(number(one.values.get(seed), 2) for seed in seeds),
            *(
                [number(one.interval.mean, 2), f"{number(one.interval.low, 2)} to {number(one.interval.high, 2)}"]
                if one.interval is not None
                else [MISSING, MISSING]
            ),
            number(one.published, 2),
        ]
        for one in found.comparisons
    ]
    headings = ["Difference", *(f"Seed {seed}" for seed in seeds), "Mean", "95 % interval", "Paper"]
    return Table("", headings, body, words=1)


def verdict_table(judgements: Sequence[Judgement]) -> Table:
    """One line for each claim: what is said, and the verdict."""
    body = [[one.claim.id, one.claim.says, one.verdict, one.reason] for one in judgements]
    return Table("", ["Id", "Claim", "Verdict", "Why"], body, words=4)


def item_blocks(item: Item, results: Results) -> list[Block]:
    """A table or figure as it came out, with how it was made and the command that makes it."""
    blocks: list[Block] = [Heading(item.heading, 3, item.id)]
    scale = item.scale(results.scale)
    about = [f"Section {item.section}.", *([item.note] if item.note else [])]
    if scale.experiment and item.rows:
        runs = len(results.runs) + len(results.missing)
        about.append(f"{len(results.runs)} of {runs} runs at the scale `{results.scale}`. {scale.differs}".strip())
    blocks += [Text(" ".join(about)), Text(f"`{command(item, results.scale)}`")]
    if item.rows and scale.experiment and not results.runs:
        return blocks
    try:
        with offline():  # a page about a paper does not download the data of a figure that nobody asked for
            parts: Sequence[Figure | Table | None] = FORMS[item.form](results)
    except DataError:
        parts = [None]
    for i, part in enumerate(parts):
        if isinstance(part, Table):
            blocks.append(part)
        else:
            blocks.append(Picture(part, f"{item.paper}-{item.id}{f'-{i + 1}' if i else ''}", item.heading))
    if results.runs:
        first = jobs(item, results.scale)[0]
        row = next(row.label for row in item.rows if row.method == first.method)
        where = ["--columns", first.column] if first.column else []
        words = ["--rows", row, *where, "--seeds", "1"]
        blocks.append(Text(f"One cell again: `{command(item, results.scale)} {shlex.join(words)} --out again`"))
    return blocks


def command(item: Item, scale: str) -> str:
    """The command that makes an item."""
    return f"fedalloy reproduce {item.paper} {item.id} --scale {scale}"


def index_blocks(papers: Sequence[Paper], folder: Path, scale: str | None = None, ending: str = "md") -> list[Block]:
    """The page about all papers: the count of verdicts, what they mean, and every claim."""
    told: dict[str, Told] = {}
    lines = []
    for paper in papers:
        results = {item.id: recorded(item, scale, folder) if scale else reached(item, folder) for item in paper.items}
        for claim in paper.claims:
            found = judge(claim, results[claim.item])
            told[claim.name] = Told(found.verdict, found.scale, found.reason)
            lines.append([paper.name, claim.id, claim.says, found.verdict, "ours" if claim.ours else "paper"])
    return [
        Heading("Do the papers' claims hold?", 1),
        Text(count(papers, told)),
        papers_table(papers, told),
        Items([f"{word}: {meaning}." for word, meaning in MEANINGS.items()]),
        Text(
            "The unit is the seed: differences are taken between runs of the same seed, and intervals are Student's "
            "over at least three seeds. A claim about several differences holds if all of their intervals do; it is "
            "contradicted by any that lies on the other side, corrected for their number. Predicates and tolerances "
            "were committed before the runs that they judge."
        ),
        Table("All claims", ["Paper", "Id", "Claim", "Verdict", "Whose"], lines, words=5),
        Items([f"[{paper.name}]({paper.id}.{ending}): {paper.title}" for paper in papers]),
    ]


def count(papers: Sequence[Paper], told: Mapping[str, Told]) -> str:
    """How many claims have each verdict, in a sentence; controls of ours are counted apart."""
    sentences = []
    for what, ours in (("claims", False), ("controls of ours", True)):
        chosen = [claim for paper in papers for claim in paper.claims if claim.ours == ours]
        counts = counted(told, chosen)
        sums = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])
        sentences.append(f"{len(chosen)} {what}: {sums}.")
    return f"Of {len(papers)} papers, {' '.join(sentences)}"


def paper_page(paper: Paper, folder: Path, scale: str) -> str:
    """A paper's page as HTML."""
    return html(paper_blocks(paper, folder, scale), f"{paper.name}: what holds")


def index_page(papers: Sequence[Paper], folder: Path, scale: str) -> str:
    """The page about all papers as HTML."""
    return html(index_blocks(papers, folder, scale, "html"), "Do the papers' claims hold?")
