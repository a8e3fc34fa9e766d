"""KnFu: what each client is sent, what the server remembers, what travels, and where it is something simpler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedalloy import simulate
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.rng import generator
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method
from fedalloy.data.label_space import LabelSpace
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message
from fedalloy.federation.participation import Participation
from fedalloy.methods import Local
from fedalloy.methods.knfu import KnFu
from fedalloy.train.fit import LocalWork

WORK = LocalWork(epochs=1, batch=4, lr=0.1)


def public(labelled=True, n=10):
    x = torch.randn(n, 4, generator=generator(7, "public"))
    return PublicSet(Samples(x, torch.arange(n) % 3, torch.arange(n)), labelled=labelled, holder="all")


@pytest.fixture
def setting(small_setting):
    def make(sizes=(9, 12, 7, 10), labelled=True, **options):
        return small_setting(list(sizes), public=public(labelled), **{"work": WORK, "seed": 2, **options})

    return make


def near(a, b, atol):
    return all(torch.allclose(a[name], b[name], rtol=0, atol=atol) for name in a)


def test_each_client_is_sent_its_own_mixture(fake):
    # Two samples each, whose means are the worked EPDs (.9, .1), (.8, .2), (.3, .7); ids with gaps.
    soft = {
        1: torch.tensor([[0.95, 0.05], [0.85, 0.15]]),
        2: torch.tensor([[0.7, 0.3], [0.9, 0.1]]),
        4: torch.tensor([[0.2, 0.8], [0.4, 0.6]]),
    }
    replies = [Message("learn", k, {"soft": answer}) for k, answer in soft.items()]
    sent, notes = KnFu().fuse(replies, fake({}, sizes=(1, 1, 1, 1, 1)))
    w = torch.tensor([[0.908915, 0.090891, 0.000194], [0.090852, 0.908520, 0.000628], [0.028136, 0.088351, 0.883513]])
    for row, k in enumerate(soft):
        wanted = sum(w[row, column] * answer for column, answer in enumerate(soft.values()))
        assert list(sent[k]) == ["soft"]
        assert sent[k]["soft"].dtype == torch.float32
        assert torch.allclose(sent[k]["soft"], wanted, atol=2e-6)
    here = torch.tensor([1, 2, 4])
    assert torch.allclose(notes["weights"][here][:, here], w.double(), atol=1e-6)
    assert torch.allclose(notes["epd"][here], torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]).double(), atol=1e-6)
    for name in ("weights", "epd"):
        assert notes[name][[0, 3]].eq(0).all()
    assert notes["weights"][:, [0, 3]].eq(0).all()


def test_the_other_direction_of_eq_6(fake):
    soft = torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.3, 0.7]]])
    replies = [Message("learn", k, {"soft": answer}) for k, answer in enumerate(soft)]
    _, notes = KnFu(direction="other_to_own").fuse(replies, fake({}, sizes=(1, 1, 1)))
    near_one, far = 1 / 0.044403**2, 1 / 1.032553**2  # d_01 = KL(p_1 || p_0), d_02 = KL(p_2 || p_0)
    assert notes["weights"][0, 2].item() == pytest.approx(far / (11 * near_one + far), rel=1e-4)


def test_the_server_remembers_the_last_round_only(setting, play):
    turns = Participation(policy="trace", trace=((0, 1, 3), (2,)))
    played = play(KnFu(), setting(participation=turns), 2)
    first, second = played.states[1], played.states[2]
    assert played.states[0].body == {}
    assert first["weights"].shape == (4, 4)
    assert first["epd"].shape == (4, 3)
    assert first["weights"].sum(1).tolist() == pytest.approx([1, 1, 0, 1])
    assert first["epd"].sum(1).tolist() == pytest.approx([1, 1, 0, 1], abs=1e-6)
    assert second["weights"].nonzero().tolist() == [[2, 2]]  # alone, a client distils itself
    assert second["weights"][2, 2] == 1


def test_widths_come_from_the_answers(setting, play):
    space = LabelSpace((("private", 3), ("public", 2)))
    wide = setting(networks=[lambda: nn.Linear(4, 5)], space=space)
    assert play(KnFu(), wide, 1).states[-1]["epd"].shape == (4, 5)


@pytest.mark.parametrize("direction", ["own_to_other", "other_to_own"])
def test_without_fine_tuning_it_is_local_bit_for_bit(direction, setting, small, play):
    federation = setting(
        networks=[lambda: small(batch_norm=True, dropout=0.3)],
        participation=Participation(policy="fraction", fraction=0.5),
    )
    alone = play(Local(), federation, 3).engine.memories
    found = play(KnFu(tune_epochs=0, direction=direction), federation, 3).engine.memories
    assert found.keys() == alone.keys()
    assert all(equal(found[k], alone[k]) for k in alone)
    assert not all(equal(found[k], m) for k, m in play(KnFu(), federation, 3).engine.memories.items())


def test_with_a_huge_beta_clients_distil_themselves(setting, play):
    # A network without dropout that is taught its own answers has nothing to learn: it stays where Local leaves it.
    federation = setting()
    alone = play(Local(), federation, 2).engine.memories
    own, mixed = (play(KnFu(beta=b, ce_on="none"), federation, 2).engine.memories for b in (1e15, 10.0))
    assert all(near(own[k]["model"], alone[k]["model"], 1e-6) for k in alone)
    assert not any(near(mixed[k]["model"], alone[k]["model"], 1e-5) for k in alone)
    labels = play(KnFu(beta=1e15), federation, 2).engine.memories
    assert not near(labels[0]["model"], alone[0]["model"], 1e-3)


def test_lost_replies_are_not_fused(setting, play):
    lossy = play(KnFu(), setting(participation=Participation(late_drop=0.5)), 4)
    assert any(0 < len(r.lost) < 4 for r in lossy.rounds)
    for state, r in zip(lossy.states[1:], lossy.rounds, strict=True):
        if len(r.lost) < 4:
            assert set(state["weights"].sum(1).nonzero().flatten().tolist()) == set(range(4)) - r.lost
            assert r.ledger.down["logits"] == (4 - len(r.lost)) * 10 * 3 * 4


def test_networks_may_differ(setting, small, play):
    nets = [small, lambda: small(batch_norm=True), lambda: nn.Linear(4, 3), small]
    federation = setting(networks=nets)
    federation.check(KnFu())
    played = play(KnFu(), federation, 2)
    assert played.states[-1]["weights"].sum(1).tolist() == pytest.approx([1] * 4)
    assert set(played.engine.memories[2]["model"]) == {"weight", "bias"}


@pytest.mark.parametrize("ce_on", ["local", "none"])
def test_labels_of_the_public_set_are_needed_for_eq_10_only(ce_on, setting, play):
    played = play(KnFu(ce_on=ce_on), setting(labelled=False), 1)
    assert len(played.engine.memories) == 4
    with pytest.raises(UsageError, match=r"knfu\.ce_on = 'public' needs labels"):
        play(KnFu(), setting(labelled=False), 0)


def test_four_kilobytes_travel_each_way_for_each_client():
    # 100 public samples, 10 classes, 4 bytes: the cost does not know the networks' size.
    experiment = {
        "method": "knfu",
        "data": "tiny",
        "model": "mlp",
        "public": {"samples": 100, "labelled": True},
        "partition": {"clients": 3},
        "rounds": 1,
    }
    run = simulate(experiment)
    assert run.views == ("personal",)
    for way in ("up", "down"):
        bytes_ = dict(run.rounds[0]["bytes"][way])
        del bytes_["framing"]
        assert bytes_ == {"logits": 3 * 4000}


def test_it_keeps_the_contract():
    check_method(KnFu())


@pytest.mark.parametrize(("option", "value"), [("beta", -1.0), ("beta", float("inf")), ("direction", "both")])
def test_limits_are_declared(option, value):
    with pytest.raises(UsageError, match=rf"knfu\.{option} = {value!r} must be"):
        KnFu(**{option: value})


def test_what_its_server_does_not_use_is_refused():
    with pytest.raises(UsageError, match=r"knfu does not use aggregation\.combine = 'median'"):
        KnFu(aggregation=Aggregation(combine="median"))
