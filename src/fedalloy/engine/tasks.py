"""The work of a pool worker: clients' actions one after the other, with data and messages in shared memory."""

from __future__ import annotations

import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedalloy.base import plugins
from fedalloy.engine import arena
from fedalloy.engine.cargo import unpack
from fedalloy.engine.malloc import tune_malloc
from fedalloy.errors import FedalloyError, PluginError
from fedalloy.federation.core import Message, Method, act
from fedalloy.federation.setting import Setting


def serve(pipe: Connection) -> None:
    """Run tasks until the parent closes the pipe."""
    torch.set_num_threads(1)
    tune_malloc()
    try:
        for file in pipe.recv():
            plugins.load_file(file)
        setting = unpack(pipe.recv())
    except (EOFError, ConnectionError):
        raise
    except BaseException as error:
        words = plugins.sentence(error) if isinstance(error, FedalloyError) else plugins.named(error)
        pipe.send(("failed", plugins.one_line(words)))
        return
    pipe.send(("ready",))
    method: Method | None = None
    inbox = outbox = torch.empty(0, dtype=torch.uint8)
    while True:
        kind, *rest = pipe.recv()
        if kind == "method":
            (method,) = rest
        elif kind == "inbox":
            inbox = arena.mapped(*rest)
            pipe.send("mapped")
        elif kind == "outbox":
            outbox = arena.mapped(*rest)
            pipe.send("mapped")
        else:
            assert method is not None
            outbox = _task(pipe, setting, method, inbox, outbox, *rest)


def _task(
    pipe: Connection,
    setting: Setting,
    method: Method,
    inbox: Tensor,
    outbox: Tensor,
    round: int,
    action: str,
    client: int,
) -> Tensor:
    """Let one client act; return the outbox, which may have grown."""
    start = time.perf_counter()
    found = arena.read(inbox)
    me = setting.client(client, round, found["memory"])
    try:
        answer = act(method, me, Message(action, client, found["body"]))
    except Exception as error:
        pipe.send(("failed", *_failure(error), traceback.format_exc()))
        return outbox
    body: dict[str, Any] = {"body": answer.body}
    if answer.keep is not None:
        body["keep"] = answer.keep
    needed = arena.size_of(body)
    if needed > len(outbox):
        pipe.send(("grow", needed))
        _, *rest = pipe.recv()
        outbox = arena.mapped(*rest)
        pipe.send("mapped")
    arena.write(body, outbox)
    pipe.send(("done", me.meter, time.perf_counter() - start))
    return outbox


def _failure(error: Exception) -> tuple[type[FedalloyError] | None, str]:
    """Return the error type and message for the parent to raise, as the serial engine would; None: a WorkerError."""
    if isinstance(error, FedalloyError):
        kind = next(kind for kind in type(error).__mro__ if kind.__module__.startswith("fedalloy."))
        assert issubclass(kind, FedalloyError)
        return kind, plugins.sentence(error)
    return (PluginError if plugins.own_line(error) else None), plugins.blamed(error) or plugins.named(error)
