"""FedDF: the server distils all clients' models, whatever their networks, into each network's average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.rule import Weights
from fedalloy.base.options import Count, Number, Positive, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS, Samples, Task
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.knowledge.teachers import Rule, taught
from fedalloy.knowledge.validation import Validated
from fedalloy.train.fit import batches, fit, frozen, load, params, predict
from fedalloy.train.losses import binary_kl, kl
from fedalloy.train.scores import WORST, score


@method(
    "feddf",
    label="FedDF",
    card=Card(
        brief="distil all models into the average",
        paper="Lin, Kong, Stich and Jaggi, NeurIPS 2020",
        distils="the mean answer of all active clients' models, on public inputs, into each network's average",
        public=True,
        any_network=True,
        tasks=TASKS,
        quick={"steps": 6, "batch": 4},
    ),
)
class FedDF(Validated):
    """FedAvg among clients of equal networks, then distillation of everybody's mean logits on unlabelled public data.

    Clients with equal networks form a group with a model of its own. After a round, each group's model is the average
    of its active clients; it then takes `steps` steps towards the mean answer of *all* active clients' models,
    of every group, on the server's public inputs. Groups never exchange parameters, and a group without an active
    client stays as it is. With one group the view is `global`; with several, group g has the view `group g`.

    With validation, the student that is best on held-out labelled samples is kept: on a share of the public set, or on
    rows of the task that only the server holds.

    >>> FedDF(steps=0).aggregation.weights
    'size'
    """

    takes = frozenset({"weights=size", "weights=uniform"})

    variant: Literal["recommended", "reference", "dafkd"] = option(
        "recommended", "whose choices: ours, those of its code and commands, or DaFKD's"
    )
    ensemble: Rule = by_variant(
        "logits",
        "mean logits, logits less the client's mean over the samples, or probabilities; or these by certainty",
        dafkd="probabilities",
    )
    steps: Number = option(10_000, "steps of distillation in a round; 0 is FedAvg in each group", repeats=True)
    batch: Count = by_variant(128, "public inputs in a step", reference=64)
    drop_last: bool = by_variant(True, "leave out the last, smaller batch of a pass", reference=False)
    optimiser: Literal["adam", "sgd"] = by_variant("adam", "optimiser of the distillation", dafkd="sgd")
    lr: Positive = by_variant(1e-3, "its first learning rate", dafkd=0.01)
    schedule: Literal["cosine", "constant"] = by_variant(
        "cosine", "how this rate goes on: to 0 along a cosine, or not at all", dafkd="constant"
    )
    tau: Positive = option(1.0, "temperature of the distillation; there is no factor tau^2")
    clip_gradients: Positive = option(5.0, "largest norm of a gradient")

    @property
    def usual_weights(self) -> Weights:
        """The paper averages by size, its code with equal weights."""
        return "uniform" if self.variant == "reference" else "size"

    def init(self, fed: Federation) -> Tree:
        """One model for each group of equal networks."""
        self.parts(fed)
        return {"models": {str(g): params(fed.build(clients[0])) for g, clients in enumerate(fed.groups)}}

    def round(self, s: State, fed: Federation) -> State:
        """Train in groups, average each group, distil everybody into each average (Algorithm 3)."""
        group = {k: str(g) for g, clients in enumerate(fed.groups) for k in clients}
        replies = fed.ask("train", {k: {"model": s["models"][group[k]]} for k in fed.sample()})
        averages: dict[str, Tree] = {}
        for g in sorted({group[r.client] for r in replies}, key=int):
            members = [r for r in replies if group[r.client] == g]
            weights = self.aggregation.bounded([r["n"] for r in members])
            averages[g] = average([r["model"] for r in members], weights, s["models"][g])
        trained = self.distil(averages, replies, fed) if self.steps and replies else averages
        return s.next(models={**s["models"], **trained})

    @action("model -> model, n")
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on cross-entropy, from the group's model."""
        net = me.net(msg["model"])
        fit(net, me, lambda x, y: me.loss(net(x), y))
        return reply(model=params(net), n=me.n)

    def distil(self, models: Mapping[str, Tree], replies: Sequence[Message], fed: Federation) -> dict[str, Tree]:
        """Each group's model after its steps towards the ensemble of all active clients' models."""
        inputs, held_out = self.parts(fed)
        plan = list(batches(len(inputs), self.batch, self.steps, fed.rng("distillation"), self.drop_last))
        used = torch.unique(torch.cat(plan))  # teachers answer for these only, and only once
        nets = [frozen(load(fed.build(r.client), r["model"])) for r in replies]
        answers = torch.stack([predict(net, inputs.subset(used)) for net in nets])
        teacher = torch.zeros(len(inputs), fed.outputs, device=inputs.x.device)
        teacher[used] = self.taught(answers, fed.task)
        lesson = Lesson(inputs, teacher, plan, held_out)
        return {g: self.student(fed, fed.groups[int(g)][0], weights, lesson) for g, weights in models.items()}

    def unfit_for(self, task: Task) -> str | None:
        """Some ways to combine answers are about classes."""
        able = {"labels": ("logits", "probabilities"), "numbers": ("logits",)}.get(task)
        if able is None or self.ensemble in able:
            return super().unfit_for(task)
        return f"ensemble = '{self.ensemble}' does not go with this task; write '{able[0]}'"

    def taught(self, answers: Tensor, task: Task) -> Tensor:
        """The teacher of all clients' outputs, as outputs; ours for labels and for numbers (their mean)."""
        if task == "labels" and self.ensemble == "probabilities":
            return self.tau * (answers / self.tau).sigmoid().mean(0).logit(eps=1e-6)
        return taught(answers, self.ensemble, self.tau)

    def apart(self, teacher: Tensor, student: Tensor, task: Task) -> Tensor:
        """KL(teacher || student), that of each label, or the squared error of numbers."""
        if task == "numbers":
            return F.mse_loss(student, teacher)
        return binary_kl(teacher.sigmoid(), student, self.tau) if task == "labels" else kl(teacher, student, self.tau)

    def student(self, fed: Federation, member: int, weights: Tree, lesson: Lesson) -> Tree:
        """The model of a member's group after distillation; with validation, the best that was met on the way."""
        net = load(fed.build(member), weights)
        kind = torch.optim.Adam if self.optimiser == "adam" else torch.optim.SGD
        optimiser = kind(net.parameters(), lr=self.lr)
        last = 0.0 if self.schedule == "cosine" else self.lr  # a cosine from a rate to itself stays there
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps, eta_min=last)
        best, found, since = WORST, weights, 0
        for step, positions in enumerate(lesson.plan, start=1):
            net.train()
            optimiser.zero_grad()
            x, _ = lesson.inputs.take(positions)
            loss = self.apart(lesson.teacher[positions], net(x), fed.task)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            nn.utils.clip_grad_norm_(net.parameters(), self.clip_gradients)
            optimiser.step()
            schedule.step()
            fed.meter.steps += 1
            since += 1
            if lesson.held_out is not None and (step % self.check_every == 0 or step == len(lesson.plan)):
                with fed.meter.paused():
                    right = score(fed.task, predict(net, lesson.held_out), lesson.held_out.labels)
                if right > best:
                    best, found, since = right, params(net), 0
                elif since >= self.patience:
                    break
        return found if lesson.held_out is not None else params(net)

    def models(self, s: State) -> Mapping[str, Tree]:
        """Each group's model."""
        if len(s["models"]) == 1:
            return {"global": s["models"]["0"]}
        return {f"group {g}": s["models"][g] for g in sorted(s["models"], key=int)}


@dataclass(frozen=True)
class Lesson:
    """What all groups' students learn in a round: the teachers' answers to the public inputs, batch by batch."""

    inputs: Samples
    teacher: Tensor
    plan: Sequence[Tensor]
    held_out: Samples | None
