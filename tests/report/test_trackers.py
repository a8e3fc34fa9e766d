"""Trackers: each writes to a local folder with the real library, from which the numbers are read back.

trackio is tested if FEDALLOY_TRACKIO is set, by `make trackers`: it does not go with the versions of constraints.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedalloy import UsageError, resume, simulate
from fedalloy.cli.main import main
from fedalloy.config import build as build_module
from fedalloy.data import load_data
from fedalloy.report.trackers import TRACKERS, Tracker, scalars, tracker
from fedalloy.storage.results import Run

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 4,
    "partition": {"name": "iid", "clients": 2},
    "training": {"lr": 0.125},
    "engine": "serial",
}
Numbers = dict[str, list[tuple[int, float]]]  # of one tracker run: (step, value) of each series, in order


def of_tensorboard(folder: Path) -> list[Numbers]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for inner in sorted(folder.iterdir()):
        events = EventAccumulator(str(inner))
        events.Reload()
        assert b"0.125" in events.Tensors("experiment/text_summary")[0].tensor_proto.string_val[0]
        found.append({tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]})
    return found


def of_mlflow(folder: Path) -> list[Numbers]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(folder.as_uri())
    found = []
    for run in client.search_runs([one.experiment_id for one in client.search_experiments()]):
        assert run.data.params["training.lr"] == "0.125"
        assert run.info.status == "FINISHED"
        series = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        found.append({name: [(one.step, one.value) for one in values] for name, values in series.items()})
    return found


def of_wandb(folder: Path) -> list[Numbers]:
    """What `wandb sync` would send: the offline files of a run, which share its id."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # as at the end of a program: its own process writes the rest
    found: dict[str, Numbers] = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns):
        series = found.setdefault(file.stem, {})
        for raw in wandb_records(file.read_bytes()):
            record = Record.FromString(raw)
            if record.WhichOneof("record_type") == "run" and record.run.config.update:
                config = {one.key: json.loads(one.value_json) for one in record.run.config.update}
                assert config["training.lr"] == 0.125
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            for name, value in items.items():
                if not name.startswith("_"):
                    series.setdefault(name, []).append((items["_step"], value))
    return list(found.values())


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records in a file of W&B, which is LevelDB's log format after seven bytes of its own."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block is padding
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def of_trackio(folder: Path) -> list[Numbers]:
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    assert list(folder.glob("fedalloy.db"))
    found = []
    for run in Api().runs("fedalloy"):
        assert run.config is not None
        assert run.config["training.lr"] == 0.125
        series: Numbers = {}
        for line in SQLiteStorage.get_logs("fedalloy", run.name):
            for name, value in line.items():
                if name not in ("step", "timestamp"):
                    series.setdefault(name, []).append((line["step"], value))
        found.append(series)
    return found


READ: dict[str, Callable[[Path], list[Numbers]]] = {
    "tensorboard": of_tensorboard,
    "mlflow": of_mlflow,
    "wandb": of_wandb,
    "trackio": of_trackio,
}
HERE = [name for name in READ if name != "trackio" or "FEDALLOY_TRACKIO" in os.environ]
each = pytest.mark.parametrize("kind", HERE)


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


