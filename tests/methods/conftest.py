"""A fake federation for servers' steps by hand, and a recorded run on the serial engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from fedalloy.base import rng
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Client, Message, Method, State
from fedalloy.federation.core import run as run_method
from fedalloy.federation.setting import Setting
from fedalloy.train.costs import Meter
from fedalloy.train.fit import LocalWork


class Scalar(nn.Module):
    """One weight in float64, so that hand-computed vectors are met closely; it starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))


@dataclass
class FakeFederation:
    """A round in which the clients in `replies` are active and answer what is written there."""

    replies: Mapping[int, Tree]
    sizes: Sequence[int] = (1, 1)
    network: Callable[[], nn.Module] = Scalar
    work: LocalWork = field(default_factory=lambda: LocalWork(lr=0.1))
    round: int = 1
    seed: int = 0
    classes: int = 2
    task: str = "classes"
    public: None = None
    meter: Meter = field(default_factory=Meter)
    asked: list[tuple[str, list[int], dict[str, Any]]] = field(default_factory=list)
    sampled_by_size: bool | None = None
    notes: dict[str, float] = field(default_factory=dict)

    def build(self) -> nn.Module:
        return self.network()

    def random_net(self, client: int) -> nn.Module:
        net = self.network()
        for p in net.parameters():
            nn.init.constant_(p, 100.0 + client)
        return net

    def sample(self, *, by_size: bool = False) -> list[int]:
        self.sampled_by_size = by_size
        return sorted(self.replies)

    def stragglers(self) -> dict[int, int]:
        return {}

    def steps(self, client: int) -> int:
        return 1

    def rng(self, purpose: str) -> torch.Generator:
        return rng.generator(self.seed, purpose, self.round, -1)

    def ask(self, action: str, clients: Iterable[int] | Mapping[int, Tree], /, **body: Any) -> list[Message]:
        self.asked.append((action, sorted(clients), body))
        return [Message(action, k, self.replies[k]) for k in sorted(clients)]

    def note(self, name: str, value: float) -> None:
        self.notes[name] = value

    def pool(self) -> Samples:
        raise AssertionError("this method must not pool data")

    def learner(self, samples: Samples, steps: int) -> Client:
        raise AssertionError("this method's server must not learn")


@dataclass
class Played:
    """What a run left behind: the state after each round (the first is the start), the rounds, the engine."""

    states: list[State]
    rounds: list[Round]
    engine: Serial

    @property
    def model(self) -> dict[str, Any]:
        model: dict[str, Any] = self.states[-1]["model"]
        return model


def _play(method: Method, setting: Setting, rounds: int) -> Played:
    engine = Serial(setting)
    start = State(0, method.init(engine.open(method, 0)))
    played = Played([start], [], engine)

    def watch(state: State, fed: Any) -> None:
        played.states.append(state)
        played.rounds.append(fed)

    run_method(method, engine, rounds, start, watch)
    return played


@pytest.fixture
def fake() -> type[FakeFederation]:
    return FakeFederation


@pytest.fixture
def play() -> Callable[[Method, Setting, int], Played]:
    return _play


@pytest.fixture
def scalar() -> Callable[[float], dict[str, Any]]:
    """The state dict of the one-weight network."""
    return lambda value: {"w": torch.tensor([value], dtype=torch.float64)}


@pytest.fixture
def in_double() -> Iterator[None]:
    """Adam makes full steps of gradients that are rounding errors only, unless these are as tiny as float64's."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
