"""DaFKD's teachers answer once a round, which gives the same student in less time; `bench/` measures it properly."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import ModuleType

import pytest

from fedalloy.methods import DaFKD
from fedalloy.train.fit import one_thread


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))  # as `python bench/dafkd.py` has it
    try:
        return importlib.import_module("dafkd")
    finally:
        sys.path.pop(0)


@pytest.fixture
def small(bench):
    return replace(bench.WORK, samples=4)


# One batch of samples and 12 steps: 8 + 12 * 3 passes, where one back counts two, against 12 * (8 * 2 + 3), a fifth.
QUICK = DaFKD(noise=4, generator_width=4, distil_samples=8, distil_batch=8, distil_steps=12)


def test_answers_once_a_round_give_the_same_student_in_less_than_half_the_time(bench, small):
    with one_thread():  # equality of the students is asserted inside, after every pass
        two, one = bench.gains("quick", small, QUICK, passes=3)
    assert two.apart < 1e-6
    assert one.apart < 1e-6
    assert median(two.ratios) > 2


def test_the_student_has_learned_from_these_teachers(bench, small):
    with one_thread():
        here = bench.server(small, replace(QUICK, distil_steps=2))
        student = here.ours()
        fewer = replace(here, replies=here.replies[:4])
        assert bench.distance(student, here.state["model"]) > 1e-4
        assert bench.distance(student, fewer.ours()) > 1e-5


def test_another_student_is_noticed(bench, small, monkeypatch):
    monkeypatch.setattr(bench, "two_calls", lambda teacher, x: (teacher.net(x), -teacher.judge(teacher.start(x))))
    with one_thread(), pytest.raises(AssertionError, match=r"\(two\) trained"):
        bench.gains("spoilt", small, replace(QUICK, distil_steps=3, distil_lr=1.0), passes=1)


def test_a_missed_target_is_marked(bench):
    gain = bench.Gain("a", "b", 4.0, ours=[1.0, 1.0, 2.0], theirs=[4.0, 5.0, 6.0], apart=2e-7)
    assert (gain.ratios, gain.reached) == ([4.0, 5.0, 3.0], True)
    assert gain.cells == ["a", "b", "5000", "1000", "4.00 (3.50-4.50)", "4.0", "2e-07"]
    assert replace(gain, target=4.1).cells[5] == "4.1, missed"
    assert replace(gain, target=None).cells[5] == ""


@pytest.mark.parametrize(("gain", "answer"), [(4.0, 0), (3.9, 1)])
def test_the_command_fails_below_the_target(bench, monkeypatch, gain, answer):
    found = [bench.Gain("a", "b", 4.0, [1.0] * 3, [gain] * 3, 0.0)]
    monkeypatch.setattr(bench, "gains", lambda name, work, method, passes: found)
    assert bench.main() == answer
