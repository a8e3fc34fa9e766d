"""The connected nodes and the clients that they are. Clients are identified by their own ids; node ids may change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedalloy.base.text import client_label, client_labels
from fedalloy.config.methods import for_method
from fedalloy.config.sections import Experiment
from fedalloy.data.columns import Column, Recipe, Summary
from fedalloy.data.statistics import LONGEST as LONGEST_SUMMARY
from fedalloy.data.statistics import read_summary
from fedalloy.engine.flower.audited import stated
from fedalloy.engine.flower.claims import Introduction, introduction
from fedalloy.engine.flower.client import INTRODUCE, SUMMARISE
from fedalloy.engine.flower.codec import from_records, header_in, to_records
from fedalloy.errors import DataError
from fedalloy.federation.gate import LEAST, Room
from fedalloy.storage.store import Say

PAUSE = 0.05  # seconds between two polls
AGAIN = 5.0  # seconds after which a node that could not introduce itself is asked again
LONGEST = 300  # characters of a reason
TEXT = 1 << 16  # characters of a string in the header of an answer
NOTHING = Room(LEAST, LEAST)  # if no tree is expected
EXPIRY = 600.0  # seconds after which the Grid may drop the question
NOBODY = 0  # no node has this id
REVOKED = "its key was revoked"
AWAY = 5  # Flower's code for a node that is not connected
WHY = {3: "its message expired", 4: "its answer expired", AWAY: "its node is not connected", 8: "its process died"}


class ActionError(DataError):
    """A client was available but could not act on what it was sent."""


@dataclass(frozen=True)
class Keys:
    """Whose keys are valid at the moment: the client of each registered node, and the clients that were revoked."""

    nodes: Mapping[int, int]
    revoked: Collection[int] = ()


Bound: TypeAlias = Callable[[], Keys]
"""Returns the valid keys; it is asked again and again, since keys are revoked and replaced during a run."""


class Introduced(Protocol):
    """A client's first answer: which client it is, at which node."""

    @property
    def client(self) -> int:
        """The client's number."""

    @property
    def node(self) -> int:
        """Flower's id of its node."""


Who = TypeVar("Who", bound=Introduced)


@dataclass(frozen=True)
class Question(Generic[Who]):
    """What nodes are asked when they connect, and how an answer's header is read; it may raise a `DataError`."""

    kind: str
    read: Callable[[dict[str, Any], int], Who]
    header: Mapping[str, str] = field(default_factory=dict)
    longest: int = TEXT


def introduce(prepared: str | None = None) -> Question[Introduction]:
    """Return the usual question: which client are you, and how much data do you have, prepared in this way?"""
    return Question(INTRODUCE, introduction, {} if prepared is None else {"prepared": prepared})


@dataclass(frozen=True)
class Telling:
    """What a client tells about the columns of its training rows."""

    client: int
    node: int
    summary: Summary


def summarise(columns: Sequence[Column], recipe: Recipe, values_per_row: int) -> Question[Telling]:
    """Return the question about statistics of these columns."""

    def understood(header: dict[str, Any], node: int) -> Telling:
        client, told = header.get("client"), header.get("statistics")
        if type(client) is not int or not isinstance(told, str):
            raise DataError("it did not tell its statistics")
        return Telling(client, node, read_summary(told, columns, recipe, values_per_row))

    return Question(SUMMARISE, understood, longest=LONGEST_SUMMARY)


def introductions(
    grid: Grid,
    exp: Experiment,
    clients: int,
    patience: float,
    say: Say = lambda _: None,
    bound: Bound | None = None,
    judge: Callable[[Who], str | None] = lambda _: None,
    names: Sequence[str] = (),
    *,
    question: Question[Who],
) -> Roster[Who]:
    """Return the roster once all clients have answered or after `patience` seconds, and report missing clients."""
    roster = Roster(grid, json.dumps(for_method(exp).to_dict()), clients, say, bound, judge, names, question=question)
    end = time.monotonic() + patience
    while len(roster.known.keys() | roster.refused.keys()) < clients and time.monotonic() < end:
        roster.look(range(clients))
        time.sleep(PAUSE)
    if missing := [k for k in range(clients) if k not in roster.known and k not in roster.refused]:
        say(f"after {patience:g} s, {client_labels(names, missing)} of {clients} are missing")
    return roster


@dataclass(frozen=True)
class Refusal:
    """A node that answered but is refused, and the reason."""

    node: int
    reason: str


