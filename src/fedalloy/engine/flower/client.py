"""The code that runs at a client: a Flower ClientApp with four actions, which always answer.

* `train.act` lets the client act from the generation of its memory that the message names, and stores the new one.
* `evaluate.views` evaluates the server's models and the client's own, and answers with counts; a real site limits this,
  and refuses it under [privacy].
* `query.summarise` answers, at a real site, with statistics of the columns of its training rows.
* `query.introduce` answers with the client's id and how much data it has, per class if the method sends that anyway.

A message contains a tree and a header: the experiment with its method, by registered name and options, and the round.
It cannot name code, a file or another client's data. Its contents must satisfy the method's `accepts` for this client,
and are not read if they have more bytes than that allows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.config.experiment import made_from
from fedalloy.config.sections import Experiment
from fedalloy.data.columns import Summary
from fedalloy.data.statistics import summary_text
from fedalloy.engine.flower.audited import LONGEST, answered, asked, refused, scores
from fedalloy.engine.flower.codec import BODY, header_in, to_records, tree_in
from fedalloy.engine.flower.evaluated import EvaluationLog
from fedalloy.engine.flower.memory import LedgerError, Memory
from fedalloy.engine.flower.room import room_for
from fedalloy.engine.malloc import tune_malloc
from fedalloy.errors import DataError, FedalloyError, UsageError
from fedalloy.federation.core import Message, Method, act
from fedalloy.federation.disclosure import OFF
from fedalloy.federation.evaluation import announced, at_client, unfit
from fedalloy.federation.gate import Contract, refusal, whole
from fedalloy.federation.setting import Setting
from fedalloy.storage.audit import AuditError, AuditLog
from fedalloy.train.costs import Meter, payload
from fedalloy.train.fit import one_thread
from fedalloy.train.privacy import LEDGER, charged

ACT, VIEWS, INTRODUCE, SUMMARISE = "train.act", "evaluate.views", "query.introduce", "query.summarise"
MOST_STEPS, MOST_ROUNDS = 1 << 20, 1 << 40  # limits on what a server may ask for, per action and per run
PARTITION = "partition-id"  # Flower's name for a client's number

SettingOf = Callable[[Context, dict[str, Any], str | None], tuple[int, Setting, Path]]
"""From a node's context, the experiment and how all sites prepare their rows to the client's id, its setting and the
folder for its memory."""

SummaryOf = Callable[[Context, dict[str, Any]], tuple[int, Summary]]
"""From a node's context and the experiment to the client's id and what it tells about its training rows."""

Agreed = Callable[[Context], Experiment]
"""From a node's context to the experiment in a real site's folder, regardless of its server."""

AuditOf = Callable[[Context], AuditLog]
"""From a node's context to a real site's audit log."""

Told = tuple[RecordDict, dict[str, Any]]
"""An answer, and what the site's own log says about it."""

Do = Callable[[Context, RecordDict], Told]
"""From a node's context and a message's content to the answer."""

log = logging.getLogger(__name__)


class MemoryLostError(DataError):
    """No intact file contains the memory that the server names."""


def client_app(
    setting_of: SettingOf,
    agreed: Agreed | None = None,
    audit_of: AuditOf | None = None,
    summary_of: SummaryOf | None = None,
) -> ClientApp:
    """Create the app of a client; `setting_of` returns which client it is and its data.

    A real site passes its own experiment as `agreed`, limits what it evaluates, and writes to its audit log before and
    after it acts; simulated clients have neither limits nor a log.
    """
    app = ClientApp()
    kinds: dict[str, Do] = {
        kind: partial(_at_site, do, setting_of, agreed)
        for kind, do in ((ACT, _act), (VIEWS, _views), (INTRODUCE, _introduce))
    }
    if summary_of is not None:
        kinds[SUMMARISE] = partial(_summarise, summary_of)
    for kind, act_on in kinds.items():
        category, name = kind.split(".")
        getattr(app, category)(name)(partial(_answered, act_on, agreed is not None, audit_of))
    return app


@dataclass(frozen=True)
class _Site:
    """The client at this node, and a message for it."""

    client: int
    setting: Setting
    memory: Memory
    experiment: dict[str, Any]
    header: dict[str, Any]
    content: RecordDict
    agreed: Experiment | None = None  # a real site's own experiment; None in a simulation

    def method(self) -> Method:
        """Build the experiment's method from those registered here."""
        found = made_from(self.experiment)
        if self.setting.privacy is not None:
            self.setting.check(found)  # do not trust the server that the method is private
        return found

    def remembered(self) -> Tree:
        """Return the memory to act from, including the privacy that was actually spent."""
        digest = self.header["digest"]
        # Check the ledger first: a client that has lost it must not start with an empty memory.
        spent = self.memory.spent(begun=bool(digest)) if self.setting.privacy is not None else {}
        found = self.memory.read(digest)
        if found is None:
            raise MemoryLostError(f"its memory {digest[:12]} is lost")
        return charged(found, {LEDGER: spent})

    def steps(self) -> int:
        """Return the steps if all clients take equally many: they depend on the mean size, which no client knows."""
        return self._number("steps", 1, MOST_STEPS)

    def round(self) -> int:
        """Return the round of the message; under [privacy] a real site only takes part in rounds that it agreed to."""
        limited = self.agreed is not None and self.setting.privacy is not None
        return self._number("round", 0, self.agreed.rounds if limited and self.agreed is not None else MOST_ROUNDS)

    def _number(self, key: str, least: int, most: int) -> int:
        value: Any = self.header.get(key)
        if (fault := whole(least, most)(value)) is not None:
            raise UsageError(f"the server's message is refused: {key} {fault}")
        return cast(int, value)

    def body(self, contract: Contract | None, check: Callable[[Tree], str | None] = lambda _: None) -> Tree:
        """Return what the server sent, if it satisfies the contract and the check."""
        try:
            found = tree_in(self.content, room_for(contract, self.setting))
            fault = refusal(found, contract) or check(found)
        except DataError as error:
            fault = str(error)
        if fault is not None:
            raise UsageError(f"the server's message is refused: {fault}")
        return tree.to_device(found, self.setting.device)


