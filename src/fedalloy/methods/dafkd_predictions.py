"""DaFKD whose clients keep their discriminators and send predictions that are weighed already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from fedalloy.base.options import option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import array
from fedalloy.knowledge.averaged import models
from fedalloy.knowledge.teachers import by_discriminator, ensemble, sum_of_products
from fedalloy.methods.dafkd import CARD as DAFKD
from fedalloy.methods.dafkd_scores import DaFKDScores

OWN = "weighed predictions"
CARD = replace(
    DAFKD,
    brief="DaFKD; clients send predictions",
    role="control",
    up=f"model, generator, {OWN}, n",
    leaves_client=DAFKD.leaves_client.replace("how like its data a sample is", OWN),
)


@method("dafkd-predictions", label="DaFKD (predictions)", card=CARD)
class DaFKDPredictions(DaFKDScores):
    """Each client sends f times its probabilities for each sample, and the server needs no more than their sum.

    The teacher is DaFKD's but for rounding. The server gets the products one by one and has the models, so that each
    product still tells it f, until a secure sum hides them. Neither weighted logits nor limited shares can be found
    from the sum.

    >>> DaFKDPredictions(variant="reference").ensemble
    'prob'
    """

    ensemble: Literal["prob"] = option("prob", "clients weigh probabilities")
    max_share: Annotated[float, Interval(ge=1, le=1)] = option(1.0, "no limit; dafkd-scores can have one")

    def example(self, name: str, party: Client | Federation) -> Any:
        """Products of a score and probabilities."""
        products = array(self.pseudo_count(party), party.outputs, least=0.0, most=1.0)
        return products if name == "soft" else super().example(name, party)

    def taught(
        self, fed: Federation, replies: Sequence[Message], told: Sequence[Message], x: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """The teacher from the products; samples that all clients disown are taught by all alike."""
        teacher, known = sum_of_products(torch.stack([r["soft"] for r in told]))
        if not known.all():
            rest = x[~known]
            alike = by_discriminator(torch.ones(len(replies), len(rest), device=x.device))
            teacher[~known] = ensemble(alike, self.logits(fed, models(replies), rest), self.tau)
        return teacher, {}

    @action("generator if generates, number if generates -> soft")
    def score(self, me: Client, msg: Message) -> Reply:
        """The client's probabilities for the samples, each times how like its own data it finds the sample."""
        scores, logits = self.opinion(me, msg)
        return reply(soft=scores[:, None] * (logits / self.tau).softmax(1), keep={"head": me.memory["head"]})

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """As in DaFKD, without the clients' importance."""
        return {**super().pictures(s, memories), "importance": f"the server of {self.name} does not learn it"}
