"""Runs whose clients could not train what they were sent go back to the newest state that clients could."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedalloy import resume, simulate
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base import tree
from fedalloy.check.probe import small_settings
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import experiment
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.federation import gate
from fedalloy.federation.core import Client, Federation, Generation, Message, Method, Reply, State, action, reply, run
from fedalloy.federation.engine import Answer, Failed, Failure
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum, QuorumError
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedAvg
from fedalloy.report.facts import skipped
from fedalloy.run import opened, runner
from fedalloy.storage.results import Run
from fedalloy.storage.store import Store
from fedalloy.train.privacy import LEDGER

sys.path.append(str(Path(__file__).parents[1] / "chaos"))
from disks import Disk, disturbed, points

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [4]},
    "partition": {"name": "iid", "clients": 3},
    "training": {"lr": 0.1, "batch": 600},
    "engine": "serial",
    "rounds": 5,
}
FAILING = {3}


class Failing(FedAvg):
    """In some rounds nobody can train what it was sent; clients remember in which round they last could."""

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        if me.round in FAILING:
            return reply(model={name: t * torch.nan for name, t in msg["model"].items()}, n=me.n, keep={"last": -1})
        return Reply(super().train(me, msg).body, {"last": me.round})


def setting(**changes: Any) -> Setting:
    return replace(small_settings()[0], participation=Participation(), **changes)


def watched(method: Method, engine: Serial, rounds: int) -> tuple[list[State], list[dict[int, Any]], list[Round]]:
    states: list[State] = []
    memories: list[dict[int, Any]] = []
    seen: list[Round] = []

    def watch(state: State, fed: Federation) -> None:
        assert isinstance(fed, Round)
        states.append(state)
        memories.append(dict(engine.memories))
        seen.append(fed)

    run(method, engine, rounds, watch=watch)
    return states, memories, seen


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_a_run_goes_back_to_the_newest_state_that_clients_could_train(fraction: float) -> None:
    states, memories, seen = watched(Failing(), Serial(setting(quorum=Quorum(fraction=fraction))), 5)
    assert [fed.back_to for fed in seen] == [None, None, 1, None, None]
    assert [state.round for state in states] == [1, 2, 3, 4, 5]
    assert tree.equal(states[2].body, states[0].body)
    assert not tree.equal(states[1].body, states[0].body)
    assert not tree.equal(states[3].body, states[2].body)
    assert [memory[0]["last"] for memory in memories] == [1, 2, 1, 4, 5]


class Poisoning(Serial):
    """Client 4 sends the largest numbers there are in round 2, in which everything passes the gate."""

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        for answer in super().carry(method, round, messages):
            if round == 2 and answer.client == 4:
                model = {name: torch.full_like(t, 3e38) for name, t in answer.reply.body["model"].items()}
                answer = replace(answer, reply=Reply({**answer.reply.body, "model": model}))
            yield answer


def test_poison_that_no_gate_knows_costs_two_rounds_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "OUTLYING", 1e300)
    open_wide = setting(quorum=Quorum())
    method = FedAvg(aggregation=Aggregation(max_distance=1e300))
    states, _, seen = watched(method, Poisoning(open_wide), 5)
    assert [fed.back_to for fed in seen] == [None, None, 1, None, None]
    assert tree.equal(states[2].body, states[0].body)
    assert all(t.abs().max() < 100 for t in states[-1]["model"].values())


class Outvoted(Failing):
    """One client answers soundly whatever it was sent, as one would that made the others fail."""

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        return FedAvg.train(self, me, msg) if me.id == 4 else super().train(me, msg)


def test_one_client_cannot_keep_the_others_at_a_state_that_they_cannot_train() -> None:
    _, _, seen = watched(Outvoted(), Serial(setting(quorum=Quorum())), 4)
    assert [fed.back_to for fed in seen] == [None, None, 1, None]


def test_one_client_that_fails_alone_sends_nobody_back() -> None:
    class Alone(Failing):
        @action
        def train(self, me: Client, msg: Message) -> Reply:
            return FedAvg.train(self, me, msg) if me.id != 4 else super().train(me, msg)

    _, _, seen = watched(Alone(), Serial(setting(quorum=Quorum(fraction=1.0))), 4)
    assert [bool(fed.skipped) for fed in seen] == [False, False, True, False]
    assert [fed.back_to for fed in seen] == [None] * 4


class Absent(Serial):
    """From round 3 on nobody answers, for a reason that says nothing of the model, or for one that does."""

    failure: type[Failure] = Failure

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Any:
        answers = super().carry(method, round, messages)
        return answers if round < 3 else [self.failure(m.client, "why not") for m in messages]


def test_clients_that_are_not_there_send_nobody_back() -> None:
    states, _, seen = watched(FedAvg(), Absent(setting(quorum=Quorum())), 4)
    assert [fed.back_to for fed in seen] == [None] * 4
    assert tree.equal(states[3].body, states[1].body)


def test_clients_whose_action_fails_send_the_run_back() -> None:
    class Raising(Absent):
        failure = Failed

    states, _, seen = watched(FedAvg(), Raising(setting(quorum=Quorum())), 4)
    assert [fed.back_to for fed in seen] == [None, None, 1, None]  # and no further
    assert tree.equal(states[3].body, states[0].body)


def test_rounds_without_clients_do_not_wear_out_the_state_to_go_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(Serial):
        def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Any:
            answers = super().carry(method, round, messages)
            return [Failure(m.client, "away") for m in messages] if 3 <= round <= 6 else answers

    monkeypatch.setitem(globals(), "FAILING", {7})
    states, _, seen = watched(Failing(), Away(setting(quorum=Quorum())), 8)
    assert [fed.back_to for fed in seen] == [None] * 6 + [1, None]
    assert tree.equal(states[6].body, states[0].body)


def test_what_was_spent_of_privacy_stays_spent() -> None:
    before = {0: {"w": torch.zeros(1), LEDGER: {"1.0": {"0.1": 3}}}}
    engine = Serial(setting(), {0: {"w": torch.ones(1), LEDGER: {"1.0": {"0.1": 9}}}})
    engine.trusted = Generation(State(0, {}), before)

    class Nobody(FedAvg):
        def round(self, s: State, fed: Federation) -> State:
            fed.ask("train", [0, 1, 2], model=s["model"])
            return s.next()

    bad = State(
        1, {"model": {name: t * torch.nan for name, t in FedAvg().init(engine.open(FedAvg(), 0))["model"].items()}}
    )
    run(Nobody(), engine, 2, bad)
    assert engine.memories[0]["w"] == 0
    assert engine.memories[0][LEDGER] == {"1.0": {"0.1": 9}}


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runner, opened):
        monkeypatch.setattr(module, "make_method", lambda _: Failing())
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(scope="module")
def built() -> Built:
    return build(experiment(TINY))


def test_it_is_recorded_and_said_and_reported(built: Built) -> None:
    said: list[str] = []
    found = simulate(TINY, built=built, say=said.append)
    assert [record.get("back_to") for record in found.rounds] == [None, None, 1, None, None]
    assert found.rounds[2]["views"] == found.rounds[0]["views"]
    assert any("round 3" in line and "back to" in line and "round 1" in line for line in said)
    assert any("back to" in line and "round 1" in line for line in skipped([found]))


def test_the_run_does_not_give_up_in_the_round_that_goes_back(built: Built) -> None:
    found = simulate({**TINY, "quorum": {"skips": 1}}, built=built)
    assert [bool(record.get("skipped")) for record in found.rounds] == [False, False, True, False, False]


def test_a_run_goes_back_once_and_then_ends(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FAILING", {3, 4, 5, 6, 7, 8})
    records: list[Mapping[str, Any]] = []
    with pytest.raises(QuorumError):
        simulate({**TINY, "rounds": 9, "quorum": {"skips": 3}}, built=built, watch=records.append)
    assert [record.get("back_to") for record in records] == [None, None, 1, None, None, None]


def ended(run: Run) -> tuple[list[dict[str, Any]], str]:
    assert run.folder is not None
    saved = Store(run.folder).restore()
    assert saved is not None
    body = {"round": saved[0].round, "state": saved[0].body, "memories": {str(k): m for k, m in saved[1].items()}}
    return [{k: v for k, v in r.items() if k not in ("seconds", "memory")} for r in run.rounds], tree.digest(body)


@pytest.mark.parametrize("memory", [None, 0])
def test_a_run_that_goes_back_can_be_resumed_after_any_round(tmp_path: Path, built: Built, memory: int | None) -> None:
    exp = {**TINY, **({} if memory is None else {"memory": memory})}
    wanted = ended(simulate(exp, tmp_path / "whole", built=built))
    for last in range(1, 5):
        simulate({**exp, "rounds": last}, tmp_path / f"{last}", built=built)
        assert ended(resume(tmp_path / f"{last}", rounds=5, built=built)) == wanted


@pytest.mark.parametrize("fault", ["killed", "torn"])
def test_a_run_that_goes_back_can_be_killed_at_any_call(tmp_path: Path, built: Built, fault: str) -> None:
    disk = Disk(tmp_path / "whole")
    whole, _ = disturbed(disk, lambda: simulate(TINY, tmp_path / "whole", built=built))
    assert whole is not None
    wanted = ended(whole)
    for at in points(disk.calls, fault):
        folder = tmp_path / f"{at}"
        disturbed(Disk(folder, at, fault), lambda folder=folder: simulate(TINY, folder, built=built))
        begun = (folder / "run.json").exists()
        again = resume(folder, built=built) if begun else simulate(TINY, folder, built=built)
        assert ended(again) == wanted
        shutil.rmtree(folder)


@pytest.mark.parametrize("damaged", [2, 3, 4])
def test_a_run_that_goes_back_survives_the_loss_of_its_newest_checkpoint(
    tmp_path: Path, built: Built, damaged: int
) -> None:
    """What the older one needs to go back is its own."""
    wanted = ended(simulate(TINY, tmp_path / "whole", built=built))
    simulate({**TINY, "rounds": damaged}, tmp_path / "run", built=built)
    (tmp_path / "run" / "checkpoints" / f"{damaged:06}.safetensors").write_bytes(b"")
    assert ended(resume(tmp_path / "run", rounds=5, built=built)) == wanted
