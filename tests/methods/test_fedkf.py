"""FedKF and FedKF-: what travels, what stays, what teaches, and where they are FedAvg to the bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedalloy import tree
from fedalloy.core import Message, act, run
from fedalloy.costs import payload
from fedalloy.data_free import activation_loss, entropy_loss, one_hot_loss
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.losses import kl
from fedalloy.methods import FedAvg, FedKF, FedKFMinus
from fedalloy.models import create
from fedalloy.participation import Participation
from fedalloy.probe import with_batch_norm
from fedalloy.training import LocalWork, params
from fedalloy.tree import equal

HALF = Participation(policy="fraction", fraction=0.5)
QUICK = {"noise": 8, "width": 4}


def network():
    return create("mlp", classes=3, channels=1, size=8, hidden=8)


@pytest.fixture
def setting(small_setting, random_sites):
    def make(sizes=(9, 12, 7, 10), participation=HALF, net=network, **options):
        work = options.pop("work", LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.5))
        sites = random_sites(list(sizes), shape=(1, 8, 8))
        return small_setting([], sites=sites, networks=[net], work=work, participation=participation, **options)

    return make


# --- what it equals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [FedKF, FedKFMinus])
@pytest.mark.parametrize("net", [network, with_batch_norm])
def test_gamma_zero_is_fedavg_bit_for_bit(cls, net, setting, play):
    federation = setting(net=net, classes=4) if net is with_batch_norm else setting()
    plain = play(FedAvg(), federation, 3)
    same = play(cls(gamma=0.0, kd_start=1, **QUICK), federation, 3)
    other = play(cls(gamma=1.0, kd_start=1, **QUICK), federation, 3)
    for a, b in zip(plain.states, same.states, strict=True):
        assert equal(a["model"], b["model"])
        assert equal(a["cache"], b["cache"])
    assert not equal(plain.model, other.model)


def test_with_everybody_active_fedkf_is_fedkf_minus_and_aca_is_oca(setting, play):
    everyone = setting(participation=Participation())
    one, other = (play(cls(**QUICK), everyone, 3) for cls in (FedKF, FedKFMinus))
    for a, b in zip(one.states, other.states, strict=True):
        assert equal(a["model"], b["model"])
    views = FedKF(**QUICK).models(one.states[-1])
    assert equal(views["aca"], views["oca"])


def test_with_some_active_the_two_differ(setting, play):
    one, other = (play(cls(**QUICK), setting(), 3) for cls in (FedKF, FedKFMinus))
    assert equal(one.states[1]["model"], other.states[1]["model"])  # round 1 is FedAvg's
    assert not equal(one.model, other.model)


def test_the_first_round_is_fedavg_unless_the_paper_is_followed(setting, play):
    plain = play(FedAvg(), setting(), 1).model
    assert equal(play(FedKF(**QUICK), setting(), 1).model, plain)
    assert equal(play(FedKF(variant="reference", **QUICK), setting(), 1).model, plain)
    assert not equal(play(FedKF(variant="paper", **QUICK), setting(), 1).model, plain)


# --- what travels and what stays --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "models_down"), [(FedKF, 2), (FedKFMinus, 1)])
def test_bytes_are_those_of_the_papers_messages(cls, models_down, small_setting, random_sites):
    sites = random_sites([4, 4], shape=(1, 32, 32), classes=26)
    federation = small_setting(
        [],
        sites=sites,
        networks=[partial(create, "lenet5", classes=26, channels=1, size=32)],
        classes=26,
        work=LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.01),
    )
    method, engine = cls(**QUICK), Serial(federation)
    state = run(method, engine, 1)
    fed = engine.open(method, 2)
    method.round(state, fed)
    assert fed.ledger.down["weights"] == 2 * models_down * 252_264
    assert fed.ledger.up["weights"] == 2 * 252_264
    assert fed.ledger.up["generator"] == fed.ledger.down["generator"] == 0
    # Table IX: student 2 + teacher 1 forward and backward, generator 1 and 1, for each batch.
    counts = fed.ledger.clients
    assert (counts.steps, counts.forward, counts.backward) == (2, 6, 6)
    assert (counts.generator_forward, counts.generator_backward) == (2, 2)


def test_no_message_holds_a_generator_unless_the_server_trains_it(setting, monkeypatch):
    seen: list[set[str]] = []
    real = Message.__post_init__

    def note(message):
        real(message)
        seen.append(set(payload(message.body)))

    monkeypatch.setattr(Message, "__post_init__", note)
    run(FedKF(kd_start=1, **QUICK), Serial(setting()), 3)
    assert seen
    assert all("generator" not in kinds for kinds in seen)
    seen.clear()
    run(FedKF(kd_start=1, generator_side="server", server_steps=2, **QUICK), Serial(setting()), 2)
    assert any("generator" in kinds for kinds in seen)


def test_the_generator_learns_stays_and_goes_on(setting):
    federation, method = setting(), FedKF(kd_start=1, **QUICK)
    engine = Serial(federation)
    state = run(method, engine, 1)
    first = {k: tree.digest(m) for k, m in engine.memories.items()}
    active = federation.active(1)
    assert sorted(first) == active  # who was not asked has no generator yet
    start = params(method.new_generator(federation.client(0, 1, {})))
    for k in active:
        kept = engine.memories[k]
        assert not equal(kept["generator"], start)
        assert float(kept["moments"]["0"]["step"]) == federation.steps(k)
    run(method, engine, 2, state)
    for k in federation.ids:
        if k in active and k not in federation.active(2):
            assert tree.digest(engine.memories[k]) == first[k]
    both = [k for k in active if k in federation.active(2)]
    for k in both:
        assert float(engine.memories[k]["moments"]["0"]["step"]) == 2 * federation.steps(k)


# --- the equations ----------------------------------------------------------------------------------------------------


def one_step(method, federation, teacher, student):
    """What one step of one client makes of its model and generator."""
    me = federation.client(0, 2, {})
    answer = act(method, me, Message("train", 0, {"model": student, "teacher": teacher}))
    return answer.body["model"], answer.keep["generator"]


@pytest.mark.parametrize("variant", ["recommended", "paper", "reference"])
def test_one_step_by_hand(variant, setting):
    federation = setting(work=LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.1))
    method = FedKF(variant=variant, **QUICK)
    torch.manual_seed(3)
    student, teacher = network(), network()
    me = federation.client(0, 2, {})
    # The same by hand: the same batch, the same noise, the equations written out.
    generator = method.new_generator(me).train()
    x, y = me.train.take(torch.randperm(me.n, generator=me.rng("batches"))[:4])
    images = generator(torch.randn(4, 8, generator=me.rng("generator")))
    for p in teacher.parameters():
        p.requires_grad_(False)
    feature = teacher.features(images)
    answers = teacher.head(feature)
    p = answers.softmax(1).detach()
    distance = (p * (p.log() - student(images.detach()).log_softmax(1))).sum(1).mean()
    loss = torch.nn.functional.cross_entropy(student(x), y) + distance
    gradients = torch.autograd.grad(loss, list(student.parameters()))
    expected = [w - 0.1 * g for w, g in zip(student.parameters(), gradients, strict=True)]
    paper = variant == "paper"
    total = (
        entropy_loss(answers, normalised=not paper)
        + 0.1 * one_hot_loss(answers)
        + 0.1 * activation_loss(feature, summed=paper)
    )
    optimiser = torch.optim.Adam(generator.parameters(), lr=1e-3)
    total.backward()
    optimiser.step()
    model, made = one_step(method, federation, params(teacher), params(student))
    for value, wanted in zip(model.values(), expected, strict=True):
        assert torch.allclose(value, wanted, atol=1e-6)
    for name, wanted in generator.state_dict().items():
        assert torch.allclose(made[name].float(), wanted.float(), atol=1e-6), name


def test_a_student_like_its_teacher_feels_no_pull_at_the_first_step(setting):
    federation = setting(work=LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.1))
    start = params(network())
    pulled, _ = one_step(FedKFMinus(gamma=100.0, **QUICK), federation, start, start)
    plain, _ = one_step(FedKFMinus(gamma=0.0, **QUICK), federation, start, start)
    for name in start:
        assert torch.allclose(pulled[name], plain[name], atol=1e-4)


def test_the_teacher_is_the_average_of_the_cache(setting, monkeypatch):
    federation, method = setting(), FedKF(**QUICK)
    engine = Serial(federation)
    state = run(method, engine, 2)
    sent: list[Message] = []
    real = Message.__post_init__
    monkeypatch.setattr(Message, "__post_init__", lambda m: (real(m), sent.append(m))[0])
    method.round(state, engine.open(method, 3))
    asked = [m for m in sent if "teacher" in m]
    assert len(asked) == len(federation.active(3))
    assert all(equal(m["teacher"], method.models(state)["oca"]) for m in asked)
    assert all(equal(m["model"], state["model"]) for m in asked)


def test_the_adversarial_term_moves_the_generator_away_from_the_student(setting):
    federation = setting(work=LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.0001))
    torch.manual_seed(1)
    teacher, student = params(network()), params(network())
    options = {"lambda_1": 0.0, "lambda_2": 0.0, "generator_lr": 1e-3, **QUICK}
    _, plain = one_step(FedKF(adversarial=False, **options), federation, teacher, student)
    model, against = one_step(FedKF(adversarial=True, gamma=1.0, **options), federation, teacher, student)
    assert not equal(plain, against)
    me = federation.client(0, 2, {})
    nets = [me.net(w).eval() for w in (teacher, model)]
    z = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))

    def distance(weights):
        generator = FedKF(**QUICK).new_generator(me)
        generator.load_state_dict(weights)
        images = generator.train()(z)
        return kl(nets[0](images), nets[1](images)).item()

    assert distance(against) > distance(plain)


def test_the_codes_adversarial_term_is_for_colour_images():
    assert FedKF(variant="reference").is_adversarial((3, 32, 32))
    assert not FedKF(variant="reference").is_adversarial((1, 32, 32))
    assert not FedKF().is_adversarial((3, 32, 32))
    assert FedKF(adversarial=True).is_adversarial((1, 32, 32))


def test_variants_fill_the_cache_differently(setting, play):
    paper = FedKF(variant="paper", kd_start=9, **QUICK)
    ours = FedKF(kd_start=9, **QUICK)
    a, b = (play(m, setting(), 1).states[-1] for m in (paper, ours))
    assert equal(a["model"], b["model"])
    assert not equal(paper.models(a)["oca"], ours.models(b)["oca"])
    assert equal(ours.models(b)["oca"], b["model"])


# --- the server's generator -------------------------------------------------------------------------------------------


def test_a_generator_of_the_server_is_the_same_for_all_and_stays_as_it_was_sent(setting, play):
    federation = setting()
    method = FedKF(generator_side="server", server_steps=3, kd_start=1, **QUICK)
    played = play(method, federation, 2)
    assert float(played.states[2]["moments"]["0"]["step"]) == 6
    engine = Serial(federation)
    run(method, engine, 2)
    assert engine.memories == {}
    busiest = play(FedKF(generator_side="server", kd_start=1, **QUICK), federation, 1).states[1]
    assert float(busiest["moments"]["0"]["step"]) == max(federation.steps(k) for k in federation.active(1))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gamma": -1.0}, "gamma = -1.0 must not be negative"),
        ({"oca": False}, "the average of all clients is the teacher"),
        ({"variant": "papre"}, "did you mean 'paper'"),
        ({"activation": "mena"}, "did you mean 'mean'"),
        ({"width": 1}, "width of at least 2"),
        ({"generator_lr": 0.0}, "generator_lr = 0.0 must be positive"),
    ],
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        FedKF(**options)


def test_images_that_cannot_be_made_are_refused(small_setting, random_sites, play):
    sites = random_sites([6], shape=(1, 6, 6))
    net = partial(create, "mlp", classes=3, channels=1, size=6, hidden=8)
    federation = small_setting([], sites=sites, networks=[net], work=LocalWork(batch=4))
    with pytest.raises(UsageError, match="multiple of 4"):
        play(FedKF(kd_start=1), federation, 1)