def stopped(folder: Path, trackers: list[Tracker], after: int) -> None:
    def watch(record: Mapping[str, Any]) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(TINY, folder, watch=watch, observers=trackers)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run that was interrupted twice, once while it was not tracked, and resumed, with all trackers at once."""
    folder = tmp_path_factory.mktemp("tracked")

    def opened() -> list[Tracker]:
        return [tracker(f"{kind}={folder / kind}") for kind in HERE]

    def watch(record: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    stopped(folder / "run", opened(), after=1)
    with pytest.raises(KeyboardInterrupt):
        resume(folder / "run", watch=watch)  # round 2, of which no tracker is told
    run = resume(folder / "run", observers=opened())
    assert resume(folder / "run", observers=opened()) == run  # it is finished: there is nothing to add
    return run, folder


@each
def test_a_tracker_has_every_number_of_every_round_once_whatever_interrupted_the_run(
    kind: str, tracked: tuple[Run, Path]
) -> None:
    run, folder = tracked
    (found,) = READ[kind](folder / kind)  # one tracker run
    for name in ("aca/amp", "aca/wlp", "oca/amp", "bytes/up", "seconds/total", "flops/clients"):
        expected = [(record["round"], scalars(record)[name]) for record in run.rounds]
        assert [step for step, _ in found[name]] == [1, 2, 3, 4], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in expected]), name
    assert found["bytes/total"][-1][1] == pytest.approx(run.total("bytes"))
    assert set(scalars(run.rounds[-1])) | {"bytes/total"} == set(found)


@pytest.mark.parametrize("kind", [kind for kind in HERE if kind != "trackio"])  # which has one folder in a process
def test_runs_of_the_same_name_and_a_run_without_a_folder_are_tracker_runs_of_their_own(
    kind: str, tmp_path: Path
) -> None:
    one = tracker(f"{kind}={tmp_path / 'there'}")
    exp = {**TINY, "rounds": 1}
    for folder in (tmp_path / "a" / "run", tmp_path / "b" / "run", None):
        simulate(exp, folder, observers=[one])
    found = READ[kind](tmp_path / "there")
    assert Counter(len(numbers["aca/amp"]) for numbers in found) == {1: 3}


def test_the_numbers_of_a_record_have_a_name_each() -> None:
    run = simulate({**TINY, "rounds": 1})
    found = scalars(run.rounds[0])
    view = run.rounds[0]["views"]["aca"]
    assert found["aca/amp"] == view["amp"]
    assert found["bytes/down"] == sum(run.rounds[0]["bytes"]["down"].values())
    assert found["clients/active"] == 2
    assert all(isinstance(value, float) for value in found.values())
    told = {"round": 2, "notes": {"coverage": 0.5, "none": None}, "epsilon": 1.5, "lost": [1], "views": {}}
    assert scalars(told) == {"notes/coverage": 0.5, "epsilon": 1.5, "clients/lost": 1.0}


@pytest.mark.parametrize("kind", TRACKERS)
def test_without_its_library_a_tracker_says_which_extra_to_install(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("tensorboard", "mlflow", "wandb", "trackio")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(UsageError, match=rf"\[{kind}\]"):
        tracker(f"{kind}={tmp_path}")


@pytest.mark.parametrize("text", ["tensorbord=x", "tensorboard", "tensorboard=", "=x", ""])
def test_a_tracker_that_is_misspelt_or_has_no_folder_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="tensorboard"):
        tracker(text)


def test_importing_fedalloy_and_naming_the_classes_imports_no_library() -> None:
    code = (
        "import sys, fedalloy; fedalloy.TensorBoard, fedalloy.MLflow, fedalloy.WandB, fedalloy.Trackio; "
        "print([n for n in ('tensorboard', 'mlflow', 'wandb', 'trackio') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_the_commands_run_compare_and_resume_take_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fed(*words: str) -> int:
        with pytest.raises(SystemExit) as left:
            main(words)
        return int(left.value.code or 0)

    monkeypatch.chdir(tmp_path)
    keys = ("data=tiny", "model=mlp", "model.hidden=[8]", "partition.clients=2", "partition.alpha=10.0", "rounds=1")
    lr = ("training.lr=0.125", "engine=serial")
    assert fed("run", *keys, *lr, "--out", "run", "--track", "tensorboard=there") == 0
    assert fed("resume", "run", "--rounds", "2", "--track", "tensorboard=there") == 0
    assert fed("compare", *keys, *lr, "-m", "fedavg,fedprox", "--out", "many", "--track", "tensorboard=there") == 0
    found = of_tensorboard(Path("there"))
    assert sorted(len(numbers["aca/amp"]) for numbers in found) == [1, 1, 2]
    names = sorted(inner.name.rsplit("-", 1)[0] for inner in Path("there").iterdir())
    assert names == ["fedavg-seed0", "fedavg-seed0", "fedprox-seed0"]
    capsys.readouterr()
    assert fed("run", *keys, "--out", "other", "--track", "tensorbord=there") == 2
    assert not Path("other").exists()
    Path("file").write_text("where a folder is wanted")
    capsys.readouterr()
    assert fed("run", *keys, "--out", "other", "--track", "tensorboard=file") == 0
    (line,) = capsys.readouterr().err.splitlines()  # no place in the code, no traceback
    assert line.startswith("fedalloy: ")
    assert "TensorBoard" in line
