"""FedMD: the consensus by hand, a round beside a plain loop, what it equals when parts of it are left out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedalloy.aggregation.rule import Aggregation
from fedalloy.base import rng
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method
from fedalloy.check.probe import small_settings
from fedalloy.data.label_space import LabelSpace
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, State, initial
from fedalloy.federation.evaluation import evaluate
from fedalloy.federation.participation import Participation
from fedalloy.methods.dsfl import DSFL
from fedalloy.methods.fedmd import FedMD
from fedalloy.methods.fedmd_global import FedMDGlobal
from fedalloy.methods.fedmd_knfu import FedMDKnFu
from fedalloy.methods.knfu import KnFu
from fedalloy.methods.local import Local
from fedalloy.methods.selective_fd import SelectiveFD
from fedalloy.train.fit import LocalWork, batches, params, predict

PLAIN = {"pretrain_public": 0, "pretrain_private": 0}
WORK = LocalWork(epochs=2, batch=4, lr=0.1)


def public_set(n=12, *, classes=3, first=0, labelled=True, holder="all"):
    x = torch.randn(n, 4, generator=rng.generator(1, "public test data"))
    return PublicSet(Samples(x, torch.arange(n) % classes + first, torch.arange(n)), labelled, holder)


@pytest.fixture
def setting(small_setting):
    return lambda sizes=(10, 7), **given: small_setting(
        list(sizes), **{"public": public_set(), "work": WORK, "seed": 3, **given}
    )


def replies(*rows):
    return [Message("answer", k, {"logits": torch.tensor(z)}) for k, z in enumerate(rows)]


def noisy(small):
    return lambda: small(batch_norm=True, dropout=0.5)


# The consensus


def test_the_consensus_is_the_plain_mean():
    z = FedMD().consensus(replies([[1.0, 2.0], [0.0, 4.0]], [[2.0, 2.0], [1.0, -4.0]], [[6.0, 5.0], [2.0, 3.0]]))
    assert torch.equal(z, torch.tensor([[3.0, 3.0], [1.0, 1.0]]))
    assert z.dtype == torch.float32


def test_the_mean_is_taken_in_float64():
    z = FedMD().consensus(replies([[1e8]], [[3.0]], [[-1e8]]))  # in float32 1e8 + 3 is 1e8
    assert z.item() == 1.0


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=9), st.integers(-50, 50), st.randoms())
def test_the_consensus_moves_with_everybody_and_knows_no_order(values, shift, dice):
    def mean(numbers):
        return FedMD().consensus(replies(*([[float(v)]] for v in numbers)))

    assert mean(values).item() == pytest.approx(sum(values) / len(values), rel=1e-7, abs=1e-12)
    assert torch.allclose(mean([v + shift for v in values]), mean(values) + shift, atol=1e-4)
    shuffled = dice.sample(values, len(values))
    assert torch.allclose(mean(shuffled), mean(values), rtol=1e-7)
    assert torch.equal(mean(values[:1] * 3), torch.tensor([[float(values[0])]]))


def test_medians_trimmed_means_and_krum_bound_what_one_client_can_do():
    answers = replies([[1.0]], [[2.0]], [[3.0]], [[4.0]], [[1e30]])
    assert FedMD(aggregation=Aggregation(combine="median")).consensus(answers).item() == 3
    assert FedMD(aggregation=Aggregation(combine="trimmed", trim=0.2)).consensus(answers).item() == 3
    assert FedMD(aggregation=Aggregation(combine="krum", trim=0.2)).consensus(answers).item() == 2.5
    both = FedMD(clip_logits=3.0).consensus(replies([[1.0, -1.0]], [[100.0, 0.0]]))
    assert torch.equal(both, torch.tensor([[2.0, -2.0]]))  # of (1, -1) and (50, -50), clipped to (3, -3)


def test_a_consensus_of_centred_logits_and_of_probabilities_by_hand():
    """The first client prefers class 0 everywhere, by 10: its mean over the two samples is (10, 0)."""
    answers = replies([[11.0, 0.0], [9.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]])
    assert FedMD().consensus(answers).tolist() == [[5.5, 0.0], [4.5, 2.0]]
    assert FedMD(consensus_of="centred").consensus(answers).tolist() == [[0.5, -1.0], [-0.5, 1.0]]
    sure = replies([[0.0, math.log(3.0)]], [[0.0, 0.0]])  # 1/4 and 3/4; 1/2 and 1/2
    mean = FedMD(consensus_of="probabilities").consensus(sure)
    assert mean.exp().tolist()[0] == pytest.approx([0.375, 0.625])
    with pytest.raises(UsageError, match=r"fedmd\.clip_logits has no effect without consensus_of"):
        FedMD(consensus_of="probabilities", clip_logits=1.0)


def test_the_consensus_reaches_every_client_whatever_its_size(fake):
    fed = fake(
        {0: {"logits": torch.tensor([[1.0, 0.0]])}, 2: {"logits": torch.tensor([[3.0, 1.0]])}}, sizes=[1, 5, 1000]
    )
    FedMD().round(State(0, {}), fed)
    (first, asked, body), (second, sent, down) = fed.asked
    assert (first, asked, body) == ("answer", [0, 2], {})
    assert (second, sent) == ("revisit", [0, 2])
    assert torch.equal(down["logits"], torch.tensor([[2.0, 0.5]]))


def test_the_digest_loss_is_the_mean_over_batch_and_outputs():
    z, target = torch.tensor([[1.0, 0.0, 5.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    assert FedMD().digest_loss(z, target).item() == pytest.approx(4 / 3)
    assert FedMD().digest_loss(z.repeat(7, 1), target.repeat(7, 1)).item() == pytest.approx(4 / 3)


# A round


def plain_round(net, site, public, target, k, t, optimisers):
    """Digest and revisit as a loop; the optimisers are torch's own."""
    for samples, loss, batch, steps, stage, own in [
        (public, lambda z, y, at: (z - target[at]).abs().mean(), 5, 2 * 2, "digest", optimisers[0]),
        (site, lambda z, y, at: F.cross_entropy(z, y), 4, 2 * 3, "batches", optimisers[1]),
    ]:
        for at in batches(len(samples), batch, steps, rng.generator(3, stage, t, k)):
            x, y = samples.take(at)
            own.zero_grad()
            loss(net(x), y, at).backward()
            own.step()


