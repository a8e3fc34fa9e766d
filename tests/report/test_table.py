import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from fedalloy.base.text import TIMES
from fedalloy.report.table import cells, comparison, comparison_table, note_on_marks, records
from fedalloy.storage.rows import Leads

FM = f"FM {TIMES}10³"


def drawn(table, width):
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    console.print(table)
    return console.export_text(clear=False).rstrip("\n").split("\n"), console.export_text(styles=True)


def bold(styled):
    return re.findall(r"\x1b\[1m([^\x1b]*)\x1b", styled)


def test_cells_of_one_row(make_row):
    headings, body = cells([make_row()])
    assert headings == [
        *("Method", "View", "AMP %", FM, "WLP %"),
        *("Worst", "Low 10 %", "Test %", "Bytes", "Time", "Round"),
    ]
    assert [cell.text for cell in body[0]] == [
        *("FedAvg", "OCA", "80.00", "2.00", "60.00", "7"),
        *("65.00", "79.00", "1.50 kB", "3.2 s", "30"),
    ]
    assert not any(cell.best for cell in body[0])  # nobody to be better than


@pytest.mark.parametrize(
    ("word", "title"),
    [
        ("last", "Scores: from the last round"),
        ("best by test", "Scores: from each line's best round by accuracy on the common test set"),
        ("mean of last 5", "Scores: means over the last 5 evaluated rounds"),
    ],
)
def test_the_title_names_the_round(make_row, word, title):
    assert str(comparison_table([make_row(selection=word)], width=100).title) == title
    assert comparison_table([make_row(), make_row(selection="best by amp")], width=100).title is None  # has a column


def test_long_labels_stay_apart(make_row):
    labels = [f"FedAvg, training.lr = {lr}, training.batch = 32" for lr in (0.1, 0.01)]
    _, body = cells([make_row(label) for label in labels])
    assert len({line[0].text for line in body}) == 2
    assert all("…" in line[0].text for line in body)


def over_seeds(make_row, label="FedAvg", view="oca", **values):
    """Three seeds, whose values differ by a hundredth of the given ones, or by nothing where there is no value."""
    steps = (0.99, 1.0, 1.01)
    return [
        make_row(label, view, seed, **{name: value and value * step for name, value in values.items()})
        for seed, step in enumerate(steps)
    ]


def test_the_best_value_of_each_column(make_row):
    rows = [
        *over_seeds(make_row, "A", amp=0.80, fm=0.002, wlp=0.70, bottom10=0.7, test=None),
        *over_seeds(make_row, "B", amp=0.90, fm=0.003, wlp=0.60, bottom10=0.6, test=None),
    ]
    headings, body = cells(rows)
    assert "Test %" not in headings  # nobody has one
    best = {(line[0].text, headings[i]) for line in body for i, cell in enumerate(line) if cell.best}
    assert best == {("B", "AMP %"), ("A", FM), ("A", "WLP %"), ("A", "Low 10 %")}


def test_ties_are_marked_alike_and_the_note_names_the_test(make_row):
    rows = [
        *over_seeds(make_row, "A", amp=0.9, wlp=0.5),
        *(make_row("B", seed=seed, amp=amp, wlp=0.5) for seed, amp in enumerate((0.9, 0.88, 0.92))),
        *over_seeds(make_row, "C", amp=0.5, wlp=0.5),
    ]
    headings, body = cells(rows)
    assert [line[headings.index("AMP %")].best for line in body] == [True, True, False]
    assert [line[headings.index("WLP %")].best for line in body] == [False, False, False]  # all alike
    said = note_on_marks(rows)
    assert all(word in said for word in ("paired t-test", "3 seeds", "Holm"))


def test_with_one_seed_nothing_is_marked_and_the_note_says_why(make_row):
    rows = [make_row("A", amp=0.9), make_row("B", amp=0.1)]
    assert not any(cell.best for line in cells(rows)[1] for cell in line)
    assert "one seed" in note_on_marks(rows)
    assert note_on_marks(rows[:1]) == ""
    lines, _ = drawn(comparison_table(rows, width=120), 120)
    assert "one seed" in "".join(lines)


