"""Whatever one client does costs it the round and is one line; nobody else notices, and the run goes on."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, RecordDict
from hostile import changed

from fedalloy.base import tree
from fedalloy.engine.base import REFERENCE
from fedalloy.engine.flower import carrier, roster
from fedalloy.engine.flower.claims import introduction
from fedalloy.engine.flower.client import ACT, VIEWS
from fedalloy.engine.flower.codec import BODY, HEADER, to_records
from fedalloy.engine.flower.memory import Memory
from fedalloy.engine.flower.roster import introduce, introductions
from fedalloy.engine.serial import Serial
from fedalloy.errors import DataError
from fedalloy.federation.core import run
from fedalloy.federation.engine import Failure
from fedalloy.federation.gate import Room
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.methods import FedAvg, KnFu, Local
from fedalloy.train.privacy import LEDGER, Privacy

BAD = 2  # the client that misbehaves


@pytest.fixture(scope="module")
def setting(plain):
    return replace(plain, participation=Participation(), quorum=Quorum(fraction=0.5))


class Without(Serial):
    """The serial engine without the answers of one client."""

    def carry(self, method, round, messages):
        for answer in super().carry(method, round, messages):
            yield Failure(BAD, "away") if answer.client == BAD else answer


@pytest.fixture(scope="module")
def without(setting):
    """What FedAvg comes to in two rounds without that client."""
    return run(FedAvg(), Without(setting), 2).body


def kept_but(change):
    """A fault: the bad client's answers to `train.act` become what `change` makes of header and tree."""

    def fault(client, answer):
        if client != BAD or answer.metadata.message_type != "train.act":
            return answer
        return changed(answer, change)

    return fault


def garbage(header, body):
    return RecordDict({HEADER: ConfigRecord({"n": 1}), BODY: ArrayRecord({BODY: Array("uint8", (3,), "x", b"abc")})})


