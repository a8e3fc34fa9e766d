"""How many bytes are read of what comes from another machine: no more than an honest sender needs."""

from __future__ import annotations

from math import prod

from fedalloy.federation.gate import Contract, Room, room
from fedalloy.federation.setting import Setting

TIMES = 4  # how often what is known may come, where no contract says it
LEAST = Room(1 << 24, 1 << 20)  # bytes that are then read in any case


def room_for(contract: Contract | None, setting: Setting, views: int = 1) -> Room:
    """The bytes of the largest tree that keeps a contract; where none can tell, four times what there is.

    What there is: the weights of all networks, an answer for each public sample, and a table of counts for each of so
    many `views`. 16 MiB are then read in any case, of which 1 MiB may be names and shapes.
    """
    if (known := room(contract)) is not None:
        return known
    weights = sum(4 * prod(shape) for kind in set(setting.kinds.values()) for _, shape in kind.shapes)
    names = sum(len(name) + 100 for kind in set(setting.kinds.values()) for name, _ in kind.shapes)
    answers = 8 * setting.outputs * (0 if setting.public is None else len(setting.public))
    counts = 8 * setting.classes * setting.answers * views
    return Room(max(LEAST.bytes, TIMES * (weights + names + answers + counts)), max(LEAST.head, TIMES * names))
