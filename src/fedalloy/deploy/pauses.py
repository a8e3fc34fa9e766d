"""How long a deployment's processes wait before they look again; Flower's own pauses are most of a short round."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.2  # of the time that was already waited: how long to wait until the next poll
FIRST = 0.05  # seconds until a part of a message that is still on its way is requested again; then twice as long


class Pause:
    """How long to wait until the next poll: a share of the time waited so far, so that polls get rarer.

    >>> pause = Pause(0.1, 3.0, clock=iter([0.0, 0.0, 5.0, 90.0]).__next__)
    >>> pause.next(), pause.next(), pause.next()
    (0.1, 1.0, 3.0)
    """

    def __init__(self, shortest: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.shortest, self.longest, self.clock = shortest, longest, clock
        self.reset()

    def reset(self) -> None:
        """Begin to wait: something has just arrived."""
        self.since = self.clock()

    def next(self) -> float:
        """Return how many seconds to wait."""
        return min(self.longest, max(self.shortest, SHARE * (self.clock() - self.since)))


def soon_again() -> None:
    """Let Flower in this process wait less before it requests again a part of a message that has not arrived yet.

    A message is announced before its parts are there. Whoever polls often meets it in between, and would wait a second.
    """
    from flwr.supercore.inflatable import inflatable_utils as flower

    # Flower has no setting for it; a test checks that these defaults are still there.
    for function in (flower.pull_objects, flower.pull_and_inflate_object_from_tree):
        if function.__kwdefaults__ is not None:
            function.__kwdefaults__["initial_backoff"] = FIRST
