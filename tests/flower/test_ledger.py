"""What a client on Flower has spent of its privacy never falls: not by kills, races, lost or damaged files, or lies."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

from flwr.app import Message

from fedalloy.base.files import write_atomically
from fedalloy.engine.flower import client as client_side
from fedalloy.engine.flower.codec import HEADER
from fedalloy.engine.flower.memory import LedgerError, Memory
from fedalloy.errors import UsageError
from fedalloy.federation.core import reply
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedAvg
from fedalloy.train.fit import LocalWork
from fedalloy.train.noise import Rehearsed
from fedalloy.train.privacy import LEDGER, Account, Privacy, PrivateSteps, figures, larger

ONE = 5  # the client to which things happen


@pytest.fixture
def private(plain: Setting) -> Setting:
    return replace(plain, privacy=Privacy(), participation=Participation(), quorum=Quorum(fraction=0))


def steps(spent: Mapping[str, Any]) -> int:
    return Account(Privacy(), spent).steps


def asked(engine: Any, round: int) -> Any:
    """A round in which one client is asked to train."""
    fed = engine.open(FedAvg(), round)
    fed.ask("train", [ONE], model=FedAvg().init(fed)["model"])
    return fed


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "flipped", "all gone", "an older one"])
def test_a_ledger_that_is_lost_or_damaged_is_no_new_one(
    damage: str, private: Setting, federation: Any, tmp_path: Path
) -> None:
    engine = federation(private)
    asked(engine, 1)
    folder = tmp_path / "memories" / str(ONE)
    file = folder / "privacy.safetensors"
    older = file.read_bytes()
    asked(engine, 2)
    whole = file.read_bytes()
    place = whole.index(b": %d" % (2 * private.steps(ONE)))
    other = {
        "empty": b"",
        "cut": whole[:-9],
        "flipped": whole[:place] + b": 1" + whole[place + 3 :],  # a smaller number
        "an older one": older,
    }
    if damage == "all gone":
        shutil.rmtree(folder)
        folder.mkdir()
    elif damage == "gone":
        file.unlink()
    else:
        file.write_bytes(other[damage])
    fed = asked(engine, 3)
    if damage == "an older one":  # its memory knows better
        assert steps(Memory(folder).spent()) == 3 * private.steps(ONE)
        return
    assert "privacy.safetensors" in fed.quarantined[0]["reason"]
    assert not fed.forgot
    assert steps(engine.memories[ONE][LEDGER]) == 2 * private.steps(ONE)
    write_atomically(file, whole)  # it comes from a backup
    assert not asked(engine, 4).quarantined
    assert steps(engine.memories[ONE][LEDGER]) == 3 * private.steps(ONE)


def test_a_first_memory_without_private_steps_needs_no_ledger_later(
    private: Setting, federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keeps(self: Any, me: Any, msg: Any) -> Any:
        return reply(model=msg["model"], n=me.n, keep={"seen": me.round})

    keeps.is_action = True  # type: ignore[attr-defined]
    engine = federation(private)
    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "train", keeps)
        assert not asked(engine, 1).quarantined
    assert engine.memories[ONE]
    assert not asked(engine, 2).quarantined
    assert steps(Memory(tmp_path / "memories" / str(ONE)).spent()) == private.steps(ONE)


# --- kills ----------------------------------------------------------------------------------------------------------


def at_call(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that kills its process, as nothing but the kernel can, when it is called so often."""
    calls = 0

    def mortal(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)

    return mortal


POINTS = [
    ("before it is charged", Account, "charge", 1),
    ("before the ledger is in its place", os, "replace", 1),
    ("before the first batch", Rehearsed, "uniform", 1),
    ("before the first noise", Rehearsed, "normal", 1),
    ("in the last step", PrivateSteps, "backward", 4),
    ("after training", PrivateSteps, "close", 1),
    ("before it remembers", Memory, "write", 1),
    ("before it answers", client_side, "to_records", 1),
]


