"""Small federations on a Grid in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for local_grid, which is no test

from local_grid import LocalGrid

from fedalloy.check.probe import small_settings
from fedalloy.config.experiment import experiment
from fedalloy.engine.flower import roster
from fedalloy.engine.flower.carrier import Flower
from fedalloy.engine.flower.client import client_app


@pytest.fixture(scope="session")
def plain():
    return small_settings()[0]


@pytest.fixture
def federation(tmp_path, plain, monkeypatch):
    """Makes an engine on a Grid of its own, whose clients keep their memories in one folder."""
    monkeypatch.setattr(roster, "AGAIN", 0.05)

    def make(setting=plain, fault=None, memories=None, say=None, patience=60.0, setting_of=None):
        def usual(context, asked, _prepared):
            return context.node_config["partition-id"], setting, tmp_path / "memories"

        grid = LocalGrid(client_app(setting_of or usual), len(setting.sites), fault)
        return Flower(grid, setting, experiment({}), memories, say or (lambda _: None), patience)

    return make
