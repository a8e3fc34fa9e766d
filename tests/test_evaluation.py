"""Evaluation on a network whose predictions are known, and the promise that it changes nothing."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedalloy.base.tree import clone, equal
from fedalloy.data.label_space import LabelSpace
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Method, State, run
from fedalloy.federation.evaluation import at_client, distinct, evaluate, from_clients, miscounted
from fedalloy.federation.setting import Setting, Site
from fedalloy.methods import FedAvg, Local
from fedalloy.train.fit import LocalWork

AS_IS = {"weight": torch.eye(3)}  # the logits are the inputs: it predicts the largest
ROLLED = {"weight": torch.eye(3).roll(1, 0)}  # it predicts the class after the largest


class Shared(Method):
    """Two views and nothing personal."""

    def models(self, s):
        return {"as-is": AS_IS, "rolled": ROLLED}


class Personal(Method):
    """Client k has the network that it remembers."""

    def personal(self, me):
        return me.memory["model"]


def network():
    return nn.Linear(3, 3, bias=False)


def likes(*classes):
    """Inputs that favour these classes with a logit of ln 4, so that p = (4/6, 1/6, 1/6)."""
    return [[math.log(4) if c == k else 0.0 for k in range(3)] for c in classes]


RIGHT, WRONG = -math.log(4 / 6), -math.log(1 / 6)


@pytest.fixture
def setting(rows):
    """Client 0 is right in 3 of 4, client 1 has no test data, client 2 is right in 1 of 2; 4 of 6 of the holdout."""
    train = rows(likes(0, 1), [0, 1])
    tests = [rows(likes(0, 1, 1, 2), [0, 1, 1, 0]), rows(likes(0), [0]).subset([]), rows(likes(1, 1), [1, 0])]
    checks = [rows(likes(0, 0), [0, 1]), None, rows(likes(1, 1, 1), [1, 1, 0])]
    sites = [Site(train, test, check) for test, check in zip(tests, checks, strict=True)]
    holdout = rows(likes(0, 1, 2, 0, 1, 2), [0, 1, 2, 0, 0, 0])
    return Setting(sites=sites, networks=[network], classes=3, holdout=holdout)


def test_a_shared_view_by_hand(setting):
    view = evaluate(setting, Shared(), State(1, {}), {})["as-is"]
    assert view["clients"]["accuracy"] == [0.75, None, 0.5]
    assert view["clients"]["size"] == [4, 0, 2]
    assert view["clients"]["loss"] == pytest.approx([(3 * RIGHT + WRONG) / 4, None, (RIGHT + WRONG) / 2], abs=1e-6)
    assert view["amp"] == pytest.approx(4 / 6)
    assert view["alma"] == pytest.approx(0.625)
    assert view["fm"] == pytest.approx(0.125**2)
    assert (view["wlp"], view["worst_client"]) == (0.5, 2)
    assert view["loss"] == pytest.approx((4 * RIGHT + 2 * WRONG) / 6, abs=1e-6)
    # Pooled: class 0 is right in 1 of 3 (the others are taken for 2 and 1), class 1 in 3 of 3, class 2 is not there.
    assert view["balanced"] == pytest.approx((1 / 3 + 1) / 2)
    assert view["test"] == pytest.approx(4 / 6)
    assert view["validation"] == pytest.approx((1 + 2) / 5)


def test_amp_by_training_samples_by_hand(setting, rows):
    sizes = [1, 9, 3]
    trains = [rows(likes(*[0] * n), [0] * n) for n in sizes]
    sites = [dataclasses.replace(site, train=train) for site, train in zip(setting.sites, trains, strict=True)]
    by_test, by_train = (dataclasses.replace(setting, sites=sites, amp_weights=by) for by in ("test", "train"))
    plain, weighted = (evaluate(s, Shared(), State(1, {}), {})["as-is"] for s in (by_test, by_train))
    assert plain["amp"] == pytest.approx((4 * 0.75 + 2 * 0.5) / 6)
    assert weighted["amp"] == pytest.approx((1 * 0.75 + 3 * 0.5) / 4)  # client 1 has no test samples
    assert {**plain, "amp": 0} == {**weighted, "amp": 0}
    # The same from what each client counts for itself, as over Flower and at real sites.
    which, kept = distinct(Shared().models(State(1, {})))
    counts = {k: at_client(by_train, Shared(), k, 1, {}, kept) for k in by_train.ids}
    assert from_clients(by_train, which, kept, counts)["as-is"]["amp"] == weighted["amp"]
    only = {k: c for k, c in counts.items() if k != 0}  # client 0 did not answer
    assert from_clients(by_train, which, kept, only)["as-is"]["amp"] == 0.5


def test_every_view_is_evaluated(setting):
    views = evaluate(setting, Shared(), State(1, {}), {})
    assert list(views) == ["as-is", "rolled"]
    # One class on, only the last sample of client 0 comes out right: 2 -> 0.
    assert views["rolled"]["clients"]["accuracy"] == [0.25, None, 0.0]
    assert views["rolled"]["worst_client"] == 2


def test_personal_views_use_each_clients_own_network(setting):
    memories = {0: {"model": AS_IS}, 1: {"model": AS_IS}, 2: {"model": ROLLED}}
    views = evaluate(setting, Personal(), State(1, {}), memories)
    assert list(views) == ["personal"]
    view = views["personal"]
    assert view["clients"]["accuracy"] == [0.75, None, 0.0]
    assert view["amp"] == pytest.approx(3 / 6)
    assert view["test"] is None
    assert view["validation"] == pytest.approx((1 + 0) / 5)  # client 2's three all go from 1 to 2


def test_equal_models_are_evaluated_once(setting):
    class Twins(Shared):
        def models(self, s):
            return {"one": AS_IS, "other": ROLLED, "twin": {"weight": AS_IS["weight"].clone()}}

    built = []
    counting = dataclasses.replace(setting, networks=[lambda: built.append(1) or network()])
    views = evaluate(counting, Twins(), State(1, {}), {})
    accuracies = {name: view["clients"]["accuracy"] for name, view in views.items()}
    assert accuracies == {"one": [0.75, None, 0.5], "other": [0.25, None, 0.0], "twin": [0.75, None, 0.5]}
    assert len(built) == 2


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing(setting, threads):
    memories = {0: {"model": AS_IS}, 1: {"model": AS_IS}, 2: {"model": ROLLED}}
    for method in (Shared(), Personal()):
        alone, together = (evaluate(setting, method, State(1, {}), memories, n) for n in (1, threads))
        assert alone == together


def test_personal_views_of_different_networks(setting):
    def shifted():
        return nn.Sequential(nn.Linear(3, 3, bias=False), nn.Identity())

    several = dataclasses.replace(setting, networks=[network, network, shifted])
    memories = {0: {"model": AS_IS}, 1: {"model": AS_IS}, 2: {"model": {"0.weight": ROLLED["weight"]}}}
    view = evaluate(several, Personal(), State(1, {}), memories)["personal"]
    assert view["clients"]["accuracy"] == [0.75, None, 0.0]


def test_groups_of_equal_weights_are_each_evaluated_with_their_own_network(setting):
    class Backwards(nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    class Groups(Method):
        def models(self, s):
            return {"group 0": AS_IS, "group 1": {"weight": AS_IS["weight"].clone()}}

    several = dataclasses.replace(setting, networks=[network, network, lambda: Backwards(3, 3, bias=False)])
    views = evaluate(several, Groups(), State(1, {}), {})
    assert views["group 0"]["clients"]["accuracy"] == [0.75, None, 0.5]
    assert views["group 0"] == evaluate(setting, Shared(), State(1, {}), {})["as-is"]
    assert views["group 1"]["clients"]["loss"] != views["group 0"]["clients"]["loss"]
    # The same where each client counts for itself.
    which, kept = distinct(Groups().models(State(1, {})))
    counts = {k: at_client(several, Groups(), k, 1, {}, kept) for k in several.ids}
    assert all(miscounted(several, k, found, kept) is None for k, found in counts.items())
    assert from_clients(several, which, kept, counts) == views


def test_without_holdout_and_validation_the_columns_are_empty(setting):
    sites = [Site(site.train, site.test) for site in setting.sites]
    bare = Setting(sites=sites, networks=[network], classes=3)
    for method, memories in ((Shared(), {}), (Personal(), {k: {"model": AS_IS} for k in range(3)})):
        for view in evaluate(bare, method, State(1, {}), memories).values():
            assert view["test"] is None
            assert view["validation"] is None


def test_empty_validation_shares_are_an_empty_column_too(setting):
    sites = [Site(site.train, site.test, site.train.subset([])) for site in setting.sites]
    bare = Setting(sites=sites, networks=[network], classes=3)
    for method, memories in ((Shared(), {}), (Personal(), {k: {"model": AS_IS} for k in range(3)})):
        for view in evaluate(bare, method, State(1, {}), memories).values():
            assert view["validation"] is None


def test_a_federation_without_any_test_data_has_no_figures(setting):
    sites = [Site(site.train, site.train.subset([])) for site in setting.sites]
    view = evaluate(Setting(sites=sites, networks=[network], classes=3), Shared(), State(1, {}), {})["as-is"]
    assert [view[name] for name in ("amp", "fm", "wlp", "alma", "loss", "mixture_min")] == [None] * 6
    assert view["clients"]["accuracy"] == [None] * 3


def test_inactive_clients_are_evaluated_too(small_setting):
    setting = small_setting([6, 6, 6])
    engine = Serial(setting)
    state = run(FedAvg(), engine, 1)
    views = evaluate(setting, FedAvg(), state, engine.memories)
    assert list(views) == ["aca", "oca"]
    assert all(None not in view["clients"]["accuracy"] for view in views.values())


@pytest.mark.parametrize("method", [FedAvg(), Local()])
def test_evaluation_changes_nothing(method, small_setting, small):
    setting = small_setting(
        [6, 9],
        networks=[lambda: small(batch_norm=True, dropout=0.3)],
        work=LocalWork(batch=3, lr=0.1),
    )
    watched, plain = Serial(setting), Serial(setting)

    def watch(state, _):
        before = clone(state.body), clone(dict(enumerate_memories(watched)))
        streams = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002  the global one is watched here
        first, second = (evaluate(setting, method, state, watched.memories) for _ in range(2))
        assert first == second
        assert equal(state.body, before[0])
        assert equal(dict(enumerate_memories(watched)), before[1])
        assert torch.equal(torch.get_rng_state(), streams[0])
        assert (np.random.get_state()[1] == streams[1]).all()  # noqa: NPY002

    with_evaluation = run(method, watched, 3, watch=watch)
    without = run(method, plain, 3)
    assert equal(with_evaluation.body, without.body)
    assert equal(dict(enumerate_memories(watched)), dict(enumerate_memories(plain)))


def enumerate_memories(engine):
    return {str(k): memory for k, memory in engine.memories.items()}


class Staged(Personal):
    """Each client also has an earlier model."""

    def stages(self, me):
        return {"earlier": ROLLED}


def test_stages_are_views_of_each_clients_own(setting):
    memories = {k: {"model": AS_IS} for k in range(3)}
    views = evaluate(setting, Staged(), State(1, {}), memories)
    assert views["personal"]["clients"]["accuracy"] == [0.75, None, 0.5]
    # The class after the largest: 1 2 2 0 for labels 0 1 1 0, and 2 2 for labels 1 0.
    assert views["earlier"]["clients"]["accuracy"] == [0.25, None, 0.0]


def test_a_test_set_that_all_share_is_evaluated_once_and_counts_for_each(setting, rows):
    common = rows(likes(0, 1, 2, 0), [0, 1, 1, 1])
    calls = []

    class Counting(nn.Linear):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    sites = [Site(site.train, common) for site in setting.sites]
    shared = Setting(sites=sites, networks=[lambda: Counting(3, 3, bias=False)], classes=3)
    view = evaluate(shared, Shared(), State(1, {}), {})["as-is"]
    assert view["clients"]["accuracy"] == [0.5] * 3
    assert view["clients"]["size"] == [4] * 3
    assert calls == [4, 4]  # once for each of the two views


def test_answers_outside_the_private_classes_are_wrong_unless_they_are_left_out(rows):
    test = rows([[1.0, 0.0, 9.0], [0.0, 1.0, 0.0], [5.0, 0.0, 1.0]], [0, 1, 0])
    space = LabelSpace((("private", 2), ("public", 1)))
    given = {"sites": [Site(test, test)], "networks": [network], "classes": 2, "space": space}
    view = evaluate(Setting(**given), Shared(), State(1, {}), {})["as-is"]
    assert view["amp"] == pytest.approx(2 / 3)
    assert view["balanced"] == pytest.approx((1 / 2 + 1) / 2)
    assert view["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)
    masked = evaluate(Setting(**given, private_answers=True), Shared(), State(1, {}), {})["as-is"]
    assert masked["amp"] == 1.0
