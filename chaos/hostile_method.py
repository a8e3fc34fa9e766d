"""FedAvg at sites that misbehave: a plug-in for `chaos/flower.py`."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from fedalloy.federation.core import Card, Client, Message, Reply, action, method, reply
from fedalloy.methods import FedAvg

CARD = Card(paper="none", up="whatever it likes", down="model")


@method("chaos-hostile", label="Hostile", card=CARD)
class Hostile(FedAvg):
    """From the second round on, one client raises, then sends NaN, then nothing, then garbage."""

    victim: int = -1

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Train, unless it is the victim's turn."""
        if me.id != self.victim or me.round == 1:
            return super().train(me, msg)
        if me.round == 2:
            raise RuntimeError("the disk of this site is on fire")
        if me.round == 3:
            spoilt = {name: torch.full_like(t, math.nan) for name, t in msg["model"].items()}
            return reply(model=spoilt, n=me.n)
        answer: Any = None if me.round == 4 else reply(model={"no": torch.ones(3)}, n="many")
        return answer  # type: ignore[no-any-return]


@method("chaos-straggler", label="Straggler", card=CARD)
class Straggler(FedAvg):
    """In the second round one client sleeps."""

    victim: int = -1
    sleep: float = 0.0

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Train late."""
        if me.id == self.victim and me.round == 2:
            time.sleep(self.sleep)
        return super().train(me, msg)
