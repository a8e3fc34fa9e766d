"""What a method's round costs beside FedAvg's, found before a run starts, by rounds that do as little as they can.

A round takes time for each local step and for each turn of the method's own loops, such as the steps of a generator:
the options that `repeats` marks. A trial of a few rounds with one step and one turn, then with some more of each, tells
what a step, a turn and the rest take; the whole follows without making thousands of turns. Which clients take part, the
data and the networks are those of the setting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fedalloy.base.options import repeated, without_effect
from fedalloy.base.text import TIMES, human_seconds
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.errors import FedalloyError
from fedalloy.federation.core import Federation, Message, Method, State, methods, run
from fedalloy.federation.engine import Answer, Failure
from fedalloy.federation.setting import Setting
from fedalloy.train.fit import one_thread

MORE = 8  # steps or turns that the second trial makes beyond the first
SHOCK = 5.0  # times FedAvg: what is more than that is told
LONG = 60.0  # seconds; a run that is shorter is no shock
ONCE = ("pretrain_public", "pretrain_private", "kd_start", "start_round")  # what happens before a usual round


@dataclass(frozen=True)
class Cost:
    """What a usual round of a method takes on one core of this machine, without evaluation."""

    seconds: float
    plain_seconds: float  # of the method that it is compared with
    plain: str  # the label of that method: FedAvg, or training alone where networks differ
    loops: Mapping[str, int]  # options whose product is the number of turns
    turn_seconds: float

    @property
    def times(self) -> float:
        """How many times the cost of a plain round that is."""
        return self.seconds / self.plain_seconds if self.plain_seconds else math.inf

    @property
    def turns(self) -> int:
        """How many turns a round has."""
        return math.prod(self.loops.values())

    def cheaper(self, most: float = SHOCK) -> tuple[str, int, float] | None:
        """The option that could make it cost at most so many times a plain round: its name, value and the result.

        If no value can, it is the smallest one; None if that would not even halve the cost.
        """
        if not self.loops or self.times <= most:
            return None
        name = max(self.loops, key=lambda one: self.loops[one])
        rest = self.seconds - self.turns * self.turn_seconds
        each = self.turn_seconds * self.turns / self.loops[name]
        value = _round_number((most * self.plain_seconds - rest) / each) if each else 1
        times = (rest + value * each) / self.plain_seconds
        return (name, value, times) if times < self.times / 2 else None


def cost_of(method: Method, setting: Setting) -> Cost | None:
    """What a usual round of a method costs in a setting, from a trial of a few short rounds.

    None if the method cannot be used there, or does all its work in one round that ends when it has converged.

    >>> from fedalloy import FedAvg, experiment
    >>> from fedalloy.config.build import build
    >>> setting = build(experiment({"data": "tiny", "model": "mlp"})).setting
    >>> cost_of(FedAvg(), setting).times
    1.0
    """
    plain = methods["fedavg"]() if setting.same_network else methods["local"]()
    found = _tried(method, setting)
    beside = found if type(method) is type(plain) else _tried(plain, setting)
    if found is None or beside is None:
        return None
    return Cost(found.of(setting), beside.of(setting), plain.label, found.loops, found.turn(setting))


def shock(label: str, method: Method, setting: Setting, *, rounds: int, prefix: str) -> str:
    """A sentence on what a method will cost if that is a shock, and on the option that would help; else an empty one.

    `prefix` is what the method's options begin with where the user writes them. A method without loops of its own is
    not tried.
    """
    mean_steps = sum(setting.steps(k) for k in setting.ids) / len(setting.ids)
    if rounds < 1 or math.prod(_loops(method).values()) <= max(SHOCK, mean_steps):
        return ""
    cost = cost_of(method, setting)
    if cost is None or cost.times < SHOCK or rounds * cost.seconds < LONG:
        return ""
    told = f"{label}: about {human_seconds(cost.seconds)} a round on one core, {cost.times:.0f} {TIMES} {cost.plain}"
    lever = cost.cheaper()
    if lever is None:  # most of it comes from elsewhere
        return told
    product = f" {TIMES} ".join(f"{name} = {value}" for name, value in cost.loops.items())
    why = f"{cost.turns:,} steps of its own, {product}" if len(cost.loops) > 1 else product
    name, value, times = lever
    return f"{told} ({why}); `{prefix}{name}={value}` makes it {max(times, 1.0):.0f} {TIMES}"


@dataclass(frozen=True)
class _Trial:
    """Seconds of a round: of each client and each of its steps and turns, and of the server and its turns."""

    client: float
    step: float
    client_turn: float
    server: float
    server_turn: float
    loops: Mapping[str, int]

    def of(self, setting: Setting) -> float:
        """A usual round's seconds."""
        active = setting.usual_active
        steps = sum(setting.steps(k) for k in setting.ids) / len(setting.ids)
        return active * (self.client + steps * self.step) + self.server + self.turn(setting) * self.turns

    def turn(self, setting: Setting) -> float:
        """What one more turn takes: of the server, or of each client that takes part."""
        return self.server_turn + setting.usual_active * self.client_turn

    @property
    def turns(self) -> int:
        return math.prod(self.loops.values()) if self.loops else 0


