"""Knowledge as answers on public samples: which samples a round uses, and how a client learns from the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedalloy.base.registry import refuse_idle
from fedalloy.data.public import Policy, PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Client, Federation, Method
from fedalloy.train.fit import Optimiser, fit


def public_part(party: Client | Federation, size: int | None, policy: Policy) -> PublicSet:
    """The public samples of this round, the same for the server and every client; no size means all of them."""
    if party.public is None:
        raise UsageError("the clients hold no public set; write public.holder = 'all'")
    if size is None:
        return party.public.subset(party.round, party.seed, len(party.public), "all")
    return party.public.subset(party.round, party.seed, size, policy)


@dataclass(frozen=True, kw_only=True)
class OnPublicSamples(Method):
    """What methods share whose clients answer on public samples: which samples these are.

    * `samples`, `policy`: how many public samples a round uses (all, if not given) and how they are drawn.
    """

    samples: int | None = None
    policy: Policy = "fresh"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples is not None and self.samples < 1:
            raise UsageError(
                f"{self.name}.samples = {self.samples} must be at least 1; leave it out for all public samples"
            )
        refuse_idle(self, self.name, {"policy": ("samples",)})

    @property
    def drawn_by(self) -> Policy:
        """How a round's samples are drawn, also where it is not written."""
        return self.policy

    def part(self, party: Client | Federation) -> PublicSet:
        """The public samples of this round."""
        return public_part(party, self.samples, self.drawn_by)


def digest(
    net: nn.Module,
    me: Client,
    inputs: Samples,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    epochs: int,
    batch: int | None = None,
    lr: float | None = None,
    optimiser: Optimiser | None = None,
    stage: str = "digest",
) -> None:
    """Train a network on public inputs, which are never augmented: the answers belong to exactly these.

    `loss(x, rows)` is given a batch and its places among the inputs, with which answers and labels are looked up.
    Batch size, learning rate and optimiser are those of the client's local work unless they are given.
    """
    if epochs == 0:
        return
    work = replace(
        me.work, work="epochs", epochs=epochs, drop_last=False, batch=batch or me.work.batch, lr=lr or me.work.lr
    )
    steps = work.steps_for(n=len(inputs), mean_size=len(inputs))
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
    """The same inputs, with each one's place among them for a label.

    >>> pool = Samples(torch.rand(4, 1, 2, 2), torch.tensor([7, 7, 8, 8]), torch.tensor([3, 1]))
    >>> numbered(pool).labels
    tensor([0, 1])
    """
    places = torch.zeros(len(samples.x), dtype=torch.int64, device=samples.x.device)
    places[samples.index] = torch.arange(len(samples), device=samples.x.device)
    return Samples(samples.x, places, samples.index)
