"""A server that asks a site to evaluate models of its own choice, at a real site's folder on a Grid in this process."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for sites_grid, which is no test

from sites_grid import grid_of

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.cli.terminal import show
from fedalloy.config.experiment import read
from fedalloy.config.methods import make_method
from fedalloy.deploy import app
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.deploy.settings import Amount, for_server
from fedalloy.engine.base import REFERENCE
from fedalloy.engine.flower.carrier import Flower
from fedalloy.engine.flower.client import VIEWS
from fedalloy.engine.flower.codec import to_records
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import Method, State
from fedalloy.federation.gate import Room
from fedalloy.report.facts import warnings
from fedalloy.report.html import write_report
from fedalloy.run.runner import simulate
from fedalloy.storage.results import read as read_run
from fedalloy.train.fit import params

OWN = {
    "rounds": 6,
    "data": {"name": "sites", "classes": 2, "channels": 3, "size": 8, "mean": [0.5], "std": [0.25]},
    "model": {"name": "mlp"},
    "method": {"name": "fedavg"},
}
PRIVATE = {**OWN, "privacy": {"noise_multiplier": 1.0, "budget": 50.0}}
ROOM = Room(1 << 24, 1 << 20)


def made(values: Mapping[str, Any], folder: Path, sites: int = 2) -> Deployment:
    """A deployment whose sites have samples of their own."""
    deployment = init(values, folder / "lab", sites)
    for k in range(sites):
        stream = np.random.default_rng(k)
        x, y = stream.random((40, 8, 8, 3), np.float32), stream.integers(0, 2, 40)
        np.savez(deployment.site(k) / "data.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
        (deployment.site(k) / "site.toml").write_text(f'client = {k}\ndata = "data.npz"\n')
    return deployment


class Server:
    """A server that sends site 1 what it likes."""

    def __init__(self, deployment: Deployment, method: Method | None = None) -> None:
        exp = read(deployment.experiment)
        self.built = for_server(exp, {k: Amount(40, 9) for k in range(deployment.sites)})
        self.engine = Flower(grid_of(deployment), self.built.setting, exp)
        self.method = method or make_method(exp)
        self.folder = deployment.site(1) / "memory" / "1"

    def act(self, round: int) -> None:
        """One honest round, in which the site takes part."""
        fed = self.engine.open(self.method, round)
        fed.ask("train", [1], model=self.model(0.0))
        assert not fed.quarantined

    def model(self, shift: float) -> dict[str, Any]:
        """A model that is network-shaped and none of this run's."""
        return {k: w + shift if w.is_floating_point() else w for k, w in params(self.built.setting.build(0)).items()}

    def asks(self, round: int, models: Mapping[str, Tree], **header: Any) -> Tree:
        """What the site counts, or the refusal."""
        told = self.engine._address(self.engine._told(self.method), round, 1)
        views = json.dumps(
            {view: tree.digest({"": one} if isinstance(one, torch.Tensor) else one) for view, one in models.items()},
            sort_keys=True,
        )
        letter = to_records(dict(models), {**told, "views": views, **header})
        ((_, found),) = self.engine._exchange(VIEWS, {1: letter}, round, lambda _: ROOM)
        if isinstance(found, DataError):
            raise found
        return found[1]

    def answered(self, rounds: Callable[[int], int], count: int = 12, view: str = "aca") -> list[str]:
        """The digests of those of so many hostile models that are evaluated."""
        got = []
        for number in range(count):
            model = self.model(1e-3 * number)
            try:
                assert self.asks(rounds(number), {view: model})["models"][view]["confusion"].sum() == 9
            except DataError:
                continue
            got.append(tree.digest(model))
        return got

    def log(self) -> list[dict[str, Any]]:
        """What the site has written down."""
        return [json.loads(line) for line in (self.folder / "evaluated.jsonl").read_text().splitlines()]


