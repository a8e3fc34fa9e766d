"""The pool: the clients of a round run in parallel in worker processes, bit-equal to the serial engine.

Each worker has one torch thread and runs one client at a time, the longest first. Data is in shared memory; a task is
sent through the pipe as ids, and its tensors through an arena that parent and worker share. If a worker dies, its
client is retried once, with the same bits; a client whose worker dies twice counts as absent.
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

from fedalloy.base import plugins
from fedalloy.base.tree import Tree, clone
from fedalloy.engine import arena
from fedalloy.engine.cargo import Cargo, pack, release
from fedalloy.engine.cores import usable_cores
from fedalloy.engine.serial import Serial
from fedalloy.errors import FedalloyError
from fedalloy.federation.core import Message, Method, Reply
from fedalloy.federation.engine import Answer, Failure
from fedalloy.federation.setting import Setting

ARENA = 1 << 20  # initial size in bytes; an arena grows to the largest message
DEAD = (EOFError, ConnectionError)  # raised by a pipe whose other end is closed
TRIES = 2  # a client that kills its worker this many times counts as absent
DIED = "its worker died twice, perhaps because memory ran out"


class WorkerError(FedalloyError):
    """A client whose action failed in a worker, or whose worker died."""


class Pool(Serial):
    """Run clients in worker processes, which live as long as the engine; use it in a `with` block.

    By default, `workers` is the number of cores that this process may use.
    """

    def __init__(self, setting: Setting, memories: dict[int, Tree] | None = None, workers: int | None = None) -> None:
        super().__init__(setting, memories)
        self._cargo = pack(setting)
        self.workers = min(workers or usable_cores(), len(setting.sites))
        self._workers: list[_Worker] = []
        try:
            for _ in range(self.workers):
                self._workers.append(_Worker(self._cargo))
            for worker in self._workers:
                worker.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers and release the shared memory."""
        for worker in self._workers:
            worker.stop()
        release(self._cargo)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Assign the longest client to the first free worker, until all have answered or failed."""
        waiting = sorted(messages, key=lambda m: (self.setting.cost(m.client), -m.client))
        deaths: Counter[int] = Counter()
        busy: dict[Connection, tuple[int, Message]] = {}  # worker index and message
        idle = list(range(self.workers))
        answers: list[Answer | Failure] = []
        begun: dict[Connection, float] = {}

        def died(message: Message, reason: str) -> None:
            deaths[message.client] += 1
            if deaths[message.client] == TRIES:
                answers.append(Failure(message.client, reason))
            else:
                waiting.append(message)

        try:
            while waiting or busy:
                while waiting and idle:
                    message, place = waiting.pop(), idle.pop()
                    try:
                        pipe = self._given(place, method, round, message)
                    except (WorkerError, *DEAD) as error:  # a new worker could not take it either
                        died(message, f"{error}" if isinstance(error, WorkerError) else DIED)
                        idle.append(place)
                    else:
                        busy[pipe], begun[pipe] = (place, message), time.monotonic()
                for ready in wait(list(busy), self._patience(begun[pipe] for pipe in busy)) if busy else ():
                    assert isinstance(ready, Connection)
                    place, message = busy.pop(ready)
                    idle.append(place)
                    try:
                        answers.append(self._workers[place].take(message))
                    except DEAD:
                        self._workers[place].stop()
                        died(message, DIED)
                for pipe in [pipe for pipe in busy if self._patience([begun[pipe]]) == 0]:
                    place, message = busy.pop(pipe)
                    idle.append(place)
                    self._workers[place].stop()
                    answers.append(Failure(message.client, f"it took longer than {self.setting.quorum.deadline:g} s"))
        except Exception:
            for place, message in busy.values():  # a client failed: discard the answers of the others
                with suppress(Exception):
                    self._workers[place].take(message)
            raise
        return answers

    def _patience(self, begun: Iterable[float]) -> float | None:
        """Return the seconds until the first of these clients is late, or None without a deadline."""
        if self.setting.quorum.deadline is None:
            return None
        return max(0.0, min(begun) + self.setting.quorum.deadline - time.monotonic())

    def _given(self, place: int, method: Method, round: int, message: Message) -> Connection:
        """Give a task to a worker, or to a new one if it was stopped or has died since its last task."""
        memory = self.memories.get(message.client, {})
        if not self._workers[place].stopped:
            with suppress(*DEAD):
                return self._workers[place].give(method, round, message, memory)
        self._workers[place].stop()
        self._workers[place] = _Worker(self._cargo)
        self._workers[place].wait_until_ready()
        return self._workers[place].give(method, round, message, memory)


class _Worker:
    """The parent's side of a worker process."""

    def __init__(self, cargo: Cargo) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                program = [sys.executable, "-m", "fedalloy.engine.worker", str(theirs.fileno()), str(os.getpid())]
                self.process = subprocess.Popen(program, pass_fds=[theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorkerError(f"a worker could not start: {error.strerror or error}") from error
        self.pipe = Connection(ours.detach())
        with suppress(*DEAD):  # `wait_until_ready` reports what happened
            self.pipe.send(plugins.loaded_files())
            self.pipe.send(cargo)
        self._method: Method | None = None

    @property
    def stopped(self) -> bool:
        """Whether the worker was stopped."""
        return self.pipe.closed

    def wait_until_ready(self) -> None:
        """Wait until the worker has started, and send it its first arenas."""
        try:
            kind, *words = self.pipe.recv()
            if kind == "failed":
                self.stop()
                raise WorkerError(f"a worker could not start: {words[0]}")
            self.inbox = self._arena("inbox", ARENA)
            self.outbox = self._arena("outbox", ARENA)
        except DEAD as error:
            code = self.process.wait()  # not killed by us: this is how it ended
            self.stop()
            how = f"signal {-code} ended it" if code < 0 else f"it exited with status {code}"
            raise WorkerError(f"a worker could not start: {how}, perhaps because memory ran out") from error

    def give(self, method: Method, round: int, message: Message, memory: Tree) -> Connection:
        """Send a task; fetch its answer with `take` when the pipe is readable."""
        if method is not self._method:
            self.pipe.send(("method", method))
            self._method = method
        parcel = {"body": message.body, "memory": memory}
        needed = arena.size_of(parcel)
        if needed > len(self.inbox):
            self.inbox = self._arena("inbox", 2 * needed)
        arena.write(parcel, self.inbox)
        self.pipe.send(("task", round, message.action, message.client))
        return self.pipe

    def take(self, message: Message) -> Answer:
        """Receive the answer to the task."""
        kind, *rest = self.pipe.recv()
        if kind == "grow":
            self.outbox = self._arena("outbox", 2 * rest[0])
            kind, *rest = self.pipe.recv()
        if kind == "failed":
            what, sentence, trace = rest
            error: FedalloyError = (what or WorkerError)(sentence)
            error.add_note(trace)  # for --debug
            raise error
        found = clone(arena.read(self.outbox))
        meter, seconds = rest
        return Answer(message.client, Reply(found["body"], found.get("keep")).known(), meter, seconds)

    def stop(self) -> None:
        """Kill the process if it is still running."""
        if self.stopped:
            return
        self.pipe.close()
        self.process.kill()
        self.process.wait()

    def _arena(self, which: str, size: int) -> Tensor:
        memory, path = arena.shared((size,))
        try:
            self.pipe.send((which, path, (size,)))
            self.pipe.recv()
        finally:
            arena.withdraw(path)
        return memory


def can_cross(method: Method, setting: Setting) -> bool:
    """Return whether a method and its networks can be sent to a worker; code in a notebook or script cannot."""
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
