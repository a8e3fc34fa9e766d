"""Rounds that too few clients answered, and runs that give up."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedalloy import resume, simulate
from fedalloy.base import tree
from fedalloy.check.method import small_settings
from fedalloy.cli.main import main
from fedalloy.engine.base import Round
from fedalloy.engine.pool import DIED, Pool
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Client, Federation, Message, Method, Reply, State, action, methods, quick, run
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum, QuorumError
from fedalloy.methods import FedAvg, Local
from fedalloy.run import opened, runner
from fedalloy.storage.store import Store

SILENT = Participation(late_drop=0.999999)
TINY: dict[str, Any] = {"data": "tiny", "model": "mlp", "partition": {"clients": 4, "alpha": 1.0}}


@pytest.mark.parametrize(
    ("fraction", "asked", "needed"), [(0.5, 9, 5), (0.5, 8, 4), (0.0, 9, 0), (1.0, 3, 3), (0.7, 10, 7)]
)
def test_how_many_must_answer(fraction: float, asked: int, needed: int) -> None:
    assert Quorum(fraction=fraction).needed(asked) == needed


def test_a_round_below_quorum_leaves_everything_as_it_was() -> None:
    setting = replace(small_settings()[0], participation=SILENT, quorum=Quorum())
    seen: list[Round] = []
    engine = Serial(setting)
    start = run(FedAvg(), engine, 0)
    end = run(FedAvg(), engine, 3, start, watch=lambda _, fed: seen.append(fed))  # type: ignore[func-returns-value]
    assert end.round == 3
    assert tree.equal(end.body, start.body)
    assert [fed.skipped for fed in seen] == ["0 of 6 clients answered, but 3 are needed"] * 3


def test_clients_forget_a_round_that_did_not_count() -> None:
    setting = replace(small_settings()[0], participation=SILENT, quorum=Quorum())
    engine = Serial(setting)
    run(Local(), engine, 1, State(0, {}))
    assert engine.memories == {}  # a client whose reply is lost would remember, were it not for that


def test_a_quorum_that_is_met_changes_nothing() -> None:
    setting = replace(small_settings()[0], participation=Participation(late_drop=0.3))
    with_quorum = run(FedAvg(), Serial(replace(setting, quorum=Quorum(fraction=0.1))), 3)
    assert tree.equal(with_quorum.body, run(FedAvg(), Serial(setting), 3).body)


def test_a_run_gives_up_after_several_rounds_and_can_be_resumed(tmp_path: Path, capsys: Any) -> None:
    exp = {**TINY, "rounds": 9, "participation": {"late_drop": 0.999999}, "quorum": {"skips": 3}}
    with pytest.raises(QuorumError, match=r"\b3 rounds.*\b0 of 4 clients.*\b2 are needed"):
        simulate(exp, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [record["skipped"] for record in records] == ["0 of 4 clients answered, but 2 are needed"] * 3
    assert records[0]["views"]["aca"]["amp"] == records[2]["views"]["aca"]["amp"]
    with pytest.raises(SystemExit) as left:
        main(["resume", str(tmp_path / "run")])
    assert left.value.code == 6
    assert "skipped" in capsys.readouterr().err


def test_a_run_none_of_whose_rounds_counted_does_not_end_well(tmp_path: Path, capsys: Any) -> None:
    """Its rounds are fewer than those after which a run gives up."""
    exp = {**TINY, "rounds": 2, "participation": {"late_drop": 0.999999}}
    sentence = r"no round counted: 2 rounds.* 0 of 4 clients.* 2 are needed"
    with pytest.raises(QuorumError, match=f"^{sentence}.*resume"):
        simulate(exp, tmp_path / "run")
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 2
    for _ in range(2):  # it is not done, however often it is looked at
        with pytest.raises(SystemExit) as left:
            main(["resume", str(tmp_path / "run")])
        assert left.value.code == 6
        assert re.match(f"fedalloy: {sentence}", capsys.readouterr().err)
    with pytest.raises(QuorumError, match=r"^no round counted: a round was skipped"):
        simulate({**exp, "rounds": 1})


def test_records_without_trouble_say_nothing_of_it() -> None:
    record = simulate({**TINY, "rounds": 1}).rounds[0]
    assert "skipped" not in record
    assert "quarantined" not in record


@pytest.mark.parametrize("wrong", [{"fraction": 1.5}, {"fraction": -0.1}, {"skips": 0}, {"deadline": 0.0}])
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"quorum.{next(iter(wrong))} = "):
        Quorum(**wrong)


class Slow(FedAvg):
    """Client 3 sleeps, as a site does whose machine hangs."""

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        if me.id == 3:
            time.sleep(60)
        return super().train(me, msg)


class Deadly(FedAvg):
    """Client 3 takes its worker with it."""

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        if me.id == 3:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(me, msg)


@pytest.mark.parametrize(
    ("method", "deadline", "reason"),
    [(Slow(), 5.0, "it took longer than 5 s"), (Deadly(), None, DIED)],
)
def test_the_pool_goes_on_without_a_client_that_hangs_or_kills(
    method: FedAvg, deadline: float | None, reason: str
) -> None:
    quorum = Quorum(fraction=0.0, deadline=deadline)
    setting = replace(small_settings()[0], participation=Participation(), quorum=quorum)
    seen: list[Round] = []
    with Pool(setting, workers=2) as pool:
        end = run(method, pool, 1, watch=lambda _, fed: seen.append(fed))  # type: ignore[func-returns-value]
    absent = {bad["client"] for bad in seen[0].quarantined}  # on a busy machine others may be late too
    assert 3 in absent
    assert {bad["reason"] for bad in seen[0].quarantined} == {reason}
    there = [k for k in setting.ids if k not in absent]
    if there:
        without = replace(setting, participation=Participation(policy="trace", trace=[there]))
        assert tree.equal(end.body, run(FedAvg(), Serial(without), 1).body)


# --- a server whose own numbers overflow ------------------------------------------------------------------------------

OVERFLOW = "is not finite, though every reply was; lower training.lr, or bound what a client can do by clip or combine"


class Diverging(FedAvg):
    """Every second round the server overflows, though what it was sent is finite."""

    def aggregate(self, s: State, replies: Sequence[Message], fed: Federation) -> Mapping[str, Any]:
        model = super().aggregate(s, replies, fed)
        return {name: t * 1e38 * 1e38 if fed.round % 2 == 0 else t for name, t in model.items()}


def watched(method: Method, engine: Serial | Pool, rounds: int) -> tuple[list[State], list[Round]]:
    states: list[State] = []
    seen: list[Round] = []

    def watch(state: State, fed: Federation) -> None:
        assert isinstance(fed, Round)
        states.append(state)
        seen.append(fed)

    run(method, engine, rounds, watch=watch)
    return states, seen


def test_a_round_after_which_the_server_is_not_finite_leaves_everything_as_it_was() -> None:
    setting = small_settings()[0]
    states, seen = watched(Diverging(), engine := Serial(setting), 3)
    first = min(states[0]["model"])
    assert [fed.skipped for fed in seen] == [None, f"the server's model/{first} {OVERFLOW}", None]
    assert tree.equal(states[1].body, states[0].body)
    assert not tree.equal(states[2].body, states[1].body)
    assert all(t.isfinite().all() for t in states[2]["model"].values())
    with Pool(setting, workers=2) as pool:
        others, rounds = watched(Diverging(), pool, 3)
    assert [tree.digest(s.body) for s in others] == [tree.digest(s.body) for s in states]
    assert [fed.skipped for fed in rounds] == [fed.skipped for fed in seen]
    assert engine.memories == pool.memories


def test_clients_forget_a_round_after_which_the_server_is_not_finite() -> None:
    class Overflowing(Local):
        def round(self, s: State, fed: Federation) -> State:
            return State(fed.round, {**super().round(s, fed).body, "worth": float("inf")})

    engine = Serial(small_settings()[0])
    assert run(Overflowing(), engine, 1).body == {}
    assert engine.memories == {}


def test_what_a_method_carries_on_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of a thousand models costs nothing in a round that replaces three."""
    from fedalloy.federation import core

    looked: list[int] = []
    real = core.finite
    monkeypatch.setattr(core, "finite", lambda leaf: looked.append(1) or real(leaf))
    old = {str(k): {"w": torch.ones(1)} for k in range(1000)}

    class Carrying(FedAvg):
        def round(self, s: State, fed: Federation) -> State:
            return s.next(cache={**s["cache"], "7": {"w": torch.zeros(1)}})

    end = run(Carrying(), Serial(small_settings()[0]), 1, State(0, {"cache": old}))
    assert end["cache"]["7"]["w"] == 0
    assert len(looked) == 1


