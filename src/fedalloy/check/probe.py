"""Small federations and an observed run, used to check the rules of a method's contract."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from fedalloy.base import rng, tree
from fedalloy.base.tree import Tree
from fedalloy.data.label_space import LabelSpace
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.errors import FedalloyError
from fedalloy.federation.core import Client, Message, Method, Network, Reply, State, act, run
from fedalloy.federation.engine import Answer
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting, Site
from fedalloy.nets.models import FeatureNet, create
from fedalloy.train.fit import LocalWork

STATE = "the server's state"
PURE = "an action may use only `me` and its message, and round() only its state, `fed` and the replies"
KEEP = "keep what must last in the State or in reply(keep=...)"
COPY = "work on a copy (params, clone, a new dict)"


class ContractError(FedalloyError):
    """A method violates the contract: says which rule, where, and what to do."""


def small_settings() -> list[Setting]:
    """Six clients with 1 to 33 samples of 4 classes, half of them active: once a perceptron, once with BatchNorm.

    All hold a public set with labels; a separate rule checks that a method works without it.
    """
    sizes = [9, 1, 12, 17, 20, 33]
    pool = _noise("private", sum(sizes) + 4 * len(sizes))
    parts = torch.split(torch.arange(len(pool)), [part for n in sizes for part in (n, 4)])
    sites = [Site(pool.subset(train), pool.subset(test)) for train, test in zip(parts[::2], parts[1::2], strict=True)]
    return [
        Setting(
            sites=sites,
            networks=[network],
            classes=4,
            seed=1,
            work=LocalWork(batch=8, lr=0.05, momentum=0.5),
            participation=Participation(policy="fraction", fraction=0.5),
            public=PublicSet(_noise("public", 24), labelled=True, holder="all"),
        )
        for network in (perceptron, with_batch_norm)
    ]


def setting_with_public_classes() -> Setting:
    """The small setting with the perceptron, with public samples of four other classes: networks have eight outputs."""
    setting = small_settings()[0]
    public = _noise("public", 24)
    return replace(
        setting,
        networks=[partial(perceptron, outputs=8)],
        public=PublicSet(replace(public, y=public.y + 4), labelled=True, holder="all"),
        space=LabelSpace((("private", 4), ("public", 4))),
    )


def _noise(name: str, n: int) -> Samples:
    x = torch.randn(n, 1, 8, 8, generator=rng.generator(0, "check", name))
    return Samples(x, torch.arange(n) % 4, torch.arange(n))


def perceptron(outputs: int = 4) -> nn.Module:
    """A small network with features and a head."""
    return create("mlp", classes=outputs, channels=1, size=8, hidden=16)


def with_batch_norm() -> nn.Module:
    """A small network with BatchNorm and dropout."""
    features = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    # Dropout and BatchNorm reveal any influence other than the addressed streams and the data.
    return FeatureNet(features, nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 4)), (64,))


def without_features(network: Network) -> Network:
    """The same network without `features` and `head`, under other names."""
    return lambda: nn.Sequential(network())


class Probe(Serial):
    """The serial engine, recording what is asked and answered; each rule changes one of its steps."""

    advice = ""  # what to do about a fault that appears only on this engine

    def __init__(self, setting: Setting, memories: dict[int, Tree] | None = None) -> None:
        super().__init__(setting, memories)
        self.asked: dict[int, set[int]] = {}
        self.answers: dict[str, bytes] = {}

    def open(self, method: Method, round: int) -> Round:
        """Start a round that must not be skipped because of what the method made of the replies."""
        return Unskipped(self, method, round)

    def order(self, messages: Sequence[Message]) -> Iterable[Message]:
        """The messages as they are carried out."""
        return messages

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        """One client carries out one message."""
        return act(method, me, message)

    def between(self, old: State, new: State) -> State:
        """What the next round starts from; `old` is what this round started from."""
        del old
        return new

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        """Let clients act, and note their answers."""
        for message in self.order(messages):
            self.asked.setdefault(round, set()).add(message.client)
            me = self.setting.client(message.client, round, self.memories.get(message.client, {}))
            with located(place(me, message), self.advice):
                answer = self.act(method, me, message)
            number = sum(name.endswith(f"client {me.id}") for name in self.answers) + 1
            self.answers[f"answer {number}, to '{message.action}', of client {me.id}"] = tree.encode(answer.body)
            yield Answer(message.client, answer, me.meter)


class Unskipped(Round):
    """A round whose state must be finite; a normal run would skip it and hide the method's fault."""

    def skip(self, reason: str) -> NoReturn:
        """End the round, or refuse the method."""
        if "is not finite" in reason:
            advice = getattr(self.engine, "advice", "") or "look for a division by zero"
            raise ContractError(f"round {self.round}, {reason.partition(';')[0]}; {advice}")
        super().skip(reason)


