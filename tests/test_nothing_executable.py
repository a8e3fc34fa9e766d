"""Nothing executable is ever loaded, and no name leads a write out of its folder.

Three proofs: what the source says (every call that could run what it reads is named here, with its reason), what a
session does (Python's own audit events), and what hostile names do (the tree of files before and after).
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedalloy.base import files
from fedalloy.cli.main import main
from fedalloy.config import build as build_module
from fedalloy.config.experiment import experiment
from fedalloy.config.sections import Choice
from fedalloy.data import load_data
from fedalloy.errors import DataError, SecurityError, UsageError
from fedalloy.methods import FedAvg
from fedalloy.report import html
from fedalloy.report.export import export_model, loading_lines
from fedalloy.report.svg import save
from fedalloy.run.comparison import compare, slug
from fedalloy.run.runner import simulate
from fedalloy.storage.store import Store

ROOT = Path(__file__).parents[1]
HOME = ROOT / "src" / "fedalloy"

# --- what the source says ---------------------------------------------------------------------------------------------

# Modules whose business is to make objects or code from bytes or text; multiprocessing pickles what crosses its pipes.
MODULES = (
    *("pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle", "yaml", "runpy", "code", "codeop"),
    *("multiprocessing", "torch.multiprocessing", "torch.package", "torch.hub", "torch.jit"),
)
NAMES = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"),
    *("subprocess.getstatusoutput", "torch.load", "torch.save", "jinja2.Template", "shutil.unpack_archive"),
    "importlib.metadata.entry_points",
}
FAMILIES = (
    "pickle.",
    "marshal.",
    "torch.jit.",
    "torch.hub.",
    "builtins.",
    "importlib.util.",
    "importlib.machinery.",
    "os.exec",
)
METHODS = {"exec_module", "load_module", "find_class", "from_string", "extractall"}
LITERAL_ONLY = {"importlib.import_module", "ctypes.CDLL", "ctypes.PyDLL"}  # of which the first argument names code

Use = tuple[str, str]  # the function in which it stands, and what it is


class Watch(ast.NodeVisitor):
    """Collects every use of the above, under whatever name it was imported."""

    def __init__(self) -> None:
        self.found: set[Use] = set()
        self.scope: list[str] = []
        self.meaning: dict[str, str] = {}  # of a name in this file

    def note(self, what: str) -> None:
        self.found.add((".".join(self.scope), what))

    def imported(self, dotted: str) -> None:
        if any(dotted == module or dotted.startswith(f"{module}.") for module in MODULES):
            self.note(f"import {dotted}")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.meaning[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
            self.imported(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imported(node.module or "")
        for alias in node.names:
            self.meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            if node.module in ("torch", "importlib", "os", "builtins"):
                self.imported(f"{node.module}.{alias.name}")

    def name_of(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self.meaning.get(node.id, node.id)
        return f"{self.name_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"

    def visit_Name(self, node: ast.Name) -> None:
        self.used(self.name_of(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.used(self.name_of(node))
        if node.attr in METHODS:
            self.note(f".{node.attr}")
        self.visit(node.value)

    def used(self, name: str) -> None:
        if name in NAMES or name.startswith(FAMILIES):
            self.note(name)

    def visit_Call(self, node: ast.Call) -> None:
        name = self.name_of(node.func)
        if name.startswith("multiprocessing.connection.Connection"):
            self.note("a pipe that pickles")
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name == "numpy.load" and "allow_pickle" not in given:
            self.note("numpy.load without allow_pickle=False")
        for keyword in ("allow_pickle", "shell"):
            value = given.get(keyword)
            if value is not None and not (isinstance(value, ast.Constant) and value.value is False):
                self.note(f"{keyword} that is not False")
        if name in LITERAL_ONLY and not (node.args and isinstance(node.args[0], ast.Constant)):
            self.note(f"{name} of a name that is computed")
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        self.scope += [node.name] if named else []
        super().generic_visit(node)
        self.scope = self.scope[:-1] if named else self.scope


def uses(source: str) -> set[Use]:
    watch = Watch()
    watch.visit(ast.parse(source))
    return watch.found


PIPE = "the pool's pipe to its own workers, on this machine, made by a socketpair that nobody else can reach"
ASKED_FOR = "a user's own code: a file named by --plugin, or an installed package that announces itself"
ALLOWED: Mapping[tuple[str, str, str], str] = {
    ("engine/pool.py", "", "import multiprocessing.connection"): PIPE,
    ("engine/worker.py", "", "import multiprocessing.connection"): PIPE,
    ("engine/tasks.py", "", "import multiprocessing.connection"): PIPE,
    ("engine/pool.py", "", "import pickle"): "can_cross asks whether the pipe can carry a method",
    ("engine/pool.py", "can_cross", "pickle.dumps"): "writes only, and throws away what it wrote",
    ("engine/pool.py", "can_cross", "pickle.PicklingError"): "the answer no",
    ("engine/pool.py", "_Worker.__init__", "a pipe that pickles"): PIPE,
    ("engine/worker.py", "main", "a pipe that pickles"): PIPE,
    ("reproduce/making.py", "", "import multiprocessing"): PIPE,
    ("campaign.py", "main", "os.execvpe"): "starts itself again in the work tree that it has pinned",
    ("base/plugins.py", "load_file", "importlib.util.spec_from_file_location"): ASKED_FOR,
    ("base/plugins.py", "load_file", "importlib.util.module_from_spec"): ASKED_FOR,
    ("base/plugins.py", "load_file", ".exec_module"): ASKED_FOR,
    ("base/plugins.py", "load_installed", "importlib.metadata.entry_points"): ASKED_FOR,
    ("__init__.py", "__getattr__", "importlib.import_module of a name that is computed"): "a key of _HOMES, see below",
    ("train/privacy.py", "_library", "importlib.import_module of a name that is computed"): "a literal of its caller's",
    (
        "report/trackers.py",
        "Tracker.__init__",
        "importlib.import_module of a name that is computed",
    ): "a class's constant",
    ("data/own/arrow.py", "library", "importlib.import_module of a name that is computed"): "a part of pyarrow",
    ("deploy/warm.py", "warmed", "importlib.import_module of a name that is computed"): "names in a constant",
}


def test_every_use_that_could_execute_is_allowed_and_needed() -> None:
    found = {
        (str(file.relative_to(home)), *use)
        for home in (HOME, ROOT / "tools")
        for file in sorted(home.rglob("*.py"))
        for use in uses(file.read_text(encoding="utf-8"))
    }
    assert found - set(ALLOWED) == set(), "not allowed"
    assert set(ALLOWED) - found == set(), "allowed, but nobody does it any more: remove it from ALLOWED"


def test_the_names_that_are_computed_are_our_own() -> None:
    """The imports above take a name from their caller: it is a literal there too."""
    import fedalloy

    assert all(home.startswith("fedalloy.") for home in fedalloy._HOME.values())
    calls = [
        node for node in ast.walk(ast.parse((HOME / "train/privacy.py").read_text())) if isinstance(node, ast.Call)
    ]
    asked = [call.args for call in calls if isinstance(call.func, ast.Name) and call.func.id == "_library"]
    assert asked
    assert all(isinstance(name, ast.Constant) for (name,) in asked)
    arrow = [
        node.args[0]
        for file in (HOME / "data" / "own").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "library"
    ]
    assert arrow
    assert all(isinstance(name, ast.Constant) and name.value.split(".")[0] == "pyarrow" for name in arrow)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle as harmless",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load as read\nread('x')",
        "import torch as t\nf = t.save",
        "import numpy as np\nnp.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "from numpy import load\nload('x')",
        "import yaml\nyaml.load(text)",
        "eval(text)",
        "list(map(exec, texts))",
        "compile(text, 'x', 'exec')",
        "import builtins\nbuiltins.eval(text)",
        "__import__(name)",
        "import importlib\nimportlib.import_module(name)",
        "from importlib import import_module as get\nget(name)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import os\nos.system(text)",
        "from os import popen\npopen(text)",
        "import ctypes\nctypes.CDLL(path)",
        "environment.from_string(text)",
        "archive.extractall(folder)",
        "from multiprocessing import Queue",
        "def f():\n    import shelve",
    ],
)
def test_a_use_that_could_execute_is_found(line: str) -> None:
    assert uses(line)


@pytest.mark.parametrize(
    "line",
    [
        "net.eval()",
        "import re\nre.compile('x')",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import safetensors.torch\nsafetensors.torch.load(data)",
        "import importlib\nimportlib.import_module('torch')",
        "import subprocess\nsubprocess.Popen(['ls'])",
        "import importlib.metadata\nimportlib.metadata.version('torch')",
        "import ctypes\nctypes.CDLL('libc.so.6')",
        "import json\njson.loads(text)",
    ],
)
def test_what_cannot_execute_is_left_alone(line: str) -> None:
    assert not uses(line)


# --- what a session does ----------------------------------------------------------------------------------------------

MARK = "__import__('os').system('touch canary')"
SESSION = """
import importlib, json, pkgutil, sys
from pathlib import Path
import fedalloy
from fedalloy.cli.main import main
from fedalloy.report import html

