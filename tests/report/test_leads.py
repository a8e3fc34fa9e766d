"""How far methods are apart, in a table, as records and as a picture, with the spread between clients beside it."""

from __future__ import annotations

import json
import math

import pytest

from fedalloy.report.improvement_plot import improvement_picture
from fedalloy.report.leads import leads_table, records, rivals
from fedalloy.report.svg import to_svg


@pytest.fixture
def three(make_row):
    """Two federated methods and pooled data, over three seeds."""
    values = {"A": (0.80, 0.81, 0.82), "B": (0.70, 0.72, 0.71), "Centralised": (0.9, 0.9, 0.9)}
    return [
        make_row(label, "global", seed, amp=amp, fm=0.01)
        for label, amps in values.items()
        for seed, amp in enumerate(amps)
    ]


def test_the_lead_by_hand(three):
    # Differences 0.10, 0.09, 0.11: mean 0.10, deviation 0.01, half the interval 4.3027 * 0.01 / sqrt(3) = 0.0248.
    found = rivals(three)
    t = 10 * math.sqrt(3)
    p = 1 - t / math.sqrt(2 + t * t)
    table = leads_table(found)
    assert list(found.lines) == ["A", "B"]
    assert table.rows == [("B", "10.00", "7.52 to 12.48", f"{p:.3f}", "1.00", "10.00")]  # the root of 0.01 is 10 %
    assert "AMP %" in table.title
    assert any("1 pair." in note for note in table.notes)


def test_a_metric_that_is_better_when_lower_favours_the_lower_one(make_row):
    rows = [make_row(label, seed=s, fm=fm + s / 1000) for label, fm in (("A", 0.02), ("B", 0.01)) for s in (0, 1)]
    found = rivals(rows, metric="fm")
    (one,) = records(found)
    assert (one["better"], one["worse"], one["seeds"]) == ("B (OCA)", "A (OCA)", 2)
    assert one["lead"] == pytest.approx(0.01)
    assert leads_table(found).rows[0][1] == "10.00"  # thousandths


def test_without_two_seeds_or_two_lines_there_is_no_lead(make_row):
    assert leads_table(rivals([make_row("A"), make_row("B")])) is None
    assert leads_table(rivals([make_row("A", seed=s) for s in (0, 1)])) is None
    assert leads_table(rivals([])) is None


def test_lines_without_a_common_seed_have_no_difference(make_row):
    rows = [make_row("A", seed=s, amp=0.8) for s in (0, 1)] + [make_row("B", seed=s, amp=0.7) for s in (2, 3)]
    assert leads_table(rivals(rows)).rows[0][1:5] == ("–",) * 4  # noqa: RUF001


def test_records_can_be_read_by_a_program(three):
    (one,) = json.loads(json.dumps(records(rivals(three)), allow_nan=False))
    assert set(one) == {
        *("metric", "better", "worse", "seeds", "lead", "low", "high", "p", "p_holm", "improvement", "beyond_noise")
    }
    assert (one["metric"], one["beyond_noise"], one["improvement"]) == ("amp", True, 1.0)


@pytest.mark.parametrize("width", [3.7, 10.8])
def test_the_picture_has_a_number_for_each_two_lines(three, make_row, width):
    three += [make_row("C", "global", s, amp=amp) for s, amp in enumerate((0.69, 0.73, 0.71))]
    figure = improvement_picture(rivals(three), width=width)
    (axes,) = figure.axes
    shown = [text.get_text() for text in axes.texts]
    # A is always better; B and C tie once and win four times each: 0.70, 0.72, 0.71 against 0.69, 0.73, 0.71.
    assert shown == ["100", "100", "0", "50", "0", "50"]
    assert [text.get_fontweight() for text in axes.texts].count("bold") >= 2
    assert to_svg(figure) == to_svg(improvement_picture(rivals(three), width=width))
