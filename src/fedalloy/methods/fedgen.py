"""FedGen: the server's generator of features carries what the clients' heads know to other clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.aggregation.rule import Weights
from fedalloy.base.options import Count, NotNegative, Share, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import array
from fedalloy.knowledge.feature_consensus import FeatureConsensus
from fedalloy.methods.fedavg import FedAvg
from fedalloy.nets.models import in_two_parts
from fedalloy.train.fit import aside, fit, frozen, load, params
from fedalloy.train.losses import ce, kl


@method(
    "fedgen",
    label="FedGen",
    card=Card(
        brief="generated features train the heads",
        paper="Zhu et al., ICML 2021",
        distils="all clients' heads, on generated features, into each client's head",
        leaves_client="model weights, number of samples, how many samples of each class",
        features=True,
        quick={"noise": 4, "hidden": 16, "generator_steps": 2, "generator_batch": 8},
    ),
)
class FedGen(FeatureConsensus, FedAvg):
    """FedAvg whose clients train their heads also on features that the server generates.

    The server's generator z = G(eps, y) makes a feature from noise and a label, to please the heads of the clients that
    replied. In the next round, clients train on its features too:

        server:  CE(sum_k a_k head_k(z), y) + diversity exp(-mean_ij |eps_i - eps_j|^2 |z_i - z_j|)
        client:  CE(h(x), y) + alpha_t CE(head(G(eps, y~)), y~) [+ beta_t KL(head(G(eps, y)) || h(x))]

    alpha_t and beta_t are `weight` and `latent_weight`, times `decay` per round. At the clients G is frozen, and its
    features teach the head only. Before `start_round`, a round is FedAvg's.

    >>> FedGen(variant="paper").distribution, FedGen(variant="paper", distribution="uniform").distribution
    ('normal', 'uniform')
    """

    takes = frozenset({"weights", "clip"})
    tells_counts = True  # the generator's labels follow them

    variant: Literal["recommended", "paper", "reference", "fedkf", "dafkd"] = option(
        "recommended", "whose choices: ours, the paper's, its code's, or those of FedKF's code or DaFKD's text"
    )
    weight: NotNegative = by_variant(1.0, "weight of generated features in a client's loss", reference=10.0)
    latent_weight: NotNegative = by_variant(
        0.0, "weight of the KL from answers to generated features of the batch's labels", reference=1.0
    )
    decay: Share = by_variant(1.0, "factor of both weights from round to round, until they are 1e-4", reference=0.98)
    start_round: Count = by_variant(
        2, "first round with generated features; 1: the untrained generator's, with uniform labels", paper=1
    )
    generated_steps: Count | None = by_variant(
        None, "steps of a client's round with generated features; unset: all", reference=20
    )

    @property
    def usual_weights(self) -> Weights:
        """Equal in the paper, by size in all codes."""
        return "uniform" if self.variant == "paper" else "size"

    def init(self, fed: Federation) -> Tree:
        """FedAvg's start; the generator comes with the first replies, or at once."""
        generator = self.new_generator(fed)  # refuses now a network without a head of its own
        uniform = torch.full((fed.classes,), 1 / fed.classes)
        given = {} if self.start_round > 1 else {"generator": params(generator), "labels": uniform}
        return {**super().init(fed), **given}

    def round(self, s: State, fed: Federation) -> State:
        """Send, train, average, teach the generator."""
        names = ("model", "generator", "labels") if fed.round >= self.start_round else ("model",)
        return self.averaged(s, fed.ask("train", fed.sample(), **{n: s[n] for n in names if n in s.body}), fed)

    def example(self, name: str, party: Client | Federation) -> Any:
        """The generator, and the shares of the labels."""
        if name == "generator":
            return params(self.new_generator(party))
        return array(party.classes, least=0.0, most=1.0) if name == "labels" else super().example(name, party)

    @action("model, generator?, labels? -> model, n, counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on real images and, once there is a generator, on generated features."""
        if "generator" not in msg:
            return super().train(me, msg)
        net = in_two_parts(me.net(msg["model"]), self.name)
        answer = net.head if self.cut == "features" else net.output
        generator = frozen(load(self.new_generator(me), msg["generator"]))
        stream, dropout, steps = me.rng("generated"), me.rng("generated/dropout"), count(1)
        alpha, beta = (self.decayed(start, me.round) for start in (self.weight, self.latent_weight))

        def generated(labels: Tensor) -> Tensor:
            return generator(self.noise_for(labels, stream), labels).detach()  # type: ignore[no-any-return]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            total = me.loss(logits, y)
            if self.generated_steps is not None and next(steps) > self.generated_steps:
                return total
            drawn = torch.multinomial(msg["labels"].cpu(), len(y), replacement=True, generator=stream).to(y.device)
            with aside(net.head, dropout):
                total = total + alpha * ce(answer(generated(drawn)), drawn)
                if beta:
                    with torch.no_grad():
                        target = answer(generated(y))
                    total = total + beta * kl(target, logits)
            return total

        fit(net, me, loss)
        return reply(model=params(net), **self.about(me))

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """The average, and the generator and its labels after steps against the replies' heads."""
        return {"model": mean, **self.taught(s, replies, fed)}

    def decayed(self, start: float, round: int) -> float:
        """A weight of the client's loss in this round; it does not fall below 1e-4."""
        return max(min(start, 1e-4), start * self.decay ** (round - 1))
