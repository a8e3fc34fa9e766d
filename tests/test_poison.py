"""Poison that is finite: replies that keep every name and shape, and would ruin the model all the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedalloy.base import tree
from fedalloy.check.probe import small_settings
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Message, Method, Reply, methods, quick, run
from fedalloy.federation.engine import Answer
from fedalloy.federation.gate import like, refusal
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedAvg

EVERYBODY = list(range(6))
HOSTILE, ROUND = 4, 2

POISON = {
    "running_var = -5": lambda name, t: torch.full_like(t, -5.0) if name.endswith("running_var") else t,
    "weights of 1e20": lambda name, t: torch.full_like(t, 1e20) if t.is_floating_point() else t,
    "weights of 3e38": lambda name, t: torch.full_like(t, 3e38) if t.is_floating_point() else t,
    "biases of -9, which no unit survives": lambda name, t: torch.full_like(t, -9.0) if name.endswith("bias") else t,
    "times 1000": lambda name, t: t * 1000 if t.is_floating_point() else t,
    "counters of -1": lambda name, t: t if t.is_floating_point() else torch.full_like(t, -1),
}


class Poisoning(Serial):
    """One client sends poison in one round."""

    def __init__(self, setting: Setting, change: Any) -> None:
        super().__init__(setting)
        self.change = change

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        for answer in super().carry(method, round, messages):
            hit = round == ROUND and answer.client == HOSTILE
            yield replace(answer, reply=Reply(self._spoiled(answer.reply.body), answer.reply.keep)) if hit else answer

    def _spoiled(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: {name: self.change(name, t) for name, t in value.items()} if isinstance(value, Mapping) else value
            for key, value in body.items()
        }


def with_batch_norm(**changes: Any) -> Setting:
    return replace(small_settings()[1], participation=Participation(), **changes)


@pytest.mark.parametrize("kind", POISON)
def test_finite_poison_is_refused_and_the_run_is_as_without_that_reply(kind: str) -> None:
    """One of six clients, one round, FedAvg's mean."""
    absent = [k for k in EVERYBODY if k != HOSTILE]
    trace = [EVERYBODY if t != ROUND else absent for t in range(1, 5)]
    seen: list[Round] = []
    engine = Poisoning(with_batch_norm(), POISON[kind])
    found = run(FedAvg(), engine, 4, watch=lambda _, fed: seen.append(fed))  # type: ignore[func-returns-value]
    setting = replace(with_batch_norm(), participation=Participation(policy="trace", trace=trace))
    assert tree.equal(found.body, run(FedAvg(), Serial(setting), 4).body)
    assert [[bad["client"] for bad in fed.quarantined] for fed in seen] == [[], [HOSTILE], [], []]


@pytest.mark.parametrize("kind", ["weights of 3e38", "times 1000"])
@pytest.mark.parametrize("name", [name for name in methods if "model" in methods[name].card.up])
def test_every_method_that_is_sent_a_model_back_refuses_one_from_far_away(name: str, kind: str) -> None:
    seen: list[Round] = []
    engine = Poisoning(with_batch_norm(), POISON[kind])
    run(quick(methods[name]), engine, 2, watch=lambda _, fed: seen.append(fed))  # type: ignore[func-returns-value]
    assert HOSTILE in [bad["client"] for bad in seen[1].quarantined]


NORM = {
    "norm.weight": torch.ones(2),
    "norm.running_mean": torch.zeros(2),
    "norm.running_var": torch.ones(2),
    "norm.num_batches_tracked": torch.tensor(7),
}


@pytest.mark.parametrize(
    ("name", "value", "sound"),
    [
        ("norm.running_var", torch.tensor([1.0, -1e-9]), False),
        ("norm.running_var", torch.tensor([1.0, 0.0]), True),
        ("norm.running_mean", torch.tensor([-1.0, 0.0]), True),
        ("norm.num_batches_tracked", torch.tensor(-1), False),
        ("norm.num_batches_tracked", torch.tensor(2**62), False),
        ("norm.num_batches_tracked", torch.tensor(9), True),
    ],
)
def test_the_gate_knows_what_batch_norm_keeps(name: str, value: torch.Tensor, sound: bool) -> None:
    fault = like(NORM)({**NORM, name: value})
    assert (fault is None) == sound
    assert sound or name in str(fault)


@pytest.mark.parametrize(
    ("sent", "came", "most", "sound"),
    [
        ([3.0, 4.0], [6.0, 8.0], 1.0, True),  # as far as what was sent is long
        ([3.0, 4.0], [6.0, 8.1], 1.0, False),
        ([0.0, 0.0], [0.6, 0.79], 1.0, True),  # what is shorter than 1 counts as 1
        ([0.0, 0.0], [0.6, 0.81], 1.0, False),
        ([3e38, 0.0], [-3e38, 0.0], 1.9, False),  # whose difference float32 cannot hold
        ([3e38, 0.0], [-3e38, 0.0], 2.1, True),
    ],
)
def test_a_reply_may_lie_so_far_from_what_was_sent(
    sent: list[float], came: list[float], most: float, sound: bool
) -> None:
    message = {"model": {"a": torch.tensor(sent[:1]), "b": torch.tensor(sent[1:])}}
    body = {"model": {"a": torch.tensor(came[:1]), "b": torch.tensor(came[1:])}, "n": 3}
    fault = refusal(body, None, message, most)
    assert (fault is None) == sound
    assert sound or "model" in str(fault)


def test_only_what_was_sent_can_be_far_from_it() -> None:
    far = {"w": torch.full((2,), 1e9)}
    assert refusal({"head": far}, None, {"model": {"w": torch.zeros(2)}}, 1.0) is None
    assert refusal({"model": far}, None, {"model": {"v": torch.zeros(2)}}, 1.0) is None
    assert refusal({"steps": {"t": torch.tensor(10**9)}}, None, {"steps": {"t": torch.tensor(0)}}, 1.0) is None
