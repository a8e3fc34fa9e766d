"""Selective-FD: who votes on what, which votes are clear, what travels, and where it is something simpler."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedalloy import resume, simulate
from fedalloy.base.rng import generator
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method
from fedalloy.check.probe import small_settings
from fedalloy.data.label_space import LabelSpace
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Message, action, quick
from fedalloy.federation.gate import refusal
from fedalloy.federation.participation import Participation
from fedalloy.knowledge import density
from fedalloy.knowledge.selectors import l1_to_one_hot
from fedalloy.knowledge.votes import ensemble
from fedalloy.methods import FedMDKnFu, Local
from fedalloy.methods.selective_fd import SelectiveFD
from fedalloy.methods.soft_labels import SoftLabels
from fedalloy.train.fit import LocalWork, batches, load
from fedalloy.train.losses import soft_ce

WORK = LocalWork(epochs=1, batch=4, lr=0.1)
PUBLIC, CLASSES = 10, 3
KNFU = {"client_selector": "label_match", "server_selector": "entropy", "kd": "kl", "ce_on": "public"}
OPEN = {"client_selector": "none", "server_selector": "none"}


def public(labelled=True, holder="all"):
    """The public samples lie in a pool, among others and not in their order there."""
    x = torch.randn(30, 4, generator=generator(7, "public"))
    rows = torch.randperm(30, generator=generator(7, "rows"))[:PUBLIC]
    return PublicSet(Samples(x, torch.arange(30) % CLASSES, rows), labelled=labelled, holder=holder)


@pytest.fixture
def setting(small_setting):
    def make(sizes=(9, 12, 7, 10), labelled=True, **options):
        return small_setting(list(sizes), **{"public": public(labelled), "work": WORK, "seed": 2, **options})

    return make


@dataclass(frozen=True, kw_only=True)
class Mean(SoftLabels):
    """Not registered: everybody learns the mean answer by soft cross-entropy, without any selector."""

    name: ClassVar[str] = "mean"
    label: ClassVar[str] = "Mean"
    card: ClassVar[Card] = Card(paper="none", public=True, any_network=True)

    def fuse(self, replies, fed):
        mean = torch.stack([r["soft"] for r in replies]).double().mean(0).float()
        return {r.client: {"soft": mean} for r in replies}, {}

    def distance(self, fused, logits, task="classes"):
        return soft_ce(fused, logits)


@dataclass(frozen=True, kw_only=True)
class Written(SelectiveFD):
    """Not registered: the ensemble's labels are written down; sample i survives if i is in `kept`."""

    kept: tuple[int, ...] = ()

    def fuse(self, replies, fed):
        mask = torch.isin(torch.arange(PUBLIC), torch.tensor(self.kept))
        return {r.client: {"answers": self.table(mask, written()[mask])} for r in replies}, {}


def written():
    return (2 * torch.randn(PUBLIC, CLASSES, generator=generator(3, "answers"))).softmax(1)


def distributions(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def close(a, b, atol=1e-6):
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=atol) for k in a)


def payload(counter):
    return counter.total() - counter["framing"]


def learned(method, engine, clients, round=1):
    """The tables that clients send, with their memories moved on."""
    return {r.client: r["answers"] for r in engine.open(method, round).ask("learn", clients)}


def steps_by_hand(federation, client, start, samples, batch_order, loss):
    """A client's model after gradient steps from a start; `loss(net, positions)` is the objective."""
    net = load(federation.build(client), start).train()
    for positions in batch_order(samples):
        net.zero_grad()
        loss(net, positions).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= WORK.lr * p.grad
    return net.state_dict()


def one_epoch(client):
    def order(n):
        return batches(n, 4, max(1, math.ceil(n / 4) - (n % 4 == 1)), generator(2, "tune", 1, client))

    return order


# The variants


def test_choices_by_name():
    knfu, code = SelectiveFD(variant="knfu"), SelectiveFD(variant="reference")
    assert {key: getattr(knfu, key) for key in KNFU} == KNFU
    assert knfu.tune_on == "all"
    assert (code.client_selector, code.q, code.known_least, code.server_selector) == ("kulsif", 0.25, 1, "none")
    assert (code.samples, code.tune_batch, code.tune_steps) == (512, 512, 10)
    assert (code.kd, code.ce_on, code.tune_on) == ("ce", "none", "kept")


