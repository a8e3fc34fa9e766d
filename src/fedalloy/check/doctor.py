"""What works and what is wrong with this machine, a folder of data sets, or the folder of a run; read-only.

Each check gives one finding: ok, warn (it works, but not as well as it could) or wrong, with what to do about it. Text
from a file is printed without control characters, since the file may be untrusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fedalloy.base import plugins
from fedalloy.base.text import human_bytes, listed
from fedalloy.config.sections import Experiment
from fedalloy.data import datasets, fetch, files, load_data
from fedalloy.data.catalogue import LISTED
from fedalloy.data.fetch import RemoteFile
from fedalloy.data.own.dataset import is_own
from fedalloy.engine.cores import usable_cores
from fedalloy.engine.malloc import tune_malloc
from fedalloy.errors import CheckpointError, DataError, FedalloyError, StorageError, UsageError
from fedalloy.nets.models import models
from fedalloy.run.opened import Opened, open_run
from fedalloy.run.runner import versions
from fedalloy.storage.checkpoints import Checkpoints, read_checkpoint
from fedalloy.storage.results import read, read_one_meta

WORKER = 500_000_000  # bytes of memory that a worker may need, most of it for torch
LITTLE, TOO_LITTLE = 1_000_000_000, 50_000_000  # bytes of free disk space

# What reading an untrusted file may raise.
BROKEN = (FedalloyError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Finding:
    """The result of one check; `code` is the exit code of its kind if something is wrong.

    >>> print(Finding("warn", "memory", "1.0 GB is free\\x1b"))
    warn  memory: 1.0 GB is free?
    """

    level: Literal["ok", "warn", "wrong"]
    what: str
    sentence: str
    code: int = 0

    def __str__(self) -> str:
        line = f"{self.level:<5} {self.what}: {self.sentence}"
        return "".join(letter if letter.isprintable() else "?" for letter in line)


def examine(paths: Iterable[str | Path] = ()) -> list[Finding]:
    """Check folders, each of a run, of several runs or of data sets; without any, this machine and its data."""
    folders = [Path(path) for path in paths]
    if not folders:
        return [*machine(), *data()]
    return [_plugins(), *(finding for folder in folders for finding in _folder(folder))]


def exit_code(findings: Iterable[Finding]) -> int:
    """The exit code of the first wrong finding, or 0.

    >>> exit_code([Finding("warn", "a", ""), Finding("wrong", "b", "", 5), Finding("wrong", "c", "", 3)])
    5
    """
    return next((finding.code for finding in findings if finding.level == "wrong"), 0)


def _folder(folder: Path) -> list[Finding]:
    if not folder.is_dir():
        return [_wrong(str(folder), DataError("there is no such folder; name that of a run or of data sets"))]
    if any((folder / name).exists() for name in ("run.json", "rounds.jsonl", "checkpoints")):
        return run(folder)
    runs = sorted(file.parent for file in folder.glob("**/run.json"))
    return [finding for inside in runs for finding in run(inside)] or data(folder)


def _wrong(what: str, error: BaseException) -> Finding:
    code = error.code if isinstance(error, FedalloyError) else DataError.code
    return Finding("wrong", what, _said(error), code)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


# --- the machine ------------------------------------------------------------------------------------------------------


def machine() -> list[Finding]:
    """Check what every run needs, and what is available in addition."""
    return [
        Finding("ok", "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("ok", "torch", f"{torch.__version__}, {torch.get_num_threads()} threads; a worker uses one"),
        _cores(usable_cores(), Path("/sys/fs/cgroup/cpu.max")),
        _memory(usable_cores()),
        _room("disk here", Path(), "runs are written below this folder unless --out names another"),
        _room("temporary files", Path(tempfile.gettempdir()), "set TMPDIR to a folder with more space"),
        _shared(Path("/dev/shm")),
        _malloc(),
        _plugins(),
        *_extras(),
    ]


def _cores(usable: int, quota: Path) -> Finding:
    try:
        limit, period = quota.read_text().split()
        granted = float(limit) / float(period)
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        granted = float(usable)
    if granted < usable:
        advice = f"{usable}, but the container grants {granted:.1f} of them; write workers = {max(1, int(granted))}"
        return Finding("warn", "cores", advice)
    return Finding("ok", "cores", f"{usable}; that many clients run side by side")


def _memory(workers: int, table: Path = Path("/proc/meminfo")) -> Finding:
    try:
        lines = dict(line.split(":") for line in table.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, LookupError):  # only Linux reports it there
        return Finding("ok", "memory", "this system does not say how much is free")
    if free < WORKER * workers:
        fewer = max(1, free // WORKER)
        return Finding(
            "warn", "memory", f"{human_bytes(free)} is little for {workers} workers; write workers = {fewer}"
        )
    return Finding("ok", "memory", f"{human_bytes(free)} is free")


def _room(what: str, folder: Path, advice: str) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return _wrong(what, StorageError(f"'{folder.absolute()}' cannot be used: {error.strerror}; {advice}"))
    if not os.access(folder, os.W_OK):
        return _wrong(what, StorageError(f"nothing can be written to '{folder.absolute()}'; {advice}"))
    if free < TOO_LITTLE:
        return _wrong(what, StorageError(f"only {human_bytes(free)} is free; make room, or {advice}"))
    if free < LITTLE:
        return Finding("warn", what, f"only {human_bytes(free)} is free; {advice}")
    return Finding("ok", what, f"{human_bytes(free)} is free")


def _shared(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free < LITTLE:
        advice = "workers share large data through temporary files; a container gets more with --shm-size"
        return Finding("warn", "shared memory", f"{human_bytes(free)}, so that {advice}")
    return Finding("ok", "shared memory", f"{human_bytes(free)} is free")


def _malloc() -> Finding:
    if tune_malloc():
        return Finding("ok", "malloc", "glibc can be told to keep freed memory, which saves page faults")
    return Finding("warn", "malloc", "this is not glibc: results are the same, rounds take somewhat longer")


def _plugins() -> Finding:
    try:
        plugins.load_installed()
    except UsageError as error:
        return _wrong("plug-ins", UsageError(f"{error}; fix or uninstall it"))
    return Finding("ok", "plug-ins", "all that are installed can be loaded")


def _extras() -> list[Finding]:
    wanted: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("fedalloy") or []:
        found = re.fullmatch(r"([\w.-]+).*; extra == ['\"](\w+)['\"]", line)
        if found is not None and found[2] != "dev":
            wanted.setdefault(found[2], []).append(found[1])
    return [_extra(extra, names) for extra, names in sorted(wanted.items())]


def _extra(extra: str, names: Sequence[str]) -> Finding:
    found = {name: version for name in names if (version := _version(name)) is not None}
    have = listed([f"{name} {version}" for name, version in found.items()])
    install = f'pip install ".[{extra}]" in a clone'
    if len(found) == len(names):
        return Finding("ok", f"extra {extra}", have)
    if found:
        lacking = listed([name for name in names if name not in found])
        return Finding("warn", f"extra {extra}", f"{have} without {lacking}; {install}")
    return Finding("ok", f"extra {extra}", f"not installed; {install} if you want it")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# --- data sets --------------------------------------------------------------------------------------------------------


def data(folder: Path | None = None) -> list[Finding]:
    """Check which data sets are in a folder, or where a run looks for them; say how to get the missing ones."""
    own = os.environ.get("FEDALLOY_DATA")
    if folder is None and own and not Path(own).expanduser().is_dir():
        return [_wrong("FEDALLOY_DATA", DataError(f"names '{own}', which is not a folder; correct or unset it"))]
    where = str(folder) if folder is not None else f"{f'{own}, then ' if own else ''}{fetch.cache_folder()}"
    return [
        Finding("ok", "data sets", f"looked for in {where}"),
        *(_set(name, folder) for name in files.SETS),
        *([_built_in()] if folder is None else []),
    ]


def _built_in() -> Finding:
    try:
        load_data("fashion-mini")
    except (DataError, OSError) as error:
        return _wrong("fashion-mini", DataError(f"{error}; install fedalloy again"))
    return Finding("ok", "fashion-mini", "it comes with fedalloy, and so do tiny and hospitals")


def _set(name: str, folder: Path | None = None) -> Finding:
    published, compact = files.SETS[name]
    try:
        found = {file: path for file in published if (path := _find(file, folder)) is not None}
        small = [path for file in compact if (path := _find(file, folder)) is not None] if not found else []
    except (DataError, OSError) as error:
        return _wrong(name, error)
    if len(found) == len(published):
        return Finding(
            "ok", name, f"{_right(len(found))}, in {listed(sorted({str(p.parent) for p in found.values()}))}"
        )
    if compact and len(small) == len(compact):
        return Finding("ok", name, f"the compact copy, {_right(len(small))}: {small[0]}")
    lacking = listed([file.name for file in published if file not in found])
    place = (folder or fetch.cache_folder()) / published[0].home
    return Finding("warn", name, f"without {lacking}; a run downloads what is missing, or put it into '{place}'")


def _right(count: int) -> str:
    return "a file with the right hash" if count == 1 else f"{count} files with the right hashes"


def _find(file: RemoteFile, folder: Path | None) -> Path | None:
    if folder is None:
        return fetch.find(file)
    for place in (f"{file.home}/{file.name}", *file.layouts):
        if (folder / place).is_file():
            if not _is_published(folder / place, file):
                raise DataError(f"'{folder / place}' is corrupt or another file; put the published {file.name} there")
            return folder / place
    return None


def _is_published(path: Path, file: RemoteFile) -> bool:
    def right(known: str) -> bool:
        kind, _, value = known.partition(":")
        with open(path, "rb") as content:
            return hashlib.file_digest(content, kind).hexdigest() == value

    return any(right(known) for known in (file.hash, *file.repacked))


# --- a run ------------------------------------------------------------------------------------------------------------


def run(folder: Path) -> list[Finding]:
    """Check that a run's folder is complete, which process is using it, and what `fedalloy resume` would do."""
    return [
        Finding(found.level, f"{folder} {found.what}", found.sentence, found.code) for found in _run_findings(folder)
    ]


