"""What clients have spent of their privacy survives every kill: it is never less than what their work has cost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

from fedalloy import resume, simulate
from fedalloy.config import build as build_module
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import experiment
from fedalloy.data import load_data
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Method
from fedalloy.storage.results import Run, read
from fedalloy.storage.store import Store
from fedalloy.train.privacy import LEDGER, Account, Privacy, epsilon

CLIENTS = 3
TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [4]},
    "rounds": 4,
    "evaluate_every": 4,
    "partition": {"name": "iid", "clients": CLIENTS},
    "participation": {"policy": "fraction", "fraction": 0.67, "late_drop": 0.3},
    "quorum": {"fraction": 0.0},
    "training": {"lr": 0.1, "batch": 80},
    "privacy": {"noise_multiplier": 0.8},
    "engine": "serial",
}
CHANGES = ("open", "write", "fsync", "replace", "unlink", "mkdir")  # what a run does to its folder


class KilledError(BaseException):
    """The process is dead: nothing catches this, and nothing reaches the disk any more."""


@pytest.fixture(autouse=True, scope="module")
def built() -> Iterator[Built]:
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield build(experiment(TINY))


@pytest.fixture(scope="module")
def whole(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that nobody kills."""
    return simulate(TINY, tmp_path_factory.mktemp("whole") / "run", built=built)


def accounts(folder: Path) -> list[Mapping[str, Any]]:
    """What each client has spent, as the newest checkpoint has it."""
    saved = Store(folder).restore()
    memories = {} if saved is None else saved[1]
    return [memories.get(k, {}).get(LEDGER, {}) for k in range(CLIENTS)]


def epsilons(spent: list[Mapping[str, Any]]) -> list[float]:
    return [epsilon(account, 1e-5) for account in spent]


def kill_at(call: int, folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """Let the process die at a change of its folder; returns the list to which all changes are noted."""
    seen: list[str] = []

    def watched(name: str) -> Any:
        real = getattr(os, name)

        def change(what: Any, *rest: Any, **named: Any) -> Any:
            if isinstance(what, int) or str(what).startswith(str(folder)):
                seen.append(name)
                if 0 < call <= len(seen):
                    raise KilledError
            return real(what, *rest, **named)

        return change

    for name in CHANGES:
        patch.setattr(os, name, watched(name))
    return seen


def test_no_kill_makes_a_client_forget_what_it_has_spent(tmp_path: Path, built: Built, whole: Run) -> None:
    """Killed at every seventh change of the disk: what is recorded then is already on the account, or done again."""
    with pytest.MonkeyPatch.context() as patch:
        changes = kill_at(0, tmp_path / "counted", patch)
        simulate(TINY, tmp_path / "counted", built=built)
    assert whole.folder is not None
    last = accounts(whole.folder)
    assert min(epsilons(last)) > 0
    for call in range(3, len(changes), 7):
        folder = tmp_path / "run"
        with pytest.MonkeyPatch.context() as patch:
            kill_at(call, folder, patch)
            with pytest.raises(KilledError):
                simulate(TINY, folder, built=built)
        if not (folder / "run.json").exists():  # it was killed before there was a run
            shutil.rmtree(folder, ignore_errors=True)
            continue
        before = accounts(folder)
        committed = Store(folder).restore()
        rounds = 0 if committed is None else committed[0].round
        known = whole.rounds[rounds - 1]["epsilons"] if rounds else [0.0] * CLIENTS
        assert epsilons(before) == known  # what was committed is what an undisturbed run had spent by then
        again = resume(folder, built=built)
        assert accounts(folder) == last
        assert [r["epsilons"] for r in again.rounds] == [r["epsilons"] for r in whole.rounds]
        shutil.rmtree(folder)


def test_who_goes_on_with_the_generation_before_has_spent_no_less(tmp_path: Path, built: Built, whole: Run) -> None:
    folder = tmp_path / "run"
    simulate(TINY, folder, built=built)
    (folder / "checkpoints" / "000004.safetensors").write_bytes(b"")
    resume(folder, built=built)
    assert whole.folder is not None
    assert accounts(folder) == accounts(whole.folder)


class Counting(Serial):
    """Counts the private steps that clients take and that the server hears of, whatever the accounts say."""

    def __init__(self, built: Built) -> None:
        super().__init__(built.setting)
        self.taken = dict.fromkeys(range(CLIENTS), 0)

    def carry(self, method: Method, round: int, messages: Any) -> Any:
        for answer in super().carry(method, round, messages):
            self.taken[answer.client] += answer.meter.steps
            yield answer


def test_the_account_counts_every_step_of_every_round_that_is_released(tmp_path: Path, built: Built) -> None:
    engine = Counting(built)
    simulate(TINY, tmp_path / "run", built=built, engine=engine)
    counted = [Account(Privacy(), account).steps for account in accounts(tmp_path / "run")]
    assert counted == list(engine.taken.values())
    assert min(counted) > 0


def test_a_budget_ends_a_client_in_the_same_round_however_often_it_is_killed(tmp_path: Path) -> None:
    exp = {**TINY, "rounds": 6, "privacy": {"noise_multiplier": 0.8, "budget": 9.0}, "participation": {}}
    built = build(experiment(exp))
    whole = simulate(exp, tmp_path / "whole", built=built)
    assert any(r.get("spent") for r in whole.rounds)

    def dies(record: Mapping[str, Any]) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        simulate(exp, tmp_path / "run", built=built, watch=dies)
    for _ in range(len(whole.rounds) - 2):  # it dies after each round
        with pytest.raises(KilledError):
            resume(tmp_path / "run", built=built, watch=dies)
    killed = resume(tmp_path / "run", built=built)
    assert [r.get("spent") for r in killed.rounds] == [r.get("spent") for r in whole.rounds]
    assert [r["epsilons"] for r in killed.rounds] == [r["epsilons"] for r in whole.rounds]
    assert max(killed.rounds[-1]["epsilons"]) <= 9.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_a_process_that_is_killed_loses_nothing_of_the_account(tmp_path: Path, built: Built, whole: Run) -> None:
    folder = tmp_path / "run"
    pid = os.fork()
    if pid == 0:
        try:
            simulate({**TINY, "rounds": 10_000}, folder, built=built)
        finally:
            os._exit(1)
    patience = time.monotonic() + 120
    while not (folder / "rounds.jsonl").exists() or len(read(folder).rounds) < 2:
        assert time.monotonic() < patience
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    rounds = len(read(folder).rounds)
    done = accounts(folder)
    again = resume(folder, rounds=rounds + 1, built=built)
    straight = simulate({**TINY, "rounds": rounds + 1}, tmp_path / "straight", built=built)
    assert [r["epsilons"] for r in again.rounds] == [r["epsilons"] for r in straight.rounds]
    assert accounts(folder) == accounts(tmp_path / "straight")
    assert all(now >= then for now, then in zip(epsilons(accounts(folder)), epsilons(done), strict=True))
