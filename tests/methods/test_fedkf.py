"""FedKF, FedKF- and the server's generator: what travels, what stays, what teaches, where they are FedAvg."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedalloy.aggregation.cache import Cache
from fedalloy.base import tree
from fedalloy.base.tree import equal
from fedalloy.check.probe import with_batch_norm
from fedalloy.data.samples import Scale
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, State, act, run
from fedalloy.federation.participation import Participation
from fedalloy.knowledge.data_free import activation_loss, entropy_loss, judged, one_hot_loss
from fedalloy.methods import FedAvg, FedKF, FedKFMinus, FedKFServer, fedkf, fedkf_server
from fedalloy.nets.generators import DCGAN
from fedalloy.nets.models import FeatureNet, create
from fedalloy.train.beside import normal
from fedalloy.train.costs import payload
from fedalloy.train.fit import LocalWork, load, params
from fedalloy.train.losses import kl
from fedalloy.train.optimisers import adam, kept_moments

HALF = Participation(policy="fraction", fraction=0.5)
QUICK = {"noise": 8, "width": 4}
ONE_STEP = LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.1)
# None of them is 1 or a default, so that one that is forgotten shows.
ODD = {"gamma": 3.0, "lambda_1": 0.3, "lambda_2": 0.2, "generator_lr": 0.01, **QUICK}


def network():
    return create("mlp", classes=3, channels=1, size=8, hidden=8)


def normed():
    """With BatchNorm, whose modes differ, and without dropout, so that every pass can be repeated by hand."""
    features = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return FeatureNet(features, nn.Sequential(nn.Linear(64, 3)), (64,))


def normed_pair():
    """A student and a teacher in eval mode, whose running statistics are those of no batch."""
    torch.manual_seed(3)
    student, teacher = normed(), normed().eval().requires_grad_(False)
    teacher.features[1].running_mean.fill_(0.5)
    teacher.features[1].running_var.fill_(3.0)
    return student, teacher


def trace(*rounds):
    return Participation(policy="trace", trace=rounds)


@pytest.fixture
def setting(small_setting, random_sites):
    def make(sizes=(9, 12, 7, 10), participation=HALF, net=network, **options):
        work = options.pop("work", LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.5))
        sites = random_sites(list(sizes), shape=(1, 8, 8))
        return small_setting([], sites=sites, networks=[net], work=work, participation=participation, **options)

    return make


@pytest.fixture
def messages(monkeypatch):
    """Every message from now on, the replies included."""
    seen: list[Message] = []
    real = Message.__init__

    def note(message, *given, **named):
        real(message, *given, **named)
        seen.append(message)

    monkeypatch.setattr(Message, "__init__", note)
    return seen


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


def test_fedkf_minus_needs_no_cache(setting, play):
    with_cache, without = (play(FedKFMinus(cache=Cache(oca=oca), **QUICK), setting(), 3) for oca in (True, False))
    for a, b in zip(with_cache.states, without.states, strict=True):
        assert equal(a["model"], b["model"])
        assert b["cache"] == {}
    assert len(with_cache.states[-1]["cache"]) == 4


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


def test_no_message_holds_a_generator_unless_the_server_trains_it(setting, messages):
    run(FedKF(kd_start=1, **QUICK), Serial(setting()), 3)
    assert messages
    assert all("generator" not in payload(m.body) for m in messages)
    messages.clear()
    run(FedKFServer(kd_start=1, server_steps=2, **QUICK), Serial(setting()), 2)
    assert any("generator" in payload(m.body) for m in messages)


def test_the_generator_learns_stays_and_goes_on(setting):
    federation, method = setting(participation=trace([0, 1], [0, 2])), FedKF(kd_start=1, **QUICK)
    engine = Serial(federation)

    def steps(client):
        """How many steps a generator's weights and its moments have seen."""
        kept = engine.memories[client]
        return int(kept["generator"]["layers.0.num_batches_tracked"]), float(kept["moments"]["0"]["step"])

    state = run(method, engine, 1)
    first = {k: tree.digest(m) for k, m in engine.memories.items()}
    assert sorted(first) == [0, 1]  # who was not asked has no generator yet
    start = params(method.new_generator(federation.client(0, 1, {})))
    for k in (0, 1):
        assert not equal(engine.memories[k]["generator"], start)
        assert steps(k) == (federation.steps(k), federation.steps(k))
    run(method, engine, 2, state)
    assert tree.digest(engine.memories[1]) == first[1]
    assert steps(0) == (2 * federation.steps(0), 2 * federation.steps(0))
    assert steps(2) == (federation.steps(2), federation.steps(2))


