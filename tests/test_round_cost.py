"""The engine costs little beside the raw loop, and computes the same; `bench/` measures it properly."""

import importlib
import sys
import time
from pathlib import Path
from statistics import median
from types import ModuleType

import pytest

from fedalloy.base import tree
from fedalloy.engine.pool import Pool
from fedalloy.federation.core import State
from fedalloy.methods import FedAvg
from fedalloy.train.fit import one_thread


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))  # as `python bench/round_cost.py` has it
    try:
        return importlib.import_module("round_cost")
    finally:
        sys.path.pop(0)


def test_an_engine_round_equals_the_raw_loop_and_costs_less_than_twice_as_much(bench):
    # Equality of the models is asserted inside, after every round.
    assert bench.engine_rounds(bench.QUICK[0], pairs=5).median < 2.0


def test_a_simulated_run_ends_with_the_model_of_the_raw_loop(bench):
    assert len(bench.simulate_rounds(bench.QUICK[1], pairs=2).ratios) == 2


def test_a_round_in_the_pool_equals_the_raw_loop_and_takes_less_than_twice_its_time(bench):
    # Two free workers take half its time; a machine that is busy elsewhere slows both sides.
    setting = bench.Workload("small", "lenet5", 1, 28, samples=256, clients=4, active=4, epochs=1).built().setting
    raw, method, ratios = bench.RawLoop(setting), FedAvg(), []
    with one_thread(), Pool(setting, workers=2) as pool:
        state = State(0, method.init(pool.open(method, 0)))
        for number in range(1, 7):
            begin = time.perf_counter()
            raw.round(number)
            middle = time.perf_counter()
            state = method.round(state, pool.open(method, number))
            ratios.append((time.perf_counter() - middle) / (middle - begin))
            assert tree.equal(raw.model, state["model"])
    assert median(ratios[1:]) < 2.0  # the first round warms up


def test_unequal_models_are_noticed(bench, monkeypatch):
    monkeypatch.setattr(bench.RawLoop, "round", lambda self, number: None)  # a raw loop that does not train
    with pytest.raises(AssertionError, match="different models"):
        bench.engine_rounds(bench.QUICK[0], pairs=1)


def test_the_ratio_is_the_median_over_pairs(bench):
    pairs = bench.Pairs(raw=[1.0, 2.0, 4.0], ours=[2.0, 3.0, 4.0])
    assert pairs.ratios == [2.0, 1.5, 1.0]
    assert (pairs.median, pairs.spread) == (1.5, (1.25, 1.75))


@pytest.mark.parametrize(("ratio", "answer"), [(1.5, 0), (1.6, 1)])
def test_the_command_fails_above_its_limit(bench, monkeypatch, ratio, answer):
    monkeypatch.setattr(bench, "engine_rounds", lambda work, pairs: bench.Pairs([1.0] * 7, [ratio] * 7))
    monkeypatch.setattr(bench, "simulate_rounds", lambda work, pairs: bench.Pairs([1.0] * 7, [9.0] * 7))
    assert bench.main(["--quick"]) == answer
