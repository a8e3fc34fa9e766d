"""Rounds are transactions: killed, torn, out of room or damaged at any point, a run goes on to the same bits.

The sweeps let every call that changes the disk fail once, in every way: the process is killed before it, a write is
torn in the middle, the disk reports an error, or it is full from then on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedalloy.base import tree
from fedalloy.cli.ending import _fault
from fedalloy.cli.main import main
from fedalloy.cli.terminal import orderly_end
from fedalloy.config import build as build_module
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import make_method
from fedalloy.config.overrides import override
from fedalloy.data import load_data
from fedalloy.engine.serial import Serial
from fedalloy.errors import CheckpointError, HangupError, SecurityError, Signalled, StorageError, UsageError
from fedalloy.report import html
from fedalloy.run import runner
from fedalloy.run.runner import refuse_other, resume, settled, simulate
from fedalloy.storage.results import Run, read
from fedalloy.storage.store import Store

sys.path.append(str(Path(__file__).parents[1] / "chaos"))  # whose disk it is; `chaos/commits.py` has all methods on it
from disks import FAULTS, Disk, KilledError, disturbed, points

TINY = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [4]},
    "rounds": 3,
    "evaluate_every": 3,
    "partition": {"name": "iid", "clients": 3},
    "participation": {"policy": "fraction", "fraction": 0.34},  # one client in each round
    "training": {"lr": 0.1, "batch": 600},
    "engine": "serial",
}
WORDS = (  # the same on the command line
    *("data=tiny", "model=mlp", "model.hidden=[4]", "rounds=3", "evaluate_every=3", "partition=iid"),
    *("partition.clients=3", "participation.policy=fraction", "participation.fraction=0.34"),
    *("training.lr=0.1", "training.batch=600", "engine=serial"),
)
Command = Callable[..., tuple[int, str, str]]
METHODS = ("fedavg", "local")  # a server with a cache of clients' models; clients that remember


@pytest.fixture(autouse=True, scope="module")
def built() -> Iterator[Built]:
    """The data, and what is known before a run begins, once: reading and checking it takes longer than the rounds."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        for name in ("experiment", "make_method", "describe"):
            patch.setattr(runner, name, remembered(getattr(runner, name)))
        yield build(experiment(TINY))


def remembered(work: Callable[..., Any]) -> Callable[..., Any]:
    """A function of an experiment or a part of one, computed once for each."""
    known: dict[str, Any] = {}

    def call(what: Any, *rest: Any) -> Any:
        key = repr(what)
        if key not in known:
            known[key] = work(what, *rest)
        return dict(known[key]) if isinstance(known[key], dict) else known[key]

    return call


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug in a sweep, so that nothing has to reach the platter."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def tiny(*overrides: str) -> dict[str, Any]:
    return override(TINY, overrides)


def ended(run: Run) -> tuple[list[dict[str, Any]], str]:
    """The records without what no two runs share, and the fingerprint of the last state and all memories."""
    assert run.folder is not None
    kept = read(run.folder)
    assert (kept.meta, kept.rounds) == (run.meta, run.rounds)
    saved = Store(run.folder).restore()
    assert saved is not None
    state, memories = saved
    body = {"round": state.round, "state": state.body, "memories": {str(k): m for k, m in memories.items()}}
    return [{k: v for k, v in r.items() if k not in ("seconds", "memory")} for r in run.rounds], tree.digest(body)


def stopped_after(folder: Path, round: int, exp: Mapping[str, Any], built: Built) -> Path:
    """A run that was killed when a round was complete."""

    def watch(record: Mapping[str, Any]) -> None:
        if record["round"] == round:
            raise KilledError

    with pytest.raises(KilledError):
        simulate(exp, folder, built=built, watch=watch)
    return folder


# --- every fault at every call ----------------------------------------------------------------------------------------


