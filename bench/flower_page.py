"""Write benchmark results into their section of `results/flower.md`, so that no figure is typed by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parents[1] / "results" / "flower.md"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def save(section: str, found: str) -> None:
    """Replace the text between a section's two markers; the text around them stays."""
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    before, rest = PAGE.read_text().split(begin)
    versions = f"flwr {version('flwr')}, ray {version('ray')}, torch {version('torch')}"
    PAGE.write_text(f"{before}{begin}\n{found}\n\n{versions}.\n{end}{rest.split(end)[1]}")
    print(found, flush=True)
    if "DIFFERENT" in found:
        sys.exit("not the same bits")
