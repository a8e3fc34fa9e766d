"""The public (transfer) set: samples that the server, or everyone, may see.

Its images are normalised with the statistics of the private data unless the caller decides otherwise, so that every
network sees the same scale (see `fedalloy.data.tensors`). They are never augmented: the logits that are sent belong to
exactly these inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from fedalloy.base.registry import suggest
from fedalloy.base.rng import generator
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError

Holder = Literal["server", "all"]
Policy = Literal["fixed", "fresh", "stratified", "all"]


@dataclass(frozen=True, eq=False)
class PublicSet:
    """Public samples, whether their labels may be used, and who holds them.

    With `shared_labels` the labels mean the classes of the task. `task` holds rows of the task itself, with labels,
    that the server alone keeps to validate on.

    >>> pool = Samples(torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]), torch.arange(4))
    >>> public = PublicSet(pool, labelled=False, holder="all")
    >>> len(public.subset(round=3, seed=0, size=2, policy="fresh"))
    2
    >>> public.labels
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: this public set has no labels; create it with labelled=True, or use another method
    """

    samples: Samples
    labelled: bool
    holder: Holder
    shared_labels: bool = True
    task: Samples | None = None

    def __post_init__(self) -> None:
        if self.holder not in get_args(Holder):
            raise UsageError(
                f"the holder of a public set is '{self.holder}'; {suggest(self.holder, ['server', 'all'])}"
            )
        if not self.labelled:
            # Labels that must not be used are not kept: a loss that uses them sees -1 and fails.
            blank = torch.full_like(self.samples.y, -1)
            object.__setattr__(self, "samples", Samples(self.samples.x, blank, self.samples.index))

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def inputs(self) -> Tensor:
        """The public inputs."""
        return self.samples.inputs

    @property
    def labels(self) -> Tensor:
        """The public labels; an unlabelled set raises an error."""
        if not self.labelled:
            raise UsageError("this public set has no labels; create it with labelled=True, or use another method")
        return self.samples.labels

    def subset(self, round: int, seed: int, size: int, policy: Policy) -> PublicSet:
        """Return the part of the set for round `round`, which is the same wherever and whenever it is computed.

        `fixed` is the same random part in every round, `fresh` a new one, `stratified` a new one that keeps the class
        proportions (FedMD; where there are no classes it is like `fresh`), `all` the whole set regardless of `size`.
        Samples stay in the order of the set.
        """
        if policy not in get_args(Policy):
            raise UsageError(
                f"there is no policy '{policy}' for public samples; {suggest(policy, [*get_args(Policy)])}"
            )
        if policy == "all":
            return self
        if not 1 <= size <= len(self):
            raise UsageError(
                f"a round needs {size} of {len(self)} public samples; choose a number from 1 to {len(self)}"
            )
        if policy == "stratified" and self.samples.y.ndim == 1 and not self.labelled:
            raise UsageError(
                "policy = 'stratified' draws public samples by their labels, but this public set has none; "
                "write public.labelled = true, or policy = 'fresh'"
            )
        stream = generator(seed, "public", 0 if policy == "fixed" else round)
        shuffled = torch.randperm(len(self), generator=stream)
        by_class = policy == "stratified" and self.samples.y.ndim == 1
        chosen = _stratify(self.labels[shuffled], shuffled, size) if by_class else shuffled[:size]
        return replace(self, samples=self.samples.subset(chosen.sort().values))


def assert_disjoint(public: Tensor, clients: Mapping[int, Tensor]) -> None:
    """Refuse a public set that shares rows with a client's training or test samples.

    >>> assert_disjoint(torch.tensor([0, 1]), {0: torch.tensor([2, 3]), 1: torch.tensor([1, 4])})
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: 1 public sample also belongs to client 1 (row 1); remove the public set from the data \
before dividing it among the clients
    """
    for client, rows in clients.items():
        shared = rows[torch.isin(rows, public)]
        if len(shared):
            verb = "sample also belongs" if len(shared) == 1 else "samples also belong"
            raise UsageError(
                f"{len(shared)} public {verb} to client {client} (row {int(shared[0])}); "
                "remove the public set from the data before dividing it among the clients"
            )


def _stratify(labels: Tensor, rows: Tensor, size: int) -> Tensor:
    """Take the first rows of every class in proportion to its size; the largest remainders get the rest."""
    counts = torch.bincount(labels)
    share = counts * size / counts.sum()
    quota = share.floor().long()
    quota[(share - quota).argsort(descending=True, stable=True)[: size - int(quota.sum())]] += 1
    return torch.cat([rows[labels == label][:k] for label, k in enumerate(quota.tolist())])
