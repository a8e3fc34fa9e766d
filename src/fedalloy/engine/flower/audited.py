"""What a site's audit log says about a message and its answer; texts that a server chooses are cut."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage

from fedalloy.engine.flower.codec import BODY, HEADER, header_in
from fedalloy.errors import DataError, FedalloyError
from fedalloy.federation.classification import commonest
from fedalloy.federation.evaluation import PERSONAL
from fedalloy.federation.setting import Setting
from fedalloy.federation.tally import view_of
from fedalloy.storage.audit import AuditLog

LONGEST, LONGEST_NAME = 300, 100  # characters of a reason, and of a name, id or number in a log
STATED = "audit"  # the key of the head in an answer's header

log = logging.getLogger(__name__)


def asked(audit: AuditLog, message: FlowerMessage, run: int) -> dict[str, Any]:
    """Write that a message has arrived; return what later entries about it repeat."""
    about = {
        "run": str(run),
        "kind": message.metadata.message_type[:LONGEST_NAME],
        "message": message.metadata.message_id[:LONGEST_NAME],
    }
    content = message.content if message.has_content() else RecordDict()
    about |= _wanted(content)
    audit.append("asked", {**about, "agreed": audit.about.get("experiment", ""), "in": sealed(content)})
    return about


def answered(audit: AuditLog, about: Mapping[str, Any], answer: RecordDict, what: Mapping[str, Any]) -> None:
    """Write that an answer leaves, and state the new head in it, so that somebody else has a copy of the head."""
    _state(answer, audit.append("answered", {**about, "out": sealed(answer), **what}))


def refused(audit: AuditLog, about: Mapping[str, Any], error: BaseException, answer: RecordDict) -> None:
    """Write that a message was refused, with the reason as the site itself may know it."""
    why = f"{error}" if isinstance(error, FedalloyError) else f"{type(error).__name__}: {error}"
    try:
        _state(answer, audit.append("refused", {**about, "why": why[:LONGEST], "out": sealed(answer)}))
    except (FedalloyError, OSError):  # a full disk, perhaps: the refusal contains nothing that must be recorded
        log.exception("the refusal could not be written to the audit log")


def stated(answer: FlowerMessage | Exception) -> str:
    """Return the head that an answer or a refusal states, as it is; empty if there is none."""
    try:
        found = "" if isinstance(answer, Exception) else header_in(answer.content).get(STATED, "")
    except Exception:  # untrusted input can raise anything
        return ""
    return found if isinstance(found, str) else ""


def _state(answer: RecordDict, head: str) -> None:
    cast(ConfigRecord, answer[HEADER])[STATED] = head


def _wanted(content: RecordDict) -> dict[str, Any]:
    """Return what a message says it wants, if it says so in the right way."""
    try:
        header = header_in(content)
    except DataError:
        return {}
    told = {key: header[key] for key, kind in (("round", int), ("action", str)) if type(header.get(key)) is kind}
    experiment = hashlib.sha256(str(header.get("experiment", "")).encode(errors="replace")).hexdigest()
    return {key: value if key == "round" else value[:LONGEST_NAME] for key, value in told.items()} | {
        "asks": experiment
    }


def sealed(content: RecordDict) -> dict[str, Any]:
    """Return bytes and digest of a message's tree, and the digest of its header; other arrays count as bytes too."""
    digest, size = hashlib.sha256(), 0
    for name, record in content.items():
        for one in record.values() if isinstance(record, ArrayRecord) else ():
            size += len(one.data)
            digest.update(one.data if name == BODY else b"")
    head = content.get(HEADER)
    told = {key: value for key, value in head.items() if key != STATED} if isinstance(head, ConfigRecord) else {}
    text = json.dumps(told, sort_keys=True, default=repr)
    return {"bytes": size, "sha256": digest.hexdigest(), "header": hashlib.sha256(text.encode()).hexdigest()}


def scores(setting: Setting, client: int, counted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each view scored on this site's own test rows, with 95 % intervals, for its own log."""
    views = {**counted["models"], PERSONAL: counted[PERSONAL], **counted["stages"]}
    return {view[:LONGEST_NAME]: _scored(setting, client, found) for view, found in views.items() if found}


_MEASURED = {
    "classes": ("accuracy", "balanced", "macro_f1", "auc"),
    "labels": ("accuracy", "balanced", "macro_f1", "auc"),
    "numbers": ("r2", "mae"),
}


def _scored(setting: Setting, client: int, found: Mapping[str, Any]) -> dict[str, Any]:
    record = view_of(setting, {client: found})  # of this client alone, so what it pools is this client's too
    each, spans = record["clients"], record["details"].get("intervals", {})
    told: dict[str, Any] = {"rows": each["size"][client]}
    if setting.task != "numbers":  # how often always the same answer is right says which score comes first
        told["commonest"] = round(commonest(found["confusion"].numpy()), 6)
    for name in _MEASURED[setting.task]:
        stored = "accuracy" if name == "r2" else name  # what records call the score of every task
        told[name] = each[stored][client] if stored in each else record[stored]
        if stored in spans and spans[stored][client] is not None:
            told[f"{name}_95"] = spans[stored][client]
    return told
