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


def display(runs: int | list[str], rounds: int) -> Display:
    return Display(runs, rounds, terminal())


def terminal(screen: io.StringIO | None = None) -> Console:
    return Console(file=screen or io.StringIO(), width=120, force_terminal=True)


def no_terminal() -> Console:
    return Console(file=io.StringIO(), width=120)


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
    with Display(1, 1, terminal(screen)) as shown:
        passes(clock, 1.0, shown.begin("mu [/bold] [1]", 3), 1, aca=0.5)
    assert "mu [/bold] [1], seed 3" in screen.getvalue()
    assert "1/1" in screen.getvalue()


def test_what_was_refused_before_its_first_round_leaves_no_bar(clock: list[float]) -> None:
    screen = io.StringIO()

    def refused() -> None:
        with Display(1, 1, terminal(screen)) as shown:
            shown.begin("FedAvg", 0)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        refused()
    assert "FedAvg" not in screen.getvalue().rsplit("\x1b[2K", 1)[-1]  # what is left when the display ends


# --- an honest estimate -----------------------------------------------------------------------------------------------


def test_the_runs_of_another_seed_are_estimated_by_those_of_their_method(clock: list[float]) -> None:
    shown = display(["FedAvg", "KDIA"] * 3, 1)
    passes(clock, 1.0, shown.begin("FedAvg", 0), 1)
    assert shown.seconds_left() == 5 * 1.0
    assert "other method" in line(shown, 0).fields["left"]  # it says what it rests on
    passes(clock, 50.0, shown.begin("KDIA", 0), 1)
    assert "other method" not in line(shown).fields["left"]
    shown.begin("FedAvg", 1)
    assert shown.seconds_left() == 2 * 1.0 + 2 * 50.0


# --- without a terminal -----------------------------------------------------------------------------------------------


def record(round: int, amp: float | None = 0.5, sent: int = 1_000_000, **more: Any) -> dict[str, Any]:
    views = {"aca": {"amp": amp, "wlp": amp and amp / 2}, "oca": {"amp": amp and amp / 5, "wlp": 0.0}}
    return {"round": round, "views": views, "bytes": {"up": {"weights": sent}, "down": {"weights": sent}}, **more}


def test_without_a_terminal_there_is_one_line_for_each_long_round(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Display(2, 3, no_terminal()) as shown:
        watch = shown.begin("FedAvg", 7)
        for round in (1, 2):
            clock[0] += 45.0
            watch(record(round))
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    head, tail = "round 1 of 3, FedAvg, seed 7 (run 1 of 2): ", "AMP 50.0 %, WLP 25.0 %, 2.00 MB so far, "
    assert first == f"{head}{tail}about 3.8 min left in total"
    assert "round 2 of 3" in second
    assert "4.00 MB so far" in second


def test_of_short_rounds_there_is_a_line_every_thirty_seconds(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Display(1, 100, no_terminal()) as shown:
        watch = shown.begin("FedAvg", 0)
        for round in range(1, 101):
            clock[0] += 1.0
            watch(record(round))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"round {n} of 100" for n in (30, 60, 90)]
    assert all("run 1" not in line for line in lines)  # there is one only


def test_a_line_is_flushed_and_a_log_that_is_gone_does_not_stop_the_run(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    stream = Stream()
    monkeypatch.setattr(progress.sys, "stderr", stream)
    with Display(1, 3, no_terminal()) as shown:
        watch = shown.begin("FedAvg", 0)
        clock[0] += 40.0
        watch(record(1))
        assert stream.flushed
        stream.close()
        clock[0] += 40.0
        watch(record(2))


def test_a_line_shows_the_last_score_that_was_measured_and_what_was_sent_since_the_run_was_resumed(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Display(1, 9, no_terminal()) as shown:
        watch = shown.begin("mu\x1b[2J", 0)
        clock[0] += 40.0
        watch(record(5))
        clock[0] += 40.0
        watch({**record(6), "views": {}})
    first, second = capsys.readouterr().err.splitlines()
    assert "\x1b" not in first
    assert "AMP 50.0 %" in second
    assert "2.00 MB since it was resumed" in first


def test_a_round_without_a_score_has_none(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Display(1, 2, no_terminal()) as shown:
        watch = shown.begin("FedAvg", 0)
        clock[0] += 40.0
        watch(record(1, amp=None))
    assert "AMP" not in capsys.readouterr().err
