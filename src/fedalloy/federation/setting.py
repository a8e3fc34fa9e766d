"""The setting: everything an experiment fixes for all its methods - data, networks, local work, participation, seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedalloy.aggregation.robust import bounded
from fedalloy.base.layout import Layout
from fedalloy.base.text import client_label, name_fault
from fedalloy.base.tree import Tree
from fedalloy.data.columns import PreparedColumn
from fedalloy.data.label_space import LabelSpace
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples, Scale, Task
from fedalloy.errors import UsageError
from fedalloy.federation.core import Augmentation, Client, Method, Network, group_of, initial, methods
from fedalloy.federation.metrics import AmpWeights
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.train.costs import Meter, forward_flops
from fedalloy.train.fit import LocalWork, load
from fedalloy.train.privacy import Privacy, check_method, check_network, opened

SERVER = -1  # the server's id where it learns like a client


@dataclass(frozen=True)
class Site:
    """One client's data: training, local test, and perhaps a validation share of the training data."""

    train: Samples
    test: Samples
    validation: Samples | None = None


class Kind(NamedTuple):
    """What identifies an architecture: the layers as torch prints them, and the names and shapes of the weights."""

    layers: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that is the same for all methods of a comparison.

    `networks` holds one network for all clients, or one for each; the server uses the first unless it has its own.
    `space` says what the outputs mean if the public set has its own classes; with `private_answers` a
    prediction is the best of the private classes, otherwise of all outputs. A setting created by hand has no `quorum`.
    With `privacy`, clients train on their data with DP-SGD; with `secret_noise`, as at the sites of a deployment,
    the noise cannot be reproduced.
    """

    sites: Sequence[Site]
    networks: Sequence[Network]
    classes: int
    seed: int = 0
    work: LocalWork = field(default_factory=LocalWork)
    participation: Participation = field(default_factory=Participation)
    public: PublicSet | None = None
    holdout: Samples | None = None
    augment: Augmentation | None = None
    layout: Layout = "auto"
    scale: Scale = field(default_factory=Scale)
    targets: Sequence[PreparedColumn] = ()  # how numbers to predict were standardised, if they were
    server: Network | None = None
    space: LabelSpace | None = None
    quorum: Quorum = field(default_factory=lambda: Quorum(fraction=0.0))
    private_answers: bool = False
    privacy: Privacy | None = None
    secret_noise: bool = False
    amp_weights: AmpWeights = "test"
    task: Task = "classes"
    threshold: float = 0.5  # the probability that a positive answer must exceed, with two classes or labels
    names: Sequence[str] = ()  # of the clients, if they have names
    statistics: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # bytes sent before the first round

    def __post_init__(self) -> None:
        if not self.sites:
            raise UsageError("there is no client; give at least one site")
        if self.names and len(self.names) != len(self.sites):
            raise UsageError(f"there are {len(self.names)} names for {len(self.sites)} clients; give one for each")
        if fault := name_fault(self.names):
            raise UsageError(f"{fault}; give each client a name of its own")
        empty = [k for k, site in enumerate(self.sites) if len(site.train) == 0]
        if empty:
            raise UsageError(f"{self.label(empty[0])} has no training data; use fewer clients or a milder partition")
        if len(self.networks) not in (1, len(self.sites)):
            raise UsageError(
                f"{len(self.networks)} networks for {len(self.sites)} clients; give one for all, or one each"
            )
        if self.task == "classes":
            self._check_labels()
        if self.work.class_weights is not None:
            self._check_weights()
        self.participation.check(len(self.sites))
        if self.participation.stragglers and (self.work.work == "fixed_steps" or self.work.epochs == 1):
            given = "work = 'fixed_steps'" if self.work.work == "fixed_steps" else "epochs = 1"
            raise UsageError(
                f"participation.stragglers = {self.participation.stragglers} needs several epochs of which a straggler "
                f"does some, but training.{given}; write training.epochs = 2 or more, or leave stragglers out"
            )

    def _check_labels(self) -> None:
        owned = [(self.label(k), s) for k, site in enumerate(self.sites) for s in (site.train, site.test)]
        owned += [(self.label(k), site.validation) for k, site in enumerate(self.sites) if site.validation is not None]
        owned += [("the common test set", self.holdout)] if self.holdout is not None else []
        # Clients share a few pools: check each pool as a whole, and its owners only if that fails.
        sound = {id(y) for y in {id(s.y): s.y for _, s in owned}.values() if _stray(y, self.classes) is None}
        for where, samples in owned:
            if id(samples.y) not in sound and (label := _stray(samples.labels, self.classes)) is not None:
                raise UsageError(f"{where} has the label {label}; labels run from 0 to {self.classes - 1}")

    def label(self, client: int) -> str:
        """A client as messages speak of it: by its name, if it has one."""
        return client_label(self.names, client)

    def _check_weights(self) -> None:
        given = f"training.class_weights = {self.work.class_weights!r}"
        if self.task == "numbers":
            raise UsageError(f"{given} needs classes or labels, but this data has numbers to predict; leave it out")
        if self.privacy is not None:
            raise UsageError(
                f"{given} depends on how many samples of each class a client has, which [privacy] does not hide; "
                "leave it out"
            )

    @property
    def ids(self) -> list[int]:
        """All client ids."""
        return list(range(len(self.sites)))

    @cached_property
    def sizes(self) -> list[int]:
        """Training samples of each client."""
        return [len(site.train) for site in self.sites]

    def counted_by(self, tested: Sequence[int]) -> Sequence[int]:
        """What clients count by in AMP, where `tested` are the sizes of their test sets."""
        return tested if self.amp_weights == "test" else self.sizes

    @cached_property
    def mean_size(self) -> float:
        """Average number of training samples per client; cached, because summing for each client would take K^2."""
        return sum(self.sizes) / len(self.sizes)

    def network(self, client: int) -> Network:
        """The network of a client, or of the server."""
        if client == SERVER and self.server is not None:
            return self.server
        return self.networks[max(client, 0) % len(self.networks)]

    def build(self, client: int) -> nn.Module:
        """The network of a client, or of the server, before any training."""
        return initial(self.network(client), self.seed, self.layout, self.device)

    @property
    def outputs(self) -> int:
        """Number of outputs of a network."""
        return self.classes if self.space is None else self.space.outputs

    @property
    def answers(self) -> int:
        """Number of outputs among which a prediction is chosen."""
        return self.classes if self.private_answers else self.outputs

    @property
    def device(self) -> torch.device:
        """The device of the data, on which networks are trained."""
        return self.sites[0].train.x.device

    @cached_property
    def kinds(self) -> dict[Network, Kind]:
        """The kind of each network, found from the networks themselves; the server's is first.

        Equal weights do not imply equal networks: two may differ in dropout, or in the groups of a GroupNorm.
        """
        return {n: _kind(initial(n, self.seed)) for n in dict.fromkeys([self.network(SERVER), *self.networks])}

    @property
    def same_network(self) -> bool:
        """Whether all networks, including the server's, are of one kind."""
        return len(set(self.kinds.values())) == 1

    @cached_property
    def groups(self) -> list[list[int]]:
        """The clients grouped by the kind of their network."""
        owners: dict[Network, list[int]] = {}
        for k in self.ids:
            owners.setdefault(self.network(k), []).append(k)
        found: dict[Kind, list[int]] = {}
        for network, ids in owners.items():  # comparing kinds is slow: once for each network, not for each client
            found.setdefault(self.kinds[network], []).extend(ids)
        return [sorted(ids) for ids in found.values()]

    def fitting(self, weights: Tree, view: str = "") -> nn.Module:
        """The network that a view's weights belong to, loaded with them.

        This is the network of the group that the view names, otherwise the server's; if that one does not fit, the
        first one that does.
        """
        network = self.network(SERVER)
        if any(other is not network for other in self.networks):
            shapes, group = _shapes(weights), group_of(view)
            named = [self.network(ids[0]) for number, ids in enumerate(self.groups) if number == group]
            network = next((n for n in (*named, *self.kinds) if self.kinds[n].shapes == shapes), network)
        return load(initial(network, self.seed, self.layout, self.device), weights)

    def steps(self, client: int) -> int:
        """Optimiser steps of one client in one round."""
        return self.work.steps_for(n=self.sizes[client], mean_size=self.mean_size)

    def cost(self, client: int) -> int:
        """Samples that pass through a client's network in one round, to compare how long clients take."""
        return self.steps(client) * min(self.work.batch, self.sizes[client])

    @cached_property
    def flops(self) -> list[float]:
        """FLOPs of one round of local work for each client: a step is a forward and a backward pass of a batch."""
        example = self.sites[0].train.take(torch.zeros(1, dtype=torch.int64))[0]
        per_sample = {
            network: forward_flops(initial(network, self.seed, device=self.device), example)
            for network in dict.fromkeys(self.networks)
        }
        return [3.0 * per_sample[self.network(k)] * self.cost(k) for k in self.ids]

    def active(self, round: int, *, by_size: bool = False, cap: float | None = None) -> list[int]:
        """The clients of a round; when drawn by size, none has a probability above `cap` of the whole."""
        flops = self.flops if self.participation.deadline is not None else None
        sizes = bounded(self.sizes, cap)
        return self.participation.active(sizes=sizes, round=round, seed=self.seed, flops=flops, by_size=by_size)

    def late(self, round: int, active: Sequence[int]) -> dict[int, int]:
        """The stragglers among a round's clients, and how many epochs each has time for."""
        return self.participation.late(active, epochs=self.work.epochs, round=round, seed=self.seed)

    @property
    def usual_active(self) -> float:
        """Approximate number of clients that take part in a round."""
        return len(self.sites) if self.participation.policy == "full" else self.participation.fraction * len(self.sites)

    @cached_property
    def _with_clients(self) -> PublicSet | None:
        """The public set as clients hold it, if they do: without the rows of the task that are the server's."""
        if self.public is None or self.public.holder == "server":
            return None
        return self.public if self.public.task is None else replace(self.public, task=None)

    def client(self, id: int, round: int, memory: Tree) -> Client:
        """A client as its actions see it in the given round."""
        memory, account = opened(self.privacy, memory, secret=self.secret_noise)
        me = self._learner(id, round, self.sites[id].train, self.steps(id))
        return replace(me, memory=memory, public=self._with_clients, account=account)

    def learner(self, samples: Samples, steps: int, round: int, meter: Meter) -> Client:
        """The server as a learner on the given samples."""
        return replace(self._learner(SERVER, round, samples, steps), meter=meter)

    def _learner(self, id: int, round: int, train: Samples, steps: int) -> Client:
        """A learner in this setting, with everything that the setting fixes."""
        return Client(
            id=id,
            round=round,
            seed=self.seed,
            train=train,
            classes=self.classes,
            work=self.work,
            steps=steps,
            network=self.network(id),
            augment=self.augment,
            layout=self.layout,
            scale=self.scale,
            outputs=self.outputs,
            name=self.names[id] if self.names and id != SERVER else "",
            task=self.task,
        )

    def _check_task(self, method: Method) -> None:
        if self.task not in method.card.tasks:
            able = ", ".join(name for name, m in methods.items() if self.task in m.card.tasks)
            raise UsageError(f"{method.name} cannot learn {_LEARNS[self.task]}; use one of: {able}")
        if (unfit := method.unfit_for(self.task)) is not None:
            raise UsageError(f"{method.name}.{unfit}")
        if self.task != "classes" and method.aggregation.weights == "disco":
            raise UsageError(
                "aggregation.weights = 'disco' compares clients' classes, but this data has none; "
                "write 'size' or 'uniform'"
            )

    def check(self, method: Method) -> None:
        """Refuse a method that cannot run in this setting, and say which one could."""
        self._check_task(method)
        if (idle := method.idle(self.participation)) is not None:
            raise UsageError(f"{method.name}.{idle}; leave it out")
        if method.needs_public and self.public is None:
            raise UsageError(f"{method.name} needs a public set; add one under [public], for instance public=own")
        if method.needs_public == "all" and self.public is not None and self.public.holder == "server":
            raise UsageError(f"{method.name} needs clients that hold the public set; write public.holder = 'all'")
        if not method.card.any_network and not self.same_network:
            able = ", ".join(name for name, m in methods.items() if m.card.any_network)
            raise UsageError(
                f"{method.name} averages parameters, but the clients' networks differ; use one of: {able}; "
                "to compare with it all the same, run it from a file with one network for all and put both folders "
                "side by side: fedalloy report A B"
            )
        if method.card.features:
            bare = [k for k in self.ids if not hasattr(self.build(k), "features")]
            if bare:
                raise UsageError(
                    f"{method.name} needs a network with features(x) and head(f); {self.label(bare[0])}'s has none"
                )
        if self.privacy is not None:
            check_method(method, [name for name, m in methods.items() if m.card.private])
            for network in dict.fromkeys(self.networks):
                check_network(initial(network, self.seed))


_LEARNS: dict[Task, str] = {
    "classes": "one class for each sample",
    "labels": "several labels for each sample (task = 'labels')",
    "numbers": "numbers (task = 'numbers', regression)",
}


def pooled(parts: Sequence[Samples]) -> Samples:
    """Several sample sets as one; nothing is copied if they are rows of the same data."""
    first = parts[0]
    if all(p.x is first.x and p.y is first.y for p in parts):
        return Samples(first.x, first.y, torch.cat([p.index for p in parts]))
    x, y = torch.cat([p.inputs for p in parts]), torch.cat([p.labels for p in parts])
    return Samples(x, y, torch.arange(len(y)))


def _kind(net: nn.Module) -> Kind:
    return Kind(repr(net), _shapes(net.state_dict()))


def _shapes(weights: Mapping[str, Tensor]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, tuple(t.shape)) for name, t in weights.items()))


def _stray(labels: Tensor, classes: int) -> int | None:
    """A label that is not a valid class, if there is one."""
    if len(labels) == 0:
        return None
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        return low
    return high if high >= classes else None
