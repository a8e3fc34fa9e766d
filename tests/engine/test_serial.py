"""The serial engine: who is asked, what is counted, what is remembered, what is lost."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedalloy.base import tree
from fedalloy.check.method import small_settings
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method, State, action, reply, run
from fedalloy.federation.participation import Participation
from fedalloy.methods import QFFL, Centralised, FedAvg, FedProx, Local
from fedalloy.train.fit import predict


@dataclass(frozen=True, kw_only=True)
class Echo(Method):
    """Answers with what it was sent and remembers how often it was asked."""

    name, label, card = "echo", "Echo", FedAvg.card

    @action
    def echo(self, me, msg):
        times = me.memory.get("times", 0) + 1
        return reply(**msg.body, times=times, n=me.n, keep={"times": times})

    @action
    def forget_nothing(self, me, msg):
        return reply(times=me.memory.get("times", 0))

    @action
    def mute(self, me, msg):
        return reply()

    @action
    def wrong(self, me, msg):
        return {"n": 1}

    def helper(self, me, msg):
        return reply()


@pytest.fixture
def setting():
    return replace(small_settings()[0], participation=Participation())


@pytest.fixture
def engine(setting):
    return Serial(setting)


def opened(engine, round=1):
    return engine.open(Echo(), round)


# --- asking -----------------------------------------------------------------------------------------------------------


def test_replies_come_in_ascending_id_and_each_client_is_asked_once(engine):
    replies = opened(engine).ask("echo", [4, 0, 2, 4], word="hi")
    assert [r.client for r in replies] == [0, 2, 4]
    assert [r["n"] for r in replies] == [9, 12, 20]
    assert {r["word"] for r in replies} == {"hi"}
    assert {r["times"] for r in replies} == {1}
    assert {r.action for r in replies} == {"echo"}


def test_replies_are_sorted_whatever_the_order_of_arrival(setting):
    class Late(Serial):
        def carry(self, method, round, messages):
            return reversed(list(super().carry(method, round, messages)))

    assert [r.client for r in opened(Late(setting)).ask("echo", range(6))] == [0, 1, 2, 3, 4, 5]


def test_a_mapping_gives_each_client_its_own_body_above_the_common_one(engine):
    replies = opened(engine).ask("echo", {3: {"word": "three"}, 1: {"extra": 1}}, word="all")
    assert [(r.client, r["word"], "extra" in r) for r in replies] == [(1, "all", True), (3, "three", False)]


def test_nobody_asked_is_nobody_answering(engine):
    fed = opened(engine)
    assert fed.ask("echo", []) == fed.ask("echo", {}) == []
    assert fed.active == set()
    assert fed.ledger.down.total() == fed.ledger.up.total() == 0


@pytest.mark.parametrize("client", [6, -1])
def test_an_unknown_client_is_refused(engine, client):
    with pytest.raises(UsageError, match=f"^echo asks client {client}, "):
        opened(engine).ask("echo", [0, client])
    assert engine.memories == {}


@pytest.mark.parametrize("action", ["ecco", "helper", "round", "__class__"])
def test_only_a_marked_action_can_be_asked_for(engine, action):
    with pytest.raises(UsageError, match=f"^echo has no action '{action}'; mark it with @action$"):
        opened(engine).ask(action, [0])


def test_an_action_must_return_a_reply(engine):
    with pytest.raises(UsageError, match=r"^echo\.wrong returned dict; return reply\(\.\.\.\)"):
        opened(engine).ask("wrong", [0])


def test_what_goes_wrong_in_an_action_has_a_note_of_whose_it_was(setting):
    fed = Serial(setting).open(FedAvg(), 1)
    with pytest.raises(KeyError) as caught:
        fed.ask("train", [1], nothing=1)
    assert caught.value.__notes__ == ["client 1, action 'train'"]


def test_what_cannot_travel_is_refused_before_anything_is_sent(engine):
    fed = opened(engine)
    with pytest.raises(UsageError, match=r"message 'echo'/word: .*list"):
        fed.ask("echo", [2], word=["hi"])
    assert fed.ledger.down.total() == 0


# --- memories ---------------------------------------------------------------------------------------------------------


def test_a_client_remembers_what_it_keeps_and_nothing_else_is_forgotten(engine):
    opened(engine, 1).ask("echo", [0, 3])
    opened(engine, 2).ask("echo", [3])
    assert engine.memories == {0: {"times": 1}, 3: {"times": 2}}
    assert [r["times"] for r in opened(engine, 3).ask("forget_nothing", range(6))] == [1, 0, 0, 2, 0, 0]
    assert engine.memories == {0: {"times": 1}, 3: {"times": 2}}


def test_two_questions_in_one_round_see_the_memory_in_between(engine):
    fed = opened(engine)
    fed.ask("echo", [5])
    assert [r["times"] for r in fed.ask("echo", [5])] == [2]


def test_memories_of_a_checkpoint_are_gone_on_from_and_left_alone(setting):
    saved = {2: {"times": 7}}
    assert [r["times"] for r in opened(Serial(setting, saved)).ask("echo", [2])] == [8]
    assert saved == {2: {"times": 7}}


# --- lost replies -----------------------------------------------------------------------------------------------------


def test_a_lost_reply_keeps_the_memory_but_counts_no_upload(setting):
    lossy = replace(setting, participation=Participation(late_drop=0.5))
    engine = Serial(lossy)
    fed = opened(engine)
    replies = fed.ask("echo", range(6), word="hi")
    heard = {r.client for r in replies}
    assert 0 < len(heard) < 6
    assert fed.lost == {k for k in range(6) if lossy.participation.lost(client=k, round=1, seed=lossy.seed)}
    assert heard == set(range(6)) - fed.lost
    assert fed.active == set(range(6))
    assert engine.memories == {k: {"times": 1} for k in range(6)}
    assert fed.ledger.down.total() == 6 * len(tree.encode({"word": "hi"}))
    assert fed.ledger.up.total() == sum(len(tree.encode(r.body)) for r in replies)


def test_a_lost_clients_work_still_costs(setting):
    full = opened(Serial(setting)), opened(Serial(replace(setting, participation=Participation(late_drop=0.5))))
    steps = []
    for fed in full:
        fed.method = FedAvg()
        fed.ask("train", range(6), model=FedAvg().init(fed)["model"])
        steps.append(fed.ledger.clients.steps)
    assert steps[0] == steps[1] == sum(setting.steps(k) for k in setting.ids)


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_bytes_by_kind(engine):
    fed = opened(engine)
    fed.ask("echo", [0, 1], model={"w": torch.zeros(10)})
    assert (fed.ledger.down["weights"], fed.ledger.down["scalars"]) == (80, 0)
    assert (fed.ledger.up["weights"], fed.ledger.up["scalars"]) == (80, 32)  # times and n, 8 bytes each
    sent = {"model": {"w": torch.zeros(10)}}
    assert fed.ledger.down["framing"] == 2 * (len(tree.encode(sent)) - 40)


def test_an_empty_body_is_not_sent(engine):
    fed = opened(engine)
    fed.ask("mute", range(6))
    assert fed.ledger.down.total() == fed.ledger.up.total() == 0


def test_the_server_and_the_clients_have_a_meter_each(engine, setting):
    fed = opened(engine)
    predict(fed.build(), setting.sites[0].train, batch=4)  # 9 samples: 3 batches
    assert (fed.ledger.server.forward, fed.ledger.clients.forward) == (3, 0)
    fed.method = FedAvg()
    fed.ask("train", [0], model=FedAvg().init(fed)["model"])
    assert (fed.ledger.server.forward, fed.ledger.clients.forward) == (3, setting.steps(0))
    passes = fed.ledger.passes()
    assert (passes["server"]["forward"], passes["clients"]["forward"]) == (3, setting.steps(0))


@pytest.mark.parametrize("method", [FedAvg(), FedProx(mu=0.1), QFFL(q=1.0), Local()], ids=lambda m: m.name)
@pytest.mark.parametrize("which", [0, 1])
def test_one_forward_and_one_backward_pass_a_local_step(method, which):
    """FedKF's Table IX."""
    setting = small_settings()[which]
    seen = []
    run(method, Serial(setting), 2, watch=lambda _, fed: seen.append(fed.ledger))
    for t, ledger in enumerate(seen, start=1):
        steps = sum(setting.steps(k) for k in setting.active(t))
        assert ledger.passes()["clients"] == {
            "steps": steps,
            "forward": steps,
            "backward": steps,
            "generator_forward": 0,
            "generator_backward": 0,
        }
        assert ledger.server.forward == 0


