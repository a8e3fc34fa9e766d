"""FedDF: the server distils all clients' models, whatever their networks, into each network's average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.robust import bounded
from fedalloy.base import rng
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.federation.gate import Contract, like, whole
from fedalloy.train.fit import batches, fit, frozen, load, params, predict
from fedalloy.train.losses import ce, kl


@method(
    "feddf",
    label="FedDF",
    card=Card(
        paper="Lin, Kong, Stich and Jaggi, NeurIPS 2020",
        up="model, n",
        down="model",
        distils="the mean answer of all active clients' models, on public inputs, into each network's average",
        public=True,
        any_network=True,
        quick={"steps": 6, "batch": 4, "check_every": 2, "patience": 4},
    ),
)
class FedDF(Method):
    """FedAvg among clients of equal networks, then distillation of everybody's mean logits on unlabelled public data.

    Clients whose networks have equal parameters form a group (a prototype) with a model of its own, the average of its
    active clients. Each group's model then takes `steps` steps of Adam on KL(softmax(z_mean / tau) || softmax(z /
    tau)), where z_mean are the mean logits of *all* active clients' models, of every group, on a batch of the public
    set; there is no factor tau^2. The learning rate falls to 0 along a cosine, and gradients are clipped at norm 5.
    Groups never exchange parameters, and one without an active client stays as it is. With one group the view is
    `global`; with several, group g has the view `group g`.

    The public set may be unlabelled and only the server's. If it has labels, `validation` sets that share of it aside:
    every `check_every` steps the student is tried on it, after `patience` steps without a new best it stops, and the
    best student is kept. Without validation, the default, all steps are taken. FedDF's own validation set is a tenth of
    the *task's* training data, which cannot be had here. The labels of the public set are taken for classes of the
    task: with another task's images, such as digits beside clothes, `validation` would judge by labels that mean
    something else, and nothing refuses it where the numbers of classes agree.

    Clients are weighed by size (the paper) or uniformly (`weights = "uniform"`, the authors' code). `ensemble =
    "probabilities"` averages softmax outputs instead of logits. Public inputs are not augmented (the code crops and
    flips them), so that every teacher sees each input that is used once a round, not once a step. The student trains
    with BatchNorm on public batches, whose statistics it then carries; networks with GroupNorm do not have this.
    A pass over the public set leaves out its last, smaller batch, which the code keeps; the authors' commands have
    batches of 64. The optimiser is always Adam.

    `steps = 0` is FedAvg in each group.

    >>> FedDF(steps=0).weights
    'size'
    """

    weights: Literal["size", "uniform"] = "size"
    ensemble: Literal["logits", "probabilities"] = "logits"
    steps: int = 10_000
    batch: int = 128
    lr: float = 1e-3
    tau: float = 1.0
    clip: float = 5.0
    validation: float = 0.0
    check_every: int = 100
    patience: int = 1_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 0:
            raise UsageError(f"feddf.steps = {self.steps} must not be negative; 0 is FedAvg")
        for name in ("batch", "check_every", "patience"):
            if getattr(self, name) < 1:
                raise UsageError(f"feddf.{name} = {getattr(self, name)} must be at least 1")
        for name in ("lr", "tau", "clip"):
            if getattr(self, name) <= 0:
                raise UsageError(f"feddf.{name} = {getattr(self, name)} must be positive")
        if not 0 <= self.validation < 1:
            raise UsageError(
                f"feddf.validation = {self.validation} must lie in [0, 1); it is a share of the public set"
            )

    def init(self, fed: Federation) -> Tree:
        """One model for each group of equal networks."""
        self.parts(fed)
        return {"models": {str(g): params(fed.build(clients[0])) for g, clients in enumerate(fed.groups)}}

    def round(self, s: State, fed: Federation) -> State:
        """Train in groups, average each group, distil everybody into each average (Algorithm 3)."""
        group = {k: str(g) for g, clients in enumerate(fed.groups) for k in clients}
        replies = fed.ask("train", {k: {"model": s["models"][group[k]]} for k in fed.sample()})
        if not replies:
            return s.next()
        models = dict(s["models"])
        for g in dict.fromkeys(group[r.client] for r in replies):
            members = [r for r in replies if group[r.client] == g]
            models[g] = average([r["model"] for r in members], bounded(self.weigh(members), fed.cap), s["models"][g])
        if self.steps:
            trained = sorted({group[r.client] for r in replies}, key=int)
            models |= self.distil({g: models[g] for g in trained}, replies, fed)
        return s.next(models=models)

    def expects(self, message: Message, fed: Federation) -> Contract:
        """A model like the group's, of a client with as many samples as the roster says."""
        n = fed.sizes[message.client]
        return {"model": like(message["model"]), "n": whole(n, n)}

    def accepts(self, action: str, me: Client) -> Contract:
        """A model like the client's own."""
        return {"model": like(params(me.build()))}

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on cross-entropy, from the group's model."""
        net = me.net(msg["model"])
        fit(net, me, lambda x, y: ce(net(x), y))
        return reply(model=params(net), n=me.n)

    def weigh(self, replies: Sequence[Message]) -> list[float]:
        """The weight of each client of a group, before normalisation."""
        return [float(r["n"]) if self.weights == "size" else 1.0 for r in replies]

    def distil(self, models: Mapping[str, Tree], replies: Sequence[Message], fed: Federation) -> dict[str, Tree]:
        """Each group's model after its steps towards the ensemble."""
        inputs, held_out = self.parts(fed)
        plan = list(batches(len(inputs), self.batch, self.steps, fed.rng("distillation"), drop_last=True))
        used = torch.unique(torch.cat(plan))  # teachers answer for these only, and only once
        teacher = torch.zeros(len(inputs), fed.outputs, device=inputs.x.device)
        teacher[used] = self.answers([load(fed.build(r.client), r["model"]) for r in replies], inputs.subset(used))
        return {g: self.student(fed, int(g), weights, inputs, held_out, plan, teacher) for g, weights in models.items()}

    def answers(self, teachers: Sequence[nn.Module], inputs: Samples) -> Tensor:
        """The ensemble's logits: the mean of the teachers' logits, or the logarithm of their mean probability."""
        outputs = torch.stack([predict(frozen(net), inputs) for net in teachers])
        if self.ensemble == "logits":
            return outputs.mean(0)
        return self.tau * (outputs / self.tau).softmax(2).mean(0).clamp_min(1e-12).log()

    def student(
        self,
        fed: Federation,
        group: int,
        weights: Tree,
        inputs: Samples,
        held_out: Samples | None,
        plan: Sequence[Tensor],
        teacher: Tensor,
    ) -> Tree:
        """One group's model after distillation; with validation, the best that was met on the way."""
        net = load(fed.build(fed.groups[group][0]), weights)
        optimiser = torch.optim.Adam(net.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        best, found, since = -1.0, weights, 0
        for step, positions in enumerate(plan, start=1):
            net.train()
            optimiser.zero_grad()
            kl(teacher[positions], net(inputs.take(positions)[0]), self.tau).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(net.parameters(), self.clip)
            optimiser.step()
            schedule.step()
            fed.meter.steps += 1
            since += 1
            if held_out is not None and (step % self.check_every == 0 or step == len(plan)):
                with fed.meter.paused():
                    right = float((predict(net, held_out).argmax(1) == held_out.labels).double().mean())
                if right > best:
                    best, found, since = right, params(net), 0
                elif since >= self.patience:
                    break
        return found if held_out is not None else params(net)

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
