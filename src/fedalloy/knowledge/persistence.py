"""Optimisers whose state a client keeps in its memory, so that a later phase or round continues with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedalloy.base.options import option
from fedalloy.errors import UsageError
from fedalloy.federation.core import Client, Federation, Method
from fedalloy.train.fit import Optimiser, optimiser_state


@dataclass(frozen=True, kw_only=True)
class Persistent(Method):
    """A method whose clients may keep their optimiser's state: Adam's moments, or the momentum of SGD."""

    persist: bool = option(False, "carry the optimiser's state over to a client's next phase and round")

    def need_state(self, fed: Federation) -> None:
        """Refuse to persist what does not exist."""
        if self.persist and not fed.work.has_state:
            what = f"training.optimiser = '{fed.work.optimiser}' without momentum"
            raise UsageError(f"{self.name}.persist has no effect with {what}, which has no state; leave it out")

    def optimiser(
        self, net: nn.Module, me: Client, phase: str = "optimiser", lr: float | None = None
    ) -> Optimiser | None:
        """The client's optimiser as the last phase of this name left it; None if each phase has a new one."""
        if not self.persist:
            return None
        work = me.work if lr is None else replace(me.work, lr=lr)
        return work.optimiser_for(net, me.round, me.memory.get(phase))


def kept(optimiser: Optimiser | None, phase: str = "optimiser") -> dict[str, Any]:
    """What a client remembers of an optimiser; nothing if it has no state."""
    state = {} if optimiser is None else optimiser_state(optimiser)
    return {phase: state} if state else {}
