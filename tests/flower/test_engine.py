"""Flower gives the serial engine's bits for every registered method, also where a run was killed and went on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from local_grid import LocalGrid

import fedalloy.methods  # noqa: F401  # registers the methods
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base import tree
from fedalloy.check.probe import small_settings
from fedalloy.config.experiment import experiment
from fedalloy.engine.base import REFERENCE
from fedalloy.engine.choose import engine_for
from fedalloy.engine.flower.carrier import Flower
from fedalloy.engine.flower.client import client_app
from fedalloy.engine.flower.memory import Memory
from fedalloy.engine.flower.simulation import Here
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import State, methods, quick, run
from fedalloy.federation.engine import Failed, Failure
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Site
from fedalloy.methods import FedAvg, FedProx, Local
from fedalloy.run.runner import resume, simulate
from fedalloy.storage.results import read
from fedalloy.storage.store import Store
from fedalloy.train.fit import LocalWork


def remembered(engine, folder):
    """What the clients remember, wherever it lies."""
    if isinstance(engine, Serial):
        return {str(k): engine.memories[k] for k in sorted(engine.memories)}
    found = {str(k): Memory(folder / str(k)).read(m.get(REFERENCE, "")) for k, m in sorted(engine.memories.items())}
    assert None not in found.values()
    return found


def played(method, engine, folder, rounds=2, state=None):
    """The digests of a run's state and memories, and what each round cost and evaluated to."""
    notes = []

    def watch(state, fed):
        ledger = fed.ledger
        notes.append((sorted(fed.active), ledger.up, ledger.down, ledger.passes(), ledger.flops()))

    state = run(method, engine, rounds, state, watch)
    return tree.digest({"state": state.body, "memories": remembered(engine, folder)}), notes, state


@pytest.mark.parametrize("name", list(methods))
def test_every_method_has_the_serial_engine_s_bits_and_costs(name, plain, federation, tmp_path):
    method, folder = quick(methods[name]), tmp_path / "memories"
    serial = Serial(plain)
    digest, notes, state = played(method, serial, folder)
    views = serial.evaluate(method, state)

    first = federation()
    _, before, middle = played(method, first, folder, 1)
    kept = tree.encode({"state": middle.body, "memories": {str(k): m for k, m in first.memories.items()}})
    found, after, state = played(method, first, folder, 2, middle)
    assert found == digest
    assert before + after == notes
    assert json.dumps(first.evaluate(method, state)) == json.dumps(views)

    # Killed after the clients have acted in round 2, and resumed from the checkpoint of round 1.
    saved = tree.decode(kept)
    again = federation(memories={int(k): m for k, m in saved["memories"].items()})
    found, after, _ = played(method, again, folder, 2, State(1, saved["state"]))
    assert found == digest
    assert after == notes[1:]


@pytest.mark.parametrize("name", ["fedavg", "kdia"])
def test_batchnorm_dropout_validation_and_equal_steps_too(name, federation, tmp_path):
    given = small_settings()[1]
    sites = [Site(s.train, s.test, s.test) for s in given.sites]
    setting = replace(given, sites=sites, work=LocalWork(work="equal_steps", batch=8), holdout=sites[0].test)
    method, folder = quick(methods[name]), tmp_path / "memories"
    serial, flower = Serial(setting), federation(setting)
    digest, notes, state = played(method, serial, folder)
    assert played(method, flower, folder)[:2] == (digest, notes)
    assert json.dumps(flower.evaluate(method, state)) == json.dumps(serial.evaluate(method, state))


def test_clients_are_told_the_sections_that_a_method_has_of_its_own(plain, federation, tmp_path):
    """Whether a reply holds the client's label counts depends on [aggregation], and a method may have its own."""
    method = FedAvg(aggregation=Aggregation(weights="disco"))
    digest, notes, _ = played(method, Serial(plain), tmp_path / "memories")
    assert played(method, federation(), tmp_path / "memories")[:2] == (digest, notes)


