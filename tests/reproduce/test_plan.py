"""From an item to its jobs: keys, columns, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import SHIPPED, put, read_toml
from fedalloy.config.sections import Experiment
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import methods as registered
from fedalloy.federation.metrics import METRICS
from fedalloy.reproduce import plan
from fedalloy.reproduce.catalogue import Item, Paper, Row, Scale, papers
from fedalloy.reproduce.plan import columns, golden, identity, jobs, key_of, paper_column
from fedalloy.reproduce.results import TARGET
from fedalloy.reproduce.smoke import small

ITEM = Item(
    "table1",
    "a table",
    "4",
    "scores",
    full=Scale(experiment="knfu-mnist", columns=("50, 0.1", "100, 1"), stands_for={"100, 1": "100 samples"}),
    cpu=Scale(),
    smoke=Scale(experiment="knfu-mnist", columns=("50, 0.1",), seeds=(0, 1)),
    rows=(Row("KnFu", "knfu", "personal"), Row("Alone", "local", "personal")),
    metrics=("alma",),
    paper="knfu",
)
BASE: Mapping[str, Any] = {
    "rounds": 20,
    "data": {"name": "mnist"},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.1},
    "model": {"name": "simple-cnn"},
    "method": {"name": "kdia", "lambda_kd": 0.5},
    "training": {"epochs": 2, "lr": 0.01},
}


def key(seed: int = 0, **changes: Any) -> str:
    values = json.loads(json.dumps(BASE))
    for name, value in changes.items():
        put(values, name.replace("__", "."), value)
    exp = experiment(values)
    return key_of(identity(exp, exp.method), seed)


@pytest.mark.parametrize(
    "changes",
    [{"engine": "serial"}, {"engine": "pool"}, {"workers": 2}, {"memory": "1 GB"}, {"method__lambda_kd": 0.5}],
)
def test_a_key_does_not_change_with_the_machine(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 21},
        {"evaluate_every": 2},
        {"data__name": "fashion"},
        {"partition__clients": 11},
        {"partition__alpha": 0.2},
        {"partition__validation": 0.1},
        {"model__name": "mlp"},
        {"method__lambda_kd": 0.6},
        {"training__epochs": 3},
        {"training__lr": 0.02},
        {"training__momentum": 0.5},
        {"participation": {"policy": "fraction", "fraction": 0.5}},
        {"amp_weights": "train"},
        {"quorum": {"fraction": 0.1}},
        {"aggregation": {"clip": 1.0}},
        {"device": "cuda"},
    ],
    ids=str,
)
def test_a_key_changes_with_all_that_changes_a_number(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


def test_a_key_changes_with_seed_and_golden_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seeds = key(), {key(seed) for seed in range(5)}
    assert len(seeds) == 5
    exp = experiment({**BASE, "seed": 3})
    assert key_of(identity(exp, exp.method), 0) == before, "the experiment's own seed is that of the job"
    cases = dict(plan._golden())
    monkeypatch.setattr(plan, "_golden", lambda: {**cases, "fedavg": {"state": "other"}})
    assert key() == before, "another method's numbers do not matter"
    monkeypatch.setattr(plan, "_golden", lambda: {**cases, "kdia": {"state": "other"}})
    assert key() != before


def test_a_key_changes_with_every_option_of_a_method() -> None:
    """Of each kind of value: numbers, words, truth values."""
    exp = experiment({**BASE, "method": {"name": "kdia"}})
    options = identity(exp, exp.method)["experiment"]["method"]
    known, changed = key_of(identity(exp, exp.method), 0), 0
    for name, value in options.items():
        if name == "name" or isinstance(value, str) or value is None:
            continue
        other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2 + 0.01
        try:
            made = experiment({**BASE, "method": {"name": "kdia", name: other}})
            found = identity(made, made.method)
        except UsageError:
            continue  # not allowed, or without effect beside the others
        assert key_of(found, 0) != known, name
        changed += 1
    assert changed > 3


def test_golden_numbers_are_those_of_the_variant() -> None:
    cases = plan._golden()
    variants = [name for name in cases if " " in name]
    assert variants
    for case in variants:
        name, variant = case.split(" ", 1)
        assert golden(name, variant) == {k: v for k, v in cases[case].items() if k in ("state", "memories")}
    assert golden("fedavg", "no such variant") == golden("fedavg")
    assert golden("a method of somebody") == {}


def test_every_method_of_the_papers_has_golden_numbers() -> None:
    for paper in papers().values():
        for item in paper.items:
            for scale in ("full", "cpu"):
                for job in jobs(item, scale, seeds=[0]):
                    assert job.identity["golden"], f"{paper.id} {item.id}: {job.method}"


def test_axes_that_do_not_change_a_method_share_one_run() -> None:
    axes = (
        {
            "name": "weight",
            "values": [{"label": f"{weight}", "set": {"methods.knfu.kd_weight": weight}} for weight in (0.25, 0.5)],
        },
    )
    found = jobs(replace(ITEM, full=Scale(experiment="knfu-mnist", axes=axes)), "full", seeds=[0])
    folders = {(job.column, job.method): job.folder for job in found}
    assert folders["0.25", "local"] == folders["0.5", "local"]
    assert folders["0.25", "knfu"] != folders["0.5", "knfu"]


def test_rows_with_one_method_share_one_run_and_items_with_one_setting_too() -> None:
    more = replace(ITEM, id="fig1", rows=(*ITEM.rows, Row("KnFu, distilled", "knfu", "distilled")))
    folders = [[job.folder for job in jobs(item, "full")] for item in (ITEM, more)]
    assert folders[0] == folders[1]
    assert len(set(folders[0])) == 2 * 2 * 3


def test_columns_are_those_that_are_named_in_the_order_of_the_grid() -> None:
    assert [cell.name for cell in columns(ITEM, "full")] == ["50, 0.1", "100, 1"]
    turned = replace(ITEM, full=replace(ITEM.full, columns=("100, 1", "50, 0.1", "50, 0.1")))
    assert [cell.name for cell in columns(turned, "full")] == ["50, 0.1", "100, 1"]
    none = replace(ITEM, full=Scale(experiment="knfu-mnist", axes=(), set={"partition.alpha": 7.0}))
    ((cell),) = columns(none, "full")
    assert (cell.name, cell.values["partition"]["alpha"]) == ("", 7.0)
    assert [paper_column(ITEM, "full", cell.name) for cell in columns(ITEM, "full")] == ["50, 0.1", "100 samples"]


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(UsageError, match=r"knfu table1 has no column '50, 0\.3' at full"):
        columns(replace(ITEM, full=replace(ITEM.full, columns=("50, 0.3",))), "full")
    with pytest.raises(UsageError, match="knfu table1 has no column '100,1' at full"):
        columns(replace(ITEM, full=replace(ITEM.full, stands_for={"100,1": "100 samples"})), "full")
    left_out = replace(ITEM.full, stands_for={"200, 1": "200 samples"})
    with pytest.raises(UsageError, match="knfu table1 has no column '200, 1' at full"):
        columns(replace(ITEM, full=left_out), "full")


def test_unknown_rows_and_methods_are_refused() -> None:
    """A key that the experiment lacks must not run a method of that name with its defaults."""
    with pytest.raises(DataError, match="knfu table1 has no row 'KnFV'"):
        jobs(replace(ITEM, full=replace(ITEM.full, rows=("KnFV",))), "full")
    assert "fedmd" in registered
    with pytest.raises(DataError, match=r"knfu table1 names the method 'fedmd', which knfu-mnist lacks"):
        jobs(replace(ITEM, rows=(Row("FedMD", "fedmd", "personal"),)), "full")


def test_jobs_have_the_scales_rows_and_seeds() -> None:
    some = replace(ITEM, full=replace(ITEM.full, rows=("Alone",), seeds=(4, 5)))
    assert [(job.column, job.method, job.seed) for job in jobs(some, "full")] == [
        ("50, 0.1", "local", 4),
        ("50, 0.1", "local", 5),
        ("100, 1", "local", 4),
        ("100, 1", "local", 5),
    ]
    assert {job.seed for job in jobs(some, "full", seeds=[9])} == {9}
    assert jobs(ITEM, "cpu") == []
    (first, *_) = jobs(some, "full")
    assert first.folder == f"local-seed4-{first.key}"
    assert isinstance(first.experiment, Experiment)


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*.toml")), ids=lambda file: file.stem)
def test_every_shipped_experiment_can_be_made_small(file: Any) -> None:
    values = read_toml(file)
    values.pop("axes", None)
    values.pop("published", None)
    exp = experiment(small(values))
    assert (exp.rounds, exp.data.name, exp.partition.clients, exp.engine) == (2, "tiny", 5, "serial")
    assert list(exp.methods) == list(values.get("methods", {}))
    for name, choice in exp.methods.items():
        given = values["methods"][name]
        assert choice.name == given.get("name", name)
        quick = registered[choice.name].card.quick
        for option, value in choice.options.items():
            if option in given and option not in quick:
                assert value == given[option], f"{name}: {option}"
        identity(exp, choice)


@pytest.mark.parametrize("paper", papers().values(), ids=lambda paper: paper.id)
def test_claims_name_columns_that_there_are(paper: Paper) -> None:
    """A column that no scale has would only be told as left out, and the claim judged by the others."""
    for claim in paper.claims:
        item = paper.item(claim.item)
        known = set()
        for scale in (name for name in ("full", "cpu") if item.scale(name).experiment):
            names = [cell.name for cell in columns(item, scale)]
            known |= {*names, *(paper_column(item, scale, name) for name in names)}
        assert {*claim.columns, *claim.right_columns} <= known, claim.name
        assert not claim.right_columns or claim.columns, f"{claim.name}: pairs of columns need both sides"
        target = TARGET.fullmatch(claim.metric)
        assert target is None or METRICS[target[1]].better == "high", claim.name


@pytest.mark.parametrize("paper", papers().values(), ids=lambda paper: paper.id)
def test_published_columns_are_those_of_the_full_scale(paper: Paper) -> None:
    for item in paper.items:
        if item.published and item.full.experiment:
            names = [paper_column(item, "full", cell.name) for cell in columns(item, "full")]
            assert {column.column for column in item.published} <= set(names), item.id
            assert len({column.column for column in item.published}) == len(item.published), item.id
