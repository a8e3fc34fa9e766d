"""FedCOG: the label plan and the divergences by hand, generation and steps written plainly, where it is FedAvg."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedalloy.base.tree import digest, equal
from fedalloy.check.method import check_method, small_settings
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, act, initial
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Site
from fedalloy.methods import FedAvg, FedCOG
from fedalloy.methods.fedcog import label_plan, missing, reference_js
from fedalloy.nets.models import FeatureNet, create
from fedalloy.train.fit import LocalWork, batches, frozen, load, params
from fedalloy.train.losses import js

TINY = {"generation_steps": 3, "images": 12}
BY_KD = {"weighting": "lambda_kd"}


def plain():
    return FeatureNet(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Sequential(nn.Linear(5, 3)), (5,))


def rich():
    """BatchNorm and dropout on both sides of the cut, where a second pass would leave a trace."""
    features = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.ReLU())
    head = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    return FeatureNet(features, head, (5,))


@pytest.fixture
def skewed(small_setting):
    return small_setting(
        [5, 8, 11, 7],
        networks=[plain],
        work=LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.9, weight_decay=1e-3),
        participation=Participation(policy="fraction", fraction=0.5),
    )


@pytest.fixture
def labelled(rows, small_setting):
    """One client with these labels, and the same random inputs each time."""

    def make(labels, **options):
        x = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(1))
        data = rows(x.tolist(), labels)
        return small_setting([], sites=[Site(data, data)], networks=[plain], **options)

    return make


def trained(method, setting, memory, t=2, start=5):
    me = setting.client(0, t, memory)
    return act(method, me, Message("train", 0, {"model": params(initial(plain, start))})), me


# --- the label plan ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "images", "expected"),
    [
        ([10, 4, 0, 10], 256, [0, 96, 160, 0]),
        ([0, 7, 0], 256, [128, 0, 128]),
        ([5, 4, 3], 256, [0, 85, 170]),  # 256/3 and 512/3: together 255
        ([3, 3, 3], 256, [0, 0, 0]),
        ([5, 0, 1], 2, [0, 1, 0]),
    ],
)
def test_the_label_plan_by_hand(counts, images, expected):
    assert label_plan(missing(torch.tensor(counts)), images).tolist() == expected


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=100), st.integers(2, 512))
def test_no_more_images_than_allowed_and_none_of_the_most_frequent_class(counts, images):
    plan = label_plan(missing(torch.tensor(counts)), images)
    assert plan.min() >= 0
    assert plan.sum() <= images
    assert plan[torch.tensor(counts) == max(counts)].sum() == 0


# --- the divergences --------------------------------------------------------------------------------------------------


def logits_of(*probabilities):
    return torch.tensor([probabilities], dtype=torch.float64).log()


def test_js_of_opposites_is_ln_2():
    one, other = torch.tensor([[200.0, 0.0]]), torch.tensor([[0.0, 200.0]])
    assert js(one, other).item() == pytest.approx(math.log(2), abs=1e-6)
    assert js(one, one).item() == 0.0


def test_js_by_hand():
    # P = (.9, .1), Q = (.5, .5), M = (.7, .3).
    p = 0.9 * math.log(0.9 / 0.7) + 0.1 * math.log(0.1 / 0.3)
    q = 0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.3)
    assert js(logits_of(0.9, 0.1), logits_of(0.5, 0.5)).item() == pytest.approx((p + q) / 2, abs=1e-9)


@given(st.integers(0, 10**6), st.floats(0.1, 60.0))
def test_js_is_symmetric_and_between_0_and_ln_2(seed, spread):
    one, other = spread * torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    value = js(one, other).item()
    assert -1e-12 <= value <= math.log(2) + 1e-12
    assert js(other, one).item() == pytest.approx(value, abs=1e-12)
    assert js(one + 3.0, other).item() == pytest.approx(value, abs=1e-9)  # of probabilities, not of logits


def test_the_references_divergence_by_hand():
    # KL(M || P) and KL(M || Q) with P = (.9, .1), Q = (.5, .5), M = (.7, .3).
    p = 0.7 * math.log(0.7 / 0.9) + 0.3 * math.log(0.3 / 0.1)
    q = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
    assert reference_js(logits_of(0.9, 0.1), logits_of(0.5, 0.5)).item() == pytest.approx((p + q) / 2, abs=1e-9)


def test_the_references_divergence_is_cut_off_and_loses_its_gradient():
    # Clamped, opposites would be 0.5 ln(.5/.99) + 0.5 ln(.5/.01) = 1.614 apart.
    one, other = torch.tensor([[50.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 50.0]])
    reference_js(one, other).backward()
    assert reference_js(one, other).item() == 1.0
    assert torch.count_nonzero(one.grad) == 0
    near = torch.tensor([[3.0, 0.0]], requires_grad=True)
    js(near, other).backward()
    assert torch.count_nonzero(near.grad) > 0


# --- the images -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disagree", ["js", "reference"])
def test_images_are_made_as_written(disagree, labelled):
    me = labelled([0, 0, 0, 1]).client(0, 2, {})
    glob, prev = (frozen(initial(plain, seed)) for seed in (5, 6))
    plan = torch.tensor([0, 4, 7])
    method = FedCOG(disagree=disagree, lambda_dis=0.7, generation_steps=5, generation_lr=0.1)
    images, answers = method.generated(me, glob, prev, plan)

    x = torch.randn(11, 4, generator=me.rng("images")).requires_grad_()
    y = torch.tensor([1] * 4 + [2] * 7)
    optimiser = torch.optim.Adam([x], lr=0.1, betas=(0.5, 0.9))
    for _ in range(5):
        p, q = glob(x).softmax(1), prev(x).softmax(1)
        m = (p + q) / 2
        if disagree == "js":
            apart = ((p * (p / m).log()).sum(1) + (q * (q / m).log()).sum(1)).mean() / 2
        else:  # nothing comes near the clamps here
            apart = ((m * (m / p).log()).sum(1) + (m * (m / q).log()).sum(1)).mean() / 2
        loss = F.cross_entropy(glob(x), y) + 0.7 * (1 - apart)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert torch.allclose(images, x.detach(), atol=1e-5)
    assert not images.requires_grad
    assert torch.equal(answers, glob(images).detach())  # of the images as they are returned, not of a step before
    assert me.meter.steps == 5


def test_images_show_what_they_should_to_the_global_model_and_not_to_the_previous_one(labelled):
    me = labelled([0, 0, 0, 1]).client(0, 2, {})
    glob, prev = (frozen(initial(plain, 5)) for _ in range(2))
    for net in (glob, prev):
        net.head[0].weight.data *= 8  # surer than an untrained network
    prev.features[0].weight.data += 0.5 * torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    plan = torch.tensor([0, 40, 60])
    y = torch.arange(3).repeat_interleave(plan)
    noise = torch.randn(100, 4, generator=me.rng("images"))
    found = {}
    for weight in (0.0, 1.0):
        method = FedCOG(lambda_dis=weight, generation_steps=100, generation_lr=0.1)
        images, answers = method.generated(me, glob, prev, plan)
        assert F.cross_entropy(answers, y) < 0.2 < 1 < F.cross_entropy(glob(noise), y)
        found[weight] = js(prev(images), answers).item()
    assert found[1.0] > found[0.0] + 0.1


def test_frozen_models_do_not_change(skewed, play, monkeypatch):
    nets = []

    def noted(net):
        nets.append((net, digest(net.state_dict())))
        return frozen(net)

    monkeypatch.setitem(FedCOG.train.__globals__, "frozen", noted)
    play(FedCOG(**TINY), replace(skewed, networks=[rich], participation=Participation()), 2)
    assert len(nets) == 2 * 4  # in the second round each client has two
    for net, before in nets:
        assert not net.training
        assert digest(net.state_dict()) == before


# --- local training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "a_real", "a_syn"),
    [
        ({"weighting": "lambda_kd", "lambda_kd": 0.5}, 1.0, 0.5),
        ({"weighting": "sample_ratio"}, 6 / 12, 6 / 12),  # four, two and none: two and four are lacking
    ],
)
def test_two_steps_by_hand(options, a_real, a_syn, labelled):
    setting = labelled([0, 0, 0, 0, 1, 1], work=LocalWork(work="fixed_steps", steps=2, batch=5, lr=0.1))
    method = FedCOG(images=9, generation_steps=2, generation_lr=0.5, **options)
    prev = initial(plain, 6)
    answer, me = trained(method, setting, {"model": params(prev)})

    glob = initial(plain, 5)
    images, answers = method.generated(me, frozen(initial(plain, 5)), frozen(prev), torch.tensor([0, 3, 6]))
    net = glob
    real = batches(6, 5, 2, me.rng("batches"))
    made = batches(9, 5, 2, me.rng("images/batches"))
    for _ in range(2):
        x, y = me.train.take(next(real))
        rows = next(made)
        p = answers[rows].softmax(1)
        distance = (p * (p.log() - net(images[rows]).log_softmax(1))).sum(1).mean()
        loss = a_real * F.cross_entropy(net(x), y) + a_syn * distance
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for w, g in zip(net.parameters(), gradients, strict=True):
                w -= 0.1 * g
    for name, w in net.state_dict().items():
        assert torch.allclose(answer.body["model"][name], w, rtol=0, atol=1e-6), name


def test_targets_of_the_step_with_the_least_loss(labelled):
    """A rate so large that the second step is worse than the first."""
    me = labelled([0, 0, 0, 1]).client(0, 2, {})
    glob, prev = (frozen(initial(plain, seed)) for seed in (5, 6))
    plan = torch.tensor([0, 4, 7])
    losses, answers = [], []
    for steps in (1, 2, 3):  # the answers to the images before the first, second and third step
        shorter = FedCOG(generation_steps=steps, generation_lr=30.0)
        now = torch.randn(11, 4, generator=me.rng("images"))
        if steps > 1:
            now = replace(shorter, generation_steps=steps - 1).generated(me, glob, prev, plan)[0]
        answers.append(glob(now).detach())
        y = torch.arange(3).repeat_interleave(plan)
        losses.append((F.cross_entropy(glob(now), y) + 0.1 * (1 - js(prev(now), glob(now)))).item())
    least = losses.index(min(losses))
    options = {"generation_steps": 3, "generation_lr": 30.0}
    last, best = (FedCOG(targets=t, **options).generated(me, glob, prev, plan) for t in ("last", "best"))
    assert equal({"x": last[0]}, {"x": best[0]})  # as in FedCOG's code, the images are those of the last step
    assert torch.allclose(best[1], answers[least], atol=1e-6)
    assert not torch.allclose(best[1], last[1], atol=1e-3)


def test_generated_batches_keep_or_move_batch_norms_statistics(labelled):
    setting = replace(
        labelled([0, 0, 0, 0, 1, 1]),
        networks=[rich],
        work=LocalWork(work="fixed_steps", steps=1, batch=6, lr=1e-9),
    )
    start, memory = params(initial(rich, 5)), {"model": params(initial(rich, 6))}
    found = {}
    for norms in ("keep", "update"):
        method = FedCOG(generated_norms=norms, **TINY)
        me = setting.client(0, 2, memory)
        found[norms] = act(method, me, Message("train", 0, {"model": start})).body["model"]
    plan = label_plan(missing(torch.tensor([4, 2, 0])), 12)
    glob, prev = (frozen(load(initial(rich, 5), weights)) for weights in (start, memory["model"]))
    images, _ = FedCOG(**TINY).generated(setting.client(0, 2, {}), glob, prev, plan)
    images = images[next(batches(len(images), 6, 1, setting.client(0, 2, {}).rng("images/batches")))]
    first = initial(rich, 5).features[0]
    real, made = (first(x).mean(0).detach() for x in (me.train.inputs, images))
    # From zero, a batch moves the running mean a tenth of the way: first the real one, then the generated one.
    assert torch.allclose(found["keep"]["features.1.running_mean"], 0.1 * real, atol=1e-6)
    assert torch.allclose(found["update"]["features.1.running_mean"], 0.09 * real + 0.1 * made, atol=1e-6)


def test_the_variants():
    ours, reference, kdia = (FedCOG(variant=v) for v in ("recommended", "reference", "kdia"))
    keys = ("weighting", "start_round", "disagree", "targets", "generated_norms", "unseen")
    assert [getattr(ours, key) for key in keys] == ["sample_ratio", 1, "js", "last", "keep", "skip"]
    assert [getattr(reference, key) for key in keys] == ["sample_ratio", 51, "reference", "best", "update", "random"]
    assert [getattr(kdia, key) for key in keys] == ["lambda_kd", 51, "reference", "best", "update", "random"]
    assert kdia.lambda_kd == 0.01


def test_the_two_weightings():
    assert FedCOG(**BY_KD, lambda_kd=0.3).shares(100, 700) == (1.0, 0.3)
    assert FedCOG(weighting="sample_ratio").shares(100, 700) == (0.125, 0.875)


def test_it_keeps_what_it_ends_with(small_setting, play):
    setting = small_setting(
        [6, 8, 9], networks=[plain], participation=Participation(policy="trace", trace=[[0, 1], [1, 2], [1]])
    )
    played = play(FedCOG(**TINY), setting, 3)
    assert set(played.engine.memories) == {0, 1, 2}
    for k, memory in played.engine.memories.items():
        assert equal(memory["model"], played.states[-1]["cache"][str(k)])
    first = play(FedCOG(**TINY), setting, 1)
    assert equal(first.engine.memories[0], played.engine.memories[0])


# --- what it equals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("network", [plain, rich])
def test_without_weight_it_is_fedavg_bit_for_bit(network, optimiser, skewed, play):
    setting = replace(skewed, networks=[network], work=replace(skewed.work, optimiser=optimiser))
    fedavg, zero, some = (
        play(m, setting, 4)
        for m in (FedAvg(), FedCOG(**BY_KD, lambda_kd=0.0, **TINY), FedCOG(**BY_KD, lambda_kd=0.5, **TINY))
    )
    assert all(equal(a.body, b.body) for a, b in zip(fedavg.states, zero.states, strict=True))
    assert zero.rounds[3].ledger.passes()["clients"]["forward"] > fedavg.rounds[3].ledger.passes()["clients"]["forward"]
    assert not equal(fedavg.model, some.model)


def test_before_its_first_round_it_is_fedavg(skewed, play):
    everyone = replace(skewed, participation=Participation())
    fedavg, late = (play(m, everyone, 4) for m in (FedAvg(), FedCOG(**BY_KD, start_round=4, lambda_kd=1.0, **TINY)))
    same = [equal(a["model"], b["model"]) for a, b in zip(fedavg.states, late.states, strict=True)]
    assert same == [True, True, True, True, False]  # the start and three rounds
    assert [a.ledger.passes() == b.ledger.passes() for a, b in zip(fedavg.rounds, late.rounds, strict=True)] == [
        True,
        True,
        True,
        False,
    ]


def test_who_was_never_there_trains_as_in_fedavg_or_has_a_random_network(small_setting, play):
    setting = small_setting([6, 8], networks=[plain], participation=Participation(policy="trace", trace=[[0], [1]]))
    fedavg, skipped, random = (
        play(m, setting, 2).states for m in (FedAvg(), FedCOG(**TINY), FedCOG(unseen="random", **TINY))
    )
    assert equal(skipped[-1].body, fedavg[-1].body)
    assert not equal(random[1]["model"], fedavg[1]["model"])  # also in round 1
    me = setting.client(0, 2, {})
    message = Message("train", 0, {"model": params(initial(plain, 5))})
    known = setting.client(0, 2, {"model": params(me.random_net())})
    method = FedCOG(unseen="random", **TINY)
    assert equal(act(method, me, message).body, act(method, known, message).body)


@pytest.mark.parametrize(
    ("labels", "images", "alike"),
    [
        ([0, 1, 2, 2, 1, 0], 256, True),  # balanced: nothing is lacking
        ([0, 0, 1, 2, 1, 0], 256, False),
        ([0, 0, 0, 0, 0, 1], 2, True),  # floors of 2 * 4/9 and 2 * 5/9: one image, too few for a batch
        ([0, 0, 0], 2, False),
    ],
)
def test_a_client_that_lacks_nothing_trains_as_in_fedavg(labels, images, alike, labelled):
    setting = labelled(labels, work=LocalWork(epochs=2, batch=4, lr=0.1))
    memory = {"model": params(initial(plain, 6))}
    ours, fedavg = (
        trained(m, setting, memory)[0].body
        for m in (FedCOG(**BY_KD, lambda_kd=1.0, images=images, generation_steps=2), FedAvg())
    )
    assert equal(ours, fedavg) is alike


@pytest.mark.parametrize("method", [FedCOG(**BY_KD, lambda_kd=1.0, **TINY), FedCOG(weighting="sample_ratio", **TINY)])
def test_a_client_with_a_single_sample_trains(method, labelled):
    one = replace(labelled([1]), networks=[rich], work=LocalWork(batch=4, lr=0.1))
    me = one.client(0, 2, {"model": params(initial(rich, 6))})
    start = params(initial(rich, 5))
    model = act(method, me, Message("train", 0, {"model": start})).body["model"]
    assert torch.equal(model["features.1.running_mean"], start["features.1.running_mean"])
    assert not torch.equal(model["head.4.weight"], start["head.4.weight"])


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_bytes_and_passes(random_sites, small_setting, play):
    setting = small_setting(
        [],
        sites=random_sites([4, 6], shape=(3, 32, 32), classes=10),
        networks=[lambda: create("simple-cnn", classes=10, channels=3, size=32)],
        classes=10,
        work=LocalWork(batch=2),
        participation=Participation(policy="trace", trace=[[0], [0, 1]]),
    )
    first, second = (fed.ledger for fed in play(FedCOG(images=20, generation_steps=3), setting, 2).rounds)
    weights = 4 * 92_626
    for ledger, clients in ((first, 1), (second, 2)):
        assert {**ledger.down, "framing": 0} == {"weights": clients * weights, "framing": 0}
        assert {**ledger.up, "framing": 0} == {"weights": clients * weights, "scalars": clients * 8, "framing": 0}
    alone = first.passes()["clients"]
    assert alone == {**alone, "steps": 2, "forward": 2, "backward": 2}
    # Client 0: three steps of two networks, the targets, then two batches of each kind. Client 1: three plain steps.
    assert second.passes()["clients"] == {
        "steps": 3 + 2 + 3,
        "forward": 2 * 3 + 1 + 2 * 2 + 3,
        "backward": 2 * 3 + 2 * 2 + 3,
        "generator_forward": 0,
        "generator_backward": 0,
    }


# --- the contract -----------------------------------------------------------------------------------------------------


def test_contract_of_the_reference():
    check_method(FedCOG(variant="reference", start_round=2, generation_steps=2, images=8), small_settings()[1])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lambda_kd", -1.0),
        ("lambda_dis", -1.0),
        ("images", 1),
        ("start_round", 0),
        ("generation_steps", 0),
        ("generation_lr", 0.0),
        ("weighting", "sample"),
        ("disagree", "jss"),
        ("targets", "first"),
        ("generated_norms", "skip"),
        ("unseen", "init"),
        ("variant", "paper"),
    ],
)
def test_options_have_limits(key, value):
    with pytest.raises(UsageError, match=f"fedcog.{key} = {value!r}"):
        FedCOG(**{key: value})


def test_a_weight_without_effect_is_refused():
    with pytest.raises(UsageError, match=r"fedcog\.lambda_kd .* weighting = 'lambda_kd'"):
        FedCOG(weighting="sample_ratio", lambda_kd=0.3)
