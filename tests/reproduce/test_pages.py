"""The generated pages say what the recorded runs say."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedalloy.data.fetch import offline
from fedalloy.report.tables import Table
from fedalloy.reproduce import blocks as blocks_of_pages
from fedalloy.reproduce.blocks import Heading, Items, Picture, Text, html, markdown
from fedalloy.reproduce.catalogue import papers
from fedalloy.reproduce.pages import anchor, count, item_blocks, paper_blocks
from fedalloy.reproduce.results import recorded
from fedalloy.reproduce.verdicts import Told, papers_table

ROOT = Path(__file__).parents[2]


def generated() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("make_reproduction", ROOT / "tools" / "make_reproduction.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with offline():
        found: dict[Path, str] = module.files()
    return found


def test_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_of_pages, "to_svg", lambda _: "<svg/>")  # drawn, but not written: that takes a minute
    made = generated()
    for path, text in made.items():
        if path.suffix != ".svg":
            assert path.read_text(encoding="utf-8") == text, f"run tools/make_reproduction.py to update {path.name}"
    pages = {path: text for path, text in made.items() if path.suffix == ".md"}
    shown = {name for text in pages.values() for name in re.findall(r"\(pictures/([^)]+)\)", text)}
    assert shown == {path.name for path in (ROOT / "docs" / "reproduction" / "pictures").iterdir()}
    assert {path.name for path in made if path.suffix == ".svg"} <= shown


def test_a_page_says_things_once(tmp_path: Path) -> None:
    for file in (ROOT / "results" / "runs").iterdir():
        if file.name.startswith(("knfu", "fedmd", "local", "selective")):
            (tmp_path / file.name).symlink_to(file)
    paper = papers()["knfu"]
    page, _ = markdown(paper_blocks(paper, tmp_path))
    shown = page.partition("## Tables and figures")[2]
    for item in paper.items:
        assert shown.count(f"# {item.heading}") == 1
        assert f"**{item.heading}**" not in shown
        assert not item.note or shown.count(item.note) == sum(item.note == one.note for one in paper.items)
    assert len(re.findall(r"\| \[.*\]\(#claim-.*\) \|", page)) == len(paper.claims)
    assert "Section Abstract" not in page


def test_a_figure_whose_data_was_not_kept_says_so(tmp_path: Path) -> None:
    item = papers()["knfu"].item("fig1")
    whole = recorded(item, "cpu", ROOT / "results" / "runs")
    assert whole.runs
    runs = {key: replace(run, folder=tmp_path) for key, run in whole.runs.items()}
    blocks = item_blocks(item, replace(whole, runs=runs))
    assert blocks[-1] == Text("What the figure draws was not kept of these runs; the command makes it.")


def test_the_count_agrees_with_the_table() -> None:
    every = list(papers().values())
    claims = [claim for paper in every for claim in paper.claims]
    told = {claim.name: Told("holds at reduced scale", "cpu", "") for claim in claims}
    ours = sum(claim.ours for claim in claims)
    assert count(every, told).startswith(f"{len(claims) - ours} claims of 5 papers: {len(claims) - ours} hold at red")
    table = papers_table(every, told)
    assert [row[0] for row in table.rows[-2:]] == ["all", "our controls"]
    assert [row[2] for row in table.rows[-2:]] == [f"{len(claims) - ours}", f"{ours}"]
    assert "all" not in [row[0] for row in papers_table(every[:1], told).rows]


def test_every_claim_and_item_has_its_place() -> None:
    for name, paper in papers().items():
        page = (ROOT / "docs" / "reproduction" / f"{name}.md").read_text(encoding="utf-8")
        for place in (*(item.id for item in paper.items), *(anchor(claim) for claim in paper.claims)):
            assert page.count(f'<a id="{place}"></a>') == 1, place


@pytest.mark.parametrize("text", ["a <script> & `code`", "[link](target.md#place)"])
def test_a_page_is_safe_and_says_the_same_in_both_formats(text: str) -> None:
    blocks = [
        Heading("One", 1, "one"),
        Text(text),
        Items(["first", "second"], "More"),
        Picture(None, "absent", "A picture"),
        Table("", ["a", "b"], [["x < y", "1"]]),
    ]
    written, files = markdown(blocks)
    page = html(blocks, "A page")
    assert files == {}
    assert "<script>" not in page
    assert "x &lt; y" in page
    assert all(word in written and word in page for word in ("One", "first", "second", "More", "A picture"))
    assert "Its data is not on this computer." in page
