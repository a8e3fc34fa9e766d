"""A run in float64 on the serial engine that records messages, memories and random draws, for an oracle to repeat."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from fedalloy.base.tree import Tree
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Message, Method, State
from fedalloy.federation.core import run as run_method
from fedalloy.federation.engine import Answer, Failure
from fedalloy.federation.setting import Setting

DRAWS = ("randn", "rand", "randint", "randperm", "multinomial")


class Draws(list[tuple[str, Tensor, Any]]):
    """The results of torch's random functions, in order; an oracle takes them one by one."""

    def take(self, kind: str) -> Tensor:
        """The next draw of a kind, whatever was drawn in between."""
        place = next(number for number, (name, _, _) in enumerate(self) if name == kind)
        return self.pop(place)[1].clone()

    def shares(self) -> Tensor:
        """The probabilities of the next draw of labels."""
        given: Tensor = next(first for name, _, first in self if name == "multinomial")
        return given.double()


@dataclass
class Act:
    """One client's action: what it was sent, remembered and drew, and what it answered and remembers now."""

    client: int
    sent: Tree
    before: Tree
    body: Tree
    after: Tree
    draws: Draws


@dataclass
class Seen:
    """One round: the server's state before and after it, the clients' acts, and what the server drew."""

    before: Tree
    after: Tree
    acts: list[Act]
    draws: Draws


@dataclass
class Watched(Serial):
    """The serial engine, with a note of every action."""

    setting: Setting
    drawn: Draws
    acts: list[Act] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.setting)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Let clients act one by one, and record it."""
        of_the_server = Draws(self.drawn)
        for message in messages:
            self.drawn.clear()
            before = copy.deepcopy(self.memories.get(message.client, {}))
            sent = copy.deepcopy(message.body)
            (answer,) = super().carry(method, round, [message])
            assert isinstance(answer, Answer)
            reply = copy.deepcopy(answer.reply)
            self.acts.append(Act(message.client, sent, before, reply.body, reply.keep or {}, Draws(self.drawn)))
            yield answer
        self.drawn[:] = of_the_server


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Method, Setting, int], list[Seen]]:
    """Run a method for some rounds in float64 and return what happened in each."""
    drawn = Draws()

    def recorded(name: str) -> Callable[..., Tensor]:
        original = getattr(torch, name)

        def draw(*args: Any, **kwargs: Any) -> Tensor:
            result: Tensor = original(*args, **kwargs)
            drawn.append((name, result.clone(), args[0]))
            return result

        return draw

    def watched(method: Method, setting: Setting, rounds: int) -> list[Seen]:
        engine, seen = Watched(setting, drawn), []
        last = State(0, method.init(engine.open(method, 0)))
        drawn.clear()

        def note(state: State, fed: Any) -> None:
            seen.append(Seen(last_body[-1], copy.deepcopy(state.body), list(engine.acts), Draws(drawn)))
            last_body.append(copy.deepcopy(state.body))
            engine.acts.clear()
            drawn.clear()

        last_body = [copy.deepcopy(last.body)]
        with monkeypatch.context() as patch:
            for name in DRAWS:
                patch.setattr(torch, name, recorded(name))
            run_method(method, engine, rounds, last, note)
        return seen

    return watched
