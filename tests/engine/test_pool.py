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
from fedalloy.core import methods, quick, run
from fedalloy.engine.cargo import pack, release, unpack
from fedalloy.engine.choose import engine_for
from fedalloy.engine.pool import Pool, WorkerError, can_cross
from fedalloy.engine.serial import Serial
from fedalloy.engine.threads import Threads
from fedalloy.errors import UsageError
from fedalloy.methods import FedAvg, Local
from fedalloy.models import create
from fedalloy.probe import small_settings
from fedalloy.training import params


@pytest.fixture(scope="module", params=[0, 1], ids=["perceptron", "BatchNorm and dropout"])
def setting(request):
    return small_settings()[request.param]


@pytest.fixture(scope="module")
def pool(setting):
    with Pool(setting, workers=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain():
    return small_settings()[0]


@pytest.fixture(scope="module")
def plain_pool(plain):
    with Pool(plain, workers=2) as engine:
        yield engine


def finish(method, engine, rounds=3):
    engine.memories = {}
    state = run(method, engine, rounds)
    return {"state": state.body, "memories": {str(k): engine.memories[k] for k in sorted(engine.memories)}}


@pytest.mark.parametrize("name", list(methods))
def test_pool_and_threads_equal_serial_bit_for_bit(name, setting, pool):
    method = quick(methods[name])
    expected = tree.digest(finish(method, Serial(setting)))
    assert tree.digest(finish(method, pool)) == expected
    assert tree.digest(finish(method, Threads(setting, workers=3))) == expected


def test_client_memories_really_travel(plain, plain_pool):
    assert finish(Local(), plain_pool)["memories"]  # else the test above would prove little for personal models


def test_meters_and_bytes_are_those_of_the_serial_engine(plain, plain_pool):
    costs = []
    for engine in (Serial(plain), plain_pool):
        engine.memories = {}
        fed = []
        run(FedAvg(), engine, 1, watch=lambda _, f, fed=fed: fed.append(f) and None)
        costs.append((fed[0].ledger.up, fed[0].ledger.down, fed[0].ledger.passes()))
    assert costs[0] == costs[1]


def test_a_killed_worker_costs_one_retry_and_no_bit(plain):
    expected = tree.digest(finish(FedAvg(), Serial(plain)))
    with Pool(plain, workers=2) as engine:
        victim = engine._workers[0].process.pid
        os.kill(victim, signal.SIGKILL)
        assert tree.digest(finish(FedAvg(), engine)) == expected
        assert victim not in {w.process.pid for w in engine._workers}


def test_a_worker_killed_long_ago_is_replaced_too(plain):
    expected = tree.digest(finish(FedAvg(), Serial(plain)))
    with Pool(plain, workers=2) as engine:
        for worker in engine._workers:
            worker.process.kill()
            worker.process.wait()
        assert tree.digest(finish(FedAvg(), engine)) == expected


def test_different_networks_cross_too(plain):
    """Every other client has a network of its own kind; only a method for that can carry it."""
    channels, size = plain.sites[0].train.x.shape[1:3]
    other = functools.partial(create, "mlp", classes=4, channels=channels, size=size, hidden=(5, 5))
    mixed = replace(plain, networks=[(plain.networks[0], other)[k % 2] for k in plain.ids])
    expected = tree.digest(finish(Local(), Serial(mixed)))
    with Pool(mixed, workers=2) as engine:
        assert tree.digest(finish(Local(), engine)) == expected


def test_workers_end_with_the_pool_and_leave_nothing_behind(plain):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    with Pool(plain, workers=2) as engine:
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


def test_a_setting_crosses_whole(plain):
    cargo = pack(plain)
    there = unpack(cargo)
    release(cargo)
    assert there.sizes == plain.sizes
    for mine, theirs in zip(plain.sites, there.sites, strict=True):
        assert torch.equal(mine.train.inputs, theirs.train.inputs)
        assert torch.equal(mine.train.labels, theirs.train.labels)
    assert torch.equal(plain.public.inputs, there.public.inputs)
    assert there.steps(2) == plain.steps(2)


def test_arenas_grow_for_large_messages(plain):
    """A model of 5 MB, which the first arenas do not hold."""
    large = functools.partial(create, "mlp", classes=4, channels=1, size=8, hidden=20_000)
    setting = replace(plain, networks=[large])
    expected = tree.digest(finish(FedAvg(), Serial(setting), 1))
    with Pool(setting, workers=1) as engine:
        assert tree.digest(finish(FedAvg(), engine, 1)) == expected


def test_what_a_notebook_defines_runs_in_threads_and_says_so(plain):
    class Mine(FedAvg):
        pass

    said = []
    with engine_for([Mine()], plain, 1, "pool", 2, said.append) as engine:
        assert isinstance(engine, Threads)
        assert tree.digest(finish(Mine(), engine)) == tree.digest(finish(Mine(), Serial(plain)))
    assert said == ["a method or network defined in a script or notebook cannot leave it: clients run in threads"]
    assert not can_cross(FedAvg(), replace(plain, networks=[lambda: nn.Linear(1, 1)]))


def test_small_runs_need_no_pool(plain):
    with engine_for([FedAvg()], plain, 1, "auto", 2, print) as engine:
        assert type(engine) is Serial


def test_an_unknown_action_is_a_sentence_from_a_worker_too(plain, plain_pool):
    fed = plain_pool.open(FedAvg(), 1)
    with pytest.raises(UsageError, match="has no action 'tran'"):
        fed.ask("tran", [0], model={})


def test_a_failing_client_is_told_with_its_place(plain, plain_pool):
    fed = plain_pool.open(FedAvg(), 1)
    with pytest.raises(WorkerError, match="client 0, action 'train': KeyError"):
        fed.ask("train", [0], nothing=1)
    with pytest.raises(WorkerError):
        fed.ask("train", {0: {"nothing": 1}, 1: {"model": params(plain.build(1))}, 2: {"nothing": 1}})
    # The pool goes on, and nobody mistakes what the others answered for his own.
    assert tree.digest(finish(FedAvg(), plain_pool)) == tree.digest(finish(FedAvg(), Serial(plain)))


def test_the_memory_layout_crosses_to_the_workers(plain):
    cargo = pack(replace(plain, layout="nchw"))
    try:
        assert unpack(cargo).layout == "nchw"
    finally:
        release(cargo)
