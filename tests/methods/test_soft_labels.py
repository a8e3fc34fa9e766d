"""What KnFu and its relatives share: the fine-tuning by hand, what may be left out, what must be there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedalloy.base.rng import generator
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method
from fedalloy.check.probe import small_settings
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, action, run
from fedalloy.federation.participation import Participation
from fedalloy.knowledge.exchange import public_part
from fedalloy.methods import DSFL, FedMDKnFu, KnFu, Local, SelectiveFD
from fedalloy.methods.soft_labels import SoftLabels
from fedalloy.train.fit import LocalWork, batches, load

WORK = LocalWork(epochs=1, batch=4, lr=0.1)
PUBLIC = 6


@dataclass(frozen=True, kw_only=True)
class Fixed(SoftLabels):
    """Not registered, since it is for these tests only: everybody is sent the same written answers."""

    name: ClassVar[str] = "fixed"
    label: ClassVar[str] = "Fixed"
    card: ClassVar[Card] = Card(paper="none", public=True, any_network=True)
    sharp: float = 1.0

    def fuse(self, replies, fed):
        rows = len(replies[0]["soft"])
        logits = torch.randn(rows, 3, generator=generator(3, "answers"))
        return {r.client: {"soft": (self.sharp * logits).softmax(1)} for r in replies}, {"heard": len(replies)}


def public(labelled=True, holder="all", n=PUBLIC):
    x = torch.randn(n, 4, generator=generator(7, "public"))
    return PublicSet(Samples(x, torch.arange(n) % 3, torch.arange(n)), labelled=labelled, holder=holder)


@pytest.fixture
def setting(small_setting):
    def make(sizes=(9, 12, 7), labelled=True, holder="all", **options):
        return small_setting(list(sizes), public=public(labelled, holder), **{"work": WORK, "seed": 2, **options})

    return make


def answers(sharp=1.0):
    return (sharp * torch.randn(PUBLIC, 3, generator=generator(3, "answers"))).softmax(1)


def kl_by_hand(target, logits, temperature):
    """KL between F^(1/T) / sum F^(1/T) and the softened answer, in the plainest form."""
    soft = target ** (1 / temperature)
    soft = soft / soft.sum(1, keepdim=True)
    own = (logits / temperature).softmax(1)
    return (soft * (soft / own).log()).sum(1).mean()


def tuned_by_hand(setting, client, loss, steps=2):
    """A client's model after local training and the steps of one fine-tuning; `loss(net, rows)` is the objective."""
    trained = local(setting)[client]["model"]
    net = load(setting.build(client), trained).train()
    for rows in batches(PUBLIC, 4, steps, generator(setting.seed, "tune", 1, client)):
        net.zero_grad()
        loss(net, rows).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= WORK.lr * p.grad
    return net.state_dict()


def local(setting, rounds=1):
    engine = Serial(setting)
    run(Local(), engine, rounds)
    return engine.memories


def close(a, b, atol=1e-6):
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=atol) for k in a)


@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 1.0), (2.0, 4.0), (0.5, 0.25)])
def test_fine_tuning_by_hand_with_the_default_weight(temperature, weight, setting, play):
    federation = setting()
    x, y, target = federation.public.inputs, federation.public.labels, answers()

    def loss(net, rows):
        logits = net(x[rows])
        return F.cross_entropy(logits, y[rows]) + weight * kl_by_hand(target[rows], logits, temperature)

    memories = play(Fixed(temperature=temperature), federation, 1).engine.memories
    for k in (0, 2):
        assert close(memories[k]["model"], tuned_by_hand(federation, k, loss))


def test_the_weight_is_the_squared_temperature_unless_it_is_given(setting, play):
    def model(**options):
        return play(Fixed(temperature=3.0, **options), setting(), 2).engine.memories[1]["model"]

    assert equal(model(), model(kd_weight=9.0))
    assert not equal(model(), model(kd_weight=1.0))


def test_without_the_second_term_only_labels_count(setting, play):
    federation = setting()
    x, y = federation.public.inputs, federation.public.labels
    one, other = (play(Fixed(kd_weight=0.0, sharp=sharp), federation, 1).engine.memories for sharp in (1.0, 5.0))
    by_hand = tuned_by_hand(federation, 1, lambda net, rows: F.cross_entropy(net(x[rows]), y[rows]))
    assert close(one[1]["model"], by_hand)
    assert close(one[1]["model"], other[1]["model"])