def _run_findings(folder: Path) -> list[Finding]:
    try:
        opened = open_run(folder)
    except BROKEN as error:
        return [_wrong("run.json", error), *_checkpoints(folder), _lock(folder)]
    exp, description, lock = opened.experiment, _description(folder, opened.meta), _lock(folder)
    if lock.level == "warn":  # a file that is being written may be incomplete at this moment
        return [description, lock]
    return [
        description,
        _records(folder, exp.rounds),
        *_checkpoints(folder),
        *_ingredients(exp),
        lock,
        _resume(opened),
    ]


def _description(folder: Path, meta: Mapping[str, Any]) -> Finding:
    try:
        read_one_meta(folder / "run.json")
    except DataError as error:
        return _wrong("run.json", DataError(f"{str(error).split(';')[0]}; resume restores it from its copy"))
    return Finding("ok", "run.json", f"{meta['label']}, seed {meta['seed']}, {meta.get('status', 'of unknown status')}")


def _records(folder: Path, planned: int) -> Finding:
    try:
        rounds = _recorded(folder)
        lacking = next((number for number in range(1, max(rounds, default=0)) if number not in rounds), None)
        if lacking is not None:
            raise DataError(f"rounds.jsonl lacks round {lacking}; resume repairs it if its second copy is intact")
    except BROKEN as error:
        return _wrong("records", error)
    try:
        json.loads((folder / "rounds.jsonl").read_bytes().rstrip().rpartition(b"\n")[2] if rounds else "0")
    except (ValueError, RecursionError):
        return Finding("warn", "records", f"{len(rounds)} of {planned} rounds, and a torn line, which resume removes")
    return Finding("ok", "records", f"{len(rounds)} of {planned} rounds, none is missing")


