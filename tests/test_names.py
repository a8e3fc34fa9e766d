"""Clients with names: from the data set to run.json, tables, verdicts, pictures and deployments."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedalloy import from_arrays
from fedalloy.base.text import name_fault
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.deploy.folder import Deployment, read_deployment
from fedalloy.errors import DataError, UsageError
from fedalloy.report import decisions
from fedalloy.report.gains import gains
from fedalloy.report.gains_table import each_client
from fedalloy.report.html import render
from fedalloy.report.table import cells
from fedalloy.report.verdict import verdict
from fedalloy.run.comparison import compare
from fedalloy.storage.results import read
from fedalloy.storage.rows import rows
from fedalloy.storage.run_files import check_description

NAMES = ("North clinic", "Lakeside", "St <b>Mary</b>", "Harbour", "A very long name of a hospital by the sea")


def hospitals(names=NAMES):
    stream = np.random.default_rng(0)
    ids = np.repeat(np.arange(5), [30, 40, 50, 60, 70])
    x = stream.normal(size=(250, 4)).astype(np.float32)
    y = (x[:, 0] + 0.3 * ids > 0.5).astype(np.int64)
    return from_arrays(x, y, client_ids=ids, client_names=names, mean=[0] * 4, std=[1] * 4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    exp = {"partition": {"name": "natural"}, "model": "mlp", "rounds": 2, "training": {"epochs": 1}}
    folder = tmp_path_factory.mktemp("named")
    return compare(exp, ["local", "fedavg"], seeds=[0, 1, 2], dataset=hospitals(), folder=folder)


def test_a_natural_client_has_its_name_in_the_run(runs):
    assert read(runs[0].folder).client_names == NAMES


def test_another_partition_has_no_names(tmp_path):
    (run,) = compare({"partition": {"clients": 2}, "model": "mlp", "rounds": 1}, ["local"], dataset=hospitals())
    assert run.client_names == ()
    assert "names" not in run.meta["clients"]


def test_clients_are_the_same_over_seeds(runs):
    (one,) = [found for found in gains(runs) if found.over == "local"]
    assert set(one.clients) == set(NAMES)
    assert one.splits == 1
    assert one.seeds == 3
    pairs = [[run for run in runs if run.seed == seed] for seed in (0, 1, 2)]
    by_hand = [
        100 * (b.clients(one.view, "accuracy") - a.clients("personal", "accuracy"))
        for a, b in (sorted(pair, key=lambda run: run.name != "local") for pair in pairs)
    ]
    assert one.points == pytest.approx(np.mean(by_hand, axis=0))
    assert one.spread == pytest.approx(np.std(by_hand, axis=0, ddof=1))
    said = verdict([row for run in runs for row in rows(run)], clients=gains(runs))
    assert "splits" not in said
    assert "15" not in said


def test_tables_name_clients(runs):
    listing = each_client(gains(runs))
    assert listing.headings[0] == "Client"
    assert "SD" in listing.headings
    assert "North clinic" in [line[0] for line in listing.body]
    headings, body = cells([row for run in runs for row in rows(run)])
    worst = {part for line in body for part in line[headings.index("Worst")].text.split(", ")}
    assert not any(part.isdecimal() for part in worst)


def test_each_clients_test_and_the_split_name_clients(runs):
    for _, one in decisions.tested(runs):
        assert [line[0] for line in one.clients.body][:2] == ["North clinic", "Lakeside"]
    exp = experiment({"partition": {"name": "natural"}, "model": "mlp"})
    built = build(exp, hospitals())
    assert "(North clinic)" in built.card.describe(built.setting.names)
    assert "(client 0)" in built.card.describe()


def test_long_names_that_begin_and_end_alike_stay_apart():
    names = tuple(f"The regional hospital of the {k} district by the sea" for k in range(5))
    runs = compare(
        {"partition": {"name": "natural"}, "rounds": 1, "model": "mlp"}, ["local", "fedavg"], dataset=hospitals(names)
    )
    assert len({line[0] for line in each_client(gains(runs)).body}) == 5
    assert len({line[0] for _, one in decisions.tested(runs[:1]) for line in one.clients.body}) == 5


def test_the_report_escapes_names(runs):
    page = render(runs, title="Named")
    assert "North clinic" in page
    assert "St &lt;b&gt;Mary" in page
    assert "<b>Mary" not in page


def test_each_clients_network_stands_beside_its_gain():
    exp = {
        "partition": {"name": "natural"}, "rounds": 1, "model": "mlp",
        "models": [{"name": "mlp", "hidden": 8, "clients": [0, 1]}, {"name": "mlp", "hidden": 16, "share": 1.0}],
        "public": {"data": "own", "samples": 20, "labelled": True},
    }  # fmt: skip
    found = gains(compare(exp, ["local", "knfu"], dataset=hospitals()))
    networks = dict(zip(found[0].clients, found[0].networks, strict=True))
    assert networks["Lakeside"] != networks["Harbour"]
    assert networks["Harbour"].startswith("mlp (")
    assert each_client(found).headings[:2] == ("Client", "Network")


@pytest.mark.parametrize("names", [("A", "A"), ("A\x1b[2J", "B"), ("", "B"), ("x" * 101, "B")])
def test_names_that_mislead_are_refused(names):
    assert name_fault(names)
    with pytest.raises(DataError, match="name"):
        from_arrays([[0.0], [1.0]], [0, 1], client_ids=[0, 1], client_names=names)


def test_a_run_file_with_wrong_names_is_refused(runs):
    meta = json.loads((runs[0].folder / "run.json").read_text())
    check_description("run.json", meta)
    for wrong in (["A"], [*NAMES[:4], NAMES[0]], [*NAMES[:4], "\x1b"], [1, 2, 3, 4, 5]):
        with pytest.raises(DataError, match=r"names|lengths"):
            check_description("run.json", {**meta, "clients": {**meta["clients"], "names": wrong}})


def test_an_error_names_the_client():
    exp = experiment({"partition": {"name": "natural"}, "model": "mlp"})
    setting = build(exp, hospitals()).setting
    empty = replace(setting.sites[1], train=setting.sites[1].train.subset(torch.arange(0)))
    with pytest.raises(UsageError, match="Lakeside has no training data"):
        replace(setting, sites=[setting.sites[0], empty, *setting.sites[2:]])
    with pytest.raises(UsageError, match="names"):
        replace(setting, names=("A",))


def test_a_file_of_arrays_may_name_its_clients(tmp_path):
    from fedalloy import load_data

    data, path = hospitals(), tmp_path / "mine.npz"
    np.savez(path, x=data.x[:, :, 0, 0], y=data.y, client=data.client_ids, client_names=np.array(NAMES))
    assert load_data(str(path)).client_names == NAMES


def test_a_deployment_keeps_its_sites_names(tmp_path):
    one = Deployment(tmp_path, "127.0.0.1", 8443, 2, names=('North "clinic"', "Zürich"))
    (tmp_path / "deployment.toml").write_text(one.to_toml(), encoding="utf-8")
    assert read_deployment(tmp_path).names == one.names
    with pytest.raises(UsageError, match="names"):
        Deployment(tmp_path, "127.0.0.1", 8443, 2, names=("A", "A"))
    with pytest.raises(UsageError, match="names"):
        Deployment(tmp_path, "127.0.0.1", 8443, 2, names=("A",))


def test_a_rehearsal_takes_the_names_of_the_experiments_clients(tmp_path, monkeypatch):
    from fedalloy.deploy import init as module

    setting = build(experiment({"partition": {"name": "natural"}, "model": "mlp"}), hospitals()).setting
    monkeypatch.setattr(module, "refuse_undeployable", lambda exp, sites, public=None: setting)
    made = module.init({"model": "mlp"}, tmp_path / "lab", 5)
    assert read_deployment(made.folder).label(1) == "Lakeside"
