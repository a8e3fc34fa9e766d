"""`fedalloy new`: what it writes works as it is, and passes the checks that its author will run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedalloy.cli.main import main
from fedalloy.cli.new import KINDS
from fedalloy.report import html, plots

ROOT = Path(__file__).parents[1]
NAMES = {kind: f"my-{kind}" for kind in KINDS}
# What a file of each kind must take to be tried in seconds; the commands that are printed use these words already.
QUICK = ("rounds=1", "data=tiny", "model=mlp", "partition.clients=3")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kinds of files in one folder, written once."""
    folder = tmp_path_factory.mktemp("new")
    for kind, name in NAMES.items():
        with pytest.raises(SystemExit, match="0"):
            main(["new", kind, name, "--out", str(folder)])
    return folder


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(words)
        caught = capsys.readouterr()
        return int(left.value.code or 0), caught.out, caught.err

    return call


def test_each_kind_is_a_file_and_its_test(written: Path) -> None:
    found = {path.name for path in written.iterdir()}
    assert found == {f"my_{kind}.py" for kind in KINDS if kind != "experiment"} | {"my_experiment.toml"} | {
        f"test_my_{kind}.py" for kind in KINDS
    }
    for path in written.iterdir():
        assert "$" not in path.read_text()
        assert len(path.read_text().splitlines()) < 70


def test_the_tests_pass(written: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(written), str(written)]
    done = subprocess.run(words, cwd=written, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout


def test_ruff_finds_nothing_with_its_own_settings(written: Path) -> None:
    words = [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "--no-cache", str(written)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


def test_mypy_finds_nothing(written: Path) -> None:
    """With fedalloy's own settings and cache, which make it quick."""
    files = sorted(str(path) for path in written.glob("*.py"))
    words = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *files]
    env = {**os.environ, "MYPYPATH": f"{ROOT / 'src'}:{written}"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_that_it_prints_work(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(html, "write_report", lambda _, path, **__: path)  # drawing takes longer than these runs
    monkeypatch.setattr(plots, "save", lambda *_: None)
    code, out, _ = typed("new", kind, f"own-{kind}")
    assert code == 0
    lines = [shlex.split(line) for line in re.findall(r"^  fedalloy (.*)$", out, re.MULTILINE)]
    assert lines
    for words in lines:
        given = {word.partition("=")[0] for word in words}
        more = [word for word in QUICK if word.partition("=")[0] not in given] if words[0] == "compare" else []
        code, out, err = typed(*words, *more)
        assert (code, err) == (0, ""), words


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("method", "fedavg"), "'fedavg'"),
        (("model", "mlp"), "'mlp'"),
        (("data", "mnist"), "'mnist'"),
        (("partition", "iid"), "'iid'"),
        (("method", "My Idea"), "'My Idea'"),
        (("method", "1st"), "'1st'"),
        (("method", "class"), "'class'"),
        (("method", "../up"), "'../up'"),
        (("method", "random"), "'random'"),
        (("method", "torch"), "'torch'"),
        (("metod", "idea"), "'method'"),
    ],
)
def test_names_that_are_taken_or_cannot_be_names_are_refused(
    words: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Callable[..., tuple[int, str, str]],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = typed("new", *words)
    assert code == 2
    assert named in err
    assert not list(tmp_path.iterdir())


def test_existing_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    for kept in ("my_idea.py", "test_my_idea.py"):
        (tmp_path / kept).write_text("mine")
        code, _, err = typed("new", "method", "my-idea")
        assert code == 2
        assert kept in err
        assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
        (tmp_path / kept).unlink()
