"""Malformed replies to every registered method: the round must end as if that client had not answered.

In each trial one client of a small federation, the first or the last that is asked, sends something other than its
honest reply. Nothing may be raised, the reply must be set aside with a reason, and the server's state and all clients'
memories must have the same bits as in a round in which this client did not answer. A reply that happens to be possible
only must not end the round. Then honest replies are delivered twice or by unknown clients, which must change nothing,
and the gate alone is given arbitrary Python objects. `memory.py` measures the memory that hostile replies take.

    python chaos/replies.py --count 100000 --save
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import torch
from arbitrary import a_contract, an_object
from harness import Dice, FaultError, little_memory, run_from_command_line, show, trials
from kinds import KINDS, PLAUSIBLE
from spoil import NO_PLACE, Honest, Kind

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.check.probe import require_finite, small_settings
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Message, Method, Reply, State, act, methods, run
from fedalloy.federation.engine import Answer
from fedalloy.federation.gate import refusal
from fedalloy.federation.setting import Setting
from fedalloy.train.costs import Meter

OTHERS = "possible, but for others' later replies"  # it makes other replies invalid
Place = tuple[str, int]  # an action and a client
VARIANTS: list[tuple[str, Mapping[str, Any]]] = [  # with other replies, or with another use of them
    ("dafkd-scores", {"combine": "krum", "trim": 0.4}),
    ("fedavg", {"combine": "median"}),
    ("fedavg", {"combine": "krum", "trim": 0.4}),
    ("fedavg", {"combine": "trimmed", "clip": "median"}),
    ("fedavg", {"weights": "uniform"}),
    ("fedmd", {"combine": "median", "clip_logits": 5.0}),
    ("selective-fd", {"labels": "hard"}),
]


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test `count` malformed replies in whole rounds, and as many objects against the gate alone."""
    with little_memory():
        found = {
            "replies": trials("replies", count, seed, reply_trial, save=save, finish=breadth),
            "deliveries": trials("deliveries", max(1, count // 10), seed, delivery_trial, save=save),
            "gate": trials("gate", count, seed, gate_trial, save=save),
        }
    for report in found.values():
        show(report)
    return found


def breadth(_: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report how many cases the trials were drawn from."""
    return {"methods": sorted({cast()[role].name for role in asking()}), "kinds": len(every_kind())}


# --- a round in which one client may answer otherwise -----------------------------------------------------------------


@dataclass
class Scene:
    """A method in a small federation before a round, and what happens if all clients are honest."""

    method: Method
    setting: Setting
    state: State
    memories: dict[int, Tree]
    older: dict[Place, Tree]
    messages: dict[Place, Tree] = field(default_factory=dict)
    replies: dict[Place, Tree] = field(default_factory=dict)
    known: dict[tuple[Place, str, str], Reply] = field(default_factory=dict)
    without: dict[Place, str] = field(default_factory=dict)

    def answer(self, round: int, message: Message, memory: Tree) -> Reply:
        """Return an honest reply; the same client with the same message is not trained again."""
        key = ((message.action, message.client), tree.digest(message.body), tree.digest(memory))
        if key not in self.known:
            self.known[key] = act(self.method, self.setting.client(message.client, round, memory), message)
        return self.known[key]

    def places(self) -> list[Place]:
        """Return the first and the last client that is asked for each action."""
        asked: dict[str, list[int]] = {}
        for action, client in self.replies:
            asked.setdefault(action, []).append(client)
        return [(action, end(clients)) for action, clients in asked.items() for end in (min, max)]

    def overheard(self, place: Place) -> Honest:
        """Return what a client would have replied here, and what it may have seen."""
        action, client = place
        return Honest(
            body=self.replies[place],
            message=self.messages[place],
            others=[body for (a, k), body in self.replies.items() if a == action and k != client],
            older=self.older.get(place),
            elsewhere=next((body for (a, k), body in self.replies.items() if a != action and k == client), None),
        )


class Stage(Serial):
    """The serial engine, with one client whose reply to one action is replaced or lost."""

    def __init__(
        self, scene: Scene, place: Place | None = None, body: Any = NO_PLACE, *, unasked: bool = False
    ) -> None:
        super().__init__(scene.setting, scene.memories)
        self.scene, self.place, self.body, self.unasked = scene, place, body, unasked
        self.rounds: list[Round] = []

    def open(self, method: Method, round: int) -> Round:
        """Begin a round, and store it: it contains what was set aside."""
        self.rounds.append((_Without if self.unasked else Round)(self, method, round))
        return self.rounds[-1]

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        """Let clients act; without a place all are honest, and their replies are recorded."""
        for message in messages:
            place = (message.action, message.client)
            honest = self.scene.answer(round, message, self.memories.get(message.client, {}))
            if place != self.place:
                if self.place is None:
                    self.scene.messages[place], self.scene.replies[place] = message.body, honest.body
                yield Answer(message.client, honest, Meter())
            elif self.body is not NO_PLACE:
                yield Answer(message.client, unchecked(self.body, honest.keep), Meter())


class _Without(Round):
    """A round for which the client is not sampled."""

    def sample(self, *, by_size: bool = False) -> list[int]:
        assert isinstance(self.engine, Stage)
        assert self.engine.place is not None
        return [k for k in super().sample(by_size=by_size) if k != self.engine.place[1]]


def unchecked(body: Any, keep: Tree | None) -> Reply:
    """A reply with arbitrary contents, as from an engine that does not check what it received."""
    made = object.__new__(Reply)
    object.__setattr__(made, "body", body)
    object.__setattr__(made, "keep", keep)
    return made


def played(scene: Scene, stage: Stage) -> str:
    """Run one round, and return the digest of everything that it leaves behind."""
    after = run(scene.method, stage, scene.state.round + 1, scene.state)
    require_finite(after.body, "state")
    return tree.digest({"state": after.body, "memories": {str(k): m for k, m in stage.memories.items()}})


@cache
def cast() -> list[Method]:
    """Return every registered method, and some variants, with options that make them fast."""
    every: list[tuple[str, Mapping[str, Any]]] = [(name, {}) for name in methods]
    return [made(name, **options) for name, options in [*every, *VARIANTS]]


def made(name: str, **options: Any) -> Method:
    """Return a method with its quick options, of which some may be keys of [aggregation]."""
    rule = {key: options.pop(key) for key in [f.name for f in fields(Aggregation)] if key in options}
    return methods[name](**{**methods[name].card.quick, **options}, aggregation=Aggregation(**rule))


@cache
def scene(role: int, which: int, round: int) -> Scene:
    """Return a method before its first or second round, with all honest replies."""
    method, setting = cast()[role], small_settings()[which]
    if round == 1:
        found = Scene(method, setting, run(method, Serial(setting), 0), {}, {})
    else:
        before = scene(role, which, round - 1)
        stage = Stage(before)
        after = run(method, stage, round - 1, before.state)
        found = Scene(method, setting, after, stage.memories, before.replies)
    played(found, Stage(found))
    return found


def absent(at: Scene, place: Place) -> str:
    """Return the digest of the round without this client's answer; it must equal the round without the client."""
    if place not in at.without:
        at.without[place] = played(at, Stage(at, place))
        first = next(iter(at.replies))[0]
        if place[0] == first and played(at, Stage(at, place, unasked=True)) != at.without[place]:
            raise FaultError(f"{at.method.name}: a lost reply of client {place[1]} is not the same as its absence")
    return at.without[place]


@cache
def asking() -> list[int]:
    """Return the methods that ask their clients for anything."""
    return [role for role in range(len(cast())) if scene(role, 0, 1).replies]


def reply_trial(dice: Dice) -> str:
    """Draw a method, a place and a kind that fits."""
    at = scene(dice.choice(asking()), dice.randrange(2), dice.choice((1, 2)))
    place = dice.choice(at.places())
    honest = at.overheard(place)
    body: Any = NO_PLACE
    while body is NO_PLACE:
        name, kind = dice.choice(every_kind())
        body = kind(honest, dice)
    return spoiled(at, place, name, body)


def spoiled(at: Scene, place: Place, kind: str, body: Any) -> str:
    """Run one round with this reply; return whether it was set aside, and raise if it had any effect."""
    expected = absent(at, place)
    stage = Stage(at, place, body)
    where = f"{at.method.name}, round {at.state.round + 1}, {place[0]} of client {place[1]}, {kind}"
    try:
        found = played(at, stage)
    except Exception as error:
        raise FaultError(f"{where}: {type(error).__name__}: {str(error)[:200]}") from error
    aside = stage.rounds[-1].quarantined
    places = [(bad["action"], bad["client"]) for bad in aside]
    if kind in PLAUSIBLE and places != [place]:
        return OTHERS if places else "possible"
    if places != [place] or not aside[0]["reason"]:
        raise FaultError(f"{where}: the replies set aside are {aside}")
    if found != expected:
        raise FaultError(f"{where}: the round differs from the one without this client")
    return "set aside"


def every_kind() -> list[tuple[str, Kind]]:
    """Return all kinds, including the possible ones."""
    return [*KINDS.items(), *PLAUSIBLE.items()]


# --- honest replies, wrongly delivered --------------------------------------------------------------------------------


class Postman(Stage):
    """All clients are honest, but an additional reply arrives from a client that owes none."""

    def __init__(self, scene: Scene, place: Place, sender: int) -> None:
        super().__init__(scene, place, scene.replies[place])
        self.sender = sender

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        """Return the answers, and an additional one."""
        yield from super().carry(method, round, messages)
        if self.place is not None and messages and messages[0].action == self.place[0]:
            yield Answer(self.sender, unchecked(self.body, None), Meter())


def delivery_trial(dice: Dice) -> str:
    """Test a duplicate reply, one from a client that was not asked, or one from a client that does not exist."""
    at = scene(dice.choice(asking()), dice.randrange(2), dice.choice((1, 2)))
    action, client = dice.choice(at.places())
    asked = {k for a, k in at.replies if a == action}
    unasked = sorted(set(at.setting.ids) - asked)
    ways = {"twice": client, "by a stranger": 99, **({"by one who was not asked": unasked[0]} if unasked else {})}
    way = dice.choice(sorted(ways))
    stage = Postman(at, (action, client), ways[way])
    where = f"{at.method.name}, {action} of client {client}, delivered {way}"
    try:
        found = played(at, stage)
    except Exception as error:
        raise FaultError(f"{where}: {type(error).__name__}: {str(error)[:200]}") from error
    if found != played(at, Stage(at)):
        raise FaultError(f"{where}: the round differs from the one without the additional reply")
    return way


# --- the gate alone ---------------------------------------------------------------------------------------------------


def gate_trial(dice: Dice) -> str:
    """Check anything against any contract: the result is a reason in one line, or a tree that can be sent."""
    contract, body = a_contract(dice), an_object(dice)
    reason = refusal(body, contract)
    if reason is None:
        tree.check(body)
        require_finite(body, "what passed the gate")
        tree.framing_bytes(body)
        return "passed"
    if not reason or len(reason) > 500 or not reason.isprintable():
        raise FaultError(f"the reason is not one line: {reason!r}")
    return "refused"


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_from_command_line(main, 1000)
