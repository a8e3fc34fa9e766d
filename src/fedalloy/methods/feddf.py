"""FedDF: the server distils all clients' models, whatever their networks, into each network's average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedalloy.aggregation.averaging import average
from fedalloy.base import rng
from fedalloy.base.options import Count, Fraction, Number, Positive, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.knowledge.teachers import Rule, taught
from fedalloy.train.fit import batches, fit, frozen, load, params, predict
from fedalloy.train.losses import ce, kl


@method(
    "feddf",
    label="FedDF",
    card=Card(
        paper="Lin, Kong, Stich and Jaggi, NeurIPS 2020",
        distils="the mean answer of all active clients' models, on public inputs, into each network's average",
        public=True,
        any_network=True,
        quick={"steps": 6, "batch": 4, "check_every": 2, "patience": 4},
    ),
)
class FedDF(Method):
    """FedAvg among clients of equal networks, then distillation of everybody's mean logits on unlabelled public data.

    Clients with equal networks form a group with a model of its own. After a round, each group's model is the average
    of its active clients; it then takes `steps` steps of Adam towards the mean answer of *all* active clients' models,
    of every group, on the server's public inputs. Groups never exchange parameters, and a group without an active
    client stays as it is. With one group the view is `global`; with several, group g has the view `group g`.

    If the public set has labels, `validation` holds a share of it out; the best student on that share is kept.

    >>> FedDF(steps=0).aggregation.weights
    'size'
    """

    takes = frozenset({"weights=size", "weights=uniform"})

    ensemble: Rule = option("logits", "mean logits, centred logits or probabilities; or these by certainty")
    steps: Number = option(10_000, "steps of distillation in a round; 0 is FedAvg in each group")
    batch: Count = option(128, "public inputs in a step")
    lr: Positive = option(1e-3, "Adam's first learning rate, which falls to 0 along a cosine")
    tau: Positive = option(1.0, "temperature of the distillation; there is no factor tau^2")
    clip_gradients: Positive = option(5.0, "largest norm of a gradient")
    validation: Fraction = option(0.0, "share of a labelled public set to choose the best student by")
    check_every: Count = option(100, "steps between two validations")
    patience: Count = option(1_000, "steps without a better validation after which a student stops")

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
        fit(net, me, lambda x, y: ce(net(x), y))
        return reply(model=params(net), n=me.n)

    def distil(self, models: Mapping[str, Tree], replies: Sequence[Message], fed: Federation) -> dict[str, Tree]:
        """Each group's model after its steps towards the ensemble of all active clients' models."""
        inputs, held_out = self.parts(fed)
        plan = list(batches(len(inputs), self.batch, self.steps, fed.rng("distillation"), drop_last=True))
        used = torch.unique(torch.cat(plan))  # teachers answer for these only, and only once
        nets = [frozen(load(fed.build(r.client), r["model"])) for r in replies]
        answers = torch.stack([predict(net, inputs.subset(used)) for net in nets])
        teacher = torch.zeros(len(inputs), fed.outputs, device=inputs.x.device)
        teacher[used] = taught(answers, self.ensemble, self.tau)
        lesson = Lesson(inputs, teacher, plan, held_out)
        return {g: self.student(fed, fed.groups[int(g)][0], weights, lesson) for g, weights in models.items()}

    def student(self, fed: Federation, member: int, weights: Tree, lesson: Lesson) -> Tree:
        """The model of a member's group after distillation; with validation, the best that was met on the way."""
        net = load(fed.build(member), weights)
        adam = torch.optim.Adam(net.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, self.steps)
        best, found, since = -1.0, weights, 0
        for step, positions in enumerate(lesson.plan, start=1):
            net.train()
            adam.zero_grad()
            x, _ = lesson.inputs.take(positions)
            kl(lesson.teacher[positions], net(x), self.tau).backward()  # type: ignore[no-untyped-call]  # torch's
            nn.utils.clip_grad_norm_(net.parameters(), self.clip_gradients)
            adam.step()
            schedule.step()
            fed.meter.steps += 1
            since += 1
            if lesson.held_out is not None and (step % self.check_every == 0 or step == len(lesson.plan)):
                with fed.meter.paused():
                    right = (predict(net, lesson.held_out).argmax(1) == lesson.held_out.labels).double().mean().item()
                if right > best:
                    best, found, since = right, params(net), 0
                elif since >= self.patience:
                    break
        return found if lesson.held_out is not None else params(net)

    def parts(self, fed: Federation) -> tuple[Samples, Samples | None]:
        """The public inputs to distil on, and those with labels to validate on, the same in every round."""
        assert fed.public is not None
        samples = fed.public.samples
        if not self.validation:
            return samples, None
        if not fed.public.labelled:
            raise UsageError("feddf.validation needs labels; write public.labelled = true, or leave validation out")
        size = round(self.validation * len(samples))
        if not 0 < size < len(samples):
            raise UsageError(f"feddf.validation = {self.validation} leaves nothing of {len(samples)} public samples")
        shuffled = torch.randperm(len(samples), generator=rng.generator(fed.seed, "feddf", "validation"))
        return samples.subset(shuffled[size:]), samples.subset(shuffled[:size])

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
