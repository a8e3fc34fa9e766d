"""One table in every form: the same cells, escaped for where they are read, and equal text for equal tables."""

from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from fedalloy.base.text import MISSING, TIMES
from fedalloy.errors import UsageError
from fedalloy.report.tables import Table

NASTY = r"a\b {x} $5 & 50 % #1 under_score ~ ^ <b> \"q\" | [z] * ± λ" + TIMES


def example(**changes: object) -> Table:
    parts = {
        "title": "Accuracy & loss, 100 % of R_1",
        "headings": ("Method", "ours", "paper", "gap", "ours"),
        "rows": (
            ("FedAvg", "50.00 ± 1.00", "50.41 ± 1.91", "-0.41", "1.00"),
            ("FedKF- (ACA)", "> 60", "< 1", "+0.25", MISSING),
            ("*no [distillation]", "1", "2", "-1", "3"),
        ),
        "notes": ("2 of 3 seeds", "50 % <of> them"),
        "rules": (1,),
        "groups": (("", 1), ("λ = 0.1", 3), ("λ = 1", 1)),
    }
    return Table(**{**parts, **changes})  # type: ignore[arg-type]


def test_a_table_whose_parts_do_not_fit_is_refused():
    with pytest.raises(UsageError, match="do not span its 5 columns"):
        example(groups=(("", 1), ("x", 2)))
    with pytest.raises(UsageError, match="has 2 cells"):
        example(rows=(("FedAvg", "1"),))


def test_equal_tables_give_equal_text():
    for form in ("markdown", "csv", "json", "latex", "html"):
        assert getattr(example(), form)() == getattr(example(), form)()


def test_markdown_has_one_line_for_each_row_and_escapes_its_signs():
    lines = example().markdown().splitlines()
    assert lines[0] == r"**Accuracy & loss, 100 % of R\_1**"
    assert lines[2] == "| Method | λ = 0.1: ours | λ = 0.1: paper | λ = 0.1: gap | λ = 1: ours |"
    assert lines[3] == "| :-- | --: | --: | --: | --: |"
    assert lines[5] == rf"| FedKF- (ACA) | \> 60 | \< 1 | +0.25 | {MISSING} |"
    assert lines[-1] == r"- 50 % \<of\> them"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:7]} == {6}


def test_csv_is_read_back_with_missing_values_empty():
    headings, *rows = csv.reader(io.StringIO(example().csv()))
    assert headings == ["Method", "λ = 0.1: ours", "λ = 0.1: paper", "λ = 0.1: gap", "λ = 1: ours"]
    assert rows[1] == ["FedKF- (ACA)", "> 60", "< 1", "+0.25", ""]
    assert len(rows) == 3


def test_json_holds_every_part():
    found = json.loads(example().json())
    assert found["groups"] == [
        {"heading": text, "columns": span} for text, span in (("", 1), ("λ = 0.1", 3), ("λ = 1", 1))
    ]
    assert found["rows"][0][1] == "50.00 ± 1.00"
    assert found["notes"] == ["2 of 3 seeds", "50 % <of> them"]


def test_html_is_well_formed_escaped_and_has_a_cell_for_every_column():
    text = example(title=NASTY, rows=(("<script>", NASTY, "2", "3", "4"), ("b", "1", "2", "3", "4")), rules=(0,)).html()
    assert "<script>" not in text
    page = ElementTree.fromstring(f"<main>{text}</main>")
    head, *bodies = page.findall("./table/*")[1:]
    assert len(bodies) == 2  # a line divides them
    assert [sum(int(cell.get("colspan", "1")) for cell in row) for row in head] == [5, 5]
    assert bodies[0][0][1].text == NASTY
    assert page.find("./table/caption").text == NASTY
    assert [row.text for row in page.findall("./p")] == ["2 of 3 seeds", "50 % <of> them"]
    assert [cell.get("class") for cell in bodies[1][0]] == ["word", "first", None, None, "first"]


