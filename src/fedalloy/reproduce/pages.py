"""Pages about the papers: every claim with its verdict and what it rests on, every table and figure as it came out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from fedalloy.base.text import MISSING
from fedalloy.data.fetch import offline
from fedalloy.errors import DataError
from fedalloy.report.table import in_words
from fedalloy.report.tables import Table
from fedalloy.reproduce.blocks import Block, Heading, Items, Picture, Text, html
from fedalloy.reproduce.catalogue import Claim, Item, Paper
from fedalloy.reproduce.claims import VERDICTS, Judgement, digits, judge
from fedalloy.reproduce.forms import EXTRACTS, FORMS
from fedalloy.reproduce.forms.tables_layout import axes_note, is_of_a_round, setting
from fedalloy.reproduce.plan import jobs
from fedalloy.reproduce.results import Results, recorded
from fedalloy.reproduce.verdicts import Told, counted, papers_table, reached, told_of
from fedalloy.storage.results import Run

SECTION = re.compile(r"(^|[,;] )(?=\d|[IVX]+\b)")  # before the number of a section

MEANINGS = {
    "reproduced": "at the paper's own size, the difference is there and as large as the paper has it; or it is a count "
    "or a theorem, which does not depend on the size",
    "holds at reduced scale": "in a smaller setting, the 95 % intervals lie on the paper's side",
    "not shown": "an interval includes zero, or the claim's margin; or, at the paper's own size, a difference is "
    "further from the published one than the claim's tolerance",
    "contradicted": "an interval lies on the other side",
    "not tested": "runs are missing, or there are fewer than three seeds",
}


def paper_blocks(paper: Paper, folder: Path, scale: str | None = None) -> list[Block]:
    """A paper's page: its claims, then its tables and figures, at a scale or at the largest that is recorded."""
    results = _results(paper, folder, scale)
    judgements = [judge(claim, results[claim.item]) for claim in paper.claims]
    blocks: list[Block] = [
        Heading(f"{paper.name}: what holds", 1),
        Text(f"{paper.authors}: {paper.title}. {paper.venue}."),
    ]
    for title, ours in (("The paper's claims", False), ("Controls of ours", True)):
        chosen = [one for one in judgements if one.claim.ours == ours]
        if chosen:
            links = [f"#{anchor(one.claim)}" for one in chosen]
            body = [[one.claim.says, one.verdict] for one in chosen]
            blocks += [Heading(title), Table("", ["Claim", "Verdict"], body, words=2, links=links)]
            blocks += [block for one in chosen for block in claim_blocks(one, results[one.claim.item])]
    blocks.append(Heading("Tables and figures"))
    for item in paper.items:
        blocks += item_blocks(item, results[item.id])
    return blocks


def _results(paper: Paper, folder: Path, scale: str | None) -> dict[str, Results]:
    return {item.id: recorded(item, scale, folder) if scale else reached(item, folder) for item in paper.items}


def anchor(claim: Claim) -> str:
    """The place of a claim on its paper's page; an item's place is its id."""
    return f"claim-{claim.id}"


def place(section: str) -> str:
    """Where something is in a paper.

    >>> place("IV-B, Fig. 3"), place("Abstract, 6.2"), place("not in the paper"), place("Tables 1 and 3 (a)")
    ('Section IV-B, Fig. 3', 'Abstract, Section 6.2', 'Not in the paper', 'Tables 1 and 3 (a)')
    """
    found = SECTION.sub(r"\1Section ", section, count=1)
    return found[:1].upper() + found[1:]


def claim_blocks(found: Judgement, results: Results) -> list[Block]:
    """A claim: what is said, the verdict, the differences behind it, the runs, and what differs from the paper."""
    claim, item = found.claim, results.item
    theirs = place(claim.section)
    theirs = theirs if theirs.startswith("Not in") else f"In the paper, {theirs}"
    here, differs = f"Here, [{item.name or item.title}](#{item.id})", ""
    if found.scale and found.comparisons:
        of_a_round = found.round and is_of_a_round(claim.metric or item.metrics[0])
        here += f" at the scale `{found.scale}`{f', {in_words(found.round)}' if of_a_round else ''}"
        differs = item.scale(found.scale).differs
    told = [f"{theirs}: {claim.paper_says}" if claim.paper_says else f"{theirs}."]
    told += [f"{here}: {differs}" if differs else f"{here}.", *(axes_note(results) if found.comparisons else [])]
    blocks: list[Block] = [
        Heading(claim.says.rstrip("."), 3, anchor(claim)),
        Text(f"**{found.verdict.capitalize()}.** {found.reason}"),
        Items(told),
    ]
    if any(one.values for one in found.comparisons):
        blocks.append(differences_table(found))
    if claim.ambiguous:
        blocks.append(Items(claim.ambiguous, "What the paper leaves open"))
    if found.runs:
        runs = [f"`{source.name}`: `{source.digest}`" for source in found.runs]
        which = f"The {len(runs)} runs it rests on" if len(runs) > 1 else "The run it rests on"
        blocks.append(Items(runs, f"{which}, with a digest of all numbers but times and memory"))
    return blocks


def differences_table(found: Judgement) -> Table:
    """The paired differences behind a verdict: by seed, with their mean and interval, and the paper's."""
    seeds = found.seeds
    body = [
        [
            one.text,
            *(_digits(one.values.get(seed)) for seed in seeds),
            *(
                [_digits(one.interval.mean), f"{_digits(one.interval.low)} to {_digits(one.interval.high)}"]
                if one.interval is not None
                else [MISSING, MISSING]
            ),
            _digits(one.published),
        ]
        for one in found.comparisons
    ]
    headings = ["Difference", *(f"Seed {seed}" for seed in seeds), "Mean", "95 % interval", "Paper"]
    return Table("", headings, body, words=1)


