"""One torch thread for every test, and small federations whose results can be computed by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from fedalloy.base.plugins import PREFIX
from fedalloy.base.registry import Registry
from fedalloy.base.rng import generator
from fedalloy.data.catalogue import datasets
from fedalloy.data.partitioners import partitions
from fedalloy.data.samples import Samples
from fedalloy.federation.core import methods
from fedalloy.federation.setting import Setting, Site
from fedalloy.nets.models.base import models

REGISTRIES: tuple[Registry[Any], ...] = (methods, models, partitions, datasets)

settings.register_profile("busy machine", deadline=None)  # how long an example takes says nothing about it
settings.load_profile("busy machine")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """As a worker has: on small networks more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def plugins_of_its_own() -> Iterator[None]:
    """A plug-in that a test has loaded is no part of what the runs of another are made with."""
    before = set(sys.modules)
    known = [set(registry) for registry in REGISTRIES]
    yield
    for name in {name for name in sys.modules if name.startswith(PREFIX)} - before:
        del sys.modules[name]
    for registry, names in zip(REGISTRIES, known, strict=True):
        for name in set(registry) - names:
            if registry._homes[name].startswith(PREFIX):
                del registry._things[name], registry._homes[name]


class Logistic(nn.Module):
    """Two classes, one weight: logits (0, w x). At w = 0 the gradient of CE is x/2 for class 0 and -x/2 for class 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        z = x * self.w
        return torch.cat([torch.zeros_like(z), z], dim=1)


class Small(nn.Module):
    """Four inputs, a hidden layer, three classes; with BatchNorm and dropout if asked for."""

    def __init__(self, *, batch_norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5) if batch_norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.drop(torch.relu(self.norm(self.body(x)))))
        return logits


def _rows(x: Sequence[Sequence[float]], y: Sequence[int]) -> Samples:
    return Samples(torch.tensor(x), torch.tensor(y, dtype=torch.int64), torch.arange(len(y)))


def _random_sites(
    sizes: Sequence[int], *, shape: tuple[int, ...] = (4,), classes: int = 3, seed: int = 0
) -> list[Site]:
    """Clients with these many random training rows each, and three test rows, all of one pool."""
    draw = generator(seed, "test data")
    total = sum(sizes) + 3 * len(sizes)
    pool = Samples(
        torch.randn(total, *shape, generator=draw),
        torch.randint(0, classes, (total,), generator=draw),
        torch.arange(total),
    )
    ends = torch.tensor([0, *(n + 3 for n in sizes)]).cumsum(0).tolist()
    return [
        Site(train=pool.subset(range(start, start + n)), test=pool.subset(range(start + n, end)))
        for start, end, n in zip(ends, ends[1:], sizes, strict=False)
    ]


def _small_setting(sizes: Sequence[int], **options: Any) -> Setting:
    """A setting of random data and small networks; any field of a setting may be given."""
    given = {"networks": [Small], "classes": 3, **options}
    return Setting(sites=given.pop("sites", None) or _random_sites(sizes), **given)


@pytest.fixture
def logistic() -> type[nn.Module]:
    return Logistic


@pytest.fixture
def small() -> Callable[..., nn.Module]:
    return Small


@pytest.fixture
def rows() -> Callable[..., Samples]:
    return _rows


@pytest.fixture
def random_sites() -> Callable[..., list[Site]]:
    return _random_sites


@pytest.fixture
def small_setting() -> Callable[..., Setting]:
    return _small_setting
