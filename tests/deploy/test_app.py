"""The two apps of a deployment, with its real folders, on a Grid in this process: the model is that of a simulation."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for sites_grid, which is no test

from sites_grid import Killed, Mortal, grid_of

from fedalloy.base import tree
from fedalloy.config.build import Built
from fedalloy.config.experiment import experiment, read
from fedalloy.deploy import app
from fedalloy.deploy.init import init
from fedalloy.deploy.settings import Amount, for_server
from fedalloy.deploy.site import site_setting
from fedalloy.engine.flower.memory import Memory
from fedalloy.federation.quorum import QuorumError
from fedalloy.run.runner import simulate
from fedalloy.storage.results import read as read_run
from fedalloy.storage.store import Store, described
from fedalloy.train.privacy import Account, Privacy, epsilon

TINY = {
    "rounds": 2,
    "evaluate_every": 2,
    "data": {"name": "tiny"},
    "model": {"name": "mlp"},
    "partition": {"clients": 3, "alpha": 1.0},
    "training": {"batch": 16},
    "aggregation": {"cap": 0.5},
}
KNFU = {**TINY, "method": {"name": "knfu"}, "public": {"data": "own", "samples": 30, "labelled": True}}
OWN = {
    "rounds": 2,
    "data": {
        "name": "sites",
        "classes": 2,
        "columns": ["a", "b", "c"],
        "mean": [1.0, 2.0, 3.0],
        "std": [1.0, 2.0, 1.0],
    },
    "model": {"name": "mlp"},
    "partition": {"validation": 0.1},
    "aggregation": {"cap": 0.5},
}


def _digest(folder: Path) -> str:
    found = Store(folder).restore()
    assert found is not None
    return f"{found[0].round} {tree.digest(found[0].body)}"


def _alone(exp: dict[str, Any], folder: Path, built: Built | None = None) -> str:
    simulate({**exp, "engine": "serial"}, folder, built=built)
    return _digest(folder)


def test_a_rehearsal_ends_with_the_model_of_a_simulation(tmp_path: Path) -> None:
    made, said = init(TINY, tmp_path / "lab", 3), list[str]()
    app.conducted(grid_of(made), made, said.append)
    assert _digest(made.run) == _alone(TINY, tmp_path / "alone")
    assert said == []


def test_sites_train_with_the_keys_that_the_method_has_for_itself(tmp_path: Path) -> None:
    own = {**TINY, "training": {"work": "fixed_steps"}, "method": {"name": "qffl", "training": {"work": "epochs"}}}
    made, said = init(own, tmp_path / "lab", 3), list[str]()
    app.conducted(grid_of(made), made, said.append)
    plain = {**TINY, "method": "qffl", "training": {"work": "epochs"}}
    assert (_digest(made.run), said) == (_alone(plain, tmp_path / "alone"), [])


PRIVATE = {**TINY, "privacy": {"noise_multiplier": 1.0}}


def test_a_private_deployment_draws_noise_that_nobody_can_repeat(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    digests = [_alone(PRIVATE, tmp_path / "alone")]
    for name in ("one", "two"):
        made = init(PRIVATE, tmp_path / name, 3)
        app.conducted(grid_of(made), made, lambda _: None)
        digests.append(_digest(made.run))
    assert len(set(digests)) == 3
    (last,), (alone,) = (read_run(folder).rounds[-1:] for folder in (made.run, tmp_path / "alone"))
    assert (last["noise"], alone["noise"]) == ("secret", "rehearsed")
    assert last["epsilons"] == alone["epsilons"]  # the same training, at the same price
    assert not torch.equal(*(_draws(made.site(0)) for _ in range(2)))


def _draws(site: Path) -> torch.Tensor:
    """The noise that a site's client would draw."""
    account = site_setting(site, 3)[1].client(0, 1, {}).account
    assert account is not None
    return account.noise(0, lambda _: torch.Generator().manual_seed(0)).normal((5,))


def test_what_sites_have_spent_survives_a_kill_of_the_server(tmp_path: Path) -> None:
    """What a killed round cost is paid for twice: its noise cannot be drawn again."""
    pytest.importorskip("opacus")
    made = init(PRIVATE, tmp_path / "lab", 3)
    with pytest.raises(Killed):
        app.conducted(grid_of(made, Mortal(8)), made, lambda _: None)  # when all have trained and two have answered
    app.conducted(grid_of(made), made, lambda _: None)
    steps = [Account(Privacy(), Memory(made.site(k) / "memory" / str(k)).spent()).steps for k in range(3)]
    once = [site_setting(made.site(k), 3)[1].steps(k) for k in range(3)]
    assert steps == [3 * count for count in once]
    epsilons = [epsilon(Memory(made.site(k) / "memory" / str(k)).spent(), 1e-5) for k in range(3)]
    assert read_run(made.run).rounds[-1]["epsilons"] == epsilons