def leftovers(folder: Path) -> list[str]:
    """What a run that has ended must not leave."""
    return [path.name for path in folder.rglob("*") if path.name.startswith((".", "run.lock", "quarantine"))]


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", METHODS)
def test_a_fault_at_any_call_of_a_run_loses_nothing(tmp_path: Path, built: Built, method: str, fault: str) -> None:
    exp = experiment(tiny(f"method={method}"))
    disk = Disk(tmp_path / "whole")
    whole, _ = disturbed(disk, lambda: simulate(exp, tmp_path / "whole", built=built))
    assert whole is not None
    assert len(disk.calls) >= 80
    wanted, trouble = ended(whole), 0
    for at in points(disk.calls, fault):
        folder, seen = tmp_path / f"{at}", [0]
        run, error = disturbed(
            Disk(folder, at, fault),
            lambda folder=folder, seen=seen: simulate(
                exp, folder, built=built, watch=lambda record: seen.append(record["round"])
            ),
        )
        trouble += run is None
        assert isinstance(error, StorageError) == (run is None and fault in ("error", "full"))
        if seen[-1]:
            saved = Store(folder).restore()
            assert saved is not None
            assert saved[0].round >= seen[-1]  # a round that was reported is there
        begun = (folder / "run.json").exists()
        again = resume(folder, built=built) if begun else simulate(exp, folder, built=built)
        assert ended(again) == wanted
        assert (folder / "checkpoints" / "description.json").read_bytes() == (folder / "run.json").read_bytes()
        assert leftovers(folder) == []  # above all, nothing was taken for damage
        shutil.rmtree(folder)
    assert trouble > 0.8 * len(points(disk.calls, fault))  # the others met the removal of a file that nobody needs


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_call_of_a_resumption_loses_nothing(tmp_path: Path, built: Built, fault: str) -> None:
    """The folder has all that a resumption may have to mend: a damaged generation and description, torn records."""
    exp = tiny()
    wanted = ended(simulate(exp, tmp_path / "whole", built=built))
    hurt = stopped_after(tmp_path / "hurt", 3, exp, built)
    flip(hurt / "checkpoints" / "000003.safetensors", -1)
    os.truncate(hurt / "run.json", 100)
    with (hurt / "rounds.jsonl").open("a") as log:
        log.write('{"round": 4, "vi')
    (hurt / "checkpoints" / ".000004.json.part").write_bytes(b"{")
    (hurt / "run.lock").write_text("1\n")

    def go_on(at: int) -> tuple[Disk, Run | None, BaseException | None]:
        folder = Path(shutil.copytree(hurt, tmp_path / f"{at}"))
        disk = Disk(folder, at, fault)
        return disk, *disturbed(disk, lambda: resume(folder, built=built))

    disk, run, _ = go_on(0)
    assert run is not None
    assert ended(run) == wanted
    for at in points(disk.calls, fault):
        _, run, error = go_on(at)
        assert isinstance(error, StorageError) == (run is None and fault in ("error", "full"))
        folder = tmp_path / f"{at}"
        assert ended(resume(folder, built=built)) == wanted
        assert (folder / "checkpoints" / "description.json").read_bytes() == (folder / "run.json").read_bytes()
        assert leftovers(folder) == ["quarantine"]
        assert (folder / "quarantine" / "000003.json").exists()
        shutil.rmtree(folder)


# --- damage -----------------------------------------------------------------------------------------------------------


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))


def swap(one: Path, other: Path) -> None:
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


DAMAGE: dict[str, Callable[[Path, str], object]] = {
    "a flipped bit in the weights": lambda c, t: flip(c / f"{t}.safetensors", -1),
    "a flipped bit in the header": lambda c, t: flip(c / f"{t}.safetensors", 20),
    "cut off": lambda c, t: os.truncate(c / f"{t}.safetensors", 100),
    "empty": lambda c, t: os.truncate(c / f"{t}.safetensors", 0),
    "lost": lambda c, t: (c / f"{t}.safetensors").unlink(),
    "an empty manifest": lambda c, t: os.truncate(c / f"{t}.json", 0),
    "a manifest cut off": lambda c, t: os.truncate(c / f"{t}.json", 200),
    "a flipped bit in the manifest": lambda c, t: flip(c / f"{t}.json", 60),
    "a manifest of zeros": lambda c, t: (c / f"{t}.json").write_bytes(bytes(700)),
    "a folder in its place": lambda c, t: ((c / f"{t}.safetensors").unlink(), (c / f"{t}.safetensors").mkdir()),
}


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("method", METHODS)
def test_damage_costs_one_generation(tmp_path: Path, built: Built, method: str, what: str) -> None:
    exp = tiny(f"method={method}", "rounds=4")
    wanted = ended(simulate(exp, tmp_path / "whole", built=built))
    folder = stopped_after(tmp_path / "run", 3, exp, built)
    DAMAGE[what](folder / "checkpoints", "000003")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    saved = Store(folder).restore()
    assert saved is not None
    assert saved[0].round == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before  # reading writes nothing
    said: list[str] = []
    assert ended(resume(folder, built=built, say=said.append)) == wanted
    assert [line.split(":")[0] for line in said] == [
        "the checkpoint of round 3 cannot be used",
        f"the checkpoint of round 3 was moved to '{folder}/quarantine'",
    ]
    assert "000003.json" in os.listdir(folder / "quarantine")


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("method", METHODS)
def test_any_one_file_may_be_damaged(tmp_path: Path, built: Built, method: str) -> None:
    """Each file in turn; the run is long enough for old files to be in use.

    A changed letter of run.json may be somebody's edit, which is refused; so it is cut off instead.
    """
    exp = tiny(f"method={method}", "rounds=7")
    wanted = ended(simulate(exp, tmp_path / "whole", built=built))
    made = stopped_after(tmp_path / "made", 6, exp, built)
    files = [path.relative_to(made) for path in made.rglob("*") if path.is_file()]
    assert len(files) > 6
    for file in files:
        folder = Path(shutil.copytree(made, tmp_path / "run"))
        middle = (folder / file).stat().st_size // 2
        flip(folder / file, middle) if file.name != "run.json" else os.truncate(folder / file, middle)
        assert ended(resume(folder, built=built)) == wanted
        shutil.rmtree(folder)