def _answered(do: Do, real: bool, audit_of: AuditOf | None, message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer a message in any case, since a client that raises or stays silent may never be asked again."""
    audit: AuditLog | None = None
    about: dict[str, Any] = {}
    try:
        tune_once()
        if audit_of is not None:
            audit = audit_of(context)
            about = asked(audit, message, context.run_id)
        with one_thread():
            answer, told = do(context, message.content)
            if audit is not None:
                answered(audit, about, answer, told)
    except (Exception, SystemExit) as error:
        sentence = _sentence(error, real=real)
        if sentence != str(error):
            log.exception("the message could not be answered")
        who = {"client": number} if isinstance(number := context.node_config.get(PARTITION), int) else {}
        answer = to_records({}, {"error": sentence, "lost": int(isinstance(error, MemoryLostError)), **who})
        if audit is not None and not isinstance(error, AuditError):
            refused(audit, about, error, answer)
    return FlowerMessage(answer, reply_to=message)


def _at_site(
    do: Callable[[_Site], Told], setting_of: SettingOf, agreed: Agreed | None, context: Context, content: RecordDict
) -> Told:
    """Let the client act with its data, prepared as the message says."""
    header = header_in(content)
    wanted, prepared = json.loads(header["experiment"]), header.get("prepared")
    client, setting, folder = setting_of(context, wanted, None if prepared is None else str(prepared))
    if header.get("client", client) != client:
        raise UsageError(f"this is client {client}, but the message is for client {header['client']}")
    memory, handed = Memory(folder / str(client)), None if agreed is None else agreed(context)
    return do(_Site(client, setting, memory, wanted, header, content, handed))


def _summarise(summary_of: SummaryOf, context: Context, content: RecordDict) -> Told:
    header = header_in(content)
    if BODY in content:
        raise UsageError("the server's message is refused: a question about statistics has no contents")
    client, summary = summary_of(context, json.loads(header["experiment"]))
    told = summary_text(summary)
    return to_records({}, {"client": client, "statistics": told}), {"kinds": {"statistics": len(told.encode())}}


def _act(site: _Site) -> Told:
    start = time.perf_counter()
    method, round, action = site.method(), site.round(), str(site.header["action"])
    me = site.setting.client(site.client, round, site.remembered())
    if site.setting.work.work == "equal_steps":
        me = replace(me, steps=site.steps())
    body = site.body(method.accepts(action, replace(me, meter=Meter())))
    if me.account is not None:
        me.account.keep = site.memory.charge
        site.memory.charge(lambda spent: spent)  # the ledger must exist before the first memory
    answer = act(method, me, Message(action, site.client, body))
    if site.agreed is not None:
        EvaluationLog(site.memory.folder, site.agreed).take_part(round)
    header: dict[str, Any] = {f"meter.{name}": value for name, value in me.meter.counts().items()}
    if answer.keep is not None:
        header["digest"] = site.memory.write(round, answer.keep)
        header["ledger"] = json.dumps(answer.keep.get(LEDGER, {}))
    if "needed" in site.header:
        site.memory.forget(round, {*json.loads(site.header["needed"]), header.get("digest", "")})
    sent = to_records(answer.body, {**header, "seconds": time.perf_counter() - start})
    return sent, {"kinds": dict(payload(answer.body))}


def _views(site: _Site) -> Told:
    if site.agreed is not None and site.setting.privacy is not None:
        raise UsageError(OFF)
    method, round, memory = site.method(), site.round(), site.remembered()
    models = site.body(None, partial(unfit, site.setting))
    digests = announced(models)
    if site.header.get("views") != digests:
        raise UsageError("the server's message is refused: the models are not those that its message announces")
    if site.agreed is not None:
        limit, prepared = EvaluationLog(site.memory.folder, site.agreed), str(site.header.get("prepared", ""))
        limit.admit(round, json.loads(digests), str(site.header["digest"]), prepared)
    counted = at_client(site.setting, method, site.client, round, memory, models)
    told: dict[str, Any] = {"kinds": {"evaluation": sum(payload(counted).values())}}
    if site.agreed is not None:
        told["scores"] = scores(site.setting, site.client, counted)
    return to_records(counted, {}), told


def _introduce(site: _Site) -> Told:
    site.body({})
    own = site.setting.sites[site.client]
    about: dict[str, Any] = {
        "client": site.client,
        "train": len(own.train),
        "test": len(own.test),
        "validation": 0 if own.validation is None else len(own.validation),
        "shape": json.dumps(list(own.train.x.shape[1:])),
        "classes": site.setting.classes,
    }
    if site.method().tells_counts:
        about["counts"] = json.dumps(own.train.counts(site.setting.classes).tolist())
    return to_records({}, about), {"kinds": {"introduction": len(json.dumps(about))}}


@cache
def tune_once() -> None:
    """Tune this process's allocator like a worker's."""
    tune_malloc()


def _sentence(error: BaseException, *, real: bool) -> str:
    """Return the error message for the server; at a real site it must not quote the site's rows."""
    if real and not isinstance(error, UsageError | MemoryLostError | LedgerError | AuditError):
        return f"{type(error).__name__}; see the site's log"
    text = str(error) if isinstance(error, FedalloyError) else f"{type(error).__name__}: {error}"
    return text[:LONGEST]
