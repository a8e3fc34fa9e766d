"""The whole way of an engineer with five hospitals' files: the example runs, and statistics cost nothing."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedalloy.config.experiment import experiment
from fedalloy.run.runner import simulate

pytest.importorskip("flwr")

ROOT = Path(__file__).parents[2]


def test_from_five_files_to_a_deployed_model(tmp_path: Path) -> None:
    script = ROOT / "examples" / "hospitals" / "run.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "way")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert ": equal" in done.stdout  # the digests of simulation and deployment; a balanced accuracy below 0.65 fails
    for page in ("advice/advice.html", "comparison/report.html", "lab/run/report.html", "pages/site-4.html"):
        assert "West hospital" in (tmp_path / "way" / page).read_text() or page.startswith("pages")


def clinics(folder: Path, missing: float) -> Path:
    """Five clinics of different sizes with the same patients each time; a share of the values is missing."""
    folder.mkdir()
    stream = np.random.default_rng(0)
    for k, rows in enumerate((40, 60, 80, 100, 120)):
        x = stream.normal(size=(rows, 5)) * [1, 10, 100, 0.1, 5] + [k, 50, 0, 3, -5]
        ill = (x - [k, 50, 0, 3, -5]) @ [1, 0.1, 0.01, 5, 0.1] + stream.normal(0, 0.7, rows) > 0
        gone = stream.random(x.shape) < missing
        cells = np.where(gone, "", np.char.mod("%.4f", x))
        lines = ["a,b,c,d,e,ill", *(f"{','.join(row)},{int(sick)}" for row, sick in zip(cells, ill, strict=True))]
        (folder / f"clinic_{k}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_federated_statistics_and_imputation_cost_no_more_than_two_standard_errors(tmp_path: Path) -> None:
    training = {"epochs": 3, "batch": 16, "lr": 0.05, "momentum": 0.9}
    whole, partly = clinics(tmp_path / "whole", 0.0), clinics(tmp_path / "partly", 0.05)
    tables = [np.genfromtxt(file, delimiter=",", skip_header=1)[:, :-1] for file in sorted(whole.iterdir())]
    pooled = np.concatenate(tables)
    constants = {"mean": pooled.mean(0).tolist(), "std": pooled.std(0).tolist()}
    scores: dict[str, list[float]] = {"constants": [], "statistics": [], "imputed": []}
    for seed in range(3):
        for name, data in (
            ("constants", {"name": str(whole), **constants}),
            ("statistics", {"name": str(whole)}),
            ("imputed", {"name": str(partly), "impute": "median"}),
        ):
            run = simulate(experiment({"rounds": 10, "seed": seed, "data": data, "training": training}))
            scores[name].append(run.rounds[-1]["views"]["aca"]["balanced"])
    tested = 80 * 3  # rows of all tests, over three seeds
    mean = {name: float(np.mean(values)) for name, values in scores.items()}
    error = math.sqrt(2 * mean["constants"] * (1 - mean["constants"]) / tested)
    assert mean["constants"] > 0.75
    assert abs(mean["statistics"] - mean["constants"]) < 2 * error
    assert mean["imputed"] > mean["constants"] - 2 * error
