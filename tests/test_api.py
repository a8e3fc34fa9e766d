"""The Python interface has the power of the command line, and more: data, networks and methods of one's own."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedalloy
from fedalloy import (
    Card,
    Choice,
    Client,
    Experiment,
    Federation,
    FedProx,
    Message,
    Method,
    Reply,
    State,
    UsageError,
    action,
    check_method,
    compare,
    experiment,
    export_model,
    from_arrays,
    from_torch,
    load_data,
    method,
    reply,
    resume,
    rows,
    simulate,
    write_report,
)
from fedalloy.aggregation.averaging import average
from fedalloy.config.build import build
from fedalloy.federation.core import methods
from fedalloy.storage.results import read
from fedalloy.train.fit import fit, params
from fedalloy.train.losses import ce

SMALL: dict[str, Any] = {"rounds": 2, "model": "mlp", "partition": {"name": "iid", "clients": 3}}


def blobs(n: int = 90, classes: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points around as many centres as there are classes: easy, so that learning shows."""
    y = np.arange(n) % classes
    noise = np.random.default_rng(0).normal(size=(n, 4))
    return (noise * 0.3 + np.eye(classes, 4)[y] * 4).astype(np.float32), y


class Plain(nn.Module):
    """A network without features and head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


# --- the package ------------------------------------------------------------------------------------------------------


def test_every_public_name_is_there_and_documented() -> None:
    for name in fedalloy.__all__:
        thing = getattr(fedalloy, name)
        assert name == "__version__" or thing.__doc__, name
    assert set(fedalloy._HOME) | {"__version__"} == set(fedalloy.__all__)
    assert set(fedalloy.__all__) <= set(dir(fedalloy))


def test_every_method_of_the_library_is_a_name_of_the_package() -> None:
    import fedalloy.methods

    for name in fedalloy.methods.__all__:
        if name != "methods":
            assert getattr(fedalloy, name) is getattr(fedalloy.methods, name)


def test_functions_are_not_hidden_by_modules() -> None:
    import fedalloy.run.comparison
    import fedalloy.run.runner

    assert fedalloy.simulate is fedalloy.run.runner.simulate
    assert fedalloy.compare is fedalloy.run.comparison.compare
    assert not (Path(fedalloy.__file__).parent / "simulate.py").exists()


@pytest.mark.parametrize("name", ["fedavg", "Fedavg", "_private", "simulat"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'fedalloy' has no attribute '{name}'"):
        getattr(fedalloy, name)


def test_importing_the_package_is_quick() -> None:
    heavy = "import sys, fedalloy; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# --- data and networks of one's own -----------------------------------------------------------------------------------


def test_arrays_of_ones_own(tmp_path: Path) -> None:
    x, y = blobs()
    data = from_arrays(x, y, name="blobs")
    run = simulate({**SMALL, "rounds": 15, "training": {"lr": 0.5}}, tmp_path / "run", dataset=data)
    assert run.rounds[-1]["views"]["aca"]["amp"] > 0.95
    assert run.rounds[-1]["views"]["aca"]["test"] is None  # there is no test split
    assert run.meta["experiment"]["data"]["name"] == "blobs"
    scale = {"mean": list(data.mean), "std": list(data.std)}
    about = dict(run.meta["data"])
    assert [column["name"] for column in about.pop("columns")] == [column.name for column in data.columns]
    assert about.pop("statistics") == {way: kinds["statistics"] for way, kinds in run.rounds[0]["bytes"].items()}
    assert about == {"name": "blobs", "note": "", "rows": 90, **scale}
    longer = resume(tmp_path / "run", rounds=16, dataset=data)
    assert len(longer.rounds) == 16


def test_own_data_must_be_given_again_to_resume(tmp_path: Path) -> None:
    x, y = blobs()
    simulate(SMALL, tmp_path / "run", dataset=from_arrays(x, y, name="blobs"))
    with pytest.raises(UsageError, match="there is no data set 'blobs'"):
        resume(tmp_path / "run", rounds=3)


def test_a_torch_data_set_is_the_same_as_its_arrays() -> None:
    x, y = blobs()
    pairs = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    ours = simulate(SMALL, dataset=from_torch(pairs))
    theirs = simulate(SMALL, dataset=from_arrays(x, y))
    assert [r["views"] for r in ours.rounds] == [r["views"] for r in theirs.rounds]


def test_natural_clients_of_ones_own_arrays() -> None:
    x, y = blobs(90)
    data = from_arrays(x, y, client_ids=np.repeat([7, 9, 11], [20, 30, 40]))
    run = simulate({**SMALL, "partition": {"name": "natural"}}, dataset=data)
    assert run.meta["clients"]["train_sizes"] == [16, 24, 32]
    assert run.meta["clients"]["test_sizes"] == [4, 6, 8]


def test_a_network_of_ones_own_without_features(tmp_path: Path) -> None:
    x, y = blobs()
    data = from_arrays(x, y)
    run = simulate(SMALL, tmp_path / "run", dataset=data, network=Plain)
    assert run.meta["model"]["name"] == "Plain"
    assert run.meta["experiment"]["model"] == {"name": "Plain"}
    assert resume(tmp_path / "run", rounds=3, dataset=data, network=Plain).rounds[:2] == run.rounds
    with pytest.raises(UsageError, match="there is no model 'Plain'"):
        resume(tmp_path / "run", rounds=4, dataset=data)
    assert export_model(tmp_path / "run")[0].is_file()


def test_compare_takes_them_too(tmp_path: Path) -> None:
    x, y = blobs()
    exp = {"rounds": 2, "partition": {"name": "iid", "clients": 3}, "methods": {"local": {}, "fedavg": {}}}
    data = from_arrays(x, y)
    runs = compare(exp, dataset=data, network=Plain, folder=tmp_path / "runs")
    assert [run.label for run in runs] == ["Local, equal rounds", "FedAvg"]
    again = compare(exp, dataset=data, network=Plain, folder=tmp_path / "runs")
    assert [run.rounds for run in again] == [run.rounds for run in runs]
    page = write_report(runs, tmp_path / "report.html")
    assert "Plain" in page.read_text()
    assert len([row for run in runs for row in rows(run)]) == 3


def test_clients_with_different_networks_where_the_method_allows_it() -> None:
    built = build(experiment({**SMALL, "data": "tiny"}))
    other = nn.Sequential
    networks = [built.setting.networks[0], *[lambda: other(nn.Flatten(), nn.Linear(64, 10))] * 2]
    mixed = dataclasses.replace(built, setting=dataclasses.replace(built.setting, networks=networks))
    run = simulate({**SMALL, "data": "tiny", "method": "local"}, built=mixed)
    assert run.views == ("personal",)
    with pytest.raises(UsageError, match="fedavg averages parameters, but the clients' networks differ; use one of: "):
        simulate({**SMALL, "data": "tiny"}, built=mixed)


# --- methods of one's own ---------------------------------------------------------------------------------------------


@pytest.fixture
def halfway() -> Iterator[type[Method]]:
    """As in a notebook: a class in a cell."""

    @method("halfway", label="Halfway", card=Card(paper="none", up="model, n", down="model", remembers="its model"))
    class Halfway(Method):
        """Every client starts between the model it was sent and the one it kept."""

        share: float = 0.5

        def init(self, fed: Federation) -> dict[str, Any]:
            return {"model": params(fed.build())}

        def round(self, s: State, fed: Federation) -> State:
            replies = fed.ask("train", fed.sample(), model=s["model"])
            if not replies:
                return s.next()
            return s.next(model=average([r["model"] for r in replies], [r["n"] for r in replies], s["model"]))

        @action
        def train(self, me: Client, msg: Message) -> Reply:
            own = me.memory.get("model", msg["model"])
            net = me.net(average([msg["model"], own], [self.share, 1 - self.share], msg["model"]))
            fit(net, me, lambda x, y: ce(net(x), y))
            return reply(model=params(net), n=me.n, keep={"model": params(net)})

        def models(self, s: State) -> dict[str, Any]:
            return {"global": s["model"]}

        def personal(self, me: Client) -> dict[str, Any]:
            return dict(me.memory["model"]) if me.memory else params(me.build())

    yield Halfway
    methods._things.pop("halfway")  # type: ignore[attr-defined]  # a registry only grows


def test_a_method_of_ones_own(halfway: type[Method], tmp_path: Path) -> None:
    check_method(halfway())
    exp = {**SMALL, "data": "tiny"}
    run = simulate(exp, tmp_path / "run", method=halfway(share=0.7))  # type: ignore[call-arg]
    assert run.views == ("personal", "global")
    by_name = simulate({**exp, "method": {"name": "halfway", "share": 0.7}})
    assert [r["views"] for r in run.rounds] == [r["views"] for r in by_name.rounds]
    whole = simulate({**exp, "rounds": 4}, method=halfway(share=0.7))  # type: ignore[call-arg]
    resumed = resume(tmp_path / "run", rounds=4)
    assert [r["views"] for r in resumed.rounds] == [r["views"] for r in whole.rounds]
    assert read(tmp_path / "run").meta["experiment"]["method"] == {"name": "halfway", "share": 0.7}


def test_a_method_of_ones_own_in_a_comparison(halfway: type[Method]) -> None:
    exp = {**SMALL, "data": "tiny", "rounds": 1, "methods": {"timid": {"name": "halfway", "share": 0.1}}}
    runs = compare(exp, ["fedavg", "halfway", "timid"])
    assert [run.label for run in runs] == ["FedAvg", "Halfway", "timid"]


def test_an_experiment_can_be_made_of_its_parts() -> None:
    exp = Experiment(
        rounds=2,
        data=experiment({"data": "tiny"}).data,
        model=Choice(name="mlp"),
        partition=experiment(SMALL).partition,
        method=Choice(name="fedprox", options={"mu": 0.5}),
    )
    by_name = simulate({**SMALL, "data": "tiny"}, method=FedProx(mu=0.5))
    assert [r["views"] for r in simulate(exp).rounds] == [r["views"] for r in by_name.rounds]
    assert load_data("tiny").classes == 10