@pytest.mark.parametrize("name", ["dafkd", "feddf", "fedftg", "fedgen", "kdia"])
def test_a_hostile_reply_of_huge_numbers_never_stays(name: str) -> None:
    """Finite numbers pass the gate; what they do to the server's own arithmetic does not stay."""

    class Hostile(Serial):
        def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Any:
            for answer in super().carry(method, round, messages):
                yield replace(answer, reply=huge(answer.reply)) if answer.client == 1 else answer

    def huge(given: Reply) -> Reply:
        return Reply(scaled(given.body), given.keep)

    def scaled(body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: scaled(v) if isinstance(v, Mapping) else torch.full_like(v, 3e38) if _floats(v) else v
            for key, v in body.items()
        }

    def _floats(value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.is_floating_point()

    setting = replace(small_settings()[0], participation=Participation())
    states, seen = watched(quick(methods[name]), Hostile(setting), 2)
    for state in states:
        for place, leaf in tree.leaves(state.body):
            assert not isinstance(leaf, torch.Tensor) or leaf.isfinite().all(), place
    assert any(fed.skipped or fed.quarantined for fed in seen)


def test_a_run_that_overflows_is_resumed_to_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class StopError(Exception):
        pass

    def stop(record: Mapping[str, Any]) -> None:
        if record["round"] == 2:
            raise StopError

    for module in (runner, opened):
        monkeypatch.setattr(module, "make_method", lambda _: Diverging())
    exp = {**TINY, "rounds": 4}
    whole = simulate(exp, tmp_path / "whole")
    with pytest.raises(StopError):
        simulate(exp, tmp_path / "run", watch=stop)
    again = resume(tmp_path / "run")
    assert [r.get("skipped") for r in whole.rounds] == [r.get("skipped") for r in again.rounds]
    assert [bool(r.get("skipped")) for r in whole.rounds] == [False, True, False, True]
    assert [r["views"] for r in whole.rounds] == [r["views"] for r in again.rounds]
    ends = [Store(tmp_path / name).restore() for name in ("whole", "run")]
    assert len({tree.digest(end[0].body) for end in ends if end is not None}) == 1


def test_a_run_that_keeps_overflowing_gives_up_with_advice(tmp_path: Path) -> None:
    class Worse(Diverging):
        def round(self, s: State, fed: Federation) -> State:
            return State(fed.round, {**super().round(s, fed).body, "worth": float("inf")})

    with pytest.raises(QuorumError) as caught:
        simulate({**TINY, "rounds": 4, "quorum": {"skips": 2}}, method=Worse())
    assert "2 rounds in a row were skipped: the server's " in str(caught.value)
    assert str(caught.value).endswith(f"{OVERFLOW}; the run can be resumed")


def test_a_run_of_clients_that_diverge_is_told_to_lower_its_learning_rate() -> None:
    exp = {**TINY, "rounds": 9, "training": {"lr": 1e38}, "quorum": {"skips": 2}}
    with pytest.raises(QuorumError, match=r"2 rounds in a row were skipped: .* lower training\.lr"):
        simulate(exp)
