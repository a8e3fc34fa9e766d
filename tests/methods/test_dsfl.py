"""DS-FL: the sharpening, the server's own model, what travels, and where it is something simpler."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedalloy import simulate
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.rng import generator
from fedalloy.base.tree import equal
from fedalloy.check.method import check_method
from fedalloy.check.probe import small_settings
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import SERVER
from fedalloy.methods import Local
from fedalloy.methods.dsfl import DSFL, sharpened
from fedalloy.train.fit import LocalWork, batches, load

WORK = LocalWork(epochs=1, batch=4, lr=0.1)


def public(labelled=False, n=10, holder="all"):
    x = torch.randn(n, 4, generator=generator(7, "public"))
    return PublicSet(Samples(x, torch.arange(n) % 3, torch.arange(n)), labelled=labelled, holder=holder)


@pytest.fixture
def setting(small_setting):
    def make(sizes=(9, 12, 7, 10), **options):
        return small_setting(list(sizes), **{"public": public(), "work": WORK, "seed": 2, **options})

    return make


def answered(method, engine, clients):
    """The answers of round 1, with the clients' memories moved on by their local training."""
    return torch.stack([r["soft"] for r in engine.open(method, 1).ask("learn", clients)])


def test_the_worked_vector():
    found = sharpened(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64), 0.1)
    assert found[0].tolist() == pytest.approx([0.843795, 0.114195, 0.042010], abs=5e-7)


def test_a_large_temperature_gives_the_uniform_distribution_and_not_the_mean():
    found = sharpened(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64), 1e9)
    assert found[0].tolist() == pytest.approx([1 / 3] * 3, abs=1e-9)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6, unique=True))
def test_a_small_temperature_lowers_the_entropy_and_keeps_the_order(raw):
    mean = torch.tensor([raw], dtype=torch.float64)
    mean = mean / mean.sum()
    cold = sharpened(mean, 0.01 * (mean.max() - mean.sort().values[0, -2]).item() + 1e-6)

    def entropy(p):
        return -torch.special.xlogy(p, p).sum().item()

    assert entropy(cold) <= entropy(mean) + 1e-12
    assert cold.argmax() == mean.argmax()
    assert cold.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(("ensemble", "wanted"), [("era", [0.843795, 0.114195, 0.042010]), ("mean", [0.5, 0.3, 0.2])])
def test_answers_are_averaged_before_they_are_sharpened(ensemble, wanted):
    soft = torch.tensor([[[0.8, 0.1, 0.1]], [[0.2, 0.5, 0.3]]])
    found = DSFL(ensemble=ensemble).global_labels(soft)
    assert found.dtype == torch.float32
    assert found[0].tolist() == pytest.approx(wanted, abs=5e-7)


# Three clients say (0.8, 0.1, 0.1), (0.2, 0.5, 0.3) and (0.6, 0.3, 0.1), a liar (0, 0, 1).
#   median of each: (0.2 + 0.6) / 2, (0.1 + 0.3) / 2, (0.1 + 0.3) / 2, which sum to 0.8; trimmed by a quarter: the same
#   krum by a quarter: the liar goes; the mean of the others
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"combine": "median"}, [0.5, 0.25, 0.25]),
        ({"combine": "trimmed", "trim": 0.25}, [0.5, 0.25, 0.25]),
        ({"combine": "trimmed"}, [0.4, 0.225, 0.375]),  # a fifth of four is nobody
        ({"combine": "krum", "trim": 0.25}, [1.6 / 3, 0.9 / 3, 0.5 / 3]),
    ],
    ids=str,
)
def test_what_one_client_does_to_the_answers_can_be_bounded(options, wanted):
    soft = torch.tensor([[[0.8, 0.1, 0.1]], [[0.2, 0.5, 0.3]], [[0.6, 0.3, 0.1]], [[0.0, 0.0, 1.0]]])
    rule = Aggregation(**options)
    plain = DSFL(ensemble="mean", aggregation=rule).global_labels(soft)
    assert plain.dtype == torch.float32
    assert plain[0].tolist() == pytest.approx(wanted, abs=1e-6)
    sharp = DSFL(aggregation=rule).global_labels(soft)
    assert torch.allclose(sharp, sharpened(torch.tensor([wanted]), 0.1), atol=1e-6)


