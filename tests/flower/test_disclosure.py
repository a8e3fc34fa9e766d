"""What `fedalloy list --privacy` and reports say that clients send, against all messages of real rounds."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))  # for sites_grid

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.engine.flower.client import ACT, INTRODUCE, SUMMARISE, VIEWS
from fedalloy.engine.flower.codec import from_records, header_in
from fedalloy.federation.core import methods, quick, run
from fedalloy.federation.disclosure import (
    EVALUATION,
    INTRODUCTION,
    LABELS,
    NUMBERS,
    REPLY,
    STATISTICS,
    always,
    evaluated,
)
from fedalloy.federation.gate import Room
from fedalloy.federation.setting import Site
from fedalloy.train.privacy import Privacy


def sent(engine):
    """The header and the tree of everything that the clients have sent, by the kind of message."""
    found = {ACT: [], VIEWS: [], INTRODUCE: []}
    for message in engine.grid.received:
        found[message.metadata.message_type].append(from_records(message.content, Room(1 << 24, 1 << 20)))
    return found


EVERYDAY = [(name, False) for name in ("fedavg", "local", "knfu", "fedmd-global", "dafkd", "feddf")]


@pytest.mark.parametrize(("name", "private"), [*EVERYDAY, ("fedavg", True), ("local", True)])
def test_clients_send_what_is_listed_and_nothing_else(name, private, plain, federation):
    if private:
        pytest.importorskip("opacus")
    sites = [Site(site.train, site.test, site.test) for site in plain.sites]
    setting = replace(plain, sites=sites, privacy=Privacy() if private else None)
    engine, method = federation(setting), quick(methods[name])
    engine.simulated = True  # as on Ray, where clients evaluate under [privacy] too
    engine.evaluate(method, run(method, engine, 1))
    found = sent(engine)
    for header, body in found[INTRODUCE]:
        assert header.keys() == INTRODUCTION.keys() - {"counts"}  # which none of these methods tells
        assert not body
    for header, _ in found[ACT]:
        assert {key.partition(".")[0] for key in header} <= REPLY.keys()
    assert len(found[VIEWS]) == len(sites)
    for header, body in found[VIEWS]:
        assert not header
        assert body.keys() == {"models", "personal", "stages", "order"}
        assert body["order"].split() == list(method.stages(setting.client(0, 1, {})))  # names that the method has
        counted = [*body["models"].values(), *body["stages"].values(), *filter(None, [body["personal"]])]
        assert counted
        assert all(one.keys() == EVALUATION.keys() - {"decided"} for one in counted)  # of two classes only
        listed = evaluated(methods[name])
        assert bool(body["models"]) == ("the server's" in listed)
        assert bool(body["personal"] or body["stages"]) == ("its own" in listed)


def test_every_method_has_models_that_are_listed():
    assert all(evaluated(method) for method in methods.values())
    said = " ".join(always())
    assert all(
        words in said
        for words in (
            *EVALUATION.values(),
            *LABELS.values(),
            *NUMBERS.values(),
            *INTRODUCTION.values(),
            *REPLY.values(),
            *STATISTICS.values(),
        )
    )


@pytest.mark.parametrize("impute", [None, "mean", "median", "most_frequent"])
def test_clients_tell_the_statistics_that_are_listed_and_no_others(impute, tmp_path):
    """Real answers of a deployment's sites; together, the ways of imputation tell everything that is listed."""
    from sites_grid import grid_of

    told = answers(grid_of, tmp_path, impute)
    assert len(told) == 3
    parts = {"mean": set(), "median": {"histogram"}, "most_frequent": set(), None: set()}[impute]
    for header in told:
        assert {*header} == {"client", "statistics", "audit"}  # the last is the head of the site's log
        summary = json.loads(header["statistics"])
        assert summary.keys() == {"rows", "columns"}
        keys = {key for column in summary["columns"].values() for key in column}
        assert {"rows", *keys} == STATISTICS.keys() - {"histogram"} | parts
        dose, sex = summary["columns"]["dose"], summary["columns"]["sex"]
        assert ("values" in dose) == (impute == "most_frequent")
        assert sex.keys() == {"present", "values"}
        assert any(sex["values"].values()) == (impute is not None)


def answers(grid_of, tmp_path, impute):
    """The headers of all answers to the question about statistics."""
    from fedalloy.deploy import app
    from fedalloy.deploy.init import init

    (tmp_path / "h").mkdir()
    for place, name in enumerate(("north", "south", "west")):
        rows = "".join(f"{k % 4},{'fm'[k % 2]},{k * (place + 1) % 3 % 2}\n" for k in range(12))
        (tmp_path / "h" / f"{name}.csv").write_text(f"dose,sex,ill\n{rows}")
    data = {"name": str(tmp_path / "h"), "categorical": ["sex"], **({"impute": impute} if impute else {})}
    made = init({"rounds": 1, "data": data, "model": "mlp"}, tmp_path / "lab", address="127.0.0.1:23456")
    grid = grid_of(made)
    app.conducted(grid, made, lambda _: None)
    asked = [m for m in grid.received if m.metadata.message_type == SUMMARISE]
    return [header_in(message.content) for message in asked]