for module in pkgutil.walk_packages(fedalloy.__path__, "fedalloy."):
    importlib.import_module(module.name)
ours, mark, events = str(Path(fedalloy.__file__).parent), sys.argv[1], []

def watch(event, details):
    if event in ("exec", "compile", "os.system", "subprocess.Popen", "pickle.find_class"):
        caller = sys._getframe(1).f_code.co_filename
        source = details[0] if event == "compile" else ""
        text = source.decode(errors="replace") if isinstance(source, bytes) else str(source)
        if event == "pickle.find_class" or caller.startswith(ours) or mark in text:
            events.append([event, caller, text[:200]])

def fedalloy_command(*words):
    try:
        main(words)
    except SystemExit as left:
        assert not left.code, (words, left.code)

sys.addaudithook(watch)
page, html.write_report = html.write_report, lambda *_, **__: "left out"  # one page is enough
fedalloy_command("run", "experiment.toml", "--out", "run")
meta = json.loads(Path("run/run.json").read_text())
Path("run/run.json").write_text(json.dumps({**meta, "label": mark + "{{ 7 * 7 }}"}))
fedalloy_command("resume", "run", "--rounds", "2")
html.write_report = page
fedalloy_command("report", "run", "--out", "page.html")
fedalloy_command("export", "run")
during, events = list(events), []
import collections, pickle  # the watch itself is tried
pickle.loads(pickle.dumps(collections.Counter()))
compile(mark, "mark", "eval")
print(json.dumps([during, events]))
"""


def test_a_session_executes_nothing_that_it_reads(tmp_path: Path) -> None:
    """A run, its resuming, its report and its export, with code in the texts of both files that are read."""
    (tmp_path / "experiment.toml").write_text(
        'rounds = 1\ndata = "tiny"\nmodel = "mlp"\nengine = "serial"\npartition = {name = "iid", clients = 2}\n'
        f'[[published]]\nsource = "{MARK}"\nmetrics = ["amp"]\nrows = [["FedAvg", "aca", "50"]]\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", SESSION, MARK],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    during, afterwards = json.loads(done.stdout.splitlines()[-1])
    assert during == []
    assert {event for event, *_ in afterwards} == {"pickle.find_class", "compile"}
    assert MARK.replace("'", "&#39;") in (tmp_path / "page.html").read_text()
    assert not (tmp_path / "canary").exists()


# --- what hostile names do --------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [4]},
    "engine": "serial",
    "rounds": 1,
    "partition": {"name": "iid", "clients": 2},
}
HOSTILE = [
    *("../../escape", "a/../../../escape", "..", ".", "", " ", "~/escape", "nul\0byte", "new\nline", "C:\\escape"),
    *("..\\..\\escape", "%2e%2e%2fescape", "x" * 300, "../" * 100, "\u202egnp.exe", "-rf", "--out=escape", "CON"),
    *("$(touch escape)", "|touch escape", "a\x1b[2Jb", "\udc80", "o' + __import__('os').system('touch escape') + '"),
]
SAFE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        patch.setattr(html, "write_report", lambda _, path, **__: path)
        yield


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder so deep that the way up of a hostile name still ends below `tmp_path`; commands are called beside it."""
    (tmp_path / "a" / "b" / "inside").mkdir(parents=True)
    (tmp_path / "a" / "here").mkdir()
    (tmp_path / "victim").write_text("untouched")
    monkeypatch.chdir(tmp_path / "a" / "here")
    return tmp_path / "a" / "b" / "inside"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    simulate(TINY, folder)
    return folder