def test_without_labels_only_the_second_term_counts(setting, play):
    x, target = public().inputs, answers()
    found = [play(Fixed(ce_on="none"), setting(labelled=flag), 1).engine.memories[1]["model"] for flag in (True, False)]
    assert equal(*found)
    by_hand = tuned_by_hand(setting(), 1, lambda net, rows: kl_by_hand(target[rows], net(x[rows]), 1.0))
    assert close(found[0], by_hand)


def test_labels_may_be_the_clients_own(setting, play):
    federation = setting(labelled=False)
    x, target, mine = federation.public.inputs, answers(), federation.sites[0].train
    own = iter(list(batches(9, 4, 2, generator(2, "tune/own", 1, 0))))

    def loss(net, rows):
        ours, y = mine.take(next(own))
        return F.cross_entropy(net(ours), y) + kl_by_hand(target[rows], net(x[rows]), 1.0)

    found = play(Fixed(ce_on="local"), federation, 1).engine.memories[0]["model"]
    assert close(found, tuned_by_hand(federation, 0, loss))


def test_without_fine_tuning_it_is_local_bit_for_bit(setting, small, play):
    nets = [lambda: small(batch_norm=True, dropout=0.3)]
    federation = setting(networks=nets, participation=Participation(policy="fraction", fraction=0.7))
    found = play(Fixed(tune_epochs=0), federation, 3).engine.memories
    assert {k: equal(found[k], memory) for k, memory in local(federation, 3).items()} == dict.fromkeys(found, True)


def test_answers_are_given_in_eval_mode_and_travel_alone(setting, small, play):
    federation = setting(networks=[lambda: small(batch_norm=True, dropout=0.5)])
    engine = play(Fixed(), federation, 0).engine
    replies = engine.open(Fixed(), 1).ask("learn", [0, 1])
    for r in replies:
        assert list(r.body) == ["soft"]
        net = load(federation.build(r.client), engine.memories[r.client]["model"]).eval()
        assert torch.equal(r["soft"], net(federation.public.inputs).softmax(1).detach())


def test_a_rounds_samples_are_the_same_for_all_and_new_in_every_round(setting, play):
    federation, method = setting(), Fixed(samples=4)
    engine = play(method, federation, 0).engine
    parts = [federation.public.subset(t, federation.seed, 4, "fresh") for t in (1, 2)]
    assert not torch.equal(parts[0].samples.index, parts[1].samples.index)
    for t, part in enumerate(parts, start=1):
        for r in engine.open(method, t).ask("learn", [0, 2]):
            net = load(federation.build(r.client), engine.memories[r.client]["model"]).eval()
            assert torch.equal(r["soft"], net(part.inputs).softmax(1).detach())


def test_no_samples_are_not_all_samples(setting):
    fed = Serial(setting()).open(Fixed(), 1)
    assert len(public_part(fed, None, "fresh")) == PUBLIC
    with pytest.raises(UsageError, match=r"\b0 of 6 public samples"):
        public_part(fed, 0, "fresh")


def test_clients_that_were_not_heard_are_not_sent_anything(setting, play):
    federation = setting(participation=Participation(late_drop=0.6))
    tuned = []

    class Watched(Fixed):
        @action("soft ->")
        def tune(self, me, msg):
            tuned.append((me.round, me.id))
            return super().tune(me, msg)

    played = play(Watched(), federation, 4)
    lost = {(t, k) for t, r in enumerate(played.rounds, 1) for k in r.lost}
    assert lost
    assert not lost & set(tuned)
    heard = [3 - len(r.lost) for r in played.rounds]
    assert [s["heard"] for s, n in zip(played.states[1:], heard, strict=True) if n] == [n for n in heard if n]


def test_networks_may_differ(setting, small, play):
    federation = setting(networks=[small, lambda: small(batch_norm=True), lambda: nn.Sequential(nn.Linear(4, 3))])
    federation.check(Fixed())
    memories = play(Fixed(), federation, 2).engine.memories
    assert len({tuple(memories[k]["model"]) for k in range(3)}) == 3


def test_missing_labels_are_refused_before_the_first_round(setting, play):
    with pytest.raises(UsageError, match=r"fixed\.ce_on = 'public' needs labels; write public\.labelled = true"):
        play(Fixed(), setting(labelled=False), 0)


def test_a_public_set_that_clients_do_not_hold_is_refused(setting, play):
    with pytest.raises(UsageError, match=r"the clients hold no public set; write public\.holder = 'all'"):
        play(Fixed(), setting(holder="server"), 1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", 0.0),
        ("tune_epochs", -1),
        ("kd_weight", -0.5),
        ("ce_on", "privat"),
        ("samples", 0),
        ("policy", "new"),
    ],
)
def test_limits_are_declared(option, value):
    with pytest.raises(UsageError, match=rf"fixed\.{option} = {value!r} must be"):
        Fixed(**{option: value})


