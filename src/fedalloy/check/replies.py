"""The rules about messages and replies: what each side expects, and that the server copes with bad replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.check.probe import (
    STATE,
    Case,
    ContractError,
    Probe,
    first_difference,
    located,
    place,
    setting_with_public_classes,
    trace,
)
from fedalloy.engine.base import Round
from fedalloy.federation.core import Client, Message, Method, Reply
from fedalloy.federation.engine import Answer
from fedalloy.federation.gate import Contract, refusal, room
from fedalloy.federation.setting import Setting
from fedalloy.train.costs import Meter


class _Gated(Probe):
    """Keeps the rounds, which record what the gate set aside."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.rounds: list[Round] = []

    def open(self, method: Method, round: int) -> Round:
        self.rounds.append(super().open(method, round))
        return self.rounds[-1]


def check_expects_what_it_gets(case: Case) -> None:
    """What expects() says holds for every honest reply."""
    engine = _Gated(case.setting)
    trace(case.method, engine, 3)
    for fed in engine.rounds:
        for bad in fed.quarantined:
            raise ContractError(
                f"round {fed.round}: expects() refuses the honest answer to '{bad['action']}' of client "
                f"{bad['client']}, because {bad['reason']}; fix the action, or expects()"
            )


class _Looking(_Gated):
    """Clients check what they are sent, and both sides check its size, as between machines."""

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        down = method.accepts(message.action, replace(me, meter=Meter()))
        if (fault := refusal(message.body, down)) is not None:
            raise ContractError(
                f"{place(me, message)}: accepts() refuses what the server honestly sent, because {fault}; "
                "fix round(), or accepts()"
            )
        answer = super().act(method, me, message)
        for where, body, contract in (
            ("accepts", message.body, down),
            ("expects", answer.body, method.expects(message, self.rounds[-1])),
        ):
            if body and _too_large(body, contract):
                raise ContractError(
                    f"{place(me, message)}: {len(tree.encode(body)):,} bytes travel honestly, which is more than "
                    f"{where}() allows; let its checks say the largest thing that they let through"
                )
        return answer


def _too_large(body: Tree, contract: Contract | None) -> bool:
    most = room(contract)
    return most is not None and (len(tree.encode(body)) > most.bytes or len(tree.header(body)[0]) > most.head)


def check_accepts_what_it_is_sent(case: Case) -> None:
    """What accepts() says holds for all that clients are sent, and nothing is larger than a contract allows."""
    trace(case.method, _Looking(case.setting), 3)
    trace(case.method, _Looking(setting_with_public_classes()), 2)


class _Lossy(Probe):
    """Some clients act, but their replies are lost; or they were absent from the start, and the server knows it."""

    advice = "build on the replies that came, never on those asked, and return s.next() when there are none"

    def __init__(self, setting: Setting, lost: Callable[[int, int], bool], *, never_there: bool = False) -> None:
        super().__init__(setting)
        self.lost, self.never_there = lost, never_there

    def open(self, method: Method, round: int) -> Round:
        return _Told(self, method, round) if self.never_there else super().open(method, round)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        reached = [m for m in messages if not (self.never_there and self.lost(round, m.client))]
        return [a for a in super().carry(method, round, reached) if not self.lost(round, a.client)]


class _Told(Round):
    """The server does not sample the clients whose replies would be lost."""

    def sample(self, *, by_size: bool = False) -> list[int]:
        assert isinstance(self.engine, _Lossy)
        return [k for k in super().sample(by_size=by_size) if not self.engine.lost(self.round, k)]


def check_survives_lost_replies(case: Case) -> None:
    """Lost replies do not count, and a round in which all are lost changes no model."""
    lossy = Probe(half_lost(case.setting))
    lossy.advice = _Lossy.advice
    trace(case.method, lossy, 2)
    silent = trace(case.method, _Lossy(case.setting, lambda round, _: round % 2 == 1), 3)
    for t in (t for t in (1, 3) if t in silent.engine.asked):
        with located(f"models() after round {t}, in which nobody answered", _Lossy.advice):
            before, after = (case.method.models(silent.saved(t - past)[0]) for past in (1, 0))
            for view, weights in after.items():
                if view not in before or not tree.equal(before[view], weights):
                    raise ContractError(f"round {t}: nobody answered, but the model '{view}' moved; {_Lossy.advice}")
    unheard = set(sorted(case.plain.engine.asked.get(1, set()))[1::2])
    if unheard:
        _check_unheard_do_not_count(case, unheard)


def half_lost(setting: Setting) -> Setting:
    """A setting in which half of the replies are lost."""
    return replace(setting, participation=replace(setting.participation, late_drop=0.5))


def _check_unheard_do_not_count(case: Case, unheard: set[int]) -> None:
    """To the server, clients that trained but were lost must look the same as clients that were never there."""
    real = trace(case.method, _Lossy(case.setting, lambda _, client: client in unheard), 1)
    without = trace(case.method, _Lossy(case.setting, lambda _, client: client in unheard, never_there=True), 1)
    a, b = real.rounds[1][STATE], without.rounds[1][STATE]
    if a != b:
        who = ", ".join(map(str, sorted(unheard)))
        raise ContractError(
            f"round 1: the replies of clients {who} were lost, but {first_difference(a, b)} of the server's state is "
            f"not what it is without these clients; {_Lossy.advice}"
        )


class _Tampering(_Gated):
    """Some clients' numbers are NaN."""

    def __init__(self, setting: Setting, liars: set[int]) -> None:
        super().__init__(setting)
        self.liars, self.lied = liars, False

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        answer = super().act(method, me, message)
        if me.id not in self.liars:
            return answer
        body = spoiled(answer.body)
        self.lied = self.lied or not tree.equal(body, answer.body)
        return Reply(body, answer.keep)


def spoiled(body: Tree) -> dict[str, Any]:
    """A reply whose floating-point numbers are all NaN.

    >>> spoiled({"n": 3, "model": {"w": torch.ones(2)}})
    {'n': 3, 'model': {'w': tensor([nan, nan])}}
    """

    def spoil(value: Any) -> Any:
        if isinstance(value, Mapping):
            return spoiled(value)
        if isinstance(value, Tensor) and value.is_floating_point():
            return torch.full_like(value, torch.nan)
        return float("nan") if isinstance(value, float) else value

    return {key: spoil(value) for key, value in body.items()}


def check_survives_bad_replies(case: Case) -> None:
    """A client that answers with NaN is set aside, and the server's state is as if it had been absent."""
    liars = set(sorted(case.plain.engine.asked.get(1, set()))[::2])
    engine = _Tampering(case.setting, liars)
    bad = trace(case.method, engine, 1)
    if not engine.lied:
        return  # its clients send no floating-point numbers
    without = trace(case.method, _Lossy(case.setting, lambda _, client: client in liars, never_there=True), 1)
    a, b = bad.rounds[1][STATE], without.rounds[1][STATE]
    if a != b:
        raise ContractError(
            f"round 1: clients {', '.join(map(str, sorted(liars)))} sent NaN, and {first_difference(a, b)} of the "
            f"server's state is not what it is without them; {_Lossy.advice}"
        )
