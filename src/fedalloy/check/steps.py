"""A method's rounds as they happen: what clients are asked, what travels for it; seen in a small federation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedalloy.check.probe import global_streams_restored, small_settings
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Message, Method, run
from fedalloy.federation.engine import Answer, Failure
from fedalloy.federation.setting import Setting
from fedalloy.train.fit import one_thread

ROUNDS = 3


@dataclass(frozen=True)
class Step:
    """An action that clients are asked for in a round; for each name that travels, whether it does for every client."""

    action: str
    down: dict[str, bool]
    up: dict[str, bool]


class Witness(Serial):
    """The serial engine, noting the names in all messages and replies: by round and action."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.sent: dict[int, dict[str, list[Sequence[str]]]] = {}
        self.answered: dict[int, dict[str, list[Sequence[str]]]] = {}

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Let clients act, and note what travels."""
        for message, answer in zip(messages, super().carry(method, round, messages), strict=True):
            self.sent.setdefault(round, {}).setdefault(message.action, []).append(tuple(message.body))
            if isinstance(answer, Answer):
                names = tuple(answer.reply.body)
                self.answered.setdefault(round, {}).setdefault(message.action, []).append(names)
            yield answer


def rounds_of(method: Method) -> list[tuple[int, list[Step]]]:
    """The steps of the first round, and of each later one that differs from the one before, with its number.

    >>> from fedalloy.methods import FedAvg
    >>> [(first, [step.action for step in steps]) for first, steps in rounds_of(FedAvg())]
    [(1, ['train'])]
    """
    engine = Witness(small_settings()[0])
    with one_thread(), global_streams_restored():
        run(method, engine, ROUNDS)
    told: list[tuple[int, list[Step]]] = []
    for t in range(1, ROUNDS + 1):
        steps = [
            Step(action, _names(bodies), _names(engine.answered.get(t, {}).get(action, [])))
            for action, bodies in engine.sent.get(t, {}).items()
        ]
        if not told or steps != told[-1][1]:
            told.append((t, steps))
    return told


def _names(bodies: Sequence[Sequence[str]]) -> dict[str, bool]:
    """The names in some messages, and whether all of them have it."""
    return {name: all(name in body for body in bodies) for name in dict.fromkeys(n for body in bodies for n in body)}
