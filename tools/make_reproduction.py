"""Write docs/reproduction and the verdicts that come with the library, from the runs in results/runs.

python tools/make_reproduction.py
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from fedalloy.reproduce.blocks import Block, markdown
from fedalloy.reproduce.catalogue import papers
from fedalloy.reproduce.pages import count, index_blocks, paper_blocks
from fedalloy.reproduce.verdicts import SHIPPED, Told, judged

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "reproduction"
RUNS = ROOT / "results" / "runs"
BEGIN, END = "<!-- claims -->", "<!-- /claims -->"  # around the count on the front page


def files() -> dict[Path, str]:
    """Every generated file and its text."""
    told = {
        one.claim.name: Told(one.verdict, one.scale, one.reason)
        for paper in papers().values()
        for one in judged(paper, RUNS)
    }
    pages: dict[str, list[Block]] = {name: paper_blocks(paper, RUNS) for name, paper in papers().items()}
    pages["index"] = index_blocks(list(papers().values()), told)
    found: dict[Path, str] = {}
    for name, blocks in pages.items():
        text, pictures = markdown(blocks)
        found[DOCS / f"{name}.md"] = text
        found |= {DOCS / "pictures" / file: svg for file, svg in pictures.items()}
    front = DOCS.parent / "index.md"
    before, _, rest = front.read_text(encoding="utf-8").partition(BEGIN)
    counted = count(list(papers().values()), told)
    found[front] = f"{before}{BEGIN}\n{counted}\n{END}{rest.partition(END)[2]}"
    found[SHIPPED] = json.dumps({name: asdict(one) for name, one in told.items()}, indent=1, ensure_ascii=False) + "\n"
    return found


def main() -> None:
    """Write the files, and remove those that no page shows; figures of data that is not here stay as they are."""
    made = files()
    pages = "".join(text for path, text in made.items() if path.suffix == ".md")
    for old in [*DOCS.glob("*.md"), *DOCS.glob("pictures/*.svg")]:
        if old not in made and f"pictures/{old.name}" not in pages:
            old.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