@pytest.mark.parametrize("work", [{}, {"momentum": 0.9}, {"optimiser": "adam"}], ids=str)
@pytest.mark.parametrize("persist", [True, False])
def test_two_rounds_beside_a_plain_loop(work, persist, setting, small, play):
    at = setting((10, 11), work=LocalWork(epochs=2, batch=4, lr=0.05, **work), public=public_set(10))
    played = play(FedMD(**PLAIN, digest_epochs=2, digest_batch=5, persist=persist), at, 2)

    def make(parameters, lr):
        if "optimiser" in work:
            return torch.optim.Adam(parameters, lr=lr)
        return torch.optim.SGD(parameters, lr=lr, momentum=work.get("momentum", 0.0))

    nets = [initial(small, 3) for _ in range(2)]
    own = [[make(net.parameters(), lr=0.05) for _ in range(2)] for net in nets]
    for t in (1, 2):
        if not persist:
            own = [[make(net.parameters(), lr=0.05) for _ in range(2)] for net in nets]
        target = torch.stack([net(at.public.inputs).detach() for net in nets]).mean(0)
        for k, net in enumerate(nets):
            plain_round(net, at.sites[k].train, at.public.samples, target, k, t, own[k])
    for k, net in enumerate(nets):
        for name, p in net.named_parameters():
            torch.testing.assert_close(played.engine.memories[k]["model"][name], p.detach(), rtol=1e-4, atol=1e-5)


