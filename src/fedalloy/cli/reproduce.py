"""The command `reproduce`: what the papers report and claim, and what comes out here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedalloy.base.registry import suggest
from fedalloy.base.text import listed
from fedalloy.cli.answers import Answer, answers
from fedalloy.cli.terminal import as_typed, chosen_seeds, resumable, say, screen
from fedalloy.errors import DataError, UsageError

if TYPE_CHECKING:
    from fedalloy.reproduce.catalogue import Claim, Item, Paper
    from fedalloy.reproduce.plan import Job
    from fedalloy.reproduce.verdicts import Told

SCALES = ("full", "cpu", "smoke")  # as in fedalloy.reproduce.catalogue, which is slow to import


@click.command("reproduce")
@click.argument("paper", metavar="[PAPER]", required=False)
@click.argument("names", metavar="[ITEM]...", nargs=-1)
@click.option(
    "--scale", type=click.Choice(SCALES), help="full: as in the paper; cpu: up to hours an item; smoke: seconds."
)
@click.option("--rows", metavar="A;B;...", help="Only these rows, separated by semicolons.")
@click.option("--columns", metavar="A;B;...", help="Only these columns, separated by semicolons.")
@click.option(
    "--seeds", "-s", metavar="N", help="A number of seeds (3), or a list of seeds (0,1,7). Default: those of the item."
)
@click.option("--out", "-o", default="results", show_default=True, metavar="FOLDER", help="Where runs are kept.")
@click.option(
    "--processes", "-p", type=click.IntRange(1), metavar="N", help="Runs at a time. Default: one for each core."
)
@click.option(
    "--engine",
    type=click.Choice(("serial", "auto", "pool", "threads", "flower")),
    default="serial",
    show_default=True,
    help="With another than serial, one run at a time. flower: on a Ray cluster. All have the same bits.",
)
@click.option("--estimate", is_flag=True, help="Say how long it would take, and stop.")
@answers
def reproduce(
    paper: str | None,
    names: tuple[str, ...],
    scale: str | None,
    rows: str | None,
    columns: str | None,
    seeds: str | None,
    out: str,
    processes: int | None,
    engine: str,
    estimate: bool,
) -> Answer:
    """Reproduce the papers' tables, figures and claims.

    \b
      fedalloy reproduce
      fedalloy reproduce knfu table1 --scale smoke

    Without arguments, it lists the papers and the verdicts on their claims; with a paper (kdia), its tables, figures
    and claims. With a table or figure (kdia table2), it makes what is missing of it and shows it beside the published
    figures. With --scale, it does so for all of a paper, or for all papers.
    """
    from fedalloy.reproduce.catalogue import paper as find
    from fedalloy.reproduce.catalogue import papers
    from fedalloy.reproduce.making import cores

    homes = [one.id for one in papers().values() if paper in {item.id for item in one.items}]
    if homes and paper not in papers():
        raise UsageError(f"'{paper}' is not a paper; write fedalloy reproduce {homes[0]} {paper} (or {listed(homes)})")
    chosen = [find(paper)] if paper else list(papers().values())
    if not names and scale is None:
        options = {"--rows": rows, "--columns": columns, "--seeds": seeds, "--processes": processes}
        for name, given in {**options, "--estimate": estimate, "--engine": engine != "serial"}.items():
            if given:
                raise UsageError(f"{name} has no effect on a list; name a table or figure, or add --scale cpu")
        return Answer(_list(chosen, Path(out), alone=paper is not None))
    items = [chosen[0].item(name) for name in names] if names else [item for one in chosen for item in one.items]
    parts = [("--rows", rows), ("--columns", columns), ("--seeds", seeds)]
    words = [word for name, given in parts if given for word in (name, given)]
    again = ["reproduce", *filter(None, [paper]), *names, "--scale", scale or "cpu", *words, "--out", out]
    with resumable(*again):
        at_once = processes or (1 if scale == "smoke" or engine != "serial" else cores())
        how = {"processes": at_once, "engine": engine, "only_estimate": estimate}
        failed, made = _make(items, scale or "cpu", rows, columns, seeds, Path(out), how, show=bool(names))
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    error = DataError(f"a run failed: {failed[0]}{more}; {as_typed(*again)} tries again") if failed else None
    return Answer({"items": made, "failed": failed}, error)


def _make(
    items: Sequence[Item],
    scale: str,
    rows: str | None,
    columns: str | None,
    seeds: str | None,
    out: Path,
    how: dict[str, Any],
    show: bool,
) -> tuple[list[str], list[dict[str, Any]]]:
    """Make what is missing of each item, and write it; show its tables, too, if it was named.

    Returns the runs that failed, and what was made of each item.
    """
    from fedalloy.base.files import make_folder
    from fedalloy.reproduce.catalogue import paper
    from fedalloy.reproduce.making import make_item
    from fedalloy.reproduce.outputs import write_item, write_pages

    failed, made = [], []
    wanted = [_wanted(item, scale, rows, columns) for item in items]  # mistakes are found before anything runs
    chosen = [chosen_seeds(seeds, item.scale(scale).seeds[0]) if seeds else None for item in items]
    if not how["only_estimate"]:
        make_folder(out / "runs")
    for item, of_item, numbers in zip(items, wanted, chosen, strict=True):
        say(f"{item.paper} {item.id}: {item.title}")
        failed += make_item(
            item,
            scale,
            out / "runs",
            say=say,
            chosen=of_item,
            seeds=numbers,
            measure=scale != "smoke",
            **how,
        )
        if not how["only_estimate"]:
            shown, told, files = write_item(item, scale, out, numbers)
            for part in (part for table in shown if show for part in table.fitted(screen().width)):
                screen().print(part.rich())
            claims = [claim for claim in paper(item.paper).claims if claim.name in told]
            if show:
                _print_claims(claims, told)
            tables = [table.parts() for table in shown]
            made.append({"paper": item.paper, "item": item.id, "title": item.title, "tables": tables,
                         "claims": _as_records(claims, told), "files": files})  # fmt: skip
            say(f"written: {files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}")
    if not how["only_estimate"]:
        for file in write_pages(sorted({item.paper for item in items}), out, scale):
            say(f"written: {file}")
    return failed, made


def _wanted(item: Item, scale: str, rows: str | None, columns: str | None) -> Callable[[Job], bool]:
    """Whether a job belongs to the rows and columns that were asked for."""
    from fedalloy.reproduce.plan import columns as cells

    if not item.rows or not item.scale(scale).experiment:
        return lambda _: True  # there are no runs to choose from
    methods = {row.label: row.method for row in item.rows}
    names = [cell.name for cell in cells(item, scale)]
    keys = {methods[label] for label in _named("--rows", rows, item, list(methods))}
    places = set(_named("--columns", columns, item, names))
    return lambda job: job.method in keys and job.column in places


def _named(option: str, text: str | None, item: Item, known: Sequence[str]) -> Sequence[str]:
    if text is None:
        return known
    wanted = [part.strip() for part in text.split(";") if part.strip()]
    if not wanted:
        raise UsageError(f"{option} names nothing; {item.paper} {item.id} has: {'; '.join(known)}")
    for name in wanted:
        if name not in known:
            raise UsageError(f"{option}: {item.paper} {item.id} has no '{name}'; {suggest(name, list(known))}")
    return wanted


def _list(papers: Sequence[Paper], out: Path, alone: bool) -> dict[str, Any]:
    """Print the papers' verdicts; of a single paper, all items and claims. Returns them as plain values."""
    from fedalloy.reproduce.verdicts import items_table, known, papers_table

    found, others = known(papers, out / "runs")
    tables = [papers_table(papers, found)]
    if alone:
        tables.insert(0, items_table(papers[0], out / "runs"))
        screen().print(tables[0].rich())
        _print_claims(papers[0].claims, found)
    screen().print(tables[-1].rich())
    if others:
        say(f"Where {out / 'runs'} has no runs, the verdict is the one that comes with fedalloy.")
    words = ["reproduce", papers[0].id, "ITEM"] if alone else ["reproduce", "PAPER"]
    say(f"{as_typed(*words)} {'makes one' if alone else 'lists a paper'}; --scale cpu makes all that is missing")
    claims = [claim for paper in papers for claim in paper.claims]
    return {"tables": [table.parts() for table in tables], "claims": _as_records(claims, found)}


def _as_records(claims: Sequence[Claim], told: Mapping[str, Told]) -> list[dict[str, Any]]:
    """Each claim with its verdict, as plain values."""
    from fedalloy.reproduce.verdicts import told_or_not_tested

    return [
        {"paper": claim.paper, "id": claim.id, "item": claim.item, "ours": claim.ours, "says": claim.says}
        | asdict(told_or_not_tested(claim, told))
        for claim in claims
    ]


def _print_claims(claims: Sequence[Claim], found: Mapping[str, Told]) -> None:
    """Print claims with their verdicts, an empty line before each."""
    from rich.padding import Padding
    from rich.text import Text

    from fedalloy.reproduce.verdicts import claim_lines

    for verdict, *lines in claim_lines(claims, found):
        screen().print(Text(f"\n{verdict}", style="bold"))
        for line in lines:
            screen().print(Padding(Text(line), (0, 0, 0, 2)))
    if claims:
        screen().print()