def test_a_client_does_not_need_to_know_how_much_others_have(plain, federation, tmp_path):
    """With equal steps, a client whose setting holds blanks for the others takes the steps that the server counts."""
    setting = replace(plain, work=LocalWork(work="equal_steps", batch=4))

    def alone(context, asked, _prepared):
        k = context.node_config["partition-id"]
        sites = [site if j == k else Site(site.train.subset([0]), site.test) for j, site in enumerate(setting.sites)]
        return k, replace(setting, sites=sites), tmp_path / "memories"

    digest = played(FedAvg(), Serial(setting), tmp_path)[0]
    assert played(FedAvg(), federation(setting, setting_of=alone), tmp_path / "memories")[0] == digest


@pytest.mark.parametrize("work", ["epochs", "equal_steps"])
def test_a_straggler_is_told_how_many_epochs_it_has_time_for(work, plain, federation, tmp_path):
    local = LocalWork(work=work, epochs=5, batch=4)
    setting = replace(plain, work=local, participation=Participation(stragglers=0.5))
    digest, notes, _ = played(FedProx(), Serial(setting), tmp_path)
    assert played(FedProx(), federation(setting), tmp_path / "memories")[:2] == (digest, notes)


def test_lost_replies_are_remembered_by_their_clients(plain, federation, tmp_path):
    """`late_drop`: the client has trained and remembers, but the server never hears of it."""
    setting = replace(plain, participation=Participation(late_drop=0.5))
    digest, notes, _ = played(Local(), Serial(setting), tmp_path)
    assert played(Local(), federation(setting), tmp_path / "memories")[:2] == (digest, notes)


def test_what_nobody_needs_is_removed(plain, federation, tmp_path):
    setting = replace(plain, participation=Participation())
    engine = federation(setting)
    run(Local(), engine, 6)
    for k in plain.ids:
        rounds = [made for made, _, _ in Memory(tmp_path / "memories" / str(k)).generations()]
        assert rounds == [3, 4, 5, 6]  # two checkpoints, what they would go back to, and what the last round wrote


def test_after_a_resume_nothing_goes_that_the_older_checkpoint_needs(plain, federation, tmp_path):
    setting = replace(plain, participation=Participation())
    first = federation(setting)
    state = run(Local(), first, 4)
    again = federation(setting, memories=first.memories)
    run(Local(), again, 5, state)
    rounds = [made for made, _, _ in Memory(tmp_path / "memories" / "0").generations()]
    assert 3 in rounds  # the checkpoint of round 3 is still on disk, and may be the whole one


def test_bytes_on_the_wire_are_those_of_the_ledger(plain, federation):
    engine = federation()
    fed = []
    run(FedAvg(), engine, 1, watch=lambda _, f: fed.append(f) and None)
    for messages, counted in ((engine.grid.sent, fed[0].ledger.down), (engine.grid.received, fed[0].ledger.up)):
        trees = [m.content["tree"]["tree"].data for m in messages if "tree" in m.content]
        assert sum(map(len, trees)) == sum(counted.values())


# --- whole runs of an experiment ------------------------------------------------------------------------------------

EXP = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": 8},
    "rounds": 3,
    "partition": {"clients": 4, "alpha": 1.0, "validation": 0.2},
    "participation": {"policy": "fraction", "fraction": 0.5},
    "method": {"name": "fedmd-global", **methods["fedmd-global"].card.quick},
    "public": {"data": "own", "samples": 20, "labelled": True},
}


@pytest.fixture
def simulated(tmp_path):
    """An engine whose clients build their settings as simulated ones do."""
    from fedalloy.config.build import build

    def make(exp=EXP, folder=None):
        given = experiment(exp)
        here = Here(folder or tmp_path / "unnamed")

        class Local(Flower):
            def begin(self, folder):
                if folder is not None:
                    here.folder = folder

        return Local(LocalGrid(client_app(here), 4), build(given).setting, given)

    return make


def told(run):
    return [{k: v for k, v in r.items() if k not in ("seconds", "memory")} for r in run.rounds]


def test_a_run_has_the_serial_run_s_records_and_can_be_killed_and_resumed(simulated, tmp_path):
    serial = simulate({**EXP, "engine": "serial"}, tmp_path / "serial")
    whole = simulate({**EXP, "engine": "flower"}, tmp_path / "whole", engine=simulated())
    assert told(whole) == told(serial)
    assert (tmp_path / "whole" / "memories").is_dir()

    class KilledError(Exception):
        pass

    def kill(record):
        if record["round"] == 2:
            raise KilledError

    with pytest.raises(KilledError):
        simulate({**EXP, "engine": "flower"}, tmp_path / "cut", engine=simulated(), watch=kill)
    for damaged in (tmp_path / "cut" / "checkpoints").glob("000002.*"):
        damaged.write_bytes(b"")  # so that it goes back to round 1
    said = []
    again = resume(tmp_path / "cut", engine=simulated(), say=said.append)
    assert told(again) == told(serial)
    assert not [line for line in said if "lost" in line]
    states = [Store(tmp_path / name).restore()[0].body for name in ("serial", "whole", "cut")]
    assert len({tree.digest(state) for state in states}) == 1
    assert read(tmp_path / "cut").rounds


