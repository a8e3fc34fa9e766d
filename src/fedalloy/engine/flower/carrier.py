"""The server's side of Flower: an engine over any Grid, whose clients are known by their own ids, never by a node's.

Messages are pushed and pulled here and not by Flower's `send_and_receive`, which waits three seconds between looks.
Answers are told apart by the message that they answer. Whatever a client does, or does not do, is one line and costs
that client the round.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from flwr.app import Array, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedalloy.base import tree
from fedalloy.base.files import as_json
from fedalloy.base.tree import Tree
from fedalloy.config.experiment import Experiment, naming
from fedalloy.engine.base import REFERENCE, Round
from fedalloy.engine.flower import claims
from fedalloy.engine.flower.client import ACT, VIEWS
from fedalloy.engine.flower.codec import Header, array, to_records
from fedalloy.engine.flower.room import room_for
from fedalloy.engine.flower.roster import AWAY, WHY, ActionError, Roster, one_line, pulled, read
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import Generation, Message, Method, Reply, State, methods
from fedalloy.federation.disclosure import OFF
from fedalloy.federation.engine import Answer, Failed, Failure, Forgot
from fedalloy.federation.evaluation import announced, distinct, from_clients, miscounted, unevaluated
from fedalloy.federation.gate import Room
from fedalloy.federation.setting import Setting
from fedalloy.storage.checkpoints import CHAINS
from fedalloy.storage.store import Say
from fedalloy.train.privacy import charged

PATIENCE = 60.0  # seconds that a client may be away before it counts as absent
HURRY = 600.0  # seconds after which it is said who is waited for, where there is no deadline, and again
GRACE = 60.0  # seconds by which the Grid keeps a message longer than anybody looks for its answer
SHORTEST, LONGEST = 0.01, 0.25  # seconds between two looks for answers

Found: TypeAlias = tuple[dict[str, Any], dict[str, Any]] | DataError
"""The header and the tree of an answer, or why there is none."""


class Flower:
    """Carries messages over a Grid; a client's memory stays with it, and `memories` holds references to them.

    The clients build their settings from `exp`; those of `setting` may hold no data. A client whose node is away for
    longer than `patience` seconds counts as absent; one that is there, but with other data than `setting` says, at
    once. `bound` says which client each registered node is; without it a node's word is taken. Where clients are not
    `simulated` but real sites, they evaluate nothing under [privacy].
    """

    simulated: ClassVar[bool] = False

    def __init__(
        self,
        grid: Grid,
        setting: Setting,
        exp: Experiment,
        memories: dict[int, Tree] | None = None,
        say: Say = lambda _: None,
        patience: float = PATIENCE,
        bound: Mapping[int, int] | None = None,
    ) -> None:
        self.setting, self.exp, self.say, self.patience, self.bound = setting, exp, say, patience, bound
        self.memories: dict[int, Tree] = dict(memories or {})
        self.trusted: Generation | None = None
        self.workers = len(setting.sites)
        self.move(grid)
        self._round = -1
        self._checkpoints: deque[dict[int, set[str]]] = deque(maxlen=CHAINS)  # the digests in the two newest

    def move(self, grid: Grid) -> None:
        """Go on over this Grid, whose nodes are yet to introduce themselves."""
        self.grid = grid
        told = json.dumps(self.exp.to_dict())
        self.roster = Roster(grid, told, len(self.setting.sites), self.say, self.bound, self._judge)

    def _judge(self, one: claims.Introduction) -> str | None:
        """Why a client does not take part, if so: what it has is not what the run began with."""
        fault = claims.changed(one, self.setting)
        return fault and f"{fault}; give this site the same data again, or start a new run"

    @property
    def remote(self) -> bool:
        """Data and memories are with the clients."""
        return True

    def begin(self, folder: Path | None) -> None:
        """Begin a run, whose files lie in this folder; its clients have their own."""
        self.memories, self.trusted = {}, None

    def check(self) -> None:
        """Raise if no answer can come any more, from anybody."""

    def open(self, method: Method, round: int) -> Round:
        """Begin a round."""
        refuse_unnamed(method)
        if round != self._round + 1:
            self._checkpoints.clear()
        self._round = round
        kept: dict[int, set[str]] = {}
        for memories in (self.memories, {} if self.trusted is None else self.trusted.memories):
            for k, memory in memories.items():
                kept.setdefault(k, set()).add(_digest(memory))
        self._checkpoints.append(kept)
        return Round(self, method, round)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterator[Answer | Failure]:
        """Let clients act; one that has lost its memory is asked once more, to begin anew."""
        bodies, told = _Bodies(), self._told(method)
        due = sent = {m.client: m for m in messages}
        fed = Round(self, method, round)

        def room(client: int) -> Room:
            return room_for(method.expects(sent[client], fed), self.setting)

        for again in (True, False):
            begun = time.monotonic()
            headers = {k: self._header(told, round, k, m.action) for k, m in due.items()}
            letters = {k: to_records(bodies.array(m.body), headers[k]) for k, m in due.items()}
            lost = []
            for client, found in self._exchange(ACT, letters, round, room):
                answer = _answer(client, found, self.setting, time.monotonic() - begun)
                if isinstance(answer, Forgot) and again:
                    self._forget(client, round)
                    lost.append(client)
                yield answer if again or not isinstance(answer, Forgot) else Failure(client, answer.reason)
            due = {k: due[k] for k in lost}

    def evaluate(self, method: Method, state: State) -> dict[str, Any]:
        """The record of a round's views, from what the clients count; no sample comes here."""
        which, kept = distinct(method.models(state))
        if self.setting.privacy is not None and not self.simulated:
            self.roster.tell(OFF)
            return unevaluated(self.setting, method, which, kept)
        body, told, views = array(kept), self._told(method), {"views": announced(kept)}
        counts: dict[int, Tree] = {}
        due, room = self.setting.ids, room_for(None, self.setting, views=len(kept))
        for again in (True, False):
            letters = {k: to_records(body, {**self._address(told, state.round, k), **views}) for k in due}
            due = []
            for client, found in self._exchange(VIEWS, letters, state.round, lambda _: room):
                header, counted = ({}, {}) if isinstance(found, DataError) else found
                if header.get("lost") and again:
                    self._forget(client, state.round)
                    due.append(client)
                    continue
                fault = found if isinstance(found, DataError) else miscounted(self.setting, client, counted, kept)
                if fault is None:
                    counts[client] = counted
                else:
                    self.say(f"round {state.round}: client {client} was not evaluated: {fault}")
        return from_clients(self.setting, which, kept, counts)

    def _forget(self, client: int, round: int) -> None:
        self.say(f"round {round}: client {client} has lost its memory and begins anew")
        if spent := charged({}, self.memories.pop(client, None)):
            self.memories[client] = spent

    def _told(self, method: Method) -> str:
        """The experiment, with the method that is really used."""
        return as_json(naming(self.exp, method).to_dict()).decode()

    def _address(self, told: str, round: int, client: int) -> Header:
        digest = _digest(self.memories.get(client, {}))
        return {"experiment": told, "round": round, "client": client, "digest": digest}

    def _header(self, told: str, round: int, client: int, action: str) -> Header:
        header = {**self._address(told, round, client), "action": action, "steps": self.setting.steps(client)}
        if len(self._checkpoints) < CHAINS:  # what the older one on disk needs is not known
            return header
        needed = {str(header["digest"])}.union(*(digests.get(client, ()) for digests in self._checkpoints))
        return {**header, "needed": json.dumps(sorted(needed))}

    def _exchange(
        self, kind: str, letters: Mapping[int, RecordDict], round: int, room: Callable[[int], Room]
    ) -> Iterator[tuple[int, Found]]:
        """Send each client its letter; yields header and tree of each answer, or why there is none, as they come.

        An answer with more bytes than `room` says of its client is not read.
        """
        deadline, begun = self.setting.quorum.deadline, time.monotonic()
        # Past the deadline nobody looks any more; until then the Grid must not take a message away.
        ttl = None if deadline is None else deadline + GRACE
        unsent, waiting, pause, told = dict(letters), dict[str, int](), SHORTEST, HURRY
        while unsent or waiting:
            if unsent:
                self.roster.look(unsent)
            for client in [k for k in unsent if k in self.roster.refused]:
                del unsent[client]
                yield client, DataError(self.roster.refused[client].reason)
            for client in [k for k in unsent if k in self.roster.known]:
                node, pause = self.roster.known[client].node, SHORTEST
                letter = FlowerMessage(unsent.pop(client), node, kind, ttl=ttl, group_id=str(round))
                sent = dict.fromkeys(self.grid.push_messages([letter]), client)
                waiting |= sent
                if not sent:
                    self.roster.leave(client)
                    yield client, DataError(WHY[AWAY])
            for identifier, reply in pulled(self.grid, list(waiting)):
                if identifier not in waiting:
                    self.roster.tell(f"round {round}: an answer to no message of this round was ignored")
                    continue
                client, pause = waiting.pop(identifier), SHORTEST
                if isinstance(reply, FlowerMessage) and reply.has_error() and reply.error.code == AWAY:
                    self.roster.leave(client)
                yield client, _found(reply, room(client))
            self.check()
            waited = time.monotonic() - begun
            if deadline is not None and waited > deadline:
                for client in (*waiting.values(), *unsent):
                    yield client, DataError(f"it took longer than {deadline:g} s")
                return
            if waiting and deadline is None and waited > told:
                told += HURRY
                who = ", ".join(map(str, sorted(set(waiting.values()))))
                self.say(
                    f"round {round}: still waiting for client {who} after {waited:.0f} s; with quorum.deadline = "
                    "SECONDS a round goes on without those that take longer"
                )
            if waited > self.patience:
                for client in unsent:
                    yield client, DataError(f"it was not connected for {self.patience:g} s")
                unsent = {}
            if unsent or waiting:
                time.sleep(pause)
                pause = min(LONGEST, 1.3 * pause)


