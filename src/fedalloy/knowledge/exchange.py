"""Knowledge as answers on public samples: which samples a round uses, and how a client learns from the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedalloy.base.options import Count, option
from fedalloy.base.tree import Tree
from fedalloy.data.public import Policy, PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Client, Federation, Method
from fedalloy.train.fit import Optimiser, batches, fit, params


@dataclass(frozen=True, kw_only=True)
class OnPublicSamples(Method):
    """Clients keep their own networks and answer on public samples; by default the server remembers nothing."""

    samples: Count | None = option(None, "public samples used in a round; unset: all of them")
    policy: Policy = option("fresh", "how a round's samples are drawn", only_with=("samples",))

    def init(self, fed: Federation) -> Tree:
        """Nothing, but refuse now a number of samples that no round could draw."""
        if fed.public is not None:
            self.part(fed)
        return {}

    def part(self, party: Client | Federation) -> PublicSet:
        """The public samples of this round, the same for the server and every client."""
        return public_part(party, self.samples, self.policy)

    def need_labels(self, fed: Federation, choice: str, instead: str) -> None:
        """Refuse a public set without labels if the options need labels."""
        if fed.public is not None and not fed.public.labelled:
            raise UsageError(f"{self.name}.{choice} needs labels; write public.labelled = true, or {instead}")

    def personal(self, me: Client) -> Tree:
        """The client's own model; before its first round, the common initial model of its architecture."""
        return me.memory["model"] if me.memory else params(me.build())


def public_part(party: Client | Federation, size: int | None, policy: Policy) -> PublicSet:
    """The public samples of this round, the same for the server and every client; without a size, all of them."""
    if party.public is None:
        raise UsageError("the clients hold no public set; write public.holder = 'all'")
    if size is None:
        return party.public.subset(party.round, party.seed, len(party.public), "all")
    return party.public.subset(party.round, party.seed, size, policy)


def digest(
    net: nn.Module,
    me: Client,
    inputs: Samples,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    epochs: int,
    steps: int = 0,
    batch: int | None = None,
    lr: float | None = None,
    optimiser: Optimiser | None = None,
    stage: str = "digest",
) -> None:
    """Train a network on public inputs, which are never augmented: the answers belong to exactly these.

    `loss(x, rows)` receives a batch and its positions among the inputs, to look up answers and labels.
    `steps` replaces the epochs. Batch size, learning rate and optimiser default to those of the client's local work.
    """
    if len(inputs) == 0 or (epochs == 0 and steps == 0):
        return
    batch, lr = batch or me.work.batch, lr or me.work.lr
    work = replace(me.work, work="epochs", epochs=max(epochs, 1), drop_last=False, batch=batch, lr=lr)
    steps = steps or work.steps_for(n=len(inputs), mean_size=len(inputs))
    fit(
        net,
        replace(me, work=work, augment=None),
        loss,
        samples=numbered(inputs),
        stage=stage,
        steps=steps,
        optimiser=optimiser,
    )


def numbered(samples: Samples) -> Samples:
    """The same inputs, each with its position as its label.

    >>> pool = Samples(torch.rand(4, 1, 2, 2), torch.tensor([7, 7, 8, 8]), torch.tensor([3, 1]))
    >>> numbered(pool).labels
    tensor([0, 1])
    """
    places = torch.zeros(len(samples.x), dtype=torch.int64, device=samples.x.device)
    places[samples.index] = torch.arange(len(samples), device=samples.x.device)
    return Samples(samples.x, places, samples.index)


def own_batches(me: Client, steps: int, stage: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the client's own samples, augmented as in its training, to be learned alongside public ones."""
    noise = me.rng(f"{stage}/augment")
    for rows in batches(me.n, me.work.batch, steps, me.rng(stage)):
        x, y = me.train.take(rows)
        if me.augment is not None:
            x = me.augment(x, noise)
        if len(y) == 1:  # BatchNorm cannot take a single sample; the same one twice has the same mean loss
            x, y = (part.repeat(2, *[1] * (part.dim() - 1)) for part in (x, y))
        yield x, y