FAULTS = {
    "its app raises": (lambda h, b: Error(2, "<class 'ValueError'>:\n boom"), "its app failed: <class 'ValueError'>"),
    "its node is gone": (lambda h, b: Error(5, ""), "its node is not connected"),
    "its process dies": (lambda h, b: Error(8, ""), "its process died"),
    "its message expires": (lambda h, b: Error(3, ""), "its message expired"),
    "garbage": (garbage, "3 bytes of safetensors"),
    "nothing": (lambda h, b: RecordDict(), "not those of a fedalloy message"),
    "an empty answer": (lambda h, b: (h, {}), "it lacks 'model'"),
    "no header": (lambda h, b: ({}, b), "the header of its answer is invalid"),
    "text for a number": (lambda h, b: ({**h, "seconds": "soon"}, b), "the header of its answer is invalid"),
    "endless seconds": (lambda h, b: ({**h, "seconds": float("inf")}, b), "the header of its answer is invalid"),
    "a path for a digest": (lambda h, b: ({**h, "digest": "../../x"}, b), "the header of its answer is invalid"),
    "a forged ledger": (
        lambda h, b: ({**h, "digest": "0" * 64, "ledger": '{"1": {"0.5": -3}}'}, b),
        "the header of its answer is invalid",
    ),
    "a list for a ledger": (lambda h, b: ({**h, "digest": "0" * 64, "ledger": "[1, 2]"}, b), "ledger"),
    "a list in a ledger": (lambda h, b: ({**h, "digest": "0" * 64, "ledger": '{"1": [2]}'}, b), "ledger"),
    "a ledger of 4,000 digits": (
        lambda h, b: ({**h, "digest": "0" * 64, "ledger": f'{{"1": {{"0.5": {"9" * 4000}}}}}'}, b),
        "ledger",
    ),
    "a ledger of many rates": (
        lambda h, b: ({**h, "digest": "0" * 64, "ledger": json.dumps({"1": {f"0.{n}": 1 for n in range(1, 99)}})}, b),
        "ledger",
    ),
    "a digest without a ledger": (lambda h, b: ({**h, "digest": "0" * 64}, b), "ledger"),
    "endless work": (lambda h, b: ({**h, "meter.flops": 1e308}, b), "meter.flops"),
    "endless steps": (lambda h, b: ({**h, "meter.steps": 1e308}, b), "meter.steps"),
    "many steps": (lambda h, b: ({**h, "meter.steps": 1 << 52}, b), "meter.steps"),
    "half a step": (lambda h, b: ({**h, "meter.steps": 1.5}, b), "meter.steps"),
    "a third of a pass": (lambda h, b: ({**h, "meter.forward": 1 / 3}, b), "meter.forward"),
    "a true number of steps": (lambda h, b: ({**h, "meter.steps": True}, b), "meter.steps"),
    "a year of seconds": (lambda h, b: ({**h, "seconds": 3.2e7}, b), "seconds"),
    "NaN": (lambda h, b: (h, {**b, "model": {k: v * float("nan") for k, v in b["model"].items()}}), "is not finite"),
    "wrong names": (lambda h, b: (h, {**b, "model": {"w": torch.ones(1)}}), "wrong keys"),
    "an extra key": (lambda h, b: (h, {**b, "extra": 1}), "'extra'"),
    "a failed action": (lambda h, b: ({"error": "no\x1b[2Jpe"}, {}), "its action failed: no?[2Jpe"),
    "100,000 names": (lambda h, b: (h, {**b, **dict.fromkeys(map(str, range(100_000)), 0)}), "bytes; at most"),
    "names for numbers": (
        lambda h, b: (h, {"n": b["n"], **dict.fromkeys(map(str, range(400)), 0)}),
        "names and shapes",
    ),
    "a larger model": (
        lambda h, b: (h, {**b, "model": {k: v.expand(50, *v.shape) for k, v in b["model"].items()}}),
        "bytes; at most",
    ),
    "a long ledger": (
        lambda h, b: ({**h, "digest": "0" * 64, "ledger": "{" + " " * 100_000 + "}"}, b),
        "100,002 characters",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_answer_costs_its_client_the_round_and_nobody_else(name, setting, without, federation):
    change, reason = FAULTS[name]
    engine = federation(setting, kept_but(change))
    rounds = []
    state = run(FedAvg(), engine, 2, watch=lambda _, fed: rounds.append(fed) and None)
    assert tree.equal(state.body, without)
    for fed in rounds:
        assert [bad["client"] for bad in fed.quarantined] == [BAD]
        assert reason in fed.quarantined[0]["reason"]
        assert fed.quarantined[0]["reason"].isprintable()


def test_a_client_that_says_nothing_is_waited_for_until_the_deadline(setting, federation):
    hurried = replace(setting, quorum=Quorum(deadline=1.0))
    engine = federation(hurried, lambda client, answer: None if client == BAD else answer)
    engine.grid.fault = lambda client, answer: answer
    run(FedAvg(), engine, 0)
    engine.roster.look(setting.ids)
    engine.roster.look(setting.ids)
    engine.grid.fault = lambda client, answer: None if client == BAD else answer
    fed = engine.open(FedAvg(), 1)
    assert len(fed.ask("train", setting.ids, model=FedAvg().init(fed)["model"])) == 5
    assert fed.quarantined == [{"client": BAD, "action": "train", "reason": "it took longer than 1 s"}]


def test_who_is_waited_for_is_said_where_there_is_no_deadline(setting, federation, monkeypatch):
    said = []
    monkeypatch.setattr(carrier, "HURRY", 0.2)
    engine = federation(replace(setting, quorum=Quorum()), say=said.append)

    def late(client, answer):
        if client != BAD or answer.metadata.message_type != ACT:
            return answer
        threading.Timer(0.5, lambda: engine.grid.stray.append(answer)).start()
        return None

    engine.grid.fault = late
    fed = engine.open(FedAvg(), 1)
    assert len(fed.ask("train", setting.ids, model=FedAvg().init(fed)["model"])) == len(setting.ids)
    assert f"still waiting for client {BAD} " in said[0]


def test_an_action_that_raises_or_returns_nothing_is_a_sentence(setting, federation, monkeypatch):
    def bad_train(self, me, msg):
        if me.id == BAD:
            raise SystemExit("I leave")
        return None if me.id == 3 else original(self, me, msg)

    original = FedAvg.train
    bad_train.is_action = True
    monkeypatch.setattr(FedAvg, "train", bad_train)
    fed = federation(setting).open(FedAvg(), 1)
    fed.ask("train", setting.ids, model=FedAvg().init(fed)["model"])
    assert [(bad["client"], bad["reason"].removeprefix("its action failed: ")) for bad in fed.quarantined] == [
        (BAD, "RuntimeError: it raised SystemExit: I leave"),
        (3, "fedavg.train returned NoneType; return reply(...)"),
    ]


def test_a_node_that_comes_back_with_another_id_is_found_again(setting, federation):
    engine = federation(setting)
    middle = run(FedAvg(), engine, 1)
    engine.grid.rename(BAD)
    rounds = []
    state = run(FedAvg(), engine, 2, middle, watch=lambda _, fed: rounds.append(fed) and None)
    assert not rounds[0].quarantined
    assert tree.equal(state.body, run(FedAvg(), Serial(setting), 2).body)


def test_a_node_that_stays_away_is_absent(setting, federation):
    engine = federation(setting, patience=0.3)
    middle = run(FedAvg(), engine, 1)
    del engine.grid.nodes[next(node for node, k in engine.grid.nodes.items() if k == BAD)]
    rounds = []
    run(FedAvg(), engine, 2, middle, watch=lambda _, fed: rounds.append(fed) and None)
    assert [bad["reason"] for bad in rounds[0].quarantined] == ["it was not connected for 0.3 s"]


def _cut_once(kinds):
    """A fault: the connection of the bad client is lost at its first message of each kind."""
    left = set(kinds)

    def fault(client, answer):
        kind = answer.metadata.message_type
        if client != BAD or kind not in left:
            return answer
        left.remove(kind)
        return changed(answer, lambda h, b: Error(5, ""))

    return fault


def test_a_client_that_was_cut_off_and_is_back_in_time_is_asked_again(setting, federation, monkeypatch):
    monkeypatch.setattr(roster, "AGAIN", 0.1)
    said, rounds = [], []
    engine = federation(setting, _cut_once([ACT, VIEWS]), say=said.append)
    state = run(Local(), engine, 2, watch=lambda _, fed: rounds.append(fed) and None)
    record = engine.evaluate(Local(), state)
    assert not any(fed.quarantined for fed in rounds)
    serial = Serial(setting)
    expected = run(Local(), serial, 2)
    assert tree.equal(state.body, expected.body)
    assert record == serial.evaluate(Local(), expected)
    assert [line for line in said if f"client {BAD} " in line]


def test_a_client_that_was_cut_off_is_not_asked_again_if_it_would_spend_privacy(setting, federation, monkeypatch):
    monkeypatch.setattr(roster, "AGAIN", 0.1)
    private = replace(setting, privacy=Privacy())
    engine = federation(private, _cut_once([ACT]))
    rounds = []
    run(FedAvg(), engine, 1, watch=lambda _, fed: rounds.append(fed) and None)
    assert [bad["client"] for bad in rounds[0].quarantined] == [BAD]
    asked = [m for m in engine.grid.sent if m.metadata.message_type == ACT]
    assert len(asked) == len(setting.ids)


def test_an_answer_to_another_message_is_ignored(setting, federation):
    said = []
    engine = federation(setting, say=said.append)
    middle = run(FedAvg(), engine, 1)
    engine.grid.stray = [m for m in engine.grid.received if m.metadata.message_type == "train.act"][:1]
    state = run(FedAvg(), engine, 2, middle)
    assert [line.partition(":")[0] for line in said] == ["round 2"]
    assert tree.equal(state.body, run(FedAvg(), Serial(setting), 2).body)


def test_two_nodes_that_claim_one_client_and_one_that_is_nobody(setting, federation, plain, tmp_path):
    said = []

    def impostor(context, asked, _prepared):
        k = context.node_config["partition-id"]
        return {4: 3, 5: 0}.get(k, k), setting, tmp_path

    engine = federation(setting, setting_of=impostor, say=said.append, patience=0.3)
    rounds = []
    run(FedAvg(), engine, 1, watch=lambda _, fed: rounds.append(fed) and None)
    assert sorted(bad["client"] for bad in rounds[0].quarantined) == [4, 5]
    assert len(said) == 2
    assert all(re.search(r"second node .*client \d", line) for line in said)


def test_a_client_with_other_data_than_it_began_with_is_absent(setting, federation, tmp_path):
    said = []

    def changed_data(context, asked, _prepared):
        k = context.node_config["partition-id"]
        sites = list(setting.sites)
        sites[BAD] = sites[3]
        return k, replace(setting, sites=sites), tmp_path

    engine = federation(setting, setting_of=changed_data, say=said.append, patience=0.2)
    rounds = []
    run(FedAvg(), engine, 1, watch=lambda _, fed: rounds.append(fed) and None)
    assert [bad["client"] for bad in rounds[0].quarantined] == [BAD]
    (line,) = said
    assert re.search(rf"client {BAD} .*\b17 training samples.*\b12\b", line)
    assert "began with 12" in line


@pytest.mark.parametrize(
    "change", [{"shape": "[2, 8, 8]"}, {"train": 99}, {"classes": 9}], ids=["shape", "size", "classes"]
)
def test_a_client_that_is_there_but_does_not_match_is_not_waited_for(change, setting, federation):
    def fault(client, answer):
        meant = client == BAD and answer.metadata.message_type == "query.introduce"
        return changed(answer, lambda h, b: ({**h, **change}, b)) if meant else answer

    engine = federation(setting, fault, patience=20.0)
    begin, rounds = time.monotonic(), []
    state = run(FedAvg(), engine, 2, watch=lambda _, fed: rounds.append(fed) and None)
    engine.evaluate(FedAvg(), state)
    assert time.monotonic() - begin < 10
    assert [[bad["client"] for bad in fed.quarantined] for fed in rounds] == [[BAD], [BAD]]


def test_who_is_missing_is_said(setting, federation):
    from fedalloy.config.experiment import experiment

    said = []
    engine = federation(setting)
    del engine.grid.nodes[next(node for node, k in engine.grid.nodes.items() if k == BAD)]
    found = introductions(engine.grid, experiment({}), 6, 0.3, said.append, question=introduce()).known
    assert sorted(found) == [0, 1, 3, 4, 5]
    assert (found[3].train, found[3].test, found[3].shape, found[3].classes) == (17, 4, (1, 8, 8), 4)
    assert len(said) == 1
    assert re.search(r"0\.3 s\D+ 2 of 6 ", said[0])


@pytest.mark.parametrize("shape", ["[" * 60_000, "7", "[0]", "[1.5]"], ids=["deep", "no list", "zero", "no number"])
def test_an_introduction_with_a_strange_shape_is_refused(shape):
    header = {"client": 0, "train": 5, "test": 0, "validation": 0, "classes": 2, "shape": shape}
    with pytest.raises(DataError, match="shape"):
        introduction(header, node=1)


def test_who_cannot_introduce_itself_is_named(setting, federation, tmp_path):
    from fedalloy.config.experiment import experiment
    from fedalloy.errors import DataError

    def setting_of(context, asked, _prepared):
        if context.node_config["partition-id"] == BAD:
            raise DataError("there is no data at 'x'")
        return context.node_config["partition-id"], setting, tmp_path / "memories"

    said = []
    engine = federation(setting, setting_of=setting_of)
    introductions(engine.grid, experiment({}), 6, 0.3, said.append, question=introduce())
    assert re.match(f"client {BAD} .*: its action failed: there is no data at 'x'$", said[0])


def test_a_lost_memory_begins_anew_and_the_record_says_so(setting, federation, tmp_path):
    said = []
    engine = federation(setting, say=said.append)
    state = run(Local(), engine, 1)
    for _, _, path in Memory(tmp_path / "memories" / str(BAD)).generations():
        path.unlink()
    rounds = []
    run(Local(), engine, 2, state, watch=lambda _, fed: rounds.append(fed) and None)
    assert [line.startswith(f"round 2: client {BAD} has lost its memory") for line in said] == [True]
    assert rounds[0].forgot == {BAD}
    assert not rounds[0].quarantined
    anew = Serial(setting, {})
    fed = anew.open(Local(), 2)
    fed.ask("train", [BAD])
    found = Memory(tmp_path / "memories" / str(BAD)).read(engine.memories[BAD][REFERENCE])
    assert tree.equal(found, anew.memories[BAD])  # as a client that never took part


def test_a_memory_that_is_lost_is_evaluated_as_an_empty_one(setting, federation, tmp_path):
    said = []
    engine = federation(setting, say=said.append)
    state = run(Local(), engine, 1)
    for _, _, path in Memory(tmp_path / "memories" / str(BAD)).generations():
        path.write_bytes(b"torn")
    views = engine.evaluate(Local(), state)
    assert [line.startswith(f"round 1: client {BAD} has lost its memory") for line in said] == [True]
    assert views["personal"]["clients"]["size"] == [4] * 6


def test_a_client_that_cannot_be_evaluated_has_no_figures_and_spoils_none(setting, federation):
    lies = {
        0: lambda h, b: Error(2, "boom"),
        1: lambda h, b: (h, {**b, "models": {"aca": {**b["models"]["aca"], "confusion": torch.full((4, 4), 9)}}}),
        3: lambda h, b: (h, {**b, "stages": {"mine": b["models"]["aca"]}, "order": "mine"}),
        4: lambda h, b: (h, {**b, "personal": {"loss": 0.5}}),
    }

    def fault(client, answer):
        views = answer.metadata.message_type == "evaluate.views"
        return changed(answer, lies[client]) if views and client in lies else answer

    said = []
    engine = federation(setting, fault, say=said.append)
    state = run(FedAvg(), engine, 1)
    views = engine.evaluate(FedAvg(), state)
    honest = Serial(setting).evaluate(FedAvg(), state)
    assert list(views) == list(honest)  # nobody invents a view
    assert views["aca"]["clients"]["size"] == [0, 0, 4, 4, 0, 4]
    assert views["aca"]["clients"]["accuracy"][2:4] == honest["aca"]["clients"]["accuracy"][2:4]
    assert [line.split(": ")[1] for line in said] == [f"client {k} was not evaluated" for k in (0, 1, 4)]


EVALUATIONS = {
    "a negative loss": lambda aca: {"models": {"aca": {**aca, "loss": -1.0}}},
    "a name of 10,000 letters": lambda aca: {"stages": {"x" * 10_000: aca}, "order": "x" * 10_000},
    "a name that moves the cursor": lambda aca: {"stages": {"\x1b[2J": aca}, "order": "\x1b[2J"},
    "a stage without a name": lambda aca: {"stages": {"": aca}},
    "many stages": lambda aca: {"stages": {str(n): aca for n in range(99)}, "order": "\n".join(map(str, range(99)))},
    "an order of nothing": lambda aca: {"order": "\n" * 1_000_000},
    "an order of others": lambda aca: {"stages": {"mine": aca}, "order": "yours"},
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_that_cannot_be_is_left_out(name, setting, federation):
    def lie(header, body):
        return header, {**body, **EVALUATIONS[name](body["models"]["aca"])}

    def fault(client, answer):
        return changed(answer, lie) if answer.metadata.message_type == "evaluate.views" and client == BAD else answer

    said = []
    engine = federation(setting, fault, say=said.append)
    views = engine.evaluate(FedAvg(), run(FedAvg(), engine, 0))
    assert views["aca"]["clients"]["size"] == [4, 4, 0, 4, 4, 4]
    (line,) = said
    assert len(line) < 400
    assert line.isprintable()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"client": 4}, "this is client 1, but the message is for client 4"),
        ({"action": "personal"}, "has no action 'personal'"),
        ({"experiment": '{"method": {"name": "os.system"}}'}, "os.system"),
        ({"experiment": '{"method": {"name": "fedavg", "evil": 1}}'}, "fedavg has no key 'evil'"),
        ({"experiment": "not json"}, "JSONDecodeError"),
    ],
)
def test_a_client_refuses_what_a_server_may_not_ask(change, reason, setting, federation):
    engine = federation(setting)
    named = engine._header(engine._told(FedAvg()), 1, 1, "train")
    body = {"model": FedAvg().init(engine.open(FedAvg(), 0))["model"]}
    assert reason in str(sent(engine, "train.act", to_records(body, {**named, **change})))


