"""Federations in float64, run by fedalloy and by loops in plain torch that know nothing of its methods."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedalloy.base.rng import generator
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Method, State
from fedalloy.federation.core import run as run_method
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import SERVER, Setting, Site
from fedalloy.train.fit import LocalWork, batches

Loss = Callable[[Tensor, Tensor], Tensor]  # of the logits of a batch, and the batch's positions in the samples


class Normed(nn.Module):
    """A network whose answers differ between training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.out = nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.tanh(self.norm(self.body(x))))
        return logits


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3))


@dataclass
class Ran:
    """What fedalloy's run left: the server's state and the round after each round, and all clients' memories."""

    states: list[State] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    memories: dict[int, Any] = field(default_factory=dict)


@dataclass
class World:
    """A setting and the numbers in it, in reach of plain torch."""

    setting: Setting

    @property
    def work(self) -> LocalWork:
        return self.setting.work

    @property
    def public(self) -> PublicSet:
        assert self.setting.public is not None
        return self.setting.public

    def run(self, method: Method, rounds: int) -> Ran:
        """fedalloy's own run."""
        engine, ran = Serial(self.setting), Ran()
        self.setting.check(method)
        start = State(0, method.init(engine.open(method, 0)))

        def watch(state: State, fed: Any) -> None:
            ran.states.append(state)
            ran.rounds.append(fed)

        run_method(method, engine, rounds, start, watch)
        assert not any(r.quarantined for r in ran.rounds), ran.rounds[0].quarantined
        ran.memories = engine.memories
        return ran

    def active(self, t: int) -> list[int]:
        return sorted(self.setting.active(t))

    def nets(self) -> dict[int, nn.Module]:
        """Every client's network as it starts."""
        return {k: self.setting.build(k) for k in self.setting.ids}

    def server(self) -> nn.Module:
        return self.setting.build(SERVER)

    def own(self, k: int) -> tuple[Tensor, Tensor]:
        site = self.setting.sites[k]
        return site.train.inputs, site.train.labels

    def drawn(self, t: int, size: int | None, policy: str) -> tuple[Tensor, Tensor]:
        """The round's public samples: where they are in the set, and which."""
        n = len(self.public)
        if size is None or policy == "all":
            return torch.arange(n), self.public.samples.inputs
        part = self.public.subset(t, self.setting.seed, size, policy).samples
        return part.index - int(self.public.samples.index[0]), part.inputs

    def draws(self, stage: str, t: int, k: int, n: int, size: int, *, epochs: int = 0, steps: int = 0) -> list[Tensor]:
        """The batches that a stage of client k (or of the server) draws from n samples in round t."""
        one_pass = len(list(torch.split(torch.arange(n), size))) - (n > size and n % size == 1)
        stream = generator(self.setting.seed, stage, t, k)
        return list(batches(n, size, steps or epochs * one_pass, stream))

    def rate(self, t: int, lr: float | None = None) -> float:
        """The learning rate of a round."""
        return (lr or self.work.lr) * self.work.lr_decay ** (t - 1)

    def optimiser(self, net: nn.Module, t: int, lr: float | None = None, kept: Any = None) -> torch.optim.Optimizer:
        """A new optimiser, or one that continues from another's state."""
        made: torch.optim.Optimizer
        if self.work.optimiser == "adam":
            made = torch.optim.Adam(net.parameters(), lr=self.rate(t, lr))
        else:
            made = torch.optim.SGD(net.parameters(), lr=self.rate(t, lr), momentum=self.work.momentum)
        if kept is not None:
            state = {"state": copy.deepcopy(kept["state"]), "param_groups": made.state_dict()["param_groups"]}
            made.load_state_dict(state)
        return made


def steps(net: nn.Module, x: Tensor, draws: Sequence[Tensor], loss: Loss, optimiser: torch.optim.Optimizer) -> Any:
    """Train on the given batches; returns the optimiser's state."""
    net.train()
    if len(x) == 1:  # which has no variance
        for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm1d)):
            norm.eval()
    for positions in draws:
        optimiser.zero_grad()
        loss(net(x[positions]), positions).backward()
        optimiser.step()
    return optimiser.state_dict()


def local_work(
    world: World, net: nn.Module, t: int, k: int, kept: Any = None, stage: str = "batches", **how: int
) -> Any:
    """Cross-entropy on a client's own data; returns the optimiser's state."""
    x, y = world.own(k)
    draws = world.draws(stage, t, k, len(y), world.work.batch, **(how or {"epochs": world.work.epochs}))
    optimiser = world.optimiser(net, t, kept=kept)
    return steps(net, x, draws, lambda z, rows: nn.functional.cross_entropy(z, y[rows]), optimiser)


def beside(world: World, net: nn.Module, t: int, k: int, count: int) -> Iterator[Tensor]:
    """The cross-entropy of batches of a client's own data, to be learned along with public ones (ce_on = "local")."""
    x, y = world.own(k)
    for rows in world.draws("tune/own", t, k, len(y), world.work.batch, steps=count):
        yield nn.functional.cross_entropy(net(x[rows]), y[rows])


