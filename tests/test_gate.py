"""The gate: what is refused, with which words, and that a refused client might as well have been absent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from fedalloy.base import tree
from fedalloy.check.method import small_settings
from fedalloy.engine.base import Round
from fedalloy.engine.pool import Pool
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Client, Federation, Message, Method, Reply, action, reply, run
from fedalloy.federation.engine import Answer, Failure
from fedalloy.federation.gate import (
    LEAST,
    MOST,
    Check,
    array,
    counts,
    like,
    optional,
    probabilities,
    real,
    refusal,
    room,
    whole,
)
from fedalloy.federation.participation import Participation
from fedalloy.methods import FedAvg

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
        ({"w": torch.ones(2, 3)}, "has the wrong keys ('steps' is missing)"),
        ({**MODEL, "backdoor": torch.ones(1)}, "has the wrong keys (unexpected 'backdoor')"),
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
        (counts(torch.tensor([2, 3])), torch.tensor([2, 3]), None),
        (counts(torch.tensor([2, 3])), torch.tensor([6, -1]), "are [6, -1], not [2, 3] as at the start"),
        (counts(torch.tensor([2, 3])), torch.tensor([3, 2]), "are [3, 2], not [2, 3] as at the start"),
        (counts(torch.tensor([2, 3])), torch.tensor([2.0, 3.0]), "is float32, not int64"),
    ],
)
def test_checks_say_what_is_wrong(check: Check, value: Any, fault: str | None) -> None:
    assert check(value) == fault


def test_a_reply_must_hold_what_was_asked_for_and_nothing_else() -> None:
    contract = {"n": whole(1), "model": like(MODEL)}
    assert refusal({"n": 3, "model": MODEL}, contract) is None
    assert refusal({"n": 3}, contract) == "it lacks 'model'"
    assert refusal({"n": 3, "model": MODEL, "x" * 1000: 1}, contract) == f"it has the unexpected key '{'x' * 37}...'"
    assert refusal({"n": 0, "model": MODEL}, contract) == "n is 0, below 1"


def test_without_a_contract_numbers_must_be_finite() -> None:
    assert refusal({"anything": {"w": torch.ones(1)}, "n": 3, "s": "text"}, None) is None
    assert refusal({"anything": {"w": torch.tensor([NAN])}}, None) == "anything/w is not finite"
    assert refusal({"n": INF}, None) == "n is not finite"


def test_a_key_may_be_left_out_if_the_contract_says_so() -> None:
    contract = {"n": whole(1), "teacher": optional(like(MODEL))}
    assert refusal({"n": 3}, contract) is None
    assert refusal({"n": 3, "teacher": MODEL}, contract) is None
    assert refusal({"n": 3, "teacher": {}}, contract) == "teacher has the wrong keys ('steps' is missing)"
    assert refusal({"teacher": MODEL}, contract) == "it lacks 'n'"


@pytest.mark.parametrize(
    ("contract", "largest"),
    [
        ({"model": like(MODEL), "n": whole(1)}, {"model": MODEL, "n": 1 << 62}),
        ({"loss": real(), "at": like({"a": {"b": 1}})}, {"loss": -1.7976931348623157e308, "at": {"a": {"b": -MOST}}}),
        ({"soft": probabilities(500, 10)}, {"soft": torch.zeros(500, 10)}),
        (
            {"x": array(3, 2, dtype=torch.int64), "c": counts(torch.zeros(7, dtype=torch.int64))},
            {"x": torch.zeros(3, 2).long(), "c": torch.ones(7).long()},
        ),
        ({"teacher": optional(like(MODEL))}, {"teacher": MODEL}),
        ({}, {}),
        ({"é" * 3000: whole(1)}, {"é" * 3000: 1}),
    ],
)
def test_a_contract_says_how_many_bytes_may_come(contract: dict[str, Check], largest: dict[str, Any]) -> None:
    found, data = room(contract), tree.encode(largest)
    assert found is not None
    assert len(data) <= found.bytes <= len(data) + LEAST + 64
    assert len(tree.header(largest)[0]) <= found.head <= max(LEAST, len(data) + 64)


def test_what_cannot_be_measured_has_no_room_of_its_own() -> None:
    assert room(None) is None
    assert room({"n": lambda value: None}) is None
    assert room({"n": optional(lambda value: None)}) is None
    assert room({"text": like({"a": "b"})}) is None


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


class Stammering(Serial):
    """Client 4 is heard twice, and what comes first is not sound, or does not come."""

    def __init__(self, *args: Any, first: Any) -> None:
        super().__init__(*args)
        self.first = first

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        for answer in super().carry(method, round, messages):
            if answer.client == 4:
                yield Failure(4, "cut off") if self.first is None else replace(answer, reply=Reply(self.first))
            yield answer


@pytest.mark.parametrize("first", [None, {}, {"n": -1}])
def test_the_first_answer_that_is_sound_counts(first: Any) -> None:
    setting = replace(small_settings()[0], participation=Participation())
    seen: list[Round] = []
    found = run(Strict(), Stammering(setting, first=first), 2, watch=lambda _, fed: seen.append(fed))  # type: ignore[func-returns-value]
    assert tree.equal(found.body, run(Strict(), Serial(setting), 2).body)
    assert [[bad["client"] for bad in fed.quarantined] for fed in seen] == [[4], [4]]


def test_a_clean_round_quarantines_nobody() -> None:
    fed = Serial(replace(small_settings()[0], participation=Participation())).open(Strict(), 1)
    Strict().round(run(Strict(), Serial(small_settings()[0]), 0), fed)
    assert fed.quarantined == []


@pytest.mark.parametrize("make", [Serial, partial(Pool, workers=1)])
def test_a_reply_is_checked_once_on_its_way(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = tree.check

    def check(body: Any, where: str = "tree") -> None:
        looked.append(where)
        real(body, where)

    setting = replace(small_settings()[0], participation=Participation())
    with ExitStack() as stack:
        engine = make(setting)
        if isinstance(engine, Pool):
            stack.enter_context(engine)
        monkeypatch.setattr(tree, "check", check)
        run(FedAvg(), engine, 1)
    assert looked.count("message 'train'") == 1  # for all clients, who are sent the same
    # Where a client acts in a process of its own, it is checked there.
    assert looked.count("reply") == (len(setting.sites) if make is Serial else 0)
    assert not any(where == "it" or where.startswith("it/") for where in looked)


def test_a_changed_reply_is_checked_at_the_gate() -> None:
    checked = Reply({"n": 3}).check()
    assert checked.checked
    assert not replace(checked, body={"n": [3]}).checked  # type: ignore[dict-item]
    setting = replace(small_settings()[0], participation=Participation())
    seen: list[Round] = []
    run(
        FedAvg(),
        Tampering(setting, change={"n": [3]}),
        1,
        watch=lambda _, fed: seen.append(fed),  # type: ignore[func-returns-value]
    )
    assert [(bad["client"], bad["action"]) for bad in seen[0].quarantined] == [(4, "train")]


class Listing(FedAvg):
    """Its clients answer with something that cannot travel."""

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        return reply(n=[me.n])


def test_a_client_s_own_wrong_tree_is_reported_with_the_client_and_the_action() -> None:
    with pytest.raises(UsageError, match=r"reply/n: .*list") as caught:
        run(Listing(), Serial(replace(small_settings()[0], participation=Participation())), 1)
    assert caught.value.__notes__ == ["client 0, action 'train'"]
