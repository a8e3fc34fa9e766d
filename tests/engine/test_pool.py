"""The pool and the threads are bit-equal to the serial engine, for every registered method."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedalloy.methods  # noqa: F401  # registers the methods
from fedalloy.base import plugins, tree
from fedalloy.check.probe import setting_with_public_classes, small_settings
from fedalloy.data.augment import augmentation
from fedalloy.data.columns import PreparedColumn
from fedalloy.data.samples import Scale
from fedalloy.engine import arena
from fedalloy.engine import cargo as cargo_module
from fedalloy.engine import pool as pool_module
from fedalloy.engine.cargo import pack, release, unpack
from fedalloy.engine.choose import engine_for
from fedalloy.engine.pool import Pool, WorkerError, can_cross
from fedalloy.engine.serial import Serial
from fedalloy.engine.threads import Threads
from fedalloy.errors import StorageError, UsageError
from fedalloy.federation.core import action, methods, quick, run
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedAvg, Local
from fedalloy.nets.models import create
from fedalloy.train.fit import LocalWork, params
from fedalloy.train.privacy import Privacy


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["perceptron", "BatchNorm and dropout", "public classes"])
def setting(request):
    return [*small_settings(), setting_with_public_classes()][request.param]


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
        costs.append((fed[0].ledger.up, fed[0].ledger.down, fed[0].ledger.passes(), fed[0].ledger.flops()))
    assert costs[0] == costs[1]
    assert costs[0][3]["clients"] > 0


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


SMALL_POOL = (
    "import functools, os, sys, time; from fedalloy.engine.pool import Pool; from fedalloy.nets.models import create;"
    "from dataclasses import replace; from fedalloy.check.probe import small_settings;"
    "s = replace(small_settings()[0], networks=[functools.partial(create,'mlp',classes=4,channels=1,size=8)]);"
)


def _gone(pid: int, seconds: float) -> bool:
    """Whether a process ends within this time; one that waits for somebody to ask how it ended has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


def test_workers_die_with_their_parent():
    code = SMALL_POOL + "p = Pool(s, workers=1); print(p._workers[0].process.pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    assert _gone(pid, seconds=5)


def test_workers_whose_parent_dies_while_they_import_torch_end_at_once(tmp_path):
    """The workers meet a torch that takes half a minute to import; one of them is stopped in the middle of it."""
    (tmp_path / "torch.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(30)")
    first = "os.environ['PYTHONPATH'] = os.pathsep.join([sys.argv[1], os.environ.get('PYTHONPATH', '')]);"
    code = SMALL_POOL + first + "Pool(s, workers=2)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        running, stopped = (int(parent.stdout.readline()) for _ in range(2))
        os.kill(stopped, signal.SIGSTOP)
        parent.kill()
        assert [_gone(pid, seconds=2) for pid in (running, stopped)] == [True, True]


DATA = {"sites", "public", "holdout"}  # what workers have in shared memory, or not at all


def unusual():
    """A setting in which no field has its default."""
    setting = setting_with_public_classes()
    return replace(
        setting,
        networks=[functools.partial(create, "mlp", classes=8, channels=1, size=8, hidden=16)],
        server=functools.partial(create, "mlp", classes=8, channels=1, size=8, hidden=9),
        seed=3,
        work=LocalWork(batch=4, lr=0.25, epochs=2),
        holdout=setting.sites[0].test,
        augment=augmentation("cifar10-kdia", (0.0,)),
        layout="nchw",
        scale=Scale((0.5,), (0.25,)),
        quorum=Quorum(fraction=0.5),
        private_answers=True,
        privacy=Privacy(noise_multiplier=1.5),
        secret_noise=True,
        amp_weights="train",
        task="labels",
        threshold=0.25,
        names=[f"clinic {k}" for k in setting.ids],
        targets=(PreparedColumn("days", 25.0, 5.0),),
        statistics={"up": {"statistics": 12}},
    )


