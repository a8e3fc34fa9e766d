"""Rounds to a target: the metric is named, what is not reached says so, and the speed-up is over FedAvg."""

from __future__ import annotations

import pytest

from fedalloy.base.text import MISSING, TIMES
from fedalloy.errors import UsageError
from fedalloy.report.html import render
from fedalloy.report.targets import Target, parse_target, targets_table


@pytest.fixture
def run(make_run):
    def make(label, amps, *, name="fedavg", seed=0, tests=None):
        made = make_run(name, label, seed, views={"aca": [[amp, amp] for amp in amps]})
        for record, test in zip(made.rounds, tests or [], strict=False):
            record["views"]["aca"]["test"] = test
        return made

    return make


def test_each_target_has_its_metric_and_its_rounds(run):
    runs = [
        run("Slow", [0.25, 0.25, 0.5, 0.75], name="fedprox", tests=[0.1, 0.2, 0.3, 0.4]),
        run("FedAvg", [0.25, 0.5, 0.5, 0.5], tests=[0.3, 0.4, 0.5, 0.6]),
        run("Fast", [0.75, 0.75, 0.75, 0.75], name="kdia", tests=[0.5, 0.5, 0.5, 0.5]),
    ]
    table = targets_table(runs, [Target("amp", 0.5), Target("amp", 0.75), Target("test", 0.4)])
    assert table.headings == ["Method", "AMP 50 %", "speed-up", "AMP 75 %", "speed-up", "Test 40 %", "speed-up"]
    assert [list(line) for line in table.body] == [
        ["Slow (ACA)", "3", f"0.7{TIMES}", "4", f"> 1.0{TIMES}", "4", f"0.5{TIMES}"],
        ["FedAvg (ACA)", "2", f"1.0{TIMES}", "> 4", MISSING, "2", f"1.0{TIMES}"],
        ["Fast (ACA)", "1", f"2.0{TIMES}", "1", f"> 4.0{TIMES}", "1", f"2.0{TIMES}"],
    ]
    assert "FedAvg" in table.note


def test_seeds_are_averaged_only_if_all_of_them_reach_it(run):
    seeds = [run("FedAvg", amps, seed=seed) for seed, amps in enumerate([[0.5, 0.5, 0.5], [0.25, 0.5, 0.75]])]
    found = targets_table(seeds, [Target("amp", 0.5), Target("amp", 0.75), Target("amp", 0.9), Target("test", 0.5)])
    assert list(found.body[0]) == [
        *("FedAvg (ACA)", "1.5", f"1.0{TIMES}", "1 of 2 seeds", MISSING, "> 3", MISSING),
        *(MISSING, MISSING),  # nobody was tested on a common test set
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("tset=0.5", "did you mean 'test'"), ("test=55", "test=0.75"), ("fm=0.1", "no metric 'fm'"), ("much", "amp=0.75")],
)
def test_a_target_that_cannot_be_reached_is_refused(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        parse_target(text)


def test_the_page_shows_the_table(run):
    page = render([run("FedAvg", [0.25, 0.5])], title="t", targets=[Target("amp", 0.9)])
    assert "Rounds to reach a target" in page
    assert "&gt; 2</td>" in page
    assert "Rounds to reach a target" not in render([run("FedAvg", [0.25, 0.5])], title="t")
