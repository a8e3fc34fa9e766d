"""Data-free distillation: the teacher is Centralised's, and nothing after it has seen data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedalloy.base.tree import equal
from fedalloy.check.probe import with_batch_norm
from fedalloy.data.samples import Scale
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import State, run
from fedalloy.knowledge.data_free import activation_loss, entropy_loss, judged, one_hot_loss
from fedalloy.methods import Centralised, DataFreeKD
from fedalloy.nets.generators import DCGAN
from fedalloy.nets.models import FeatureNet, create
from fedalloy.train.fit import LocalWork, load, params
from fedalloy.train.losses import kl
from fedalloy.train.optimisers import kept_moments

QUICK = {"noise": 8, "width": 4}


def network():
    return create("mlp", classes=3, channels=1, size=8, hidden=8)


def normed():
    """With BatchNorm, whose modes differ, and without dropout, so that every pass can be repeated by hand."""
    features = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return FeatureNet(features, nn.Sequential(nn.Linear(64, 3)), (64,))


@pytest.fixture
def setting(small_setting, random_sites):
    def make(net=network, data=0, **options):
        sites = random_sites([9, 12], shape=(1, 8, 8), seed=data)
        work = options.pop("work", LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.5))
        return small_setting([], sites=sites, networks=[net], work=work, **options)

    return make


# --- the teacher ------------------------------------------------------------------------------------------------------


def test_the_teacher_is_centralised_and_then_stays_bit_for_bit(setting, play):
    ours, pooled = play(DataFreeKD(teacher_rounds=2, steps=3, **QUICK), setting(), 4), play(Centralised(), setting(), 2)
    for mine, theirs in zip(ours.states[:3], pooled.states, strict=True):
        assert equal(mine["model"], theirs["model"])
    for later in ours.states[3:]:
        assert equal(later["model"], ours.states[2]["model"])


def test_while_the_teacher_learns_nothing_else_does(setting, play):
    first, *_, last = play(DataFreeKD(teacher_rounds=2, **QUICK), setting(), 2).states
    assert all(equal(first[name], last[name]) for name in ("student", "generator", "moments"))
    assert not equal(first["model"], last["model"])


def test_a_batch_normed_teacher_keeps_its_statistics_and_the_student_makes_its_own(setting, play):
    states = play(DataFreeKD(teacher_rounds=1, steps=3, **QUICK), setting(with_batch_norm, classes=4), 2).states
    assert equal(states[1]["model"], states[2]["model"])
    assert int(states[2]["student"]["features.1.num_batches_tracked"]) == 3


# --- the student ------------------------------------------------------------------------------------------------------


def test_after_the_teacher_no_data_is_touched(setting, monkeypatch):
    method = DataFreeKD(teacher_rounds=2, steps=3, **QUICK)
    taught = run(method, Serial(setting()), 2)
    plain = run(method, Serial(setting()), 4, taught)

    def refuse(_):
        raise AssertionError("the data was pooled")

    monkeypatch.setattr(Round, "pool", refuse)
    assert equal(run(method, Serial(setting(data=1)), 4, taught).body, plain.body)
    with pytest.raises(AssertionError, match="pooled"):
        run(method, Serial(setting()), 1)


def test_the_student_does_not_start_as_the_teacher_did(setting, play):
    start = play(DataFreeKD(**QUICK), setting(), 0).states[0]
    assert equal(start["model"], play(Centralised(), setting(), 0).states[0]["model"])
    assert all(not torch.equal(start["student"][name], t) for name, t in start["model"].items())


def test_weights_to_start_from_would_give_the_student_the_teachers(setting, play):
    given = params(network())
    with pytest.raises(UsageError, match="would start as its teacher; leave out `start`"):
        play(DataFreeKD(**QUICK), setting(lambda: load(network(), given)), 0)


def test_the_student_comes_near_the_teacher(setting, play):
    method = DataFreeKD(teacher_rounds=3, steps=100, generator_lr=1e-3, **QUICK)
    played = play(method, setting(work=LocalWork(work="fixed_steps", steps=20, batch=8, lr=0.2)), 4)
    before, after = played.states[3], played.states[4]
    generator = load(method.new_generator(played.rounds[0]), after["generator"])
    images = generator(torch.randn(64, 8, generator=torch.Generator().manual_seed(5)))

    def distance(state: State) -> float:
        teacher, student = (load(network(), state[name]) for name in ("model", "student"))
        return kl(teacher(images), student(images)).item()

    assert distance(after) < 0.1 * distance(before)


def test_an_augmentation_is_not_for_noise(setting):
    def turn(x, _):
        return x.flip(3)  # noise has no fourth dimension

    method = DataFreeKD(teacher_rounds=1, steps=2, **QUICK)
    taught = run(method, Serial(setting()), 1)
    assert equal(
        run(method, Serial(setting(augment=turn)), 2, taught).body, run(method, Serial(setting()), 2, taught).body
    )


# --- the equations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entropy", "activation"), [("normalised", "mean"), ("plain", "sum")])
def test_one_step_by_hand(entropy, activation, setting):
    federation = setting(normed, work=LocalWork(batch=4, lr=0.1))
    options = {"lambda_1": 0.2, "lambda_2": 0.02, "generator_lr": 0.01, "entropy": entropy, "activation": activation}
    method, engine = DataFreeKD(teacher_rounds=1, steps=1, **options, **QUICK), Serial(federation)
    taught = run(method, engine, 1)
    fed = engine.open(method, 2)
    after = method.round(taught, fed)
    # The same by hand: the same noise in the same order, the equations written out.
    teacher, student = load(normed(), taught["model"]).eval(), load(normed(), taught["student"]).train()
    generator = load(method.new_generator(fed), taught["generator"]).train()
    z = torch.randn(4, 8, generator=fed.rng("generator"))[torch.randperm(4, generator=fed.rng("batches"))]
    images = generator(z)
    _, feature, answers = judged(teacher, images)
    p = answers.softmax(1).detach()
    distance = (p * (p.log() - student(images.detach()).log_softmax(1))).sum(1).mean()
    gradients = torch.autograd.grad(distance, list(student.parameters()))
    for (name, w), g in zip(student.named_parameters(), gradients, strict=True):
        assert torch.allclose(after["student"][name], w - 0.1 * g, atol=1e-6), name
    for name, statistic in student.named_buffers():
        assert torch.allclose(after["student"][name], statistic, atol=1e-6), name
    literal = entropy == "plain"
    total = (
        entropy_loss(answers, normalised=not literal)
        + 0.2 * one_hot_loss(answers)
        + 0.02 * activation_loss(feature, summed=literal)
    )
    optimiser = torch.optim.Adam(generator.parameters(), lr=0.01)
    total.backward()
    optimiser.step()
    for number, wanted in kept_moments(optimiser).items():
        assert torch.allclose(after["moments"][number]["exp_avg"], wanted["exp_avg"], rtol=1e-4, atol=1e-6), number
    for name, wanted in generator.state_dict().items():
        # A bias before BatchNorm has no gradient but rounding errors, and Adam's steps do not depend on their size.
        if name not in ("layers.1.bias", "layers.4.bias"):
            assert torch.allclose(after["generator"][name].float(), wanted.float(), atol=1e-4), name


def test_the_generator_learns_from_the_teacher_and_goes_on(setting, play):
    method = DataFreeKD(teacher_rounds=3, steps=50, generator_lr=1e-3, **QUICK)
    played = play(method, setting(work=LocalWork(work="fixed_steps", steps=50, batch=16, lr=0.2)), 5)
    assert [float(s["moments"]["0"]["step"]) for s in played.states[4:]] == [50, 100]
    teacher = load(network(), played.states[-1]["model"])
    z = torch.randn(256, 8, generator=torch.Generator().manual_seed(5))

    def judgement(state: State) -> float:
        generator = load(method.new_generator(played.rounds[0]), state["generator"]).train()
        return method.generator_loss(judged(teacher, generator(z))).item()

    losses = [judgement(s) for s in played.states[3:]]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize(("keep", "steps"), [(True, [4.0, 6.0]), (False, [])])
def test_moments_stay_only_if_they_are_kept(keep, steps, setting, play):
    method = DataFreeKD(teacher_rounds=1, steps=2, keep_moments=keep, **QUICK)
    states = play(method, setting(), 4).states
    assert [float(s["moments"]["0"]["step"]) for s in states[3:] if s["moments"]] == steps
    assert not equal(states[3]["generator"], states[4]["generator"])


def test_the_papers_generator_is_dcgan(setting, play):
    last = play(DataFreeKD(teacher_rounds=1, steps=2, variant="paper", **QUICK), setting(), 2).states[-1]
    assert last["generator"].keys() == params(DCGAN((1, 8, 8), Scale(), noise=8, width=4)).keys()


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_students_optimiser_goes_on_if_it_persists(optimiser, setting):
    federation = setting(
        work=LocalWork(batch=4, lr=0.1, momentum=0.5 if optimiser == "sgd" else 0, optimiser=optimiser)
    )
    options = {"teacher_rounds": 1, "steps": 1, **QUICK}
    lasting, plain = DataFreeKD(persist=True, **options), DataFreeKD(**options)
    state = run(lasting, Serial(federation), 2)
    third, anew = (run(method, Serial(federation), 3, state) for method in (lasting, plain))
    assert not equal(third["student"], anew["student"])
    if optimiser == "adam":
        assert {float(m["step"]) for m in third["optimiser"].values()} == {2.0}
        return
    names = [name for name, _ in network().named_parameters()]
    for number, name in enumerate(names):
        # Both have the gradient of round 3; one of them adds what is left of round 2's.
        expected = anew["student"][name] - 0.1 * 0.5 * state["optimiser"]["velocity"][str(number)]
        assert torch.allclose(third["student"][name], expected, atol=1e-6)


def test_an_optimiser_without_a_state_cannot_persist(setting, play):
    assert "optimiser" not in play(DataFreeKD(teacher_rounds=1, steps=1, **QUICK), setting(), 2).states[-1].body
    with pytest.raises(UsageError, match=r"data-free\.persist has no effect"):
        play(DataFreeKD(persist=True, **QUICK), setting(work=LocalWork(batch=4)), 0)


def test_every_round_has_noise_of_its_own(setting):
    method, engine = DataFreeKD(**QUICK), Serial(setting())
    a, b = (method.learner(engine.open(method, t), batches=2).train for t in (11, 12))
    assert a.x.shape == (8, 8)
    assert not torch.equal(a.x, b.x)


# --- what it costs, what it refuses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [LocalWork(epochs=3, batch=4), LocalWork(epochs=1, batch=7, drop_last=True)])
def test_passes_and_bytes(work, setting, play):
    played = play(DataFreeKD(teacher_rounds=1, steps=5, **QUICK), setting(work=work), 2)
    teaching, distilling = (r.ledger for r in played.rounds)
    assert teaching.up["data"] == 21 * (64 * 4 + 8)
    assert not distilling.up
    assert not distilling.down
    counts = distilling.server
    # For each batch: the student and the teacher once there and back, the generator once.
    assert (counts.steps, counts.forward, counts.backward) == (5, 10, 10)
    assert (counts.generator_forward, counts.generator_backward) == (5, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("teacher_rounds", 0),
        ("steps", 0),
        ("noise", 0),
        ("width", 1),
        ("lambda_1", -0.1),
        ("lambda_2", -0.1),
        ("generator_lr", 0.0),
        ("bn_eps", 0.0),
        ("entropy", "plian"),
        ("activation", "mena"),
    ],
)
def test_options_have_limits(key, value):
    with pytest.raises(UsageError, match=f"data-free.{key} = {value!r}"):
        DataFreeKD(**{key: value})


def test_the_paper_takes_its_equations_as_they_are():
    paper = DataFreeKD(variant="paper")
    assert (paper.entropy, paper.activation) == ("plain", "sum")
    assert (DataFreeKD().entropy, DataFreeKD().activation) == ("normalised", "mean")
