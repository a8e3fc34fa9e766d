"""The simulation: settings built from the experiment, processes that die, and, if FEDALLOY_RAY is set, Ray itself."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from flwr.app import Error, Message
from local_grid import LocalGrid

from fedalloy.base import tree
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.engine.flower import simulation
from fedalloy.engine.flower.client import client_app
from fedalloy.engine.flower.simulation import Here, Runtime, Simulation, SimulationError
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import run
from fedalloy.methods import FedAvg
from fedalloy.run.runner import simulate

EXP = {"data": "tiny", "model": {"name": "mlp", "hidden": 8}, "rounds": 2, "partition": {"clients": 4, "alpha": 1.0}}
DIED = Error(0, "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly\nbefore finishing this task.'>")


def as_error(answer, error):
    message = Message.__new__(Message)
    message.__dict__.update({"_metadata": answer.metadata, "_content": None, "_error": error})
    return message


@pytest.fixture
def fake(monkeypatch):
    """A runtime without Ray; each start takes the next of the faults."""
    starts = []

    class Fake(Runtime):
        faults: ClassVar[list] = []

        def start(self):
            starts.append(self)
            return LocalGrid(client_app(self.here), self.clients, self.faults.pop(0) if self.faults else None)

        def stop(self):
            pass

        def check(self):
            pass

    monkeypatch.setattr(simulation, "Runtime", Fake)
    Fake.starts = starts
    return Fake


def acts_of(victims):
    def fault(client, answer):
        hit = client in victims and answer.metadata.message_type == "train.act"
        return as_error(answer, DIED) if hit else answer

    return fault


def test_a_process_that_dies_costs_one_retry_and_no_bit(fake):
    exp = experiment(EXP)
    setting = build(exp).setting
    fake.faults = [acts_of({1, 2})]  # one killed it, the other was given to the dead one
    rounds = []
    with Simulation(setting, exp) as engine:
        state = run(FedAvg(), engine, 2, watch=lambda _, fed: rounds.append(fed) and None)
    assert len(fake.starts) == 2
    assert not any(fed.quarantined for fed in rounds)
    assert tree.equal(state.body, run(FedAvg(), Serial(setting), 2).body)


def test_a_client_that_kills_its_process_twice_is_absent_and_costs_nobody_else(fake):
    exp = experiment(EXP)
    setting = build(exp).setting
    fake.faults = [acts_of({1, 2}), acts_of({1})]
    rounds = []
    with Simulation(setting, exp) as engine:
        run(FedAvg(), engine, 2, watch=lambda _, fed: rounds.append(fed) and None)
    assert [(bad["client"], bad["action"]) for bad in rounds[0].quarantined] == [(1, "train")]
    assert "died twice" in rounds[0].quarantined[0]["reason"]
    assert not rounds[1].quarantined


def test_what_is_sent_with_each_message_is_small(tmp_path):
    from ray import cloudpickle

    app = client_app(Here(tmp_path))
    assert len(cloudpickle.dumps(app)) < 4000
    assert pickle.loads(pickle.dumps(Here(tmp_path))) == Here(tmp_path)


def test_temporary_memories_go_in_the_end_and_those_of_a_run_stay(fake, tmp_path):
    exp = experiment({**EXP, "method": "local"})
    setting = build(exp).setting
    with Simulation(setting, exp) as engine:
        simulate({**EXP, "method": "local", "engine": "flower"}, engine=engine)
        unnamed = engine._here.folder
        assert any(unnamed.iterdir())
        simulate({**EXP, "method": "local", "engine": "flower"}, tmp_path / "run", engine=engine)
    assert not unnamed.exists()
    assert len(list((tmp_path / "run" / "memories").iterdir())) == 4


def test_a_runtime_that_does_not_start_is_a_sentence(monkeypatch):
    def fails(*args, **kwargs):
        try:
            raise ValueError("no room\nfor Ray")
        except ValueError as error:
            raise RuntimeError("An error was encountered. Ending simulation.") from error

    monkeypatch.setattr(simulation, "run_simulation", fails)
    exp = experiment(EXP)
    before = set(Path("/tmp").glob("fedalloy-*"))
    with pytest.raises(SimulationError, match=r"did not start: ValueError: no room for Ray$"):
        Simulation(build(exp).setting, exp)
    assert set(Path("/tmp").glob("fedalloy-*")) <= before


@pytest.mark.skipif("FEDALLOY_RAY" not in os.environ, reason="starts Ray; `make flower` does it")
def test_ray_gives_the_serial_run_s_records_and_leaves_no_process():
    code = f"""
from fedalloy.run.runner import simulate
if __name__ == "__main__":
    exp = {EXP!r}
    one, other = (simulate({{**exp, "engine": engine}}) for engine in ("serial", "flower"))
    told = [[(r["views"], r["bytes"], r["passes"]) for r in run.rounds] for run in (one, other)]
    assert told[0] == told[1]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