def test_a_client_refuses_numbers_that_are_none(setting, federation):
    engine = federation(setting)
    fed = engine.open(FedAvg(), 1)
    model = FedAvg().init(fed)["model"]
    broken = {name: w * float("nan") for name, w in model.items()}
    fed.ask("train", {0: {"model": model}, 1: {"model": broken}, 2: {"model": model}})
    assert [bad["client"] for bad in fed.quarantined] == [1]
    assert "message is refused: model" in fed.quarantined[0]["reason"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: {"model": model, "extra": 1}, "'extra'"),
        (lambda model: {"model": {k: w.int() for k, w in model.items()}}, "is int32, not float32"),
        (lambda model: {"model": {k: w.double() for k, w in model.items()}}, "bytes; at most"),
        (lambda model: {"model": {k: w[:1] for k, w in model.items()}}, "has the shape"),
        (lambda model: {"model": {}}, "model has the wrong keys"),
        (lambda model: {"model": {k: w.expand(50, *w.shape) for k, w in model.items()}}, "bytes; at most"),
    ],
)
def test_a_client_refuses_what_its_method_is_never_sent(change, reason, setting, federation):
    fed = federation(setting).open(FedAvg(), 1)
    model = FedAvg().init(fed)["model"]
    fed.ask("train", [0, 2], model=model)
    assert not fed.quarantined
    engine = federation(setting)
    header = engine._header(engine._told(FedAvg()), 1, 1, "train")
    found = sent(engine, "train.act", to_records(change(model), header))
    assert "message is refused: " in str(found)
    assert reason in str(found)