def _digits(value: float | None) -> str:
    return MISSING if value is None else digits(value)


def item_blocks(item: Item, results: Results) -> list[Block]:
    """A table or figure as it came out, with how it was made and the command that makes it."""
    blocks: list[Block] = [Heading(item.heading, 3, item.id)]
    scale = item.scale(results.scale)
    about = [f"{place(item.section)}.", *([item.note] if item.note else [])]
    if scale.experiment and item.rows:
        runs = len(results.runs) + len(results.missing)
        about.append(f"{len(results.runs)} of {runs} runs at the scale `{results.scale}`. {scale.differs}".strip())
    blocks += [Text(" ".join(about)), Text(f"`{command(item, results.scale)}`")]
    if item.rows and scale.experiment and not results.runs:
        return blocks
    if item.form in EXTRACTS and item.rows and not any(_extracted(run) for run in results.runs.values()):
        return [*blocks, Text("What the figure draws was not kept of these runs; the command makes it.")]
    try:
        with offline():  # a page about a paper does not download the data of a figure that nobody asked for
            parts: Sequence[Figure | Table | None] = FORMS[item.form](results)
    except DataError:
        parts = [None]
    told = {f"Scale: {results.scale}.", *setting(results)}  # what the page has said
    for i, part in enumerate(parts):
        if isinstance(part, Table):
            title = part.title.removeprefix(item.heading).strip(" ()")
            blocks.append(replace(part, title=title, notes=[note for note in part.notes if note not in told]))
            told |= set(part.notes)
        else:
            blocks.append(Picture(part, f"{item.paper}-{item.id}{f'-{i + 1}' if i else ''}", item.heading))
    if results.runs:
        first = jobs(item, results.scale)[0]
        row = next(row.label for row in item.rows if row.method == first.method)
        where = ["--columns", first.column] if first.column else []
        words = ["--rows", row, *where, "--seeds", "1"]
        blocks.append(Text(f"To make one cell again: `{command(item, results.scale)} {shlex.join(words)} --out again`"))
    return blocks


def _extracted(run: Run) -> bool:
    return run.folder is not None and (run.folder / "extra.json").is_file()


def command(item: Item, scale: str) -> str:
    """The command that makes an item."""
    return f"fedalloy reproduce {item.paper} {item.id} --scale {scale}"


def index_blocks(
    papers: Sequence[Paper], told: Mapping[str, Told], ending: str = "md", pages: Collection[str] | None = None
) -> list[Block]:
    """The page about all papers: the count of verdicts, what they mean, and every claim.

    It leads to the pages of these papers, by default of all.
    """
    claims: list[Block] = []
    to = {paper.id: f"{paper.id}.{ending}" for paper in papers if pages is None or paper.id in pages}
    for paper in papers:
        body = [[f"{claim.says}{' *' if claim.ours else ''}", told[claim.name].verdict] for claim in paper.claims]
        links = [f"{to[paper.id]}#{anchor(claim)}" for claim in paper.claims] if paper.id in to else []
        notes = ["* A control of ours, which the paper leaves out."] if any(one.ours for one in paper.claims) else []
        title = f"[{paper.title}]({to[paper.id]})" if paper.id in to else paper.title
        claims += [Heading(paper.name), Text(f"{title}. {paper.venue}.")]
        claims.append(Table("", ["Claim", "Verdict"], body, notes, words=2, links=links))
    counts = papers_table(papers, told)
    lines = [to.get(paper.id, "") for paper in papers] + [""] * (len(counts.rows) - len(papers))
    return [
        Heading("Do the papers' claims hold?", 1),
        Text(count(papers, told)),
        replace(counts, title="", notes=counts.notes[:1], links=lines),
        Items([f"**{word.capitalize()}**: {meaning}." for word, meaning in MEANINGS.items()]),
        Text(
            "The unit is the seed: differences are taken between runs of the same seed, and intervals are Student's "
            "over at least three seeds. A claim about several differences holds if all of their intervals do; it is "
            "contradicted by any that lies on the other side, corrected for their number. Predicates and tolerances "
            "were committed before the runs that they judge."
        ),
        *claims,
    ]


def count(papers: Sequence[Paper], told: Mapping[str, Told]) -> str:
    """How many claims have each verdict, in two sentences; controls of ours are counted apart."""
    sentences = []
    for what, ours in ((f"claims of {len(papers)} papers", False), ("controls of ours", True)):
        chosen = [claim for paper in papers for claim in paper.claims if claim.ours == ours]
        counts = counted(told, chosen)
        sums = [f"{counts[word]} {_agreeing(word, counts[word])}" for word in VERDICTS if counts[word]]
        sentences.append(f"{len(chosen)} {what}: {', '.join(sums)}.")
    return " ".join(sentences)


def _agreeing(verdict: str, number: int) -> str:
    return verdict if number == 1 else verdict.replace("holds", "hold")


def paper_page(paper: Paper, folder: Path, scale: str) -> str:
    """A paper's page as HTML."""
    return html(paper_blocks(paper, folder, scale), f"{paper.name}: what holds")


def index_page(papers: Sequence[Paper], folder: Path, scale: str, pages: Collection[str]) -> str:
    """The page about all papers as HTML; it leads to the pages of some of them."""
    results = {paper.id: _results(paper, folder, scale) for paper in papers}
    told = {claim.name: told_of(claim, results[paper.id][claim.item]) for paper in papers for claim in paper.claims}
    return html(index_blocks(papers, told, "html", pages), "Do the papers' claims hold?")
