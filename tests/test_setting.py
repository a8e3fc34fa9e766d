"""The setting: what it refuses, whom it builds, and which methods it can carry."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from torch import nn

from fedalloy.base.tree import equal
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Method
from fedalloy.federation.setting import SERVER, Setting, Site, pooled
from fedalloy.methods import FedAvg, Local
from fedalloy.nets.models import create
from fedalloy.train.costs import Meter
from fedalloy.train.fit import LocalWork, params


def wide():
    return nn.Linear(4, 3)


def asking_for(**needs):
    class Demanding(Method):
        name = "demanding"
        card = Card(paper="none", up="nothing", down="nothing", **needs)

    return Demanding()


def test_sizes_and_steps(small_setting):
    setting = small_setting([5, 9, 12], work=LocalWork(epochs=2, batch=4))
    assert setting.ids == [0, 1, 2]
    assert setting.sizes == [5, 9, 12]
    assert [setting.steps(k) for k in setting.ids] == [2, 4, 6]
    assert [setting.client(k, 1, {}).steps for k in setting.ids] == [2, 4, 6]


def test_mean_size_is_over_all_clients(small_setting):
    setting = small_setting([4, 4, 40], work=LocalWork(work="equal_steps", batch=4))
    assert [setting.steps(k) for k in setting.ids] == [4, 4, 4]  # floor(16 / 4)


def test_a_client_sees_its_own_data_and_its_memory(small_setting):
    setting = small_setting([5, 9], seed=3)
    me = setting.client(1, 7, {"a": 1})
    assert (me.id, me.round, me.seed, me.n, me.classes, me.memory) == (1, 7, 3, 9, 3, {"a": 1})
    assert me.train is setting.sites[1].train
    assert "test" not in {f.name for f in dataclasses.fields(me)}


def test_one_network_for_all_or_one_each(small_setting, small):
    assert small_setting([4, 4], networks=[small]).network(1) is small
    each = small_setting([4, 4], networks=[small, wide])
    assert (each.network(0), each.network(1), each.network(SERVER)) == (small, wide, small)


def test_all_clients_start_from_the_same_weights(small_setting):
    setting = small_setting([4, 4])
    one, other = (params(setting.client(k, t, {}).build()) for k, t in ((0, 1), (1, 5)))
    assert equal(one, other)
    assert not equal(one, params(small_setting([4, 4], seed=1).client(0, 1, {}).build()))


def test_same_network_is_found_from_structure_names_and_shapes(small_setting, small):
    assert small_setting([4, 4], networks=[small, lambda: small()]).same_network
    assert not small_setting([4, 4], networks=[small, wide]).same_network
    assert not small_setting([4, 4], networks=[small, lambda: small(batch_norm=True)]).same_network
    assert not small_setting([4, 4], networks=[small, lambda: small(dropout=0.5)]).same_network


def residual(kind):
    return partial(create, "resnet8", classes=3, channels=1, size=8, width=16, norm=kind)


def test_networks_of_equal_weights_that_work_differently_are_two_groups(small_setting, random_sites):
    by_group, by_instance = residual("group"), residual("instance")
    networks = [by_group, by_instance, by_group, residual("instance")]  # the last two were made anew
    setting = small_setting([], sites=random_sites([4] * 4, shape=(1, 8, 8)), networks=networks)
    assert setting.groups == [[0, 2], [1, 3]]
    with pytest.raises(UsageError, match="the clients' networks differ"):
        setting.check(FedAvg())
    weights, x = params(setting.build(0)), setting.sites[0].train.inputs
    assert equal(weights, params(setting.build(1)))
    owners = {"group 0": 0, "group 1": 1, "global": SERVER, "group 7": SERVER, "group one": SERVER}
    for view, client in owners.items():
        net = setting.fitting(weights, view).eval()
        assert torch.equal(net(x), setting.build(client).eval()(x))
    assert not torch.equal(setting.build(0).eval()(x), setting.build(1).eval()(x))


def test_a_group_that_a_view_names_but_does_not_fit_is_passed_over(small_setting, small):
    setting = small_setting([4, 4], networks=[small, wide])
    assert isinstance(setting.fitting(params(wide()), "group 0"), nn.Linear)


def test_groups_are_found_once_for_each_network_and_not_for_each_client(small_setting, rows, small):
    made = []

    def noted():
        made.append(1)
        return small()

    data = rows([[0.0] * 4], [0])
    networks = [noted, small] * 5_000
    setting = small_setting([], sites=[Site(data, data)] * 10_000, networks=networks)
    assert [len(ids) for ids in setting.groups] == [10_000]
    assert len(made) == 1


def test_flops_by_hand(small_setting, small):
    setting = small_setting([3, 10], networks=[small, wide], work=LocalWork(epochs=2, batch=4))
    # Forward, one sample: 2 (4*5 + 5*3) and 2 (4*3); three of that for a step on each sample of its batch.
    assert setting.flops == [3 * 70 * 2 * 3, 3 * 24 * 6 * 4]


def test_public_data_reaches_clients_only_if_everybody_holds_it(small_setting):
    samples = small_setting([4]).sites[0].test
    for holder, seen in (("all", True), ("server", False)):
        public = PublicSet(samples, labelled=True, holder=holder)
        assert (small_setting([4], public=public).client(0, 1, {}).public is public) is seen


def test_the_server_as_a_learner(small_setting):
    setting, meter = small_setting([4, 6]), Meter()
    me = setting.learner(setting.sites[1].train, 5, 2, meter)
    assert (me.id, me.steps, me.round, me.n) == (SERVER, 5, 2, 6)
    assert me.meter is meter


def test_pooled_rows_of_one_pool_are_not_copied(small_setting):
    sites = small_setting([4, 6]).sites
    together = pooled([site.train for site in sites])
    assert together.x is sites[0].train.x
    assert len(together) == 10
    assert torch.equal(together.labels, torch.cat([site.train.labels for site in sites]))


def test_pooled_rows_of_several_pools(rows):
    together = pooled([rows([[1.0], [2.0], [3.0]], [0, 1, 2]).subset([2, 0]), rows([[9.0]], [4])])
    assert together.inputs.flatten().tolist() == [3.0, 1.0, 9.0]
    assert together.labels.tolist() == [2, 0, 4]


def test_impossible_settings_are_refused_in_a_sentence(rows, small):
    data = rows([[0.0] * 4, [1.0] * 4], [0, 2])
    nothing = data.subset([])
    fine, bare = Site(data, data), Site(nothing, data)

    def refused(sentence, sites, networks=(small,), classes=3):
        with pytest.raises(UsageError, match=sentence):
            Setting(sites=sites, networks=networks, classes=classes)

    refused("there is no client; give at least one site", [])
    refused("client 1 has no training data; use fewer clients or a milder partition", [fine, bare])
    refused("2 networks for 3 clients; give one for all, or one each", [fine] * 3, [small, small])
    refused("client 0 has the label 2; labels run from 0 to 1", [fine], classes=2)
    negative = Samples(data.x, torch.tensor([0, -1]), data.index)
    refused("client 1 has the label -1; labels run from 0 to 2", [fine, Site(negative, data)])


def test_a_site_without_test_data_is_welcome(rows, small):
    data = rows([[0.0] * 4], [0])
    assert Setting(sites=[Site(data, data.subset([]))], networks=[small], classes=3).sizes == [1]


def test_averaging_needs_equal_networks_and_is_told_what_does_not(small_setting, small):
    mixed = small_setting([4, 4], networks=[small, wide])
    mixed.check(Local())
    with pytest.raises(
        UsageError, match=r"fedavg averages parameters, but the clients' networks differ; use one of: .*local"
    ):
        mixed.check(FedAvg())
    small_setting([4, 4]).check(FedAvg())


def test_a_method_that_needs_a_public_set(small_setting):
    setting = small_setting([4])
    with pytest.raises(UsageError, match=r"demanding needs a public set; add one under \[public\]"):
        setting.check(asking_for(public=True))
    public = PublicSet(setting.sites[0].test, labelled=False, holder="all")
    small_setting([4], public=public).check(asking_for(public=True))


def test_a_method_that_needs_features(small_setting, random_sites):
    with pytest.raises(
        UsageError, match=r"demanding needs a network with features\(x\) and head\(f\); client 0's has none"
    ):
        small_setting([4]).check(asking_for(features=True))
    sites = random_sites([4], shape=(1, 2, 2))
    net = [lambda: create("mlp", classes=3, channels=1, size=2)]
    small_setting([], sites=sites, networks=net).check(asking_for(features=True))
