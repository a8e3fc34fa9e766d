"""The setting of an experiment as each side of a deployment sees it: a site has its own data, the server has none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedalloy.config.build import Built, build, other_data, public_of, refuse_statistics, setting_of
from fedalloy.config.sections import Experiment
from fedalloy.data.card import PartitionCard, gini
from fedalloy.data.columns import Preparation, Summary, summarise, without_few
from fedalloy.data.partition import Partition, own_split
from fedalloy.data.samples import Dataset, Samples, tensors
from fedalloy.data.statistics import Statistics, read_preparation
from fedalloy.deploy.agreed import AGREED, constants, frame, framed
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.setting import Setting, Site

Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Sizes(Protocol):
    """How much data a site says it has."""

    @property
    def train(self) -> int:
        """Training samples."""

    @property
    def test(self) -> int:
        """Test samples."""

    @property
    def validation(self) -> int:
        """Validation samples."""

    @property
    def counts(self) -> Sequence[int]:
        """Training samples of each class; empty if the method does not need them."""


@dataclass(frozen=True)
class Amount:
    """How many samples a site has."""

    train: int
    test: int
    validation: int = 0
    counts: Sequence[int] = ()


def known_sizes(begun: Mapping[str, Any]) -> dict[int, Sizes]:
    """Return how much data each site had when a run began, according to its `run.json`."""
    clients, partition = begun["clients"], begun["partition"]
    parts = (clients["train_sizes"], clients["test_sizes"], partition["val"], clients["class_counts"])
    return {k: Amount(*numbers) for k, numbers in enumerate(zip(*parts, strict=True))}


def for_server(exp: Experiment, amounts: Mapping[int, Sizes], statistics: Statistics | None = None) -> Built:
    """Build the server's setting: the right number of samples at each site, all of them blank."""
    return with_sizes(without_sizes(exp, len(amounts), statistics), amounts)


def without_sizes(exp: Experiment, sites: int, statistics: Statistics | None = None, folder: Path = Path()) -> Built:
    """Build the server's setting before the sites report their sizes: one blank sample at each site.

    `statistics` say how the sites prepare their rows; without them, the experiment must. `folder` has the public file.
    """
    amounts = dict.fromkeys(range(sites), Amount(1, 1))
    if exp.data.name != AGREED:
        return with_sizes(build(exp), amounts)
    agreed = frame(exp.data)
    if statistics is None:
        ready = constants(agreed)
        if ready is None:
            raise UsageError("the sites have not told the statistics of their columns yet")
        statistics = Statistics(ready)
    data = framed(agreed, statistics.preparation)
    one = tensors(data)[0]
    part = _partition(exp.seed, amounts)
    return Built(
        setting=_agreed_setting(
            exp, data, [_blank_site(one, amount) for amount in amounts.values()], statistics, folder
        ),
        data=exp.data,
        model=exp.model,
        dataset=data,
        partition=part,
        card=_card(part, data.classes),
        digests={},
        statistics=statistics,
    )


def known_statistics(exp: Experiment, begun: Mapping[str, Any]) -> Statistics | None:
    """Return what the sites told when a run began, according to its `run.json`."""
    data = begun.get("data", {})
    if exp.data.name != AGREED or "columns" not in data:
        return None
    agreed = frame(exp.data)
    assert agreed.recipe is not None
    told = json.dumps([*data["columns"], *data.get("targets", [])])
    ready = read_preparation(told, agreed.columns, agreed.recipe.targets)
    return Statistics(ready, **data.get("statistics", {}))


def with_sizes(built: Built, amounts: Mapping[int, Sizes]) -> Built:
    """Return the server's setting with as many blank samples as each site has; they take no memory."""
    like, amounts = built.setting.sites[0].train, dict(sorted(amounts.items()))
    sites = [_blank_site(like, amount) for amount in amounts.values()]
    setting = replace(built.setting, sites=sites, secret_noise=True)
    if built.data.name != AGREED:
        return replace(built, setting=setting)
    part = _partition(setting.seed, amounts)
    note = f"{sum(setting.sizes):,} rows that stay at {len(amounts)} sites"
    return replace(
        built,
        setting=setting,
        dataset=replace(built.dataset, note=note),
        partition=part,
        card=_card(part, setting.classes),
    )


def _partition(seed: int, amounts: Mapping[int, Sizes]) -> Partition:
    """Return a partition with the number of rows of each site; only the site knows which rows they are."""

    def rows(counts: Iterable[int]) -> tuple[NDArray[np.int64], ...]:
        return tuple(np.broadcast_to(np.int64(0), count) for count in counts)

    train, val = rows(a.train for a in amounts.values()), rows(a.validation for a in amounts.values())
    return Partition(name=AGREED, seed=seed, options={}, train=train, val=val, test=rows([0] * len(amounts)))


def _card(part: Partition, classes: int) -> PartitionCard:
    """Return a card with the number of samples of each site, without their classes."""
    parts = [(len(train), len(val)) for train, val in zip(part.train, part.val, strict=True)]
    sizes = np.array(parts, np.int64).sum(axis=1)
    return PartitionCard(
        partition=part,
        counts=np.zeros((len(parts), classes), np.int64),
        sizes=sizes,
        classes_per_client=0.0,
        largest_share=0.0,
        divergence=np.zeros(len(parts)),
        size_variation=float(sizes.std() / sizes.mean()),
        size_gini=gini(sizes),
        sha256=hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
    )


