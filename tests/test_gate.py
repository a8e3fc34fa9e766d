"""The gate: what is refused, with which words, and that a refused client might as well have been absent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedalloy import tree
from fedalloy.check import small_settings
from fedalloy.core import Federation, Message, Method, Reply, run
from fedalloy.engine.base import Answer, Round
from fedalloy.engine.serial import Serial
from fedalloy.gate import Check, array, counts, like, probabilities, real, refusal, whole
from fedalloy.methods import FedAvg
from fedalloy.participation import Participation

NAN, INF = float("nan"), float("inf")
MODEL = {"w": torch.zeros(2, 3), "steps": torch.tensor(4)}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"w": torch.ones(2, 3), "steps": torch.tensor(9)}, None),
        ({"w": torch.full((2, 3), -0.0), "steps": torch.tensor(9)}, None),
        ({"w": torch.full((2, 3), 1e-42), "steps": torch.tensor(9)}, None),  # subnormal numbers are numbers
        ({"w": torch.full((2, 3), NAN), "steps": torch.tensor(9)}, "w is not finite"),
        ({"w": torch.full((2, 3), -INF), "steps": torch.tensor(9)}, "w is not finite"),
        ({"w": torch.ones(1), "steps": torch.tensor(9)}, "w has the shape (1,), not (2, 3)"),
        ({"w": torch.tensor(1.0), "steps": torch.tensor(9)}, "w has the shape (), not (2, 3)"),
        ({"w": torch.ones(3, 2), "steps": torch.tensor(9)}, "w has the shape (3, 2), not (2, 3)"),
        ({"w": torch.ones(2, 3).double(), "steps": torch.tensor(9)}, "w is float64, not float32"),
        ({"w": torch.ones(2, 3), "steps": torch.tensor(9.0)}, "steps is float32, not int64"),
        ({"w": torch.ones(2, 3)}, "has other names than it should ('steps' is missing)"),
        ({**MODEL, "backdoor": torch.ones(1)}, "has other names than it should ('backdoor' is too much)"),
        ({"w": {"w": torch.ones(2, 3)}, "steps": torch.tensor(9)}, "w is a dict, not a tensor"),
        (torch.ones(2, 3), "is a Tensor, not a table"),
        ("model", "is a str, not a table"),
    ],
)
def test_like_wants_the_same_names_shapes_and_kinds(value: Any, fault: str | None) -> None:
    assert like(MODEL)(value) == fault


def test_like_names_the_place_in_nested_tables() -> None:
    assert like({"a": {"b": torch.zeros(1)}})({"a": {"b": torch.zeros(2)}}) == "a/b has the shape (2,), not (1,)"
    assert like({"a": 1.5})({"a": NAN}) == "a is not finite"
    assert like({"a": "text"})({"a": 3}) == "a is a int, not a str"


@pytest.mark.parametrize(
    ("check", "value", "fault"),
    [
        (whole(1), 0, "is 0, below 1"),
        (whole(1), -95, "is -95, below 1"),
        (whole(1, 10), 10**18, f"is {10**18}, above 10"),
        (whole(1), NAN, "is a float, not a whole number"),
        (whole(1), True, "is a bool, not a whole number"),
        (whole(1), torch.tensor(3), "is a Tensor, not a whole number"),
        (whole(1, 10), 10, None),
        (real(0, 1), 1.5, "is 1.5, above 1"),
        (real(0, 1), -0.1, "is -0.1, below 0"),
        (real(), INF, "is not finite"),
        (real(), "1", "is a str, not a number"),
        (real(0, 1), 1, None),
        (array(2, least=0, most=1), torch.tensor([0.0, 1.0]), None),
        (array(2, least=0, most=1), torch.tensor([0.0, 1.5]), "has numbers outside 0 to 1"),
        (array(2), torch.tensor([0.0, NAN]), "is not finite"),
        (array(2), torch.zeros(3), "has the shape (3,), not (2,)"),
        (array(0), torch.zeros(0), None),
        (probabilities(1, 2), torch.tensor([[0.25, 0.75]]), None),
        (probabilities(1, 2), torch.tensor([[0.25, 0.25]]), "has rows that do not sum to 1"),
        (probabilities(1, 2), torch.tensor([[-0.25, 1.25]]), "has numbers outside 0.0 to 1.001"),
        (probabilities(2, 2), torch.tensor([[0.25, 0.75]]), "has the shape (1, 2), not (2, 2)"),
        (counts(2, 5), torch.tensor([2, 3]), None),
        (counts(2, 5), torch.tensor([6, -1]), "has numbers outside 0 to 5"),
        (counts(2, 5), torch.tensor([2, 2]), "counts 4 samples, not 5"),
        (counts(2, 5), torch.tensor([2.0, 3.0]), "is float32, not int64"),
    ],
)
def test_checks_say_what_is_wrong(check: Check, value: Any, fault: str | None) -> None:
    assert check(value) == fault


def test_a_reply_must_hold_what_was_asked_for_and_nothing_else() -> None:
    contract = {"n": whole(1), "model": like(MODEL)}
    assert refusal({"n": 3, "model": MODEL}, contract) is None
    assert refusal({"n": 3}, contract) == "it lacks 'model'"
    assert (
        refusal({"n": 3, "model": MODEL, "x" * 1000: 1}, contract)
        == f"it holds '{'x' * 37}...', which nobody asked for"
    )
    assert refusal({"n": 0, "model": MODEL}, contract) == "n is 0, below 1"


def test_without_a_contract_numbers_must_be_finite() -> None:
    assert refusal({"anything": {"w": torch.ones(1)}, "n": 3, "s": "text"}, None) is None
    assert refusal({"anything": {"w": torch.tensor([NAN])}}, None) == "anything/w is not finite"
    assert refusal({"n": INF}, None) == "n is not finite"


class Strict(FedAvg):
    """FedAvg that says what it expects."""

    def expects(self, message: Message, fed: Federation) -> dict[str, Check]:
        return {"model": like(message["model"]), "n": whole(fed.sizes[message.client], fed.sizes[message.client])}


class Tampering(Serial):
    """Client 4 sends something else than it should."""

    def __init__(self, *args: Any, change: dict[str, Any]) -> None:
        super().__init__(*args)
        self.change = change

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        for answer in super().carry(method, round, messages):
            if answer.client == 4:
                yield replace(answer, reply=Reply({**answer.reply.body, **self.change}, {"seen": 1}))
            else:
                yield answer


@pytest.mark.parametrize(
    "change", [{"n": 10**6}, {"n": -1}, {"model": {}}, {"model": {"w": torch.ones(1)}}, {"more": 1}]
)
def test_a_refused_client_might_as_well_have_been_absent(change: dict[str, Any]) -> None:
    setting = small_settings()[0]
    everybody = replace(setting, participation=Participation())
    all_but = replace(setting, participation=Participation(policy="trace", trace=[[0, 1, 2, 3, 5]]))
    seen: list[Round] = []
    tampered = Tampering(everybody, change=change)
    method = Strict()
    bad = run(method, tampered, 2, watch=lambda _, fed: seen.append(fed))  # type: ignore[func-returns-value]
    good = run(method, Serial(all_but), 2)
    assert tree.equal(bad.body, good.body)
    assert 4 not in tampered.memories  # it remembers nothing of a round that it took no part in
    assert [[bad["client"] for bad in fed.quarantined] for fed in seen] == [[4], [4]]
    assert seen[0].quarantined[0]["action"] == "train"


def test_a_clean_round_quarantines_nobody() -> None:
    fed = Serial(replace(small_settings()[0], participation=Participation())).open(Strict(), 1)
    Strict().round(run(Strict(), Serial(small_settings()[0]), 0), fed)
    assert fed.quarantined == []
