"""Distillation costs little beside a loop written by hand, and computes the same; `bench/` measures it properly."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import ModuleType

import pytest

from fedalloy.methods.fedgen import FedGen
from fedalloy.methods.fedkf_minus import FedKFMinus
from fedalloy.train.fit import one_thread


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))  # as `python bench/distillation.py` has it
    try:
        return importlib.import_module("distillation")
    finally:
        sys.path.pop(0)


@pytest.fixture
def small(bench):
    return replace(bench.LETTERS, samples=128, batch=16, classes=4)  # 8 steps


QUICK = FedKFMinus(width=8, noise=10, kd_start=1)


def test_a_local_step_of_fedkf_minus_equals_a_loop_with_its_layers_and_costs_little_more(bench, small):
    with one_thread():  # equality of the students is asserted inside, after every pass
        plain, alike = bench.local_steps(small, QUICK, passes=5)
    assert median(alike.ratios) < 1.5
    assert len(plain.ratios) == 5


@pytest.mark.parametrize(("plain", "sentence"), [(True, "plain loop"), (False, "same layers")])
def test_another_student_is_noticed(bench, small, monkeypatch, plain, sentence):
    trained = bench.ByHand.round

    def spoilt(self, number):
        trained(self, number)
        if isinstance(self.generator, bench.PlainGenerator) == plain:
            next(self.student.parameters()).data.mul_(1.1)

    monkeypatch.setattr(bench.ByHand, "round", spoilt)
    with one_thread(), pytest.raises(AssertionError, match=sentence):
        bench.local_steps(replace(small, samples=32), QUICK, passes=1)


def test_ten_heads_at_once_cost_a_server_far_less_than_ten_times_one(bench):
    work = replace(bench.W1, samples=64, clients=2, active=2)
    with one_thread():
        cost = bench.server_steps(work, FedGen(generator_steps=10), heads=10, passes=5)
    assert median(cost.ratios) < 4


def test_a_missed_limit_is_marked(bench):
    cost = bench.Cost("a", "b", limit=1.5, steps=10, ours=[2.0, 3.0, 4.0], theirs=[1.0, 2.0, 4.0])
    assert (cost.ratios, cost.kept) == ([2.0, 1.5, 1.0], True)
    assert cost.cells == ["a", "b", "200.0", "300.0", "1.500 (1.25-1.75)", "1.50"]
    assert replace(cost, limit=1.4).cells[-1] == "1.40, missed"


@pytest.mark.parametrize(("ratio", "answer"), [(1.1, 0), (1.2, 1)])
def test_the_command_fails_above_a_limit(bench, monkeypatch, ratio, answer):
    def cost(limit):
        return bench.Cost("a", "b", limit, 1, [ratio] * 3, [1.0] * 3)

    monkeypatch.setattr(bench, "local_steps", lambda work, method, passes: [cost(1.10)])
    monkeypatch.setattr(bench, "server_steps", lambda work, method, heads, passes: cost(2.0))
    assert bench.main() == answer
