"""What the command writes: each item as Markdown, CSV, LaTeX, JSON, SVG and PDF, and pages about the papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedalloy.base.files import make_folder, write_atomically
from fedalloy.report.svg import save
from fedalloy.report.tables import Table
from fedalloy.reproduce.catalogue import Item, paper, papers
from fedalloy.reproduce.forms import FORMS
from fedalloy.reproduce.pages import index_page, paper_page
from fedalloy.reproduce.results import recorded
from fedalloy.reproduce.verdicts import Told, told_of


def write_item(
    item: Item, scale: str, out: Path, seeds: Sequence[int] | None = None
) -> tuple[list[Table], dict[str, Told], list[Path]]:
    """Write an item as it came out at a scale; returns what a terminal shows, tables and verdicts, and the files."""
    results = recorded(item, scale, out / "runs", seeds)
    place = out / scale / item.paper
    make_folder(place)
    shown: list[Table] = []
    files: list[Path] = []
    parts = FORMS[item.form](results)
    for i, part in enumerate(parts):
        name = item.id if len(parts) == 1 else f"{item.id}-{i + 1}"
        if isinstance(part, Figure):
            for ending in ("svg", "pdf"):
                files.append(place / f"{name}.{ending}")
                save(part, files[-1])
        else:
            shown += [part] if not part.aside else []
            files += write_table(part, place / name)
    told: dict[str, Told] = {}
    for claim in paper(item.paper).claims:
        if claim.item == item.id and scale != "smoke":
            told[claim.name] = told_of(claim, results)
    return shown, told, files


def write_table(table: Table, path: Path) -> list[Path]:
    """Write a table in all formats; returns the files."""
    texts = {"md": table.markdown(), "csv": table.csv(), "tex": table.latex(), "json": table.json()}
    files = []
    for ending, text in texts.items():
        files.append(path.parent / f"{path.name}.{ending}")
        write_atomically(files[-1], text.encode())
    return files


def write_pages(names: Sequence[str], out: Path, scale: str) -> list[Path]:
    """Write an HTML page about each of these papers, and one about all."""
    place = out / scale
    make_folder(place)
    pages = {f"{name}.html": paper_page(paper(name), out / "runs", scale) for name in names}
    there = [name for name in papers() if name in names or (place / f"{name}.html").is_file()]
    pages["index.html"] = index_page(list(papers().values()), out / "runs", scale, there)
    for name, text in pages.items():
        write_atomically(place / name, text.encode())
    return [place / name for name in pages]
