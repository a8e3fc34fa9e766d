"""A user's own file: everything it registers is found by name; what goes wrong in it is said with its line."""

from __future__ import annotations

import importlib.metadata
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedalloy.methods  # noqa: F401  # so that a snapshot of the registry holds them
from fedalloy.base.plugins import PREFIX, load_file, load_installed, loaded_files
from fedalloy.data.catalogue import datasets
from fedalloy.data.partition import partitions
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import methods
from fedalloy.nets.models import models
from fedalloy.run.runner import resume, simulate

PLUGIN = '''
import numpy as np
from torch import nn

from fedalloy import Card, FeatureNet, dataset, from_arrays, method, model
from fedalloy.data.partition import partitions
from fedalloy.methods import FedAvg


@method("plug-method", label="Plugged", card=Card(paper="none", up="model, n", down="model"))
class Plugged(FedAvg):
    """FedAvg under another name."""

    power: float = 1.0


@model("plug-model")
def linear(*, classes, channels, size):
    """One layer."""
    pixels = channels * size * size
    return FeatureNet(nn.Sequential(nn.Flatten()), nn.Sequential(nn.Linear(pixels, classes)), (pixels,))


@dataset("plug-data", about="stripes", source="made here", licence="none needed")
def stripes(rows: int = 80):
    y = np.arange(rows) % 2
    x = np.zeros((rows, 4, 4), np.uint8)
    x[y == 0, ::2, :] = 255
    x[y == 1, :, ::2] = 255
    return from_arrays(x, y, name="plug-data")


@partitions.register("plug-partition")
def round_robin(labels, clients, *, seed, skip: int = 0):
    """Deal like cards."""
    return [np.arange(skip + k, len(labels), clients) for k in range(clients)]
'''
PLUGGED = {
    "rounds": 2,
    "data": {"name": "plug-data", "rows": 40},
    "model": "plug-model",
    "method": {"name": "plug-method", "power": 2},
    "partition": {"name": "plug-partition", "clients": 4, "skip": 8},
}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Registries only grow; what a test adds must not meet the other tests."""
    before = [(registry, dict(registry._things)) for registry in (methods, models, datasets, partitions)]  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        sys.modules.pop(name)
    yield
    for registry, things in before:
        registry._things.clear()  # type: ignore[attr-defined]
        registry._things.update(things)  # type: ignore[attr-defined]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


def test_what_a_file_registers_is_found_by_name(plugin: Path, tmp_path: Path) -> None:
    load_file(plugin)
    run = simulate(PLUGGED, tmp_path / "run")
    assert (run.label, run.meta["clients"]["train_sizes"]) == (
        "Plugged",
        [6, 6, 6, 6],
    )  # 32 rows by 4, a fifth for test
    assert run.meta["experiment"]["method"]["power"] == 2.0
    assert run.meta["experiment"]["data"] == {"name": "plug-data", "augment": "none", "rows": 40}
    assert len(resume(tmp_path / "run", rounds=3).rounds) == 3


def test_options_of_plugged_things_are_checked_too(plugin: Path) -> None:
    load_file(plugin)
    for change, sentence in (
        ({"data": {"name": "plug-data", "rwos": 3}}, "data has no key 'rwos'; did you mean 'rows'"),
        ({"data": {"name": "plug-data", "rows": "many"}}, r"data\.rows = 'many' must be a valid integer"),
        ({"model": {"name": "plug-model", "size": 3}}, "model has no key 'size'"),
        ({"method": {"name": "plug-method", "power": "much"}}, r"plug-method\.power = 'much' must be a valid number"),
        ({"partition": {"name": "plug-partition", "skipp": 3}}, "partition has no key 'skipp'; did you mean 'skip'"),
    ):
        with pytest.raises(UsageError, match=sentence):
            simulate({**PLUGGED, **change})


def test_a_file_may_be_loaded_twice(plugin: Path) -> None:
    load_file(plugin)
    load_file(plugin)
    assert "plug-method" in methods


def test_it_is_known_which_files_were_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("one", "x = 1"), ("two", "y = 1 / 0"), ("three", "z = 3")):
        (tmp_path / f"{name}.py").write_text(content)
    load_file("one.py")
    with pytest.raises(UsageError, match=r"the plug-in 'two\.py' failed in line 1"):
        load_file("two.py")
    load_file("three.py")
    assert loaded_files() == [str(tmp_path / "one.py"), str(tmp_path / "three.py")]


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN.replace("plug-method", "fedavg"))
    with pytest.raises(UsageError, match="the method name 'fedavg' is taken by fedalloy"):
        load_file(path)


def test_a_plugin_does_not_take_the_place_of_another_module(tmp_path: Path) -> None:
    path = tmp_path / "random.py"
    path.write_text("chosen = 4\n")
    load_file(path)
    assert sys.modules["random"] is random
    assert sys.modules["fedalloy_plugin_random"].chosen == 4


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("x = 1\ny = 1 / 0\n", "failed in line 2: ZeroDivisionError: division by zero"),
        ("def f():\n    raise KeyError('a')\n\nf()\n", "failed in line 2: KeyError: 'a'"),
        ("def f(:\n", "failed: SyntaxError: invalid syntax"),
        ("import no_such_module\n", "failed in line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)\n", "failed in line 1: SystemExit: 3"),
    ],
)
def test_what_goes_wrong_in_a_file_is_said_with_its_line(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        load_file(path)
    assert str(caught.value).startswith(f"the plug-in '{path}' {sentence}")


def test_an_error_in_our_own_words_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("from fedalloy import load_data\nload_data('missing.npz')\n")
    with pytest.raises(DataError, match=r"'missing\.npz'"):
        load_file(path)


def test_what_is_no_python_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x = 1")
    for name in ("missing.py", "notes.txt", "."):
        with pytest.raises(UsageError, match=re.escape(str(tmp_path / name))):
            load_file(tmp_path / name)


def test_installed_packages_are_loaded_and_named_when_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def fail() -> None:
        raise ImportError("no such thing")

    entries = [
        SimpleNamespace(value="good.module", load=lambda: loaded.append("good")),
        SimpleNamespace(value="bad.module", load=fail),
    ]
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: entries if group == "fedalloy.plugins" else []
    )
    with pytest.raises(UsageError, match=r"the installed plug-in 'bad\.module' failed: ImportError: no such thing"):
        load_installed()
    assert loaded == ["good"]
