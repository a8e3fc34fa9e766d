"""Limits on the bytes read from another machine: no more than an honest sender needs."""

from __future__ import annotations

from math import prod

from fedalloy.federation.gate import Contract, Room, room
from fedalloy.federation.setting import Setting

TIMES = 4  # multiple of the known sizes, if no contract gives a limit
LEAST = Room(1 << 24, 1 << 20)  # the smallest limit in that case


def room_for(contract: Contract | None, setting: Setting, views: int = 1) -> Room:
    """Return the size of the largest tree that satisfies a contract; without one, four times the known sizes.

    The known sizes are the weights of all networks, an answer for each public sample, and a table of counts for each of
    the `views`. The limit is then at least 16 MiB, of which 1 MiB may be names and shapes.
    """
    if (known := room(contract)) is not None:
        return known
    weights = sum(4 * prod(shape) for kind in set(setting.kinds.values()) for _, shape in kind.shapes)
    names = sum(len(name) + 100 for kind in set(setting.kinds.values()) for name, _ in kind.shapes)
    answers = 8 * setting.outputs * (0 if setting.public is None else len(setting.public))
    counts = 8 * setting.classes * setting.answers * views
    return Room(max(LEAST.bytes, TIMES * (weights + names + answers + counts)), max(LEAST.head, TIMES * names))
