"""The doctor: a healthy folder gets no complaint, each broken thing is named with its exit code, nothing is written."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pkgutil
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedalloy
from fedalloy.base import plugins
from fedalloy.check import doctor
from fedalloy.check.doctor import Finding, data, examine, exit_code, machine, run
from fedalloy.cli.main import main
from fedalloy.config.experiment import experiment
from fedalloy.data import datasets, fetch, files
from fedalloy.data.fetch import RemoteFile
from fedalloy.errors import FedalloyError, UsageError
from fedalloy.run.runner import resume, simulate
from fedalloy.storage.store import Store

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [4]},
    "engine": "serial",
    "rounds": 2,
    "partition": {"name": "iid", "clients": 2},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    simulate(TINY, folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def change(folder: Path, **entries: Any) -> None:
    meta = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**meta, **entries}))


def interrupt(folder: Path, rounds: int = 5) -> None:
    """Make it a run that stopped after two of so many rounds."""
    meta = json.loads((folder / "run.json").read_text())
    change(folder, status="running", experiment={**meta["experiment"], "rounds": rounds})


def wrong(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "wrong"]


def of(findings: list[Finding], what: str) -> Finding:
    (found,) = [finding for finding in findings if finding.what.endswith(what)]
    return found


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_healthy_run_gets_no_complaint_and_stays_as_it_is(folder: Path) -> None:
    before = content(folder)
    findings = run(folder)
    assert {finding.level for finding in findings} == {"ok"}
    assert [finding.what.removeprefix(f"{folder} ") for finding in findings] == [
        *("run.json", "records", "checkpoint 2", "checkpoint 1", "lock", "resume")
    ]
    assert of(findings, "records").sentence == "2 of 2 rounds, none is missing"
    assert of(findings, "resume").sentence == "nothing is left to do after round 2; --rounds adds more"
    assert exit_code(findings) == 0
    assert content(folder) == before


def test_it_says_what_resume_does(folder: Path) -> None:
    interrupt(folder)
    assert of(run(folder), "resume").sentence == "would continue after round 2; 5 rounds are planned"
    (folder / "checkpoints" / "000002.json").unlink()
    assert (
        of(run(folder), "resume").sentence == "would continue after round 1, repeating later ones; 5 rounds are planned"
    )
    said: list[str] = []
    assert len(resume(folder, watch=lambda record: said.append(record["round"])).rounds) == 5
    assert said == [2, 3, 4, 5]
    assert {finding.level for finding in run(folder)} == {"ok"}


def test_a_run_without_a_completed_round(folder: Path) -> None:
    interrupt(folder)
    shutil.rmtree(folder / "checkpoints")
    (folder / "rounds.jsonl").unlink()
    findings = run(folder)
    assert of(findings, "records").sentence == "0 of 5 rounds, none is missing"
    assert of(findings, "resume").sentence == "would begin with round 1; 5 rounds are planned"
    assert not wrong(findings)


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-1])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def drop_first_record(folder: Path) -> None:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text(lines[1] + "\n")


def other_torch(folder: Path) -> None:
    interrupt(folder)
    change(folder, versions={**json.loads((folder / "run.json").read_text())["versions"], "torch": "1.0"})


def other_seed(folder: Path) -> None:
    interrupt(folder)
    meta = json.loads((folder / "run.json").read_text())
    change(folder, experiment={**meta["experiment"], "seed": 1})


def other_method(folder: Path) -> None:
    meta = json.loads((folder / "run.json").read_text())
    change(folder, experiment={**meta["experiment"], "method": {"name": "fedavgg"}})


def own_data(folder: Path) -> None:
    meta = json.loads((folder / "run.json").read_text())
    change(folder, experiment={**meta["experiment"], "data": {"name": "gone.npz"}})


@pytest.mark.parametrize(
    ("damage", "what", "code", "sentence"),
    [
        (remove("run.json"), "run.json", 3, "cannot be read (No such file or directory)"),
        (write("run.json", "{"), "run.json", 3, "is not valid JSON"),
        (write("run.json", '{"format": 9, "name": "a", "label": "a", "seed": 0}'), "run.json", 3, "format 9"),
        (write("run.json", '{"format": 1, "name": "a", "label": "a", "seed": 0}'), "run.json", 3, "lacks digests"),
        (
            other_method,
            "run.json",
            2,
            "method 'fedavgg' is not built in; a plug-in's method needs --plugin FILE.py",
        ),
        (write("rounds.jsonl", 'no record\n{"round": 2}\n'), "records", 3, "line 1 of"),
        (lambda folder: change(folder, versions=[1]), "run.json", 3, "versions"),
        (lambda folder: change(folder, versions={}, status=""), "resume", 5, "made with fedalloy None, but this is"),
        (drop_first_record, "records", 3, "rounds.jsonl lacks round 1; resume repairs it if its second copy is intact"),
        (cut("checkpoints/000002.safetensors"), "checkpoint 2", 5, "the hash of 000002.safetensors is not the one"),
        (cut("checkpoints/000001.safetensors"), "checkpoint 1", 5, "the hash of 000001.safetensors is not the one"),
        (remove("checkpoints/000002.safetensors"), "checkpoint 2", 5, "No such file"),
        (write("checkpoints/000002.json", "[]"), "checkpoint 2", 5, "resume skips it"),
        (write("checkpoints/000003.json", "{}"), "checkpoint 3", 5, "000003.json is not a manifest"),
        (other_seed, "resume", 5, "the checkpoint of round 2 cannot be used"),
        (other_torch, "resume", 5, "would be refused: the run was made with torch 1.0, but this is 2."),
        (own_data, "data", 3, "there is no 'gone.npz' here"),
    ],
)
def test_each_broken_thing_is_named(
    folder: Path, damage: Callable[[Path], object], what: str, code: int, sentence: str
) -> None:
    damage(folder)
    before = content(folder)
    findings = run(folder)
    first = wrong(findings)[0]
    assert (first.what, first.code) == (f"{folder} {what}", code)
    assert sentence in first.sentence
    assert exit_code(findings) == code
    assert content(folder) == before


def test_a_description_is_taken_from_its_copy(folder: Path) -> None:
    (folder / "run.json").write_text("{")
    findings = run(folder)
    assert [finding.what for finding in wrong(findings)] == [f"{folder} run.json"]
    assert of(findings, "run.json").sentence.endswith("resume restores it from its copy")
    assert of(findings, "resume").sentence == "nothing is left to do after round 2; --rounds adds more"
    resume(folder, rounds=2)
    assert not wrong(run(folder))


def test_records_are_taken_from_their_second_copy(folder: Path) -> None:
    (folder / "rounds.jsonl").write_text("no record\nno record\n")
    findings = run(folder)
    assert [finding.what for finding in wrong(findings)] == [f"{folder} records"]
    assert of(findings, "resume").sentence == "nothing is left to do after round 2; --rounds adds more"
    assert len(resume(folder, rounds=3).rounds) == 3
    assert not wrong(run(folder))


def test_without_any_whole_checkpoint_there_is_nothing_to_go_on_from(folder: Path) -> None:
    for number in (1, 2):
        (folder / "checkpoints" / f"00000{number}.safetensors").write_bytes(b"")
    findings = run(folder)
    assert [finding.code for finding in wrong(findings)] == [5, 5, 5]
    assert of(findings, "resume").sentence.endswith("is intact; start again in another folder")


@pytest.mark.parametrize("torn", ['{"round": 3, "vie', "[" * 100_000], ids=["cut", "deep"])
def test_what_does_not_stop_a_run_is_a_warning(folder: Path, torn: str) -> None:
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(torn)
    (folder / "quarantine").mkdir()
    other_torch(folder)
    change(folder, status="done")
    findings = run(folder)
    assert [f.what.rpartition(" ")[2] for f in findings if f.level == "warn"] == ["records", "quarantine", "resume"]
    assert "a torn line, which resume removes" in of(findings, "records").sentence
    assert exit_code(findings) == 0


def test_what_a_run_needs_again_is_looked_for(store: Path) -> None:
    own = experiment({"data": "ours", "model": "mine", "public": {"data": "one"}})
    assert [(finding.level, finding.what) for finding in doctor._ingredients(own)] == [
        *(("warn", "data"), ("warn", "one"), ("warn", "model"))
    ]
    assert doctor._ingredients(experiment({"public": {"data": "own"}})) == []


def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(folder)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert [(f.what, f.code) for f in wrong(run(folder))] == [(f"{folder} resume", 4)]


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists its locks")
def test_who_holds_the_lock_is_said(folder: Path, tmp_path: Path) -> None:
    with Store(folder).locked():
        assert [finding.what.rpartition(" ")[2] for finding in run(folder)] == ["run.json", "lock"]
        held = of(run(folder), "lock")
        assert held.level == "warn"
        assert held.sentence.startswith(f"process {os.getpid()} writes here")
        assert doctor._lock(folder, tmp_path / "none").sentence.startswith(f"process {os.getpid()} writes here, or was")
    assert of(run(folder), "lock").sentence == "no process writes here"
    (folder / "run.lock").write_text("123\n")
    assert of(run(folder), "lock").sentence == "a killed process left run.lock behind, which does no harm"


def test_a_strangers_text_is_one_harmless_line(folder: Path) -> None:
    change(folder, label="\x1b[2J\nok    all is well\u202e")
    line = str(of(run(folder), "run.json"))
    assert line.isprintable()
    assert "?[2J?ok    all is well?" in line


def test_folders_of_runs_and_folders_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "several" / "a")
    shutil.copytree(folder, tmp_path / "several" / "b")
    (tmp_path / "several" / "b" / "run.json").write_text("")
    findings = examine([tmp_path / "several", tmp_path / "nowhere"])
    assert next((f.what, f.code) for f in wrong(findings)) == (f"{tmp_path / 'several' / 'b'} run.json", 3)
    assert of(findings, "nowhere").sentence.startswith("there is no such folder")


# --- data sets --------------------------------------------------------------------------------------------------------


def published(name: str, **more: Any) -> RemoteFile:
    return RemoteFile(name, "home", f"sha256:{hashlib.sha256(name.encode()).hexdigest()}", ("http://x/",), **more)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two data sets of one and two small files; the first has a compact copy, the second another place and hash."""
    again = f"md5:{hashlib.md5(b'packed anew').hexdigest()}"
    pair = (published("b1"), published("b2", layouts=("raw/b2",), repacked=(again,)))
    monkeypatch.setattr(files, "SETS", {"one": ((published("a"),), (published("small"),)), "two": (pair, ())})
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("FEDALLOY_DATA", raising=False)
    folder = tmp_path / "data"
    (folder / "home").mkdir(parents=True)
    (folder / "raw").mkdir()
    return folder


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(Path(name).name)


