"""Run clients in threads of this process, for methods and networks that cannot be sent to another process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedalloy.base.tree import Tree
from fedalloy.engine.cores import usable_cores
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Message, Method, act
from fedalloy.federation.engine import Answer
from fedalloy.federation.setting import Setting


class Threads(Serial):
    """Run clients in threads, bit-equal to the serial engine unless a method draws from a global random stream."""

    def __init__(self, setting: Setting, memories: dict[int, Tree] | None = None, workers: int | None = None) -> None:
        super().__init__(setting, memories)
        self.workers = workers or usable_cores()

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        """Let the clients act in parallel, the longest first."""

        def one(message: Message) -> Answer:
            start = time.perf_counter()
            me = self.setting.client(message.client, round, self.memories.get(message.client, {}))
            answer = act(method, me, message, alone=False)
            return Answer(message.client, answer, me.meter, time.perf_counter() - start)

        longest_first = sorted(messages, key=lambda m: (-self.setting.cost(m.client), m.client))
        with ThreadPoolExecutor(self.workers) as crew:
            return list(crew.map(one, longest_first))