def test_with_privacy_a_site_evaluates_nothing(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    server = Server(made(PRIVATE, tmp_path))
    assert server.answered(lambda number: number % 6 + 1, 30) == []
    with pytest.raises(DataError, match=r"off under \[privacy\]"):
        server.asks(1, {})  # not the site's own model either


@pytest.mark.parametrize("rounds", [lambda _: 1, lambda number: number % 6 + 1, lambda number: number + 1])
def test_without_privacy_a_site_evaluates_few_models_of_a_round(rounds: Callable[[int], int], tmp_path: Path) -> None:
    server = Server(made(OWN, tmp_path))
    found = server.answered(rounds)
    assert found == [tree.digest(server.model(1e-3 * n)) for n in range(12) if rounds(n) == 1][:2]
    assert [line["models"]["aca"] for line in server.log()] == found  # of round 1, the only one that can have begun
    assert stat.S_IMODE((server.folder / "evaluated.jsonl").stat().st_mode) == 0o600
    server.act(1)
    server.act(2)
    assert len({*found, *server.answered(rounds)}) <= 6  # two of each of rounds 1, 2 and 3
    assert {line["round"] for line in server.log()} <= {1, 2, 3}


@pytest.mark.parametrize("view", ["memory", "models", "round", "experiment"])
def test_no_name_of_a_view_leads_around_the_log(view: str, tmp_path: Path) -> None:
    assert len(Server(made(OWN, tmp_path)).answered(lambda _: 1, 5, view)) == 2


def test_what_was_evaluated_once_is_answered_again_and_is_the_same(tmp_path: Path) -> None:
    server = Server(made(OWN, tmp_path))
    models = {"aca": server.model(0.0)}
    first = server.asks(1, models)
    server.answered(lambda _: 1, 5)
    for round in range(1, 5):
        server.act(round)
    before = server.log()
    assert tree.equal(server.asks(1, models), first)  # a resumed server asks for the same bits
    assert server.log() == before


def test_a_round_that_no_checkpoint_leads_back_to_is_over(tmp_path: Path) -> None:
    server = Server(made(OWN, tmp_path))
    for round in (1, 2, 3):
        server.act(round)
    with pytest.raises(DataError, match="round 1"):
        server.asks(1, {"aca": server.model(0.1)})
    assert server.asks(2, {"aca": server.model(0.1)})["models"]
    assert server.asks(3, {"aca": server.model(0.1)})["models"]


def test_a_site_that_is_handed_another_experiment_counts_anew(tmp_path: Path) -> None:
    deployment = made(OWN, tmp_path)
    server = Server(deployment)
    assert len(server.answered(lambda _: 1, 5)) == 2
    for file in (deployment.experiment, deployment.site(1) / "experiment.toml"):
        file.write_text(file.read_text().replace("rounds = 6", "rounds = 7"))
    assert len(Server(deployment).answered(lambda _: 1, 5)) == 2  # the same two: more rounds are no other experiment
    assert len(server.log()) == 2
    for file in (deployment.experiment, deployment.site(1) / "experiment.toml"):
        file.write_text(file.read_text().replace("rounds = 7", "rounds = 7\nseed = 3"))
    assert len(Server(deployment).answered(lambda _: 1, 5)) == 2
    assert len(server.log()) == 4


def test_a_torn_line_costs_no_later_one(tmp_path: Path) -> None:
    server = Server(made(OWN, tmp_path))
    server.asks(1, {"aca": server.model(0.1)})
    with (server.folder / "evaluated.jsonl").open("a") as file:
        file.write('{"round": 1, "eval')
    (found,) = server.answered(lambda _: 1, 5)
    assert server.answered(lambda _: 1, 5) == [found]


def _changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Server], Mapping[str, Tree]]:
    def make(server: Server) -> Mapping[str, Tree]:
        return {"aca": {k: change(w) if k.endswith(name) else w for k, w in server.model(0.0).items()}}

    return make


JUNK: dict[str, Callable[[Server], Mapping[str, Tree]]] = {
    "no network": lambda _: {"aca": {"w": torch.zeros(3)}},
    "a leaf": lambda _: {"aca": torch.zeros(3)},  # type: ignore[dict-item]
    "a missing name": lambda server: {"aca": dict(list(server.model(0.0).items())[1:])},
    "shapes": _changed("weight", lambda w: w[:1]),
    "kinds of numbers": _changed("weight", lambda w: w.double()),
    "not finite": _changed("bias", lambda w: w / 0),
    "variances": _changed("running_var", lambda w: w - 5),
    "many": lambda server: {f"view {k}": server.model(k) for k in range(9)},
}


@pytest.mark.parametrize("kind", JUNK)
def test_a_site_refuses_models_that_its_method_cannot_have(kind: str, tmp_path: Path) -> None:
    batchnorm = {**OWN, "model": {"name": "resnet8", "norm": "batch"}}
    server = Server(made(batchnorm if kind == "variances" else OWN, tmp_path))
    with pytest.raises(DataError, match="message is refused"):
        server.asks(1, JUNK[kind](server))
    assert not (server.folder / "evaluated.jsonl").exists()