def test_states_are_kept_for_each_phase_apart_where_there_are_any(setting, play):
    how = {**PLAIN, "digest_epochs": 3, "digest_batch": 12}
    adam = setting((10,), work=LocalWork(epochs=2, batch=4, lr=0.01, optimiser="adam"))
    memory = play(FedMD(**how), adam, 2).engine.memories[0]
    assert sorted(memory) == ["digest", "model", "revisit"]
    assert {int(entry["step"]) for entry in memory["digest"].values()} == {2 * 3}
    assert {int(entry["step"]) for entry in memory["revisit"].values()} == {2 * 2 * 3}
    assert sorted(play(FedMD(**how, persist=False), adam, 1).engine.memories[0]) == ["model"]
    assert sorted(play(FedMD(**how), setting((10,)), 1).engine.memories[0]) == ["model"]


def test_the_code_continues_with_the_optimiser_of_private_pretraining(setting, play):
    at = setting((10,), work=LocalWork(epochs=2, batch=4, lr=0.01, optimiser="adam"))
    how = {**PLAIN, "pretrain_private": 2, "private_batch": 5, "private_patience": 9, "samples": 6}

    def steps(rounds=1, **more):
        memory = play(FedMD(**how, **more), at, rounds).engine.memories[0]
        return {int(entry["step"]) for entry in memory["revisit"].values()}

    assert steps() == {2 * 3}
    assert steps(from_pretraining=True) == steps(variant="reference") == {2 * 2 + 2 * 3}  # two epochs of two batches
    assert steps(2, from_pretraining=True) == {2 * 2 + 2 * 2 * 3}  # once
    with pytest.raises(UsageError, match=r"fedmd\.from_pretraining has no effect without persist"):
        FedMD(persist=False, from_pretraining=True)


def test_the_codes_choices_by_name():
    code = FedMD(variant="reference")
    assert (code.samples, code.l2, code.converged_by, code.from_pretraining) == (5000, 0.001, "training", True)
    with pytest.raises(UsageError, match=r"fedmd\.held_out has no effect without converged_by = 'held_out'"):
        FedMD(variant="reference", held_out=0.2)


def test_answers_are_given_before_local_training_and_in_eval_mode(setting, small, play, monkeypatch):
    at = setting(networks=[noisy(small)])
    sent = []
    consensus = FedMD.consensus
    record = lambda self, got, task="classes": (sent.append(got), consensus(self, got, task))[1]  # noqa: E731
    monkeypatch.setattr(FedMD, "consensus", record)
    engine = play(FedMD(**PLAIN, samples=6), at, 2).engine
    first = predict(initial(noisy(small), 3), at.public.subset(1, 3, 6, "stratified").samples)
    assert all(torch.equal(reply["logits"], first) for reply in sent[0])
    assert first.shape == (6, 3)
    assert not torch.equal(sent[1][0]["logits"], sent[1][1]["logits"])
    assert sorted(engine.memories) == [0, 1]


def test_alone_a_client_has_nothing_to_digest(setting, small, play):
    """K = 1: the target is the client's own answer, so that the loss and its gradient begin, and stay, at zero."""
    one = setting((9,), work=LocalWork(lr=1.0))
    me = one.client(0, 1, {})
    net = me.build()
    target = predict(net, one.public.samples)
    assert FedMD().digest_loss(net(one.public.inputs), target).item() == 0
    FedMD(digest_epochs=4).approach(net, me, one.public, target)
    torch.testing.assert_close(params(net), params(me.build()))


@pytest.mark.parametrize("work", [WORK, LocalWork(epochs=1, batch=3, lr=0.05, momentum=0.9, weight_decay=0.01)])
def test_without_digest_and_pretraining_it_is_local(work, setting, small, play):
    at = setting((10, 7, 1), networks=[noisy(small)], work=work)
    ours = play(FedMD(**PLAIN, digest_epochs=0, persist=False), at, 3).engine.memories
    assert equal(ours, play(Local(), at, 3).engine.memories)


def test_the_digest_matters(setting, play):
    ours, local = (play(m, setting(), 2).engine.memories for m in (FedMD(**PLAIN), Local()))
    assert not equal(ours[0]["model"], local[0]["model"])