LOST: dict[str, Callable[[Path], object]] = {
    "lost": lambda file: file.unlink(),
    "empty": lambda file: os.truncate(file, 0),
    "cut off": lambda file: os.truncate(file, 300),
    "zeros": lambda file: file.write_bytes(bytes(700)),
    "a folder in its place": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("what", LOST)
def test_a_description_that_is_lost_or_damaged_is_taken_from_its_copy(
    tmp_path: Path, built: Built, command: Command, what: str
) -> None:
    wanted = ended(simulate(tiny(), tmp_path / "whole", built=built))
    folder = stopped_after(tmp_path / "run", 2, tiny(), built)
    LOST[what](folder / "run.json")
    if what == "a folder in its place":  # which nobody but its owner may remove
        with pytest.raises(StorageError, match=r"run\.json' cannot be written: Is a directory"):
            resume(folder, built=built)
        (folder / "run.json").rmdir()
    said: list[str] = []
    assert ended(resume(folder, built=built, say=said.append)) == wanted
    assert said[0].startswith(f"{folder}/run.json ")
    assert said[0].endswith(f"; its copy '{folder}/checkpoints/description.json' is used instead")
    assert len(said) == 1
    (folder / "run.json").unlink()
    code, out, _ = command("run", "--out", str(folder))
    assert (code, "it is finished" in out) == (0, True)
    assert (folder / "run.json").read_bytes() == (folder / "checkpoints" / "description.json").read_bytes()


def test_damage_to_both_generations_is_refused_and_nothing_is_touched(tmp_path: Path, built: Built) -> None:
    made = stopped_after(tmp_path / "made", 3, tiny("rounds=4"), built)
    both: list[Callable[[Path], object]] = [
        lambda c: swap(c / "000002.safetensors", c / "000003.safetensors"),
        lambda c: swap(c / "000002.json", c / "000003.json"),
        lambda c: [os.truncate(file, 0) for file in c.glob("*.json")],
        lambda c: [file.unlink() for file in c.glob("*.safetensors")],
    ]
    for damage in both:
        folder = Path(shutil.copytree(made, tmp_path / "run"))
        damage(folder / "checkpoints")
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for _ in range(2):  # the second resumption must not find an empty folder and begin anew
            with pytest.raises(CheckpointError, match="is intact; start again in another folder") as caught:
                resume(folder, built=built)
            assert caught.value.code == 5
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        shutil.rmtree(folder)


def test_no_checkpoint_at_all_is_no_reason_to_begin_anew(tmp_path: Path, built: Built) -> None:
    folder = stopped_after(tmp_path / "run", 3, tiny("rounds=4"), built)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(CheckpointError, match=r"records of several rounds.* no checkpoint"):
        resume(folder, built=built)
    assert len(read(folder).rounds) == 3


def test_an_experiment_that_was_edited_by_hand_is_not_gone_on_with(tmp_path: Path, built: Built) -> None:
    folder = stopped_after(tmp_path / "run", 2, tiny(), built)
    meta = json.loads((folder / "run.json").read_text())
    meta["experiment"]["training"]["lr"] = 0.2
    (folder / "run.json").write_text(json.dumps(meta))
    said: list[str] = []
    with pytest.raises(CheckpointError):
        resume(folder, built=built, say=said.append)
    assert said[0] == "the checkpoint of round 2 cannot be used: it belongs to a different experiment than run.json"


def test_all_that_has_changed_since_is_said(tmp_path: Path, built: Built) -> None:
    folder = stopped_after(tmp_path / "run", 2, tiny(), built)
    meta = json.loads((folder / "run.json").read_text())
    meta["digests"]["data"], meta["versions"]["torch"] = "0123456789abcdef", "1.0"
    (folder / "run.json").write_text(json.dumps(meta))
    with pytest.raises(CheckpointError) as caught:
        resume(folder, built=built)
    assert "data has changed: the run was made with 0123456789ab, now it is " in str(caught.value)
    assert "torch has changed: the run was made with 1.0, now it is 2." in str(caught.value)


# --- the same folder again --------------------------------------------------------------------------------------------


def test_the_keys_that_differ_are_listed(tmp_path: Path, built: Built) -> None:
    stopped_after(tmp_path / "run", 1, tiny(), built)

    def check(*words: str) -> None:
        exp = experiment(tiny(*words))
        refuse_other(settled(exp, built, make_method(exp)), tmp_path / "run")

    check("rounds=9", "engine=pool", "workers=2", "memory=1GB")  # these change no bit
    with pytest.raises(CheckpointError) as caught:
        check("training.lr=0.2", "method=moon")
    first, *lines = str(caught.value).splitlines()
    assert first == f"'{tmp_path}/run' holds a run of a different experiment; choose another folder:"
    assert lines == [
        "  method.mu: None -> 5.0",
        "  method.name: fedavg -> moon",
        "  method.tau: None -> 0.5",
        "  method.unseen: None -> random",
        "  training.lr: 0.1 -> 0.2",
    ]
    many = [f"training.{key}=7" for key in ("epochs", "batch", "lr", "weight_decay", "clip")]
    many += ["training.schedule=step", "training.step_every=7", "stop.patience=7", "seed=7"]
    many += [f"training.{key}=0.5" for key in ("momentum", "step_factor", "lr_decay")]
    with pytest.raises(CheckpointError) as caught:
        check(*many)
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 10
    assert lines[0] == "  seed: 0 -> 7"
    assert lines[-1] == "  and 3 more"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The command line in an empty folder, with a page that takes no time; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(html, "write_report", lambda runs, path, **_: path)

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([words[0], *WORDS, *words[1:]])
        caught = capsys.readouterr()
        return int(left.value.code or 0), caught.out, caught.err

    return call


def test_run_goes_on_with_its_own_unfinished_run_and_leaves_a_finished_one(command: Command, built: Built) -> None:
    wanted = ended(simulate(tiny(), "whole", built=built))
    stopped_after(Path("run"), 2, tiny(), built)
    code, out, err = command("run", "--out", "run")
    assert (code, err) == (0, "")
    assert out.startswith("'run' contains this run: resuming")
    assert ended(read("run")) == wanted
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    code, out, err = command("run", "--out", "run")
    assert (code, err) == (0, "FedAvg, seed 0: already finished\n")
    assert "damaged" not in (said := out.partition("\n")[0])
    assert said.startswith("'run' contains this run: it is finished")
    assert "FedAvg" in out
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before
    flip(Path("run/checkpoints/000003.safetensors"), -1)
    code, out, _ = command("run", "--out", "run")
    assert code == 0
    assert "damaged" in (said := out.partition("\n")[0])
    assert said.startswith("'run' contains this run: it is finished")
    assert ended(read("run")) == wanted
    code, out, _ = command("run", "rounds=4", "--out", "run")
    assert (code, len(read("run").rounds)) == (0, 4)
    assert out.startswith("'run' contains this run: resuming")


def test_run_refuses_the_folder_of_another_experiment(command: Command, built: Built) -> None:
    stopped_after(Path("run"), 2, tiny(), built)
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    code, _, err = command("run", "training.momentum=0.5", "--out", "run")
    assert code == 5
    assert err.startswith("fedalloy: 'run' holds a run of a different experiment")
    assert err.endswith("\n  training.momentum: 0.0 -> 0.5\n")
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before


# --- locks and signals, with real processes ---------------------------------------------------------------------------


def python(code: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


HOLD = """
import sys, time
from pathlib import Path
from fedalloy.base.files import locked
with locked(Path(sys.argv[1]) / "run.lock"):
    print("held", flush=True)
    time.sleep(60)
"""

RACE = """
import sys
from pathlib import Path
from fedalloy.errors import UsageError
from fedalloy.base.files import locked
folder, won = Path(sys.argv[1]), 0
while won < 25:
    try:
        with locked(folder / "run.lock"):
            (folder / "alone").mkdir()
            (folder / "alone").rmdir()
            won += 1
    except UsageError:
        pass
"""


def test_one_process_writes_and_a_killed_one_locks_nobody_out(tmp_path: Path, built: Built) -> None:
    folder = stopped_after(tmp_path / "run", 2, tiny(), built)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    holder = python(HOLD, folder)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    sentence = f"'{folder}' is being written by process {holder.pid}; "
    with pytest.raises(UsageError) as caught:
        resume(folder, built=built)
    assert (str(caught.value)[: len(sentence)], caught.value.code) == (sentence, 2)
    with pytest.raises(UsageError, match="is being written by process"):
        simulate(tiny(), folder, built=built)
    assert len(read(folder).rounds) == 2  # whoever reads needs no lock
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "run.lock"} == before
    holder.kill()
    holder.communicate()
    assert (folder / "run.lock").exists()
    assert len(resume(folder, built=built).rounds) == 3
    assert not (folder / "run.lock").exists()


def test_a_lock_has_one_holder_whoever_takes_and_releases_it(tmp_path: Path) -> None:
    racers = [python(RACE, tmp_path) for _ in range(4)]
    answers = [racer.communicate() for racer in racers]
    assert answers == [("", "")] * 4  # two at once would both have made the folder
    assert list(tmp_path.iterdir()) == []


COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told its background jobs to ignore it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup this
from fedalloy.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("number", "engine", "code"),
    [(signal.SIGTERM, "serial", 143), (signal.SIGINT, "pool", 130), (signal.SIGHUP, "pool", 129)],
    ids=str,
)
def test_a_signal_ends_a_run_at_once_and_it_goes_on(
    tmp_path: Path, built: Built, number: signal.Signals, engine: str, code: int
) -> None:
    folder = tmp_path / "run"
    endless = ["rounds=100000", f"engine={engine}", "workers=2", "evaluate_every=100000"]
    process = python(COMMAND, "run", *WORDS, *endless, "--out", folder)
    patience = time.monotonic() + 300
    while not (folder / "rounds.jsonl").exists() or len(read(folder).rounds) < 3:
        assert process.poll() is None
        assert time.monotonic() < patience
        time.sleep(0.02)
    listing = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = listing.read_text().split() if listing.exists() else []  # Linux alone has it
    assert len(workers) == (2 if engine == "pool" and listing.exists() else 0)
    process.send_signal(number)
    process.send_signal(number)  # impatience costs nothing
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.splitlines()[-1].startswith(f"fedalloy: interrupted; `fedalloy resume {folder}`")
    assert "Traceback" not in err
    assert [worker for worker in workers if Path(f"/proc/{worker}").exists()] == []
    rounds = len(read(folder).rounds) + 2
    again = resume(folder, rounds=rounds, built=built, engine=Serial(built.setting))
    wanted = simulate(tiny(f"rounds={rounds}", "evaluate_every=100000"), tmp_path / "whole", built=built)
    assert ended(again) == ended(wanted)


@pytest.mark.parametrize("told", [HangupError("interrupted"), Signalled(signal.SIGHUP)], ids=repr)
def test_a_terminal_that_is_gone_is_no_fault_of_the_disk(told: BaseException) -> None:
    def tidied() -> None:
        try:
            raise told
        finally:  # as a progress bar does
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error") as caught:
        tidied()
    assert _fault(caught.value) == ("interrupted", 129)


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    def ignored() -> bool:
        with orderly_end():
            return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ignored()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert not ignored()
    finally:
        signal.signal(signal.SIGHUP, before)  # the tests themselves may be run under nohup


@pytest.mark.parametrize("inner", ["checkpoints", "quarantine"])
def test_a_run_writes_through_no_link(inner: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / inner).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SecurityError, match="is a link; ") as caught:
        simulate({"data": "tiny", "model": "mlp", "rounds": 1}, tmp_path / "run")
    assert caught.value.code == 7
    assert list((tmp_path / "elsewhere").iterdir()) == []