def columns_of(line: str) -> int:
    """How many columns a line of a LaTeX table fills."""
    spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
    return 1 + len(re.findall(r"(?<!\\)&", line)) + sum(spans) - len(spans)


def check_latex(text: str) -> None:
    """What a LaTeX compiler would refuse: unbalanced braces, dollars or environments, and lines of unequal length."""
    plain = text.replace(r"\\", "\n")
    bare = re.sub(r"\\[{}$&#%_]", "", plain)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#%~^]|_", re.sub(r"\$\^\d\$", "", bare))
    depth = 0
    for sign in bare:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table"),
    ]  # fmt: skip
    (sides,) = re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}", text)
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {columns_of(line) for line in lines} == {len(sides)}
    for line in lines:
        assert not line.lstrip().startswith(("[", "*"))  # it would be an argument of the line before


def test_latex_is_booktabs_with_spanning_headings():
    text = example().latex()
    check_latex(text)
    assert re.findall(r"\\(\w+rule)\b(?!\()", text) == [
        "toprule",
        "midrule",
        "midrule",
        "bottomrule",
    ]
    assert r"\multicolumn{3}{c}{$\lambda$ = 0.1} & \multicolumn{1}{c}{$\lambda$ = 1} \\" in text
    assert r"\cmidrule(lr){2-4} \cmidrule(lr){5-5}" in text
    assert r"FedAvg & 50.00 $\pm$ 1.00 & 50.41 $\pm$ 1.91 & $-$0.41 & 1.00 \\" in text
    assert r"FedKF- (ACA) & $>$ 60 & $<$ 1 & +0.25 & -- \\" in text
    assert r"\caption{Accuracy \& loss, 100 \% of R\_1}" in text
    assert r"{*}no {[}distillation{]}" in text


def test_latex_escapes_every_sign():
    check_latex(example(title=NASTY, notes=(NASTY,), rows=((NASTY,) * 5,), groups=((NASTY, 2), ("", 3))).latex())


def test_a_hyphen_is_no_minus_sign():
    text = example(rows=(("seed-3, 2-4", "1e-3", "(-0.5)", "-1", "0.1-0.2"),)).latex()
    assert r"seed-3, 2-4 & 1e-3 & ($-$0.5) & $-$1 & 0.1-0.2 \\" in text


@pytest.mark.parametrize("width", [120, 44])
def test_a_terminal_shows_every_digit(width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(example().rich())
    shown = re.sub(r"[^\w.+<>]", "", console.export_text())
    for text in ("λ0.1", "1.91", "+0.25", "2of3seeds") if width == 120 else ("1.91", "+0.25"):
        assert text in shown


def test_nothing_from_a_file_controls_the_terminal():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(example(title="a\x1b[2J", notes=("b\x07[bold]",)).rich())
    assert not set("\x1b\x07") & set(console.export_text())


def test_a_table_may_have_neither_title_nor_notes():
    bare = example(title="", notes=())
    assert bare.markdown().startswith("| Method")
    assert "caption" not in bare.html() + bare.latex()
    check_latex(bare.latex())


def test_on_pages_the_first_cells_may_be_links():
    linked = Table("", ["a", "b"], [["x & [y]", "1"], ["z", "2"]], links=["page.html#x", ""], rules=(0,))
    assert "| [x & \\[y\\]](page.html#x) | 1 |\n| z | 2 |" in linked.markdown()
    assert '<a href="page.html#x">x &amp; [y]</a>' in linked.html()
    assert linked.html().count("<a ") == 1
    assert "page.html" not in linked.csv() + linked.latex() + linked.json()
    with pytest.raises(UsageError, match="1 links for 2 rows"):
        Table("", ["a"], [["x"], ["y"]], links=["#x"])


def test_quotation_marks_open_and_close_in_latex():
    text = Table('"One" ("two")', ["a"], [["x"]]).latex()
    assert r"\caption{``One'' (``two'')}" in text