def test_what_is_written_alike_is_equally_good(make_row):
    tiny = [0.800001, 0.800002]  # a clear difference over seeds, which nobody can see
    rows = [
        make_row(label, seed=s, amp=amp + s / 1000) for label, amp in zip("AB", tiny, strict=True) for s in range(3)
    ]
    assert not any(line[2].best for line in cells(rows)[1])
    rows += [make_row("C", seed=s, amp=0.5 + s / 900) for s in range(3)]
    assert [line[2].best for line in cells(rows)[1]] == [True, True, False]


def test_pooled_data_and_stages_of_models_do_not_compete(make_row):
    rows = [row for label, amp in (("A", 0.7), ("B", 0.6)) for row in over_seeds(make_row, label, amp=amp)]
    bounds = over_seeds(make_row, "Centralised", "global", amp=0.9)
    stages = over_seeds(make_row, "A", "initial", amp=0.8)
    assert [line[2].best for line in cells([*rows, *bounds, *stages])[1]] == [True, False, False, False]
    pooled = over_seeds(make_row, "pooled", "global", amp=0.9)
    assert [line[2].best for line in cells([*rows, *pooled])[1]] == [False, False, True]
    assert [line[2].best for line in cells([*rows, *pooled], {"pooled": "centralised"})[1]] == [True, False, False]


def test_seeds_are_averaged_and_their_worst_clients_listed(make_row):
    rows = [make_row(seed=0, amp=0.80, worst_client=7), make_row(seed=1, amp=0.82, worst_client=3)]
    _, body = cells(rows)
    # Sample deviation of 80 and 82: sqrt((1 + 1) / 1).
    assert (len(body), body[0][2].text, body[0][5].text) == (1, "81.00 ± 1.41", "7, 3")


def test_two_selections_are_two_lines_and_named(make_row):
    headings, body = cells([make_row(), make_row(selection="best by test", round=12, amp=0.9)])
    assert headings[2] == "Selection"
    assert [line[2].text for line in body] == ["last", "best by test"]


def test_bold_in_the_terminal(make_row):
    rows = [*over_seeds(make_row, "A", amp=0.8), *over_seeds(make_row, "B", amp=0.7)]
    _, styled = drawn(comparison_table(rows, width=120), 120)
    assert "80.00 ± 0.80" in " ".join(bold(styled))
    assert "70.00 ± 0.70" not in " ".join(bold(styled))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_no_cell_wraps_or_is_cut(make_row, width):
    rows = [make_row(label, seed=s, amp=0.8 + s / 50) for label in ("FedAvg", "Centralised") for s in (0, 1)]
    lines, _ = drawn(comparison_table(rows, width=width), width)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert sum("FedAvg" in line or "Centralised" in line for line in lines) == 2
    assert "…" not in "\n".join(lines[:5])
    assert lines[0].strip() == "Scores: from the last round"
    assert lines[1].split()[:2] == ["Method", "View"]
    assert "81.00 ± 1.41" in lines[3]


def test_a_narrow_terminal_says_what_it_left_out(make_row):
    rows = [make_row(seed=s) for s in (0, 1)]
    lines, _ = drawn(comparison_table(rows, width=80), 80)
    assert lines[-1].strip() == "Hidden, the terminal is too narrow: Low 10 %, Test % and Round."
    lines, _ = drawn(comparison_table(rows, width=120), 120)
    assert "Left out" not in "\n".join(lines)


def test_a_long_label_gives_way_to_the_numbers(make_row):
    lines, _ = drawn(comparison_table([make_row("a very long label that never ends " * 3)], width=40), 40)
    assert "80.00" in lines[3]
    assert "…" in lines[3]
    assert len(lines[3].rstrip()) <= 40


def test_markup_in_a_label_is_text(make_row):
    lines, _ = drawn(comparison_table([make_row("[red]A[/red]")], width=120), 120)
    assert "[red]A[/red]" in lines[3]