@pytest.mark.parametrize("combine", ["median", "trimmed"])
def test_where_all_contradict_each_other_every_class_is_equally_probable(combine):
    """Each class is a certainty of one client and nothing to the others: no number between the extremes is left."""
    soft = torch.eye(4)[:3, None]
    trim = {} if combine == "median" else {"trim": 0.4}
    found = DSFL(aggregation=Aggregation(combine=combine, **trim)).global_labels(soft)
    assert found[0].tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("ensemble", ["era", "mean"])
def test_by_default_it_is_the_plain_mean_to_the_bit(ensemble):
    soft = torch.randn(7, 50, 10, generator=generator(1, "answers")).softmax(2)
    mean = soft.double().mean(0)
    wanted = (sharpened(mean, 0.1) if ensemble == "era" else mean).float()
    assert torch.equal(DSFL(ensemble=ensemble).global_labels(soft), wanted)


def test_clients_and_server_learn_from_the_same_labels_by_hand(setting, play):
    federation, method = setting(), DSFL()
    played = play(method, federation, 1)
    engine = play(method, federation, 0).engine
    target = (answered(method, engine, range(4)).mean(0) / 0.1).softmax(1)
    x = federation.public.inputs
    starts = {SERVER: played.states[0]["model"], 1: engine.memories[1]["model"]}
    ends = {SERVER: played.states[1]["model"], 1: played.engine.memories[1]["model"]}
    for who, start in starts.items():
        net = load(federation.build(who), start).train()
        for rows in batches(10, 4, 3, generator(2, "tune", 1, who)):
            net.zero_grad()
            (-(target[rows] * F.log_softmax(net(x[rows]), 1)).sum(1).mean()).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
        for name, value in net.state_dict().items():
            assert torch.allclose(ends[who][name], value, rtol=0, atol=1e-6), (who, name)


def test_the_server_has_a_model_of_its_own_that_is_never_sent(setting, small, play):
    federation = setting(server=lambda: small(batch_norm=True, dropout=0.2), networks=[small])
    method = DSFL()
    federation.check(method)
    played = play(method, federation, 2)
    assert "norm.weight" in method.models(played.states[-1])["global"]
    for state, r in zip(played.states[1:], played.rounds, strict=True):
        assert list(state.body) == ["model"]
        assert {*r.ledger.down, *r.ledger.up} == {"logits", "framing"}
        assert r.ledger.server.steps == 3  # 10 public samples in batches of 4
    assert not equal(played.states[0]["model"], played.states[1]["model"])


def test_who_learns_does_not_depend_on_the_servers_model(setting, small, play):
    one, other = (
        play(DSFL(), setting(networks=[small], server=server), 2).engine.memories
        for server in (None, lambda: nn.Linear(4, 3))
    )
    assert all(equal(one[k], other[k]) for k in one)


def test_without_fine_tuning_it_is_local_bit_for_bit(setting, small, play):
    federation = setting(
        networks=[lambda: small(batch_norm=True, dropout=0.3)],
        participation=Participation(policy="fraction", fraction=0.5),
    )
    alone = play(Local(), federation, 3).engine.memories
    played = play(DSFL(tune_epochs=0), federation, 3)
    assert played.engine.memories.keys() == alone.keys()
    assert all(equal(played.engine.memories[k], alone[k]) for k in alone)
    assert equal(played.states[0]["model"], played.states[3]["model"])


def test_sharpened_labels_teach_otherwise_than_the_mean(setting, play):
    era, mean, flat = (
        play(DSFL(**options), setting(), 1).engine.memories[0]["model"]
        for options in ({}, {"ensemble": "mean"}, {"temperature": 100.0})
    )
    assert not equal(era, mean)
    assert not equal(mean, flat)