# --- the equations ----------------------------------------------------------------------------------------------------


def trained(method, me, **sent):
    """A client's reply to what it is sent."""
    return act(method, me, Message("train", me.id, sent))


def same(ours, by_hand, atol=1e-6):
    """Check weights, statistics or moments against those computed in another order."""
    assert list(ours) == list(by_hand)
    for name, wanted in by_hand.items():
        assert torch.allclose(ours[name].float(), wanted.float(), rtol=1e-4, atol=atol), name


def improve(optimiser, loss):
    """Take the generator's step by hand."""
    loss.backward()
    optimiser.step()


def is_kept(kept, generator, optimiser, *, passed_on=False):
    """Check what was kept of a generator's step that was also taken by hand; `passed_on`: there was a pass after it."""
    moments = kept_moments(optimiser)
    assert len(kept["moments"]) == len(moments)
    for number, wanted in moments.items():
        same(kept["moments"][number], wanted)
    # A bias before BatchNorm has no gradient but rounding errors, and Adam's steps do not depend on their size.
    idle = {"layers.1.bias", "layers.4.bias"}
    if passed_on:
        idle |= {"layers.2.running_mean", "layers.5.running_mean"}
    ours, by_hand = ({n: t for n, t in w.items() if n not in idle} for w in (kept["generator"], params(generator)))
    same(ours, by_hand, atol=1e-4)  # a hundredth of a step


def student_step(student, me, images, answers, gamma):
    """Eq. 8 written out, with the statistics of the real batch alone; returns the student one step further."""
    x, y = me.train.take(torch.randperm(me.n, generator=me.rng("batches"))[:4])
    own = F.cross_entropy(student.train()(x), y)
    statistics = {name: t.clone() for name, t in student.named_buffers()}
    p = answers.softmax(1).detach()
    distance = (p * (p.log() - student(images.detach()).log_softmax(1))).sum(1).mean()
    gradients = torch.autograd.grad(own + gamma * distance, list(student.parameters()))
    moved = {name: w - 0.1 * g for (name, w), g in zip(student.named_parameters(), gradients, strict=True)}
    return {name: (moved | statistics)[name].detach() for name in student.state_dict()}


def judgement(batch, *, plain=False, summed=False):
    """Eq. 5 with the weights of `ODD`."""
    entropy, activation = (
        entropy_loss(batch.answers, normalised=not plain),
        activation_loss(batch.feature, summed=summed),
    )
    return entropy + 0.3 * one_hot_loss(batch.answers) + 0.2 * activation


@pytest.mark.parametrize(
    ("options", "plain", "summed"),
    [
        ({}, False, False),
        ({"variant": "paper"}, True, True),
        ({"variant": "reference"}, False, False),
        ({"entropy": "plain"}, True, False),
        ({"activation": "sum"}, False, True),
        ({"variant": "paper", "entropy": "normalised"}, False, True),
        ({"variant": "paper", "activation": "mean"}, True, False),
        ({"adversarial": True}, False, False),
        ({"order": "generator_first"}, False, False),
        ({"order": "generator_first", "adversarial": True}, False, False),
        ({"variant": "paper", "order": "student_first"}, True, True),
        ({"generator": "dcgan"}, False, False),
        ({"keep_moments": False}, False, False),
    ],
)
def test_a_step_in_each_of_two_rounds_by_hand(options, plain, summed, setting):
    federation, method = setting(net=normed, work=ONE_STEP), FedKF(**options, **ODD)
    memory = {}
    for round in (2, 3):
        student, teacher = normed_pair()
        me = federation.client(0, round, memory)
        answer = trained(method, me, model=params(student), teacher=params(teacher))
        # The same by hand: the same batch, the same noise, the equations written out.
        generator = method.new_generator(me).train()
        if memory:
            load(generator, memory["generator"])
        optimiser = adam(generator.parameters(), 0.01, moments=memory.get("moments"))
        z = torch.randn(4, 8, generator=me.rng("generator"))
        batch = judged(teacher, generator(z))
        total = judgement(batch, plain=plain, summed=summed)
        generator_first = method.order == "generator_first"
        if generator_first:
            if "adversarial" in options:
                total = total - 3.0 * kl(batch.answers.detach(), alike(student)(batch.images))
            improve(optimiser, total)
            batch = judged(teacher, generator(z))
        expected = student_step(student, me, batch.images, batch.answers, 3.0)
        same(answer.body["model"], expected)
        if not generator_first:
            if "adversarial" in options:
                total = total - 3.0 * kl(batch.answers.detach(), load(student, expected)(batch.images))
            improve(optimiser, total)
        if method.keep_moments:
            is_kept(answer.keep, generator, optimiser, passed_on=generator_first)
        else:
            assert answer.keep["moments"] == {}
            assert torch.allclose(answer.keep["generator"]["linear.weight"], generator.linear.weight, atol=1e-4)
        memory = answer.keep


