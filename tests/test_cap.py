"""`aggregation.cap`: whatever size a client reports, it weighs no more than its share, under every method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedalloy.aggregation.robust import bounded, bounded_counts
from fedalloy.aggregation.rule import Aggregation
from fedalloy.check.probe import small_settings
from fedalloy.config.experiment import experiment
from fedalloy.data.samples import Samples
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, Method, Reply, act, methods, quick, run
from fedalloy.federation.engine import Answer
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting, Site
from fedalloy.knowledge.server_generator import label_distribution
from fedalloy.knowledge.teachers import by_label_counts
from fedalloy.train.costs import Meter

SIZES = [48, 10**6, 48]
LIAR = 1
# Options with which the server's model is what clients' models weigh, before the server learns itself.
DAFKD = [name for name in methods if name.startswith("dafkd")]
PLAIN: dict[str, dict[str, Any]] = {
    **{name: {"distil_steps": 0} for name in DAFKD},
    "feddf": {"steps": 0},
    "fedftg": {"iterations": 0},
    "qffl": {"q": 0.0},
}
BY_SIZE = {name: {"weights": "size"} for name in DAFKD}  # which usually weigh clients alike
MODELS = [name for name in methods if "model" in methods[name].card.up]

STEP = 2.0**-8  # small enough not to lie far out beside the others


def claimed() -> Setting:
    """Three clients, one of which has a million samples, or says so."""
    sites = [
        Site(Samples(torch.zeros(1, 1, 8, 8).expand(n, 1, 8, 8), torch.arange(n) % 4, torch.arange(n)), site.test)
        for n, site in zip(SIZES, small_settings()[0].sites, strict=False)
    ]
    return replace(small_settings()[0], sites=sites, participation=Participation())


class Moving(Serial):
    """Nobody learns; the liar returns every network moved by a step, and the others what they were sent."""

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        for message in messages:
            me = self.setting.client(message.client, round, {})
            if message.action == "tell":
                yield Answer(message.client, act(method, me, message), Meter())
                continue
            told = {"n": me.n} | ({"counts": me.train.counts(me.classes)} if getattr(method, "tells_counts", 0) else {})
            told |= {"loss": torch.tensor(1.0)} if method.name == "qffl" else {}
            still = message.action == "start"  # whose average is where the round begins
            nets = {key: body for key, body in message.body.items() if key in ("model", "generator", "head")}
            if method.name not in DAFKD:
                nets = {"model": nets["model"]}
            by = STEP if message.client == LIAR and not still else 0.0
            moved = {k: {n: t + by if t.is_floating_point() else t for n, t in net.items()} for k, net in nets.items()}
            yield Answer(message.client, Reply({**moved, **told}), Meter())


def shares(name: str, cap: float | None = None) -> dict[str, float]:
    """The liar's share of each model that the server has after one round."""
    setting, rule = claimed(), Aggregation(cap=cap, **BY_SIZE.get(name, {}))
    method = methods[name](**{**methods[name].card.quick, **PLAIN.get(name, {})}, aggregation=rule)
    start = run(method, Serial(setting), 0)
    after = run(method, Moving(setting), 1, start)
    before = next(iter(method.models(start).values()))
    found = {}
    for view, model in method.models(after).items():
        key = next(key for key, t in model.items() if t.is_floating_point() and "running" not in key)
        found[view] = float((model[key].double() - before[key].double()).mean()) / STEP
    return found


@pytest.mark.parametrize("name", [name for name in MODELS if name != "qffl"])
def test_a_client_that_claims_a_million_samples_has_at_most_its_cap_of_every_model(name: str) -> None:
    assert all(share > 0.8 for share in shares(name).values())
    held = shares(name, cap=0.5)
    assert held
    assert all(share == pytest.approx(0.5, abs=1e-5) for share in held.values())


@pytest.mark.parametrize("name", MODELS)
def test_where_the_cap_is_below_an_equal_share_all_weigh_alike(name: str) -> None:
    held = shares(name, cap=0.1)
    assert all(share == pytest.approx(1 / 3, abs=1e-5) for share in held.values())


def test_clients_drawn_by_size_are_drawn_by_the_capped_size() -> None:
    trial = replace(claimed(), participation=Participation(policy="fraction", fraction=0.34))

    def drawn(cap: float | None) -> int:
        return sum(LIAR in trial.active(t, by_size=True, cap=cap) for t in range(200))

    assert drawn(None) > 195
    assert drawn(0.5) < 130


def test_label_counts_are_scaled_down_with_the_size() -> None:
    counts = [torch.tensor([30, 10]), torch.tensor([0, 10**6]), torch.tensor([10, 30])]
    held = bounded_counts(counts, 0.5)
    assert [c.tolist() for c in held] == [[30.0, 10.0], [0.0, pytest.approx(80)], [10.0, 30.0]]
    assert bounded_counts(counts, None) is counts
    assert label_distribution(counts, cap=0.5).tolist() == pytest.approx([0.25, 0.75])
    assert label_distribution(counts).tolist() == pytest.approx([0.0, 1.0], abs=1e-3)
    assert by_label_counts(torch.stack(list(held)))[:, 1].tolist() == pytest.approx([10 / 120, 80 / 120, 30 / 120])


def test_weights_without_a_cap_are_as_they_were() -> None:
    weights = [48.0, 1e6, 48.0]
    assert bounded(weights, None) is weights
    assert bounded(weights, 0.5) == pytest.approx([0.25, 0.5, 0.25])


@pytest.mark.parametrize("wrong", [0.0, 1.5, -1.0])
def test_what_is_no_share_is_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match=rf"aggregation\.cap = {wrong}"):
        experiment({"aggregation": {"cap": wrong}})


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_what_is_no_distance_is_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match=rf"aggregation\.max_distance = {wrong}"):
        experiment({"aggregation": {"max_distance": wrong}})


def test_no_method_has_a_cap_of_its_own() -> None:
    assert not [name for name in methods if hasattr(quick(methods[name]), "cap")]