def test_clients_train_with_the_keys_that_the_method_has_for_itself(simulated, tmp_path):
    own = {"name": "qffl", "training": {"work": "fixed_steps", "steps": 2}}
    exp = {**{key: value for key, value in EXP.items() if key != "public"}, "rounds": 1, "method": own}
    plain = {**exp, "method": "qffl", "training": {**EXP.get("training", {}), **own["training"]}, "engine": "serial"}
    whole = simulate({**exp, "engine": "flower"}, tmp_path / "own", engine=simulated(exp))
    assert told(whole) == told(simulate(plain))


def test_a_run_that_goes_back_finds_the_memories_of_that_round(simulated, tmp_path):
    """Clients act in every round and forget what nobody needs; in rounds 3 to 5 they are not heard, in 6 they fail."""
    exp = {**EXP, "rounds": 8, "method": {"name": "local"}, "participation": {}, "quorum": {"skips": 9}}

    def unheard(engine):
        carry = engine.carry

        def carried(method, round, messages):
            answers = list(carry(method, round, messages))
            kind = Failed if round == 6 else Failure
            return [kind(answer.client, "unheard") for answer in answers] if 3 <= round <= 6 else answers

        engine.carry = carried
        return engine

    said = []
    found = simulate({**exp, "engine": "flower"}, tmp_path / "run", engine=unheard(simulated(exp)), say=said.append)
    alone = simulate({**exp, "engine": "serial"}, engine=unheard(Serial(simulated(exp).setting)))
    assert [record.get("back_to") for record in found.rounds] == [None] * 5 + [1, None, None]
    assert told(found) == told(alone)
    assert not [line for line in said if "lost" in line]


def test_a_run_goes_on_only_where_its_memories_are(simulated, tmp_path):
    simulate({**EXP, "rounds": 1, "engine": "flower"}, tmp_path / "run", engine=simulated())
    built = simulated().setting
    with pytest.raises(UsageError, match="engine = 'flower'"):
        resume(tmp_path / "run", rounds=2, engine=Serial(built))
    simulate({**EXP, "rounds": 1, "engine": "serial"}, tmp_path / "embedded")
    with pytest.raises(UsageError, match="in its checkpoint"):
        resume(tmp_path / "embedded", rounds=2, engine=simulated())


def test_a_run_that_fails_in_its_first_round_leaves_no_folder(simulated, tmp_path):
    engine = simulated()

    def fail(record):
        raise RuntimeError

    engine.evaluate = lambda method, state: fail(None)
    with pytest.raises(RuntimeError):
        simulate({**EXP, "engine": "flower"}, tmp_path / "run", engine=engine)
    assert not (tmp_path / "run").exists()


def test_own_objects_are_refused(plain):
    with pytest.raises(UsageError, match=r"engine = 'flower' .*(data set|network)"):
        simulate({**EXP, "engine": "flower"}, network=lambda: torch.nn.Linear(1, 1))
    with (
        pytest.raises(UsageError, match=r"engine = 'flower'.*engine = 'auto'"),
        engine_for([FedAvg()], plain, 1, "flower", None, lambda _: None),
    ):
        pass


def test_a_method_of_a_script_is_refused(federation):
    class Mine(FedAvg):
        pass

    with pytest.raises(UsageError, match="put it into a file"):
        federation().open(Mine(), 1)


def test_one_engine_can_carry_several_runs(federation, tmp_path, plain):
    setting = replace(plain, participation=Participation())
    engine = federation(setting)
    state = run(Local(), engine, 3)
    first = remembered(engine, tmp_path / "memories")
    engine.memories = {}
    assert run(Local(), engine, 3).round == state.round
    assert tree.equal(remembered(engine, tmp_path / "memories"), first)
