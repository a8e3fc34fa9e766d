"""FedGen: the server's generator of features carries what the clients' heads know to other clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedalloy.aggregation.averaging import shares
from fedalloy.aggregation.robust import bounded_counts
from fedalloy.base.options import Count, NotNegative, Positive, Several, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import array
from fedalloy.knowledge.averaged import label_counts, models
from fedalloy.knowledge.server_generator import average_ce, decayed, diversity_loss, label_distribution, weighted_ce
from fedalloy.methods.fedavg import FedAvg
from fedalloy.nets.ensemble import stacked_heads
from fedalloy.nets.generators import FeatureGenerator, PerceptronFeatures
from fedalloy.nets.models import in_two_parts
from fedalloy.train.beside import Beside
from fedalloy.train.fit import aside, fit, frozen, load, params
from fedalloy.train.losses import ce, kl


@method(
    "fedgen",
    label="FedGen",
    card=Card(
        paper="Zhu et al., ICML 2021",
        distils="all clients' heads, on generated features, into each client's head",
        leaves_client="model weights, number of samples, how many samples of each class",
        features=True,
        quick={"noise": 4, "hidden": 16, "generator_steps": 2, "generator_batch": 8},
    ),
)
class FedGen(FedAvg):
    """FedAvg whose clients train their heads also on features that the server generates.

    The server's generator z = G(eps, y) makes a feature from noise and a label, to please the heads of the clients that
    replied. In the next round, clients train on its features too:

        server:  CE(sum_k a_k head_k(z), y) + diversity exp(-mean_ij |eps_i - eps_j|^2 |z_i - z_j|)
        client:  CE(h(x), y) + weight CE(head(G(eps, y~)), y~)

    The labels y~ are distributed as in the data of the clients that replied. At the clients G is frozen, and its
    features teach the head only. Until there is a generator, a round is FedAvg's.

    >>> FedGen(variant="paper").distribution, FedGen(variant="paper", distribution="uniform").distribution
    ('normal', 'uniform')
    """

    takes = frozenset({"weights", "clip"})
    tells_counts = True  # the generator's labels follow them

    variant: Literal["recommended", "paper", "reference", "dafkd"] = option(
        "recommended", "whose choices: ours, the paper's, those of FedKF's code, or DaFKD's"
    )
    weight: NotNegative = option(1.0, "weight of generated features in a client's loss; 0 is FedAvg")
    diversity: NotNegative = option(1.0, "weight of the diversity of generated features")
    noise: Count = by_variant(32, "length of a feature's noise vector", dafkd=100)
    generator_kind: Literal["hidden", "perceptron"] = by_variant(
        "hidden", "a generator with one hidden layer, or that of DaFKD's comparison", dafkd="perceptron"
    )
    hidden: Count = by_variant(256, "width of the hidden layer, or of each of the two embeddings", dafkd=128)
    relu: bool = option(True, "whether generated features have passed a ReLU, as real ones mostly have")
    generator_lr: Positive = by_variant(1e-4, "learning rate of the generator's Adam", dafkd=1e-3)
    generator_lr_decay: Positive = option(1.0, "factor of this learning rate from one round to the next")
    generator_weight_decay: NotNegative = option(0.0, "weight decay of the generator's Adam")
    generator_steps: Count = option(50, "steps of the generator in a round")
    generator_batch: Several = option(64, "features of a step of the generator")
    server_loss: Literal["avg_logits", "weighted_ce"] = option("avg_logits", "CE of mean logits, or weighted CEs")
    latent_kl: bool = option(False, "the client loss of FedGen's code: decaying weights, and a KL to generated answers")
    latent_weight: Positive = option(1.0, "first weight of that KL", only_with=("latent_kl", True))
    distribution: Literal["uniform", "normal"] = by_variant("uniform", "distribution of the noise", paper="normal")
    labels: Literal["counts", "counts_by_size", "uniform"] = by_variant(
        "counts", "labels by counts, by counts times sizes, or uniform over held classes", reference="counts_by_size"
    )

    def init(self, fed: Federation) -> Tree:
        """FedAvg's start; the generator comes with the first replies."""
        self.new_generator(fed)  # refuses now a network without a head of its own
        return super().init(fed)

    def round(self, s: State, fed: Federation) -> State:
        """Send, train, average, teach the generator."""
        sent = {name: s[name] for name in ("model", "generator", "labels") if name in s.body}
        return self.averaged(s, fed.ask("train", fed.sample(), **sent), fed)

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
        generator = frozen(load(self.new_generator(me), msg["generator"]))
        stream, dropout = me.rng("generated"), me.rng("generated/dropout")
        alpha = decayed(10.0, me.round) if self.latent_kl else 1.0

        def generated(labels: Tensor) -> Tensor:
            return generator(self.noise_for(labels, stream), labels).detach()  # type: ignore[no-any-return]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            drawn = torch.multinomial(msg["labels"].cpu(), len(y), replacement=True, generator=stream).to(y.device)
            with aside(net.head, dropout):
                extra = alpha * ce(net.head(generated(drawn)), drawn)
                if self.latent_kl:
                    with torch.no_grad():
                        target = net.head(generated(y))
                    extra = extra + decayed(self.latent_weight, me.round) * kl(target, logits)
            return ce(logits, y) + self.weight * extra

        fit(net, me, loss)
        return reply(model=params(net), **self.about(me))

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """The average, and the generator after steps of its Adam, whose moments last, against the replies' heads."""
        received = self.aggregation.clipped(models(replies), s["model"])
        heads = stacked_heads(in_two_parts(fed.build(), self.name), received, fed.meter.heads)
        sizes, counts, cap = [r["n"] for r in replies], label_counts(replies), self.aggregation.cap
        a, held = shares(self.aggregation.bounded(sizes, self.discrepancies(s, replies))), bounded_counts(counts, cap)
        by_size = sizes if self.labels == "counts_by_size" else None
        labels = label_distribution(counts, by_size, self.labels == "uniform", cap)  # p(y)
        rate = self.generator_lr * self.generator_lr_decay**s.round  # rounds before this one
        net, stream = self.new_generator(fed), fed.rng("generated")
        generator = Beside.carried_on(net, s.body, "generator", rate, self.generator_weight_decay)
        device = next(net.parameters()).device
        for _ in range(self.generator_steps):
            y = torch.multinomial(labels, self.generator_batch, replacement=True, generator=stream).to(device)
            z = generator(eps := self.noise_for(y, stream), y)
            answers = heads(z)
            together = average_ce(answers, y, a) if self.server_loss == "avg_logits" else weighted_ce(answers, y, held)
            generator.step(together + self.diversity * diversity_loss(eps, z))
            fed.meter.steps += 1
        return {"model": mean, **generator.kept("generator"), "labels": labels}

    def new_generator(self, where: Client | Federation) -> nn.Module:
        """The untrained generator of features, at a client or at the server."""
        shape = in_two_parts(where.build(), self.name).feature_shape
        make = PerceptronFeatures if self.generator_kind == "perceptron" else FeatureGenerator
        return where.generator(partial(make, shape, where.classes, self.noise, self.hidden, self.relu))

    def noise_for(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """One row of noise for each label."""
        draw = torch.randn if self.distribution == "normal" else torch.rand
        return draw(len(labels), self.noise, generator=stream).to(labels.device)
