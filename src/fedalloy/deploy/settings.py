"""The setting of an experiment as each side of a deployment sees it: a site its own data, the server none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedalloy import rng
from fedalloy.build import Built, build, network_of, networks_of, public_of
from fedalloy.config import Experiment
from fedalloy.data.augment import augmentation
from fedalloy.data.card import PartitionCard, card
from fedalloy.data.partition import Partition
from fedalloy.data.samples import Dataset, Samples, tensors
from fedalloy.deploy.agreed import AGREED, frame
from fedalloy.errors import DataError, UsageError
from fedalloy.setting import Setting, Site


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


@dataclass(frozen=True)
class Amount:
    """How many samples a site has."""

    train: int
    test: int
    validation: int = 0


def known_sizes(begun: Mapping[str, Any]) -> dict[int, Sizes]:
    """How much data each site had when a run began, as its `run.json` says."""
    clients, partition = begun["clients"], begun["partition"]
    parts = zip(clients["train_sizes"], clients["test_sizes"], partition["val"], strict=True)
    return {k: Amount(*numbers) for k, numbers in enumerate(parts)}


def for_server(exp: Experiment, amounts: Mapping[int, Sizes]) -> Built:
    """The server's setting: the right number of samples everywhere, all of them blank."""
    if exp.data.name != AGREED:
        built = build(exp)
        sites = [_blank_site(site.train, amounts[k]) for k, site in enumerate(built.setting.sites)]
        return replace(built, setting=replace(built.setting, sites=sites))
    agreed = frame(exp.data)
    one = tensors(agreed)[0]
    sites = [_blank_site(one, amounts[k]) for k in sorted(amounts)]
    setting = _agreed_setting(exp, agreed, sites)
    ends = np.cumsum([0, *(len(site.train) for site in sites)])
    rows = tuple(np.arange(a, b) for a, b in pairwise(ends))
    kept = tuple(np.arange(amounts[k].validation) for k in sorted(amounts))
    none = tuple(np.arange(0) for _ in sites)
    part = Partition(name=AGREED, seed=exp.seed, options={}, train=rows, val=kept, test=none)
    data = replace(agreed, note=f"{ends[-1]:,} rows, which stay at {len(sites)} sites")
    return Built(
        setting=setting,
        data=exp.data,
        model=exp.model,
        dataset=data,
        partition=part,
        card=_uncounted(card(part, np.zeros(int(ends[-1]), np.int64), agreed.classes)),
        digests={},
    )


def _uncounted(one: PartitionCard) -> PartitionCard:
    """A card that says how many samples each site has, and nothing of their classes."""
    zeros = np.zeros_like(one.divergence)
    return replace(one, counts=one.counts * 0, classes_per_client=0.0, largest_share=0.0, divergence=zeros)


def for_share(exp: Experiment, client: int, share: int) -> Setting:
    """A site's setting in a rehearsal: one share of the experiment's own data, the other clients blank."""
    setting = build(exp).setting
    if not 0 <= share < len(setting.sites):
        raise UsageError(f"share = {share}, but the experiment's data has {len(setting.sites)} shares, from 0 on")
    sites = [_blank_site(site.train, _amount(site)) for site in setting.sites]
    sites[client] = setting.sites[share]
    return replace(setting, sites=sites)


def for_site(exp: Experiment, client: int, sites: int, data: Dataset) -> Setting:
    """A site's setting with samples of its own; what others have is not known here, and not needed."""
    agreed = frame(exp.data)
    train, test = tensors(data, size=exp.data.size)
    if train.x.shape[1:] != agreed.x.shape[1:]:
        here, there = (" x ".join(map(str, shape[1:])) for shape in (train.x.shape, agreed.x.shape))
        raise DataError(f"the samples of '{data.name}' are {here}, but the sites agreed on {there}")
    own = divided(train, test, exp)
    everyone = [_blank_site(train, Amount(1, 1))] * sites
    everyone[client] = own
    return _agreed_setting(exp, agreed, everyone)


def divided(train: Samples, test: Samples | None, exp: Experiment) -> Site:
    """A site's samples as training, test and validation parts; without a test part, a share is drawn for it."""
    order = torch.randperm(len(train), generator=rng.generator(exp.seed, "site split"))
    held = 0 if test is not None else max(1, round(exp.partition.test_fraction * len(train)))
    kept = round(exp.partition.validation * (len(train) - held))
    if held + kept >= len(train):
        raise DataError(f"{len(train)} samples are too few to train, test and validate on; give this site more")
    own_test = train.subset(order[:held].sort().values) if test is None else test
    validation = train.subset(order[held : held + kept].sort().values) if kept else None
    return Site(train.subset(order[held + kept :].sort().values), own_test, validation)


def _agreed_setting(exp: Experiment, agreed: Dataset, sites: Sequence[Site]) -> Setting:
    pool = sites[0].train
    public, space = public_of(exp.public, agreed, pool, None, exp)
    outputs = agreed.classes if space is None else space.outputs
    server = network_of(exp.model, agreed, pool, outputs)
    return Setting(
        sites=sites,
        networks=networks_of(exp, agreed, pool, outputs, len(sites)) if exp.models else [server],
        server=server if exp.models else None,
        classes=agreed.classes,
        seed=exp.seed,
        work=exp.training,
        participation=exp.participation,
        quorum=exp.quorum,
        aggregation=exp.aggregation,
        privacy=exp.privacy,
        public=public,
        augment=augmentation(exp.data.augment, agreed.black),
        layout=exp.layout,
        scale=agreed.scale,
        space=space,
        private_answers=exp.public is not None and exp.public.answers == "private",
    )


def _blank_site(like: Samples, amount: Sizes) -> Site:
    """As many samples as a site has, none of them its own; they take the room of one."""
    validation = _blank(like, amount.validation) if amount.validation else None
    return Site(_blank(like, amount.train), _blank(like, amount.test), validation)


class Blank(Samples):
    """Samples of which only the number is known."""

    def counts(self, classes: int) -> Tensor:
        """Nothing is known of their classes."""
        return torch.zeros(classes, dtype=torch.int64)


def _blank(like: Samples, count: int) -> Samples:
    x = torch.zeros(1, *like.x.shape[1:], device=like.x.device).expand(count, *like.x.shape[1:])
    return Blank(x, torch.zeros(1, dtype=torch.int64).expand(count), torch.arange(count))


def _amount(site: Site) -> Amount:
    return Amount(len(site.train), len(site.test), 0 if site.validation is None else len(site.validation))