@pytest.mark.parametrize("by_variable", [True, False])
def test_a_data_folder(store: Path, by_variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_variable:
        monkeypatch.setenv("FEDALLOY_DATA", str(store))

    def levels() -> list[str]:
        return [finding.level for finding in data(None if by_variable else store)[1:3]]

    assert levels() == ["warn", "warn"]
    put(store, "home/small", "home/b1")
    assert levels() == ["ok", "warn"]
    half = data(None if by_variable else store)[2].sentence
    assert half.startswith("without b2; a run downloads what is missing, or put it into ")
    put(store, "home/a", "raw/b2")
    assert levels() == ["ok", "ok"]
    (store / "raw" / "b2").write_text("packed anew")
    assert levels() == ["ok", "ok"]
    before = content(store)
    (store / "home" / "b1").write_text("damaged")
    findings = examine([] if by_variable else [store])
    assert [(finding.what, finding.code) for finding in wrong(findings)] == [("two", 3)]
    assert str(store / "home" / "b1") in wrong(findings)[0].sentence
    assert exit_code(findings) == 3
    assert content(store).keys() == before.keys()


def test_a_variable_that_names_no_folder_is_one_finding(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALLOY_DATA", str(store / "nowhere"))
    assert [(finding.what, finding.code) for finding in data()] == [("FEDALLOY_DATA", 3)]


def test_every_data_set_is_looked_for() -> None:
    ours = {name for name, source in datasets.items() if source.read.__module__.startswith("fedalloy.")}
    assert {*files.SETS, "fashion-mini", "tiny", "hospitals"} == ours


# --- the machine ------------------------------------------------------------------------------------------------------


def test_the_lines_of_a_machine() -> None:
    findings = machine()
    assert {finding.what for finding in findings} >= {
        *("Python", "torch", "cores", "memory", "disk here", "temporary files", "shared memory", "malloc", "plug-ins"),
        *("extra flower", "extra privacy"),
    }
    assert "extra dev" not in {finding.what for finding in findings}
    assert all(finding.sentence and "\n" not in finding.sentence for finding in findings)


def test_a_container_that_grants_less_than_it_shows(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    for text, level in (("150000 100000", "warn"), ("max 100000", "ok"), ("6400000 100000", "ok")):
        quota.write_text(text)
        assert doctor._cores(64, quota).level == level
    quota.write_text("150000 100000")
    assert doctor._cores(64, quota).sentence.endswith("grants 1.5 of them; write workers = 1")
    assert doctor._cores(64, tmp_path / "none").level == "ok"


def test_little_memory(tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal: 9000000 kB\nMemAvailable: 1000000 kB\n")
    assert doctor._memory(2, table).level == "ok"
    assert doctor._memory(4, table).sentence == "1.02 GB is little for 4 workers; write workers = 2"
    assert doctor._memory(4, tmp_path / "none").level == "ok"


@pytest.mark.parametrize(("free", "level", "code"), [(2e9, "ok", 0), (5e8, "warn", 0), (1e6, "wrong", 4)])
def test_little_room(free: float, level: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(int(2e9), 0, int(free)))
    found = doctor._room("disk here", tmp_path, "advice")
    assert (found.level, found.code) == (level, code)
    assert ("advice" in found.sentence) == (level != "ok")


def test_a_folder_without_rights_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert doctor._room("disk here", tmp_path, "advice").code == 4
    assert doctor._room("disk here", tmp_path / "none", "advice").code == 4


def test_extras_and_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._extra("x", ["torch", "numpy"]).sentence.startswith("torch 2.")
    half = doctor._extra("x", ["torch", "no-such-package"])
    assert (half.level, "without no-such-package; pip install" in half.sentence) == ("warn", True)
    assert doctor._extra("x", ["no-such-package"]).level == "ok"

    def fail() -> None:
        raise UsageError("the installed plug-in 'x' failed: oh")

    monkeypatch.setattr(plugins, "load_installed", fail)
    assert doctor._plugins() == Finding(
        "wrong", "plug-ins", "the installed plug-in 'x' failed: oh; fix or uninstall it", 2
    )


# --- the command and its codes ----------------------------------------------------------------------------------------


def test_the_command_prints_a_line_for_each_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", str(folder)])
    assert not left.value.code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(run(folder))
    assert all(line.startswith("ok    ") for line in lines)
    cut("checkpoints/000002.safetensors")(folder)
    with pytest.raises(SystemExit) as left:
        main(["doctor", str(folder)])
    assert left.value.code == 5
    assert f"wrong {folder} checkpoint 2: the hash of 000002.safetensors" in capsys.readouterr().out


def refusals(kind: type[FedalloyError]) -> set[type[FedalloyError]]:
    return {kind}.union(*(refusals(below) for below in kind.__subclasses__()))


def test_every_kind_of_refusal_has_its_row_in_the_documentation() -> None:
    for module in pkgutil.walk_packages(fedalloy.__path__, "fedalloy."):
        importlib.import_module(module.name)
    ours = {(kind.code, kind.__name__) for kind in refusals(FedalloyError) if kind.__module__.startswith("fedalloy.")}
    page = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page.partition("\n## Exit codes\n")[2], flags=re.MULTILINE)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert rows[0] == ["Code", "Error", "Meaning", "What to do"]
    assert all(len(row) == 4 and all(row) for row in rows)
    named = {(int(row[0]), name) for row in rows[2:] for name in re.findall(r"`(\w+Error)`", row[1])}
    assert named == ours
    codes = [int(row[0]) for row in rows[2:]]
    assert codes == sorted(set(codes))
    assert codes[0] == 0
