"""FedKF and FedKF-: each client fuses the global teacher's knowledge with its own, on images of its own generator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import Contract, like, optional
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.data_free import generator_loss, judged
from fedalloy.knowledge.pictures import Images, from_noise
from fedalloy.methods.fedavg import CacheInit, FedAvg
from fedalloy.nets.generators import ImageGenerator
from fedalloy.train.fit import aside, fit, frozen, load, params
from fedalloy.train.losses import ce, kl
from fedalloy.train.optimisers import adam, kept_moments

Variant = Literal["recommended", "paper", "reference"]


@method(
    "fedkf",
    label="FedKF",
    card=Card(
        paper="Zhou et al., IoT-J 2023",
        up="model, n",
        down="model, teacher",
        distils="the average of all clients' last models, on generated images, into each client's model",
        features=True,
        remembers="its generator with Adam's moments",
        quick={"noise": 8, "width": 4, "kd_start": 1},
    ),
)
class FedKF(FedAvg):
    """Global-local knowledge fusion: the average of all clients' last models teaches each client on generated images.

    In each step a client's generator makes one batch of images; the student learns from its real batch and from the
    teacher's answers to the images, L = L_CE + gamma L_KL (Eq. 8), and the generator learns from the same answers,
    L_G = L_IE + lambda_1 L_OH + lambda_2 L_A (Eq. 5). One batch serves both, as in the code and as the passes of the
    paper's Table IX imply; the order of the two updates then makes no difference, except to the adversarial term, which
    here meets the student after its step. The generator stays with the client, moments included, and is never sent. The
    teacher (OCA) is frozen for the round. The views `aca` and `oca` are the two rows of the paper's tables.

    Where paper and code differ, `variant` chooses, and a switch given by hand overrides it:

    | switch | recommended | paper | reference (the code) |
    |---|---|---|---|
    | `kd_start`: first round with distillation | 2 | 1, from an untrained teacher | 2 |
    | `activation`: L_A over features | mean | sum (Eq. 4), which drowns the other terms | mean |
    | `entropy`: L_IE | in [0, 1] | plain (Eq. 3) | in [0, 1] |
    | `adversarial`: - gamma L_KL in L_G | no | no | for colour images |
    | `cache_init` | seen_only | init_model (Algorithm 1) | seen_only |

    What no option gives: Algorithm 1, read line by line, updates the generator first (line 18) and lets the student
    learn from images of the new one (line 19), which is another student; a generator that starts each round with fresh
    moments; a batch of generated images that is larger or smaller than the real one (the code always makes 64); and a
    plain DCGAN, which the paper cites.

    `generator_side = "server"` is the design that the paper rejects: the server trains one generator against the
    teacher and sends it to the clients, which use it as it is, in eval mode. It takes `server_steps` steps a round, or
    as many as the busiest client if 0. A server's generator has no adversarial term, also with `variant = "reference"`,
    since it has no student to work against. `width` and `bn_eps` shape the generator; FedKF's code has noise of 100
    numbers for EMNIST, of 1000 for CIFAR.

    >>> FedKF(variant="paper").kd_from, FedKF(variant="paper", kd_start=3).kd_from
    (1, 3)
    """

    gamma: float = 1.0
    lambda_1: float = 0.1
    lambda_2: float = 0.1
    generator_lr: float = 1e-3
    noise: int = 100
    width: int = 128
    bn_eps: float = 0.8
    generator_side: Literal["client", "server"] = "client"
    server_steps: int = 0
    variant: Variant = "recommended"
    kd_start: int | None = None
    activation: Literal["mean", "sum"] | None = None
    entropy: Literal["normalised", "plain"] | None = None
    adversarial: bool | None = None
    taught_by_all: ClassVar[bool] = True  # the teacher is OCA, which needs the cache

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.taught_by_all and not self.oca:
            raise UsageError(f"{self.name}.oca = false is impossible: the average of all clients is the teacher")
        if self.adversarial and self.generator_side == "server":
            raise UsageError(
                f"{self.name}.adversarial = true would do nothing: the server's generator has no student to work "
                f"against; leave it out, or write generator_side = 'client'"
            )
        for name in ("gamma", "lambda_1", "lambda_2", "server_steps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{self.name}.{name} = {getattr(self, name)} must not be negative")
        for name in ("generator_lr", "bn_eps"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{self.name}.{name} = {getattr(self, name)} must be positive")
        if self.noise < 1 or self.width < 2:
            raise UsageError(f"{self.name} needs noise of at least 1 and a width of at least 2")

    @property
    def kd_from(self) -> int:
        """The first round with distillation."""
        return self.kd_start if self.kd_start is not None else 1 if self.variant == "paper" else 2

    def empty_slots(self) -> CacheInit:
        """What stands in the cache for clients not yet seen: the first model in the paper, nothing in its code."""
        return self.cache_init or ("init_model" if self.variant == "paper" else "seen_only")

    def is_adversarial(self, shape: tuple[int, ...]) -> bool:
        """Whether the generator also works against the student: in the code for CIFAR, not for EMNIST."""
        return self.adversarial if self.adversarial is not None else self.variant == "reference" and shape[0] == 3

    def init(self, fed: Federation) -> Tree:
        """All generators and cache slots start alike (Algorithm 1, line 2); with `seen_only` the cache starts empty."""
        generator = params(self.new_generator(fed))  # refuses now what a client's could not make
        if self.generator_side == "client":
            return super().init(fed)
        return {**super().init(fed), "generator": generator, "moments": {}}

    def round(self, s: State, fed: Federation) -> State:
        """One round (Algorithm 1, lines 3 to 11)."""
        changes: dict[str, Any] = {}
        sent: dict[str, Any] = {"model": s["model"]}
        if fed.round >= self.kd_from:
            sent |= self.teacher(s)
            if self.generator_side == "server":
                changes = self.train_on_server(s, fed, sent.get("teacher", s["model"]))
                sent["generator"] = changes["generator"]
        replies = fed.ask("train", fed.sample(), **sent)
        if not replies:
            return s.next(**changes)
        return s.next(model=self.aggregate(s, replies, fed), **self.cached(s, replies), **changes)

    def teacher(self, s: State) -> dict[str, Tree]:
        """The OCA model, or nothing where the teacher is the model itself, which need not be sent twice."""
        return {"teacher": self.overall(s)} if self.taught_by_all and s["cache"] else {}

    def accepts(self, action: str, me: Client) -> Contract:
        """As under FedAvg; with distillation, also the teacher, once there is one, and the server's generator."""
        contract = dict(super().accepts(action, me))
        if me.round >= self.kd_from:
            if self.taught_by_all:
                contract["teacher"] = optional(contract["model"])
            if self.generator_side == "server":
                contract["generator"] = like(params(self.new_generator(me)))
        return contract

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local training with global-local knowledge fusion (lines 13 to 22)."""
        student = me.net(msg["model"])
        if me.round < self.kd_from:
            fit(student, me, lambda x, y: ce(student(x), y))
            return reply(model=params(student), **self.about(me))
        teacher = frozen(me.net(msg["teacher"] if "teacher" in msg else msg["model"]))
        if self.generator_side == "server":
            generator = frozen(load(self.new_generator(me), msg["generator"]))
            self.fuse(me, student, teacher, generator)
            return reply(model=params(student), **self.about(me))
        generator = self.new_generator(me)
        if me.memory:
            load(generator, me.memory["generator"])
        optimiser = adam(generator.parameters(), self.generator_lr, moments=me.memory.get("moments"))
        self.fuse(me, student, teacher, generator.train(), optimiser)
        keep = {"generator": params(generator), "moments": kept_moments(optimiser)}
        return reply(model=params(student), **self.about(me), keep=keep)

    def fuse(
        self,
        me: Client,
        student: nn.Module,
        teacher: nn.Module,
        generator: nn.Module,
        optimiser: torch.optim.Adam | None = None,
    ) -> None:
        """Train the student on real and generated batches and, with an optimiser, the generator beside it."""
        noise, dropout = me.rng("generator"), me.rng("dropout/generated")
        against = self.is_adversarial(me.shape)
        made: list[Tensor] = []

        def loss(x: Tensor, y: Tensor) -> Tensor:
            images = generator(torch.randn(len(x), self.noise, generator=noise).to(x.device, non_blocking=True))
            feature, answers = judged(teacher, images)
            made[:] = images, feature, answers
            with aside(student, dropout):
                distance = kl(answers.detach(), student(images.detach()))  # Eq. 6
            return ce(student(x), y) + self.gamma * distance  # Eq. 8

        def improve_generator() -> None:
            images, feature, answers = made
            total = self.generator_loss(feature, answers)
            if against:
                with aside(student, dropout):
                    total = total - self.gamma * kl(answers.detach(), student(images))
            assert optimiser is not None
            optimiser.zero_grad()
            total.backward(inputs=list(generator.parameters()))  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()

        fit(student, me, loss, after=None if optimiser is None else improve_generator)

    def generator_loss(self, feature: Tensor, answers: Tensor) -> Tensor:
        """L_G = L_IE + lambda_1 L_OH + lambda_2 L_A (Eq. 5)."""
        plain = self.entropy == "plain" or (self.entropy is None and self.variant == "paper")
        summed = self.activation == "sum" or (self.activation is None and self.variant == "paper")
        return generator_loss(feature, answers, self.lambda_1, self.lambda_2, normalised=not plain, summed=summed)

    def train_on_server(self, s: State, fed: Federation, weights: Tree) -> dict[str, Any]:
        """The rejected design: one generator for all, trained against the teacher before the clients need it."""
        teacher = frozen(load(fed.build(), weights))
        generator = load(self.new_generator(fed), s["generator"]).train()
        optimiser = adam(generator.parameters(), self.generator_lr, moments=s["moments"])
        noise, device = fed.rng("generator"), next(teacher.parameters()).device
        for _ in range(self.server_steps or max((fed.steps(k) for k in fed.sample()), default=0)):
            z = torch.randn(fed.work.batch, self.noise, generator=noise)
            feature, answers = judged(teacher, generator(z.to(device, non_blocking=True)))
            optimiser.zero_grad()
            self.generator_loss(feature, answers).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
        return {"generator": params(generator), "moments": kept_moments(optimiser)}

    def new_generator(self, owner: Client | Federation) -> nn.Module:
        """The generator that all begin with."""
        return owner.generator(
            partial(ImageGenerator, owner.shape, owner.scale, noise=self.noise, width=self.width, bn_eps=self.bn_eps)
        )

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The images of the generators, as the teacher classifies them."""
        if s.round < self.kd_from:
            return {"generated": f"{self.name} starts distilling in round {self.kd_from}"}
        own = {k: memory["generator"] for k, memory in memories.items() if "generator" in memory}
        made = {SERVER: s["generator"]} if self.generator_side == "server" else own
        teacher = self.teacher(s).get("teacher", s["model"])
        return {"generated": Images(from_noise(self.new_generator, self.noise), made, teacher)}


@method(
    "fedkf-minus",
    label="FedKF-",
    card=Card(
        paper="Zhou et al., IoT-J 2023",
        up="model, n",
        down="model",
        distils="the model of the active clients, on generated images, into each client's model",
        features=True,
        remembers="its generator with Adam's moments",
        quick={"noise": 8, "width": 4, "kd_start": 1},
    ),
)
class FedKFMinus(FedKF):
    """FedKF with the received model as the teacher, so that nothing more is sent than in FedAvg.

    Student and teacher start alike; the teacher stays as it was while the student moves. With full participation it is
    FedKF to the bit, as long as every reply arrives and the cache is exact. The cache is only for the view `oca`: with
    `oca = false` no client's model is kept.

    >>> FedKFMinus().gamma
    1.0
    """

    taught_by_all: ClassVar[bool] = False