def outside(inside: Path) -> dict[str, str]:
    """Every file that is not inside, with its content."""
    top = inside.parents[2]
    return {
        str(path): path.read_text(errors="replace") if path.is_file() else "a folder"
        for path in sorted(top.rglob("*"))
        if inside not in (path, *path.parents)
    }


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(words)
    return int(left.value.code or 0)


def test_a_folders_name_is_harmless_whatever_the_label() -> None:
    draw = random.Random(0)
    pieces = [*HOSTILE, "/", "\\", ":", "é", "İ", "ﬁ", "٣", "\u2215", "\u2024", "0.1", "FedAvg", "\r", "\t"]
    labels = {"".join(draw.choices(pieces, k=draw.randint(1, 8))) for _ in range(120_000)}
    assert len(labels) > 70_000
    assert [label for label in labels if not SAFE.fullmatch(slug(label))] == []


def test_long_labels_stay_apart() -> None:
    assert slug("alpha " * 20 + "0.1") != slug("alpha " * 20 + "0.5")


def test_labels_of_a_comparison_stay_in_its_folder(inside: Path) -> None:
    before = outside(inside)
    for number, name in enumerate([*HOSTILE, str(inside.parent / "absolute")]):
        try:
            runs = compare({**TINY, "methods": {name: {"name": "fedavg"}}}, folder=inside / str(number))
        except UsageError:
            assert not (inside / str(number)).exists()
            continue
        assert [run.label for run in runs] == [name or "FedAvg"]
        (place,) = (inside / str(number)).iterdir()
        assert SAFE.fullmatch(place.name.removesuffix("-seed0"))
    assert len(list(inside.iterdir())) > 10  # the others were refused
    assert outside(inside) == before


