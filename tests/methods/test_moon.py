"""MOON: the contrastive loss by hand, what a client remembers, and where it is FedAvg."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedalloy import simulate
from fedalloy.base.tree import digest, equal
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, act, initial
from fedalloy.federation.participation import Participation
from fedalloy.methods import MOON, FedAvg
from fedalloy.methods.moon import contrastive
from fedalloy.nets.models import FeatureNet, create, models
from fedalloy.report.export import export_model
from fedalloy.train.costs import forward_flops
from fedalloy.train.fit import LocalWork, frozen, params


def headed(*, batch_norm=False, dropout=0.0):
    """Four inputs, a feature of five numbers, a projection to six and three classes."""
    norm = nn.BatchNorm1d(5) if batch_norm else nn.Identity()
    features = nn.Sequential(nn.Linear(4, 5), norm, nn.ReLU())
    return FeatureNet(features, nn.Sequential(nn.Dropout(dropout), nn.Linear(5, 6), nn.Linear(6, 3)), (5,))


def whole(batch_norm=False, dropout=0.0):
    return lambda: headed(batch_norm=batch_norm, dropout=dropout)


# --- the contrastive loss ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "prev", "expected"),
    [
        ([2.0, 0.0], [0.0, 3.0], math.log(1 + math.exp(-2))),  # cos 1 and 0: 0.126928
        ([0.0, 3.0], [2.0, 0.0], math.log(1 + math.exp(2))),
        ([2.0, 0.0], [-1.0, 0.0], math.log(1 + math.exp(-4))),
        ([1.0, 1.0], [3.0, 3.0], math.log(2)),
    ],
)
def test_vectors(glob, prev, expected):
    loss = contrastive(torch.tensor([[7.0, 0.0]]), torch.tensor([glob]), torch.tensor([prev]), tau=0.5)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_the_published_vector():
    z, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert contrastive(z, z, other, tau=0.5).item() == pytest.approx(0.126928, abs=5e-7)


@given(st.integers(0, 10**6), st.floats(0.05, 5.0))
def test_it_is_the_cross_entropy_of_two_columns_and_never_negative(seed, tau):
    z, glob, prev = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    columns = torch.stack([F.cosine_similarity(z, glob), F.cosine_similarity(z, prev)], dim=1) / tau
    loss = contrastive(z, glob, prev, tau)
    assert loss.item() == pytest.approx(F.cross_entropy(columns, torch.zeros(4, dtype=torch.int64)).item(), abs=1e-9)
    assert loss.item() >= 0


def test_equal_frozen_representations_give_ln_2_and_no_gradient_at_all():
    draw = torch.Generator().manual_seed(0)
    z, other = torch.randn(8, 6, generator=draw).requires_grad_(), torch.randn(8, 6, generator=draw)
    loss = contrastive(z, other, other.clone(), tau=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2), abs=1e-6)
    assert torch.count_nonzero(z.grad) == 0


def test_a_dead_representation_has_no_gradient():
    x = torch.full((2, 6), -1.0, requires_grad=True)
    contrastive(x.relu(), torch.ones(2, 6), torch.zeros(2, 6), tau=0.5).backward()
    assert torch.equal(x.grad, torch.zeros(2, 6))


# --- the client -------------------------------------------------------------------------------------------------------


def test_one_step_by_hand(small_setting):
    setting = small_setting([6], networks=[whole()], work=LocalWork(work="fixed_steps", steps=1, batch=6, lr=0.1))
    glob, prev = initial(headed, 5), initial(headed, 6)
    me = setting.client(0, 2, {"model": params(prev)})
    got = act(MOON(mu=2.0, tau=0.3), me, Message("train", 0, {"model": params(glob)})).body["model"]

    x, y = me.train.inputs, me.train.labels
    net = initial(headed, 5)
    z, z_glob, z_prev = (n.head[1](n.features(x)) for n in (net, glob, prev))
    columns = torch.stack([F.cosine_similarity(z, z_glob.detach()), F.cosine_similarity(z, z_prev.detach())], dim=1)
    loss = F.cross_entropy(net(x), y) + 2.0 * F.cross_entropy(columns / 0.3, torch.zeros(6, dtype=torch.int64))
    loss.backward()
    for name, p in net.named_parameters():
        assert torch.allclose(got[name], p.detach() - 0.1 * p.grad, rtol=0, atol=1e-6), name


def test_it_keeps_what_it_ends_with_and_nobody_elses_memory_moves(small_setting, play):
    setting = small_setting(
        [6, 8, 9], networks=[whole()], participation=Participation(policy="trace", trace=[[0, 1], [1, 2], [1]])
    )
    method = MOON()
    first, second, third = (play(method, setting, t) for t in (1, 2, 3))
    assert set(first.engine.memories) == {0, 1}
    for played in (first, second, third):  # the cache holds what the clients sent: their own models, not the average
        for k, memory in played.engine.memories.items():
            assert equal(memory["model"], played.states[-1]["cache"][str(k)])
            assert not equal(memory["model"], played.states[1]["model"])
    assert equal(first.engine.memories[0], third.engine.memories[0])
    assert not equal(second.engine.memories[1], third.engine.memories[1])


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_mu_zero_is_fedavg_bit_for_bit(batch_norm, optimiser, small_setting, play):
    setting = small_setting(
        [5, 9, 12, 7],
        networks=[whole(batch_norm, dropout=0.2)],
        work=LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.9, weight_decay=1e-3, optimiser=optimiser),
        participation=Participation(policy="fraction", fraction=0.5),
    )
    plain, without, pushed = (play(m, setting, 4) for m in (FedAvg(), MOON(mu=0.0), MOON(mu=1.0)))
    assert [equal(a.body, b.body) for a, b in zip(plain.states, without.states, strict=True)] == [True] * 5
    assert not equal(plain.model, pushed.model)
    assert equal(plain.states[1]["model"], pushed.states[1]["model"])  # the first participation has no term


def test_who_was_never_there_is_pushed_from_a_random_network_or_trains_as_in_fedavg(small_setting, play):
    setting = small_setting([6, 8], networks=[whole()], participation=Participation(policy="trace", trace=[[0], [1]]))
    plain, skipped, random = (play(m, setting, 2).states for m in (FedAvg(), MOON(unseen="skip"), MOON()))
    assert equal(skipped[-1].body, plain[-1].body)
    assert equal(random[1].body, plain[1].body)  # in round 1 nobody has a negative
    assert not equal(random[2]["model"], plain[2]["model"])


def test_the_random_network_is_the_clients_own_and_the_same_in_every_round(small_setting):
    setting = small_setting([6, 6], networks=[whole()], work=LocalWork(work="fixed_steps", steps=1, batch=6, lr=0.1))
    start = params(setting.build(0))
    nets = {(k, t): params(setting.client(k, t, {}).random_net()) for k in (0, 1) for t in (2, 5)}
    assert equal(nets[0, 2], nets[0, 5])
    assert not equal(nets[0, 2], nets[1, 2])
    assert not equal(nets[0, 2], start)
    # One step with it as the negative is one with it as the memory.
    message = Message("train", 0, {"model": start})
    got, same = (act(MOON(), setting.client(0, 2, memory), message) for memory in ({}, {"model": nets[0, 2]}))
    assert equal(got.body, same.body)
    assert equal(got.keep, same.keep)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_alone_a_client_meets_its_own_model_and_nothing_pulls(batch_norm, small_setting, play):
    # With one client the received model is its previous one: l_con is ln 2 with no gradient, to the bit.
    setting = small_setting([10], networks=[whole(batch_norm)], work=LocalWork(batch=4, lr=0.1, momentum=0.9))
    moon, plain = play(MOON(mu=10.0), setting, 3), play(FedAvg(), setting, 3)
    assert equal(moon.model, plain.model)


def test_frozen_models_do_not_change(small_setting, play, monkeypatch):
    nets = []

    def noted(net):
        nets.append((net, digest(net.state_dict())))
        return frozen(net)

    monkeypatch.setitem(MOON.train.__globals__, "frozen", noted)
    play(MOON(), small_setting([6, 8], networks=[whole(batch_norm=True, dropout=0.2)]), 3)
    assert len(nets) == 2 * 2 * 2  # two clients, two rounds with a previous model, two frozen networks
    for net, before in nets:
        assert not net.training
        assert digest(net.state_dict()) == before


@pytest.mark.parametrize("name", list(models))
def test_every_model_projects_to_one_vector_a_sample(name):
    net = create(name, classes=10, channels=3, size=32).eval()
    x = torch.zeros(2, 3, 32, 32)
    z = net.project(x)
    assert z.shape[0] == 2
    assert z.dim() == 2
    assert torch.equal(net.output(z), net(x))


def test_with_moons_head_the_projection_has_256_numbers():
    x = torch.zeros(2, 3, 32, 32)
    for projection, width in ((True, 256), (False, 84)):
        net = create("simple-cnn", classes=10, channels=3, size=32, projection=projection)
        assert net.project(x).shape == (2, width)


def test_a_random_network_is_random_even_if_the_run_starts_from_given_weights(tmp_path):
    exp = {"data": "tiny", "model": "mlp", "partition": {"clients": 2, "name": "iid"}, "engine": "serial"}
    simulate({**exp, "rounds": 1, "seed": 3}, tmp_path / "first")
    file, _ = export_model(tmp_path / "first")
    started = build(experiment({**exp, "start": str(file)})).setting
    plain = build(experiment(exp)).setting
    me = started.client(1, 2, {})
    assert not equal(params(me.build()), params(plain.client(1, 2, {}).build()))
    assert equal(params(me.random_net()), params(plain.client(1, 2, {}).random_net()))


@pytest.mark.parametrize("name", ["knfu-m1", "mlp"])
def test_an_experiment_gives_any_network_the_head(name):
    exp = {"data": "tiny", "rounds": 1, "engine": "serial", "partition": {"clients": 2, "name": "iid"}}
    done = simulate({**exp, "model": {"name": name, "projection": 12}, "method": "moon"}, None)
    assert done.meta["experiment"]["model"]["projection"] == 12
    for key, value in (("projecton", 12), ("projection", "wide")):
        with pytest.raises(UsageError, match=rf"model.*{key}"):
            simulate({**exp, "model": {"name": name, key: value}, "method": "moon"}, None)


# --- what it costs ----------------------------------------------------------------------------------------------------


def simple_cnn():
    return create("simple-cnn", classes=10, channels=3, size=32)


def test_bytes_and_passes(random_sites, small_setting, play):
    setting = small_setting(
        [],
        sites=random_sites([4, 6], shape=(3, 32, 32), classes=10),
        networks=[simple_cnn],
        classes=10,
        work=LocalWork(batch=2),
        participation=Participation(policy="trace", trace=[[0], [0, 1]]),
    )
    first, second = (fed.ledger for fed in play(MOON(), setting, 2).rounds)
    weights = 4 * 92_626
    for ledger, clients in ((first, 1), (second, 2)):
        assert ledger.down["weights"] == clients * weights
        assert {**ledger.up, "framing": 0} == {"weights": clients * weights, "scalars": clients * 8, "framing": 0}
    # Client 0 takes two steps and client 1 three; in round 1 a client makes one pass a step, then three.
    assert (first.clients.forward, first.clients.backward) == (2, 2)
    assert (second.clients.forward, second.clients.backward) == (3 * 2 + 3 * 3, 2 + 3)
    # The first layer has no gradient of its input. The two frozen networks leave out the output layer.
    first_layer, output, whole = 28 * 28 * 6 * 75, 256 * 10, forward_flops(simple_cnn(), torch.zeros(1, 3, 32, 32))
    assert second.flops()["clients"] == (4 + 6) * (3 * whole - 2 * first_layer) + 2 * (4 + 6) * (whole - 2 * output)
    skipped = play(MOON(unseen="skip"), setting, 2).rounds[1].ledger  # client 1 is there for the first time
    assert (skipped.clients.forward, skipped.clients.backward) == (3 * 2 + 3, 2 + 3)


@pytest.mark.parametrize(("key", "value"), [("mu", -1.0), ("tau", 0.0), ("unseen", "never")])
def test_options_have_limits(key, value):
    with pytest.raises(UsageError, match=f"moon.{key} = {value!r}"):
        MOON(**{key: value})


def test_a_network_that_cannot_project_is_refused(small_setting, small, play):
    with pytest.raises(UsageError, match="moon needs a network in two parts; make Small a FeatureNet"):
        play(MOON(), small_setting([4], networks=[small]), 1)
