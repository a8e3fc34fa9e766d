"""Data-free distillation alone, as FedKF studies it: a teacher, a generator that has only the teacher, a student."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.base.options import Count, NotNegative, Positive, option
from fedalloy.base.tree import Tree, equal
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, State, initial, method
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.coverage import note_classes
from fedalloy.knowledge.data_free import DataFree, Judged, judged
from fedalloy.knowledge.persistence import Persistent, kept
from fedalloy.methods.centralised import Centralised
from fedalloy.train.beside import normal
from fedalloy.train.fit import fit, frozen, params
from fedalloy.train.losses import kl


@method(
    "data-free",
    label="Data-free KD",
    card=Card(
        role="control",
        brief="pooled teacher, data-free student",
        paper="Zhou et al., IoT-J 2023, Sec. IV-D",
        up="all data, once",
        down="nothing",
        distils="a model of the pooled data, on generated images, into a model that sees no data",
        leaves_client="all training data",
        features=True,
        quick={"teacher_rounds": 1, "steps": 2, "noise": 8, "width": 4},
    ),
)
class DataFreeKD(DataFree, Persistent, Centralised):
    """Train a teacher on the pooled data; then a student learns from the teacher's answers to generated images.

    This is FedKF's study of its generator (Table IV), without a federation. In each round after the teacher's, `steps`
    batches of images are made. The generator learns to make what the teacher takes for images of all classes (Eq. 5);
    on the same images the student learns the teacher's answers (Eq. 6). Neither of them meets any data.

    >>> list(DataFreeKD().models(State(0, {"model": {}, "student": {}})))
    ['teacher', 'student']
    """

    variant: Literal["recommended", "paper"] = option("recommended", "whose choices: ours or the paper's")
    teacher_rounds: Count = option(10, "rounds in which the teacher is trained")
    steps: Count = option(100, "steps of generator and student in each later round")
    persist: bool = option(False, "carry the state of the student's optimiser over to the next round")
    lambda_1: NotNegative = option(0.2, "weight of L_OH; the paper has 0.2 for EMNIST and 0.01 for CIFAR")
    lambda_2: NotNegative = option(0.02, "weight of L_A; the paper has 0.02 for EMNIST and 0.002 for CIFAR")
    generator_lr: Positive = option(0.2, "learning rate of the generator's Adam; the paper has 0.02 for CIFAR")

    def init(self, fed: Federation) -> Tree:
        """The teacher starts from the common model, student and generator each from one of their own."""
        self.need_state(fed)
        me = self.learner(fed, batches=1)
        teacher, student = params(fed.build()), initial(me.network, me.seed, me.layout, me.train.x.device, "student")
        if equal(teacher, params(student)):
            raise UsageError(f"the student of {self.name} would start as its teacher; leave out `start`")
        generator = params(self.new_generator(fed))
        return {"model": teacher, "student": params(student), "generator": generator, "moments": {}}

    def round(self, s: State, fed: Federation) -> State:
        """Train the teacher on the pool; when its rounds are over, the generator and the student on noise."""
        return super().round(s, fed) if fed.round <= self.teacher_rounds else self.distil(s, fed)

    def distil(self, s: State, fed: Federation) -> State:
        """One batch of images serves generator and student, which learn at the same time."""
        me = self.learner(fed, self.steps)
        teacher, student = frozen(me.net(s["model"])), me.net(s["student"])
        generator = self.resumed(fed, s.body)
        optimiser = me.work.optimiser_for(student, me.round, s.body.get("optimiser") if self.persist else None)
        batch: Judged
        seen: list[Tensor] = []

        def loss(z: Tensor, _: Tensor) -> Tensor:
            nonlocal batch
            batch = judged(teacher, generator(z))
            seen.append(batch.answers.detach()[:, : fed.classes].argmax(1))
            return kl(batch.answers.detach(), student(batch.images.detach()))  # Eq. 6

        fit(student, me, loss, optimiser=optimiser, after=lambda: generator.step(self.generator_loss(batch)))
        note_classes(fed, torch.cat(seen))
        carried = kept(optimiser) if self.persist else {}
        return s.next(student=params(student), **self.kept(generator), **carried)

    def learner(self, fed: Federation, batches: int) -> Client:
        """The server as a learner whose only samples are noise, each of them used once in a round."""
        device = next(fed.build().parameters()).device
        z = normal(batches * fed.work.batch, self.noise, fed.rng("generator"), device)
        rows = torch.arange(len(z), device=device)
        # An augmentation is for images; the labels are never looked at.
        return replace(fed.learner(Samples(z, torch.zeros_like(rows), rows), batches), augment=None)

    def models(self, s: State) -> Mapping[str, Tree]:
        """What the student has to reach, and what it reached."""
        return {"teacher": s["model"], "student": s["student"]}

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The images of the generator, as the teacher classifies them."""
        if s.round <= self.teacher_rounds:
            return {"generated": f"{self.name} starts distilling in round {self.teacher_rounds + 1}"}
        return {"generated": self.images({SERVER: s["generator"]}, s["model"])}
