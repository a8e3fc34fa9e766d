"""The server's half of FedGen: a generator of features that all clients' heads recognise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedalloy.aggregation.averaging import shares
from fedalloy.aggregation.robust import bounded, bounded_counts
from fedalloy.base.options import Count, NotNegative, Positive, Several, by_variant, option
from fedalloy.federation.core import Client, Federation, Message, State
from fedalloy.knowledge.averaged import Averaged, label_counts, models
from fedalloy.knowledge.server_generator import consensus_loss, diversity_loss, label_distribution
from fedalloy.nets.ensemble import stacked_heads
from fedalloy.nets.generators import FeatureGenerator, PerceptronFeatures
from fedalloy.nets.models import in_two_parts
from fedalloy.train.beside import Beside


@dataclass(frozen=True, kw_only=True)
class FeatureConsensus(Averaged):
    """A generator z = G(eps, y) on the server, taught by the heads of the clients that replied; see FedGen."""

    cut: Literal["features", "last"] = by_variant(
        "features", "what features are: the model's, or the input of its last layer", reference="last"
    )
    generator_kind: Literal["hidden", "perceptron"] = by_variant(
        "hidden", "a generator with one hidden layer, or that of DaFKD's comparison", dafkd="perceptron"
    )
    noise: Count = by_variant(32, "length of a feature's noise vector", dafkd=100)
    distribution: Literal["uniform", "normal"] = by_variant("uniform", "distribution of the noise", paper="normal")
    hidden: Count = by_variant(256, "width of the hidden layer, or of each of the two embeddings", dafkd=128)
    relu: bool = by_variant(
        True, "whether generated features have passed a ReLU, as real ones mostly have", reference=False
    )
    labels: Literal["counts", "counts_by_size", "uniform"] = by_variant(
        "counts",
        "labels by counts, by counts times sizes, or uniform over held classes",
        reference="uniform",
        fedkf="counts_by_size",
    )
    server_loss: Literal["avg_logits", "weighted_ce", "weighted_means"] = by_variant(
        "avg_logits",
        "CE of mean logits, CEs weighted by label, or each head's mean CE times its mean weight",
        reference="weighted_means",
    )
    logits: Literal["models", "size", "uniform"] = by_variant(
        "models", "weights of the heads' logits: the models', by size, or equal", paper="uniform",
        only_with=("server_loss", "avg_logits"),
    )  # fmt: skip
    diversity: NotNegative = option(1.0, "weight of the diversity of generated features")
    generator_lr: Positive = by_variant(1e-4, "learning rate of the generator's Adam", dafkd=1e-3)
    generator_lr_decay: Positive = by_variant(1.0, "factor of this rate from round to round", reference=0.98)
    generator_weight_decay: NotNegative = by_variant(0.0, "weight decay of the generator's Adam", reference=0.01)
    generator_steps: Count = option(50, "steps of the generator in a round", repeats=True)
    generator_batch: Several = by_variant(64, "features of a step of the generator", reference=32)

    def taught(self, s: State, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """The generator after steps of its Adam, whose moments last, against the replies' heads; and p(y)."""
        received = self.aggregation.clipped(models(replies), s["model"])
        network = in_two_parts(fed.build(), self.name)
        heads = stacked_heads(network, received, fed.meter.heads, last=self.cut == "last")
        sizes, counts, cap = [r["n"] for r in replies], label_counts(replies), self.aggregation.cap
        weights = {"size": bounded(sizes, cap), "uniform": [1.0] * len(sizes)}
        a = shares(weights.get(self.logits, self.aggregation.bounded(sizes, self.discrepancies(s, replies))))
        by_size = sizes if self.labels == "counts_by_size" else None
        labels, held = label_distribution(counts, by_size, self.labels == "uniform", cap), bounded_counts(counts, cap)
        rate = self.generator_lr * self.generator_lr_decay**s.round  # rounds before this one
        net, stream = self.new_generator(fed), fed.rng("generated")
        generator = Beside.carried_on(net, s.body, "generator", rate, self.generator_weight_decay)
        device = next(net.parameters()).device
        for _ in range(self.generator_steps):
            y = torch.multinomial(labels, self.generator_batch, replacement=True, generator=stream).to(device)
            z = generator(eps := self.noise_for(y, stream), y)
            wrong = consensus_loss(self.server_loss, heads(z), y, a, held)
            generator.step(wrong + self.diversity * diversity_loss(eps, z))
            fed.meter.steps += 1
        return {**generator.kept("generator"), "labels": labels}

    def new_generator(self, where: Client | Federation) -> nn.Module:
        """The untrained generator of features, at a client or at the server."""
        net = in_two_parts(where.build(), self.name)
        shape = net.feature_shape if self.cut == "features" else net.projected_shape
        make = PerceptronFeatures if self.generator_kind == "perceptron" else FeatureGenerator
        return where.generator(partial(make, shape, where.classes, self.noise, self.hidden, self.relu))

    def noise_for(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """One row of noise for each label."""
        draw = torch.randn if self.distribution == "normal" else torch.rand
        return draw(len(labels), self.noise, generator=stream).to(labels.device)