def test_a_run_that_was_cut_off_goes_on_to_the_same_model(tmp_path: Path) -> None:
    made = init(KNFU, tmp_path / "lab", 3)
    with pytest.raises(Killed):
        app.conducted(grid_of(made, Mortal(12)), made, lambda _: None)
    assert _digest(made.run).startswith("1 ")
    app.conducted(grid_of(made), made, lambda _: None)
    assert _digest(made.run) == _alone(KNFU, tmp_path / "alone")


def test_sites_with_data_of_their_own_train_as_one_federation(tmp_path: Path) -> None:
    made = init(OWN, tmp_path / "lab", 2)
    stream = np.random.default_rng(0)
    rows = stream.normal(2.0, 1.0, (40, 3)).astype(np.float32)
    labels = (rows.sum(axis=1) > 6).astype(np.int64)
    parts = {"x_train": rows, "y_train": labels, "x_test": rows[:7], "y_test": labels[:7]}
    np.savez(made.site(0) / "data.npz", columns=np.array(["a", "b", "c"]), **parts)
    (made.site(0) / "site.toml").write_text('client = 0\ndata = "data.npz"\n')
    lines = [",".join(map(str, [*row[:2], label, row[2]])) for row, label in zip(rows[:30], labels[:30], strict=True)]
    (made.site(1) / "data.csv").write_text("\n".join(["a,b,ill,c", *lines]) + "\n")
    (made.site(1) / "site.toml").write_text('client = 1\ndata = "data.csv"\nlabel = "ill"\n')
    grid = grid_of(made)
    app.conducted(grid, made, lambda _: None)
    partition = described(made.run)["partition"]
    assert partition["counts"] == [[0, 0], [0, 0]]  # the server does not know how many are ill
    assert partition["skew"]["classes_per_client"] == 0
    sites = [site_setting(made.site(k), 2)[1] for k in range(2)]
    whole = dataclasses.replace(sites[0], sites=[sites[k].sites[k] for k in range(2)])
    exp = read(made.experiment)
    amounts = {k: Amount(len(s.train), len(s.test), len(s.validation or ())) for k, s in enumerate(whole.sites)}
    assert _digest(made.run) == _alone(
        OWN, tmp_path / "alone", dataclasses.replace(for_server(exp, amounts), setting=whole)
    )
    assert amounts[0] == Amount(36, 7, 4)
    assert amounts[1] == Amount(21, 6, 3)  # as a simulation splits the rows of a natural client
    for message in grid.received:  # no row of anybody's data is in anything that left a site
        sent = b"".join(one.data for record in message.content.array_records.values() for one in record.values())
        assert not any(row.tobytes() in sent for row in rows)


def test_what_is_wrong_with_a_sites_rows_is_said_at_the_site_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, said = init(OWN, tmp_path / "lab", 2), list[str]()
    for site in range(2):
        (made.site(site) / "data.csv").write_text("a,b,c,ill\n1,2,3,0\n1,2,Mrs Smith,1\n")
        (made.site(site) / "site.toml").write_text(f'client = {site}\ndata = "data.csv"\nlabel = "ill"\n')
    monkeypatch.setattr(app, "PATIENCE", 0.5)
    grid = grid_of(made)
    with pytest.raises(QuorumError) as error:
        app.conducted(grid, made, said.append)
    assert not any("Smith" in str(message.content) for message in grid.received)
    assert "Smith" not in f"{said} {error.value}"
    assert "introduce" in said[0]
    assert "DataError" in said[0]
    assert "Smith" in caplog.text  # for who looks after the site


def test_a_site_that_does_not_come_ends_a_run_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, said = init(TINY, tmp_path / "lab", 3), list[str]()
    monkeypatch.setattr(app, "PATIENCE", 0.5)
    grid = grid_of(made)
    del grid.nodes[max(grid.nodes)]
    with pytest.raises(QuorumError, match="site-2 of 3"):
        app.conducted(grid, made, said.append)
    assert not (made.run / "run.json").exists()


def test_a_site_that_agreed_to_another_experiment_takes_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, said = init(TINY, tmp_path / "lab", 3), list[str]()
    monkeypatch.setattr(app, "PATIENCE", 0.5)
    (made.site(0) / "experiment.toml").write_text(tomli_w.dumps({**TINY, "seed": 7}))
    with pytest.raises(QuorumError, match="site-0 of 3"):
        app.conducted(grid_of(made), made, said.append)
    assert "(seed)" in said[0]


def test_the_experiment_of_a_site_is_the_server_s(tmp_path: Path) -> None:
    made = init(TINY, tmp_path / "lab", 3)
    assert read(made.experiment) == read(made.site(2) / "experiment.toml") == experiment(TINY)
