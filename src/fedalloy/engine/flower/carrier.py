"""The server's side of Flower: an engine over any Grid, which identifies clients by their own ids, never by node ids.

Messages are pushed and pulled here, not by Flower's `send_and_receive`, which waits three seconds between polls.
Answers are identified by the message that they answer. Any fault of a client is reported in one line and costs only
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
from fedalloy.base.text import client_labels
from fedalloy.base.tree import Tree
from fedalloy.config.methods import for_method, naming
from fedalloy.config.sections import Experiment
from fedalloy.engine.base import REFERENCE, Round
from fedalloy.engine.flower import claims
from fedalloy.engine.flower.audited import stated
from fedalloy.engine.flower.client import ACT, VIEWS
from fedalloy.engine.flower.codec import Header, array, to_records
from fedalloy.engine.flower.room import room_for
from fedalloy.engine.flower.roster import (
    AWAY,
    REVOKED,
    WHY,
    ActionError,
    Bound,
    Roster,
    introduce,
    one_line,
    pulled,
    read,
)
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

PATIENCE = 60.0  # seconds that a client may be disconnected before it counts as absent
HURRY = 600.0  # seconds between two messages about slow clients, if there is no deadline
GRACE = 60.0  # seconds that the Grid keeps a message beyond the deadline
SHORTEST, LONGEST = 0.01, 0.25  # seconds between two polls for answers

Found: TypeAlias = tuple[dict[str, Any], dict[str, Any]] | DataError
"""The header and the tree of an answer, or the reason why there is none."""


class Flower:
    """Carry messages over a Grid; a client's memory stays with the client, and `memories` contains references.

    The clients build their settings from `exp`; those in `setting` may contain no data. A client whose node is
    disconnected for longer than `patience` seconds counts as absent; one that is connected, but with different data
    from `setting`, or whose key was revoked, counts as absent immediately. `bound` says which client each registered
    node is at the moment; without it, the node's claim is trusted. If clients are not `simulated` but real sites, they
    evaluate nothing under [privacy].
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
        bound: Bound | None = None,
        witness: Callable[[int, str], None] = lambda *_: None,
        prepared: str | None = None,
    ) -> None:
        self.prepared = prepared  # how real sites prepare their rows, if the experiment does not say it
        self.witness = witness  # is given the head of a site's audit log, as each answer and refusal states it
        self.setting, self.exp, self.say, self.patience, self.bound = setting, for_method(exp), say, patience, bound
        self.memories: dict[int, Tree] = dict(memories or {})
        self.trusted: Generation | None = None
        self.workers = len(setting.sites)
        self.move(grid)
        self._round = -1
        self._checkpoints: deque[dict[int, set[str]]] = deque(
            maxlen=CHAINS
        )  # the digests in the two newest checkpoints

    def move(self, grid: Grid) -> None:
        """Continue over this Grid; its nodes have to introduce themselves first."""
        self.grid = grid
        told = json.dumps(self.exp.to_dict())
        self.roster = Roster(
            grid,
            told,
            len(self.setting.sites),
            self.say,
            self.bound,
            self._judge,
            self.setting.names,
            question=introduce(self.prepared),
        )
        self.roster.witness = self.witness

    def _judge(self, one: claims.Introduction) -> str | None:
        """Return why a client is refused, or None: its data differs from what the run began with."""
        fault = claims.changed(one, self.setting)
        return fault and f"{fault}; restore this site's data, or start a new run"

    @property
    def remote(self) -> bool:
        """Data and memories are with the clients."""
        return True

    def begin(self, folder: Path | None) -> None:
        """Begin a run with files in this folder; clients have their own folders."""
        self.memories, self.trusted = {}, None

    def check(self) -> None:
        """Raise if no more answers can arrive."""

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
        """Let clients act; one that has lost its memory is asked once more, with an empty memory."""
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
        """Return the record of a round's views, from counts by the clients; no samples are sent."""
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
                elif client not in self.roster.revoked():  # that is said once
                    self.say(f"round {state.round}: {self.setting.label(client)} was not evaluated: {fault}")
        return from_clients(self.setting, which, kept, counts)

    def _forget(self, client: int, round: int) -> None:
        self.say(f"round {round}: {self.setting.label(client)} has lost its memory and starts with an empty one")
        if spent := charged({}, self.memories.pop(client, None)):
            self.memories[client] = spent

    def _told(self, method: Method) -> str:
        """Return the experiment as JSON, with the method that is actually used."""
        return as_json(naming(self.exp, method).to_dict()).decode()

    def _address(self, told: str, round: int, client: int) -> Header:
        digest = _digest(self.memories.get(client, {}))
        ready = {} if self.prepared is None else {"prepared": self.prepared}
        return {"experiment": told, "round": round, "client": client, "digest": digest, **ready}

    def _header(self, told: str, round: int, client: int, action: str) -> Header:
        header = {**self._address(told, round, client), "action": action, "steps": self.setting.steps(client)}
        if len(self._checkpoints) < CHAINS:  # it is not known what the older checkpoint on disk needs
            return header
        needed = {str(header["digest"])}.union(*(digests.get(client, ()) for digests in self._checkpoints))
        return {**header, "needed": json.dumps(sorted(needed))}

    def _exchange(
        self, kind: str, letters: Mapping[int, RecordDict], round: int, room: Callable[[int], Room]
    ) -> Iterator[tuple[int, Found]]:
        """Send each client its message; yield header and tree of each answer, or why there is none, as they arrive.

        An answer with more bytes than `room` allows is not read. A client whose connection is lost is asked once more
        if it is back within `patience` seconds: it acts from the same memory, so the answer is the same. This does not
        happen under [privacy], where a second answer would cost more of the client's budget.
        """
        deadline, begun = self.setting.quorum.deadline, time.monotonic()
        # Until the deadline the Grid must not remove a message; afterwards nobody polls for its answer.
        ttl = None if deadline is None else deadline + GRACE
        unsent, waiting, pause, told = dict(letters), dict[str, int](), SHORTEST, HURRY
        away = dict.fromkeys(letters, begun)  # since when a client that is in `unsent` has been waited for
        once = set(letters) if self.setting.privacy is None else set[int]()  # who may be asked once more
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
                    if client in once:
                        once.remove(client)
                        unsent[client], away[client] = letters[client], time.monotonic()
                    else:
                        yield client, DataError(WHY[AWAY])
            replies = pulled(self.grid, list(waiting))
            revoked = self.roster.revoked()
            for identifier in [i for i, k in waiting.items() if k in revoked]:  # whether it has answered or not
                yield waiting.pop(identifier), DataError(REVOKED)
                replies = [one for one in replies if one[0] != identifier]
            for identifier, reply in replies:
                if identifier not in waiting:
                    self.roster.tell(f"round {round}: ignored an answer to a message of another round")
                    continue
                client, pause = waiting.pop(identifier), SHORTEST
                if isinstance(reply, FlowerMessage) and reply.has_error() and reply.error.code == AWAY:
                    self.roster.leave(client)
                    if client in once:
                        once.remove(client)
                        unsent[client], away[client] = letters[client], time.monotonic()
                        who = self.setting.label(client)
                        self.say(f"round {round}: {who} is not connected; waiting up to {self.patience:g} s for it")
                        continue
                found = _found(reply, room(client))
                self.witness(client, stated(reply))
                yield client, found
            self.check()
            waited = time.monotonic() - begun
            if deadline is not None and waited > deadline:
                for client in (*waiting.values(), *unsent):
                    yield client, DataError(f"it took longer than {deadline:g} s")
                return
            if waiting and deadline is None and waited > told:
                told += HURRY
                who = client_labels(self.setting.names, sorted(set(waiting.values())))
                self.say(
                    f"round {round}: still waiting for {who} after {waited:.0f} s; set quorum.deadline = "
                    "SECONDS "
                    "to continue rounds without slower clients"
                )
            for client in [k for k in unsent if time.monotonic() - away[k] > self.patience]:
                del unsent[client]
                yield client, DataError(f"it was not connected for {self.patience:g} s")
            if unsent or waiting:
                time.sleep(pause)
                pause = min(LONGEST, 1.3 * pause)


