"""DaFKD without correlation: all teachers count alike for every sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor

from fedalloy.base.options import option
from fedalloy.federation.core import Federation, Message, method
from fedalloy.knowledge.averaged import models
from fedalloy.methods.dafkd import CARD, DaFKD

LEAVES = CARD.leaves_client.replace("how like its data a sample is, ", "")


@method(
    "dafkd-no-correlation",
    label="DaFKD (no correlation)",
    card=replace(CARD, brief="DaFKD without its weights", role="control", leaves_client=LEAVES),
)
class DaFKDNoCorrelation(DaFKD):
    """The ablation of the paper's Table 3: the discriminators still train with the classifiers, but weigh nothing.

    >>> DaFKDNoCorrelation().shown(round=5)
    False
    """

    max_share: Annotated[float, Interval(ge=1, le=1)] = option(1.0, "no limit: all clients count alike")

    def shown(self, round: int) -> bool:
        """Heads travel only where there is one for all."""
        return self.common_head

    def teacher(
        self, fed: Federation, replies: Sequence[Message], x: Tensor, **made_from: Any
    ) -> tuple[Tensor, dict[str, Any]] | None:
        """The mean of the clients' answers."""
        alike = torch.ones(len(replies), len(x), device=x.device)
        return self.weighted(fed, replies, alike, self.logits(fed, models(replies), x))