def test_cells_of_a_table_stay_in_its_folder(inside: Path) -> None:
    before = outside(inside)
    names = ("../../escape", "/x", "-rf")
    cells = (f"{{label = {json.dumps(name)}, set = {{seed = {seed}}}}}" for seed, name in enumerate(names))
    values = ", ".join(cells)
    text = 'data = "tiny"\nmodel = "mlp"\nrounds = 1\nmethod = "fedavg"\npartition = {name = "iid", clients = 2}\n'
    (inside / "t.toml").write_text(f'{text}[[axes]]\nname = "../up"\nvalues = [{values}]\n')
    assert call("table", str(inside / "t.toml"), "--out", str(inside / "table")) == 0
    assert sorted(path.name for path in (inside / "table").iterdir()) == ["escape", "rf", "table.md", "x"]
    assert outside(inside) == before


def test_a_run_that_somebody_else_wrote_stays_in_its_folder(made: Path, inside: Path) -> None:
    """Names in run.json are hostile in turn, and so are the views in the records."""
    places = [("name",), ("label",), ("data", "name"), ("model", "name")]
    places += [("experiment", part, "name") for part in ("data", "partition", "model", "method")]
    names = [*HOSTILE, str(inside.parent / "absolute")]
    for number, (place, hostile) in enumerate(random.Random(0).sample(list(product(places, names)), 40)):
        run = Path(shutil.copytree(made, inside / str(number)))
        meta = json.loads((run / "run.json").read_text())
        node = meta
        for key in place[:-1]:
            node = node[key]
        node[place[-1]] = hostile
        (run / "run.json").write_text(json.dumps(meta))
        record = json.loads((run / "rounds.jsonl").read_text())
        record["views"][hostile] = record["views"]["aca"]
        (run / "rounds.jsonl").write_text(json.dumps(record) + "\n")
        before = outside(inside)
        codes = [
            call("export", str(run)),
            call("resume", str(run), "--rounds", "2"),
            call("report", str(run), "--out", str(run / "report.html")),
        ]
        assert set(codes) <= {0, 2, 3, 5}, (place, hostile, codes)
        assert outside(inside) == before, (place, hostile)
        assert {path.name for path in run.iterdir()} <= {
            *("run.json", "rounds.jsonl", "checkpoints", "aca.safetensors")
        }