class _Bodies:
    """Arrays of the bodies of one round: clients that are sent the same share one, which is written and hashed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, int], ...], tuple[Tree, Array | None]] = {}

    def array(self, body: Tree) -> Array | None:
        """A body as an array; the same objects under the same names are the same body."""
        key = tuple((name, id(value)) for name, value in body.items())
        if key not in self._known:
            self._known[key] = (body, array(body))  # with the body, so that no id is used twice
        return self._known[key][1]


def refuse_unnamed(method: Method) -> None:
    """Refuse a method that another process does not find under its name."""
    if methods.get(method.name) is not type(method) or type(method).__module__ == "__main__":
        raise UsageError(
            f"the method '{method.name}' is defined in a script or notebook, and Flower's clients are told names only; "
            "put it into a file and give that with --plugin"
        )


def _digest(memory: Tree) -> str:
    return str(memory.get(REFERENCE, ""))


def _found(reply: FlowerMessage | Exception, room: Room) -> Found:
    try:
        return read(reply, room)
    except DataError as error:
        return error


def _answer(client: int, found: Found, setting: Setting, waited: float) -> Answer | Failure:
    """What a client said, so many seconds after it was asked, as the engine's answer."""
    if isinstance(found, DataError):
        return (Failed if isinstance(found, ActionError) else Failure)(client, str(found))
    header, body = found
    if header.get("lost"):
        return Forgot(client, "its memory is lost")
    try:
        keep = claims.reference(header, setting.privacy)
        meter, seconds = claims.meter(header, waited), claims.seconds(header, waited)
        return Answer(client, Reply(tree.to_device(body, setting.device), keep), meter, seconds)
    except Exception as error:  # whatever a stranger made of it
        fault = str(error) if isinstance(error, DataError) else type(error).__name__
        return Failure(client, one_line(f"the header of its answer is not sound: {fault}"))