def alike(net):
    """A copy of a network, whose BatchNorms have statistics of their own."""
    return load(normed(), params(net)).train()


def test_algorithm_1_gives_another_student(setting):
    me, (student, teacher) = setting(net=normed, work=ONE_STEP).client(0, 2, {}), normed_pair()
    sent = {"model": params(student), "teacher": params(teacher)}
    first, second = (
        trained(FedKF(order=order, **ODD | {"generator_lr": 0.1}), me, **sent).body["model"]
        for order in ("student_first", "generator_first")
    )
    assert max((first[n].float() - second[n].float()).abs().max().item() for n in first) > 1e-3


def test_new_images_for_the_student_cost_a_pass_more(setting):
    method, engine = FedKF(kd_start=1, order="generator_first", **QUICK), Serial(setting(work=ONE_STEP))
    fed = engine.open(method, 1)
    method.round(State(0, method.init(fed)), fed)
    counts = fed.ledger.clients
    assert (counts.steps, counts.forward, counts.backward) == (2, 8, 6)
    assert (counts.generator_forward, counts.generator_backward) == (4, 2)


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({}, [3, 3]),
        ({"variant": "reference"}, [4, 4]),
        ({"generated_batch": "full"}, [4, 4]),
        ({"generated_batch": 6}, [6, 6]),
        ({"variant": "reference", "generated_batch": "real"}, [3, 3]),
    ],
)
@pytest.mark.parametrize("cls", [FedKF, FedKFMinus, FedKFServer])
def test_how_many_images_a_step_makes(cls, options, made, setting, monkeypatch):
    drawn = []

    def note(rows, *rest):
        drawn.append(rows)
        return normal(rows, *rest)

    for module in (fedkf, fedkf_server):
        monkeypatch.setattr(module, "normal", note)
    # A client of three samples, whose batch is never full.
    federation = setting(sizes=(3,), participation=Participation(), work=LocalWork(epochs=2, batch=4, lr=0.1))
    run(cls(kd_start=1, **options, **QUICK), Serial(federation), 1)
    servers = [6 if options.get("generated_batch") == 6 else 4] * 2 if cls is FedKFServer else []
    assert drawn == servers + made


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("cls", [FedKF, FedKFMinus, FedKFServer])
def test_moments_stay_only_if_they_are_kept(cls, keep, setting):
    federation = setting(sizes=(8,), participation=Participation(), work=LocalWork(epochs=1, batch=4, lr=0.1))
    method, engine = cls(kd_start=1, keep_moments=keep, **QUICK), Serial(federation)
    state = run(method, engine, 2)
    kept = state.body if cls is FedKFServer else engine.memories[0]
    assert int(kept["generator"]["layers.0.num_batches_tracked"]) == 4  # the weights always go on
    assert [float(m["step"]) for m in kept["moments"].values()] == [4.0] * len(kept["moments"])
    assert bool(kept["moments"]) == keep


@pytest.mark.parametrize("cls", [FedKF, FedKFMinus, FedKFServer])
def test_the_papers_generator_is_dcgan(cls, setting):
    federation = setting(sizes=(4, 4), participation=Participation())
    engine = Serial(federation)
    state = run(cls(variant="paper", **QUICK), engine, 2)
    kept = state["generator"] if cls is FedKFServer else engine.memories[1]["generator"]
    assert kept.keys() == params(DCGAN((1, 8, 8), Scale(), noise=8, width=4)).keys()
    with pytest.raises(UsageError, match=rf"{cls.name}\.bn_eps has no effect without generator = 'upsampling'"):
        cls(generator="dcgan", bn_eps=0.1)


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0, 1000.0])
def test_each_term_keeps_to_its_side_of_zero(scale):
    draw = torch.Generator().manual_seed(0)
    for rows, classes in [(1, 2), (4, 3), (64, 26)]:
        logits = scale * torch.randn(rows, classes, generator=draw)
        assert -1e-6 <= entropy_loss(logits) <= 1 + 1e-6
        assert one_hot_loss(logits) >= 0
        assert activation_loss(logits) <= 0
        assert activation_loss(logits, summed=True) <= 0


