"""DaFKD whose clients keep their discriminators and send scores of generated samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.base.options import option
from fedalloy.federation.core import Client, Federation, Message, Reply, action, method, reply
from fedalloy.federation.gate import array, whole
from fedalloy.knowledge.averaged import models
from fedalloy.knowledge.game import opinions
from fedalloy.methods.dafkd import CARD, DaFKD


@method("dafkd-scores", label="DaFKD (scores)", card=replace(CARD, brief="DaFKD; clients send scores", role="control"))
class DaFKDScores(DaFKD):
    """Each client makes the samples itself, from the generator and a number, and sends f for each of them.

    The teacher is DaFKD's but for rounding. It takes a second exchange, since clients do not know the new generator
    before. Scores are what clients say about themselves: they are bounded, and `max_share` limits what one client can
    get of a sample.

    >>> DaFKDScores(variant="reference").common_head
    False
    """

    common_head: Literal[False] = option(False, "heads stay with their clients")

    def shown(self, round: int) -> bool:
        """Heads never travel."""
        return False

    def example(self, name: str, party: Client | Federation) -> Any:
        """The number that samples are made from, and scores; those outside 0 and 1 are clamped, not refused."""
        if name == "number":
            return whole(0, 2**62 - 1)
        return array(self.pseudo_count(party)) if name == "scores" else super().example(name, party)

    def teacher(
        self, fed: Federation, replies: Sequence[Message], x: Tensor, **made_from: Any
    ) -> tuple[Tensor, dict[str, Any]] | None:
        """Ask the clients for their opinions; without any answer, nobody teaches."""
        told = {r.client: r for r in fed.ask("score", [r.client for r in replies], **made_from)}
        heard = [r for r in replies if r.client in told]
        return self.taught(fed, heard, [told[r.client] for r in heard], x) if heard else None

    def taught(
        self, fed: Federation, replies: Sequence[Message], told: Sequence[Message], x: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """The teacher from the clients' scores and the logits of their models, which the server has."""
        scores = torch.stack([r["scores"] for r in told])
        return self.weighted(fed, replies, scores, self.logits(fed, models(replies), x))

    @action("model, generator if generates -> model, generator if generates, n, counts if tells_counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """As in DaFKD; the client also keeps its model until it is asked for scores."""
        done = super().train(me, msg)
        model = {"model": done.body["model"]} if self.distils(me.round) else {}
        return reply(**done.body, keep={**(done.keep or {}), **model})

    @action("generator if generates, number if generates -> scores")
    def score(self, me: Client, msg: Message) -> Reply:
        """How like its own data the client finds the samples."""
        scores, _ = self.opinion(me, msg)
        return reply(scores=scores, keep={"head": me.memory["head"]})

    def opinion(self, me: Client, msg: Message) -> tuple[Tensor, Tensor]:
        """The client's scores and logits for the samples, which it makes itself."""
        two = self.two_heads(me).load(me.memory["model"], me.memory["head"])
        return opinions(two, self.pseudo_set(me, **msg.body))