def small(make_row):
    absent = dict.fromkeys(("worst_client", "bottom10", "test", "bytes_total", "seconds", "round"))
    return comparison(
        [
            row
            for label, amp in (("A|B_1", 0.7), ("C & D", 0.9))
            for row in over_seeds(make_row, label, amp=amp, fm=0.002, wlp=0.5, **absent)
        ]
    )


NOTE = (
    "Bold: the best value and all that cannot be told from it, where another line is worse beyond noise (paired "
    "t-tests between all lines over 3 seeds, Holm's correction, 5 %)."
)


def test_the_comparison_as_markdown(make_row):
    assert small(make_row).markdown() == (
        "**Scores from the last round**\n\n"
        f"| Method | View | AMP % | {FM} | WLP % |\n"
        "| :-- | :-- | --: | --: | --: |\n"
        "| A\\|B\\_1 | OCA | 70.00 ± 0.70 | 2.00 ± 0.02 | 50.00 ± 0.50 |\n"
        "| C & D | OCA | **90.00 ± 0.90** | 2.00 ± 0.02 | 50.00 ± 0.50 |\n"
        f"\n- {NOTE}\n"
    )


def test_the_comparison_as_latex(make_row):
    assert small(make_row).latex() == (
        "\\begin{table}\n"
        "  \\centering\n"
        "  \\caption{Scores from the last round}\n"
        "  \\begin{tabular}{@{}llrrr@{}}\n"
        "    \\toprule\n"
        "    Method & View & AMP \\% & FM $\\times$10$^3$ & WLP \\% \\\\\n"
        "    \\midrule\n"
        "    A$|$B\\_1 & OCA & 70.00 $\\pm$ 0.70 & 2.00 $\\pm$ 0.02 & 50.00 $\\pm$ 0.50 \\\\\n"
        "    C \\& D & OCA & \\textbf{90.00 $\\pm$ 0.90} & 2.00 $\\pm$ 0.02 & 50.00 $\\pm$ 0.50 \\\\\n"
        "    \\bottomrule\n"
        "  \\end{tabular}\n"
        f"  \\par\\smallskip\\footnotesize {NOTE.replace('%', chr(92) + '%')}\n"
        "\\end{table}\n"
    )


def test_the_comparison_as_csv_json_and_html(make_row):
    table = small(make_row)
    assert table.csv() == (
        f"Method,View,AMP %,{FM},WLP %\n"
        "A|B_1,OCA,70.00 ± 0.70,2.00 ± 0.02,50.00 ± 0.50\n"
        "C & D,OCA,90.00 ± 0.90,2.00 ± 0.02,50.00 ± 0.50\n"
    )
    assert json.loads(table.json())["best"] == [{"row": 1, "column": 2}]
    assert table.html().count('class="best"') == 1
    assert '<td class="best">90.00 ± 0.90</td>' in table.html()


def test_records_keep_every_digit(make_row):
    (record,) = records([make_row(seed=0, amp=0.8), make_row(seed=1, amp=0.81)])
    assert record["label"] == "FedAvg"
    assert record["seeds"] == 2
    assert record["amp"] == pytest.approx(0.805)
    assert record["amp_std"] == pytest.approx(0.005 * 2**0.5)
    assert record["bytes_total"] == 1500
    assert record["flops"] is None


def test_a_narrow_terminal_keeps_what_decides_between_two_classes(make_row):
    costs = {"balanced": 0.7, "auc": 0.8, "sensitivity": 0.5, "specificity": 0.9, "ece": 0.1, "macro_f1": 0.6}
    rows = [replace(make_row(seed=s, **costs), leads=Leads(decisions=True)) for s in (0, 1)]
    headings = [str(column.header) for column in comparison_table(rows, width=80).columns]
    assert {"AMP %", "WLP %", "Balanced %"} <= {*headings}
    assert FM not in headings
    one = [str(column.header) for column in comparison_table(rows[:1], width=80).columns]
    assert {"Balanced %", "AUC %"} <= {*one}