@dataclass(frozen=True)
class Trace:
    """Everything that a run left: for each round the answers, the state and the memories, as bytes."""

    engine: Probe
    state: State
    rounds: dict[int, dict[str, bytes]]
    changed: Sequence[str] = field(default_factory=list)

    def saved(self, round: int) -> tuple[State, dict[int, Tree]]:
        """State and memories as they were after a round, read back from their bytes."""
        notes = self.rounds[round]
        memories = {k: tree.decode(notes[memory_of(k)]) for k in self.engine.setting.ids if memory_of(k) in notes}
        return State(round, tree.decode(notes[STATE])), dict(memories)


def trace(method: Method, engine: Probe, rounds: int, state: State | None = None) -> Trace:
    """Run a method to the given round, and check after each that what it left is a tree of finite numbers."""
    notes: dict[int, dict[str, bytes]] = {}
    before = looks(method)
    for t in range(0 if state is None else state.round + 1, rounds + 1):
        engine.answers.clear()
        with located(f"round {t}, the server's {'round' if t else 'init'}()", engine.advice):
            new = run(method, engine, t, state, watch=lambda *_: True)
            tree.check(new.body, "state")
        left = {STATE: new.body, **{memory_of(k): engine.memories[k] for k in sorted(engine.memories)}}
        for what, body in left.items():
            require_finite(body, f"round {t}, {what}", engine.advice)
        notes[t] = {**engine.answers, **{what: tree.encode(body) for what, body in left.items()}}
        state = engine.between(state or new, new)
    assert state is not None
    changed = [name for name, look in looks(method).items() if before.get(name) != look]
    return Trace(engine, state, notes, changed)


def require_same(plain: Trace, other: Trace, advice: str) -> None:
    """Refuse two runs that differ in a common round, and report the first difference."""
    for t in sorted(plain.rounds.keys() & other.rounds.keys()):
        a, b = plain.rounds[t], other.rounds[t]
        # Answers precede the state and the memories that follow from them: the first difference is the cause.
        for what in [*a, *(set(b) - set(a))]:
            if a.get(what) != b.get(what):
                key = first_difference(a.get(what), b.get(what))
                raise ContractError(f"round {t}, {what}: {key} is not what it was in a plain run; {advice}")


def first_difference(a: bytes | None, b: bytes | None) -> str:
    """The first key in which two encoded trees differ, as a sentence for the user."""
    left, right = ({} if x is None else dict(tree.leaves(tree.decode(x))) for x in (a, b))
    for key in sorted(left.keys() | right.keys()):
        if key not in left or key not in right or not tree.equal({"": left[key]}, {"": right[key]}):
            return f"key '{key}'"
    return "it"


def require_finite(body: Tree, where: str, advice: str = "") -> None:
    """Refuse a tree that contains NaN or infinity."""
    for key, leaf in tree.leaves(body):
        if not (leaf.isfinite().all() if isinstance(leaf, Tensor) else isinstance(leaf, str) or math.isfinite(leaf)):
            raise ContractError(f"{where}: key '{key}' is not finite; {advice or 'look for a division by zero'}")


def looks(method: Method) -> dict[str, str]:
    """The attributes of the method object and its classes, as text: none may change."""
    own = {f"self.{name}": repr(value) for name, value in vars(method).items()}
    shared = {
        f"{cls.__name__}.{name}": repr(value)
        for cls in type(method).__mro__
        for name, value in vars(cls).items()
        if not name.startswith("__")
    }
    return own | shared


@contextmanager
def located(where: str, advice: str) -> Iterator[None]:
    """Turn any failure inside into a sentence that says where it happened."""
    try:
        yield
    except ContractError:
        raise
    except FedalloyError as error:
        raise ContractError("; ".join(filter(None, [f"{where}: {error}", advice]))) from error
    except Exception as error:
        raise ContractError(f"{where}: {type(error).__name__}: {error}; {advice or 'this must run'}") from error


def place(me: Client, message: Message) -> str:
    """Where an action happens, for a sentence."""
    return f"round {me.round}, action '{message.action}' of client {me.id}"


def memory_of(client: int) -> str:
    """A client's memory, for a sentence."""
    return f"the memory of client {client}"


def global_streams() -> dict[str, object]:
    """The states of the global random streams."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # only read
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (kind, np.asarray(keys).tobytes(), *rest),
        "random": random.getstate(),
    }


@contextmanager
def global_streams_restored() -> Iterator[None]:
    """Leave the global random streams as they were before the block."""
    kept: tuple[Tensor, Any, Any] = (torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        random.setstate(kept[2])


@dataclass(frozen=True)
class Case:
    """A method in a setting, with its plain run of four rounds, with which the rules compare other runs."""

    method: Method
    setting: Setting

    @cached_property
    def plain(self) -> Trace:
        """Four rounds on the serial engine."""
        return trace(self.method, Probe(self.setting), 4)


Rule = Callable[[Case], None]
