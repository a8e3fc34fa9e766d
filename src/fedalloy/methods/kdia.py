"""KDIA: all clients' last models, weighted by three frequencies, teach the active ones; generated features even out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from fedalloy.aggregation.averaging import shares
from fedalloy.aggregation.cache import Unseen
from fedalloy.aggregation.robust import bounded
from fedalloy.base.options import Count, Even, NotNegative, Positive, Variant, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.label_pools import client_labels, from_pool
from fedalloy.knowledge.trifreqs import Frequency, Mean, tri_freqs
from fedalloy.methods.fedavg import FedAvg, label_counts, models
from fedalloy.nets.ensemble import stacked_heads
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import FeatureNet, in_two_parts
from fedalloy.train.beside import Beside, normal
from fedalloy.train.fit import aside, fit, frozen, load, params
from fedalloy.train.losses import ce, kl


@method(
    "kdia",
    label="KDIA",
    card=Card(
        paper="Ma, preprint submitted to Elsevier",
        distils="a weighted average of all clients' last models, on the client's own data, into each client's model",
        features=True,
        quick={"noise": 4, "generator_width": 8, "generator_epochs": 2, "generator_batches": 3, "generator_batch": 4},
    ),
)
class KDIA(FedAvg):
    """Inequitable aggregation: the active clients make the student, all clients' last models the teacher.

    The student, the view `student`, is FedAvg's average. The teacher, the view `teacher`, weighs every client's last
    model by how lately it took part, how often, and how much data it has (triFreqs). A client learns from its data, from
    the teacher's answers to them, and, with its head alone, from features that the server's generator makes for
    uniformly drawn labels. The generator learns from the heads of the active clients. A term whose weight is 0 is left
    out, and what it needs is neither made nor sent.

    >>> KDIA(variant="reference").generator_epochs, KDIA(variant="reference", generator_epochs=5).generator_batches
    (20, 100)
    """

    takes = frozenset({"weights", "clip"})

    lambda_kd: NotNegative = option(0.5, "weight of the distillation; with 0, no teacher is sent")
    lambda_gen: NotNegative = option(0.01, "weight of generated features; with 0, there is no generator")
    tau: Positive = option(2.0, "temperature of the distillation; there is no factor tau^2")
    mean: Mean = option("geometric", "mean of the three frequencies")
    freqs: Frequency = option("all", "the three frequencies, or one of them alone")
    labels: Literal["uniform", "batch"] = option("uniform", "labels of generated features: balanced, or the batch's own")
    noise: Count = option(100, "numbers of noise that a feature is made of")
    generator_width: Annotated[int, Ge(4)] = option(512, "channels of the generator's first layer")
    generator_batch: Even = option(64, "features in a step of the generator; halves are compared with each other")
    generator_lr: Positive = option(1e-3, "learning rate of the generator's Adam")
    generator_weight_decay: NotNegative = option(1e-5, "weight decay of the generator's Adam")
    variant: Variant = option("recommended", "whose choices hold where the paper and its code differ")
    kd_direction: Literal["forward", "reverse"] = by_variant(
        "forward", "KL(teacher || student) or KL(student || teacher)", reference="reverse"
    )
    generator_epochs: Count = by_variant(10, "passes of the generator over its labels in a round", reference=20)
    generator_batches: Count = by_variant(200, "steps of the generator in a pass", reference=100)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cache.oca:
            raise UsageError("kdia needs the cache, of which its teacher is an average; leave out cache.oca = false")

    @property
    def usual_unseen(self) -> Unseen:
        """Clients not yet seen hold the first model."""
        return "init_model"

    # --- the server (Algorithm 1) ---------------------------------------------------------------------------------

    def init(self, fed: Federation) -> Tree:
        """One model for all; nobody has taken part yet."""
        never = torch.zeros(len(fed.sizes), dtype=torch.int64)
        generator = {"generator": self.example("generator", fed)} if self.lambda_gen else {}
        return {**super().init(fed), "last": never, "times": never.clone(), **generator}

    def round(self, s: State, fed: Federation) -> State:
        """Send student, teacher and generator, train, combine (lines 2 to 18)."""
        sent = {"model": s["model"]}
        sent |= {"teacher": self.overall(s)} if self.lambda_kd else {}
        sent |= {"generator": s["generator"]} if self.lambda_gen else {}
        return self.averaged(s, fed.ask("train", fed.sample(), **sent), fed)

    def cached(self, s: State, replies: Sequence[Message]) -> dict[str, Any]:
        """Keep the active clients' models, and note that they took part (lines 7 and 8)."""
        active = [r.client for r in replies]
        last, times = s["last"].clone(), s["times"].clone()
        last[active] = s.round + 1
        times[active] += 1
        kept = dict(zip(active, self.aggregation.clipped(models(replies), s["model"]), strict=True))
        cache = self.cache.updated(s.body, s.round + 1, self.aggregation, kept, {}, weighed_anew=True)
        return {**cache, "last": last, "times": times}

    def overall(self, s: State) -> Tree:
        """The teacher, theta_T = sum_k F_k theta_k over all clients' last models (line 10, Eq. 10)."""

        def weigh(clients: Sequence[int]) -> Sequence[float]:
            history = (s[name][clients].tolist() for name in ("last", "times", "sizes"))
            return bounded(tri_freqs(*history, mean=self.mean, use=self.freqs), self.aggregation.cap)  # Eq. 9

        return self.cache.overall(s.body, self.aggregation, weigh)

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """The average is the student (line 9, Eq. 1); the generator learns from the active clients' heads."""
        return {"model": mean, "generator": self.teach(s, replies, fed)} if self.lambda_gen else {"model": mean}

    def teach(self, s: State, replies: Sequence[Message], fed: Federation) -> Tree:
        """The generator after this round's steps, with a fresh Adam (lines 11 to 18)."""
        net = in_two_parts(fed.build(), self.name)
        heads = stacked_heads(net, self.aggregation.clipped(models(replies), s["model"]))
        made = load(self.new_generator(fed, net), s["generator"])
        generator = Beside(made, self.generator_lr, self.generator_weight_decay)
        device, noise = next(made.parameters()).device, fed.rng("generator/noise")
        p = torch.tensor(shares(self.aggregation.bounded([r["n"] for r in replies], label_counts(replies))), device=device)
        for labels in self.server_labels(fed):
            y, eps = labels.to(device, non_blocking=True), normal(len(labels), self.noise, noise, device)
            z = generator(eps, y)
            with fed.meter.paused():
                logits = torch.tensordot(p, heads(z), 1)
            fed.meter.count(logits, 0.5 * len(p))  # however many heads one product evaluates, each is half a pass
            generator.step(ce(logits, y) + diversity_loss(eps, z))  # Eq. 3 and 4
            fed.meter.steps += 1
        return params(generator.net)

    def server_labels(self, fed: Federation) -> Iterator[Tensor]:
        """The labels of each step: one pool a round, shuffled in every epoch (lines 11 and 13), or all drawn anew."""
        draw, size, steps = fed.rng("generator/labels"), self.generator_batch, self.generator_epochs * self.generator_batches
        if self.labels == "uniform":
            return from_pool(fed.classes, size * self.generator_batches, size, steps, draw)
        return (torch.randint(fed.classes, (size,), generator=draw) for _ in range(steps))

    def models(self, s: State) -> Mapping[str, Tree]:
        """The average of the active clients, and the weighted one of all; the paper reports the better."""
        return {"student": s["model"], "teacher": self.overall(s)}

    # --- a client (Algorithm 2) -----------------------------------------------------------------------------------

    @action("model, teacher if lambda_kd, generator if lambda_gen -> model, n, counts if tells_counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE + lambda_kd KL + lambda_gen CE of the head on generated features (Eq. 13)."""
        net = me.net(msg["model"])
        teacher = frozen(me.net(msg["teacher"])) if self.lambda_kd else None
        generated = self.generated(me, in_two_parts(net, self.name), msg["generator"]) if self.lambda_gen else None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            total = ce(logits, y)
            if teacher is not None:
                total = total + self.lambda_kd * self.distance(teacher(x), logits)
            if generated is not None:
                total = total + self.lambda_gen * generated(y)
            return total

        fit(net, me, loss)
        return reply(model=params(net), **self.about(me))

    def distance(self, teacher: Tensor, student: Tensor) -> Tensor:
        """KL(P || Q) of teacher and student at temperature tau (Eq. 11), or with the two exchanged."""
        return kl(teacher, student, self.tau) if self.kd_direction == "forward" else kl(student, teacher, self.tau)

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

    # --- both -----------------------------------------------------------------------------------------------------

    def example(self, name: str, party: Client | Federation) -> Any:
        """The generator fits the features of the party's network."""
        if name == "generator":
            return params(self.new_generator(party, in_two_parts(party.build(), self.name)))
        return super().example(name, party)

    def new_generator(self, where: Client | Federation, net: FeatureNet) -> nn.Module:
        """The untrained generator for this network's features, at a client or at the server."""
        make = partial(ConditionalGenerator, net.feature_shape, where.classes, self.noise, self.generator_width)
        return where.generator(make)


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """|eps_1 - eps_2| / |z_1 - z_2| of the batch's two halves (Eq. 4): small where noise makes a difference.

    As in the code, the distances are means over all numbers and the constant stands under the inverted ratio.

    >>> round(diversity_loss(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])).item(), 4)
    0.5
    """
    (eps_1, eps_2), (z_1, z_2) = noise.chunk(2), features.chunk(2)
    return 1 / ((z_1 - z_2).abs().mean() / (eps_1 - eps_2).abs().mean() + 1e-5)