def test_a_view_is_exported_into_its_run(made: Path, inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path(shutil.copytree(made, inside / "run"))
    before = outside(inside)
    for name in [*HOSTILE, str(inside.parent / "absolute")]:
        if name in ("", "\udc80"):
            continue  # the first means the default, the second is no text: safetensors refuses it
        monkeypatch.setattr(FedAvg, "models", lambda self, s, name=name: {name: s["model"]})
        path, _ = export_model(run)
        assert path.parent == run
        assert SAFE.fullmatch(path.name.removesuffix(".safetensors"))
    assert outside(inside) == before


@pytest.mark.parametrize(
    "model",
    [
        Choice(name="os.system('x') or dict"),
        Choice(name="x\nimport os"),
        Choice(name='mlp", **__import__("os").environ) #'),
        Choice(name="mlp", options={"hidden=[4]); import os; dict(x": 1}),
    ],
)
def test_lines_to_paste_hold_no_words_of_a_stranger(model: Choice) -> None:
    with pytest.raises((DataError, UsageError)):
        loading_lines(Path("a.safetensors"), model, 10, 1, 8)
    lines = loading_lines(Path('x"); import os; ("\n.safetensors'), Choice(name="mlp"), 10, 1, 8)
    assert [type(node).__name__ for node in ast.parse(lines).body] == [
        "ImportFrom",
        "ImportFrom",
        "Assign",
        "Expr",
        "Expr",
    ]


def test_an_experiment_names_what_is_registered_and_nothing_else() -> None:
    """A class path is a name like any other: it is looked up and not imported."""
    for name in ("os.system", "fedalloy.methods.FedAvg", "builtins:eval", "../plugin.py"):
        with pytest.raises(UsageError, match="there is no method"):
            experiment({"method": name})
        for part in ("model", "partition", "data"):
            with pytest.raises((UsageError, DataError), match="there is no"):
                simulate({**TINY, part: name})


def test_links_in_a_run_lead_no_write_out_of_it(made: Path, inside: Path) -> None:
    """What somebody planted under the names that are written next: a temporary file, the records, a picture."""
    from matplotlib.figure import Figure

    run, victim = Path(shutil.copytree(made, inside / "run")), inside.parents[2] / "victim"
    before = outside(inside)
    for name in (".run.json.part", ".report.html.part", "picture.png", "run.json.copy"):
        (run / name).symlink_to(victim)
    files.write_json(run / "run.json", {})
    files.write_atomically(run / "report.html", b"")
    files.write_atomically(run / "run.json.copy", b"")
    save(Figure(figsize=(1, 1)), run / "picture.png")
    (run / "rounds.jsonl").unlink()
    for target in (victim, inside.parent / "not there yet"):
        (run / "rounds.jsonl").symlink_to(target)
        with pytest.raises(SecurityError, match="is a link; "):
            files.append_line(run / "rounds.jsonl", "{}")
        (run / "rounds.jsonl").unlink()
    assert outside(inside) == before


# --- files that would execute something -------------------------------------------------------------------------------


def pickled(protocol: int) -> bytes:
    import pickle

    return pickle.dumps({"w": 1}, protocol)


def saved_by_torch(zipped: bool) -> bytes:
    import io

    import torch

    data = io.BytesIO()
    torch.save({"w": torch.zeros(2)}, data, _use_new_zipfile_serialization=zipped)
    return data.getvalue()


EXECUTABLE = {
    **{f"a pickle of protocol {number}": pickled(number) for number in (2, 3, 4, 5)},
    "a zip of torch.save": saved_by_torch(True),
    "an old file of torch.save": saved_by_torch(False),
}


@pytest.mark.parametrize("kind", EXECUTABLE)
def test_what_would_execute_something_is_refused_by_its_first_bytes(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As weights to start from, as data and as a checkpoint; while one generation is whole, that is enough."""
    file = tmp_path / "file.npz"
    file.write_bytes(EXECUTABLE[kind])
    for words in (f"start={file}", f"data={file}"):
        with pytest.raises(SystemExit) as left:
            main(["run", "data=tiny", "model=mlp", "rounds=1", words, "--out", str(tmp_path / "out")])
        assert left.value.code == 7
        assert "is a pickle" in capsys.readouterr().err
    run = tmp_path / "run"
    simulate({**TINY, "rounds": 2}, run)
    newest, older = sorted((run / "checkpoints").glob("0*.safetensors"), reverse=True)[:2]
    newest.write_bytes(EXECUTABLE[kind])
    said: list[str] = []
    assert Store(run).restore(said.append) is not None
    assert "is a pickle" in said[0]
    older.write_bytes(EXECUTABLE[kind])
    with pytest.raises(SecurityError, match="is intact") as caught:
        Store(run).restore()
    assert caught.value.code == 7


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_weights_whose_header_is_as_long_as_a_pickle_begins_are_read(length: int, tmp_path: Path) -> None:
    """The first two bytes of safetensors are the length of its header, which may be any."""
    import torch

    for name in ("w", "ww"):
        head = {"__metadata__": {"a": ""}, name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
        text = json.dumps(head).encode().ljust(length)
        (tmp_path / "w.safetensors").write_bytes(length.to_bytes(8, "little") + text + bytes(4))
        assert torch.equal(files.read_weights(tmp_path / "w.safetensors")[name], torch.zeros(1))


def test_an_npz_of_objects_is_refused_as_what_would_execute_something(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "a.npz", x=np.array([{}], object), y=np.zeros(1))
    with pytest.raises(SecurityError, match="Python objects"):
        simulate({**TINY, "data": str(tmp_path / "a.npz")})
