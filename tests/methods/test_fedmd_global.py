"""FedMD+Global: the losses by hand, LwoF, a server that only observes, and the views of each stage."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedalloy import simulate
from fedalloy.base import rng
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method
from fedalloy.check.probe import small_settings
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override, read_toml
from fedalloy.data.arrays import from_arrays
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import initial
from fedalloy.federation.evaluation import evaluate
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.exchange import public_part
from fedalloy.methods.fedmd import FedMD
from fedalloy.methods.fedmd_global import FedMDGlobal
from fedalloy.methods.local import Local
from fedalloy.nets.models import parameter_count
from fedalloy.train.fit import LocalWork, batches, frozen, load, params, predict
from fedalloy.train.losses import ce
from fedalloy.train.norms import norms_kept

PLAIN = {"pretrain_public": 0, "pretrain_private": 0}
FEW = {"pretrain_public": 2, "pretrain_private": 2, "digest_epochs": 2, "digest_batch": 5, "samples": 8}
WORK = LocalWork(epochs=2, batch=4, lr=0.1)
Z, TARGET = torch.tensor([[1.0, 0.0, 5.0]]), torch.tensor([[1.0, 2.0, 3.0]])


def public_set(n=12, **given):
    x = torch.randn(n, 4, generator=rng.generator(1, "public test data"))
    return PublicSet(Samples(x, torch.arange(n) % 3, torch.arange(n)), **{"labelled": True, "holder": "all", **given})


@pytest.fixture
def setting(small_setting):
    return lambda sizes=(10, 7), **given: small_setting(
        list(sizes), **{"public": public_set(), "work": WORK, "seed": 3, **given}
    )


def noisy(small):
    return lambda: small(batch_norm=True, dropout=0.5)


def memories(played, *keys):
    return {k: {key: memory[key] for key in keys} for k, memory in played.engine.memories.items()}


# Eq. 1


def test_the_paper_sums_over_the_outputs():
    assert FedMDGlobal().l1_reduction == "mean"
    assert FedMDGlobal(variant="paper").digest_loss(Z, TARGET).item() == 4.0
    assert FedMDGlobal(variant="paper", loss="l2").digest_loss(Z, TARGET).item() == pytest.approx(8 / 3)


@pytest.mark.parametrize(("epochs", "steps"), [(None, 2 * 2), (6, 6 * 2), (0, 0)])
def test_the_server_has_as_many_passes_as_it_is_given(epochs, steps, setting, play):
    """8 samples in batches of 5 are two steps a pass; the clients never notice."""
    plain = play(FedMDGlobal(**FEW), setting(), 2)
    played = play(FedMDGlobal(**FEW, server_digest_epochs=epochs), setting(), 2)
    assert [r.ledger.server.steps for r in played.rounds] == [steps] * 2
    assert equal(played.engine.memories, plain.engine.memories)
    assert equal(played.model, plain.model) == (epochs is None)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, 4 / 3),
        ({"l1_reduction": "sum_class"}, 4.0),
        ({"loss": "l2"}, 8 / 3),
        (
            {"loss": "ce"},
            math.log(math.e + 1 + math.e**5) - (0.09003057 * 1 + 0.66524096 * 5),
        ),  # H(softmax(1, 2, 3), q)
    ],
)
def test_the_loss_of_the_global_update(options, value):
    method = FedMDGlobal(**options)
    assert method.digest_loss(Z, TARGET).item() == pytest.approx(value, rel=1e-5)
    assert method.digest_loss(Z.repeat(5, 1), TARGET.repeat(5, 1)).item() == pytest.approx(value, rel=1e-5)


def made(classes, rows, side=2):
    """A data set of so many classes and rows: noise, as small as it may be."""
    x = rng.numpy_generator(classes, "made data").integers(0, 256, (rows, 3, side, side), dtype=np.uint8)
    return {"x": x, "y": np.arange(rows) % classes}


def test_the_papers_ledger_is_600_kilobytes_each_way_for_each_client(tmp_path):
    """10 private and 20 public classes; 5,000 of 6,000 public samples in a round: 5,000 * 30 * 4 bytes."""
    np.savez(tmp_path / "public.npz", **made(20, 6000))
    values = {
        "method": {"name": "fedmd-global", "samples": 5000, "digest_epochs": 1, **PLAIN},
        "model": {"name": "mlp", "hidden": [4]},
        "public": {"data": str(tmp_path / "public.npz"), "samples": 6000, "classes": "added", "labelled": True},
        "partition": {"name": "iid", "clients": 3},
        "engine": "serial",
        "rounds": 2,
    }
    for r in simulate(values, dataset=from_arrays(**made(10, 60))).rounds:
        for way in ("up", "down"):
            assert {kind: n for kind, n in r["bytes"][way].items() if kind != "framing"} == {"logits": 3 * 600_000}


def test_the_papers_networks_have_its_parameters(tmp_path):
    """Table 1, and the sum over its 20 clients; made images of CIFAR's shape and classes stand in for the data."""
    toml = read_toml(Path(__file__).parents[2] / "src" / "fedalloy" / "experiments" / "fedmd-global-cifar10.toml")
    assert toml["data"]["name"] == "cifar10"
    assert (toml["public"]["data"], toml["public"].pop("labels")) == ("cifar100", "coarse")
    np.savez(tmp_path / "public.npz", **made(20, 40, side=32))
    here = override(toml, [f"public.data={tmp_path / 'public.npz'}", "public.samples=40"])
    private, test = made(10, 400, side=32), made(10, 10, side=32)
    at = build(experiment(here), dataset=from_arrays(**private, x_test=test["x"], y_test=test["y"])).setting
    assert at.outputs == 30
    counts = [parameter_count(at.build(k)) for k in at.ids]
    sizes = (6, 79_486), (4, 176_926), (4, 274_366), (4, 371_806), (2, 469_246)
    assert counts == [count for clients, count in sizes for _ in range(clients)]
    assert sum(counts) == 4_707_800
    assert parameter_count(at.build(SERVER)) == 566_686


