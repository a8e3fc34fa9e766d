"""The page about theory and its pictures are up to date."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from fedalloy.report.svg import to_svg
from fedalloy.theory import FINDINGS
from fedalloy.theory.pictures import PICTURES

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")
DIGEST = re.compile(r"(?<=-[mp])[0-9a-f]{10}")  # of a path or a marker


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("make_theory", ROOT / "tools" / "make_theory.py")
    assert spec is not None
    assert spec.loader is not None
    made: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return dict(made.pages())


def same_drawing(left: str, right: str) -> bool:
    """Equal but for digests and for less than a hundredth of a point, which another processor may round otherwise."""
    left, right = DIGEST.sub("", left), DIGEST.sub("", right)
    if NUMBER.sub("", left) != NUMBER.sub("", right):
        return False
    pairs = zip(NUMBER.findall(left), NUMBER.findall(right), strict=True)
    return all(abs(float(a) - float(b)) < 0.01 for a, b in pairs)


def test_the_page_and_its_pictures_are_up_to_date(pages: dict[Path, str]) -> None:
    stale = [
        path.name
        for path, text in pages.items()
        if not (path.exists() and same(path.suffix, path.read_text(encoding="utf-8"), text))
    ]
    assert not stale, f"{', '.join(stale)} is out of date; run `python tools/make_theory.py`"


def same(suffix: str, left: str, right: str) -> bool:
    return same_drawing(left, right) if suffix == ".svg" else left == right


def test_a_changed_drawing_is_found(pages: dict[Path, str]) -> None:
    drawing = next(text for path, text in pages.items() if path.suffix == ".svg")
    place = drawing.index(" L ") + 3
    moved = re.sub(r"\d+", lambda found: str(int(found[0]) + 1), drawing[place:], count=1)
    assert same_drawing(drawing, drawing)
    assert not same_drawing(drawing, drawing[:place] + moved)
    assert not same_drawing(drawing, drawing.replace("</svg>", "<g/></svg>"))


def test_every_finding_has_a_picture_and_is_on_the_page() -> None:
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert list(FINDINGS) == list(PICTURES) == re.findall(r"<!-- finding: (?!overview)(\w+) -->", text)


def test_the_same_picture_gives_the_same_bytes() -> None:
    draw = PICTURES["fedkf_lemma1"]
    assert to_svg(draw(), ids="a") == to_svg(draw(), ids="a")
