"""What `fedalloy list --privacy` and reports say that clients send, against all messages of real rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.engine.flower.client import ACT, INTRODUCE, VIEWS
from fedalloy.engine.flower.codec import from_records
from fedalloy.federation.core import methods, quick, run
from fedalloy.federation.disclosure import EVALUATION, INTRODUCTION, LABELS, NUMBERS, REPLY, always, evaluated
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
        )
    )
