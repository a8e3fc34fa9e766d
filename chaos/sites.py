"""Hostile sites: whatever one of them answers, the server's run continues, and nothing absurd is recorded.

Real Flower messages, serialised and read again, on a Grid in this process. In each trial one of three sites sends
something other than its honest introduction, ledger of spent privacy, meter of its work, or evaluation. The server must
set it aside with one printable line, or accept it and be able to write a valid record. It must not raise, allocate
memory based on a claimed number, or take long.

    python chaos/sites.py --count 10000 --save
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from harness import Dice, FaultError, little_memory, run_from_command_line, show, trials

from fedalloy.base import tree
from fedalloy.base.files import as_json
from fedalloy.check.probe import small_settings
from fedalloy.config.experiment import experiment
from fedalloy.deploy import app
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.settings import with_sizes, without_sizes
from fedalloy.engine.flower import roster
from fedalloy.engine.flower.carrier import Flower
from fedalloy.engine.flower.client import ACT, INTRODUCE, VIEWS
from fedalloy.engine.flower.codec import BODY, HEADER, KIND, to_records
from fedalloy.federation.core import State
from fedalloy.federation.evaluation import at_client, distinct
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum, QuorumError
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedGen
from fedalloy.run.runner import round_record
from fedalloy.train.privacy import Privacy

CLIENTS, BAD = 3, 1
NODES = {1000 + 7 * k: k for k in range(CLIENTS)}
LONGEST = 500  # characters of a line
SLOWEST = 10.0  # seconds of a trial
METHOD = FedGen()  # its clients send their label counts
EXPERIMENT = {
    "data": {"name": "sites", "classes": 4, "channels": 1, "size": 8, "mean": [0.5], "std": [0.25]},
    "model": {"name": "mlp"},
    "method": {"name": "fedgen"},
}
METER = ("steps", "forward", "backward", "generator_forward", "generator_backward", "flops")

Content = RecordDict | Error
Reply = Callable[[str, int], Content]
"""Returns a client's answer to a message of a kind."""


def bound() -> roster.Keys:
    """Return whose keys are valid: those of all nodes."""
    return roster.Keys(NODES)


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Run `count` trials of each kind."""
    with little_memory():
        found = {
            f"site-{name}": trials(f"site-{name}", count, seed, trial, save=save) for name, trial in TRIALS.items()
        }
    for report in found.values():
        show(report)
    return found


# --- a Grid with one hostile site -------------------------------------------------------------------------------------


class Answering(Grid):
    """Nodes that answer immediately."""

    def __init__(self, reply: Reply) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.reply = reply
        self.mail: dict[str, FlowerMessage] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(NODES)

    def push_messages(self, messages: Iterable[FlowerMessage]) -> Iterable[str]:
        """Accept messages."""
        identifiers = []
        for message in messages:
            identifier = str(uuid4())
            message.metadata.__dict__["_message_id"] = identifier
            self.mail[identifier] = message
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[FlowerMessage]:
        """Return the answers, as received over the network."""
        found = []
        wanted = [identifier for identifier in message_ids if identifier in self.mail]
        for message in [self.mail[identifier] for identifier in wanted]:
            answer = FlowerMessage(RecordDict(), reply_to=message)
            content = self.reply(message.metadata.message_type, NODES[message.metadata.dst_node_id])
            failed = isinstance(content, Error)
            answer.__dict__.update(
                {"_error" if failed else "_content": content, "_content" if failed else "_error": None}
            )
            found.append(message_from_proto(ProtoMessage.FromString(message_to_proto(answer).SerializeToString())))
        for identifier in wanted:
            del self.mail[identifier]
        return found

    def set_run(self, run: Any) -> None:
        """Not needed."""

    @property
    def run(self) -> Any:
        """Not needed."""
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Any:
        """Not needed."""
        raise NotImplementedError

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Not needed."""
        raise NotImplementedError


@cache
def here() -> Setting:
    """Return the true setting: three clients with a few samples."""
    plain = small_settings()[0]
    return replace(
        plain,
        sites=plain.sites[:CLIENTS],
        participation=Participation(),
        quorum=Quorum(fraction=0.5, deadline=5.0),
        privacy=Privacy(),
    )


@cache
def first() -> State:
    """Return the state before the first round."""
    fed = Flower(Answering(honest), here(), experiment(EXPERIMENT), bound=bound).open(METHOD, 0)
    return State(0, METHOD.init(fed))