def _tried(method: Method, setting: Setting) -> _Trial | None:
    """What a method's steps and turns take; None if it cannot be tried."""
    if method.card.once:
        return None
    loops = _loops(method)
    once: Mapping[str, Any] = {name: 1 for name in ONCE if (getattr(method, name, None) or 0) > 1}
    try:
        setting.check(method)
        short: Any = replace(method, **{**once, **dict.fromkeys(loops, 1)})
        longest = max(loops, key=lambda name: loops[name], default="")
        longer = replace(short, **{longest: 1 + MORE}) if loops else short
        one, more = _with_steps(setting, 1), _with_steps(setting, 1 + MORE)
        with one_thread():
            walk = _Walk(one)
            walk.round(short)  # the first rounds warm up, and bring what later ones need
            client, server = walk.round(short)
            turned = walk.round(longer) if loops else (client, server)
            walk.setting(more)
            stepped, _ = walk.round(short)
    except FedalloyError:
        return None
    step, client_turn, server_turn = (
        max(0.0, (after - before) / MORE)
        for after, before in ((stepped, client), (turned[0], client), (turned[1], server))
    )
    client = max(0.0, client - step - (client_turn if loops else 0.0))
    return _Trial(client, step, client_turn, max(0.0, server - server_turn), server_turn, loops)


class _Clocked(Serial):
    """Clients one after the other, and the time of the processor that they take: other programs take none of it."""

    seconds = 0.0

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterator[Answer | Failure]:
        """Let one client after the other act, on the clock."""
        answers = iter(super().carry(method, round, messages))
        while True:
            start = time.process_time()
            answer = next(answers, None)
            self.seconds += time.process_time() - start
            if answer is None:
                return
            yield answer


class _Walk:
    """One round after the other of a method whose options, and whose setting, change on the way."""

    def __init__(self, setting: Setting) -> None:
        self._engine, self._state = _Clocked(setting), State(0, {})

    def setting(self, setting: Setting) -> None:
        """Go on in another setting, with the same memories."""
        self._engine = _Clocked(setting, self._engine.memories)

    def round(self, method: Method) -> tuple[float, float]:
        """The next round: the seconds of each client that takes part, and of the server."""
        active = 0

        def watch(_: State, fed: Federation) -> None:
            nonlocal active
            assert isinstance(fed, Round)
            active = len(fed.active)

        number, clients, start = self._state.round + 1, self._engine.seconds, time.process_time()
        self._state = run(method, self._engine, number, self._state if number > 1 else None, watch)
        whole, clients = time.process_time() - start, self._engine.seconds - clients
        return clients / max(1, active), whole - clients


def _loops(method: Method) -> dict[str, int]:
    """The options that say how many turns a round has, if they have an effect and it is more than one."""
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    idle = without_effect(method, values)
    return {name: values[name] for name in repeated(method) if (values[name] or 0) > 1 and name not in idle}


def _with_steps(setting: Setting, steps: int) -> Setting:
    """A setting in which each client makes so many local steps."""
    return replace(setting, work=replace(setting.work, work="fixed_steps", epochs=1, steps=steps))


def _round_number(value: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, ... that is not above a value; at least 1.

    >>> _round_number(49.0), _round_number(20.0), _round_number(0.1)
    (20, 20, 1)
    """
    power = int(10 ** math.floor(math.log10(max(value, 1.0))))
    return max([1, *(first * power for first in (1, 2, 5) if first * power <= value)])