def _recorded(folder: Path) -> set[int]:
    return {int(record["round"]) for record in read(folder).rounds}


def _checkpoints(folder: Path) -> list[Finding]:
    findings = []
    for manifest in Checkpoints(folder / "checkpoints").generations():
        what = f"checkpoint {int(manifest.stem)}"
        try:
            read_checkpoint(manifest)
        except BROKEN as error:
            findings.append(_wrong(what, CheckpointError(f"{_said(error)}; resume skips it")))
        else:
            findings.append(Finding("ok", what, "intact, every hash is right"))
    if (folder / "quarantine").exists():
        findings.append(Finding("warn", "quarantine", "damaged checkpoints, found on resuming; it can be deleted"))
    return findings


def _ingredients(exp: Experiment) -> list[Finding]:
    """The data sets that the run needs again, unless they come with fedalloy, and networks that have no name here."""
    findings = []
    for name in [exp.data.name, *([exp.public.data] if exp.public is not None and exp.public.data != "own" else [])]:
        if name in files.SETS:
            findings.append(_set(name))
        elif name == LISTED:
            gone = [
                _wrong("data", DataError(f"there is no '{client.data}' here; run doctor where the run began"))
                for client in exp.clients
                if client.data is not None and not Path(client.data).exists()
            ]
            findings += gone or [Finding("ok", "data", f"the data of {len(exp.clients)} clients is there")]
        elif name not in datasets and is_own(name):
            there = Path(name).exists()
            lacking = _wrong("data", DataError(f"there is no '{name}' here; run doctor where the run began"))
            findings.append(Finding("ok", "data", f"{name} is there") if there else lacking)
        elif name not in datasets:
            findings.append(
                Finding("warn", "data", f"'{name}' is not a built-in data set; add --plugin, or resume in Python")
            )
    for name in [exp.model.name, *(part.name for part in exp.models)]:
        if name not in models:
            findings.append(
                Finding("warn", "model", f"'{name}' is not a built-in network; add --plugin, or resume in Python")
            )
    return findings


