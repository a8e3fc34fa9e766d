"""Data-free distillation alone, as FedKF studies it: a teacher, a generator that has only the teacher, a student."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedalloy.base.tree import Tree, equal
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, State, initial, method
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.data_free import generator_loss, judged
from fedalloy.knowledge.pictures import Images, from_noise
from fedalloy.methods.centralised import Centralised
from fedalloy.nets.generators import ImageGenerator
from fedalloy.train.fit import fit, frozen, load, params
from fedalloy.train.losses import kl
from fedalloy.train.optimisers import adam, kept_moments


@method(
    "data-free",
    label="Data-free KD",
    card=Card(
        paper="Zhou et al., IoT-J 2023, Sec. IV-D",
        up="all data, once",
        down="nothing",
        distils="a model of the pooled data, on generated images, into a model that sees no data",
        leaves_client="all training data",
        features=True,
        quick={"teacher_rounds": 1, "steps": 2, "noise": 8, "width": 4},
    ),
)
class DataFreeKD(Centralised):
    """Centralised for `teacher_rounds` rounds; then a student learns from that teacher's answers to generated images.

    This is FedKF's study of its generator (Table IV), without a federation. In each round after the teacher's, `steps`
    batches of images are made; the generator learns what the teacher takes for letters or photographs of all classes,
    L_G = L_IE + lambda_1 L_OH + lambda_2 L_A (Eq. 5), and on the same images the student learns the teacher's answers,
    L_KL (Eq. 6). Neither meets any data: what they are trained on is noise. The student has the experiment's optimiser
    and learning rate, whose schedule counts the teacher's rounds too. The paper does not say where the student starts;
    here it is initialised by a stream of its own, so that it begins as another network than the teacher began. Its
    momentum begins anew in every round, while the generator keeps its moments: with momentum, twice the rounds of half
    the `steps` are not the same training.

    The defaults are the paper's for EMNIST, not those of `fedkf`; for CIFAR it has lambda_1 = 0.01, lambda_2 = 0.002
    and generator_lr = 0.02. `entropy` and `activation` are those of `fedkf`: its code takes L_IE in [0, 1] and the mean
    over features, its equations L_IE without a scale and the sum.

    >>> list(DataFreeKD().models(State(0, {"model": {}, "student": {}})))
    ['teacher', 'student']
    """

    teacher_rounds: int = 10
    steps: int = 100
    lambda_1: float = 0.2
    lambda_2: float = 0.02
    generator_lr: float = 0.2
    noise: int = 100
    width: int = 128
    bn_eps: float = 0.8
    entropy: Literal["normalised", "plain"] = "normalised"
    activation: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("teacher_rounds", 1), ("steps", 1), ("noise", 1), ("width", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"{self.name}.{name} = {getattr(self, name)} must be at least {least}")
        for name in ("lambda_1", "lambda_2"):
            if getattr(self, name) < 0:
                raise UsageError(f"{self.name}.{name} = {getattr(self, name)} must not be negative")
        for name in ("generator_lr", "bn_eps"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{self.name}.{name} = {getattr(self, name)} must be positive")

    def init(self, fed: Federation) -> Tree:
        """The teacher starts from the common model, student and generator each from one of their own."""
        me = self.learner(fed, batches=1)
        teacher, student = params(fed.build()), initial(me.network, me.seed, me.layout, me.train.x.device, "student")
        if equal(teacher, params(student)):
            raise UsageError(f"the student of {self.name} would start as its teacher; leave out `start`")
        return {
            "model": teacher,
            "student": params(student),
            "generator": params(self.new_generator(fed)),
            "moments": {},
        }

    def round(self, s: State, fed: Federation) -> State:
        """Train the teacher on the pool; when its rounds are over, the generator and the student on noise."""
        return super().round(s, fed) if fed.round <= self.teacher_rounds else self.distil(s, fed)

    def distil(self, s: State, fed: Federation) -> State:
        """One batch of images serves generator and student, which learn at the same time."""
        me = self.learner(fed, self.steps)
        teacher, student = frozen(me.net(s["model"])), me.net(s["student"])
        generator = load(self.new_generator(fed), s["generator"]).train()
        optimiser = adam(generator.parameters(), self.generator_lr, moments=s["moments"])
        judgement: list[Tensor] = []

        def loss(z: Tensor, _: Tensor) -> Tensor:
            images = generator(z)
            feature, answers = judged(teacher, images)
            judgement[:] = feature, answers
            return kl(answers.detach(), student(images.detach()))  # Eq. 6

        def improve_generator() -> None:
            optimiser.zero_grad()
            self.generator_loss(*judgement).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()

        fit(student, me, loss, after=improve_generator)
        return s.next(student=params(student), generator=params(generator), moments=kept_moments(optimiser))

    def generator_loss(self, feature: Tensor, answers: Tensor) -> Tensor:
        """L_G = L_IE + lambda_1 L_OH + lambda_2 L_A (Eq. 5)."""
        normalised, summed = self.entropy == "normalised", self.activation == "sum"
        return generator_loss(feature, answers, self.lambda_1, self.lambda_2, normalised=normalised, summed=summed)

    def learner(self, fed: Federation, batches: int) -> Client:
        """The server as a learner whose only samples are noise, each of them used once in a round."""
        device = next(fed.build().parameters()).device
        z = torch.randn(batches * fed.work.batch, self.noise, generator=fed.rng("generator")).to(device)
        rows = torch.arange(len(z), device=device)
        # An augmentation is for images; the labels are never looked at.
        return replace(fed.learner(Samples(z, torch.zeros_like(rows), rows), batches), augment=None)

    def new_generator(self, fed: Client | Federation) -> nn.Module:
        """The generator before any training."""
        make = partial(ImageGenerator, fed.shape, fed.scale, noise=self.noise, width=self.width, bn_eps=self.bn_eps)
        return fed.generator(make)

    def models(self, s: State) -> Mapping[str, Tree]:
        """What the student has to reach, and what it reached."""
        return {"teacher": s["model"], "student": s["student"]}

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The images of the generator, as the teacher classifies them."""
        if s.round <= self.teacher_rounds:
            return {"generated": f"{self.name} starts distilling in round {self.teacher_rounds + 1}"}
        made = {SERVER: s["generator"]}
        return {"generated": Images(from_noise(self.new_generator, self.noise), made, s["model"])}