def test_the_codes_schedule_is_one_local_step_and_ten_on_one_batch(setting, play):
    federation = setting(work=LocalWork(work="fixed_steps", steps=1, batch=64, lr=0.1))
    played = play(SelectiveFD(variant="reference", samples=10, client_selector="none"), federation, 1)
    assert played.rounds[0].ledger.clients.steps == 4 * (1 + 10)


def test_what_is_kept_is_noted_whatever_the_engine_and_after_a_resume(tmp_path):
    words = {
        "data": "tiny",
        "model": "mlp",
        "rounds": 3,
        "public": {"samples": 40, "labelled": True},
        "partition": {"clients": 4, "alpha": 0.5},
        "training": {"optimiser": "adam", "lr": 0.01},
        "method": {"name": "selective-fd", "variant": "knfu", "max_entropy": 0.3, "tune_on": "voted", "persist": True},
    }

    def notes(run):
        return [record["notes"] for record in run.rounds]

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    plain = simulate({**words, "engine": "serial"})
    assert all(0 <= n["public samples kept"] <= n["public samples voted on"] <= 40 for n in notes(plain))
    assert plain.noted("public samples kept")[1].sum() > 0
    assert notes(simulate({**words, "engine": "pool", "workers": 2})) == notes(plain)
    with pytest.raises(KeyboardInterrupt):
        simulate({**words, "engine": "serial"}, tmp_path / "run", watch=stop)
    resumed = resume(tmp_path / "run")
    assert notes(resumed) == notes(plain)
    assert [r["views"] for r in resumed.rounds] == [r["views"] for r in plain.rounds]


# The server's side


few = settings(max_examples=30)  # a busy machine is no fault
positive = st.lists(st.floats(1e-3, 1), min_size=2, max_size=8)


@few
@given(positive)
def test_the_l1_distance_from_the_nearest_one_hot_vector_is_twice_what_the_largest_lacks(raw):
    q = distributions(raw) / sum(raw)
    norm = (q - F.one_hot(q.argmax(1), q.shape[1])).abs().sum(1)
    assert l1_to_one_hot(q).item() == pytest.approx(norm.item(), abs=1e-12)