def test_a_round_sends_logits_and_nothing_else(setting, play):
    for method in (FedMDGlobal(**FEW), FedMDGlobal(**FEW, lwof=True)):
        for r in play(method, setting((10, 7, 4)), 2).rounds:
            assert r.ledger.up["logits"] == r.ledger.down["logits"] == 3 * 8 * 3 * 4
            assert set(r.ledger.up) == set(r.ledger.down) == {"logits", "framing"}


# The server's model


def test_the_server_digests_the_consensus(setting, small, play):
    def deeper():
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    at = setting(server=deeper)
    played = play(FedMDGlobal(**PLAIN, digest_epochs=3, digest_batch=6), at, 1)
    target = predict(initial(small, 3), at.public.samples)  # both clients begin with the same network
    net = initial(deeper, 3)
    for rows in batches(12, 6, 3 * 2, rng.generator(3, "digest", 1, -1)):
        net.zero_grad()
        (net(at.public.samples.take(rows)[0]) - target[rows]).abs().mean().backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
    torch.testing.assert_close(played.model, params(net))
    assert played.rounds[0].ledger.server.steps == 3 * 2
    assert played.rounds[0].ledger.server.backward == 3 * 2


def test_the_server_only_observes(setting, small, play):
    """Without the server's model clients do the same, to the bit: FedMD with these options."""
    at = setting((10, 7, 1), networks=[noisy(small), small, small], server=noisy(small))
    common = {**FEW, "policy": "fresh"}
    ours, theirs = play(FedMDGlobal(**common), at, 3), play(FedMD(**common), at, 3)
    assert equal(memories(ours, "model"), memories(theirs, "model"))
    assert ours.rounds[2].ledger.up == theirs.rounds[2].ledger.up
    other = play(FedMDGlobal(**common, init_global="public"), replace(at, server=small), 3)
    assert equal(memories(ours, "model"), memories(other, "model"))


def test_without_digest_the_clients_are_local_and_the_server_stands_still(setting, small, play):
    at = setting(networks=[noisy(small)])
    played = play(FedMDGlobal(**PLAIN, digest_epochs=0), at, 2)
    assert equal(memories(played, "model"), play(Local(), at, 2).engine.memories)
    assert equal(played.model, params(initial(noisy(small), 3)))


def test_the_servers_model_may_begin_with_the_public_labels(setting, play):
    how = {**FEW, "held_out": 0.0, "public_batch": 4}
    random, public = (play(FedMDGlobal(**how, init_global=start), setting(), 2) for start in ("random", "public"))
    assert equal(random.states[0].body, public.states[0].body)
    assert not equal(random.model, public.model)
    before = 2 * 3  # two epochs of 12 samples in batches of 4
    assert [r.ledger.server.steps for r in public.rounds] == [before + 4, 4]
    assert [r.ledger.server.steps for r in random.rounds] == [4, 4]


def test_public_samples_are_new_in_every_round_or_fixed(setting, play):
    at = setting()

    def used(policy):
        method, fed = FedMDGlobal(samples=5, policy=policy), play(FedMDGlobal(**PLAIN, samples=5), at, 2).rounds
        parts = [public_part(f, method.samples, method.policy).samples.index.tolist() for f in fed]
        clients = [public_part(at.client(1, t, {}), 5, policy).samples.index.tolist() for t in (1, 2)]
        assert parts == clients
        return parts

    assert FedMDGlobal().policy == "fresh"
    assert used("fresh")[0] != used("fresh")[1]
    assert used("fixed")[0] == used("fixed")[1]


