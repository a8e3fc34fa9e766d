"""The programs of `chaos/` with small counts, and that each of them can fail."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedalloy.engine import base
from fedalloy.gate import refusal, whole
from fedalloy.methods import FedAvg

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about strange tensors made on purpose


@pytest.fixture(scope="module")
def chaos() -> Iterator[Any]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))  # as `python chaos/replies.py` has it

    def program(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield program
    sys.path.pop(0)


# --- replies ----------------------------------------------------------------------------------------------------------


def test_no_malformed_reply_leaves_a_trace_in_any_method(chaos: Any) -> None:
    replies, dice = chaos("replies"), random.Random(0)
    assert len(replies.KINDS) >= 40
    with chaos("harness").little_memory():
        for role in range(len(replies.methods)):
            at = replies.scene(role, role % 2, 1)
            for place in at.places()[:2]:
                honest = at.overheard(place)
                fitting = [(name, body) for name, kind in replies.KINDS.items() if _fits(body := kind(honest, dice))]
                for name, body in dice.sample(fitting, 3):
                    assert replies.spoiled(at, place, name, body) == "set aside"


def test_no_kind_of_malformed_reply_leaves_a_trace_in_feddisco(chaos: Any) -> None:
    replies = chaos("replies")
    at = replies.scene(list(replies.methods).index("feddisco"), 1, 2)
    with chaos("harness").little_memory():
        for place in at.places():
            for name, kind in replies.every_kind():
                if _fits(body := kind(at.overheard(place), random.Random(0))):
                    replies.spoiled(at, place, name, body)


def _fits(body: Any) -> bool:
    return body is not sys.modules["spoil"].NO_PLACE


def test_without_the_gate_malformed_replies_are_noticed(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = chaos("replies")
    at = replies.scene(list(replies.methods).index("fedavg"), 0, 1)
    place = at.places()[0]
    monkeypatch.setattr(base, "refusal", lambda body, contract: None)
    for name in ("one NaN", "a scalar instead", "a name missing", "n is huge", "None", "another client's reply"):
        with pytest.raises(chaos("harness").FaultError):
            replies.spoiled(at, place, name, replies.KINDS[name](at.overheard(place), random.Random(0)))


def test_the_gate_answers_whatever_it_is_handed(chaos: Any) -> None:
    report = chaos("harness").trials("gate", 1500, 0, chaos("replies").gate_trial)
    assert report["failures"] == 0, report["examples"]
    assert min(report["endings"].values()) > 50


def test_replies_that_are_delivered_wrongly_change_nothing(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = chaos("replies")
    monkeypatch.setattr(replies, "asking", lambda: [list(replies.methods).index("fedavg")])
    assert chaos("harness").trials("deliveries", 20, 0, replies.delivery_trial)["failures"] == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "it is a NoneType, not a table"),
        ({3: 1, "n": 2}, "it holds '3', which nobody asked for"),
        ({"n": 2, "\x1b[2J\n": 1}, "it holds '?[2J?', which nobody asked for"),
        ({"n": 10**5000}, f"n is a number of 16610 bits, above {2**63 - 1}"),
    ],
)
def test_reasons_are_one_short_line(body: Any, reason: str) -> None:
    assert refusal(body, {"n": whole(1)}) == reason


def test_what_passes_without_a_contract_can_be_counted_and_kept() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    large = torch.ones(1).expand(1 << 40)  # takes no room, until somebody looks at all of it
    for body in (deep, {"n": 10**5000}, {"w": large}, {"w": torch.ones(1, requires_grad=True)}, {"a": [1]}):
        assert refusal(body, None) is not None
    assert refusal({"w": torch.ones(1).expand(9), "n": 3}, None) is None


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trial", "count"), [("table_trial", 1000), ("file_trial", 300)])
def test_a_wrong_experiment_is_refused_in_a_sentence(chaos: Any, trial: str, count: int) -> None:
    configs, harness = chaos("configs"), chaos("harness")
    with configs.read_once(), harness.little_memory():
        report = harness.trials(trial, count, 0, getattr(configs, trial))
    assert report["failures"] == 0, report["examples"]
    assert report["endings"]["refused"] < report["trials"]  # something is right


def test_a_right_experiment_runs(chaos: Any) -> None:
    configs = chaos("configs")
    with configs.read_once():
        report = configs.runs(20, 0)
    assert report["examples"] == []
    assert not report["too_many_refused"]
    assert report["endings"]["ran"] >= 12


def test_a_run_that_fails_is_a_failure(chaos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = chaos("configs")
    right = {"rounds": 1, "data": "tiny", "model": "mlp", "partition": {"name": "iid", "clients": 2}}
    monkeypatch.setattr(configs, "an_experiment", lambda dice: right)
    monkeypatch.setattr(FedAvg, "train", lambda self, me, msg: 1 / 0)
    FedAvg.train.is_action = True  # type: ignore[attr-defined]
    assert configs.runs(1, 0)["failures"] == 1


# --- exactness, and the gate's price ----------------------------------------------------------------------------------


def test_the_order_of_arrival_does_not_matter_and_is_another_one(chaos: Any) -> None:
    exactness = chaos("exactness")
    found = exactness.cells(["fedavg", "knfu"], 0, workers=(0,))
    assert all(len(set(cells.values())) == 1 for cells in found.values())
    setting = replace(chaos("replies").small_settings()[0])
    method = FedAvg()
    shuffled = exactness.Shuffled(exactness.Serial(setting), 0)
    body = method.init(shuffled.open(method, 0))
    messages = [exactness.Message("train", k, body) for k in setting.ids]
    assert [a.client for a in shuffled.carry(method, 1, messages)] != setting.ids


def test_another_seed_is_another_digest(chaos: Any) -> None:
    exactness = chaos("exactness")
    settings = [replace(exactness.small_settings()[1], seed=seed) for seed in (1, 2)]
    assert len({exactness.digest(FedAvg(), exactness.Serial(setting)) for setting in settings}) == 2


def test_the_gate_costs_little(chaos: Any) -> None:
    report = chaos("gate_price").main(2, 0, images=64)["gate-price"]
    assert 0 < report["median"] < 0.1  # small rounds and a busy machine; the program's own limit is 3 %


# --- the harness itself -----------------------------------------------------------------------------------------------


def test_a_campaign_goes_on_where_it_was_stopped(chaos: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    harness = chaos("harness")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    seen: list[float] = []

    def trial(dice: random.Random) -> str:
        seen.append(dice.random())
        if len(seen) == 3:
            raise ValueError("it broke")
        return "done"

    first = harness.trials("some", 4, 7, trial, save=True)
    whole = harness.trials("some", 6, 7, trial, save=True)
    assert (first["trials"], first["failures"], whole["trials"], whole["failures"]) == (4, 1, 6, 1)
    assert len(seen) == len(set(seen)) == 6  # none was repeated
    assert whole["examples"][0]["trial"] == 2
    assert whole["endings"] == {"done": 5, "failed": 1}
    again: list[float] = []
    harness.trials("some", 6, 7, lambda dice: again.append(dice.random()) or "done")
    assert again == seen  # a trial follows from the seed and its number
