"""FedFTG: generator, weights, labels and losses by hand, rounds written plainly, what is FedAvg, what it costs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.options import options_of
from fedalloy.base.tree import digest, equal
from fedalloy.check.method import check_method, small_settings
from fedalloy.check.probe import with_batch_norm
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import State
from fedalloy.federation.participation import Participation
from fedalloy.knowledge.server_generator import (
    diversity_by_norms,
    diversity_loss,
    ensemble_ce,
    ensemble_kl,
    ensemble_l1,
    recognition,
    split_labels,
)
from fedalloy.knowledge.teachers import by_label_counts
from fedalloy.methods import DaFKD, FedAvg, FedFTG
from fedalloy.nets.generators import LabelledImageGenerator
from fedalloy.nets.models import FeatureNet, create
from fedalloy.nets.models.base import parameter_count
from fedalloy.train.fit import LocalWork, frozen, load, params

TINY = {"noise": 3, "width": 4, "iterations": 2, "student_steps": 3, "generator_batch": 6}
VARIANTS = ["recommended", "paper", "reference"]


def plain():
    """One 8 x 8 channel, a convolution, three classes."""
    features = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
    return FeatureNet(features, nn.Sequential(nn.Linear(48, 3)), (48,))


def normed():
    """The same with BatchNorm."""
    features = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    return FeatureNet(features, nn.Sequential(nn.Linear(48, 3)), (48,))


@pytest.fixture
def setting(small_setting, random_sites):
    def make(sizes=(9, 12, 7, 10), net=plain, shape=(1, 8, 8), classes=3, **options):
        options.setdefault("work", LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.5))
        options.setdefault("participation", Participation(policy="fraction", fraction=0.5))
        sites = random_sites(list(sizes), shape=shape, classes=classes)
        return small_setting([], sites=sites, networks=[net], classes=classes, **options)

    return make


def rounds_of(method, setting, rounds):
    """The states from the start on, and the replies of each round."""
    engine, heard = Serial(setting), []
    states = [State(0, method.init(engine.open(method, 0)))]
    for t in range(1, rounds + 1):
        fed = engine.open(method, t)
        ask = fed.ask
        fed.ask = lambda *args, _ask=ask, **body: heard.append(_ask(*args, **body)) or heard[-1]
        states.append(method.round(states[-1], fed))
    return states, heard


# --- the generator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "classes", "expected"), [(100, 10, 682_499), (256, 100, 1_690_115)])
def test_the_generators_published_size(noise, classes, expected):
    make = LabelledImageGenerator((3, 32, 32), classes, noise)
    assert parameter_count(make) == expected
    linear = (noise + 1 + classes + 1) * 64 * 8 * 8
    inner = 2 * 128 + (9 * 128 + 1) * 128 + 2 * 128 + (9 * 128 + 1) * 64 + 2 * 64 + (9 * 64 + 1) * 3
    assert expected == linear + inner  # the last BatchNorm has no weights


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 8, 8), (2, 12, 20)])
def test_images_of_other_sizes_are_standardised(shape):
    draw = torch.Generator().manual_seed(0)
    make = LabelledImageGenerator(shape, 3, noise=5, width=8)
    images = make(torch.randn(6, 5, generator=draw), torch.arange(6) % 3)
    assert images.shape == (6, *shape)
    assert torch.allclose(images.mean((0, 2, 3)), torch.zeros(shape[0]), atol=1e-5)
    assert torch.allclose(images.var((0, 2, 3), correction=0), torch.ones(shape[0]), atol=1e-2)


def test_noise_and_label_both_shape_the_image():
    make = LabelledImageGenerator((1, 8, 8), 3, noise=4, width=4).eval()
    z, zeros = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(2, dtype=torch.int64)
    assert not torch.allclose(make(z, zeros), make(z, zeros + 2))
    assert not torch.allclose(make(z, zeros)[0], make(z, zeros)[1])


def test_images_that_cannot_be_made_are_refused(setting, play):
    with pytest.raises(UsageError, match="cannot make 6 x 6 pixels; resize the images to a multiple of 4"):
        play(FedFTG(**TINY), setting(shape=(1, 6, 6)), 1)


# --- weights and labels -----------------------------------------------------------------------------------------------


def test_class_weights_by_hand():
    alpha = by_label_counts(torch.tensor([[6, 0, 1], [2, 5, 3]]))
    assert alpha.tolist() == [[0.75, 0.0, 0.25], [0.25, 1.0, 0.75]]
    assert by_label_counts(torch.tensor([[1], [3]]), eps=4.0).tolist() == [[0.125], [0.375]]


COUNTS = st.lists(st.lists(st.integers(0, 40), min_size=5, max_size=5), min_size=1, max_size=6)


@given(COUNTS)
def test_the_weights_of_a_class_that_somebody_holds_sum_to_one(counts):
    held = torch.tensor(counts).sum(0) > 0
    assert torch.allclose(by_label_counts(torch.tensor(counts)).sum(0), held.float(), atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
@given(held=st.lists(st.integers(0, 1000), min_size=2, max_size=6).filter(any))
def test_classes_that_nobody_holds_are_never_drawn(variant, held):
    drawn = FedFTG(variant=variant, **TINY).sampled(torch.tensor(held), torch.Generator().manual_seed(1))
    assert drawn.shape == (2, 6)
    assert all(held[y] for y in drawn.flatten().tolist())


@given(held=st.lists(st.integers(0, 1000), min_size=2, max_size=6).filter(any))
def test_the_references_split_is_proportional(held):
    drawn = FedFTG(variant="reference", **TINY).sampled(torch.tensor(held), torch.Generator().manual_seed(1))
    found = torch.bincount(drawn.flatten(), minlength=len(held)).double()
    assert (found - 12 * torch.tensor(held).double() / sum(held)).abs().max() < 1


def test_labels_are_drawn_as_often_as_they_are_held():
    method = FedFTG(iterations=100, generator_batch=100)
    drawn = method.sampled(torch.tensor([30, 0, 10]), torch.Generator().manual_seed(0))
    assert torch.bincount(drawn.flatten()).double().div(1e4).tolist() == pytest.approx([0.75, 0.0, 0.25], abs=0.02)
    split = split_labels(torch.tensor([30, 0, 10]), 2, 4, torch.Generator())
    assert torch.bincount(split.flatten()).tolist() == [6, 0, 2]


# --- the losses -------------------------------------------------------------------------------------------------------


def test_disagreement_by_hand():
    answers = torch.tensor([[[0.9, 0.1], [0.5, 0.5]], [[0.8, 0.2], [0.8, 0.2]]]).log()
    said = torch.tensor([[0.8, 0.2], [0.8, 0.2]]).log()
    a = torch.tensor([[0.25, 1.0], [0.75, 0.0]])
    far = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    assert ensemble_kl(answers, said, a).item() == pytest.approx((0.25 * 0.036690 + far) / 2, abs=1e-6)
    reverse = ensemble_kl(said[None, :1], answers[0, :1], torch.ones(1, 1))  # the teacher's is the first argument of KL
    assert reverse.item() == pytest.approx(0.044403, abs=1e-6)


def test_a_student_like_every_teacher_disagrees_with_none():
    said = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    a = torch.rand(3, 7, generator=torch.Generator().manual_seed(1))
    loss = ensemble_kl(said.detach().expand(3, 7, 4), said, a / a.sum(0))
    loss.backward()
    assert loss.item() == 0.0
    assert said.grad.abs().max() < 1e-7
    assert ensemble_l1(said.expand(3, 7, 4), said, a).item() == 0.0


def test_the_references_disagreement_by_hand_and_its_gradient():
    answers = torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[0.0, 0.0], [4.0, 0.0]]], requires_grad=True)
    said, a = torch.zeros(2, 2, requires_grad=True), torch.tensor([[0.5, 0.0], [0.5, 1.0]])
    loss = ensemble_l1(answers, said, a)
    loss.backward()
    # Means over classes 2, 0 and 0, 2; weighted (1 + 0) and (0 + 2), mean over the batch.
    assert loss.item() == pytest.approx((0.5 * 2 + 1.0 * 2) / 2)
    assert answers.grad is None
    assert said.grad.abs().sum() > 0


def test_recognition_by_hand():
    # CE of teacher k on images (0, 1), labels (0, 1): ln(1 + e^x) with x the wrong logit's lead.
    answers = torch.tensor([[[0.0, 1.0], [0.5, 0.0]], [[2.0, 0.0], [0.0, 3.0]]])
    y, a = torch.tensor([0, 1]), torch.tensor([[1.0, 0.25], [0.0, 0.75]])
    (p, q), (r, s) = ((math.log(1 + math.exp(x)) for x in pair) for pair in ((1.0, 0.5), (-2.0, -3.0)))
    assert recognition(answers, y, a).item() == pytest.approx((p + 0.25 * q + 0.75 * s) / 2, abs=1e-6)
    collapsed = 0.625 * (p + q) / 2 + 0.375 * (r + s) / 2
    assert recognition(answers, y, a, by_image=False).item() == pytest.approx(collapsed, abs=1e-6)


def test_diversity_by_hand():
    z, x = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[[[0.0, 0.0]]], [[[0.3, 0.4]]]])
    # Two of four pairs differ: norms 5 and 0.5; mean square 12.5 and mean distance 0.35.
    assert diversity_by_norms(z, x).item() == pytest.approx(math.exp(-2 * 2.5 / 4), rel=1e-5)
    assert diversity_loss(z, x).item() == pytest.approx(math.exp(-2 * 12.5 * 0.35 / 4), rel=1e-5)


def test_the_papers_diversity_is_zero_for_real_sizes():
    draw = torch.Generator().manual_seed(0)
    z, x = torch.randn(50, 100, generator=draw), torch.randn(50, 1, 28, 28, generator=draw).requires_grad_()
    loss = diversity_by_norms(z, x)
    loss.backward()
    assert (loss.item(), x.grad.abs().max().item()) == (0.0, 0.0)
    assert 0.01 < diversity_loss(z, x).item() < 1


def test_the_references_student_loss_is_smaller_by_the_number_of_classes():
    draw = torch.Generator().manual_seed(0)
    answers, said = torch.randn(3, 5, 4, generator=draw), torch.randn(5, 4, generator=draw, requires_grad=True)
    a = by_label_counts(torch.randint(1, 9, (3, 5), generator=draw))
    gradients = []
    for distance in (ensemble_kl, ensemble_ce):
        (gradient,) = torch.autograd.grad(distance(answers, said, a), said)
        gradients.append(gradient)
    assert torch.allclose(gradients[0], 4 * gradients[1], atol=1e-6)
    mixed = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()
    said = torch.tensor([[0.8, 0.2]]).log()
    value = ensemble_ce(mixed, said, torch.tensor([[0.5], [0.5]]))
    assert value.item() == pytest.approx(-(0.7 * math.log(0.8) + 0.3 * math.log(0.2)) / 2, abs=1e-6)


# --- a round ----------------------------------------------------------------------------------------------------------


def written_plainly(method, network, engine, t, start, generator, replies):
    """The server's part of round t, loop by loop, with torch's own optimisers."""
    reference = method.variant == "reference"
    fed, counts = engine.open(method, t), torch.stack([r["counts"] for r in replies])
    student = load(network(), start)
    teachers = [load(network(), r["model"]).eval() for r in replies]
    rate = method.decay ** (t - 1)
    learn = torch.optim.SGD(student.parameters(), lr=method.server_lr * rate, weight_decay=method.server_weight_decay)
    improve = torch.optim.Adam(generator.parameters(), lr=method.generator_lr * rate)
    labels, noise = method.sampled(counts.sum(0), fed.rng("generator/labels")), fed.rng("generator/noise")

    def weight(k, y):
        return float(counts[k, y]) / (float(counts[:, y].sum()) + (1e-6 if reference else 0.0))

    def pairs(z, x):
        for i in range(6):
            for j in range(6):
                dz, dx = z[i] - z[j], (x[i] - x[j]).flatten()
                if method.variant != "paper":
                    yield dz.square().mean() * dx.abs().mean()
                elif i != j:  # the norm has no gradient at zero
                    yield dz.norm() * dx.norm()

    for y in labels:
        z = torch.randn(6, 3, generator=noise)
        for turn in ([[0], [1]] if reference else [[0, 1]]) * method.generator_steps:
            generator.train()
            student.eval()
            x = generator(z, y)
            total = method.lambda_dis * torch.exp(-sum(pairs(z, x)) / 36) / (2 if reference else 1)
            for k in turn:
                answers, said = teachers[k](x), student(x)
                losses = F.cross_entropy(answers, y, reduction="none")
                if reference:
                    total = total + method.lambda_cls * losses.mean() * sum(weight(k, c) for c in y) / 6
                for b in range(6):
                    if reference:
                        apart = (said[b] - answers[b].detach()).abs().mean()
                    else:
                        p = answers[b].softmax(0)
                        apart = (p * (p.log() - said[b].log_softmax(0))).sum()
                        total = total + method.lambda_cls * weight(k, y[b]) * losses[b] / 6
                    total = total - weight(k, y[b]) * apart / 6
            improve.zero_grad()
            total.backward()
            improve.step()
        generator.eval()
        student.train()
        x = generator(z, y).detach()
        for _ in range(method.student_steps):
            said, total = student(x).log_softmax(1), 0.0
            for b in range(6):
                mixed = sum(weight(k, y[b]) * teachers[k](x)[b].softmax(0).detach() for k in range(2))
                total = total - (mixed * said[b]).sum() / 6 / (3 if reference else 1)
            learn.zero_grad()
            total.backward()
            learn.step()
    return params(student)


def close(a, b, atol):
    return all(torch.allclose(t.double(), b[name].double(), rtol=0, atol=atol) for name, t in a.items())


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("network", [plain, normed])
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_rounds_are_as_written(variant, network, setting):
    options = {"server_lr": 0.3, "decay": 0.5, "lambda_cls": 0.7, "lambda_dis": 1.3, "generator_steps": 2}
    method = FedFTG(variant=variant, **TINY, **options)
    federation = setting(net=network, work=LocalWork(epochs=8, batch=4, lr=0.2))
    states, heard = rounds_of(method, federation, 2)
    engine = Serial(federation)
    generator = engine.open(method, 1).generator(lambda: LabelledImageGenerator((1, 8, 8), 3, noise=3, width=4))
    for t, (before, state, replies) in enumerate(zip(states, states[1:], heard, strict=False), 1):
        assert len(replies) == 2
        start = average([r["model"] for r in replies], [r["n"] for r in replies], before["model"])
        tuned = written_plainly(method, network, engine, t, start, generator, replies)
        assert close(state["model"], tuned, atol=1e-6)
        assert close(state["generator"], params(generator), atol=1e-6)
        assert not close(state["model"], start, atol=1e-3)
        assert not close(state["generator"], before["generator"], atol=1e-2)


def test_the_generator_looks_for_what_the_models_dispute(setting):
    options = {"lambda_cls": 0.0, "lambda_dis": 0.0, "generator_batch": 32, "noise": 3, "width": 8, "student_steps": 1}
    method = FedFTG(iterations=1, generator_steps=20, server_lr=1e-9, **options)
    (before, after), (replies,) = rounds_of(method, setting(work=LocalWork(epochs=20, batch=4, lr=0.1)), 1)
    alpha = by_label_counts(torch.stack([r["counts"] for r in replies]))
    y = torch.arange(32) % 3
    z = torch.randn(32, 3, generator=torch.Generator().manual_seed(3))
    found = []
    for state in (before, after):
        x = load(LabelledImageGenerator((1, 8, 8), 3, 3, 8), state["generator"]).train()(z, y)
        answers = torch.stack([load(plain(), r["model"])(x) for r in replies])
        found.append(ensemble_kl(answers, load(plain(), after["model"])(x), alpha[:, y]).item())
    assert found[1] > 1.5 * found[0]


def test_fine_tuning_brings_the_average_nearer_to_the_ensemble(setting):
    method = FedFTG(noise=3, width=8, generator_batch=32, iterations=30)
    (before, after), (replies,) = rounds_of(method, setting(work=LocalWork(epochs=20, batch=4, lr=0.1)), 1)
    start = average([r["model"] for r in replies], [r["n"] for r in replies], before["model"])
    alpha = by_label_counts(torch.stack([r["counts"] for r in replies]))
    y = torch.arange(60) % 3
    z = torch.randn(60, 3, generator=torch.Generator().manual_seed(3))
    x = load(LabelledImageGenerator((1, 8, 8), 3, 3, 8), after["generator"]).eval()(z, y)
    answers = torch.stack([load(plain(), r["model"])(x) for r in replies])
    far, near = (ensemble_kl(answers, load(plain(), w)(x), alpha[:, y]).item() for w in (start, after["model"]))
    assert near < 0.8 * far


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_students_steps_change_neither_generator_nor_teachers(variant, setting, play, monkeypatch):
    nets = []

    def noted(net):
        nets.append((net, digest(net.state_dict())))
        return frozen(net)

    monkeypatch.setitem(FedFTG.step.__globals__, "frozen", noted)
    one, many = (
        play(FedFTG(variant=variant, **{**TINY, "iterations": 1, "student_steps": steps}), setting(net=normed), 1)
        for steps in (1, 4)
    )
    assert equal(one.states[1]["generator"], many.states[1]["generator"])
    assert not equal(one.model, many.model)
    assert len(nets) == 2 * 2  # two runs with two active clients, each built once
    for net, before in nets:
        assert not net.training
        assert digest(net.state_dict()) == before


def test_batch_norm_of_the_average_sees_the_images(setting, play):
    plainly, tuned = (play(m, setting(net=normed), 1).model for m in (FedAvg(), FedFTG(**TINY)))
    assert not torch.equal(plainly["features.1.running_mean"], tuned["features.1.running_mean"])
    seen = (w["features.1.num_batches_tracked"].item() for w in (plainly, tuned))
    assert list(seen) == [0, 2 * 3]  # the average's counter is the server's own; passes in eval mode leave no trace


def test_the_generator_goes_on_and_its_adam_does_not(setting):
    method = FedFTG(**TINY)
    states, _ = rounds_of(method, setting(), 3)
    weights = [s["generator"]["layers.7.weight"] for s in states]
    assert all(not torch.equal(a, b) for a, b in pairwise(weights))
    assert states[-1].body.keys() == {"model", "cache", "sizes", "generator"}


# --- what it equals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", [plain, with_batch_norm])
@pytest.mark.parametrize("weights", ["size", "disco"])
def test_without_iterations_it_is_fedavg_bit_for_bit(net, weights, setting, play):
    federation = setting(net=net, classes=4) if net is with_batch_norm else setting()
    rule = Aggregation(weights=weights)
    fedavg, same, other = (
        play(m, federation, 3)
        for m in (FedAvg(aggregation=rule), FedFTG(iterations=0, aggregation=rule), FedFTG(aggregation=rule, **TINY))
    )
    untouched = same.states[0]["generator"]
    assert all(
        equal({**a.body, "generator": untouched}, b.body) for a, b in zip(fedavg.states, same.states, strict=True)
    )
    assert [r.ledger.up for r in fedavg.rounds] == [r.ledger.up for r in same.rounds]
    assert [r.ledger.passes() for r in fedavg.rounds] == [r.ledger.passes() for r in same.rounds]
    assert not equal(fedavg.model, other.model)
    assert equal(fedavg.states[1]["cache"], other.states[1]["cache"])  # the clients of round 1 know of nothing


def test_the_views(setting, play):
    method = FedFTG(**TINY)
    state = play(method, setting(), 2).states[-1]
    views = method.models(state)
    assert views["aca"] is state["model"]
    assert equal(views["oca"], FedAvg().overall(state))


def test_a_silent_round_changes_nothing(setting, play):
    silent = Participation(policy="fraction", fraction=0.5, late_drop=0.999999)
    played = play(FedFTG(**TINY), setting(participation=silent), 2)
    assert played.rounds[1].lost
    assert equal(played.states[0].body, played.states[2].body)


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_bytes(setting, play):
    net = lambda: create("lenet5", classes=26, channels=1, size=32)  # noqa: E731
    federation = setting(sizes=(4, 6), net=net, shape=(1, 32, 32), classes=26, participation=Participation())
    for ledger in (r.ledger for r in play(FedFTG(**TINY), federation, 2).rounds):
        assert {**ledger.down, "framing": 0} == {"weights": 2 * 252_264, "framing": 0}
        up = {"weights": 2 * 252_264, "counts": 2 * 26 * 8, "scalars": 2 * 8, "framing": 0}
        assert {**ledger.up, "framing": 0} == up


@pytest.mark.parametrize(("variant", "turns"), [("recommended", 1), ("reference", 2)])
def test_the_servers_passes(variant, turns, setting, play):
    method = FedFTG(variant=variant, **{**TINY, "generator_steps": 4})
    for ledger in (r.ledger for r in play(method, setting(), 2).rounds):
        server, improving, learning = ledger.server, 2 * 4, 2 * 3  # iterations times steps; two clients are active
        assert server.steps == turns * improving + learning
        assert (server.generator_forward, server.generator_backward) == (turns * improving + 2, turns * improving)
        assert server.forward == 2 * improving + turns * improving + 2 * 2 + learning
        assert server.backward == 2 * improving + turns * improving + learning
        assert ledger.clients.generator_forward == 0


def test_any_network_of_equal_parameters_will_do(setting, play):
    bare = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))  # noqa: E731
    assert play(FedFTG(**TINY), setting(net=bare), 1).rounds[0].ledger.server.forward > 0


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_defaults_are_the_papers_and_the_codes(variant):
    """Their rates, steps and sizes, for CIFAR-10 where they depend on the data."""
    method = FedFTG(variant=variant)
    assert (method.lambda_cls, method.lambda_dis) == (1.0, 1.0)
    assert (method.iterations, method.generator_steps, method.student_steps) == (10, 1, 5)
    assert (method.server_lr, method.server_weight_decay, method.generator_lr, method.decay) == (0.1, 1e-3, 0.01, 0.998)
    assert (method.noise, method.generator_batch, method.width) == (100, 50, 128)
    assert method.aggregation.weights == "size"
    assert FedFTG().variant == "recommended"


def test_dafkds_comparison_has_dafkds_generator(setting, play):
    """The same network, weight for weight, as DaFKD starts from; and it is one that learns."""
    federation = setting()
    method = FedFTG(variant="dafkd", **TINY)
    played = play(method, federation, 1)
    dafkd = DaFKD(noise=method.noise, generator_width=method.width)
    start = params(dafkd.new_generator(Serial(federation).open(dafkd, 0)))
    assert equal(played.states[0]["generator"], start)
    assert not equal(played.states[1]["generator"], start)


def test_contract_of_the_reference():
    check_method(FedFTG(variant="reference", **{**TINY, "student_steps": 1}), small_settings()[1])


DIFFERENCES = {  # recommended, paper, reference, dafkd
    "norms": (False, True, False, False),
    "labels": ("drawn", "drawn", "split", "drawn"),
    "eps": (0.0, 0.0, 1e-6, 0.0),
    "generator_distance": ("kl", "kl", "l1", "kl"),
    "cls_by_image": (True, True, False, True),
    "one_by_one": (False, False, True, False),
    "student_distance": ("kl", "kl", "ce", "kl"),
    "server_lr": (0.1, 0.1, 0.1, 0.01),
    "generator_lr": (0.01, 0.01, 0.01, 1e-3),
    "generator_kind": ("convolutional", "convolutional", "convolutional", "perceptron"),
}


def test_variants():
    assert {found.name for found in options_of(FedFTG) if found.variants} == DIFFERENCES.keys()
    for column, variant in enumerate((*VARIANTS, "dafkd")):
        method = FedFTG(variant=variant)
        assert [getattr(method, name) for name in DIFFERENCES] == [row[column] for row in DIFFERENCES.values()]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iterations", -1),
        ("generator_steps", 0),
        ("student_steps", 0),
        ("server_lr", 0.0),
        ("server_weight_decay", -1.0),
        ("generator_lr", 0.0),
        ("decay", 0.0),
        ("lambda_cls", -1.0),
        ("lambda_dis", -1.0),
        ("noise", 0),
        ("width", 7),
        ("width", 0),
        ("generator_batch", 1),
        ("eps", -1.0),
        ("variant", "papre"),
    ],
)
def test_impossible_options_are_refused(name, value):
    with pytest.raises(UsageError, match=rf"^fedftg\.{name} = {value!r} must"):
        FedFTG(**{name: value})