# Learning without forgetting


def test_the_term_of_lwof_by_hand():
    method = FedMDGlobal(lwof=True)
    p = method.soften(torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(p, torch.tensor([[0.731059, 0.268941]]), rtol=0, atol=1e-6)
    assert method.forgetting(p, torch.tensor([[0.0, 0.0]])).item() == pytest.approx(0.693147, abs=1e-6)
    assert method.forgetting(p, torch.tensor([[1.0, 0.0]])).item() == pytest.approx(0.608548, abs=1e-6)


@pytest.mark.parametrize("augment", [None, lambda x, noise: x + torch.randn(x.shape, generator=noise)])
def test_with_beta_zero_it_is_no_lwof_to_the_bit(augment, setting, small, play):
    at = setting((10, 7, 1), networks=[noisy(small)], augment=augment, work=replace(WORK, momentum=0.9))
    without, zero, one = (
        play(FedMDGlobal(**FEW, **lwof), at, 3) for lwof in ({}, {"lwof": True, "beta": 0.0}, {"lwof": True})
    )
    assert equal(without.engine.memories, zero.engine.memories)
    assert equal(without.states[-1].body, zero.states[-1].body)
    assert not equal(without.engine.memories, one.engine.memories)


def test_at_the_first_step_nothing_is_forgotten(setting, small):
    """Without dropout and BatchNorm the network and its frozen copy answer alike: the term has no gradient."""
    me = setting().client(0, 1, {})
    net, method = me.build().double(), FedMDGlobal(lwof=True, rho=3.0)
    x = me.train.inputs.double()
    p = method.soften(predict(frozen(load(small().double(), params(net))), replace(me.train, x=me.train.x.double())))
    method.forgetting(p, net(x)).backward()
    assert max(p.grad.abs().max() for p in net.parameters()) < 1e-15
    net.zero_grad()
    ce(net(x), me.train.labels).backward()
    assert max(p.grad.abs().max() for p in net.parameters()) > 1e-3


@pytest.mark.parametrize("augment", [None, lambda x, noise: x + torch.randn(x.shape, generator=noise)])
def test_the_first_local_step_is_the_same_with_and_without_lwof_and_the_second_is_not(augment, setting, play):
    """Also with augmentation, where the frozen copy must see the augmented batch for that."""

    def after(steps, lwof):
        at = setting(work=replace(WORK, work="fixed_steps", steps=steps), augment=augment)
        return play(FedMDGlobal(**PLAIN, **lwof), at, 1).engine.memories[0]["model"]

    strong = {"lwof": True, "beta": 50.0}
    torch.testing.assert_close(after(1, strong), after(1, {}))
    assert (after(2, strong)["out.bias"] - after(2, {})["out.bias"]).abs().max() > 1e-4


def test_without_a_local_step_lwof_changes_nothing(setting):
    me = replace(setting().client(0, 1, {}), steps=0)
    net = me.build()
    FedMDGlobal(lwof=True).update(net, me)
    assert equal(params(net), params(me.build()))


def test_the_teacher_answers_once_or_for_every_batch_with_equal_results(setting, small, play):
    still = setting((10, 7, 1), networks=[noisy(small)])
    once, each = (play(FedMDGlobal(**FEW, lwof=True), at, 2) for at in (still, replace(still, augment=lambda x, _: x)))
    torch.testing.assert_close(each.engine.memories, once.engine.memories)
    forward = [played.rounds[1].ledger.clients.forward for played in (once, each)]
    local = 2 * (3 + 2 + 1)  # batches of the local update
    assert forward[1] - forward[0] == local - 3  # one pass for each batch instead of one for each client


def test_strong_lwof_keeps_the_personal_model_near_the_distilled_one(setting, play):
    def moved(**lwof):
        memory = play(FedMDGlobal(**PLAIN, **lwof), setting(), 1).engine.memories[0]
        return sum((memory["model"][n] - memory["distilled"][n]).norm() for n in memory["model"])

    assert moved(lwof=True, beta=10.0, rho=1.0) < moved()


# Stages


def test_stages_are_kept_and_evaluated(setting, small, play):
    at = setting((10, 7, 4), networks=[small, noisy(small), small], server=noisy(small))
    at.check(FedMDGlobal())
    method = FedMDGlobal(**FEW)
    first, third = (play(method, at, rounds) for rounds in (1, 3))
    assert sorted(first.engine.memories[0]) == ["distilled", "initial", "model"]
    assert equal(memories(first, "initial"), memories(third, "initial"))
    me = at.client(0, 1, {})
    assert equal(first.engine.memories[0]["initial"], params(method.pretrained(me)[0]))
    views = evaluate(at, method, third.states[-1], third.engine.memories)
    assert list(views) == ["global", "personal", "initial", "distilled"]
    for k in (0, 2):  # without dropout the local update depends on the distilled model only
        memory, me = third.engine.memories[k], at.client(k, 3, {})
        net = me.net(memory["distilled"])
        method.update(net, me)
        assert equal(params(net), memory["model"])
        assert not equal(memory["distilled"], memory["initial"])


def test_a_client_that_is_new_or_was_never_heard_has_all_stages(setting, small, play):
    at = setting((10, 7, 4, 9), participation=Participation(late_drop=0.5))
    method = FedMDGlobal(**FEW)
    played = play(method, at, 1)
    lost = played.rounds[0].lost
    assert 0 < len(lost) < 4
    for k in at.ids:
        memory = played.engine.memories[k]
        stages = method.stages(at.client(k, 1, memory))
        assert sorted(stages) == ["distilled", "initial"]
        if k in lost:  # pre-trained, and then left alone
            assert list(memory) == ["model"]
            assert equal(stages["distilled"], params(method.pretrained(at.client(k, 1, {}))[0]))
    start = params(initial(small, 3))
    assert equal(method.stages(at.client(0, 1, {})), {"initial": start, "distilled": start})
    assert equal(method.personal(at.client(0, 1, {})), start)


def test_the_server_hears_only_those_who_answered(setting, play):
    at = setting((10, 7, 4, 9), participation=Participation(late_drop=0.5))
    played = play(FedMDGlobal(**FEW), at, 1)
    there = [k for k in at.ids if k not in played.rounds[0].lost]
    only = replace(at, participation=Participation(policy="trace", trace=[there]))
    assert equal(play(FedMDGlobal(**FEW), only, 1).model, played.model)


# BatchNorm during the digest


def test_the_digest_moves_batch_norm_unless_told_not_to(setting, small, play):
    at = setting(networks=[lambda: small(batch_norm=True)])
    for freeze in (False, True):
        played = play(FedMDGlobal(**FEW, freeze_norm=freeze), at, 1)
        memory = played.engine.memories[0]
        for name in ("norm.running_mean", "norm.running_var"):
            assert torch.equal(memory["distilled"][name], memory["initial"][name]) == freeze
            assert not torch.equal(memory["model"][name], memory["distilled"][name])  # the local update always does
            assert not torch.equal(played.model[name], played.states[0]["model"][name])  # and so does the server
        assert not torch.equal(memory["distilled"]["norm.weight"], memory["initial"]["norm.weight"])


def test_kept_norms_use_their_running_statistics(small):
    net = small(batch_norm=True)
    net.norm.running_mean += 1
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    still = net.eval()(x)
    with norms_kept(net):
        assert torch.equal(net.train()(x), still)
    assert not torch.equal(net.train()(x), still)


# Refusals and the contract


@pytest.mark.parametrize(
    ("option", "value"),
    [("beta", -1.0), ("rho", 0.0), ("loss", "kl"), ("init_global", "private"), ("digest_batch", 0), ("samples", 0)],
)
def test_limits_are_declared(option, value):
    with pytest.raises(UsageError, match=rf"fedmd-global\.{option} = {value!r} must be"):
        FedMDGlobal(**{option: value})


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"rho": 3.0}, "rho has no effect without lwof = true"),
        ({"beta": 0.5}, "beta has no effect without lwof = true"),
        ({"loss": "l2", "l1_reduction": "sum_class"}, "l1_reduction has no effect without loss = 'l1'"),
        ({"policy": "fixed"}, "policy has no effect without samples"),
        ({"init_global": "public", "pretrain_public": 0}, "init_global = 'public' needs pretrain_public"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, key):
    with pytest.raises(UsageError, match=rf"fedmd-global\.{key}"):
        FedMDGlobal(**options)


def test_pretraining_needs_public_labels(setting, play):
    with pytest.raises(UsageError, match="pretrain_public needs labels"):
        play(FedMDGlobal(), setting(public=public_set(labelled=False)), 1)


def test_it_keeps_the_contract_with_other_options():
    options = {"lwof": True, "freeze_norm": True, "init_global": "public", "loss": "ce", "policy": "fixed"}
    check_method(FedMDGlobal(**{**FedMDGlobal.card.quick, **options}), small_settings()[1])