def test_a_setting_crosses_whole():
    here = unusual()
    for f in fields(Setting):  # a field at its default would cross even if it were forgotten
        default = f.default if f.default_factory is MISSING else f.default_factory()
        assert getattr(here, f.name) != default, f.name
    cargo = pack(here)
    there = unpack(cargo)
    release(cargo)
    assert {f.name for f in fields(Setting) if getattr(there, f.name) != getattr(here, f.name)} == DATA
    assert there.sizes == here.sizes
    for mine, theirs in zip(here.sites, there.sites, strict=True):
        assert torch.equal(mine.train.inputs, theirs.train.inputs)
        assert torch.equal(mine.train.labels, theirs.train.labels)
    assert torch.equal(here.public.inputs, there.public.inputs)
    assert (there.steps(2), there.outputs, there.answers) == (here.steps(2), here.outputs, here.answers) == (6, 8, 4)


MIRROR = """
from dataclasses import dataclass, fields
from fedalloy.base import tree
from fedalloy.federation.core import Method, action, reply
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.methods import FedAvg
from fedalloy.train.fit import params

ITS_OWN = {"memory", "meter", "account"}  # which belong to this run on this engine


def told(value):
    if isinstance(value, Samples):
        return tree.digest({"x": value.inputs, "y": value.labels})
    if isinstance(value, PublicSet):
        return f"{told(value.samples)} {value.labelled} {value.holder}"
    return repr(value)


@dataclass(frozen=True, kw_only=True)
class Mirror(Method):
    name, label, card = "mirror", "Mirror", FedAvg.card

    @action
    def look(self, me, msg):
        seen = {f.name: told(getattr(me, f.name)) for f in fields(me) if f.name not in ITS_OWN}
        seen |= {name: told(getattr(me, name)) for name, p in vars(type(me)).items() if isinstance(p, property)}
        seen["network"] = f"{me.build()} {tree.digest(params(me.build()))}"
        seen["augment"] = tree.digest({"x": me.augment(me.train.inputs, me.rng("x"))})
        return reply(**seen)
"""


def test_a_client_sees_the_same_on_every_engine(tmp_path):
    file = tmp_path / "mirror.py"
    file.write_text(MIRROR)
    plugins.load_file(file)
    mirror = sys.modules[f"{plugins.PREFIX}mirror"].Mirror()
    setting = replace(unusual(), quorum=Quorum(), secret_noise=False)  # whose streams nobody could repeat

    def seen(engine):
        return {r.client: r.body for r in engine.open(mirror, 2).ask("look", setting.ids)}

    expected = seen(Serial(setting))
    assert expected[0]["outputs"] == "8"
    assert expected[0].keys() > {"id", "train", "public", "scale", "layout", "work", "steps", "shape", "n"}
    assert seen(Threads(setting, workers=2)) == expected
    with Pool(setting, workers=1) as engine:
        assert seen(engine) == expected


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
    assert ["threads" in line for line in said] == [True]
    assert not can_cross(FedAvg(), replace(plain, networks=[lambda: nn.Linear(1, 1)]))


@pytest.mark.parametrize("kind", ["serial", "threads"])
def test_who_cannot_keep_a_deadline_refuses_it(plain, kind):
    hurried = replace(plain, quorum=Quorum(deadline=60.0))
    with (
        pytest.raises(UsageError, match=r"^quorum\.deadline = 60 .*write engine = 'pool'"),
        engine_for([FedAvg()], hurried, 1, kind, 2, print),
    ):
        pass


def test_a_deadline_makes_auto_the_pool_and_what_cannot_be_sent_there_is_refused(plain):
    class Mine(FedAvg):
        pass

    hurried = replace(plain, quorum=Quorum(deadline=60.0))
    with engine_for([FedAvg()], hurried, 1, "auto", 1, print) as engine:
        assert type(engine) is Pool
    with pytest.raises(UsageError, match="defined in a script"), engine_for([Mine()], hurried, 1, "auto", 1, print):
        pass


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


# --- shared memory, and workers that cannot start ---------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files without a name under /proc")


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """The folder in which shared memory lies."""
    monkeypatch.setattr(arena, "_MEMORY", tmp_path)
    return tmp_path