def for_share(exp: Experiment, client: int, share: int) -> Setting:
    """Build a site's setting in a rehearsal: one share of the experiment's own data, blanks for other clients."""
    setting = build(exp).setting
    if not 0 <= share < len(setting.sites):
        raise UsageError(f"share = {share}, but the experiment's data has {len(setting.sites)} shares, numbered from 0")
    sites = [_blank_site(site.train, _amount(site)) for site in setting.sites]
    sites[client] = setting.sites[share]
    return replace(setting, sites=sites, secret_noise=True)


def for_site(
    exp: Experiment, client: int, sites: int, data: Dataset, preparation: Preparation, folder: Path = Path()
) -> Setting:
    """Build a site's setting with its own samples; the data of other sites is not known here and not needed."""
    agreed = framed(frame(exp.data), preparation)
    train, test = tensors(data.prepared(preparation), size=exp.data.size)
    if train.x.shape[1:] != agreed.x.shape[1:]:
        here, there = (" x ".join(map(str, shape[1:])) for shape in (train.x.shape, agreed.x.shape))
        raise DataError(f"the samples of '{data.name}' are {here}, but the sites agreed on {there}")
    own = divided(train, test, exp, client)
    everyone = [_blank_site(train, Amount(1, 1))] * sites
    everyone[client] = own
    return _agreed_setting(exp, agreed, everyone, Statistics(preparation), folder)


def told(exp: Experiment, client: int, data: Dataset) -> Summary:
    """Return what a site tells about its training rows, before they are prepared."""
    if exp.privacy is not None:
        refuse_statistics(data)
    assert data.recipe is not None
    if not data.recipe.asks(data.columns):
        raise UsageError("the experiment says how all rows are prepared, so this site has no statistics to tell")
    x, y = data.x, data.y
    if data.x_test is not None and data.y_test is not None:
        x, y = np.concatenate([x, data.x_test]), np.concatenate([y, data.y_test])
    refuse_resized(data, frame(exp.data))
    rows, _, _ = split_of(data, exp, client)
    return without_few(summarise(x[rows], data.columns, data.recipe, y[rows]))


def refuse_resized(data: Dataset, agreed: Dataset) -> None:
    """Refuse images of another size than agreed if statistics must be told: nobody else knows how many pixels count."""
    (height, width), (size, _) = data.x.shape[2:], agreed.x.shape[2:]
    if data.x.shape[2:] != agreed.x.shape[2:] and constants(agreed) is None:
        raise UsageError(
            f"the images have {width} x {height} pixels and would be resized to {size} x {size}, but statistics are "
            f"told before that; save them with {size} x {size} pixels, or write data.mean and data.std"
        )


def split_of(data: Dataset, exp: Experiment, client: int) -> Rows:
    """A site's rows for training, validation and testing, before they are prepared."""
    return _rows(len(data.x), 0 if data.x_test is None else len(data.x_test), exp, client)


def divided(train: Samples, test: Samples | None, exp: Experiment, client: int) -> Site:
    """Split a site's samples into training, test and validation parts, as a simulation does for a natural client.

    Without test data, a share is drawn for it. The draw depends on the seed: the server can tell which rows belong to
    which part, but not what they contain. Under [privacy] this is covered, since it only depends on the number of
    samples (see `Privacy`).
    """
    rows, kept, held = _rows(len(train), 0 if test is None else len(test), exp, client)
    if not len(rows) or not len(held):
        raise DataError(
            f"{len(train)} samples are too few for training, testing and validation; add samples to this site's data"
        )
    if test is not None:
        x, y = torch.cat([train.x, test.x]), torch.cat([train.y, test.y])
        train = Samples(x, y, torch.arange(len(y)))
    own, validation, tested = (train.subset(torch.from_numpy(part)) for part in (rows, kept, held))
    return Site(own, tested, validation if len(kept) else None)


def _rows(train: int, test: int, exp: Experiment, client: int) -> Rows:
    """A site's rows for training, validation and testing; those of its own test part come after the others."""
    part = exp.partition
    seed = exp.seed if part.seed is None else part.seed
    own_tests = np.arange(train + test) >= train if test else None
    return own_split(train + test, client, seed, part.test_fraction, part.validation, own_tests)


def _agreed_setting(
    exp: Experiment, agreed: Dataset, sites: Sequence[Site], statistics: Statistics, folder: Path
) -> Setting:
    pool = sites[0].train
    other = other_data(exp, agreed, pool, statistics.preparation, folder)
    public, space = public_of(exp, other, pool)
    names = [client.name for client in exp.clients]
    setting = setting_of(exp, agreed, pool, sites, public, space, names=names, statistics=statistics.bytes)
    return replace(setting, secret_noise=True)


def _blank_site(like: Samples, amount: Sizes) -> Site:
    """Return as many blank samples as a site has."""
    validation = _blank(like, amount.validation) if amount.validation else None
    return Site(_blank(like, amount.train, amount.counts), _blank(like, amount.test), validation)


@dataclass(frozen=True, eq=False)
class Blank(Samples):
    """Samples of which only the number is known and, for some methods, the number in each class."""

    by_class: Sequence[int] = ()

    def counts(self, classes: int) -> Tensor:
        """Return the counts that the site has reported, or zeros."""
        return torch.tensor(self.by_class or [0] * classes, dtype=torch.int64)


def _blank(like: Samples, count: int, counts: Sequence[int] = ()) -> Samples:
    """Repeat one row `count` times, using the memory of one."""
    x = torch.zeros(1, *like.x.shape[1:], device=like.x.device)
    y, first = torch.zeros(1, *like.y.shape[1:], dtype=like.y.dtype), torch.zeros(1, dtype=torch.int64)
    return Blank(x, y, first.expand(count), counts)


def _amount(site: Site) -> Amount:
    return Amount(len(site.train), len(site.test), 0 if site.validation is None else len(site.validation))