def test_pooled_data_is_uploaded_once_and_trained_on_by_the_server(setting):
    seen = []
    run(Centralised(), Serial(setting), 2, watch=lambda _, fed: seen.append(fed.ledger))
    assert [dict(ledger.up) for ledger in seen] == [{"data": 92 * (64 * 4 + 8)}, {}]
    assert [ledger.clients.steps for ledger in seen] == [0, 0]
    assert seen[0].server.steps == seen[0].server.backward == sum(setting.steps(k) for k in setting.ids)


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_rounds_count_from_one_and_a_watcher_may_stop(setting):
    rounds = []

    def watch(state, fed):
        rounds.append((state.round, fed.round))
        return state.round == 2

    assert run(Local(), Serial(setting), 5, watch=watch).round == 2
    assert rounds == [(1, 1), (2, 2)]
    assert run(Local(), Serial(setting), 3, State(3, {})).round == 3


def test_streams_are_the_servers_and_the_rounds_own(engine):
    def draw(round, purpose):
        return torch.rand(3, generator=opened(engine, round).rng(purpose)).tolist()

    assert draw(1, "noise") == draw(1, "noise")
    assert draw(1, "noise") != draw(2, "noise")
    assert draw(1, "noise") != draw(1, "other")


def test_dropout_on_the_server_is_addressed_too():
    setting = small_settings()[1]
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        ends.append(tree.digest(run(Centralised(), Serial(setting), 2).body))
    assert ends[0] == ends[1]
