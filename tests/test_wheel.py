"""The wheel holds everything and works where only its dependencies are installed, outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fedalloy

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def called(*command: str | Path, folder: Path) -> str:
    """What a command prints, away from the repository and without its path."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    called(*PIP, "wheel", "-q", "--no-index", "--no-build-isolation", "--no-deps", "-w", folder, ROOT, folder=folder)
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = [path for path in (source / "fedalloy").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(source).as_posix() for path in files} <= packed
    assert {"fedalloy/py.typed", "fedalloy/cli/demo.toml"} <= packed


def test_a_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    called(sys.executable, "-m", "venv", "--without-pip", "alone", folder=tmp_path)
    binaries = tmp_path / "alone" / ("Scripts" if os.name == "nt" else "bin")
    called(*PIP, "--python", binaries / "python", "install", "-q", "--no-index", "--no-deps", wheel, folder=tmp_path)
    home = next((tmp_path / "alone").rglob("site-packages"))
    here = [path for path in sys.path if path.endswith("site-packages")]
    (home / "dependencies.pth").write_text("\n".join(here) + "\n", encoding="utf-8")

    told = called(binaries / "python", "-c", "import fedalloy as f; print(f.__version__, f.__file__)", folder=tmp_path)
    version, where = told.split(maxsplit=1)
    assert version == fedalloy.__version__
    assert Path(where.strip()).is_relative_to(home)
    assert "fedavg" in called(binaries / "fedalloy", "list", folder=tmp_path)
    small = ("data=tiny", "model=mlp", "rounds=1", "partition=iid", "partition.clients=3", "method=fedavg")
    called(binaries / "fedalloy", "run", *small, "--out", "run", folder=tmp_path)
    assert (tmp_path / "run" / "run.json").is_file()