@pytest.mark.parametrize(("where", "owner", "name", "number"), POINTS, ids=[point[0] for point in POINTS])
def test_no_kill_leaves_a_step_unpaid(
    where: str, owner: Any, name: str, number: int, private: Setting, federation: Any, tmp_path: Path
) -> None:
    engine = federation(private)
    drawn = tmp_path / "drawn"
    drawn.touch()
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:
                step = PrivateSteps.backward

                def noted(self: Any, *args: Any) -> None:
                    with drawn.open("a") as file:  # outlives the process
                        file.write(".")
                    step(self, *args)

                patch.setattr(PrivateSteps, "backward", noted)
                patch.setattr(owner, name, at_call(number, getattr(owner, name)))
                asked(engine, 1)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    ledger = Memory(tmp_path / "memories" / str(ONE)).spent()
    assert steps(ledger) >= len(drawn.read_text())
    assert steps(ledger) in (0, private.steps(ONE))
    asked(engine, 1)  # once more, as a run that is resumed does
    assert steps(engine.memories[ONE][LEDGER]) == steps(ledger) + private.steps(ONE)


def test_two_messages_at_once_are_both_paid_for(
    private: Setting, federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a client trains, it is asked by another message, which is carried out wholly."""
    engine, real, busy = federation(private), PrivateSteps.batches, False

    def meanwhile(self: Any) -> Any:
        nonlocal busy
        if not busy:
            busy = True
            asked(federation(private), 1)
        return real(self)

    monkeypatch.setattr(PrivateSteps, "batches", meanwhile)
    asked(engine, 1)
    assert steps(Memory(tmp_path / "memories" / str(ONE)).spent()) == 2 * private.steps(ONE)


def test_processes_that_charge_at_once_are_all_counted(tmp_path: Path) -> None:
    memory, children = Memory(tmp_path / "0"), []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(25):
                    Account(Privacy(), keep=memory.charge).charge(0.5, 1)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert memory.spent() == {"1.0": {"0.5": 100}}


# --- the server's record --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", ["{}", '{"1.0": {"0.5": 1}}'])
def test_a_site_that_claims_to_have_spent_less_is_not_believed(claim: str, private: Setting, federation: Any) -> None:
    lying = False

    def lies(client: int, answer: Message) -> Message:
        header = answer.content.config_records[HEADER]
        if lying and "ledger" in header:
            header["ledger"] = claim
        return answer

    engine = federation(private, fault=lies)
    asked(engine, 1)
    before = engine.memories[ONE][LEDGER]
    lying = True
    asked(engine, 2)
    assert larger(before, engine.memories[ONE][LEDGER]) == engine.memories[ONE][LEDGER]
    record = figures(private.privacy, engine.memories, 6, secret=True)
    assert record["epsilons"][ONE] >= figures(private.privacy, {ONE: {LEDGER: before}}, 6, secret=True)["epsilons"][ONE]


# --- a server that lies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [-1000, 0, 1 << 21, "5", 2.0, True])
def test_a_server_cannot_buy_steps_back(
    count: Any, private: Setting, federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all clients take equal steps, the server says how many: a negative number would empty the ledger."""
    engine = federation(replace(private, work=LocalWork(work="equal_steps", batch=4)))
    asked(engine, 1)
    before = Memory(tmp_path / "memories" / str(ONE)).spent()
    whole = type(engine)._header
    monkeypatch.setattr(type(engine), "_header", lambda *args: {**whole(*args), "steps": count})
    fed = asked(engine, 2)
    assert "steps" in fed.quarantined[0]["reason"]
    assert Memory(tmp_path / "memories" / str(ONE)).spent() == before


def test_nobody_can_make_a_ledger_smaller(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Account(Privacy()).charge(0.5, -3)
    memory = Memory(tmp_path / "5")
    memory.charge(lambda _: {"1.0": {"0.5": 7}})
    with pytest.raises(LedgerError):
        memory.charge(lambda _: {"1.0": {"0.5": 6}})
    assert memory.spent() == {"1.0": {"0.5": 7}}


@pytest.mark.parametrize("round", [-7, 1.5, "1", None])
def test_a_round_that_cannot_be_is_refused(
    round: Any, private: Setting, federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = federation(private)
    whole = type(engine)._header
    monkeypatch.setattr(type(engine), "_header", lambda *args: {**whole(*args), "round": round})
    with suppress(TypeError):  # Flower itself has no room for some of them
        assert "round" in asked(engine, 1).quarantined[0]["reason"]
