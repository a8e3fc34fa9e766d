"""What a method's round costs beside FedAvg's, known before the first one: on a clock that only counted work turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import fedalloy.methods
from fedalloy import Client, FedAvg, Federation, Message, Method, Reply, State, action, cost_of, simulate
from fedalloy.base.options import Count, Number, option, repeated
from fedalloy.base.text import TIMES
from fedalloy.cli.main import main
from fedalloy.config import build as build_module
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.data import load_data
from fedalloy.federation.core import methods
from fedalloy.federation.setting import Setting
from fedalloy.run.cost import Cost, shock

HOME = fedalloy.methods.__name__
TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [8]},
    "partition": {"name": "iid", "clients": 4},
    "training": {"epochs": 5, "batch": 8},
    "participation": {"policy": "fraction", "fraction": 0.5},
}
STEP, TURN = 0.25, 0.5  # seconds on the clock


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the work of this file's methods and the local steps of FedAvg turn."""
    now = [0.0]

    def fit(net: Any, me: Client, loss: Any) -> None:
        now[0] += STEP * me.steps

    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr("fedalloy.methods.fedavg.fit", fit)
    return now


@pytest.fixture
def setting() -> Setting:
    return build(experiment(TINY)).setting


@pytest.fixture
def slow(clock: list[float]) -> type[Method]:
    @dataclass(frozen=True, kw_only=True)
    class Slow(FedAvg):
        """Beside FedAvg's work it makes turns, on the server and in clients."""

        passes: Count = option(10, "passes of the server", repeats=True)
        turns: Number = option(20, "turns in a pass", repeats=True)
        tries: Number = option(0, "turns of a client, instead of the server's", repeats=True)
        start_round: Count = option(1, "the first round with turns")

        def round(self, s: State, fed: Federation) -> State:
            if fed.round >= self.start_round and not self.tries:
                clock[0] += TURN * self.passes * self.turns
            return super().round(s, fed)

        @action("model -> model, n, counts if tells_counts")
        def train(self, me: Client, msg: Message) -> Reply:
            clock[0] += TURN * self.tries
            return super().train(me, msg)

    return Slow


def steps_of(setting: Setting) -> float:
    """Local steps of the two clients of a round."""
    return 2 * sum(setting.steps(k) for k in setting.ids) / 4


def test_fedavg_costs_what_its_local_steps_cost(setting: Setting, clock: list[float]) -> None:
    cost = cost_of(FedAvg(), setting)
    assert cost is not None
    assert cost.seconds == pytest.approx(STEP * steps_of(setting))
    assert cost.times == pytest.approx(1.0)
    assert cost.plain == "FedAvg"


def test_the_servers_turns_are_counted_without_being_made(
    setting: Setting, slow: type[Method], clock: list[float]
) -> None:
    cost = cost_of(slow(), setting)
    assert cost is not None
    local = STEP * steps_of(setting)
    assert cost.seconds == pytest.approx(local + TURN * 200)
    assert cost.times == pytest.approx(1 + TURN * 200 / local)
    assert cost.loops == {"passes": 10, "turns": 20}  # `tries` is off
    assert clock[0] < 0.3 * cost.seconds


def test_the_turns_of_clients_count_for_each_that_takes_part(setting: Setting, slow: type[Method]) -> None:
    cost = cost_of(slow(passes=1, turns=0, tries=40), setting)
    assert cost is not None
    assert cost.seconds == pytest.approx(STEP * steps_of(setting) + 2 * TURN * 40)
    assert cost.loops == {"tries": 40}


def test_a_method_that_begins_late_is_measured_as_it_is_afterwards(setting: Setting, slow: type[Method]) -> None:
    early, late = cost_of(slow(), setting), cost_of(slow(start_round=51), setting)
    assert early is not None
    assert late is not None
    assert late.seconds == pytest.approx(early.seconds)


def test_the_option_that_would_make_it_cheap_is_named_with_what_it_makes_of_it(
    setting: Setting, slow: type[Method]
) -> None:
    cost = cost_of(slow(passes=1, turns=1000), setting)
    assert cost is not None
    name, value, times = cost.cheaper()
    assert name == "turns"
    assert times <= 5.0
    exact = cost_of(slow(passes=1, turns=value), setting)
    assert exact is not None
    assert exact.times == pytest.approx(times)
    plain = cost_of(FedAvg(), setting)
    assert plain is not None
    assert plain.cheaper() is None


def test_only_a_shock_is_told_and_only_of_what_can_be_one(
    setting: Setting, slow: type[Method], clock: list[float]
) -> None:
    told = shock("Slow", slow(turns=100), setting, rounds=50, prefix="method.")
    for part in ("Slow", "FedAvg", "passes = 10", "turns = 100", "1,000", "method.turns="):
        assert part in told
    assert shock("Slow", slow(turns=100), setting, rounds=0, prefix="") == ""  # nothing is left to be made
    before = clock[0]
    assert shock("Slow", slow(passes=1, turns=2), setting, rounds=50, prefix="") == ""
    assert shock("FedAvg", FedAvg(), setting, rounds=50, prefix="") == ""
    assert clock[0] == before  # not even tried


def test_what_a_method_does_once_or_cannot_do_here_has_no_cost(setting: Setting) -> None:
    assert cost_of(methods["local-converged"](), setting) is None
    assert cost_of(methods["feddf"](), setting) is None  # it needs a public set


def test_where_networks_differ_the_cost_is_that_beside_training_alone() -> None:
    two = build(experiment({**TINY, "models": [{"name": "mlp"}, {"name": "mlp", "hidden": [8]}]})).setting
    cost = cost_of(methods["local"](), two)
    assert cost is not None
    assert cost.plain == methods["local"].label
    assert cost.times > 0


@pytest.mark.parametrize("name", sorted(name for name, cls in methods.items() if cls.__module__.startswith(HOME)))
def test_options_that_repeat_are_whole_numbers_and_can_be_one(name: str) -> None:
    for one in repeated(methods[name]):
        assert isinstance(replace(methods[name](), **{one: 1}), methods[name])


def test_a_trial_changes_no_bit_of_the_run() -> None:
    quick = methods["fedgen"].card.quick
    exp = experiment({**TINY, "training": {}, "rounds": 2, "engine": "serial", "method": {"name": "fedgen", **quick}})
    plain, built = simulate(exp), build(exp)
    assert cost_of(methods["fedgen"](**quick), built.setting) is not None
    after = simulate(exp, built=built)
    assert [r["views"] for r in after.rounds] == [r["views"] for r in plain.rounds]


def test_the_commands_say_it_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fed(*words: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0
        return capsys.readouterr().out

    found = Cost(45.0, 0.9, "FedAvg", {"generator_epochs": 1, "generator_batches": 2000}, 0.022)
    monkeypatch.setattr("fedalloy.run.cost.cost_of", lambda method, setting: found)
    monkeypatch.chdir(tmp_path)
    keys = ("data=tiny", "model=mlp", "model.hidden=[8]", "partition.name=iid", "partition.clients=2", "rounds=2")
    options = ("generator_epochs=1", "generator_batches=6", "generator_batch=4", "generator_width=8")
    out = fed("compare", *keys, "-m", "fedavg,kdia", *(f"methods.kdia.{one}" for one in options), "--out", "many")
    assert out.index(f"50 {TIMES} FedAvg") < out.index("methods.kdia.generator_batches=") < out.index("AMP %")
    again = ("run", *keys, "method=kdia", *(f"method.{one}" for one in options), "--out", "one")
    assert "method.generator_batches=" in fed(*again)
    assert "generator_batches=" not in fed(*again)  # it is finished
