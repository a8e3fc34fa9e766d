"""The command `advise`, from data to a page and an experiment that can be run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedalloy.cli.main import cli
from fedalloy.config.experiment import read
from fedalloy.errors import UsageError


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    path = tmp_path / "sites.npz"
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(np.int64), client=np.arange(120) % 3)
    return path


def test_advice_is_written_with_an_experiment_to_go_on_with(sites: Path, tmp_path: Path):
    out = tmp_path / "advice"
    words = ["advise", str(sites), "partition=natural", "model=mlp", "rounds=2", "methods.fedprox.mu=0.1"]
    done = CliRunner().invoke(cli, [*words, "--minutes", "5", "--seeds", "1", "--out", str(out)])
    assert done.exception is None, done.output
    assert (out / "report.html").is_file()
    page = (out / "advice.html").read_text()
    assert "fedalloy compare" in page
    exp = read(out / "experiment.toml")
    assert exp.method.name in ("fedavg", "fedprox")
    assert exp.rounds == 2
    assert exp.data.name == str(sites)
    again = CliRunner().invoke(cli, ["run", str(out / "experiment.toml"), "--out", str(tmp_path / "run")])
    assert again.exception is None, again.output


def test_an_interrupted_command_reuses_finished_runs(sites: Path, tmp_path: Path):
    words = ["advise", str(sites), "partition=natural", "model=mlp", "rounds=2", "methods.fedprox.mu=0.1"]
    words += ["--minutes", "5", "--seeds", "1", "--out", str(tmp_path / "advice")]
    CliRunner().invoke(cli, words)
    rounds = tmp_path / "advice" / "runs" / "fedprox-seed0" / "rounds.jsonl"
    before = rounds.stat().st_mtime_ns
    done = CliRunner().invoke(cli, words)
    assert done.exception is None, done.output
    assert rounds.stat().st_mtime_ns == before


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1e9"])
def test_an_impossible_time_is_refused(minutes: str):
    done = CliRunner().invoke(cli, ["advise", "tiny", "--minutes", minutes])
    assert isinstance(done.exception, UsageError)
    assert "--minutes" in str(done.exception)


def test_the_options_of_the_advised_method_are_kept_whatever_its_key(sites: Path, tmp_path: Path):
    out = tmp_path / "advice"
    words = ["advise", str(sites), "partition=natural", "model=mlp", "rounds=1", "methods.mild.name=fedavgm"]
    words += ["methods.mild.momentum=0.25", "--minutes", "5", "--seeds", "1", "--out", str(out)]
    done = CliRunner().invoke(cli, words)
    assert done.exception is None, done.output
    exp = read(out / "experiment.toml")
    assert exp.method.options == ({"momentum": 0.25} if exp.method.name == "fedavgm" else {})
