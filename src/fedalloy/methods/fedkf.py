"""FedKF: each client fuses the global teacher's knowledge with its own, on images of its own generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedalloy.aggregation.cache import Unseen
from fedalloy.base.options import Count, NotNegative, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.data_free import DataFree, Judged, judged
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.beside import normal
from fedalloy.train.fit import LocalWork, aside, fit, frozen, params
from fedalloy.train.losses import kl

QUICK = {"noise": 8, "width": 4, "kd_start": 1}


@method(
    "fedkf",
    label="FedKF",
    card=Card(
        brief="the average of all teaches clients",
        paper="Zhou et al., IoT-J 2023",
        distils="the average of all clients' last models, on generated images, into each client's model",
        features=True,
        remembers="its generator with Adam's moments",
        quick=QUICK,
    ),
)
class FedKF(DataFree, FedAvg):
    """Global-local knowledge fusion: the average of all clients' last models teaches each client on generated images.

    In each step a client's generator makes a batch of images, and the teacher answers to them. The student learns from
    its real batch and from the teacher's answers (Eq. 8); the generator learns from the same answers (Eq. 5). With
    `order = "generator_first"`, Algorithm 1 to the letter, the student learns from the improved generator's images. The
    teacher (OCA, the paper's technique T1) stays as it is for the round. The generator stays with the client, Adam's
    moments included, and is never sent. The views `aca` and `oca` are the two rows of the paper's tables.

    >>> FedKF(variant="paper").kd_start, FedKF(variant="paper", kd_start=3).kd_start
    (1, 3)
    """

    gamma: NotNegative = option(1.0, "weight of L_KL, the distance of the student from the teacher")
    kd_start: Count = by_variant(2, "first round with distillation; in round 1 the teacher is untrained", paper=1)
    adversarial: bool | Literal["colour"] = by_variant(
        False, "subtract gamma L_KL from L_G: the generator works against the student", reference="colour"
    )
    order: Literal["student_first", "generator_first"] = by_variant(
        "student_first",
        "which step comes first: the student's, on the same images, or the generator's, with new ones for the student",
        paper="generator_first",
    )
    generated_batch: Count | Literal["real", "full"] = by_variant(
        "real", "images in a step: as many as in the real batch, always `training.batch`, or a number", reference="full"
    )
    taught_by_all: ClassVar[bool] = True  # the teacher is the cache's average

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.taught_by_all and not self.cache.oca:
            raise UsageError(
                f"{self.name} needs cache.oca = true: the average of all clients is the teacher; leave out cache.oca"
            )

    @property
    def usual_unseen(self) -> Unseen:
        """In Algorithm 1, line 2, every slot of the cache starts with the first model; in the code, slots are empty."""
        return "init_model" if self.variant == "paper" else "seen_only"

    def init(self, fed: Federation) -> Tree:
        """w^0 and the cache (Algorithm 1, line 2)."""
        self.new_generator(fed)  # refuses images that no generator can make
        return super().init(fed)

    def round(self, s: State, fed: Federation) -> State:
        """Lines 3 to 11; `averaged` computes lines 7 and 9, `overall` line 10."""
        teacher = self.teacher(s) if self.distils(fed.round) else {}
        return self.averaged(s, fed.ask("train", fed.sample(), model=s["model"], **teacher), fed)

    def distils(self, round: int) -> bool:
        """Whether a round is one with distillation."""
        return round >= self.kd_start

    def teacher(self, s: State) -> dict[str, Tree]:
        """The OCA model; nothing while that is the model itself, which need not be sent twice."""
        return {"teacher": self.overall(s)} if s["cache"] else {}

    @action("model, teacher? if distils -> model, n, counts if tells_counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """ClientUpdate (lines 13 to 22); before `kd_start`, local SGD as in FedAvg."""
        if not self.distils(me.round):
            return super().train(me, msg)
        student, teacher = me.net(msg["model"]), frozen(me.net(msg["teacher" if "teacher" in msg else "model"]))
        generator = self.resumed(me, me.memory)
        noise, dropout = me.rng("generator"), me.rng("dropout/generated")
        against = self.adversarial is True or (self.adversarial == "colour" and me.shape[0] == 3)
        student_first = self.order == "student_first"
        batch: Judged

        def loss(x: Tensor, y: Tensor) -> Tensor:
            nonlocal batch
            z = normal(self.generated(len(x), me.work), self.noise, noise, x.device)
            batch = judged(teacher, generator(z))
            if not student_first:
                improve_generator()
                with torch.no_grad():
                    batch = judged(teacher, generator(z))
            return self.fusion_loss(me, student, batch, dropout, x, y)  # line 19

        def improve_generator() -> None:
            total = self.generator_loss(batch)
            if against:
                with aside(student, dropout), me.meter.passed_through():
                    total = total - self.gamma * kl(batch.answers.detach(), student(batch.images))
            generator.step(total)  # line 18

        fit(student, me, loss, after=improve_generator if student_first else None)
        return reply(model=params(student), **self.about(me), keep=self.kept(generator))

    def generated(self, real: int, work: LocalWork) -> int:
        """How many images a step generates beside this many real ones."""
        sizes = {"real": real, "full": work.batch}
        return self.generated_batch if isinstance(self.generated_batch, int) else sizes[self.generated_batch]

    def fusion_loss(
        self, me: Client, student: nn.Module, batch: Judged, dropout: torch.Generator, x: Tensor, y: Tensor
    ) -> Tensor:
        """L = L_CE + gamma L_KL (Eq. 8), on a real and a generated batch."""
        with aside(student, dropout):
            l_kl = kl(batch.answers.detach(), student(batch.images.detach()))  # Eq. 6
        l_ce = me.loss(student(x), y)  # Eq. 7
        return l_ce + self.gamma * l_kl

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The images of the generators, as the teacher classifies them."""
        if not self.distils(s.round):
            return {"generated": f"{self.name} starts distilling in round {self.kd_start}"}
        made = {k: memory["generator"] for k, memory in memories.items() if "generator" in memory}
        return {"generated": self.images(made, self.teacher(s).get("teacher", s["model"]))}