class _Bodies:
    """The arrays of one round's bodies: clients with the same body share one, which is encoded and hashed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, int], ...], tuple[Tree, Array | None]] = {}

    def array(self, body: Tree) -> Array | None:
        """Return a body as an array; the same objects under the same names are the same body."""
        key = tuple((name, id(value)) for name, value in body.items())
        if key not in self._known:
            self._known[key] = (body, array(body))  # keep the body, so that no id is reused
        return self._known[key][1]


def refuse_unnamed(method: Method) -> None:
    """Refuse a method that another process cannot find by its name."""
    if methods.get(method.name) is not type(method) or type(method).__module__ == "__main__":
        raise UsageError(
            f"the method '{method.name}' is defined in a script or notebook, but Flower's clients only receive names; "
            "put it into a file and pass that file with --plugin"
        )


def _digest(memory: Tree) -> str:
    return str(memory.get(REFERENCE, ""))


def _found(reply: FlowerMessage | Exception, room: Room) -> Found:
    try:
        return read(reply, room)
    except DataError as error:
        return error


def _answer(client: int, found: Found, setting: Setting, waited: float) -> Answer | Failure:
    """Convert what a client sent, `waited` seconds after it was asked, to the engine's answer."""
    if isinstance(found, DataError):
        return (Failed if isinstance(found, ActionError) else Failure)(client, str(found))
    header, body = found
    if header.get("lost"):
        return Forgot(client, "its memory is lost")
    try:
        keep = claims.reference(header, setting.privacy)
        meter, seconds = claims.meter(header, waited), claims.seconds(header, waited)
        return Answer(client, Reply(tree.to_device(body, setting.device), keep), meter, seconds)
    except Exception as error:  # untrusted input can raise anything
        fault = str(error) if isinstance(error, DataError) else type(error).__name__
        return Failure(client, one_line(f"the header of its answer is invalid: {fault}"))