def test_a_student_like_its_teacher_feels_no_pull_at_the_first_step(setting):
    me, start = setting(work=ONE_STEP).client(0, 2, {}), params(network())
    pulled, plain = (trained(FedKFMinus(gamma=g, **QUICK), me, model=start).body["model"] for g in (100.0, 0.0))
    for name in start:
        assert torch.allclose(pulled[name], plain[name], atol=1e-4)


def test_the_teacher_is_the_average_of_the_cache(setting, messages):
    federation, method = setting(), FedKF(**QUICK)
    engine = Serial(federation)
    state = run(method, engine, 2)
    messages.clear()
    method.round(state, engine.open(method, 3))
    asked = [m for m in messages if "teacher" in m]
    assert len(asked) == len(federation.active(3))
    assert all(equal(m["teacher"], method.models(state)["oca"]) for m in asked)
    assert all(equal(m["model"], state["model"]) for m in asked)


def test_the_papers_second_teacher_is_mostly_the_first_model(setting, play, messages):
    federation, method = setting(participation=trace([0, 2])), FedKF(variant="paper", **QUICK)
    states = play(method, federation, 2).states
    teachers = [m["teacher"] for m in messages if "teacher" in m]
    assert len(teachers) == 2  # in the first round it is the model itself
    n, first, cache = federation.sizes, states[0]["model"], states[1]["cache"]
    known = [cache["0"], first, cache["2"], first]
    for name in first:
        mean = sum(size * w[name] for size, w in zip(n, known, strict=True)) / sum(n)
        assert all(torch.allclose(teacher[name], mean, atol=1e-6) for teacher in teachers)


def test_the_adversarial_term_moves_the_generator_away_from_the_student(setting):
    me = setting(work=LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.0001)).client(0, 2, {})
    torch.manual_seed(1)
    teacher, student = params(network()), params(network())
    options = {"lambda_1": 0.0, "lambda_2": 0.0, **QUICK}
    plain, against = (
        trained(FedKF(adversarial=yes, **options), me, model=student, teacher=teacher) for yes in (False, True)
    )
    nets = [me.net(w).eval() for w in (teacher, against.body["model"])]
    z = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))

    def distance(answer):
        images = load(FedKF(**QUICK).new_generator(me), answer.keep["generator"]).train()(z)
        return kl(nets[0](images), nets[1](images)).item()

    assert distance(against) > distance(plain)


@pytest.mark.parametrize(("channels", "against"), [(1, False), (3, True)])
def test_the_codes_adversarial_term_is_for_colour_images(channels, against, small_setting, random_sites):
    net = partial(create, "mlp", classes=3, channels=channels, size=8, hidden=8)
    sites = random_sites([9], shape=(channels, 8, 8))
    me = small_setting([], sites=sites, networks=[net], work=ONE_STEP).client(0, 2, {})
    torch.manual_seed(1)
    sent = {"model": params(net()), "teacher": params(net())}
    code, given, ours = (
        trained(FedKF(**options, **ODD), me, **sent).keep["generator"]
        for options in ({"variant": "reference"}, {"adversarial": against}, {"adversarial": not against})
    )
    assert equal(code, given)
    assert not equal(code, ours)
    assert FedKF().adversarial is FedKF(variant="paper").adversarial is False


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
    method = FedKFServer(server_steps=3, kd_start=1, **QUICK)
    played = play(method, federation, 2)
    assert float(played.states[2]["moments"]["0"]["step"]) == 6
    engine = Serial(federation)
    run(method, engine, 2)
    assert engine.memories == {}
    busiest = play(FedKFServer(kd_start=1, **QUICK), federation, 1).states[1]
    assert float(busiest["moments"]["0"]["step"]) == max(federation.steps(k) for k in federation.active(1))