def test_a_policy_without_samples_is_refused():
    with pytest.raises(UsageError, match=r"fixed\.policy has no effect without samples"):
        Fixed(policy="fixed")


def test_the_base_class_alone_cannot_fuse(setting, play):
    class Bare(Fixed):
        fuse = SoftLabels.fuse

    with pytest.raises(UsageError, match=r"the method fixed has no fuse\(self, replies, fed\)"):
        play(Bare(), setting(), 1)


# An optimiser of its own, a schedule of its own


def two_rounds_by_hand(setting, client, make, tune_lr, persist):
    """Both phases of two rounds with torch's own optimiser: one for all of them, or one for each."""
    net, x, target, site = setting.build(client), setting.public.inputs, answers(), setting.sites[client].train
    y, optimiser = setting.public.labels, None
    for t in (1, 2):
        for stage, lr, samples, batch in (("batches", 0.05, site, 4), ("tune", tune_lr, setting.public.samples, 3)):
            if optimiser is None or not persist:
                optimiser = make(net.parameters())
            optimiser.param_groups[0]["lr"] = lr
            steps = -(-len(samples) // batch) - (len(samples) % batch == 1)
            for rows in batches(len(samples), batch, steps, generator(setting.seed, stage, t, client)):
                optimiser.zero_grad()
                if stage == "batches":
                    F.cross_entropy(net(samples.take(rows)[0]), samples.take(rows)[1]).backward()
                else:
                    logits = net(x[rows])
                    (F.cross_entropy(logits, y[rows]) + kl_by_hand(target[rows], logits, 1.0)).backward()
                optimiser.step()
    return net.state_dict()


@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize(
    ("work", "make"),
    [
        ({"optimiser": "adam"}, lambda p: torch.optim.Adam(p)),
        ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, momentum=0.9)),
    ],
    ids=["adam", "momentum"],
)
def test_one_optimiser_for_both_phases_and_all_rounds_or_a_new_one_each_time(work, make, persist, setting, play):
    federation = setting(work=LocalWork(epochs=1, batch=4, lr=0.05, **work))
    memories = play(Fixed(persist=persist, tune_batch=3, tune_lr=0.02), federation, 2).engine.memories
    for k in (0, 2):
        by_hand = two_rounds_by_hand(federation, k, make, 0.02, persist)
        assert close(memories[k]["model"], by_hand, 1e-5)
        assert ("optimiser" in memories[k]) == persist


@pytest.mark.parametrize("cls", [KnFu, FedMDKnFu, SelectiveFD, DSFL, Local])
def test_every_relative_can_keep_its_optimiser(cls, setting, play):
    federation = setting(work=LocalWork(epochs=1, batch=4, lr=0.01, optimiser="adam"))
    memory = play(cls(persist=True), federation, 3).engine.memories[0]
    local_steps, tuned = 3 * 2, (0 if cls is Local else 3 * 2)  # 9 samples and 6 samples, in batches of 4
    assert {int(entry["step"]) for entry in memory["optimiser"].values()} == {local_steps + tuned}
    with pytest.raises(UsageError, match=rf"{cls.name}\.persist has no effect"):
        play(cls(persist=True), setting(), 0)


def test_what_is_kept_survives_every_engine_and_interruption():
    adam = replace(small_settings()[1], work=LocalWork(batch=8, lr=0.01, optimiser="adam"))
    momentum = replace(small_settings()[1], work=LocalWork(batch=8, lr=0.01, momentum=0.9))
    check_method(KnFu(persist=True, samples=8), adam)
    check_method(Local(persist=True, second_phase=1), momentum)


def test_steps_in_place_of_passes(setting, play):
    federation = setting()
    x, y, target = federation.public.inputs, federation.public.labels, answers()

    def loss(net, rows):
        logits = net(x[rows])
        return F.cross_entropy(logits, y[rows]) + kl_by_hand(target[rows], logits, 1.0)

    played = play(Fixed(tune_steps=5), federation, 1)
    assert close(played.engine.memories[1]["model"], tuned_by_hand(federation, 1, loss, steps=5))
    one_batch = play(Fixed(tune_steps=10, tune_batch=512), federation, 1)  # all of the round's samples, ten times
    local_steps = 2 + 3 + 2
    assert one_batch.rounds[0].ledger.clients.steps == local_steps + 3 * 10
    with pytest.raises(UsageError, match=r"fixed\.tune_epochs has no effect without tune_steps = 0"):
        Fixed(tune_steps=5, tune_epochs=2)
