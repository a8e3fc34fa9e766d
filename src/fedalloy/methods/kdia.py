"""KDIA: all clients' last models, weighted by three frequencies, teach the active ones; generated features even out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.aggregation.averaging import shares
from fedalloy.aggregation.cache import Unseen
from fedalloy.aggregation.robust import bounded
from fedalloy.base.options import NotNegative, Positive, Variant, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.averaged import models
from fedalloy.knowledge.generated_features import GeneratedFeatures
from fedalloy.knowledge.pictures import Features
from fedalloy.knowledge.trifreqs import Frequency, Mean, tri_freqs
from fedalloy.methods.fedavg import FedAvg
from fedalloy.nets.models import in_two_parts
from fedalloy.train.fit import fit, frozen, params
from fedalloy.train.losses import kl


@method(
    "kdia",
    label="KDIA",
    card=Card(
        brief="a weighted average of all teaches",
        paper="Ma, preprint submitted to Elsevier",
        distils="a weighted average of all clients' last models, on the client's own data, into each client's model",
        features=True,
        quick={"noise": 4, "generator_width": 8, "generator_epochs": 2, "generator_batches": 3, "generator_batch": 4},
    ),
)
class KDIA(GeneratedFeatures, FedAvg):
    """Inequitable aggregation: the active clients make the student, all clients' last models the teacher.

    The student, the view `student`, is FedAvg's average. The teacher, the view `teacher`, weighs every client's last
    model by how lately it took part, how often, and how much data it has (triFreqs). A client learns from its data,
    from the teacher's answers to them, and, with its head alone, from features that the server's generator makes for
    uniformly drawn labels. The generator learns from the active clients' heads (`GeneratedFeatures`).

    A term whose weight is 0 is left out, and what it needs is neither made nor sent. With both weights 0, training is
    FedAvg's: the control that tells what distillation adds from what averaging all clients adds.

    >>> KDIA(variant="reference").generator_epochs, KDIA(variant="reference", generator_epochs=5).generator_batches
    (20, 100)
    """

    takes = frozenset({"weights", "clip"})

    lambda_kd: NotNegative = option(0.5, "weight of the distillation; with 0, no teacher is sent")
    lambda_gen: NotNegative = option(0.01, "weight of generated features; with 0, there is no generator")
    tau: Positive = option(2.0, "temperature of the distillation; there is no factor tau^2")
    mean: Mean = option("geometric", "how the three frequencies make one weight", only_with=("freqs", "all"))
    freqs: Frequency = option("all", "what the teacher's weights follow: three frequencies, or one of them alone")
    variant: Variant = option("recommended", "whose choices hold where the paper and its code differ")
    kd_direction: Literal["forward", "reverse"] = by_variant(
        "forward", "KL(teacher || student), or with the two exchanged", reference="reverse"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cache.oca:
            raise UsageError(
                "cache.oca = false leaves kdia without its teacher, an average of all clients; leave it out"
            )
        weightless = (self.freqs, self.mean) == ("all", "geometric") or self.freqs == "participation"
        if weightless and self.cache.unseen == "random":
            raise UsageError(
                "cache.unseen = 'random' has no effect on kdia with these weights, by which clients not yet seen weigh "
                "nothing; leave it out, or write mean = 'arithmetic', freqs = 'interval' or freqs = 'number'"
            )

    @property
    def usual_unseen(self) -> Unseen:
        """Clients not yet seen hold the first model."""
        return "init_model"

    def init(self, fed: Federation) -> Tree:
        """One model for all; nobody has taken part yet."""
        never = torch.zeros(len(fed.sizes), dtype=torch.int64)
        generator = {"generator": self.example("generator", fed)} if self.lambda_gen else {}
        return {**super().init(fed), "last": never, "times": never.clone(), **generator}

    def round(self, s: State, fed: Federation) -> State:
        """Send student, teacher and generator to the active clients, let them train, combine (Algorithm 1)."""
        sent = {"model": s["model"]}
        sent |= {"teacher": self.overall(s)} if self.lambda_kd else {}
        sent |= {"generator": s["generator"]} if self.lambda_gen else {}
        return self.averaged(s, fed.ask("train", fed.sample(), **sent), fed)

    @action("model, teacher if lambda_kd, generator if lambda_gen -> model, n, counts if tells_counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE + lambda_kd KL + lambda_gen CE of the head on generated features (Algorithm 2, Eq. 13)."""
        net = me.net(msg["model"])
        teacher = frozen(me.net(msg["teacher"])) if self.lambda_kd else None
        generated = self.generated(me, in_two_parts(net, self.name), msg["generator"]) if self.lambda_gen else None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            total = me.loss(logits, y)
            if teacher is not None:
                total = total + self.lambda_kd * self.distance(teacher(x), logits)  # Eq. 11
            if generated is not None:
                total = total + self.lambda_gen * generated(y)  # Eq. 12
            return total

        fit(net, me, loss)
        return reply(model=params(net), **self.about(me))

    def distance(self, teacher: Tensor, student: Tensor) -> Tensor:
        """KL(P || Q) of teacher and student at temperature tau (Eq. 11), or with the two exchanged."""
        return kl(teacher, student, self.tau) if self.kd_direction == "forward" else kl(student, teacher, self.tau)

    def cached(self, s: State, replies: Sequence[Message]) -> dict[str, Any]:
        """Keep the active clients' models, and note that they took part (lines 7 and 8)."""
        active = [r.client for r in replies]
        last, times = s["last"].clone(), s["times"].clone()
        last[active] = s.round + 1
        times[active] += 1
        kept = dict(zip(active, self.aggregation.clipped(models(replies), s["model"]), strict=True))
        cache = self.cache.updated(s.body, s.round + 1, self.aggregation, kept, weighed_anew=True)
        return {**cache, "last": last, "times": times}

    def overall(self, s: State) -> Tree:
        """The teacher, theta_T = sum_k F_k theta_k over all clients' last models (line 10, Eq. 10)."""

        def weigh(clients: Sequence[int]) -> Sequence[float]:
            last, times, sizes = (s[name][clients].tolist() for name in ("last", "times", "sizes"))
            return bounded(tri_freqs(last, times, sizes, mean=self.mean, use=self.freqs), self.aggregation.cap)  # Eq. 9

        return self.cache.overall(s.body, self.aggregation, weigh)

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """The average is the student (line 9); the generator learns from the active clients' heads (lines 11 to 18)."""
        return {"model": mean, "generator": self.teach(s, replies, fed)} if self.lambda_gen else {"model": mean}

    def teach(self, s: State, replies: Sequence[Message], fed: Federation) -> Tree:
        """The generator after this round; heads count by the weights p_k of the student's average."""
        p = shares(self.aggregation.bounded([r["n"] for r in replies], self.discrepancies(s, replies)))  # Eq. 1
        return self.taught(s["generator"], self.aggregation.clipped(models(replies), s["model"]), p, fed)

    def models(self, s: State) -> Mapping[str, Tree]:
        """The average of the active clients, and the weighted one of all; the paper reports the better."""
        return {"student": s["model"], "teacher": self.overall(s)}

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The clients' weights in the teacher, and the generated features."""
        made = Features(self.new_generator, s["generator"]) if self.lambda_gen else "lambda_gen = 0 makes no features"
        options = {"mean": self.mean, "use": self.freqs, "seen_only": self.cache.unseen == "seen_only"}
        return {"trifreqs": options, "similarity": made}