def test_a_client_refuses_answers_that_are_no_probabilities(setting, federation):
    method = KnFu(samples=8)
    engine = federation(setting)
    header = engine._header(engine._told(method), 1, 1, "tune")
    found = sent(engine, "train.act", to_records({"soft": torch.ones(8, 4)}, header))
    assert "message is refused: soft has rows" in str(found)
    found = sent(engine, "train.act", to_records({"soft": torch.ones(9, 4) / 4}, header))
    assert re.search(r"message is refused: soft .*\(9, 4\).*\(8, 4\)", str(found))


@pytest.mark.parametrize("kind", ["evaluate.views", "query.introduce"])
def test_a_client_refuses_more_than_anybody_would_send(kind, setting, federation):
    engine = federation(setting)
    header = engine._address(engine._told(FedAvg()), 1, 1)
    found = sent(engine, kind, to_records({"0": {"w": torch.zeros(5_000_000)}}, header))
    assert "bytes; at most" in str(found)


def sent(engine, kind, letter):
    """What client 1 answers to a letter."""
    ((_, found),) = engine._exchange(kind, {1: letter}, 1, lambda _: Room(1 << 20, 1 << 20))
    return found


# --- privacy --------------------------------------------------------------------------------------------------------


def test_a_server_cannot_reset_what_a_client_has_spent(setting, federation):
    pytest.importorskip("opacus")
    private = replace(setting, privacy=Privacy())
    engine = federation(private)
    serial = Serial(private)
    state, expected = run(FedAvg(), engine, 2), run(FedAvg(), serial, 2)
    assert tree.equal(state.body, expected.body)
    ledgers = {k: m[LEDGER] for k, m in serial.memories.items()}
    assert {k: m[LEDGER] for k, m in engine.memories.items()} == ledgers
    engine.memories = {}
    run(FedAvg(), engine, 3, state)
    (rates,) = engine.memories[0][LEDGER].values()
    (before,) = ledgers[0].values()
    assert next(iter(rates.values())) == next(iter(before.values())) * 3 // 2


def test_what_an_action_spent_before_it_failed_is_spent(setting, federation, tmp_path, monkeypatch):
    pytest.importorskip("opacus")

    def fails(self, me, msg):
        me.account.charge(0.5, 7)
        raise RuntimeError("died")

    fails.is_action = True
    monkeypatch.setattr(FedAvg, "train", fails)
    fed = federation(replace(setting, privacy=Privacy(), quorum=Quorum(fraction=0))).open(FedAvg(), 1)
    fed.ask("train", [BAD], model=FedAvg().init(fed)["model"])
    assert Memory(tmp_path / "memories" / str(BAD)).spent() == {"1.0": {"0.5": 7}}
