"""A look at the clients before anything is trained: how much data they have, and how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.text import listed
from fedalloy.config.build import Built, network_name
from fedalloy.data.card import jensen_shannon
from fedalloy.federation.setting import Setting
from fedalloy.nets.models import parameter_count

Floats = NDArray[np.float64]
SMALL_TEST = 20  # test samples below which one answer is worth five points or more
FAR_LABELS = 0.1  # Jensen-Shannon divergence, in bits, from which label distributions count as different
FAR_INPUTS = 0.3  # standard deviations between means, from which inputs count as shifted


@dataclass(frozen=True)
class ClientLook:
    """One client: its samples, how far its labels and inputs are from everyone's, and its network."""

    name: str
    train: int
    test: int
    classes: int  # of which it has training samples; 0 if the task has no classes
    labels: float  # Jensen-Shannon divergence from the label distribution of all clients, 0 to 1; nan without classes
    inputs: float  # mean distance of its inputs' means from everyone's, in standard deviations
    network: str


@dataclass(frozen=True)
class Look:
    """All clients, and what they have in common."""

    clients: tuple[ClientLook, ...]
    classes: int
    public: int | None  # samples of the public set
    networks_differ: bool
    said: tuple[str, ...] = ()  # what was found when the data was read, such as which number stands for which class

    def sentences(self) -> list[str]:
        """What stands out, in plain sentences."""
        sizes = [one.train for one in self.clients]
        told = [
            f"{len(sizes)} clients have {sum(sizes):,} training samples: {min(sizes):,} to {max(sizes):,} each, so the "
            f"largest has {max(sizes) / sum(sizes):.0%} of all."
        ]
        partial = [one.name for one in self.clients if 0 < one.classes < self.classes]
        if partial:
            told.append(f"{_who(partial)} {_have(partial)} no training samples of some of the {self.classes} classes.")
        far = [one.name for one in self.clients if one.labels > FAR_LABELS]
        if far:
            told.append(
                f"The classes of {_who(far)} are mixed differently from everyone's (divergence above {FAR_LABELS})."
            )
        shifted = [one.name for one in self.clients if one.inputs > FAR_INPUTS]
        if shifted:
            told.append(
                f"The inputs of {_who(shifted)} are shifted: their means are over {FAR_INPUTS} standard deviations "
                "from everyone's, on average over the inputs."
            )
        if not far and not shifted and not partial:
            told.append("Neither the classes nor the inputs differ much between clients.")
        small = [one.name for one in self.clients if one.test < SMALL_TEST]
        if small:
            told.append(
                f"{_who(small)} {_have(small)} fewer than {SMALL_TEST} test samples: what a single client gains is "
                "uncertain there."
            )
        if self.networks_differ:
            told.append("The clients have different networks, so methods that average models cannot be used.")
        if self.public is None:
            told.append("There is no public set, so methods that exchange answers on public samples cannot be used.")
        else:
            told.append(f"There is a public set of {self.public:,} samples.")
        told += [f"{one}." for one in self.said]
        return [sentence[0].upper() + sentence[1:] for sentence in told]


def look(built: Built) -> Look:
    """Look at the clients of an experiment, as it was built."""
    setting = built.setting
    names = [setting.label(k) for k in setting.ids]
    counts = _counts(setting)
    labels = np.full(len(names), np.nan)
    if counts is not None:
        labels = jensen_shannon(counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum())
    inputs = shifts([site.train.inputs.cpu().numpy() for site in setting.sites])
    networks = _networks(setting)
    return Look(
        tuple(
            ClientLook(
                name,
                len(site.train),
                len(site.test),
                0 if counts is None else int((counts[k] > 0).sum()),
                float(labels[k]),
                float(inputs[k]),
                networks[k],
            )
            for k, (name, site) in enumerate(zip(names, setting.sites, strict=True))
        ),
        setting.classes,
        None if setting.public is None else len(setting.public.samples),
        len(setting.groups) > 1,
        built.dataset.said,
    )


def _networks(setting: Setting) -> dict[int, str]:
    """Each client's network; networks of one name are told apart by the number of parameters."""
    names = [network_name(setting.network(ids[0])) for ids in setting.groups]
    if len(set(names)) < len(names):
        sizes = [parameter_count(setting.build(ids[0])) for ids in setting.groups]
        names = [f"{name} ({size:,})" for name, size in zip(names, sizes, strict=True)]
    return {k: name for name, ids in zip(names, setting.groups, strict=True) for k in ids}


def shifts(parts: Sequence[NDArray[np.float32]]) -> Floats:
    """How far the means of each client's channels are from everyone's, in standard deviations, on average.

    >>> low, high = np.zeros((2, 1, 1, 1), np.float32), np.full((2, 1, 1, 1), 2, np.float32)
    >>> shifts([low, high]).tolist()
    [1.0, 1.0]
    """
    means = np.stack([part.mean(axis=(0, 2, 3), dtype=np.float64) for part in parts])
    squares = np.stack([(part.astype(np.float64) ** 2).mean(axis=(0, 2, 3)) for part in parts])
    share = np.array([len(part) for part in parts], np.float64)
    share /= share.sum()
    middle = share @ means
    std = np.sqrt(np.maximum(share @ squares - middle**2, 0.0))
    distance = np.divide(np.abs(means - middle), std, out=np.zeros_like(means), where=std > 0)
    return np.asarray(distance.mean(axis=1))


def _counts(setting: Setting) -> NDArray[np.int64] | None:
    if setting.task != "classes":
        return None
    return np.stack([site.train.counts(setting.classes).numpy() for site in setting.sites])


def _who(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= 4 else f"{len(names)} clients"


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