def _lock(folder: Path, table: Path = Path("/proc/locks")) -> Finding:
    """Who holds the lock, from the kernel's list: trying the lock would take it, and block a process that needs it."""
    file = folder / "run.lock"
    if not file.exists():
        return Finding("ok", "lock", "no process writes here")
    if not table.exists():
        name = file.read_text(errors="replace")[:20].strip()
        return Finding("warn", "lock", f"process {name} writes here, or was killed; check whether it is running")
    for line in table.read_text().splitlines():
        *_, process, where, _, _ = line.split()
        if where == _address(file):
            return Finding("warn", "lock", f"process {process} writes here; leave the folder to it until it ends")
    return Finding("ok", "lock", "a killed process left run.lock behind, which does no harm")


def _address(path: Path) -> str:
    found = path.stat(follow_symlinks=False)
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"


def _resume(opened: Opened) -> Finding:
    folder, meta, planned = opened.folder, opened.meta, opened.experiment.rounds
    passed_over: list[str] = []
    try:
        saved = opened.store.restore(passed_over.append)
    except CheckpointError as error:
        return _wrong("resume", CheckpointError("; ".join([*passed_over, str(error)])))
    except BROKEN as error:
        return _wrong("resume", error)
    finished = meta.get("status") == "done"
    then = meta["versions"]
    for key, now in versions(private="opacus" in then).items():
        if then.get(key) != now:
            sentence = f"would be refused: the run was made with {key} {then.get(key)}, but this is {now}"
            level: Literal["warn", "wrong"] = "warn" if finished else "wrong"
            return Finding(level, "resume", f"{sentence}; use that version, or start a new run", CheckpointError.code)
    if not finished and not os.access(folder, os.W_OK):
        return _wrong("resume", StorageError(f"nothing can be written to '{folder}'; change its owner or mode"))
    done, latest = saved[0].round if saved is not None else 0, 0
    with contextlib.suppress(*BROKEN):  # resume has a second copy of the records
        latest = max(_recorded(folder), default=0)
    if finished and done >= latest:
        return Finding("ok", "resume", f"nothing is left to do after round {done}; --rounds adds more")
    begun = f"continue after round {done}" if done else "begin with round 1"
    plan = f"would {begun}{', repeating later ones' if latest > done else ''}; {planned} rounds are planned"
    if passed_over:
        return _wrong("resume", CheckpointError("; ".join([*passed_over, plan])))
    return Finding("ok", "resume", plan)
