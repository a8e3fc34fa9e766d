"""From an experiment to its setting: load the data, split it, make the networks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedalloy import models, rng
from fedalloy.config import Experiment, PartitionPart, PublicPart
from fedalloy.data.augment import augmentation
from fedalloy.data.card import PartitionCard, card, fingerprint
from fedalloy.data.catalogue import load
from fedalloy.data.partition import Partition, split
from fedalloy.data.public import PublicSet, assert_disjoint
from fedalloy.data.samples import Dataset, Samples, tensors
from fedalloy.errors import UsageError
from fedalloy.export import read_weights
from fedalloy.setting import Setting, Site
from fedalloy.training import load as load_weights


@dataclass(frozen=True)
class Built:
    """A setting with what it was made from."""

    setting: Setting
    dataset: Dataset
    partition: Partition
    card: PartitionCard
    digests: Mapping[str, str]


def build(exp: Experiment, dataset: Dataset | None = None, network: Callable[[], nn.Module] | None = None) -> Built:
    """Build what an experiment names; a data set or a network of your own replaces the one it names."""
    data = load(exp.data.name, **exp.data.options) if dataset is None else dataset
    pool, holdout = tensors(data, size=exp.data.size)
    aside = _set_aside(data, exp) if exp.public is not None and exp.public.data == "own" else None
    rows = np.arange(len(pool)) if aside is None else np.setdiff1d(np.arange(len(pool)), aside)
    part = _divide(data, rows, exp.partition, exp.partition.seed if exp.partition.seed is not None else exp.seed)
    if network is None:
        _, channels, size, _ = pool.x.shape
        options = dict(exp.model.options)

        def network() -> nn.Module:
            return models.create(exp.model.name, classes=data.classes, channels=channels, size=size, **options)

    setting = Setting(
        sites=[_site(pool, holdout, rows, part, k) for k in range(part.clients)],
        networks=[_started(network, exp.start)],
        classes=data.classes,
        seed=exp.seed,
        work=exp.training,
        participation=exp.participation,
        public=_public(exp.public, data, pool, aside, exp),
        holdout=holdout,
        augment=augmentation(exp.data.augment, data.black),
    )
    if setting.public is not None and aside is not None:
        assert_disjoint(setting.public.samples.index, {k: _all_rows(site) for k, site in enumerate(setting.sites)})
    labels = data.y[rows]
    digests = {"data": _data_digest(data), "partition": fingerprint(part)}
    return Built(setting, data, part, card(part, labels, data.classes), digests)


def _divide(data: Dataset, rows: NDArray[np.int64], part: PartitionPart, seed: int) -> Partition:
    given: dict[str, Any] = dict(part.options)
    clients = part.clients
    if part.name == "natural":
        if data.client_ids is None:
            raise UsageError(
                f"the data set '{data.name}' does not say which client a row belongs to; use another partition"
            )
        given["ids"] = data.client_ids[rows]
        clients = len(np.unique(given["ids"]))
    if part.test == "official":
        if data.y_test is None:
            raise UsageError(f"partition.test = 'official', but the data set '{data.name}' has no test split")
        given["test_labels"], given["test_samples"] = data.y_test, part.test_samples
    elif part.test_samples is not None:
        raise UsageError("partition.test_samples goes with partition.test = 'official'; write test_fraction instead")
    return split(
        data.y[rows],
        name=part.name,
        clients=clients,
        seed=seed,
        test_fraction=part.test_fraction,
        validation=part.validation,
        **given,
    )


def _site(pool: Samples, holdout: Samples | None, rows: NDArray[np.int64], part: Partition, k: int) -> Site:
    def of(positions: NDArray[np.int64]) -> Samples:
        return pool.subset(torch.from_numpy(rows[positions]))

    if part.test_from == "official":
        assert holdout is not None
        test = holdout.subset(torch.from_numpy(part.test[k]))
    else:
        test = of(part.test[k])
    return Site(of(part.train[k]), test, of(part.val[k]) if len(part.val[k]) else None)


def _set_aside(data: Dataset, exp: Experiment) -> NDArray[np.int64]:
    """Rows of the private data for a public set: equally many of each class, drawn at random."""
    assert exp.public is not None
    wanted = exp.public.samples
    if wanted >= len(data.y):
        raise UsageError(f"public.samples = {wanted} leaves nothing of the {len(data.y)} rows for the clients")
    stream = rng.numpy_generator(exp.seed, "public rows")
    shuffled = stream.permutation(len(data.y))
    # Take the first of every class, then the second of every class, and so on.
    rank = np.empty(len(data.y), dtype=np.int64)
    for label in range(data.classes):
        mine = np.flatnonzero(data.y[shuffled] == label)
        rank[mine] = np.arange(len(mine))
    return np.sort(shuffled[np.argsort(rank, kind="stable")[:wanted]])


def _public(
    part: PublicPart | None, data: Dataset, pool: Samples, aside: NDArray[np.int64] | None, exp: Experiment
) -> PublicSet | None:
    if part is None:
        return None
    if aside is not None:
        return PublicSet(pool.subset(torch.from_numpy(aside)), labelled=part.labelled, holder=part.holder)
    other = load(part.data, **part.options)
    if other.x.shape[1] != data.x.shape[1]:
        raise UsageError(
            f"the public set '{part.data}' has {other.x.shape[1]} channels and '{data.name}' {data.x.shape[1]}; "
            "choose one with the same number"
        )
    # Private statistics, so that all networks see one scale of inputs.
    everything, _ = tensors(replace(other, mean=data.mean, std=data.std), size=pool.x.shape[-1])
    order = torch.randperm(len(everything), generator=rng.generator(exp.seed, "public rows"))
    return PublicSet(everything.subset(order[: part.samples]), labelled=part.labelled, holder=part.holder)


def _started(network: Callable[[], nn.Module], start: str | None) -> Callable[[], nn.Module]:
    if start is None:
        return network
    weights: Mapping[str, Tensor] = read_weights(start)
    return lambda: load_weights(network(), weights)


def _all_rows(site: Site) -> Tensor:
    shared = [s for s in (site.train, site.validation, site.test) if s is not None and s.x is site.train.x]
    return torch.cat([s.index for s in shared])


def _data_digest(data: Dataset) -> str:
    found = hashlib.sha256()
    for array in (data.x, data.y, data.x_test, data.y_test):
        if array is not None:
            found.update(str((array.shape, array.dtype)).encode())
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