@linux
def test_a_pool_that_is_killed_leaves_no_data_in_shared_memory(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from fedalloy.engine import arena;"
        "arena._MEMORY = Path(sys.argv[1]);"
        "from fedalloy.engine.pool import Pool; from fedalloy.check.probe import small_settings;"
        "p = Pool(small_settings()[0], workers=1); print('begun', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "begun\n"
        parent.kill()
    assert list(tmp_path.iterdir()) == []


def open_files():
    return set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()


@linux
def test_a_closed_pool_leaves_no_open_file(plain, memory):
    before = open_files()
    with Pool(plain, workers=1) as engine:
        finish(FedAvg(), engine, 1)
        assert len(open_files()) > len(before)
        assert list(memory.iterdir()) == []
    assert open_files() == before


def test_where_files_need_names_they_are_there_until_the_end(plain, memory, monkeypatch):
    monkeypatch.setattr(arena, "_nameless", lambda: False)
    expected = tree.digest(finish(FedAvg(), Serial(plain)))
    with Pool(plain, workers=1) as engine:
        engine._workers[0].process.kill()  # its successor finds the data too
        assert tree.digest(finish(FedAvg(), engine)) == expected
        assert {path.name[:9] for path in memory.iterdir()} == {"fedalloy-"}
    assert list(memory.iterdir()) == []


def test_a_setting_that_does_not_fit_leaves_nothing(plain, memory, monkeypatch):
    monkeypatch.setattr(arena, "_nameless", lambda: False)
    real, calls = arena.shared, []

    def short(*given):
        calls.append(given)
        if len(calls) == 2:
            raise StorageError("9 bytes of shared memory cannot be had")
        return real(*given)

    monkeypatch.setattr(cargo_module, "shared", short)
    with pytest.raises(StorageError):
        Pool(plain, workers=1)
    assert list(memory.iterdir()) == []


PARENT = """
import os
if "FEDALLOY_ONLY_HERE" in os.environ:
    raise ValueError("not\\nin a worker")
"""


@pytest.mark.parametrize("words", ["the plug-in '.*only.py' failed in line 4: ValueError: not in a worker", ""])
def test_a_worker_that_cannot_start_is_one_sentence(plain, memory, monkeypatch, tmp_path_factory, words):
    monkeypatch.setattr(arena, "_nameless", lambda: False)
    if words:
        file = tmp_path_factory.mktemp("plugin") / "only.py"
        file.write_text(PARENT)
        plugins.load_file(file)
        monkeypatch.setenv("FEDALLOY_ONLY_HERE", "no")
    else:
        words = r".*status 1\b.*"
        monkeypatch.setattr(sys, "executable", "/bin/false")
    before = open_files()
    try:
        with pytest.raises(WorkerError, match=f"^a worker could not start: {words}$"):
            Pool(plain, workers=2)
    finally:
        sys.modules.pop("fedalloy_plugin_only", None)
    assert list(memory.iterdir()) == []
    assert open_files() == before


def test_a_program_that_is_not_there_is_a_worker_that_cannot_start(plain, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(WorkerError, match=r"^a worker could not start: No such file or directory$"):
        Pool(plain, workers=1)


class Lethal(FedAvg):
    """Client 3 takes its worker with it."""

    @action
    def train(self, me, msg):
        if me.id == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(me, msg)


def test_a_successor_that_cannot_start_is_a_death_of_that_client_alone(plain, monkeypatch):
    """Client 3 kills its worker; of those that follow, the first cannot start."""
    setting = replace(plain, participation=Participation(), quorum=Quorum(fraction=0.0))
    real, tries = pool_module._Worker.wait_until_ready, []

    def stillborn(worker):
        tries.append(worker)
        if len(tries) == 2:
            worker.process.kill()
        real(worker)

    monkeypatch.setattr(pool_module._Worker, "wait_until_ready", stillborn)
    seen = []
    with Pool(setting, workers=1) as engine:
        end = run(Lethal(), engine, 1, watch=lambda _, fed: seen.append(fed))
    assert [(bad["client"], bad["action"]) for bad in seen[0].quarantined] == [(3, "train")]
    assert re.match("a worker could not start: .*signal 9", seen[0].quarantined[0]["reason"])
    assert len(tries) == 3
    others = [k for k in setting.ids if k != 3]
    without = replace(setting, participation=Participation(policy="trace", trace=[others]))
    assert tree.equal(end.body, run(FedAvg(), Serial(without), 1).body)


def test_when_no_successor_can_start_the_round_is_skipped(plain, monkeypatch):
    setting = replace(plain, participation=Participation(), quorum=Quorum())
    seen = []
    with Pool(setting, workers=2) as engine:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        for worker in engine._workers:
            worker.process.kill()
        run(FedAvg(), engine, 1, watch=lambda _, fed: seen.append(fed))
    assert {bad["client"] for bad in seen[0].quarantined} == set(setting.ids)
    assert seen[0].skipped is not None
