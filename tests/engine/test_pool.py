"""The pool and the threads are bit-equal to the serial engine, for every registered method."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedalloy.methods  # noqa: F401  # registers the methods
from fedalloy import tree
from fedalloy.core import methods, run
from fedalloy.engine import arena
from fedalloy.engine.cargo import pack, release, unpack
from fedalloy.engine.choose import engine_for
from fedalloy.engine.pool import Pool, WorkerError, can_cross
from fedalloy.engine.serial import Serial
from fedalloy.engine.threads import Threads
from fedalloy.errors import UsageError
from fedalloy.methods import FedAvg, Local
from fedalloy.models import create
from fedalloy.probe import small_settings


def settings():
    """A perceptron and a network with BatchNorm and dropout, both of kinds that can be sent to a worker."""
    mlp = functools.partial(create, "mlp", classes=4, channels=1, size=8, hidden=16)
    cnn = functools.partial(create, "selective-cnn", classes=4, channels=1, size=16)
    first = small_settings()[0]
    larger = torch.nn.functional.interpolate(first.sites[0].train.x, size=(16, 16))
    assert larger.shape[-1] == 16
    return replace(first, networks=[mlp]), _resized(first, cnn)


def _resized(setting, network):
    pools = {}

    def grown(samples):
        if samples is None:
            return None
        key = id(samples.x)
        if key not in pools:
            pools[key] = torch.nn.functional.interpolate(samples.x, size=(16, 16))
        return replace(samples, x=pools[key])

    sites = [
        replace(s, train=grown(s.train), test=grown(s.test), validation=grown(s.validation)) for s in setting.sites
    ]
    public = replace(setting.public, samples=grown(setting.public.samples))
    return replace(setting, sites=sites, networks=[network], public=public)


@pytest.fixture(scope="module", params=[0, 1], ids=["mlp", "dropout"])
def setting(request):
    return settings()[request.param]


@pytest.fixture(scope="module")
def pool(setting):
    with Pool(setting, workers=2) as engine:
        yield engine


def finish(method, engine, rounds=3):
    engine.memories = {}
    state = run(method, engine, rounds)
    return {"state": state.body, "memories": {str(k): engine.memories[k] for k in sorted(engine.memories)}}


@pytest.mark.parametrize("name", list(methods))
def test_pool_and_threads_equal_serial_bit_for_bit(name, setting, pool):
    method = methods[name]()
    expected = tree.digest(finish(method, Serial(setting)))
    assert tree.digest(finish(method, pool)) == expected
    assert tree.digest(finish(method, Threads(setting, workers=3))) == expected


def test_client_memories_really_travel(setting, pool):
    assert finish(Local(), pool)["memories"]  # else the test above would prove little for personal models


def test_meters_and_bytes_are_those_of_the_serial_engine(setting, pool):
    costs = []
    for engine in (Serial(setting), pool):
        engine.memories = {}
        fed = []
        run(FedAvg(), engine, 1, watch=lambda _, f, fed=fed: fed.append(f) and None)
        costs.append((fed[0].ledger.up, fed[0].ledger.down, fed[0].ledger.passes()))
    assert costs[0] == costs[1]


def test_a_killed_worker_costs_one_retry_and_no_bit(setting):
    expected = tree.digest(finish(FedAvg(), Serial(setting)))
    with Pool(setting, workers=2) as engine:
        victim = engine._workers[0].process.pid
        os.kill(victim, signal.SIGKILL)
        assert tree.digest(finish(FedAvg(), engine)) == expected
        assert victim not in {w.process.pid for w in engine._workers}


def test_workers_end_with_the_pool_and_leave_nothing_behind(setting):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    with Pool(setting, workers=2) as engine:
        pids = [w.process.pid for w in engine._workers]
        finish(FedAvg(), engine, 1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not {name for name in after - before if name.startswith("fedalloy-")}


def test_workers_die_with_their_parent():
    code = (
        "import functools, time; from fedalloy.engine.pool import Pool; from fedalloy.models import create;"
        "from dataclasses import replace; from fedalloy.probe import small_settings;"
        "s = replace(small_settings()[0], networks=[functools.partial(create,'mlp',classes=4,channels=1,size=8)]);"
        "p = Pool(s, workers=1); print(p._workers[0].process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker outlived its parent")


def test_a_setting_crosses_whole(setting):
    cargo = pack(setting)
    there = unpack(cargo)
    release(cargo)
    assert there.sizes == setting.sizes
    for mine, theirs in zip(setting.sites, there.sites, strict=True):
        assert torch.equal(mine.train.inputs, theirs.train.inputs)
        assert torch.equal(mine.train.labels, theirs.train.labels)
    assert torch.equal(setting.public.inputs, there.public.inputs)
    assert there.steps(2) == setting.steps(2)


def test_an_arena_grows_for_a_large_message(setting, pool, monkeypatch):
    big = {"w": torch.randn(1 << 19)}
    memory = torch.empty(arena.size_of(big), dtype=torch.uint8)
    arena.write(big, memory)
    assert torch.equal(arena.read(memory)["w"], big["w"])


def test_what_a_notebook_defines_runs_in_threads_and_says_so(setting):
    class Mine(FedAvg):
        pass

    said = []
    with engine_for([Mine()], setting, 1, "pool", 2, said.append) as engine:
        assert isinstance(engine, Threads)
        assert tree.digest(finish(Mine(), engine)) == tree.digest(finish(Mine(), Serial(setting)))
    assert said == ["a method or network defined in a script or notebook cannot leave it: clients run in threads"]
    assert not can_cross(FedAvg(), replace(setting, networks=[lambda: nn.Linear(1, 1)]))


def test_small_runs_need_no_pool(setting):
    with engine_for([FedAvg()], setting, 1, "auto", 2, print) as engine:
        assert type(engine) is Serial


def test_an_unknown_action_is_a_sentence_from_a_worker_too(setting, pool):
    fed = pool.open(FedAvg(), 1)
    with pytest.raises(UsageError, match="has no action 'tran'"):
        fed.ask("tran", [0], model={})


def test_a_failing_client_is_told_with_its_place(setting, pool):
    fed = pool.open(FedAvg(), 1)
    with pytest.raises(WorkerError, match="client 0, action 'train': KeyError"):
        fed.ask("train", [0], nothing=1)
    assert finish(FedAvg(), pool, 1)  # and the pool goes on