@cache
def views(client: int) -> dict[str, Any]:
    """Return a client's true counts."""
    return at_client(replace(here(), privacy=None), METHOD, client, 0, {}, distinct(METHOD.models(first()))[1])


def honest_parts(kind: str, client: int) -> tuple[dict[str, Any], Any]:
    """Return the header and the tree of an honest answer."""
    site, classes = here().sites[client], here().classes
    counts = site.train.counts(classes)
    if kind == INTRODUCE:
        sizes = {"train": len(site.train), "test": len(site.test), "validation": len(site.validation or ())}
        shape = json.dumps(list(site.train.x.shape[1:]))
        return {
            "client": client,
            **sizes,
            "shape": shape,
            "classes": classes,
            "counts": json.dumps(counts.tolist()),
        }, {}
    if kind == VIEWS:
        return {}, views(client)
    header = {f"meter.{name}": 0 if name == "steps" else 0.5 for name in METER}
    ledger = json.dumps({"1.0": {"0.25": 12}})
    body = {"model": first()["model"], "n": len(site.train), "counts": counts}
    return {**header, "digest": "0" * 64, "ledger": ledger, "seconds": 0.0}, body


def honest(kind: str, client: int) -> Content:
    """Return an honest answer."""
    header, body = honest_parts(kind, client)
    return to_records(body, header)


def hostile(meant: str, content: Content) -> Reply:
    """Return a Grid in which all sites are honest, except for one site's answers to one kind of message."""
    return lambda kind, client: content if (kind, client) == (meant, BAD) else honest(kind, client)


# --- what a hostile site makes of its answer --------------------------------------------------------------------------

NUMBERS: tuple[int | float, ...] = (0, 1, -1, 3, 10**6, 10**6 + 1, 10**9, 1 << 40, (1 << 40) + 1, (1 << 53) + 1)
NUMBERS = (*NUMBERS, (1 << 63) - 1, -(1 << 63), 0.0, 0.5, 1.5, 1 / 3, -0.5, 1e18, 1e308, 5e-324)
NUMBERS = (*NUMBERS, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "0", "[1, 2]", "{}", "null", "\x1b[2J\n", "\u202e", "é" * 5000, "[" * 60_000, "x" * 70_000, "0" * 64)


def a_value(dice: Dice) -> Any:
    """Return any value that a header may contain."""
    return dice.choice(
        [
            lambda: dice.choice(NUMBERS),
            lambda: dice.choice(TEXTS),
            lambda: json.dumps(a_json(dice, 3)),
            lambda: dice.choice([True, False]),
            lambda: bytes(dice.randrange(256) for _ in range(dice.randrange(9))),
            lambda: [dice.choice([0, 1, -5]) for _ in range(dice.randrange(4))],
            lambda: [dice.choice(["", "a"]) for _ in range(dice.randrange(4))],
        ]
    )()


def a_json(dice: Dice, depth: int) -> Any:
    """Return any JSON value, including numbers with thousands of digits."""
    leaves = [
        lambda: dice.choice(NUMBERS),
        lambda: dice.choice(TEXTS[:7]),
        lambda: None,
        lambda: 10 ** dice.choice((30, 4000)),
    ]
    tables = [
        lambda: [a_json(dice, depth - 1) for _ in range(dice.randrange(5))],
        lambda: {a_key(dice): a_json(dice, depth - 1) for _ in range(dice.randrange(5))},
    ]
    return dice.choice(leaves if depth == 0 else [*leaves, *tables, *tables])()


def a_key(dice: Dice) -> str:
    """Return a noise multiplier, a sampling rate, or something else."""
    return dice.choice(("1.0", "0.25", "0.5", "1", "0", "-1", "nan", "inf", "1e300", "1e-300", "0.01", "1_0", "x", ""))


def a_ledger(dice: Dice) -> str:
    """Return something that is almost a ledger."""
    steps = [
        lambda: dice.choice((1, 12, 1 << 40, (1 << 40) + 1, -3, 0, True, 1.5)),
        lambda: 10**4000,
        lambda: a_json(dice, 1),
    ]
    many = dice.choice((1, 1, 2, 3, 40))
    rates = [a_key(dice) if many < 40 else f"0.{n + 1}" for n in range(many)]
    return json.dumps(
        {a_key(dice): {rate: dice.choice(steps)() for rate in rates} for _ in range(dice.choice((1, 1, 2)))}
    )


