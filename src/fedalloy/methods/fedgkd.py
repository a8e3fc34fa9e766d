"""FedGKD: the average of the last global models teaches each client on its own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.aggregation.averaging import average
from fedalloy.base.options import Count, NotNegative, Positive, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.fit import fit, frozen, params
from fedalloy.train.losses import ce, kl


@method(
    "fedgkd",
    label="FedGKD",
    card=Card(
        paper="Yao et al., IEEE Transactions on Computers 2023",
        distils="the average of the last global models, on the client's own data, into each client's model",
    ),
)
class FedGKD(FedAvg):
    """FedAvg whose clients also learn from the average of the last global models, on their own data.

    The server buffers the last M = `buffer` global models, the current one included, and sends their uniform mean as
    the teacher, which stays as it is for the round. The untrained first model is not buffered. The teacher is sent only
    where it differs from the model: never with M = 1, and otherwise from the third round on (with `"full_buffer"` from
    round M + 1), which doubles the downlink.

    >>> FedGKD(buffer=1).start
    'available'
    """

    buffer: Count = option(5, "M, how many global models are averaged, the current one included")
    gamma: NotNegative = option(0.2, "weight of the distillation; 0 is FedAvg")
    tau: Positive = option(1.0, "temperature of both teacher and student")
    start: Literal["available", "full_buffer"] = option(
        "available", "distil from round 2 on, or only when M trained models exist, from round M + 1 on"
    )

    def init(self, fed: Federation) -> Tree:
        """The buffer is empty: the first model knows nothing yet."""
        return {**super().init(fed), "recent": {}}

    def round(self, s: State, fed: Federation) -> State:
        """One round of FedAvg, with a teacher once there is one."""
        if len(s["recent"]) < (self.buffer if self.start == "full_buffer" else 1):
            return super().round(s, fed)
        return self.averaged(s, fed.ask("distil", fed.sample(), model=s["model"], **self.teacher(s)), fed)

    def teacher(self, s: State) -> dict[str, Tree]:
        """The mean of the buffered models, unless it is the model itself, which the clients have anyway."""
        recent = [s["recent"][t] for t in sorted(s["recent"], key=int)]
        mean = average(recent, [1.0] * len(recent), s["model"])
        return {} if all(torch.equal(mean[name], w) for name, w in s["model"].items()) else {"teacher": mean}

    @action("model, teacher? -> model, n, counts if tells_counts")
    def distil(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE + gamma/2 KL(teacher || student), on the same batch, without a factor tau^2."""
        net, teacher = me.net(msg["model"]), frozen(me.net(msg["teacher" if "teacher" in msg else "model"]))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            return ce(logits, y) + self.gamma / 2 * kl(teacher(x), logits, self.tau)

        fit(net, me, loss)
        return reply(model=params(net), **self.about(me))

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """The new model enters the buffer, and the oldest beyond M leaves it."""
        recent = {**s["recent"], str(fed.round): mean}
        return {"model": mean, "recent": {t: recent[t] for t in sorted(recent, key=int)[-self.buffer :]}}
