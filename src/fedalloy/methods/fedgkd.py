"""FedGKD: the average of the last global models teaches each client on its own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.rule import Weights
from fedalloy.base.options import Count, NotNegative, Positive, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import TASKS, Task
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.fit import fit, frozen, params
from fedalloy.train.losses import binary_kl, kl, soft_ce


@method(
    "fedgkd",
    label="FedGKD",
    card=Card(
        brief="learn from the last global models",
        paper="Yao et al., IEEE Transactions on Computers 2023",
        distils="the average of the last global models, on the client's own data, into each client's model",
        tasks=TASKS,
    ),
)
class FedGKD(FedAvg):
    """FedAvg whose clients also learn from the average of the last global models, on their own data.

    The server buffers the last M = `buffer` global models, the current one included, and sends their uniform mean as
    the teacher, which stays as it is for the round. The untrained first model is not buffered. The teacher is sent only
    where it differs from the model: never with M = 1, and otherwise from the third round on (from round M + 1, if the
    buffer must be full), which doubles the downlink.

    >>> FedGKD().aggregation.weights, FedGKD(variant="reference").aggregation.weights, FedGKD(variant="fedkf").start
    ('size', 'uniform', 'full_buffer')
    """

    variant: Literal["recommended", "reference", "fedkf", "kdia"] = option(
        "recommended", "whose choices: ours, those of the authors' code, of FedKF's or of KDIA's"
    )
    buffer: Count = option(5, "M, how many global models are averaged, the current one included")
    gamma: NotNegative = option(0.2, "weight of the distillation; 0 is FedAvg")
    distance: Literal["kl", "mse", "softmax_twice"] = by_variant(
        "kl", "KL, squared error of logits, or CE of a softmax that is taken for logits", kdia="softmax_twice"
    )
    tau: Positive = by_variant(
        1.0, "temperature of both teacher and student", kdia=2.0, only_with=("distance", "kl", "softmax_twice")
    )
    start: Literal["available", "full_buffer", "received"] = by_variant(
        "available",
        "distil from round 2 on; from round M + 1 on; or always, until then from the received model",
        fedkf="full_buffer",
        kdia="received",
    )

    @property
    def usual_weights(self) -> Weights:
        """The authors' code averages models with equal weights."""
        return "uniform" if self.variant == "reference" else "size"

    def init(self, fed: Federation) -> Tree:
        """The buffer is empty: the first model knows nothing yet."""
        return {**super().init(fed), "recent": {}}

    def round(self, s: State, fed: Federation) -> State:
        """One round of FedAvg, with a teacher once there is one."""
        needed = {"available": 1, "full_buffer": self.buffer, "received": 0}[self.start]
        if len(s["recent"]) < needed:
            return super().round(s, fed)
        return self.averaged(s, fed.ask("distil", fed.sample(), model=s["model"], **self.teacher(s)), fed)

    def teacher(self, s: State) -> dict[str, Tree]:
        """The mean of the buffered models, unless it is the model itself, which the clients have anyway."""
        recent = [s["recent"][t] for t in sorted(s["recent"], key=int)]
        if self.start == "received" and len(recent) < self.buffer:
            return {}
        mean = average(recent, [1.0] * len(recent), s["model"])
        return {} if all(torch.equal(mean[name], w) for name, w in s["model"].items()) else {"teacher": mean}

    @action("model, teacher? -> model, n, counts if tells_counts")
    def distil(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE + gamma/2 d(teacher, student), on the same batch."""
        net, teacher = me.net(msg["model"]), frozen(me.net(msg["teacher" if "teacher" in msg else "model"]))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            return me.loss(logits, y) + self.gamma / 2 * self.apart(teacher(x), logits, me.task)

        fit(net, me, loss)
        return reply(model=params(net), **self.about(me))

    def unfit_for(self, task: Task) -> str | None:
        """KDIA's distance takes a softmax over classes."""
        if task != "classes" and self.distance == "softmax_twice":
            return "distance = 'softmax_twice' needs classes; write 'kl' or 'mse'"
        return super().unfit_for(task)

    def apart(self, teacher: Tensor, student: Tensor, task: Task = "classes") -> Tensor:
        """The distance d of the student's logits from the teacher's; KL(teacher || student) has no factor tau^2.

        Beyond the paper, the KL of several labels is that of each, and numbers have their squared error instead.
        """
        if self.distance == "mse" or task == "numbers":
            return F.mse_loss(student, teacher)
        if self.distance == "softmax_twice":  # softmax(student) goes where logits belong
            return soft_ce((teacher / self.tau).softmax(1), (student / self.tau).softmax(1))
        if task == "labels":
            return binary_kl(teacher.sigmoid(), student, self.tau)
        return kl(teacher, student, self.tau)

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """The new model enters the buffer, and the oldest beyond M leaves it."""
        recent = {**s["recent"], str(fed.round): mean}
        return {"model": mean, "recent": {t: recent[t] for t in sorted(recent, key=int)[-self.buffer :]}}