def spoiled_header(dice: Dice, header: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return a header in which some of these fields are changed, missing or added."""
    found, among = dict(header), [*keys]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        key = dice.choice(among)
        way = dice.randrange(10)
        if way == 0:
            found.pop(key, None)
        elif way == 1:
            found[dice.choice(("error", "lost", "client", "\x1b", "extra", "digest"))] = a_value(dice)
        elif way < 5 and key == "ledger":
            found[key] = a_ledger(dice)
        elif way < 5 and key in ("shape", "counts"):
            found[key] = json.dumps(
                [dice.choice([*NUMBERS[:8], 4, True]) for _ in range(dice.choice((1, 3, 4, 4, 9, 2000)))]
            )
        else:
            found[key] = a_value(dice)
    return found


def spoiled_tree(dice: Dice, body: Any) -> Any:
    """Return a tree with one changed place."""
    places = [*walk(body)]
    *path, last = dice.choice(places)
    copy = duplicate(body)
    table = copy
    for step in path:
        table = table[step]
    way = dice.randrange(4)
    if way == 0:
        del table[last]
    elif way == 1:
        table[dice.choice(("extra", "\x1b[2J", "x" * 5000, "aca", "", "personal"))] = a_leaf(dice, table[last])
    else:
        table[last] = a_leaf(dice, table[last])
    return copy


def walk(body: Any, path: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    """Yield all places in a tree."""
    for key, value in body.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from walk(value, (*path, key))


def duplicate(body: Any) -> Any:
    """Return a tree with mutable tables."""
    return {key: duplicate(value) if isinstance(value, dict) else value for key, value in body.items()}


def a_leaf(dice: Dice, value: Any) -> Any:
    """Return something other than a value."""
    strange = [
        lambda: dice.choice(NUMBERS),
        lambda: dice.choice(("", "a\nb", "\n" * 100_000, "\x1b[2J")),
        lambda: torch.zeros(
            dice.choice(((), (0,), (1,), (4, 4), (2, 2, 2))), dtype=dice.choice((torch.int64, torch.float32))
        ),
        lambda: torch.full((4, 4), dice.choice((-1, 1, 9, (1 << 63) - 1))),
        dict,
        lambda: {"a": 1},
        lambda: {str(n): {} for n in range(50)},
    ]
    if isinstance(value, torch.Tensor) and value.numel():
        strange += [
            lambda: value.flip(0),
            lambda: value.double(),
            lambda: value - 1,
            lambda: value + 1,
            lambda: torch.roll(value, 1),
        ]
    return dice.choice(strange)()


def raw(dice: Dice, content: RecordDict) -> Content:
    """Return a malformed answer: other records, damaged bytes, an error."""
    way = dice.randrange(6)
    if way == 0:
        return Error(dice.choice((0, 2, 3, 5, 8, 99)), dice.choice(TEXTS[:9]))
    if way == 1:
        return RecordDict()
    if way == 2:
        return RecordDict({HEADER: MetricRecord({"n": 1})})
    if way == 3:
        return RecordDict({HEADER: content[HEADER], "more": ConfigRecord({"a": 1})})
    data = bytearray(content[BODY][BODY].data if BODY in content else tree.encode({"a": torch.zeros(3)}))
    if way == 4:
        data = data[: dice.randrange(len(data))]
    for _ in range(dice.randrange(1, 6)):
        if data:
            data[dice.randrange(min(len(data), 400))] = dice.randrange(256)
    shape = (len(data),) if dice.randrange(4) else (1 << 40,)
    return RecordDict({HEADER: content[HEADER], BODY: ArrayRecord({BODY: Array("uint8", shape, KIND, bytes(data))})})


def an_answer(dice: Dice, kind: str, keys: Iterable[str]) -> Content:
    """Return the hostile site's answer."""
    header, body = honest_parts(kind, BAD)
    way = dice.randrange(20)
    if way == 0:
        return raw(dice, to_records(body, header))
    if body and way < (14 if kind == VIEWS else 4):
        try:
            return to_records(spoiled_tree(dice, body), header)
        except Exception:  # what cannot be serialised cannot be sent
            return RecordDict()
    fields = [*keys] or ["lost", "error"]
    return to_records(body, spoiled_header(dice, header, fields))


# --- the trials -------------------------------------------------------------------------------------------------------


def introduction_trial(dice: Dice) -> str:
    """Begin a run: every accepted site's claims are within the deployment's limits."""
    keys = ("client", "train", "test", "validation", "shape", "classes", "counts")
    content = an_answer(dice, INTRODUCE, keys)
    app.PATIENCE, roster.AGAIN, roster.PAUSE = 0.05, 0.0, 0.0
    deployment = Deployment(Path("lab"), "127.0.0.1", 8443, CLIENTS)
    exp, said = experiment(EXPERIMENT), list[str]()
    with within(said), mock.patch.object(app, "valid", return_value=bound()):
        built = _blank()
        try:
            found = app.present(Answering(hostile(INTRODUCE, content)), exp, deployment, built.setting, said.append)
        except QuorumError as error:
            said.append(str(error)[:LONGEST])
            return "set aside"
        sized = with_sizes(built, found)
    one = found[BAD]
    if (
        one.client != BAD
        or max(one.train, one.test, one.validation) > deployment.limit(BAD)
        or sum(one.counts) != one.train
    ):
        raise FaultError(f"{one} was accepted")
    if any(one.node != node for node, k in NODES.items() if k == BAD) or len(sized.setting.sites) != CLIENTS:
        raise FaultError("the accepted sites are not the existing ones")
    as_json(sized.card.to_json())
    return "taken"


@cache
def _blank() -> Any:
    return without_sizes(experiment(EXPERIMENT), CLIENTS)


def round_trial(keys: tuple[str, ...]) -> Callable[[Dice], str]:
    """Run a round in which fields of the hostile site's header, or its reply, are changed."""

    def trial(dice: Dice) -> str:
        content = an_answer(dice, ACT, keys)
        said = list[str]()
        engine = Flower(Answering(hostile(ACT, content)), here(), experiment(EXPERIMENT), say=said.append, bound=bound)
        with within(said):
            fed = engine.open(METHOD, 1)
            fed.ask("train", here().ids, model=first()["model"])
            record = round_record(State(1, {}), fed, {}, {})
            as_json(record)
        said += [bad["reason"] for bad in fed.quarantined]
        require_lines(said)
        steps, flops = record["passes"]["clients"]["steps"], record["flops"]["clients"]
        if (
            type(steps) is not int
            or not 0 <= steps < 1e9
            or not 0 <= flops < 1e25
            or record["epsilon"] != record["epsilon"]
        ):
            raise FaultError(f"steps = {steps}, flops = {flops}, epsilon = {record['epsilon']}")
        if not 0 <= fed.ledger.busy_seconds < 60:
            raise FaultError(f"{fed.ledger.busy_seconds} s of work")
        away = {bad["client"] for bad in fed.quarantined}
        if away - {BAD}:
            raise FaultError(f"honest clients were set aside: {fed.quarantined}")
        return "set aside" if away else "taken"

    return trial


def evaluation_trial(dice: Dice) -> str:
    """Evaluate: the result is that of the honest sites alone, or the hostile site counts like any other."""
    content = an_answer(dice, VIEWS, ())
    said = list[str]()
    setting = replace(here(), privacy=None)  # under [privacy] sites do not evaluate
    engine = Flower(Answering(hostile(VIEWS, content)), setting, experiment(EXPERIMENT), say=said.append, bound=bound)
    with within(said):
        record = engine.evaluate(METHOD, first())
        as_json(record)
    if set(record) - set(METHOD.models(first())):
        raise FaultError(f"a view was invented: {list(record)[:5]}")
    sizes = {name: view["clients"]["size"] for name, view in record.items()}
    true = [len(site.test) for site in here().sites]
    without = [0 if k == BAD else n for k, n in enumerate(true)]
    if any(size not in (true, without) for size in sizes.values()):
        raise FaultError(f"sizes are {sizes}")
    return "set aside" if any(size == without for size in sizes.values()) else "taken"


class within:  # noqa: N801  # reads as a statement
    """Check that a trial does not take long and only prints valid lines."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def __enter__(self) -> None:
        self.begin = time.monotonic()

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and (taken := time.monotonic() - self.begin) > SLOWEST:
            raise FaultError(f"it took {taken:.1f} s")
        require_lines(self.said)


def require_lines(said: Iterable[str]) -> None:
    """Check that everything that is printed or recorded can be displayed."""
    for line in said:
        if not line or len(line) > LONGEST or not line.isprintable():
            raise FaultError(f"not a line: {line[:100]!r}")


TRIALS: dict[str, Callable[[Dice], str]] = {
    "introductions": introduction_trial,
    "ledgers": round_trial(("ledger", "ledger", "ledger", "digest")),
    "meters": round_trial((*(f"meter.{name}" for name in METER), "seconds")),
    "evaluations": evaluation_trial,
}


if __name__ == "__main__":
    run_from_command_line(main, 1000)