class Roster(Generic[Who]):
    """The clients that have introduced themselves and whose nodes are connected.

    If nodes have registered keys, `bound` says which client each of them is, and other nodes are ignored. A client that
    answered but is refused, by `judge` or because it claims to be another, is in `refused`; it is asked again every few
    seconds, but nobody waits for it. What `judge` returns continues a sentence that begins with the client. A client
    whose key was revoked is in `refused` too, and is not asked.
    """

    def __init__(
        self,
        grid: Grid,
        experiment: str,
        clients: int,
        say: Say,
        bound: Bound | None = None,
        judge: Callable[[Who], str | None] = lambda _: None,
        names: Sequence[str] = (),
        *,
        question: Question[Who],
    ) -> None:
        self.question = question
        self.grid, self.experiment, self.clients, self.say = grid, experiment, clients, say
        self.bound, self.judge, self.names = bound, judge, names
        self.witness: Callable[[int, str], None] = lambda *_: None  # is given the heads of sites' audit logs
        self.known: dict[int, Who] = {}
        self.refused: dict[int, Refusal] = {}
        self._asked: dict[str, int] = {}  # nodes that have not answered yet, by the message
        self._again: dict[int, float] = {}  # when a node may be asked again
        self._told: set[str] = set()

    def look(self, wanted: Collection[int]) -> None:
        """Update the roster without waiting; unknown nodes are asked while one of these clients is missing."""
        online, keys = set(self.grid.get_node_ids()), self.bound() if self.bound is not None else None
        if keys is not None and online - keys.nodes.keys():
            self.tell("ignoring a node whose key does not belong to any site of this deployment")
            online &= keys.nodes.keys()
        self.known = {k: one for k, one in self.known.items() if one.node in online}
        self.refused = {k: one for k, one in self.refused.items() if one.node in online}
        for client in keys.revoked if keys is not None else ():
            self.known.pop(client, None)
            self.refused[client] = Refusal(NOBODY, REVOKED)
            self.tell(f"{client_label(self.names, client)} is revoked and does not take part")
        if all(k in self.known for k in wanted):
            return
        now = time.monotonic()
        strangers = online - {one.node for one in self.known.values()} - set(self._asked.values())
        for node in sorted(strangers):
            if self._again.get(node, 0.0) <= now:
                asked = to_records({}, {"experiment": self.experiment, **self.question.header})
                letter = FlowerMessage(asked, node, self.question.kind, ttl=EXPIRY)
                self._asked |= dict.fromkeys(self.grid.push_messages([letter]), node)
        for identifier, reply in pulled(self.grid, self._asked):
            if identifier in self._asked:
                self._meet(self._asked.pop(identifier), reply)

    def revoked(self) -> Collection[int]:
        """Return the clients whose keys were revoked."""
        return () if self.bound is None else self.bound().revoked

    def leave(self, client: int) -> None:
        """Record that a client's node does not answer; it must introduce itself again."""
        if client in self.known:
            self._again[self.known.pop(client).node] = time.monotonic() + AGAIN

    def tell(self, sentence: str) -> None:
        """Say something once, even if it happens often."""
        if sentence not in self._told:
            self._told.add(sentence)
            self.say(sentence)

    def _meet(self, node: int, reply: FlowerMessage | Exception) -> None:
        self._again[node] = time.monotonic() + AGAIN
        owner = None if self.bound is None else self.bound().nodes.get(node)
        if self.bound is not None and owner is None:
            return  # its key was revoked or replaced after it was asked
        client = _claimed(reply, self.clients) if owner is None else owner
        if client is not None:
            self.witness(client, stated(reply))
        try:
            one = self.question.read(read(reply, NOTHING, self.question.longest)[0], node)
        except DataError as error:
            fault: str | None = f"could not introduce itself: {error}"
        else:
            if self.bound is None and one.client in self.known:
                self.tell(f"a second node claims to be {client_label(self.names, one.client)}; the first one counts")
                return
            fault = self._fault(one, owner)
            if fault is None:
                self.known[one.client] = one
                self.refused.pop(one.client, None)
                return
        self.tell(one_line(f"{'a node' if client is None else client_label(self.names, client)} {fault}"))
        silent = isinstance(reply, Exception) or reply.has_error()  # it may still connect
        if client is not None and client not in self.known and not silent:
            self.refused[client] = Refusal(node, one_line(f"it {fault}"))

    def _fault(self, one: Who, owner: int | None) -> str | None:
        if not 0 <= one.client < self.clients:
            return f"claims to be client {one.client}; ids are 0 to {self.clients - 1}"
        if owner is not None and one.client != owner:
            return (
                f"claims to be {client_label(self.names, one.client)}, but its key belongs to "
                f"{client_label(self.names, owner)}"
            )
        return self.judge(one)


def pulled(grid: Grid, identifiers: Iterable[str]) -> list[tuple[str, FlowerMessage | Exception]]:
    """Return the answers so far, with the id of their message; one unreadable answer does not affect the others."""
    wanted = list(identifiers)
    if not wanted:
        return []
    try:
        return [(reply.metadata.reply_to_message_id, reply) for reply in grid.pull_messages(wanted)]
    except Exception as error:
        if len(wanted) == 1:
            return [(wanted[0], error)]
        return [one for identifier in wanted for one in pulled(grid, [identifier])]


def read(reply: FlowerMessage | Exception, room: Room, longest: int = TEXT) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the header and the tree of an answer, or raise a `DataError` with the reason."""
    if isinstance(reply, Exception):
        raise DataError(f"its answer cannot be read ({type(reply).__name__})")
    if reply.has_error():
        raise DataError(WHY.get(reply.error.code, one_line(f"its app failed: {reply.error.reason}")))
    try:
        header, body = from_records(reply.content, room, longest)
    except DataError as error:
        raise DataError(one_line(str(error))) from error
    except Exception as error:  # untrusted input can raise anything
        raise DataError(f"its answer cannot be read ({type(error).__name__})") from error
    if "error" in header and not header.get("lost"):
        raise ActionError(one_line(f"its action failed: {header['error']}"))
    return header, body


def _claimed(reply: FlowerMessage | Exception, clients: int) -> int | None:
    """Return which client a node claims to be, or None."""
    try:
        number = None if isinstance(reply, Exception) else header_in(reply.content, TEXT).get("client")
    except Exception:  # untrusted input can raise anything
        return None
    return number if type(number) is int and 0 <= number < clients else None


def one_line(text: str) -> str:
    """Make untrusted text safe for a record and the terminal.

    >>> one_line("no\\n \\x1b[2Jway")
    'no ?[2Jway'
    """
    words = " ".join(text[: 10 * LONGEST].split())[:LONGEST]
    return "".join(letter if letter.isprintable() else "?" for letter in words)
