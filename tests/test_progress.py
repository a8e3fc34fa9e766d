"""The estimate of the time that is left, with a clock that the test turns."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from fedalloy.report import progress
from fedalloy.report.progress import Display


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows, in a list so that a test can turn it."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def display(runs: int, rounds: int) -> Display:
    return Display(runs, rounds, Console(file=io.StringIO(), width=120))


def line(shown: Display, task: int = -1) -> Any:
    return shown._progress.tasks[task]


def passes(clock: list[float], seconds: float, watch: Callable[[Any], None], round: int, **views: float | None) -> None:
    clock[0] += seconds
    watch({"round": round, "views": {name: {"amp": amp} for name, amp in views.items()}})


def test_before_the_first_round_there_is_no_estimate(clock: list[float]) -> None:
    shown = display(1, 10)
    assert shown.seconds_left() is None
    shown.begin("FedAvg", 0)
    assert shown.seconds_left() is None
    assert line(shown).fields["left"] == "estimating"


def test_what_is_left_is_the_rounds_to_come_at_the_pace_seen(clock: list[float]) -> None:
    shown = display(1, 10)
    watch = shown.begin("FedAvg", 0)
    passes(clock, 2.0, watch, 1, aca=0.25, oca=0.5)
    assert shown.seconds_left() == 9 * 2.0
    assert line(shown).fields["left"].startswith("about 18.0 s left")
    assert line(shown).fields["score"] == "AMP  50.0 %"
    passes(clock, 4.0, watch, 2)
    assert shown.seconds_left() == 8 * 3.0
    assert line(shown).fields["score"] == "AMP  50.0 %"  # the last one that is known
    for round in range(3, 10):
        passes(clock, 1.0, watch, round)
    assert shown.seconds_left() == 1 * 1.0  # the pace is that of the last five rounds
    passes(clock, 1.0, watch, 10)
    assert shown.seconds_left() == 0
    assert line(shown).fields["left"] == ""


def test_runs_that_have_not_begun_get_the_mean_of_the_others(clock: list[float]) -> None:
    shown = display(3, 2)
    watch = shown.begin("FedAvg", 0)
    passes(clock, 1.0, watch, 1)
    assert shown.seconds_left() == 1.0 + 2 * 2 * 1.0
    passes(clock, 3.0, watch, 2)
    assert shown.seconds_left() == 2 * 2 * 2.0
    watch = shown.begin("FedKF", 0)
    assert shown.seconds_left() == 2 * 2.0 + 2 * 2.0  # its own pace is not known yet
    passes(clock, 8.0, watch, 1)
    assert shown.seconds_left() == 8.0 + (4.0 + 16.0) / 2  # the second run will have taken 16 s


def test_a_method_that_does_all_in_one_long_round_does_not_stand_for_many(clock: list[float]) -> None:
    shown = display(3, 30)
    passes(clock, 4.0, shown.begin("Local, converged", 0), 1)
    shown.begin("FedAvg", 0)
    assert shown.seconds_left() == 2 * 4.0
    assert line(shown, 0).total == 1  # and its bar is full


def test_a_run_that_ended_early_leaves_nothing_to_wait_for(clock: list[float]) -> None:
    shown = display(2, 10)
    passes(clock, 1.0, shown.begin("FedAvg", 0), 1)
    watch = shown.begin("FedAvg", 1)
    assert line(shown, 0).fields["left"] == ""
    passes(clock, 1.0, watch, 1)
    assert shown.seconds_left() == 9.0


def test_a_run_that_was_finished_before_is_said_to_be(clock: list[float]) -> None:
    shown = display(2, 10)
    shown.begin("FedAvg", 0)
    shown.begin("FedAvg", 1)
    assert line(shown, 0).fields["left"] == "already finished"


def test_a_resumed_run_counts_from_where_it_is(clock: list[float]) -> None:
    shown = display(1, 10)
    passes(clock, 2.0, shown.begin("FedAvg", 0), 8)
    assert shown.seconds_left() == 2 * 2.0
    assert line(shown).completed == 8


def test_views_without_a_value_show_no_score(clock: list[float]) -> None:
    shown = display(1, 2)
    passes(clock, 1.0, shown.begin("FedAvg", 0), 1, aca=None)
    assert line(shown).fields["score"] == ""


def test_a_label_is_shown_as_it_is(clock: list[float]) -> None:
    screen = io.StringIO()
    with Display(1, 1, Console(file=screen, width=120)) as shown:
        passes(clock, 1.0, shown.begin("mu [/bold] [1]", 3), 1, aca=0.5)
    assert "mu [/bold] [1], seed 3" in screen.getvalue()
    assert "1/1" in screen.getvalue()


def test_what_was_refused_before_its_first_round_leaves_no_bar(clock: list[float]) -> None:
    screen = io.StringIO()

    def refused() -> None:
        with Display(1, 1, Console(file=screen, width=120)) as shown:
            shown.begin("FedAvg", 0)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        refused()
    assert "FedAvg" not in screen.getvalue()
