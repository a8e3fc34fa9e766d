"""FedKF-: FedKF with the received model as the teacher, so that nothing more is sent than in FedAvg."""

from __future__ import annotations

from typing import ClassVar

from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Client, Message, Reply, State, action, method
from fedalloy.methods.fedkf import QUICK, FedKF


@method(
    "fedkf-minus",
    label="FedKF-",
    card=Card(
        brief="FedKF taught by the received model",
        paper="Zhou et al., IoT-J 2023",
        distils="the model of the active clients, on generated images, into each client's model",
        features=True,
        remembers="its generator with Adam's moments",
        quick=QUICK,
    ),
)
class FedKFMinus(FedKF):
    """FedKF with the received model as the teacher, so that nothing more is sent than in FedAvg.

    Student and teacher start alike; the teacher stays as it was while the student moves. The cache only serves the view
    `oca`; with `cache.oca = false` the server keeps no client's model. If all clients take part in every round, FedKF-
    equals FedKF to the bit, as long as every reply arrives and the cache is exact.

    >>> FedKFMinus().gamma
    1.0
    """

    taught_by_all: ClassVar[bool] = False

    def teacher(self, s: State) -> dict[str, Tree]:
        """Nothing but the model, which clients receive anyway."""
        return {}

    @action("model -> model, n, counts if tells_counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """As in FedKF."""
        return super().train(me, msg)