def test_lost_replies_do_not_count(setting, play):
    federation = setting(participation=Participation(late_drop=0.5))
    played = play(DSFL(), federation, 4)
    assert any(0 < len(r.lost) < 4 for r in played.rounds)
    for before, after, r in zip(played.states, played.states[1:], played.rounds, strict=False):
        assert r.ledger.down["logits"] == (4 - len(r.lost)) * 10 * 3 * 4
        assert equal(before["model"], after["model"]) == (len(r.lost) == 4)


def test_networks_may_differ(setting, small, play):
    nets = [small, lambda: small(batch_norm=True), lambda: nn.Linear(4, 3), small]
    federation = setting(networks=nets, server=lambda: nn.Linear(4, 3))
    federation.check(DSFL())
    played = play(DSFL(samples=6), federation, 2)
    assert set(played.engine.memories[2]["model"]) == set(played.states[-1]["model"]) == {"weight", "bias"}


def test_labels_can_be_used_beside(setting, play):
    none, labels, own = (
        play(DSFL(ce_on=ce_on), setting(public=public(labelled=True)), 1) for ce_on in ("none", "public", "local")
    )
    assert len({float(p.engine.memories[0]["model"]["out.bias"][0]) for p in (none, labels, own)}) == 3
    assert equal(none.states[-1]["model"], labels.states[-1]["model"])  # the server's model learns from answers alone
    with pytest.raises(UsageError, match=r"ds-fl\.ce_on = 'public' needs labels"):
        play(DSFL(ce_on="public"), setting(), 0)


def test_a_public_set_of_the_servers_alone_is_refused(setting, play):
    with pytest.raises(UsageError, match=r"write public\.holder = 'all'"):
        play(DSFL(), setting(public=public(holder="server")), 1)


def test_four_kilobytes_travel_each_way_for_each_client():
    # 100 public samples, 10 classes, 4 bytes: the cost does not know the networks' size.
    experiment = {
        "method": "ds-fl",
        "data": "tiny",
        "model": "mlp",
        "public": {"samples": 100},
        "partition": {"clients": 3},
        "rounds": 1,
    }
    run = simulate(experiment)
    assert set(run.views) == {"personal", "global"}
    for way in ("up", "down"):
        bytes_ = dict(run.rounds[0]["bytes"][way])
        del bytes_["framing"]
        assert bytes_ == {"logits": 3 * 4000}


def test_the_papers_schedule_by_name(setting, play):
    paper = DSFL(variant="paper")
    assert (paper.samples, paper.tune_epochs, paper.tune_batch, paper.tune_lr) == (1000, 5, 50, 0.1)
    played = play(DSFL(variant="paper", samples=10, tune_batch=5), setting(), 1)
    assert played.rounds[0].ledger.server.steps == 5 * 2  # the server's model learns by the same schedule
    assert DSFL(variant="paper", tune_steps=3).tune_steps == 3


def test_it_keeps_the_contract():
    check_method(DSFL())
    check_method(DSFL(aggregation=Aggregation(combine="median"), samples=6), small_settings()[1])


@pytest.mark.parametrize(
    ("option", "value"), [("temperature", 0.0), ("ensemble", "sa"), ("kd_weight", -0.5), ("tune_epochs", -1)]
)
def test_limits_are_declared(option, value):
    with pytest.raises(UsageError, match=rf"ds-fl\.{option} = {value!r} must be"):
        DSFL(**{option: value})


def test_an_idle_temperature_is_refused():
    with pytest.raises(UsageError, match=r"ds-fl\.temperature has no effect without ensemble = 'era'"):
        DSFL(ensemble="mean", temperature=0.5)


def test_what_its_server_does_not_use_is_refused():
    with pytest.raises(UsageError, match=r"ds-fl does not use aggregation\.weights = 'uniform'"):
        DSFL(aggregation=Aggregation(weights="uniform"))
