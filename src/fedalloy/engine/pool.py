"""The pool: the clients of a round side by side in worker processes, bit-equal to the serial engine.

Each worker has one torch thread and takes one client at a time, the longest first. Data sits in shared memory; a task
crosses the pipe as ids, its tensors through an arena that parent and worker share. A worker that dies costs one retry
of its client, with the same bits; a client whose worker dies twice counts as absent.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from torch import Tensor

from fedalloy import plugins
from fedalloy.core import Message, Method, Reply
from fedalloy.engine import arena
from fedalloy.engine.base import Answer, Failure, Round
from fedalloy.engine.cargo import Cargo, pack, release
from fedalloy.engine.cores import usable_cores
from fedalloy.errors import FedalloyError, PluginError, UsageError
from fedalloy.setting import Setting
from fedalloy.tree import Tree, clone

ARENA = 1 << 20  # bytes to begin with; an arena grows to the largest message
DEAD = (EOFError, ConnectionError)  # what a pipe says when nobody is at its other end
TRIES = 2  # a client that kills its worker so many times counts as absent


class WorkerError(FedalloyError):
    """A client whose action failed in a worker, or whose worker died."""


class Pool:
    """Runs clients in worker processes, which live as long as the engine; use it in a `with` block.

    `workers` is by default the number of cores that this process may use.
    """

    def __init__(self, setting: Setting, memories: dict[int, Tree] | None = None, workers: int | None = None) -> None:
        self.setting = setting
        self.memories: dict[int, Tree] = dict(memories or {})
        self._cargo = pack(setting)
        self.workers = min(workers or usable_cores(), len(setting.sites))
        self._workers = [_Worker(self._cargo) for _ in range(self.workers)]
        for worker in self._workers:
            worker.wait_until_ready()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and give the shared memory back."""
        for worker in self._workers:
            worker.stop()
        release(self._cargo)

    def open(self, method: Method, round: int) -> Round:
        """Begin a round."""
        return Round(self, method, round)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Give the longest client to the first free worker, until all have answered or failed."""
        waiting = sorted(messages, key=lambda m: (self.setting.cost(m.client), -m.client))
        deaths: Counter[int] = Counter()
        busy: dict[Connection, tuple[_Worker, Message]] = {}
        idle = list(self._workers)
        answers: list[Answer | Failure] = []
        begun: dict[Connection, float] = {}
        try:
            while waiting or busy:
                while waiting and idle:
                    message = waiting.pop()
                    worker = self._given(idle.pop(), method, round, message)
                    busy[worker.pipe], begun[worker.pipe] = (worker, message), time.monotonic()
                for pipe in wait(list(busy), self._patience(begun[pipe] for pipe in busy)):
                    assert isinstance(pipe, Connection)
                    worker, message = busy.pop(pipe)
                    try:
                        answers.append(worker.take(message))
                    except DEAD:
                        deaths[message.client] += 1
                        worker = self._replaced(worker)
                        if deaths[message.client] == TRIES:
                            answers.append(Failure(message.client, "its worker died twice; is memory short?"))
                        else:
                            waiting.append(message)
                    idle.append(worker)
                for pipe in [pipe for pipe in busy if self._patience([begun[pipe]]) == 0]:
                    worker, message = busy.pop(pipe)
                    answers.append(Failure(message.client, f"it took longer than {self.setting.quorum.deadline:g} s"))
                    idle.append(self._replaced(worker))
        except Exception:
            for worker, message in busy.values():  # somebody failed: what others still answer belongs to no one
                with suppress(Exception):
                    worker.take(message)
            raise
        return answers

    def _patience(self, begun: Iterable[float]) -> float | None:
        """How many seconds may pass until the first of these clients is late; None: as many as it takes."""
        if self.setting.quorum.deadline is None:
            return None
        return max(0.0, min(begun) + self.setting.quorum.deadline - time.monotonic())

    def _given(self, worker: _Worker, method: Method, round: int, message: Message) -> _Worker:
        """Give a task to a worker, or to its successor if it has died since its last one."""
        memory = self.memories.get(message.client, {})
        try:
            worker.give(method, round, message, memory)
        except DEAD:
            worker = self._replaced(worker)
            worker.give(method, round, message, memory)
        return worker

    def _replaced(self, dead: _Worker) -> _Worker:
        dead.stop()
        fresh = _Worker(self._cargo)
        fresh.wait_until_ready()
        self._workers[self._workers.index(dead)] = fresh
        return fresh


class _Worker:
    """A worker process as its parent sees it."""

    def __init__(self, cargo: Cargo) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedalloy.engine.worker", str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self.pipe = Connection(ours.detach())
        self.pipe.send(plugins.loaded_files())
        self.pipe.send(cargo)
        self._method: Method | None = None

    def wait_until_ready(self) -> None:
        """Wait for its imports, and give it its first arenas."""
        self.pipe.recv()
        self.inbox = self._arena("inbox", ARENA)
        self.outbox = self._arena("outbox", ARENA)

    def give(self, method: Method, round: int, message: Message, memory: Tree) -> None:
        """Hand over a task; its answer is fetched with `take`."""
        if method is not self._method:
            self.pipe.send(("method", method))
            self._method = method
        parcel = {"body": message.body, "memory": memory}
        needed = arena.size_of(parcel)
        if needed > len(self.inbox):
            self.inbox = self._arena("inbox", 2 * needed)
        arena.write(parcel, self.inbox)
        self.pipe.send(("task", round, message.action, message.client))

    def take(self, message: Message) -> Answer:
        """The answer to the task."""
        kind, *rest = self.pipe.recv()
        if kind == "grow":
            self.outbox = self._arena("outbox", 2 * rest[0])
            kind, *rest = self.pipe.recv()
        if kind == "failed":
            name, sentence, trace, blamed = rest
            if not trace:
                raise UsageError(sentence)
            if blamed is not None:
                error = PluginError(blamed)
                error.add_note(trace)  # for --debug
                raise error
            raise WorkerError(f"client {message.client}, action '{message.action}': {name}: {sentence}\n{trace}")
        found = clone(arena.read(self.outbox))
        meter, seconds = rest
        return Answer(message.client, Reply(found["body"], found.get("keep")), meter, seconds)

    def stop(self) -> None:
        """End the process, which may be dead already."""
        self.pipe.close()
        self.process.kill()
        self.process.wait()

    def _arena(self, which: str, size: int) -> Tensor:
        memory, path = arena.shared((size,))
        try:
            self.pipe.send((which, path, (size,)))
            self.pipe.recv()
        finally:
            os.unlink(path)
        return memory


def can_cross(method: Method, setting: Setting) -> bool:
    """Whether a method and its networks can be sent to a worker: what a notebook or a script defines cannot."""
    things = [type(method), *map(_maker, setting.networks), _maker(setting.server), setting.augment]
    if any(getattr(thing, "__module__", None) == "__main__" for thing in things):
        return False
    try:
        pickle.dumps((method, setting.networks, setting.server, setting.augment))
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _maker(network: object) -> object:
    return network if hasattr(network, "__qualname__") else type(network)