@pytest.mark.parametrize(
    ("exp", "round", "header", "reason"),
    [
        ({}, 1, {"views": '{"aca": "0"}'}, "announces"),
        ({}, 0, {}, "round 0"),
        ({}, 7, {}, "round 7"),
        ({"evaluate_every": 3}, 1, {}, "round 1"),
    ],
)
def test_a_site_refuses_models_of_no_round(
    exp: dict[str, Any], round: int, header: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    server = Server(made({**OWN, **exp}, tmp_path))
    for before in range(1, round):
        server.act(before)
    with pytest.raises(DataError, match=reason):
        server.asks(round, {"aca": server.model(0.0)}, **header)


def test_a_server_cannot_have_all_memories_of_a_site_evaluated(tmp_path: Path) -> None:
    """The site's own model is one of those that count."""
    server = Server(made({**OWN, "method": {"name": "local"}}, tmp_path))
    digests = []
    for round in (1, 2, 3):
        fed = server.engine.open(server.method, round)
        fed.ask("train", [1])
        digests.append(server.engine.memories[1][REFERENCE])
    assert server.asks(3, {}, digest=digests[2])["personal"]
    assert server.asks(3, {}, digest=digests[1])["personal"]
    with pytest.raises(DataError, match="round 3"):
        server.asks(3, {}, digest=digests[0])


# --- honest runs --------------------------------------------------------------------------------------------------

TINY = {
    "rounds": 3,
    "data": {"name": "tiny"},
    "model": {"name": "mlp"},
    "partition": {"clients": 3, "alpha": 1.0, "validation": 0.1},
}


@pytest.mark.parametrize(
    "more",
    [{}, {"evaluate_every": 2}, {"participation": {"policy": "fraction", "fraction": 0.4}}, {"amp_weights": "train"}],
)
def test_an_honest_run_is_evaluated_as_a_simulation_is(more: dict[str, Any], tmp_path: Path) -> None:
    deployment, said = init({**TINY, **more}, tmp_path / "lab", 3), list[str]()
    app.conducted(grid_of(deployment), deployment, said.append)
    assert said == []
    alone = simulate({**TINY, **more, "engine": "serial", "aggregation": {"cap": 0.5}}, tmp_path / "alone")
    assert [r["views"] for r in read_run(deployment.run).rounds] == [r["views"] for r in alone.rounds]


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_private_run_has_no_figures_and_says_why(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opacus")
    values = {**PRIVATE, "rounds": 2, "method": {"name": method}}
    deployment, said = made(values, tmp_path), list[str]()
    grid = grid_of(deployment)
    app.conducted(grid, deployment, said.append)
    assert not [m for m in grid.sent if m.metadata.message_type == VIEWS]
    assert len([line for line in said if "off under [privacy]" in line]) == 1
    run = read_run(deployment.run)
    assert run.views == (("aca", "oca") if method == "fedavg" else ("personal",))
    for record in run.rounds:
        assert {view["amp"] for view in record["views"].values()} == {None}
        assert {n for view in record["views"].values() for n in view["clients"]["size"]} == {0}
    show([run])
    assert "off under [privacy]" in " ".join(capsys.readouterr().out.split())
    assert "off under [privacy]" in write_report([run], tmp_path / "r.html").read_text()


def test_a_private_simulation_has_figures(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    run = simulate({**TINY, "privacy": {}, "rounds": 1, "engine": "serial"})
    assert run.rounds[0]["views"]["aca"]["amp"] is not None
    assert not [line for line in warnings([run]) if "[privacy]" in line]


@pytest.mark.parametrize("stop", [{"target": 0.9}, {"patience": 3, "metric": "wlp"}])
def test_a_private_deployment_cannot_stop_by_what_is_not_measured(stop: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"stop\."):
        init({**PRIVATE, "stop": stop}, tmp_path / "lab", 2)
    init({**PRIVATE, "stop": {"seconds": 5.0}}, tmp_path / "lab", 2)


def test_state_and_message_agree_on_what_is_announced(tmp_path: Path) -> None:
    """The server's own message is one that a site accepts."""
    server = Server(made(OWN, tmp_path))
    for round in (1, 2):
        server.act(round)
    server.engine.patience = 1.0
    state = State(2, {**server.method.init(server.engine.open(server.method, 2))})
    views = server.engine.evaluate(server.method, state)
    assert views["aca"]["clients"]["size"][1] == 9
    assert server.log()[-1]["models"].keys() >= {"aca"}
