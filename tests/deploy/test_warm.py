"""The warm process of a site: a fork for each message, pauses that grow, and processes that end together."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedalloy.base import tree
from fedalloy.deploy import control, node, pauses, processes
from fedalloy.deploy.init import init, with_cap
from fedalloy.errors import UsageError
from fedalloy.run.runner import simulate
from fedalloy.storage.store import Store

pytest.importorskip("flwr")

from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus
from flwr.supernode.runtime import run_clientapp as flower

from fedalloy.deploy.warm import NAME, Forks

TINY = {"rounds": 2, "data": {"name": "tiny"}, "model": {"name": "mlp"}, "partition": {"clients": 2}}

# Loaded in the process that answers a message; each line says which process that was.
WITNESS = """
import json, os
from pathlib import Path

with (Path(__file__).parents[1] / "seen.jsonl").open("a") as file:
    command = Path("/proc/self/cmdline").read_bytes().decode().split("\\0")
    name = Path("/proc/self/comm").read_text().strip()
    file.write(json.dumps({"pid": os.getpid(), "parent": os.getppid(), "command": command, "name": name}) + "\\n")
"""


def _spec(kind: TaskType = TaskType.CLIENT_APP) -> ExecutionSpec:
    return ExecutionSpec(
        task_type=kind,
        runtime_api_address="127.0.0.1:1",
        token="secret",
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=os.getpid(),
        suppress_output=False,
        task_id=1,
    )


def _wait(ready: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


def _collected(forks: Forks) -> bool:
    forks.reconcile()
    return not forks.running


def test_each_message_has_a_process_of_its_own_that_inherits_no_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(**told: Any) -> None:
        handlers = len(exit_handler.registered_exit_handlers)
        default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        (tmp_path / str(os.getpid())).write_text(json.dumps([told["token"], told["parent_pid"], handlers, default]))
        raise SystemExit(0)

    monkeypatch.setattr(flower, "run_clientapp", answer)
    monkeypatch.setattr(exit_handler, "registered_exit_handlers", [None])
    forks = Forks()
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        for _ in range(3):
            assert forks.launch(_spec()).status == LaunchResultStatus.ACCEPTED
        _wait(lambda: _collected(forks))
    finally:
        signal.signal(signal.SIGTERM, before)
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    assert str(os.getpid()) not in {file.name for file in files}
    assert [json.loads(file.read_text()) for file in files] == [["secret", os.getpid(), 0, True]] * 3
    assert len(exit_handler.registered_exit_handlers) == 1  # here nothing has changed


def test_forks_do_not_draw_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(**_: Any) -> None:
        import random

        import numpy as np

        (tmp_path / str(os.getpid())).write_text(f"{np.random.random()} {random.random()}")  # on purpose  # noqa: NPY002

    monkeypatch.setattr(flower, "run_clientapp", answer)
    forks = Forks()
    forks.launch(_spec())
    forks.launch(_spec())
    _wait(lambda: _collected(forks))
    one, other = (file.read_text().split() for file in tmp_path.iterdir())
    assert all(a != b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("death", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0])
def test_a_message_that_kills_its_process_leaves_the_others_alone(
    death: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "run_clientapp", lambda **_: death())
    forks = Forks()
    assert forks.launch(_spec()).status == LaunchResultStatus.ACCEPTED
    _wait(lambda: _collected(forks))
    assert forks.launch(_spec()).status == LaunchResultStatus.ACCEPTED
    _wait(lambda: _collected(forks))


def test_a_site_runs_its_app_and_no_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    forks = Forks()
    assert forks.get_eligible_capacity(set(TaskType)) == ({TaskType.CLIENT_APP}, set())
    for kind in set(TaskType) - {TaskType.CLIENT_APP}:
        assert forks.launch(_spec(kind)).status == LaunchResultStatus.FAILED


def test_polls_get_rarer_and_a_message_makes_them_frequent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(node, "Pause", lambda least, most: pauses.Pause(least, most, clock=lambda: now[0]))
    wait = node.sleeps(lambda: True, sleep)
    for _ in range(60):
        wait(3)
    assert slept == sorted(slept)
    assert (slept[0], slept[-1]) == (node.SHORTEST, node.IDLE)
    wait(0.5)  # Flower waits for an answer
    wait(3)
    assert slept[-2:] == [node.REPLY, node.SHORTEST]


def test_a_site_whose_warm_process_has_died_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    wait = node.sleeps(lambda: False, lambda _: None)
    wait(3)
    assert raised == [signal.SIGTERM]


def test_the_warm_process_ends_when_the_supernode_is_killed() -> None:
    code = (
        "import os, time\nfrom fedalloy.deploy.warm import end_with\nthis = os.getpid()\n"
        "if os.fork() == 0:\n    end_with(this)\n    print(os.getpid(), flush=True)\ntime.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert processes._born(child)
        parent.kill()
    _wait(lambda: not processes._born(child))


@pytest.mark.parametrize(("platform", "value", "expected"), [("linux", "1", True), ("linux", "0", False), ("darwin", "1", False)])  # fmt: skip  # noqa: E501
def test_forks_can_be_switched_off(platform: str, value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("FEDALLOY_FORK", value)
    assert node.forks() is expected


def test_without_forks_flowers_own_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.cli.flower_superexec import _parse_args

    begun: list[list[str]] = []
    monkeypatch.setenv("FEDALLOY_FORK", "0")
    monkeypatch.setattr(subprocess, "Popen", begun.append)
    node.started("127.0.0.1:9", "a file")
    ((program, *options),) = begun
    told = _parse_args().parse_args(options)
    assert (program, told.runtime_api_address, told.parent_pid) == ("flower-superexec", "127.0.0.1:9", os.getpid())


def test_flower_still_has_what_is_replaced() -> None:
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supercore.superexec import run_superexec
    from flwr.supernode import start_client_internal

    assert "executor = get_executor(" in inspect.getsource(run_superexec)
    assert "executor.reconcile()" in inspect.getsource(run_superexec)
    uses = re.findall(r"^[^#\n]*\btime\.(\w+\([\d.]*\))", inspect.getsource(start_client_internal), re.MULTILINE)
    assert set(uses) == {"sleep(3)", "sleep(0.5)"}
    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        assert "initial_backoff" in (function.__kwdefaults__ or {})


@pytest.fixture
def port() -> Iterator[int]:
    for first in range(23000, 60000, 50):
        try:
            processes.refuse_busy("127.0.0.1", range(first, first + 4))
        except UsageError:
            continue
        yield first
        return


def test_a_deployment_answers_in_forks_with_the_bits_of_a_simulation(tmp_path: Path, port: int) -> None:
    plugin = tmp_path / "witness.py"
    plugin.write_text(WITNESS)
    made = init(TINY, tmp_path / "lab", 2, f"127.0.0.1:{port}", [plugin])
    try:
        control.up(made, 2, lambda _: None)
        control.follow(made, control.submitted(made, lambda _: None), lambda _: None, lambda _: None)
        for k in range(2):
            leader = int((made.state / f"site-{k}.pid").read_text().split()[0])
            seen = [json.loads(line) for line in (made.site(k) / "seen.jsonl").read_text().splitlines()]
            assert len({one["pid"] for one in seen}) >= 5  # an introduction, two rounds, two evaluations
            (parent,) = {one["parent"] for one in seen}  # all messages: one warm process
            assert parent in processes._members(leader)
            assert parent != leader
            assert all("fedalloy.deploy.node" in one["command"] and one["name"] == NAME for one in seen)  # no exec
        simulate({**with_cap(TINY), "engine": "serial"}, tmp_path / "alone")
        states = [Store(folder).restore() for folder in (made.run, tmp_path / "alone")]
        digests = {tree.digest(saved[0].body) for saved in states if saved is not None}
        assert len(digests) == 1
        leader = int((made.state / "site-1.pid").read_text().split()[0])
        os.kill(leader, signal.SIGKILL)
        _wait(lambda: not processes._members(leader))  # the warm process does not stay behind
    finally:
        control.down(made, lambda _: None)
    assert processes.known(made.state) == []
