"""Nothing is made twice on the way from a command to its runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from fedalloy.cli.main import cli
from fedalloy.config import build
from fedalloy.config import experiment as config
from fedalloy.config.overrides import override
from fedalloy.config.sections import Experiment
from fedalloy.errors import UsageError
from fedalloy.run.comparison import compare
from fedalloy.run.runner import simulate

SMALL = ["data=tiny", "model=mlp", "rounds=1", "engine=serial", "partition.clients=4", "partition.alpha=1.0"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often data was loaded and split, and a network tried."""
    found: Counter[str] = Counter()

    def count(where: Any, name: str, what: str) -> None:
        real = getattr(where, name)

        def counted(*args: Any, **options: Any) -> Any:
            found[what] += 1
            return real(*args, **options)

        monkeypatch.setattr(where, name, counted)

    count(build, "load_data", "loaded")
    count(build, "split", "split")
    count(build, "_answers", "tried")
    return found


def experiment() -> Experiment:
    return config.experiment(override({}, SMALL))


def test_a_run_makes_everything_once(made: Counter[str]) -> None:
    simulate(experiment())
    assert made == {"loaded": 1, "split": 1, "tried": 1}


def test_a_comparison_loads_once_and_splits_once_for_each_seed(made: Counter[str]) -> None:
    compare(experiment(), ["fedavg", "fedprox"], seeds=[0, 1])
    assert made == {"loaded": 1, "split": 2, "tried": 2}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["run", "method=fedprox"], {"loaded": 1, "split": 1, "tried": 1}),
        (["compare", "-m", "fedavg,fedprox", "-s", "2"], {"loaded": 1, "split": 2, "tried": 2}),
    ],
)
def test_a_command_makes_nothing_again(
    command: list[str], expected: dict[str, int], made: Counter[str], tmp_path: Any
) -> None:
    found = CliRunner().invoke(cli, [*command, *SMALL, "-o", str(tmp_path / "out")], catch_exceptions=False)
    assert found.exit_code == 0
    assert made == expected


def test_the_cells_of_a_table_share_their_data(made: Counter[str], tmp_path: Any) -> None:
    file = tmp_path / "axes.toml"
    values = "".join(f'{{label = "{a}", set = {{"partition.alpha" = {a}}}}}, ' for a in (1.0, 2.0))
    file.write_text(f'methods.fedavg = {{}}\n[[axes]]\nname = "alpha"\nvalues = [{values}]\n')
    words = ["table", str(file), *SMALL[:-1], "-o", str(tmp_path / "out")]
    assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0
    assert made["loaded"] == 1
    assert made["split"] == 4  # to examine all cells before the first one runs, and to run each


def test_a_wrong_option_is_refused_at_once_and_again(made: Counter[str]) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match=r"fedprox\.mu"):
            config.experiment({"method": {"name": "fedprox", "mu": -1.0}})
    assert "loaded" not in made
