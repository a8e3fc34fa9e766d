"""Code shared by all engines: addressing, memories, lost replies, the byte ledger and the order of replies."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from fedalloy.base import rng, tree
from fedalloy.base.tree import Tree
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples, Scale, Task
from fedalloy.errors import UsageError
from fedalloy.federation.core import (
    Client,
    Generation,
    Message,
    Method,
    Network,
    State,
    initial_generator,
    random_network,
)
from fedalloy.federation.engine import Answer, Engine, Failed, Failure, Forgot
from fedalloy.federation.gate import farthest, refusal, strays
from fedalloy.federation.quorum import QuorumError
from fedalloy.federation.setting import SERVER, Setting, pooled
from fedalloy.train.costs import Ledger, Meter, metered
from fedalloy.train.fit import LocalWork
from fedalloy.train.privacy import charged, overspent

REFERENCE = "memory digest"  # reserved key: the server's reference to a memory that stays with its client


@dataclass
class Round:
    """One round as the server sees it: the `Federation` of every engine."""

    engine: Engine
    method: Method
    round: int
    ledger: Ledger = field(default_factory=Ledger)
    active: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)  # stragglers, whether they were asked or not
    forgot: set[int] = field(default_factory=set)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    skipped: str | None = None
    spent: set[int] = field(default_factory=set)
    sound: set[int] = field(default_factory=set)  # clients with a valid reply
    failed: set[int] = field(default_factory=set)  # clients that could not act on what they were sent
    back_to: int | None = None
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def _setting(self) -> Setting:
        return self.engine.setting

    @property
    def seed(self) -> int:
        """The experiment's seed."""
        return self._setting.seed

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self._setting.classes

    @property
    def outputs(self) -> int:
        """Number of outputs of a network."""
        return self._setting.outputs

    @property
    def task(self) -> Task:
        """What the networks predict."""
        return self._setting.task

    @property
    def work(self) -> LocalWork:
        """The clients' local work."""
        return self._setting.work

    @property
    def sizes(self) -> Sequence[int]:
        """Training samples of each client: the server's roster."""
        return self._setting.sizes

    def label_counts(self, client: int) -> Tensor:
        """Return the number of a client's training samples of each class."""
        return self._setting.sites[client].train.counts(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: channels, height, width."""
        return tuple(self._setting.sites[0].train.x.shape[1:])

    @property
    def scale(self) -> Scale:
        """The normalisation of the inputs."""
        return self._setting.scale

    @property
    def public(self) -> PublicSet | None:
        """The public set, if there is one."""
        return self._setting.public

    @property
    def meter(self) -> Meter:
        """Counts the server's own passes."""
        return self.ledger.server

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """The groups of clients whose networks have the same structure, names and shapes."""
        return self._setting.groups

    def build(self, client: int | None = None) -> nn.Module:
        """Build the server's network, or a client's, before any training."""
        return metered(self._setting.build(SERVER if client is None else client), self.meter)

    def random_net(self, client: int) -> nn.Module:
        """Build a random network of this client's own."""
        setting = self._setting
        return random_network(setting.network(client), self.seed, client, setting.layout, setting.device)

    def generator(self, make: Network) -> nn.Module:
        """Build a generator before any training."""
        return initial_generator(make, self.seed, self._setting.layout, self._setting.device, self.meter)

    def sample(self, *, by_size: bool = False) -> list[int]:
        """Return the clients of this round in ascending order, without stragglers."""
        drawn = self._setting.active(self.round, by_size=by_size, cap=self.method.aggregation.cap)
        late = self._setting.late(self.round, drawn)
        self.late.update(late)
        return [k for k in drawn if k not in late]

    def stragglers(self) -> dict[int, int]:
        """Return the stragglers of this round, each with the number of epochs that it has time for."""
        return self._setting.late(self.round, self._setting.active(self.round))

    def steps(self, client: int) -> int:
        """Return how many optimiser steps this client takes in a round."""
        return self._setting.steps(client)

    def rng(self, purpose: str) -> torch.Generator:
        """Return the server's random stream for a purpose in this round."""
        return rng.generator(self.seed, purpose, self.round, SERVER)

    def ask(self, action: str, clients: Iterable[int] | Mapping[int, Tree], /, **body: Any) -> list[Message]:
        """Send a message to each client and collect the replies in ascending id; some may be lost."""
        own: Mapping[int, Tree] = clients if isinstance(clients, Mapping) else {}
        ids = sorted(set(clients))
        unknown = [k for k in ids if k not in range(len(self._setting.sites))]
        if unknown:
            raise UsageError(f"{self.method.name} asks client {unknown[0]}, but there is no such client")
        tree.check(body, f"message '{action}'")
        for k, part in own.items():
            tree.check(part, f"message '{action}' of client {k}")
        messages = [Message(action, k, {**body, **own.get(k, {})}) for k in ids]
        for message in messages:
            self.ledger.sent(message.body)
        self.active.update(ids)
        start = time.perf_counter()
        answers = sorted(self.engine.carry(self.method, self.round, messages), key=lambda answer: answer.client)
        self.ledger.client_seconds += time.perf_counter() - start
        sent = {message.client: message for message in messages}
        due, replies = set(ids), []
        faults = self._faults(answers, sent)
        for place, answer in enumerate(answers):
            if isinstance(answer, Forgot):
                self.forgot.add(answer.client)
                continue
            if answer.client not in due:
                again = answer.client in sent
                self._quarantine(answer.client, action, "it answered twice" if again else "it was not asked")
                continue
            if isinstance(answer, Failure):  # the first valid answer counts, even after failures
                self._quarantine(answer.client, action, answer.reason)
                self.failed |= {answer.client} if isinstance(answer, Failed) else set()
            elif self._arrived(answer, sent[answer.client], faults.get(place)):
                self.sound.add(answer.client)
                due.remove(answer.client)
                replies.append(Message(action, answer.client, answer.reply.body))
            elif answer.client in self.lost:
                due.remove(answer.client)
        if len(replies) < (needed := self._setting.quorum.needed(len(ids))):
            self.skip(f"{len(replies)} of {len(ids)} clients answered, but {needed} are needed")
        return replies

    def note(self, name: str, value: float) -> None:
        """Record a number about this round; a skipped round has none."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UsageError(f"{self.method.name} notes {name} = {value!r} in round {self.round}; note a finite number")
        self.notes[name] = value

    def skip(self, reason: str) -> NoReturn:
        """End the round, which is recorded as skipped."""
        self.skipped = reason
        self.notes.clear()
        raise QuorumError(reason)

    @property
    def trained(self) -> bool:
        """Whether any client has given a valid answer in this round."""
        return bool(self.sound)

    @property
    def untrainable(self) -> bool:
        """Whether more clients failed to act than gave a valid answer; absent clients do not count."""
        return len(self.failed - self.sound) > len(self.sound)

    def go_back(self, trusted: Generation) -> State:
        """Return the state of an earlier round as the state of this round."""
        self.back_to = trusted.state.round
        return State(self.round, trusted.state.body)

    def _quarantine(self, client: int, action: str, reason: str) -> None:
        self.quarantined.append({"client": client, "action": action, "reason": reason})

    def _faults(self, answers: Sequence[Answer | Failure], sent: Mapping[int, Message]) -> dict[int, str]:
        """Return why answers are refused, by position: first each one separately, then those far from the others."""
        found: dict[int, str] = {}
        distances: dict[int, float] = {}
        for place, answer in enumerate(answers):
            if isinstance(answer, Failure) or answer.client not in sent or self._is_lost(answer.client):
                continue
            message = sent[answer.client]
            if (fault := self._fault(answer, message)) is not None:
                found[place] = fault
            elif (distance := farthest(answer.reply.body, message.body)) is not None:
                distances[place] = distance
        return found | strays(distances)

    def _is_lost(self, client: int) -> bool:
        return self._setting.participation.lost(client=client, round=self.round, seed=self.seed)

    def _arrived(self, answer: Answer, message: Message, reason: str | None) -> bool:
        self.ledger.clients.add(answer.meter)
        self.ledger.busy_seconds += answer.seconds
        lost = self._is_lost(answer.client)
        if reason is not None:
            self._quarantine(answer.client, message.action, reason)
            self.failed |= {answer.client} - self.spent
            # It keeps no memory of the round, but the privacy that it spent stays spent.
            if memory := charged(self.engine.memories.get(answer.client, {}), answer.reply.keep):
                self.engine.memories[answer.client] = memory
            return False
        if answer.reply.keep is not None:
            self.engine.memories[answer.client] = charged(answer.reply.keep, self.engine.memories.get(answer.client))
        if lost:
            self.lost.add(answer.client)  # it has trained and keeps its memory, but the server never gets the reply
            return False
        self.ledger.received(answer.reply.body)
        return True

    def _fault(self, answer: Answer, message: Message) -> str | None:
        """Return why an answer is refused, or None: the privacy budget is spent, or it breaks the contract."""
        body = answer.reply.body
        if (spent := overspent(self._setting.privacy, body)) is not None:
            self.spent.add(answer.client)
            return spent
        contract, most = self.method.expects(message, self), self.method.aggregation.max_distance
        return refusal(body, contract, message.body, most, is_tree=answer.reply.checked)

    def pool(self) -> Samples:
        """Return all clients' training data in one place, counted as uploaded in the first round."""
        data = pooled([site.train for site in self._setting.sites])
        if self.round == 1:
            self.ledger.up["data"] += len(data) * (data.x[0].numel() * data.x.element_size() + data.y.element_size())
        return data

    def learner(self, samples: Samples, steps: int) -> Client:
        """Return the server as a learner on its own samples."""
        return self._setting.learner(samples, steps, self.round, self.meter)