def logits(net: nn.Module, x: Tensor) -> Tensor:
    """The answers of a network that is not in training."""
    net.eval()
    with torch.no_grad():
        found: Tensor = net(x).clone()
    return found


def farthest(one: Mapping[str, Tensor] | nn.Module, other: Mapping[str, Tensor] | nn.Module) -> float:
    """The largest difference between two networks' weights and statistics."""
    a, b = (v.state_dict() if isinstance(v, nn.Module) else v for v in (one, other))
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers."""
    return sum(int(z.argmax()) == int(label) for z, label in zip(logits(net, x), y, strict=True)) / len(y)


def pretrain(
    world: World,
    net: nn.Module,
    who: tuple[int, int],
    samples: tuple[Tensor, Tensor],
    stage: str,
    given: Mapping[str, Any],
    penalty: Callable[[nn.Module], Any] = lambda net: 0.0,
) -> Any:
    """FedMD's transfer learning until convergence, as its page of readings says; returns the optimiser's state.

    An epoch counts as a rise if its accuracy exceeds the last rise's by more than min_delta, as in Keras's
    EarlyStopping. Of epochs with equal accuracy, the one with the lowest loss is the best.
    """
    o = {"pretrain_private": 25, "private_batch": 32, "private_patience": 10, "private_min_delta": 0.001}
    o |= {"pretrain_public": 20, "public_batch": 128, "public_patience": 3, "public_min_delta": 0.005}
    o |= {"converged_by": "held_out", "held_out": 0.1, "held_out_least": 10, **given}
    most, batch, patience, delta = (
        o[name] for name in (f"pretrain_{stage}", f"{stage}_batch", f"{stage}_patience", f"{stage}_min_delta")
    )
    (t, k), (x, y) = who, samples
    aside = int(len(y) * o["held_out"]) if o["converged_by"] == "held_out" else 0
    aside = aside if aside >= o["held_out_least"] else 0
    order = torch.randperm(len(y), generator=generator(world.setting.seed, f"pretraining/{stage}/held out", t, k))
    held, part = order[:aside], order[aside:]
    x_part, y_part = x[part], y[part]
    optimiser = world.optimiser(net, 1)  # whenever the client joins
    level, waited, best, best_weights = -1.0, 0, (-1.0, 0.0), None

    def loss(z: Tensor, rows: Tensor) -> Tensor:
        found: Tensor = nn.functional.cross_entropy(z, y_part[rows]) + penalty(net)
        return found

    for epoch in range(1, most + 1):
        draws = world.draws(f"pretraining/{stage}/{epoch}", t, k, len(part), batch, epochs=1)
        steps(net, x_part, draws, loss, optimiser)
        if not aside and o["converged_by"] == "held_out":
            continue
        judges = torch.arange(len(y)) if o["converged_by"] == "training" else held
        reached = accuracy(net, x[judges], y[judges])
        waited += 1
        if reached - level > delta:
            level, waited = reached, 0
        trial = (reached, -float(nn.functional.cross_entropy(logits(net, x[judges]), y[judges])))
        if trial > best:
            best, best_weights = trial, copy.deepcopy(net.state_dict())
        if waited >= patience:
            break
    if best_weights is not None and o["converged_by"] == "held_out":
        net.load_state_dict(best_weights)
    return optimiser.state_dict()


@dataclass(frozen=True)
class Tools:
    """What every comparison needs."""

    steps: Callable[..., Any] = steps
    local_work: Callable[..., Any] = local_work
    beside: Callable[..., Iterator[Tensor]] = beside
    logits: Callable[[nn.Module, Tensor], Tensor] = logits
    farthest: Callable[..., float] = farthest
    pretrain: Callable[..., Any] = pretrain


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Three clients, two kinds of network, twelve public samples; one client joins late, and one misses a round."""
    monkeypatch.setattr("fedalloy.engine.base.refusal", lambda *_, **__: None)  # the gate lets only float32 pass

    def make(sizes: Sequence[int] = (9, 14, 6), *, same: bool = False, public: int = 12, **given: Any) -> World:
        stream = generator(5, "fresh data")
        total = sum(sizes) + 2 * len(sizes) + public
        x = torch.randn(total, 4, generator=stream)
        y = (x @ torch.randn(4, 3, generator=stream) + 0.3 * torch.randn(total, 3, generator=stream)).argmax(1)
        pool, sites, at = Samples(x, y, torch.arange(total)), [], 0
        for n in sizes:
            sites.append(Site(pool.subset(range(at, at + n)), pool.subset(range(at + n, at + n + 2))))
            at += n + 2
        shared = PublicSet(pool.subset(range(at, total)), labelled=True, holder="all")
        networks = [Normed] if same else [Normed, plain, *[Normed] * (len(sizes) - 2)]
        turns = Participation(policy="trace", trace=((0, 1), (0, 2), (0, 1, 2)))
        options: dict[str, Any] = {
            "work": LocalWork(epochs=2, batch=4, optimiser="adam", lr=0.05, lr_decay=0.9),
            "participation": turns,
            "seed": 3,
            **given,
        }
        return World(Setting(sites=sites, networks=networks, classes=3, public=shared, **options))

    return make
