"""The generated pages say what the recorded runs say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from fedalloy.data.fetch import offline
from fedalloy.report.tables import Table
from fedalloy.reproduce.blocks import Heading, Items, Picture, Text, html, markdown
from fedalloy.reproduce.catalogue import papers
from fedalloy.reproduce.pages import anchor

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


def test_pages_are_up_to_date() -> None:
    made = generated()
    for path, text in made.items():
        if path.suffix != ".svg":
            assert path.read_text(encoding="utf-8") == text, f"run tools/make_reproduction.py to update {path.name}"
    pages = {path: text for path, text in made.items() if path.suffix == ".md"}
    shown = {name for text in pages.values() for name in re.findall(r"\(pictures/([^)]+)\)", text)}
    assert shown == {path.name for path in (ROOT / "docs" / "reproduction" / "pictures").iterdir()}
    assert {path.name for path in made if path.suffix == ".svg"} <= shown


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