def test_pretraining_is_public_then_private_and_once(setting, small, play):
    at = setting((10, 20), participation=Participation(policy="trace", trace=[[0], [0, 1], [0, 1]]))
    how = {"pretrain_public": 2, "public_patience": 9, "pretrain_private": 3, "public_batch": 6, "private_batch": 4}
    rounds = play(FedMD(**how, digest_epochs=0, held_out=0.0), at, 3).rounds
    local = {0: 2 * 3, 1: 2 * 5}
    before = {0: 2 * 2 + 3 * 3, 1: 2 * 2 + 3 * 5}
    steps = [r.ledger.clients.steps for r in rounds]
    assert steps == [local[0] + before[0], sum(local.values()) + before[1], sum(local.values())]


def test_a_pretrained_client_knows_both_label_sets(setting, small, play):
    """Public labels lie behind the private ones; the output layer covers both."""

    def wide():
        net = small()
        net.out = nn.Linear(5, 5)
        return net

    at = setting(
        (10, 10),
        networks=[wide],
        public=public_set(30, classes=2, first=3),
        space=LabelSpace((("private", 3), ("public", 2))),
        work=LocalWork(lr=0.3, batch=8),
    )
    net, _ = FedMD(pretrain_public=20, pretrain_private=0).pretrained(at.client(0, 1, {}))
    assert (net(at.public.inputs).argmax(1) >= 3).all()  # it has seen no other labels yet
    engine = play(FedMD(samples=6), at, 1).engine
    assert engine.memories[0]["model"]["out.weight"].shape == (5, 5)


def test_l2_is_off_and_pulls_only_the_last_layer(small, setting, play):
    net = small()
    assert FedMD().penalty(net) == 0
    penalty = FedMD(l2=0.5).penalty(net)
    penalty.backward()
    assert penalty.item() == pytest.approx(0.5 * net.out.weight.square().sum().item())
    assert torch.allclose(net.out.weight.grad, net.out.weight)
    assert net.body.weight.grad is None
    plain, pulled = (play(FedMD(**PLAIN, l2=l2), setting(), 2).engine.memories[0]["model"] for l2 in (0, 0.1))
    assert pulled["out.weight"].norm() < plain["out.weight"].norm()


def test_bytes_are_those_of_the_logits(setting, play):
    for r in play(FedMD(**PLAIN, samples=5), setting((10, 7, 4)), 2).rounds:
        assert dict(r.ledger.up)["logits"] == dict(r.ledger.down)["logits"] == 3 * 5 * 3 * 4
        assert set(r.ledger.up) == set(r.ledger.down) == {"logits", "framing"}


def test_who_is_not_heard_does_not_count_and_is_sent_nothing(setting, small, play):
    at = setting((10, 7, 4, 9), participation=Participation(late_drop=0.5))
    played = play(FedMD(**PLAIN), at, 1)
    lost = played.rounds[0].lost
    assert 0 < len(lost) < 4
    start = params(initial(small, 3))
    for k, memory in played.engine.memories.items():
        assert equal(memory["model"], start) == (k in lost)
    there = [k for k in at.ids if k not in lost]
    without = setting((10, 7, 4, 9), participation=Participation(policy="trace", trace=[there]))
    alone = play(FedMD(**PLAIN), without, 1).engine.memories
    assert all(equal(alone[k], played.engine.memories[k]) for k in there)


def test_clients_have_networks_of_their_own(setting, small, play):
    def linear():
        return nn.Linear(4, 3)

    at = setting((10, 7, 1), networks=[small, noisy(small), linear])
    at.check(FedMD())
    played = play(FedMD(samples=6, pretrain_public=2, pretrain_private=2), at, 2)
    assert sorted(played.engine.memories[2]["model"]) == ["bias", "weight"]
    assert list(evaluate(at, FedMD(), played.states[-1], played.engine.memories)) == ["personal"]