@few
@given(
    st.lists(positive.map(lambda raw: [*raw, *[0.0] * (8 - len(raw))]), min_size=1, max_size=9),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_more_survive_with_a_higher_threshold_and_all_with_the_highest(raw, one, other):
    q = distributions(*raw)
    q = q / q.sum(1, keepdim=True)
    low, high = sorted([one, other])
    for selector, option, most in (("l1", "tau_server", 2), ("entropy", "max_entropy", 1)):
        kept = [SelectiveFD(server_selector=selector, **{option: s * most}).clear(q) for s in (low, high, 1.0)]
        assert (kept[0] <= kept[1]).all()
        assert kept[2].all()


def test_thresholds_of_0_keep_only_one_hot_vectors():
    q = distributions([0, 1, 0], [0, 1 - 1e-9, 1e-9], [1, 0, 0], [0.4, 0.3, 0.3])
    for options in ({"tau_server": 0.0}, {"server_selector": "entropy", "max_entropy": 0.0}):
        assert SelectiveFD(**options).clear(q).tolist() == [True, False, True, False]


def test_the_l1_selector_by_hand():
    q = distributions([0.75, 0.25, 0], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
    assert l1_to_one_hot(q).tolist() == [0.5, 1.0, 1.0]
    for tau, wanted in ((0.49, [False] * 3), (0.5, [True, False, False]), (1.0, [True] * 3)):
        assert SelectiveFD(tau_server=tau).clear(q).tolist() == wanted


def test_the_entropy_selector_by_hand():
    # H = ln 2 = 0.693147 is 0.630930 of ln 3; H(.7, .2, .1) = 0.801819 is 0.729847 of it; a guess is all of it.
    q = distributions([0.5, 0.5, 0], [0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3])
    for share, wanted in ((0.63092, 0), (0.63094, 1), (0.72984, 1), (0.72986, 2), (0.99, 2), (1.0, 3)):
        assert SelectiveFD(server_selector="entropy", max_entropy=share).clear(q).tolist() == [
            i < wanted for i in range(3)
        ]


def test_a_guess_among_any_number_of_classes_survives_the_highest_threshold():
    method = SelectiveFD(server_selector="entropy", max_entropy=1.0)
    assert all(method.clear(torch.full((1, c), 1 / c, dtype=torch.float64)).all() for c in range(2, 60))


@few
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_an_ensemble_is_the_mean_over_those_who_voted(clients, samples, seed):
    stream = generator(seed, "votes")
    masks = torch.rand(clients, samples, generator=stream) < 0.5
    answers = torch.randn(clients, samples, 4, generator=stream).softmax(2)
    q = ensemble(masks, [answer[mask] for answer, mask in zip(answers, masks, strict=True)])
    for i in range(samples):
        voters = answers[masks[:, i], i].double()
        wanted = voters.mean(0) if len(voters) else torch.zeros(4).double()
        assert torch.allclose(q[i], wanted, rtol=0, atol=1e-12)
        assert q[i].sum().item() == pytest.approx(1.0 if len(voters) else 0.0, abs=1e-6)


def said(*tables, key="soft"):
    return [Message("learn", k, {"answers": {"mask": torch.tensor(m), key: v}}) for k, (m, v) in tables]


def test_only_clear_labels_of_samples_somebody_selected_are_sent(fake):
    replies = said(
        (1, ([True, True, False, False], torch.tensor([[0.9, 0.1], [0.8, 0.2]]))),
        (4, ([True, False, True, False], torch.tensor([[0.7, 0.3], [0.5, 0.5]]))),
        (5, ([False] * 4, torch.zeros(0, 2))),
    )
    fed = fake({})
    sent, notes = SelectiveFD(tau_server=0.5).fuse(replies, fed)
    assert list(sent) == [1, 4, 5]  # also who voted on none
    assert notes == {}
    assert fed.notes == {"public samples voted on": 3, "public samples kept": 2}
    for body in sent.values():
        assert body["answers"]["mask"].tolist() == [True, True, False, False]
        assert body["answers"]["soft"].dtype == torch.float32
        assert torch.allclose(body["answers"]["soft"], torch.tensor([[0.8, 0.2], [0.8, 0.2]]))
    sent, _ = SelectiveFD().fuse(replies, fake({}))
    assert sent[5]["answers"]["mask"].tolist() == [True, True, True, False]


def test_nobody_fine_tunes_where_nothing_survives(setting, play):
    federation = setting(work=LocalWork(epochs=1, batch=4, lr=1e-3))
    played = play(SelectiveFD(tau_server=0.0, client_selector="none"), federation, 2)
    alone = play(Local(), federation, 2).engine.memories
    assert all(equal(played.engine.memories[k], alone[k]) for k in alone)
    assert all(not r.ledger.down for r in played.rounds)


def test_public_labels_are_learnt_even_where_nothing_survives(setting, play):
    federation = setting(work=LocalWork(epochs=1, batch=4, lr=1e-3))
    unclear = play(SelectiveFD(tau_server=0.0, client_selector="none", ce_on="public"), federation, 2).engine.memories
    weightless = play(SelectiveFD(**OPEN, ce_on="public", kd_weight=0.0), federation, 2).engine.memories
    alone = play(Local(), federation, 2).engine.memories
    assert all(equal(unclear[k], weightless[k]) for k in federation.ids)
    assert not any(equal(unclear[k]["model"], alone[k]["model"]) for k in federation.ids)


# The clients' side


def test_a_client_votes_on_what_resembles_its_own_data_and_remembers_it(setting, play):
    federation, method = setting(), SelectiveFD(samples=6, width=1.0, q=0.5, auxiliary=20)
    engine = play(method, federation, 0).engine
    wanted = {
        k: density.select(
            federation.sites[k].train.inputs,
            federation.public.inputs,
            generator(2, "selector", 1, k),
            q=0.5,
            width=1.0,
            auxiliary=20,
        )
        for k in (0, 1)
    }
    for t in (1, 2, 3):
        part = federation.public.subset(t, 2, 6, "fresh").samples.index.tolist()
        positions = [federation.public.samples.index.tolist().index(row) for row in part]
        for k, table in learned(method, engine, [0, 1], t).items():
            assert torch.equal(engine.memories[k]["familiar"], wanted[k])  # of all ten, since its first round
            assert torch.equal(table["mask"], wanted[k][positions])
            net = load(federation.build(k), engine.memories[k]["model"]).eval()
            answers = net(federation.public.inputs[positions]).softmax(1).detach()
            assert torch.allclose(table["soft"], answers[table["mask"]], rtol=0, atol=1e-6)
    assert all(0 < mask.sum() < PUBLIC for mask in wanted.values())


def test_options_of_the_density_reach_it(setting, play, monkeypatch):
    given = []
    monkeypatch.setattr(
        "fedalloy.knowledge.selectors.select",
        lambda own, proxy, stream, **options: given.append(options) or torch.ones(len(proxy), dtype=torch.bool),
    )
    method = SelectiveFD(q=0.1, width="median", lam=0.2, auxiliary=7, known_share=0.3, known_least=4)
    play(method, setting(), 1)
    wanted = {"q": 0.1, "width": "median", "lam": 0.2, "auxiliary": 7, "share": 0.3, "least": 4}
    assert given == [wanted] * 4  # each client's, in its first round


def test_fewer_samples_are_kept_with_a_higher_quantile(setting, play):
    federation = setting(sizes=(60, 40, 50))
    masks = [
        torch.stack([m["familiar"] for m in play(SelectiveFD(q=q, width=1.0), federation, 1).engine.memories.values()])
        for q in (0.0, 0.25, 0.6, 1.0)
    ]
    for more, less in itertools.pairwise(masks):
        assert (less <= more).all()
        assert (less.any(0) <= more.any(0)).all()
    assert masks[0].sum() > masks[2].sum() > masks[3].sum()


def test_label_match_votes_where_the_model_is_right(setting, play):
    federation, method = setting(), SelectiveFD(**KNFU)
    engine = play(method, federation, 0).engine
    for k, table in learned(method, engine, [0, 3]).items():
        net = load(federation.build(k), engine.memories[k]["model"]).eval()
        right = net(federation.public.inputs).argmax(1) == federation.public.labels
        assert torch.equal(table["mask"], right)
        assert list(engine.memories[k]) == ["model"]


def test_who_knows_nothing_still_learns(setting, play):
    federation, told = setting(sizes=(1, 12, 20, 15)), []

    class Watched(SelectiveFD):
        @action("answers ->")
        def tune(self, me, msg):
            told.append(me.id)
            return super().tune(me, msg)

    played = play(Watched(), federation, 1)
    assert not played.engine.memories[0]["familiar"].any()
    assert told == [0, 1, 2, 3]
    alone = play(Local(), federation, 1).engine.memories
    assert not close(played.engine.memories[0]["model"], alone[0]["model"], 1e-4)


# Fine-tuning


def test_by_default_only_surviving_samples_are_learnt_from(setting, play):
    federation, kept = setting(labelled=False), [0, 2, 3, 6, 7, 9]
    found = play(Written(kept=tuple(kept)), federation, 1).engine.memories
    start = play(Local(), federation, 1).engine.memories
    x, target = federation.public.inputs[kept], written()[kept]

    def loss(net, rows):
        return -(target[rows] * F.log_softmax(net(x[rows]), 1)).sum(1).mean()

    for k in (0, 2):
        by_hand = steps_by_hand(federation, k, start[k]["model"], len(kept), one_epoch(k), loss)
        assert close(found[k]["model"], by_hand)


@pytest.mark.parametrize("tune_on", ["kept", "voted"])
def test_labels_too_can_be_learnt_on_kept_samples_alone_or_where_one_voted(tune_on, setting, play):
    federation, kept, start = setting(), [0, 2, 3, 6, 7, 9], play(Local(), setting(), 1).engine.memories
    method = Written(kept=tuple(kept), **{**KNFU, "server_selector": "none"}, tune_on=tune_on)
    found = play(method, federation, 1).engine.memories
    counts = []
    for k in federation.ids:
        net = load(federation.build(k), start[k]["model"]).eval()
        right = net(federation.public.inputs).argmax(1) == federation.public.labels
        rows = [i for i in kept if tune_on == "kept" or right[i]]
        counts.append(len(rows))
        if not rows:  # nothing to learn
            assert equal(found[k]["model"], start[k]["model"])
            continue
        x, y, q = federation.public.inputs[rows], federation.public.labels[rows], written()[rows]

        def loss(net, at, x=x, y=y, q=q):
            logits = net(x[at])
            return F.cross_entropy(logits, y[at]) + F.kl_div(logits.log_softmax(1), q[at], reduction="batchmean")

        by_hand = steps_by_hand(federation, k, start[k]["model"], len(rows), one_epoch(k), loss)
        assert close(found[k]["model"], by_hand)
    assert min(counts) < len(kept) if tune_on == "voted" else set(counts) == {len(kept)}


def test_all_samples_without_labels_are_refused():
    with pytest.raises(UsageError, match=r"selective-fd\.tune_on = 'all' has no effect without ce_on = 'public'"):
        SelectiveFD(tune_on="all")


def test_survivors_are_found_among_the_rounds_samples(setting, play):
    federation, method = setting(), SelectiveFD(samples=6, client_selector="none", tau_server=1.2)
    found = play(method, federation, 1).engine.memories[1]["model"]
    engine = play(method, federation, 0).engine
    replies = [Message("learn", k, {"answers": table}) for k, table in learned(method, engine, range(4)).items()]
    survived = method.fuse(replies, engine.open(method, 1))[0][1]["answers"]
    x, target = federation.public.subset(1, 2, 6, "fresh").inputs[survived["mask"]], survived["soft"]
    assert 1 < len(x) < 6

    def loss(net, rows):
        return F.cross_entropy(net(x[rows]), target[rows])

    by_hand = steps_by_hand(federation, 1, engine.memories[1]["model"], len(x), one_epoch(1), loss)
    assert close(found, by_hand)


@pytest.mark.parametrize("kept", [(1, 4, 5, 8), (3,), tuple(range(PUBLIC))])
@pytest.mark.parametrize("kd", ["ce", "kl"])
def test_with_labels_each_sample_has_its_own_loss(kept, kd, setting, play):
    federation = setting()
    found = play(Written(kept=kept, kd=kd, ce_on="public"), federation, 1).engine.memories
    start = play(Local(), federation, 1).engine.memories
    x, y, q = federation.public.inputs, federation.public.labels, written()
    survives = torch.isin(torch.arange(PUBLIC), torch.tensor(kept))

    def loss(net, rows):
        own = F.log_softmax(net(x[rows]), 1)
        entropy = (q[rows] * q[rows].log()).sum(1) if kd == "kl" else 0.0
        each = F.nll_loss(own, y[rows], reduction="none")
        return (each + survives[rows] * (entropy - (q[rows] * own).sum(1))).mean()

    for k in (1, 3):
        by_hand = steps_by_hand(federation, k, start[k]["model"], PUBLIC, one_epoch(k), loss)
        assert close(found[k]["model"], by_hand)


def test_a_batch_without_survivors_has_labels_only():
    logits = torch.randn(4, 3, generator=generator(0, "logits"), requires_grad=True)
    method = SelectiveFD(ce_on="public")
    assert method.distance(torch.full((4, 3), -1.0), logits).item() == 0
    half = torch.tensor([[0.5, 0.25, 0.25], [-1.0, -1.0, -1.0]])
    wanted = soft_ce(half[:1], logits[:1]).item() / 2
    assert method.distance(half, logits[:2]).item() == pytest.approx(wanted)


def test_labels_may_be_the_clients_own(setting, play):
    federation, kept = setting(labelled=False), [0, 2, 3, 6, 7, 9]
    found = play(Written(kept=tuple(kept), ce_on="local"), federation, 1).engine.memories[1]["model"]
    start = play(Local(), federation, 1).engine.memories[1]["model"]
    x, target, mine = federation.public.inputs[kept], written()[kept], federation.sites[1].train
    own = batches(12, 4, 2, generator(2, "tune/own", 1, 1))

    def loss(net, rows):
        ours, y = mine.take(next(own))
        return F.cross_entropy(net(ours), y) + F.cross_entropy(net(x[rows]), target[rows])

    assert close(found, steps_by_hand(federation, 1, start, len(kept), one_epoch(1), loss))


# Where it is something simpler


@pytest.fixture
def rough(setting, small):
    """Dropout and BatchNorm, some clients absent, some replies lost."""
    return setting(
        networks=[lambda: small(batch_norm=True, dropout=0.3)],
        participation=Participation(policy="fraction", fraction=0.8, late_drop=0.3),
    )


@pytest.mark.parametrize("samples", [None, 6])
def test_without_selectors_it_is_the_mean_of_probabilities_bit_for_bit(samples, rough, play):
    mean = play(Mean(ce_on="none", samples=samples), rough, 4).engine.memories
    for selector in ({"tau_server": 2.0}, {"server_selector": "none"}):
        found = play(SelectiveFD(client_selector="none", samples=samples, **selector), rough, 4).engine.memories
        assert all(equal(found[k], mean[k]) for k in mean)


@pytest.mark.parametrize("ce_on", ["public", "local", "none"])
def test_without_selectors_knfus_form_is_knfus_fedmd_bit_for_bit(ce_on, rough, play):
    options = {"ce_on": ce_on, "temperature": 2.0, "kd_weight": 0.7, "samples": 6, "policy": "fresh"}
    fedmd = play(FedMDKnFu(**options), rough, 3).engine.memories
    found = play(SelectiveFD(**OPEN, kd="kl", **options), rough, 3).engine.memories
    assert all(equal(found[k], fedmd[k]) for k in fedmd)


def test_a_selector_that_selects_all_is_none(rough, play, monkeypatch):
    monkeypatch.setattr(
        "fedalloy.knowledge.selectors.select", lambda own, proxy, *_, **__: torch.ones(len(proxy), dtype=torch.bool)
    )
    mean = play(Mean(ce_on="none"), rough, 3).engine.memories
    found = play(SelectiveFD(), rough, 3).engine.memories
    assert all(equal(found[k]["model"], mean[k]["model"]) for k in mean)


def test_without_fine_tuning_it_is_local_bit_for_bit(rough, play):
    alone = play(Local(), rough, 3).engine.memories
    found = play(SelectiveFD(tune_epochs=0), rough, 3).engine.memories
    assert all(equal(found[k]["model"], alone[k]["model"]) for k in alone)


def test_selectors_change_what_is_learnt(setting, play):
    one, two, three = (
        play(SelectiveFD(**options), setting(), 1).engine.memories[1]["model"]
        for options in ({"width": 1.0}, {"client_selector": "none"}, {"client_selector": "none", "tau_server": 1.2})
    )
    assert not equal(one, two)
    assert not equal(two, three)


# What travels


@pytest.mark.parametrize(("labels", "tau", "each"), [("soft", 1.2, 4 * CLASSES), ("hard", 0.4, 8)])
def test_bytes_are_those_of_the_selected_and_of_the_surviving_samples(labels, tau, each, setting, play):
    method = SelectiveFD(width=1.0, tau_server=tau, labels=labels)
    played = play(method, setting(), 1)
    tables = learned(method, play(method, setting(), 0).engine, range(4))
    chosen = sum(int(table["mask"].sum()) for table in tables.values())
    sent, _ = method.fuse(
        [Message("learn", k, {"answers": table}) for k, table in tables.items()], played.engine.open(method, 1)
    )
    survived = int(sent[0]["answers"]["mask"].sum())
    ledger = played.rounds[0].ledger
    assert 0 < survived < PUBLIC
    assert payload(ledger.up) == chosen * each + 4 * PUBLIC  # a mask is a byte for each sample
    assert payload(ledger.down) == 4 * (survived * each + PUBLIC)


def test_lost_replies_neither_vote_nor_are_told(setting, play):
    federation, told = setting(participation=Participation(late_drop=0.5)), []

    class Watched(SelectiveFD):
        @action("answers ->")
        def tune(self, me, msg):
            told.append((me.round, me.id))
            return super().tune(me, msg)

    played = play(Watched(client_selector="none"), federation, 4)
    lost = {(t, k) for t, r in enumerate(played.rounds, 1) for k in r.lost}
    assert any(0 < len(r.lost) < 4 for r in played.rounds)
    assert set(told) == {(t, k) for t in range(1, 5) for k in range(4)} - lost
    for r in played.rounds:
        assert payload(r.ledger.down) == (4 - len(r.lost)) * (PUBLIC * CLASSES * 4 + PUBLIC)


def test_a_method_in_an_experiment():
    # 100 public samples of 10 classes: 4000 bytes of labels at most each way, and a mask of 100.
    experiment = {
        "method": {"name": "selective-fd", "width": "median/8", "auxiliary": 20, "q": 0.1},
        "data": "tiny",
        "model": "mlp",
        "public": {"samples": 100},
        "partition": {"clients": 3},
        "rounds": 1,
    }
    run = simulate(experiment)
    assert run.views == ("personal",)
    for way in ("up", "down"):
        bytes_ = dict(run.rounds[0]["bytes"][way])
        assert 3 * 100 < sum(bytes_.values()) - bytes_["framing"] <= 3 * 4100


# Hard labels


def test_hard_labels_are_votes(fake):
    class Wide(fake):
        outputs = 3

    replies = said(
        (0, ([True, True, True], torch.tensor([2, 1, 0]))),
        (1, ([True, True, False], torch.tensor([2, 0]))),
        (2, ([True, False, False], torch.tensor([0]))),
        key="hard",
    )
    sent, _ = SelectiveFD(labels="hard").fuse(replies, Wide({}))
    assert sent[2]["answers"]["hard"].tolist() == [
        2,
        0,
        0,
    ]  # two of three; a tie, which the lower class wins; one alone
    sent, _ = SelectiveFD(labels="hard", tau_server=0.9).fuse(replies, Wide({}))  # 2/3 of the votes: 0.667; half: 1
    assert sent[2]["answers"]["mask"].tolist() == [True, False, True]
    assert sent[2]["answers"]["hard"].dtype == torch.int64
    sent, _ = SelectiveFD(labels="hard", tau_server=0.0).fuse(replies, Wide({}))
    assert sent[2]["answers"]["mask"].tolist() == [False, False, True]


def test_hard_labels_are_what_the_model_predicts(setting, play):
    federation, method = setting(), SelectiveFD(labels="hard", client_selector="none")
    engine = play(method, federation, 0).engine
    for k, table in learned(method, engine, [0, 1]).items():
        net = load(federation.build(k), engine.memories[k]["model"]).eval()
        assert table["hard"].dtype == torch.int64
        assert torch.equal(table["hard"], net(federation.public.inputs).argmax(1))


@pytest.mark.parametrize("ce_on", ["none", "public"])
def test_hard_labels_are_learnt_by_cross_entropy(ce_on, setting, play):
    federation, kept = setting(), [0, 2, 3, 6, 7, 9]
    method = Written(kept=tuple(kept), labels="hard", ce_on=ce_on)
    found = play(method, federation, 1).engine.memories[1]["model"]
    start = play(Local(), federation, 1).engine.memories[1]["model"]
    x, y, voted = federation.public.inputs, federation.public.labels, written().argmax(1)
    survives = torch.isin(torch.arange(PUBLIC), torch.tensor(kept))
    samples = torch.tensor(kept) if ce_on == "none" else torch.arange(PUBLIC)

    def loss(net, rows):
        rows = samples[rows]
        logits = net(x[rows])
        each = survives[rows] * F.cross_entropy(logits, voted[rows], reduction="none")
        return (each + (ce_on == "public") * F.cross_entropy(logits, y[rows], reduction="none")).mean()

    assert close(found, steps_by_hand(federation, 1, start, len(samples), one_epoch(1), loss))


# Other networks, and the contract


@pytest.mark.parametrize("options", [{}, KNFU, {"labels": "hard"}])
def test_networks_may_differ_and_be_wider(options, setting, small, play):
    nets = [small, lambda: small(batch_norm=True), lambda: nn.Linear(4, 3), small]
    federation = setting(networks=nets)
    federation.check(SelectiveFD(**options))
    played = play(SelectiveFD(**options), federation, 2)
    assert set(played.engine.memories[2]["model"]) == {"weight", "bias"}
    space = LabelSpace((("private", 3), ("public", 2)))
    wide = play(SelectiveFD(**options), setting(networks=[lambda: nn.Linear(4, 5)], space=space), 2)
    assert not any(r.quarantined for r in [*played.rounds, *wide.rounds])


@pytest.mark.parametrize(
    ("method", "which"),
    [
        (quick(SelectiveFD), slice(2)),
        (SelectiveFD(**KNFU), slice(1)),
        (SelectiveFD(labels="hard", tau_server=1.0), slice(1)),
    ],
)
def test_it_keeps_the_contract(method, which):
    for federation in small_settings()[which]:
        check_method(method, federation)


def test_the_gate_counts_all_of_the_rounds_samples(setting, play):
    played = play(SelectiveFD(samples=4, policy="all"), setting(), 1)
    assert not played.rounds[0].quarantined


MASK = torch.tensor([True, False, True, False, False, False])
GOOD = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("labels", "body", "reason"),
    [
        ("soft", {"mask": MASK, "soft": GOOD}, None),
        ("soft", {"mask": torch.zeros(6, dtype=torch.bool), "soft": torch.zeros(0, 3)}, None),
        ("soft", {"mask": MASK, "soft": GOOD[:1]}, r"soft has the shape \(1, 3\), not \(2, 3\)"),
        ("soft", {"mask": MASK, "soft": GOOD[:, :2]}, r"soft has the shape \(2, 2\), not \(2, 3\)"),
        ("soft", {"mask": MASK, "soft": GOOD * 0.9}, "soft has rows that do not sum to 1"),
        ("soft", {"mask": MASK, "soft": GOOD * torch.nan}, "soft is not finite"),
        ("soft", {"mask": MASK, "soft": torch.tensor([[1.5, -0.5, 0]] * 2)}, "soft has numbers outside"),
        ("soft", {"mask": MASK[:5], "soft": GOOD}, r"mask has the shape \(5,\), not \(6,\)"),
        ("soft", {"mask": torch.cat([MASK, MASK]), "soft": torch.cat([GOOD, GOOD])}, r"mask has the shape \(12,\)"),
        ("soft", {"mask": MASK.long(), "soft": GOOD}, "mask is int64, not bool"),
        ("soft", {"mask": MASK, "hard": torch.tensor([0, 1])}, "is not a table of 'mask' and 'soft'"),
        ("soft", {"mask": MASK, "soft": GOOD, "more": 1}, "is not a table of 'mask' and 'soft'"),
        ("soft", GOOD, "is not a table of 'mask' and 'soft'"),
        ("hard", {"mask": MASK, "hard": torch.tensor([0, 2])}, None),
        ("hard", {"mask": MASK, "hard": torch.tensor([0, 3])}, "hard has numbers outside 0 to 2"),
        ("hard", {"mask": MASK, "hard": torch.tensor([-1, 0])}, "hard has numbers outside 0 to 2"),
        ("hard", {"mask": MASK, "hard": torch.tensor([0, 1, 1])}, r"hard has the shape \(3,\), not \(2,\)"),
        ("hard", {"mask": MASK, "hard": torch.tensor([0.0, 1.0])}, "hard is float32, not int64"),
    ],
)
def test_what_a_client_may_send(labels, body, reason, setting, play):
    method = SelectiveFD(labels=labels, samples=6)
    fed = play(method, setting(), 0).engine.open(method, 1)
    found = refusal({"answers": body}, method.expects(Message("learn", 0, {}), fed))
    assert found is None if reason is None else re.search(f"^answers {reason}", found or "")
    assert method.expects(Message("tune", 0, {}), fed) == {}


# Refusals


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"client_selector": "label_match"}, r"client_selector = 'label_match' needs labels"),
        ({"ce_on": "public"}, r"ce_on = 'public' needs labels"),
    ],
)
def test_missing_labels_are_refused_before_the_first_round(options, key, setting, play):
    with pytest.raises(UsageError, match=rf"selective-fd\.{key}"):
        play(SelectiveFD(**options), setting(labelled=False), 0)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("q", -0.1),
        ("width", -1.0),
        ("width", "mean"),
        ("width", math.inf),
        ("lam", 0.0),
        ("auxiliary", 0),
        ("known_share", 0.0),
        ("known_share", 1.0),
        ("known_least", 0),
        ("tau_server", 2.1),
        ("max_entropy", 1.5),
        ("client_selector", "kulsiv"),
    ],
)
def test_limits_are_declared(option, value):
    with pytest.raises(UsageError, match=rf"selective-fd\.{option} = {value!r} must be"):
        SelectiveFD(**{option: value})


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"client_selector": "none", "q": 0.5}, "q has no effect without client_selector = 'kulsif'"),
        ({"max_entropy": 0.2}, "max_entropy has no effect without server_selector = 'entropy'"),
        ({"server_selector": "none", "tau_server": 1.0}, "tau_server has no effect without server_selector = 'l1'"),
        ({"temperature": 2.0}, "temperature has no effect without kd = 'kl'"),
        ({"labels": "hard", "kd": "kl"}, "kd has no effect without labels = 'soft'"),
        ({"policy": "fixed"}, "policy has no effect without samples"),
    ],
)
def test_idle_options_are_refused(options, key):
    with pytest.raises(UsageError, match=rf"selective-fd\.{key}"):
        SelectiveFD(**options)