def test_the_servers_step_by_hand(setting):
    federation = setting(net=normed, work=ONE_STEP, participation=trace([0, 1], [2, 3]))
    method, engine = FedKFServer(server_steps=1, **ODD), Serial(federation)
    state = run(method, engine, 2)
    fed = engine.open(method, 3)
    after = method.round(state, fed)
    # The same by hand: the second step of the generator, from what was kept of the first.
    views = method.models(state)
    assert not equal(views["aca"], views["oca"])
    teacher = load(normed(), views["oca"]).eval()
    generator = load(method.new_generator(fed), state["generator"]).train()
    optimiser = adam(generator.parameters(), 0.01, moments=state["moments"])
    images = generator(torch.randn(4, 8, generator=fed.rng("generator")))
    improve(optimiser, judgement(judged(teacher, images)))
    is_kept(after.body, generator, optimiser)


def test_a_client_learns_on_images_of_the_servers_generator_in_eval_mode(setting):
    me, method = setting(net=normed, work=ONE_STEP).client(0, 2, {}), FedKFServer(**ODD)
    replies = []
    for seed in (1, 2):
        student, teacher = normed_pair()
        torch.manual_seed(seed)
        generator = method.new_generator(me).eval()
        for weight in generator.parameters():
            nn.init.normal_(weight)
        sent = {"model": params(student), "teacher": params(teacher), "generator": params(generator)}
        replies.append(trained(method, me, **sent).body["model"])
        images = generator(torch.randn(4, 8, generator=me.rng("generator")))
        same(replies[-1], student_step(student, me, images, teacher(images), 3.0))
    assert not equal(*replies)


def test_a_round_without_clients_teaches_the_server_nothing(setting, play):
    federation = setting(participation=trace([0], []))
    _, first, second = play(FedKFServer(kd_start=1, **QUICK), federation, 2).states
    assert equal(first.body, second.body)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gamma", -1.0),
        ("lambda_1", -0.1),
        ("lambda_2", -0.1),
        ("generator_lr", 0.0),
        ("bn_eps", 0.0),
        ("noise", 0),
        ("width", 1),
        ("kd_start", 0),
        ("variant", "papre"),
        ("activation", "mena"),
        ("entropy", "plian"),
        ("adversarial", "color"),
        ("generated_batch", 0),
        ("generated_batch", "ful"),
        ("generator", "gan"),
        ("order", "both"),
    ],
)
@pytest.mark.parametrize("cls", [FedKF, FedKFMinus, FedKFServer])
def test_options_have_limits(cls, key, value):
    with pytest.raises(UsageError, match=f"{cls.name}.{key} = {value!r}"):
        cls(**{key: value})


@pytest.mark.parametrize(("key", "value"), [("server_steps", -1), ("adversarial", True), ("order", "student_first")])
def test_options_of_the_servers_generator_have_limits(key, value):
    with pytest.raises(UsageError, match=rf"fedkf-server\.{key} = "):
        FedKFServer(**{key: value})
    assert FedKFServer(variant="reference").adversarial is False  # there is no student on the server
    assert FedKFServer(variant="paper").order == FedKFServer().order == "generator_first"


@pytest.mark.parametrize("cls", [FedKF, FedKFServer])
def test_the_teacher_cannot_be_off(cls):
    with pytest.raises(UsageError, match=r"cache\.oca .* the average of all clients is the teacher"):
        cls(cache=Cache(oca=False))


def test_variants_change_the_defaults_and_a_given_value_stays():
    names = ("kd_start", "activation", "entropy", "adversarial", "order", "generated_batch", "generator")
    table = {v: tuple(getattr(FedKF(variant=v), n) for n in names) for v in ("recommended", "paper", "reference")}
    assert table == {
        "recommended": (2, "mean", "normalised", False, "student_first", "real", "upsampling"),
        "paper": (1, "sum", "plain", False, "generator_first", "real", "dcgan"),
        "reference": (2, "mean", "normalised", "colour", "student_first", "full", "upsampling"),
    }
    assert [FedKF(variant=v).cache.unseen for v in table] == ["seen_only", "init_model", "seen_only"]
    assert FedKF(variant="paper", cache=Cache(unseen="global")).cache.unseen == "global"


def test_images_that_cannot_be_made_are_refused(small_setting, random_sites, play):
    sites = random_sites([6], shape=(1, 6, 6))
    net = partial(create, "mlp", classes=3, channels=1, size=6, hidden=8)
    federation = small_setting([], sites=sites, networks=[net], work=LocalWork(batch=4))
    with pytest.raises(UsageError, match="multiple of 4"):
        play(FedKF(kd_start=1), federation, 1)
