"""A small federation in float64, run by fedalloy; and its draws, for loops in plain torch that know no method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedalloy.base.rng import generator
from fedalloy.data.samples import Samples
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Method, State
from fedalloy.federation.core import run as run_method
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import SERVER, Setting, Site
from fedalloy.nets.models.base import FeatureNet
from fedalloy.train.fit import LocalWork, batches

Model = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]
TURNS = ((0, 1, 2), (0, 2, 3), (1, 2, 3), (0, 1, 3))  # client 3 is new in round 2; client 1 comes back in round 3


class Normed(FeatureNet):
    """Four inputs, three classes; with statistics that must be averaged but have no gradient."""

    def __init__(self) -> None:
        body = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
        super().__init__(body, nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,))


@dataclass
class Watched(Serial):
    """The serial engine, with a note of what each client answered in each round."""

    setting: Setting
    answers: list[tuple[int, int, str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.setting)

    def carry(self, method: Method, round: int, messages: Any) -> Iterator[Any]:
        for message, answer in zip(messages, super().carry(method, round, messages), strict=True):
            self.answers.append((round, message.client, message.action, answer.reply.body))
            yield answer


@dataclass
class Ran:
    """What fedalloy's run left behind after each round."""

    method: Method
    states: list[State]
    rounds: list[Round]
    answers: list[tuple[int, int, str, Any]]

    def view(self, t: int, name: str = "aca") -> Model:
        return dict(self.method.models(self.states[t])[name])


@dataclass
class World:
    """A setting, in reach of plain torch."""

    setting: Setting

    def run(self, method: Method, rounds: int) -> Ran:
        self.setting.check(method)
        engine = Watched(self.setting)
        ran = Ran(method, [State(0, method.init(engine.open(method, 0)))], [], engine.answers)

        def watch(state: State, fed: Any) -> None:
            ran.states.append(state)
            ran.rounds.append(fed)

        run_method(method, engine, rounds, ran.states[0], watch)
        return ran

    def start(self) -> FeatureNet:
        net = self.setting.build(SERVER)
        assert isinstance(net, FeatureNet)
        return net

    def net(self, weights: Mapping[str, Tensor]) -> FeatureNet:
        net = self.start()
        net.load_state_dict(dict(weights))
        return net

    def size(self, k: int) -> int:
        return len(self.setting.sites[k].train)

    def data(self, k: int) -> Batch:
        return self.setting.sites[k].train.inputs, self.setting.sites[k].train.labels

    def rate(self, t: int) -> float:
        return self.setting.work.lr * self.setting.work.lr_decay ** (t - 1)

    def order(self, stage: str, t: int, k: int, n: int, steps: int) -> list[Tensor]:
        """The batches that a stage of client k draws from n samples in round t."""
        return list(batches(n, self.setting.work.batch, steps, generator(self.setting.seed, stage, t, k)))

    def batches(self, t: int, k: int, epochs: int | None = None) -> list[Batch]:
        """The batches of client k's own data in round t, in so many epochs or all of them."""
        (x, y), whole = self.data(k), self.setting.work.epochs
        steps = self.setting.steps(k) * (epochs or whole) // whole
        return [(x[b], y[b]) for b in self.order("batches", t, k, self.size(k), steps)]

    def train(self, net: FeatureNet, t: int, own: Sequence[Batch], loss: Callable[..., Tensor]) -> Model:
        """SGD with momentum, by hand; `loss(net, x, y)` is that of a batch."""
        net.train()
        velocity = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        for x, y in own:
            net.zero_grad()
            loss(net, x, y).backward()
            with torch.no_grad():
                for name, p in net.named_parameters():
                    assert p.grad is not None
                    velocity[name] = self.setting.work.momentum * velocity[name] + p.grad
                    p -= self.rate(t) * velocity[name]
        return copy.deepcopy(dict(net.state_dict()))


def mean(models: Sequence[Model], weights: Sequence[float]) -> Model:
    """sum_k p_k w_k, where p_k are the weights divided by their sum; whole numbers are left as they are."""
    found, total = dict(models[0]), sum(weights)
    for name in [name for name, value in found.items() if value.is_floating_point()]:
        found[name] = torch.stack([p / total * m[name] for p, m in zip(weights, models, strict=True)]).sum(0)
    return found


def farthest(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between two models, parameters and statistics."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one if one[name].is_floating_point())


@dataclass(frozen=True)
class Tools:
    """Plain functions for every comparison."""

    mean: Callable[[Sequence[Model], Sequence[float]], Model] = mean
    farthest: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], float] = farthest
    turns: Sequence[Sequence[int]] = TURNS


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
def world() -> Callable[..., World]:
    """Four clients of different sizes and labels; three of them take part in each of four rounds."""

    def make(sizes: Sequence[int] = (5, 9, 4, 7), **given: Any) -> World:
        stream = generator(5, "fresh data")
        total = sum(sizes) + 2 * len(sizes)
        x = torch.randn(total, 1, 2, 2, generator=stream)
        y = (x.flatten(1) @ torch.randn(4, 3, generator=stream) + torch.randn(total, 3, generator=stream)).argmax(1)
        pool, sites, at = Samples(x, y, torch.arange(total)), [], 0
        for n in sizes:
            sites.append(Site(pool.subset(range(at, at + n)), pool.subset(range(at + n, at + n + 2))))
            at += n + 2
        options: dict[str, Any] = {
            "networks": [Normed],
            "work": LocalWork(epochs=2, batch=4, lr=0.1, lr_decay=0.7, momentum=0.5),
            "participation": Participation(policy="trace", trace=TURNS),
            "seed": 3,
            **given,
        }
        return World(Setting(sites=sites, classes=3, **options))

    return make
