"""From five hospitals' files to a deployed model: advise, compare, deploy here, and check that it is the same.

    python examples/hospitals/run.py [FOLDER]

It writes everything below FOLDER (hospitals-example), takes a minute or two, and needs `pip install ".[flower]"`.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import fedalloy
from fedalloy import experiment
from fedalloy.base import tree
from fedalloy.config.overrides import read_toml
from fedalloy.run.runner import simulate
from fedalloy.storage.store import Store

HERE = Path(__file__).parent
SHIPPED = Path(fedalloy.__file__).parent / "data" / "embedded" / "hospitals"
GIVEN_AWAY = 40  # rows that the central hospital gives to everyone, without their diagnosis


def prepare(folder: Path) -> None:
    """Copy the hospitals' files; the central hospital gives some of its rows, without their diagnosis, to everyone."""
    files = folder / "files"
    files.mkdir(parents=True)
    for source in SHIPPED.glob("*.csv"):
        shutil.copyfile(source, files / source.name)
    central = files / "central_hospital.csv"
    header, *rows = central.read_text().splitlines()
    central.write_text("\n".join([header, *rows[GIVEN_AWAY:]]) + "\n")
    public = [line.rpartition(",")[0] for line in [header, *rows[:GIVEN_AWAY]]]
    (files / "public.csv").write_text("\n".join(public) + "\n")
    shutil.copyfile(HERE / "hospitals.toml", folder / "hospitals.toml")


def command(folder: Path, *words: str) -> None:
    """Run a fedalloy command in the folder, and show it."""
    print(f"\n$ fedalloy {' '.join(words)}", flush=True)
    subprocess.run([str(Path(sys.executable).with_name("fedalloy")), *words], cwd=folder, check=True)


def free_port(count: int) -> int:
    """The first of several free ports in a row."""
    for port in range(28000, 60000, 20):
        if all(_is_free(port + more) for more in range(count)):
            return port
    raise SystemExit("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) != 0


def balanced_accuracy(folder: Path) -> float:
    """The balanced accuracy of the hospitals' models after the last round of a run."""
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    return float(last["views"]["personal"]["balanced"])


def digest(run: Path) -> str:
    """A digest of all that the server knows at the end of a run."""
    restored = Store(run).restore()
    assert restored is not None
    return tree.digest(restored[0].body)


def main(folder: Path) -> None:
    """Go the whole way."""
    prepare(folder)
    command(folder, "advise", "hospitals.toml", "--minutes", "0.2", "--seeds", "2", "--out", "advice")
    command(folder, "compare", "hospitals.toml", "--seeds", "2", "--out", "comparison")
    address = f"127.0.0.1:{free_port(6)}"
    command(folder, "deploy", "init", "hospitals.toml", "--out", "lab", "--address", address)
    try:
        command(folder, "deploy", "up", "lab", "--local", "5")
        command(folder, "deploy", "run", "lab")
        command(folder, "deploy", "status", "lab")
        command(folder, "deploy", "audit", "lab")
        command(folder, "deploy", "report", "lab", "--out", "pages")
    finally:
        command(folder, "deploy", "down", "lab")
    simulated = Path("simulated")
    words = [sys.executable, str(Path(__file__).absolute()), "--simulate", str(simulated)]
    subprocess.run(words, cwd=folder, check=True)
    here, there = digest(folder / simulated), digest(folder / "lab" / "run")
    print(f"\nsimulation {here[:16]}, deployment {there[:16]}: {'equal' if here == there else 'NOT EQUAL'}")
    reached = balanced_accuracy(folder / "lab" / "run")
    print(f"balanced accuracy of the hospitals' models: {reached:.3f}")
    if here != there or reached < 0.65:
        raise SystemExit("this is not as it should be")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--simulate"]:
        simulate(experiment(read_toml("hospitals.toml")), Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals-example").absolute())
