"""Rounds that too few clients answered, and runs that give up."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedalloy import simulate, tree
from fedalloy.check import small_settings
from fedalloy.cli import main
from fedalloy.core import Client, Message, Reply, State, action, run
from fedalloy.engine.base import Round
from fedalloy.engine.pool import Pool
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.methods import FedAvg, Local
from fedalloy.participation import Participation
from fedalloy.quorum import Quorum, QuorumError

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
    assert [fed.skipped for fed in seen] == ["0 of 6 clients answered, and 3 are needed"] * 3


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
    with pytest.raises(QuorumError, match="3 rounds in a row were skipped: 0 of 4 clients answered, and 2 are needed"):
        simulate(exp, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [record["skipped"] for record in records] == ["0 of 4 clients answered, and 2 are needed"] * 3
    assert records[0]["views"]["aca"]["amp"] == records[2]["views"]["aca"]["amp"]
    with pytest.raises(SystemExit) as left:
        main(["resume", str(tmp_path / "run")])
    assert left.value.code == 6
    assert "skipped" in capsys.readouterr().err


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
    [(Slow(), 5.0, "it took longer than 5 s"), (Deadly(), None, "its worker died twice; is memory short?")],
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
