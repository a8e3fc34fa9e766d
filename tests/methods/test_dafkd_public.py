"""DaFKD with public rows for generated samples: steps by hand, no generator anywhere, and what it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedalloy import simulate
from fedalloy.check.method import check_method, small_settings
from fedalloy.data.public import PublicSet
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, act, methods
from fedalloy.methods import DaFKD, DaFKDFeatures, DaFKDNoCorrelation, DaFKDPredictions, DaFKDScores
from fedalloy.train.fit import LocalWork, batches, params

MLP, WITH_BATCH_NORM = small_settings()
QUICK = {"pseudo_samples": "public", "distil_batch": 4, "distil_steps": 3}
FORMS = [DaFKD, DaFKDNoCorrelation, DaFKDScores, DaFKDPredictions]


def close(a, b, atol=1e-6):
    return all(torch.allclose(t, b[name], rtol=0, atol=atol) for name, t in a.items())


def shifted(x, stream):
    """An augmentation that draws nothing."""
    return x + 1


@pytest.mark.parametrize(
    ("shared", "negatives", "augment"), [(None, None, None), (0, None, None), (None, 7, None), (None, None, shifted)]
)
def test_three_steps_by_hand(shared, negatives, augment):
    """L_J = CE(x, y) + L_adv of real rows and as many public ones, or as many as `generator_batch` says.

    What augments the client's own samples augments the public ones too.
    """
    work = LocalWork(work="fixed_steps", steps=3, batch=4, lr=0.1)
    federation = replace(MLP, work=work, augment=augment)
    method = DaFKD(**QUICK, shared_layers=shared, generator_batch=negatives)
    me = federation.client(0, 1, {})
    two = method.two_heads(me)
    sent = {"model": params(two.net)}
    start, noise, public = two.own_weights(), me.rng("generator"), federation.public.inputs
    for rows in batches(me.n, 4, 3, me.rng("batches")):
        x, y = me.train.take(rows)
        n = negatives or len(x)
        made = public[torch.randint(len(public), (n,), generator=noise)]
        x, made = (x + 1, made + 1) if augment else (x, made)
        trunk = two.own if shared == 0 else two.net.features
        real, fake = (two.head(trunk(z))[:, 0].sigmoid() for z in (x, made))
        loss = F.cross_entropy(two.net(x), y) - (real.log().sum() + (1 - fake).log().sum()) / (len(x) + n)
        gradients = torch.autograd.grad(loss, list(two.parameters()))
        with torch.no_grad():
            for p, gradient in zip(two.parameters(), gradients, strict=True):
                p -= 0.1 * gradient
    answer = act(method, me, Message("train", 0, sent))
    assert set(answer.body) == {"model", "head", "n"}
    assert close(answer.body["model"], params(two.net))
    assert close(answer.body["head"], two.own_weights())
    assert not close(answer.body["head"], start)


@pytest.mark.parametrize("cls", FORMS)
def test_the_average_learns_from_all_public_rows(cls, play, monkeypatch):
    seen = []
    real = DaFKD.distilled
    monkeypatch.setattr(
        DaFKD, "distilled", lambda self, fed, model, x, t: seen.append(x) or real(self, fed, model, x, t)
    )
    played = play(cls(**QUICK), WITH_BATCH_NORM, 2)
    assert [torch.equal(x, WITH_BATCH_NORM.public.inputs) for x in seen] == [True, True]
    assert "generator" not in played.states[-1].body
    assert all("generator" not in m for m in played.engine.memories.values())
    assert played.rounds[-1].ledger.clients.generator_forward == 0


@pytest.mark.parametrize("cls", [DaFKDScores, DaFKDPredictions])
@pytest.mark.parametrize("shared", [None, 0])
def test_with_private_heads_a_run_ends_as_with_open_ones(cls, shared, play):
    open_, private = (play(c(**QUICK, shared_layers=shared), WITH_BATCH_NORM, 2) for c in (DaFKD, cls))
    for a, b in zip(open_.states, private.states, strict=True):
        assert close(a["model"], b["model"])


def test_it_sends_no_generator(play):
    """So that its messages are those of FedAvg, and its replies larger by the heads."""
    ledger = {
        name: play(method, MLP, 1).rounds[0].ledger
        for name, method in {"fedavg": methods["fedavg"](), "dafkd": DaFKD(**QUICK)}.items()
    }
    assert ledger["dafkd"].down == ledger["fedavg"].down
    head = sum(t.numel() for t in DaFKD(**QUICK).two_heads(Serial(MLP).open(DaFKD(**QUICK), 0)).own_weights().values())
    active = len(MLP.active(1))
    assert ledger["dafkd"].up["weights"] == ledger["fedavg"].up["weights"] + 4 * head * active
    assert "generator" not in DaFKD(**QUICK).leaves()
    assert "generator" in DaFKD().leaves()


@pytest.mark.parametrize(
    "method",
    [
        DaFKD(**QUICK, shared_layers=0),
        DaFKD(**QUICK, variant="reference"),
        DaFKDNoCorrelation(**QUICK),
        DaFKDScores(**QUICK),
        DaFKDPredictions(**QUICK),
    ],
    ids=lambda method: f"{method.name} {method.variant}",
)
def test_it_keeps_the_contract(method):
    check_method(method, MLP)


@pytest.mark.parametrize("engine", ["pool", "threads"])
def test_engines_give_the_same_bits(engine):
    experiment = {
        "rounds": 2,
        "data": {"name": "tiny", "size": 8},
        "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
        "model": {"name": "mlp"},
        "public": {"data": "own", "samples": 40},
        "method": {"name": "dafkd", **QUICK},
    }
    plain, other = (simulate({**experiment, "engine": name}) for name in ("serial", engine))
    for a, b in zip(plain.rounds, other.rounds, strict=True):
        assert a["views"] == b["views"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise", 8),
        ("generator_width", 8),
        ("generator_kind", "unconditional"),
        ("generator_lr", 0.1),
        ("generator_weight_decay", 0.1),
        ("generator_adam", "gan"),
        ("saturating", False),
        ("pseudo_from", "old"),
        ("distil_samples", 8),
    ],
)
def test_options_of_a_generator_are_refused(name, value):
    with pytest.raises(UsageError, match=rf"^dafkd\.{name} has no effect without pseudo_samples = 'generated'"):
        DaFKD(pseudo_samples="public", **{name: value})


def test_a_generator_of_features_cannot_be_replaced():
    with pytest.raises(UsageError, match=r"^dafkd-features\.pseudo_samples = 'public'"):
        DaFKDFeatures(pseudo_samples="public")


def test_the_public_set_must_be_there_and_with_the_clients():
    method, public = DaFKD(**QUICK), MLP.public
    with pytest.raises(UsageError, match=r"dafkd needs a public set; add one under \[public\]"):
        replace(MLP, public=None).check(method)
    at_server = PublicSet(public.samples, labelled=False, holder="server")
    with pytest.raises(UsageError, match=r"dafkd needs clients that hold .* public\.holder = 'all'"):
        replace(MLP, public=at_server).check(method)
    replace(MLP, public=None).check(DaFKD())  # nothing is needed if samples are generated
    replace(MLP, public=PublicSet(public.samples, labelled=False, holder="all")).check(method)
