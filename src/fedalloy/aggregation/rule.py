"""The bounds that an experiment sets on every client's influence, whatever the method."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedalloy.aggregation.robust import check_cap
from fedalloy.errors import UsageError

MAX_DISTANCE = 100.0


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How much one client may count, and how far from what it was sent its reply may be.

    With a `cap`, no client's size gives it a larger share of the weight than this; the others get the rest, in
    proportion, and where fewer than 1 / cap clients take part, all weigh alike. It applies wherever a method weighs
    clients by the size that they report. Without one, sizes are believed.

    A network that a client returns is refused if it lies farther than `max_distance` times the norm of the one that it
    was sent from that one.

    >>> Aggregation(cap=0.5).cap
    0.5
    """

    cap: float | None = None
    max_distance: float = MAX_DISTANCE

    def __post_init__(self) -> None:
        if self.cap is not None:
            check_cap(self.cap, "aggregation.cap")
        if not 0 < self.max_distance < math.inf:
            raise UsageError(
                f"aggregation.max_distance = {self.max_distance} must be positive; {MAX_DISTANCE:g} is the default"
            )
