"""Features that a server generates for labels: trained with the clients' heads, used to train them (as in KDIA)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from fedalloy.base.options import Count, Even, NotNegative, Positive, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Client, Federation, Method
from fedalloy.nets.ensemble import stacked_heads
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import FeatureNet, in_two_parts
from fedalloy.train.beside import Beside, normal
from fedalloy.train.fit import aside, batches, frozen, load, params
from fedalloy.train.losses import ce


@dataclass(frozen=True, kw_only=True)
class GeneratedFeatures(Method):
    """A generator of features G(eps, y), which the server trains and clients use to train their heads.

    Its labels are drawn uniformly into a pool, and every epoch passes through the pool in a new order. Equation and
    line numbers refer to KDIA.
    """

    labels: Literal["uniform", "batch"] = option(
        "uniform", "labels of generated features: balanced, or the batch's own"
    )
    noise: Count = option(100, "length of a feature's noise vector")
    generator_width: Annotated[int, Ge(4)] = option(512, "channels of the generator's first layer")
    generator_batch: Even = option(64, "features in a step of the generator; its two halves are compared")
    generator_lr: Positive = option(1e-3, "learning rate of the generator's Adam")
    generator_weight_decay: NotNegative = option(1e-5, "weight decay of the generator's Adam")
    generator_epochs: Count = by_variant(
        10, "passes of the generator over its labels in a round", repeats=True, reference=20
    )
    generator_batches: Count = by_variant(200, "steps of the generator in a pass", repeats=True, reference=100)
    heads: Literal["sum", "mean"] = by_variant(
        "sum", "the heads' logits weighted by p_k, or divided by their number K as well (Eq. 3)", paper="mean"
    )
    diversity_eps: Literal["ratio", "distance"] = by_variant(
        "ratio",
        "add the constant of Eq. 4 to the ratio of the distances, or to the features' distance",
        paper="distance",
    )

    def new_generator(self, party: Client | Federation, net: FeatureNet) -> nn.Module:
        """The untrained generator for this network's features."""
        make = partial(ConditionalGenerator, net.feature_shape, party.classes, self.noise, self.generator_width)
        return party.generator(make)

    def example(self, name: str, party: Client | Federation) -> Any:
        """The generator matches the features of the party's network."""
        if name == "generator":
            return params(self.new_generator(party, in_two_parts(party.build(), self.name)))
        return super().example(name, party)

    def taught(self, weights: Tree, clients: Sequence[Tree], p: Sequence[float], fed: Federation) -> Tree:
        """The generator after a round of steps against the heads of these models (Algorithm 1, lines 11 to 18)."""
        net = in_two_parts(fed.build(), self.name)
        heads, noise = stacked_heads(net, clients, fed.meter.heads), fed.rng("generator/noise")
        made = load(self.new_generator(fed, net), weights)
        generator = Beside(made, self.generator_lr, self.generator_weight_decay)
        device = next(made.parameters()).device
        shares = torch.tensor(p, device=device) / (len(p) if self.heads == "mean" else 1)
        for labels in self.server_labels(fed):
            y, eps = labels.to(device, non_blocking=True), normal(len(labels), self.noise, noise, device)
            z = generator(eps, y)
            logits = torch.tensordot(shares, heads(z), 1)
            generator.step(ce(logits, y) + diversity_loss(eps, z, self.diversity_eps))  # Eq. 3 and 4
            fed.meter.steps += 1
        return params(made)

    def server_labels(self, fed: Federation) -> Iterator[Tensor]:
        """The labels of each step: one pool per round, shuffled every epoch (lines 11 and 13), or all new."""
        draw, size = fed.rng("generator/labels"), self.generator_batch
        steps = self.generator_epochs * self.generator_batches
        if self.labels == "uniform":
            return _from_pool(fed.classes, size * self.generator_batches, size, steps, draw)
        return (torch.randint(fed.classes, (size,), generator=draw) for _ in range(steps))

    def generated(self, me: Client, net: FeatureNet, weights: Tree) -> Callable[[Tensor], Tensor]:
        """The CE of the head on one batch of generated features (Eq. 12), as a function of the real batch's labels."""
        generator, pool = frozen(load(self.new_generator(me, net), weights)), client_labels(me)
        noise, dropout = me.rng("generator/noise"), me.rng("generator/dropout")

        def loss(real: Tensor) -> Tensor:
            labels = next(pool).to(real.device, non_blocking=True) if self.labels == "uniform" else real
            z = generator(normal(len(labels), self.noise, noise, real.device), labels)
            with aside(net.head, dropout):
                return ce(net.head(z), labels)

        return loss


def client_labels(me: Client) -> Iterator[Tensor]:
    """The labels for each of a client's batches: a pool with as many labels as an epoch has samples (Alg. 2, line 5).

    A client whose epoch is a single batch draws new labels for every epoch (lines 2 to 4). In the paper it has fewer
    samples than a batch. Here it may have one more, since a final batch of one sample is merged into the previous one.
    """
    n, batch, draw = me.n, me.work.batch, me.rng("generator/labels")
    visited = n - n % batch if me.work.drop_last and n > batch else n
    joined = n % batch == 1
    if visited <= batch + joined:
        return iter(torch.randint(me.classes, (me.steps, visited), generator=draw))
    return _from_pool(me.classes, visited, batch, me.steps, draw)


def diversity_loss(noise: Tensor, features: Tensor, at: Literal["ratio", "distance"] = "ratio") -> Tensor:
    """|eps_1 - eps_2| / |z_1 - z_2| of the batch's two halves (Eq. 4): small if noise makes a difference.

    As in the code, the distances are means over all numbers. Its constant of 1e-5 keeps the denominator from zero: the
    code adds it to the inverted ratio, the paper to the distance of the features.

    >>> round(diversity_loss(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])).item(), 4)
    0.5
    """
    (eps_1, eps_2), (z_1, z_2) = noise.chunk(2), features.chunk(2)
    apart, drawn = (z_1 - z_2).abs().mean(), (eps_1 - eps_2).abs().mean()
    return drawn / (apart + 1e-5) if at == "distance" else 1 / (apart / drawn + 1e-5)


def _from_pool(classes: int, size: int, batch: int, steps: int, draw: torch.Generator) -> Iterator[Tensor]:
    pool = torch.randint(classes, (size,), generator=draw)
    return (pool[positions] for positions in batches(size, batch, steps, draw))