def test_public_samples_are_drawn_by_class_and_those_of_knfu_and_its_baselines_at_random(setting, play):
    """KnFu's form of FedMD so meets the samples that KnFu meets."""
    at = setting(public=public_set(30))

    def drawn(method):
        fed = play(method, at, 2).engine
        rows = [method.part(fed.open(method, t)).samples.index.tolist() for t in (1, 2)]
        assert rows == [method.part(at.client(1, t, {})).samples.index.tolist() for t in (1, 2)]
        return rows

    def by(policy):
        return [at.public.subset(t, 3, 7, policy).samples.index.tolist() for t in (1, 2)]

    assert drawn(FedMD(**PLAIN, samples=7)) == by("stratified") != by("fresh")
    assert drawn(FedMDKnFu(samples=7)) == drawn(KnFu(samples=7)) == drawn(SelectiveFD(samples=7)) == by("fresh")
    assert drawn(FedMDKnFu(samples=7, policy="stratified")) == by("stratified")
    assert drawn(FedMD(**PLAIN, samples=7, policy="fixed")) == by("fixed")


# Refusals and the contract


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("l2", -1.0),
        ("digest_epochs", -1),
        ("digest_batch", 0),
        ("clip_logits", 0.0),
        ("pretrain_public", -1),
        ("public_batch", 0),
        ("public_patience", 0),
        ("public_min_delta", -0.1),
        ("pretrain_private", -1),
        ("private_batch", 0),
        ("private_patience", 0),
        ("private_min_delta", -0.1),
        ("held_out", 1.0),
        ("samples", 0),
    ],
)
def test_limits_are_declared(option, value):
    with pytest.raises(UsageError, match=rf"fedmd\.{option} = {value!r} must be"):
        FedMD(**{option: value})


def test_a_policy_without_samples_is_refused():
    with pytest.raises(UsageError, match=r"fedmd\.policy has no effect without samples"):
        FedMD(policy="fixed")


def test_what_its_server_does_not_use_is_refused():
    with pytest.raises(UsageError, match=r"fedmd does not use aggregation\.weights = 'uniform'"):
        FedMD(aggregation=Aggregation(weights="uniform"))


@pytest.mark.parametrize(
    "method",
    [
        FedMD(pretrain_public=2, pretrain_private=1),
        FedMDKnFu(),
        FedMDGlobal(pretrain_public=2, pretrain_private=1, lwof=True, init_global="public"),
        KnFu(),
        DSFL(),
        SelectiveFD(),
    ],
    ids=lambda method: method.label,
)
def test_public_samples_are_never_augmented(method, setting, play):
    """Answers belong to the inputs as they are; a client's own samples are augmented."""
    public, seen = public_set(), []

    def augment(x, _):
        seen.append(x.clone())
        return x + 1

    at = setting(public=public, augment=augment)
    play(method, at, 2)
    rows = {tuple(row.tolist()) for row in torch.cat(seen)}
    assert rows == {tuple(row.tolist()) for site in at.sites for row in site.train.inputs}


def test_pretraining_needs_public_labels_and_clients_the_public_set(setting, small, play):
    unlabelled = setting(public=public_set(labelled=False))
    with pytest.raises(UsageError, match="pretrain_public needs labels"):
        play(FedMD(), unlabelled, 1)
    play(FedMD(pretrain_public=0, pretrain_private=1), unlabelled, 1)
    for method in (FedMD(samples=8, pretrain_public=0), FedMDKnFu(samples=8, ce_on="none", policy="stratified")):
        with pytest.raises(UsageError, match="policy = 'stratified' draws public samples by their labels"):
            play(method, unlabelled, 0)
    with pytest.raises(UsageError, match=r"public\.holder = 'all'"):
        play(FedMD(), setting(public=public_set(holder="server")), 1)
    with pytest.raises(UsageError, match="needs a network with a linear layer"):
        FedMD(l2=0.1).penalty(nn.Flatten())


def test_it_keeps_the_contract_with_moments_and_bounds():
    adam = replace(small_settings()[1], work=LocalWork(batch=8, lr=0.01, optimiser="adam"))
    check_method(FedMD(**FedMD.card.quick, aggregation=Aggregation(combine="median"), clip_logits=5.0, l2=0.001), adam)
