"""FedMD as KnFu compares itself with it: everybody learns from the mean of all probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedalloy.base.tree import Tree
from fedalloy.federation.core import Client, Federation, Message, method
from fedalloy.federation.gate import array
from fedalloy.knowledge.teachers import consensus
from fedalloy.methods.soft_labels import CARD, SoftLabels


@method(
    "fedmd-knfu",
    label="FedMD (KnFu)",
    card=replace(
        CARD,
        role="control",
        brief="KnFu with one mixture for all",
        paper="Seyedmohammadi et al., 2024, as the baseline of KnFu; after Li and Wang, 2019",
        distils="the mean answer of all active clients, on public samples, into each client's network",
    ),
)
class FedMDKnFu(SoftLabels):
    """KnFu's round with one mixture for everybody: the plain mean of the clients' probabilities.

    It is what KnFu's tables call FedMD. Li and Wang's own method (`fedmd`) exchanges logits before local training,
    regresses to their mean and uses no labels of the public samples in a round.

    >>> FedMDKnFu(temperature=2.0).ce_on
    'public'
    """

    takes = frozenset({"combine"})

    def fuse(self, replies: Sequence[Message], fed: Federation) -> tuple[Mapping[int, Tree], Mapping[str, Any]]:
        """The mean over the clients that answered, or what [aggregation] combines them to."""
        mean = consensus([r["soft"] for r in replies], self.aggregation.combine, self.aggregation.trim)
        return {r.client: {"soft": mean} for r in replies}, {}

    def example(self, name: str, party: Client | Federation) -> Any:
        """Distributions; what a median or trimmed mean sends a client need not sum to 1, which Eq. 10's KL mends."""
        robust = self.aggregation.combine in ("median", "trimmed")
        if isinstance(party, Client) and robust and party.task == "classes":
            return array(len(self.part(party)), party.outputs, least=0.0, most=1.0)
        return super().example(name, party)
