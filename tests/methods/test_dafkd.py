"""DaFKD: what it equals, steps by hand on client and server, what stays private, what travels, what it costs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.options import options_of
from fedalloy.base.tree import digest, equal
from fedalloy.check.attacks import Attacked, honest, nan, sign_flip
from fedalloy.check.method import check_method, small_settings
from fedalloy.data.samples import Scale
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, State, act, run
from fedalloy.federation.participation import Participation
from fedalloy.knowledge.averaged import models
from fedalloy.knowledge.domains import gradient_penalty
from fedalloy.methods import DaFKD, DaFKDFeatures, DaFKDNoCorrelation, DaFKDPredictions, DaFKDScores, FedAvg
from fedalloy.nets.generators import adversarial_generator
from fedalloy.nets.generators.adversarial import DoublingImages, HalvingImages, PerceptronImages
from fedalloy.nets.models import create
from fedalloy.nets.models.base import parameter_count
from fedalloy.train.fit import LocalWork, batches, load, params

UNIFORM = FedAvg(aggregation=Aggregation(weights="uniform"))
MLP, WITH_BATCH_NORM = small_settings()
HALF = Participation(policy="fraction", fraction=0.5)


class FeatureScores(DaFKDFeatures, DaFKDScores):
    """The pieces go together."""


class FeaturePredictions(DaFKDFeatures, DaFKDPredictions):
    """These too."""


def tiny(cls=DaFKD, *, weights=None, oca=None, **options):
    """Twelve samples in batches of four, three steps."""
    sections = {"aggregation": Aggregation(weights=weights), "cache": Cache(oca=oca), **options}
    return cls(**{**cls.card.quick, **sections})


def network():
    return create("mlp", classes=3, channels=1, size=8, hidden=6)


@pytest.fixture
def setting(small_setting, random_sites):
    def make(sizes=(9, 12, 7, 10), participation=HALF, net=network, **options):
        work = options.pop("work", LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.5))
        sites = random_sites(list(sizes), shape=(1, 8, 8))
        return small_setting([], sites=sites, networks=[net], work=work, participation=participation, **options)

    return make


def close(a, b, atol=1e-6):
    return all(torch.allclose(t.double(), b[name].double(), rtol=0, atol=atol) for name, t in a.items())


def answers(method, federation, state, round):
    """What the round's clients answer to `train`, and keep."""
    sent = {name: state[name] for name in ("model", "generator", "head") if name in state.body}
    active = federation.active(round)
    return {k: act(method, federation.client(k, round, {}), Message("train", k, sent)) for k in active}


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [DaFKD, DaFKDScores, DaFKDPredictions])
def test_whom_krum_drops_might_as_well_have_been_absent(setting, cls):
    """It enters no average and teaches nobody: the same bits as if its reply had been set aside."""
    federation = setting(participation=Participation())
    method = tiny(cls, aggregation=Aggregation(combine="krum", trim=0.25))  # one of four, none of three

    def after(forge):
        return digest(run(method, Attacked(Serial(federation), forge, attackers=[2]), 2).body)

    assert after(partial(sign_flip, boost=100.0)) == after(nan)
    assert after(honest) != after(nan)


# --- what it equals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "options", "weights", "federation"),
    [
        (DaFKD, {}, "uniform", MLP),
        (DaFKD, {}, "uniform", WITH_BATCH_NORM),
        (DaFKD, {"shared_layers": 0}, "uniform", WITH_BATCH_NORM),
        (DaFKDFeatures, {}, "uniform", WITH_BATCH_NORM),
        (DaFKD, {"variant": "reference", "gradient_penalty": 0.0}, "size", WITH_BATCH_NORM),
        (DaFKD, {"weights": "disco", "oca": True}, "disco", MLP),
    ],
    ids=["mlp", "batch norm and dropout", "no sharing", "features", "reference", "disco"],
)
def test_without_game_and_distillation_it_is_fedavg_bit_for_bit(cls, options, weights, federation, play):
    method = tiny(cls, **{"adversarial": 0.0, "distil_steps": 0} | options)
    fedavg = FedAvg(aggregation=Aggregation(weights=weights))
    plain, same = play(fedavg, federation, 2), play(method, federation, 2)
    for a, b in zip(plain.states, same.states, strict=True):
        assert equal(a["model"], b["model"])
    if method.cache.oca:
        assert equal(fedavg.overall(plain.states[-1]), method.overall(same.states[-1]))


@pytest.mark.parametrize("options", [{"adversarial": 0.0}, {"distil_steps": 0}])
def test_either_of_them_makes_a_difference(options, setting, play):
    plain = play(UNIFORM, setting(), 1).model
    assert not close(play(tiny(**options), setting(), 1).model, plain, atol=1e-5)


def test_one_client_alone_teaches_its_average_nothing(play):
    """In eval mode, where the average answers as its only teacher does; BatchNorm in training mode does not."""
    alone = replace(WITH_BATCH_NORM, sites=WITH_BATCH_NORM.sites[4:5], participation=Participation())
    undistilled = play(tiny(distil_steps=0), alone, 1).model
    for mode, same in (("eval", True), ("train", False)):
        found = play(tiny(student_mode=mode, distil_lr=0.5), alone, 1).model
        assert close(found, undistilled) is same


@pytest.mark.parametrize("kind", ["prob", "logit"])
def test_equal_discriminators_are_no_correlation(kind, setting):
    federation = setting()
    full, plain = (tiny(cls, ensemble=kind) for cls in (DaFKD, DaFKDNoCorrelation))
    fed = Serial(federation).open(full, 1)
    state = State(0, full.init(fed))
    replies = []
    for k, answer in answers(full, federation, state, 1).items():
        head = {name: torch.zeros_like(t) for name, t in answer.body["head"].items()}  # f = 1/2 everywhere
        replies.append(Message("train", k, {**answer.body, "head": head}))
    found = [m.distil(fed, replies, state["model"], state["generator"]) for m in (full, plain)]
    assert close(found[0]["model"], found[1]["model"], atol=1e-7)
    shares = found[0]["importance"]
    assert torch.allclose(shares, found[1]["importance"])
    active = federation.active(1)
    assert set(shares[active].flatten().tolist()) <= {0.0, 0.5}
    assert shares.sum() == shares[active].sum() > 0


# --- a client ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (DaFKD, {}),
        (DaFKD, {"saturating": False, "adversarial": 2.0}),
        (DaFKD, {"gradient_penalty": 0.3}),
        (DaFKDFeatures, {}),
        (DaFKD, {"variant": "reference"}),
    ],
    ids=repr,
)
def test_three_steps_by_hand(cls, options, setting):
    """From a discriminator that takes nearly all for generated: where f is 1/2, both generator's losses are alike."""
    federation = setting(work=LocalWork(work="fixed_steps", steps=3, batch=4, lr=0.1))
    method = tiny(cls, **options)
    me = federation.client(0, 1, {})
    two = method.two_heads(me)
    generator = method.new_generator(me).train()
    head = two.own_weights()
    head = {"head.0.weight": 3 * head["head.0.weight"], "head.0.bias": head["head.0.bias"] - 2}
    sent = {"model": params(two.net), "generator": params(generator)}
    two.load(sent["model"], head)
    coded = method.variant == "reference"  # 1e-4 for 1e-3, BCE of real plus BCE of made, -log f, a penalty, one head
    features, penalised = cls is DaFKDFeatures, coded or "gradient_penalty" in options
    weight, saturating = (1, True) if options.keys() <= {"gradient_penalty"} else (2, False)
    rate = 1e-4 if coded else 1e-3
    gan = {"betas": (0.5, 0.99), "amsgrad": True} if coded else {}
    adam = torch.optim.Adam(generator.parameters(), lr=rate, weight_decay=rate, **gan)
    noise, between = me.rng("generator"), me.rng("generator/penalty")

    def made(n):
        z = torch.randn(n, 4, generator=noise)
        return generator(z, torch.randint(3, (n,), generator=noise))

    def domain(x):
        """The classifier's own trunk, whose feature has six numbers, and one more linear layer."""
        z = x if features else two.net.features(x)
        return F.linear(z, two.head[0].weight, two.head[0].bias)[:, 0]

    for rows in batches(me.n, 4, 3, me.rng("batches")):
        x, y = me.train.take(rows)
        samples = made(len(x)).detach()
        real, fake = two.head(two.net.features(x))[:, 0].sigmoid(), domain(samples).sigmoid()
        adversarial = -(real.log().sum() + (1 - fake).log().sum()) / (2 * len(x))
        loss = F.cross_entropy(two.net(x), y) + weight * adversarial
        if penalised:
            z = two.net.features(x) if features else x
            loss = loss + 0.3 * gradient_penalty(domain, z, samples, between)
        gradients = torch.autograd.grad(loss, list(two.parameters()))
        with torch.no_grad():
            for p, gradient in zip(two.parameters(), gradients, strict=True):
                p -= 0.1 * gradient
        against = domain(made(len(x))).sigmoid()  # of the discriminator after its step
        assert against.mean() < 0.3
        adam.zero_grad()
        ((1 - against).log() if saturating else -against.log()).mean().backward()
        adam.step()

    with_head = {**sent, "head": head} if coded else sent
    answer = act(method, replace(me, memory={} if coded else {"head": head}), Message("train", 0, with_head))
    assert close(answer.body["model"], params(two.net), atol=1e-9)
    assert close(answer.body["head"], two.own_weights(), atol=1e-9)
    assert close(answer.body["generator"], params(generator), atol=1e-9)
    assert coded or equal(answer.keep["head"], answer.body["head"])


def test_a_client_changes_nothing_that_it_was_sent(setting):
    federation, method = setting(), tiny()
    state = State(0, method.init(Serial(federation).open(method, 0)))
    copy = {name: {key: w.clone() for key, w in state[name].items()} for name in ("model", "generator")}
    answers(method, federation, state, 1)
    assert all(equal(state[name], copy[name]) for name in copy)


def test_heads_differ_stay_and_go_on(setting):
    federation, method = setting(), tiny()
    engine = Serial(federation)
    state = run(method, engine, 1)
    kept = {k: m["head"] for k, m in engine.memories.items()}
    active = federation.active(1)
    assert sorted(kept) == active
    assert not equal(kept[active[0]], kept[active[1]])
    assert all(set(m) == {"head"} for m in engine.memories.values())
    run(method, engine, 2, state)
    for k in active:
        same = equal(engine.memories[k]["head"], kept[k])
        assert same is (k not in federation.active(2))
    # With a memory the discriminator begins where it was, without one from the head that all begin with.
    me = federation.client(active[0], 2, {})
    sent = {"model": state["model"], "generator": state["generator"]}
    fresh, again = (
        act(method, replace(me, memory=memory), Message("train", me.id, sent))
        for memory in ({}, {"head": kept[active[0]]})
    )
    assert not equal(fresh.keep["head"], again.keep["head"])


def test_the_code_has_one_head_for_all(setting, play):
    federation = setting()
    method = tiny(common_head=True)
    played = play(method, federation, 2)
    assert played.engine.memories == {}
    first = answers(method, federation, played.states[0], 1)
    mean = average([a.body["head"] for a in first.values()], [1, 1], played.states[0]["head"])
    assert equal(played.states[1]["head"], mean)
    assert not equal(played.states[1]["head"], played.states[0]["head"])
    assert played.rounds[1].ledger.down["weights"] > play(tiny(), federation, 2).rounds[1].ledger.down["weights"]


def test_a_trunk_of_its_own_leaves_the_classifier_alone(setting, play):
    """What the discriminator learns then does not reach the classifier; only distillation would."""
    federation = setting()
    plain = play(UNIFORM, federation, 2).model
    for shared, same in ((0, True), (None, False)):
        method = tiny(distil_steps=0, shared_layers=shared)
        assert close(play(method, federation, 2).model, plain) is same
    unshared = play(tiny(shared_layers=0), federation, 2)
    assert all("own.1.weight" in m["head"] for m in unshared.engine.memories.values())


@pytest.mark.parametrize("round", [1, 2, 3, 4, 5, 6, 7])
def test_the_codes_game_ends_early(round, setting):
    federation = setting(participation=Participation())
    method = tiny(gan_window="early")
    fed = Serial(federation).open(method, 0)
    state = State(0, method.init(fed))
    answer = answers(method, federation, state, round)[0]
    start = method.two_heads(fed).own_weights()
    trains = (not equal(answer.keep["head"], start), not equal(answer.body["generator"], state["generator"]))
    assert trains == (round <= 3, round <= 5)


def test_in_an_early_round_only_five_epochs_count(setting, play):
    federations = [setting((9,), work=LocalWork(epochs=n, batch=4, lr=0.05)) for n in (5, 7)]
    for window, same in (("early", True), ("always", False)):
        method = tiny(gan_window=window)
        five, seven = (play(method, f, 1).rounds[0].ledger.clients for f in federations)
        assert (five.generator_backward, five.generator_forward) == (5 * 2, 2 * 5 * 2)  # two batches in an epoch
        last = 5 if same else 7
        assert (seven.generator_backward, seven.generator_forward) == (last * 2, 2 * last * 2)


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weights", "share"), [("uniform", [1, 1, 1]), ("size", [9, 17, 33])])
def test_generators_are_averaged_with_their_statistics(weights, share, play):
    method = tiny(weights=weights)
    sites = [WITH_BATCH_NORM.sites[i] for i in (0, 3, 5)]
    federation = replace(WITH_BATCH_NORM, sites=sites, participation=Participation())
    start, after = play(method, federation, 1).states
    each = [a.body["generator"] for a in answers(method, federation, start, 1).values()]
    assert equal(after["generator"], average(each, share, start["generator"]))
    name = "layers.2.running_mean"
    by_hand = sum(n * g[name].double() for n, g in zip(share, each, strict=True)) / sum(share)
    assert torch.allclose(after["generator"][name].double(), by_hand, atol=1e-7)
    assert by_hand.abs().max() > 0
    assert int(after["generator"]["layers.2.num_batches_tracked"]) == 0  # a counter stays the server's


def test_the_first_distillation_step_by_hand(setting):
    """Two clients, three samples in one batch, one step: every number of Eq. 7 and 8 written out."""
    federation = setting(sizes=(9, 12), participation=Participation())
    options = {"distil_samples": 3, "distil_batch": 3, "distil_steps": 1, "distil_lr": 0.5, "distil_optimiser": "sgd"}
    method = tiny(**options)
    fed = Serial(federation).open(method, 1)
    state = State(0, method.init(fed))
    answered = answers(method, federation, state, 1)
    replies = [Message("train", k, a.body) for k, a in answered.items()]
    generator = average([r["generator"] for r in replies], [1, 1], state["generator"])
    model = average([r["model"] for r in replies], [1, 1], state["model"])
    # The same by hand.
    number = int(torch.randint(2**62, (), generator=fed.rng("pseudo set")))
    stream = torch.Generator().manual_seed(number)
    z, labels = torch.randn(3, 4, generator=stream), torch.randint(3, (3,), generator=stream)
    x = load(method.new_generator(fed), generator).eval()(z, labels).detach()
    alpha, s = [], []
    for r in replies:
        net = load(network(), r["model"])
        feature = net.features(x)
        alpha.append((feature @ r["head"]["head.0.weight"].T + r["head"]["head.0.bias"]).sigmoid()[:, 0])
        s.append(net.head(feature).softmax(1))
    teacher = sum(a[:, None] * p for a, p in zip(alpha, s, strict=True)) / (alpha[0] + alpha[1])[:, None]
    student = load(network(), model)
    q = student(x).softmax(1)
    teacher = teacher.detach()
    (teacher * (teacher.log() - q.log())).sum(1).mean().backward()
    expected = {name: p.detach() - 0.5 * p.grad for name, p in student.named_parameters()}
    found = method.distil(fed, replies, model, generator)
    assert close(found["model"], expected)
    assert not close(found["model"], model, atol=1e-5)
    shares = torch.stack(alpha) / sum(alpha)
    for c in teacher.argmax(1).unique():
        assert torch.allclose(found["importance"][:, c], shares[:, teacher.argmax(1) == c].mean(1), atol=1e-6)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_four_distillation_steps_of_the_code_by_hand(optimiser, setting):
    """Weighted logits, tau = 20, tau^2 and the mean over classes; SGD shows the loss's scale, which Adam hides."""
    federation = setting(participation=Participation())
    options = {"distil_samples": 6, "distil_batch": 2, "distil_steps": 4, "distil_optimiser": optimiser}
    method = tiny(**options, variant="reference")
    fed, draw = Serial(federation).open(method, 2), torch.Generator().manual_seed(0)
    state = State(1, method.init(fed))
    generator = {**state["generator"], "layers.9.weight": 30 * state["generator"]["layers.9.weight"]}  # unlike images
    replies = []
    for k in (0, 2):  # clients that disagree about what is theirs and what it is
        model = {name: 3 * torch.randn(w.shape, generator=draw) for name, w in state["model"].items()}
        head = {name: torch.randn(w.shape, generator=draw) for name, w in state["head"].items()}
        replies.append(Message("train", k, {"model": model, "head": head}))
    stream = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=fed.rng("pseudo set"))))
    z, labels = torch.randn(6, 4, generator=stream), torch.randint(3, (6,), generator=stream)
    x = load(method.new_generator(fed), generator).eval()(z, labels).detach()
    alpha, logits = [], []
    for r in replies:
        net = load(network(), r["model"])
        feature = net.features(x)
        alpha.append((feature @ r["head"]["head.0.weight"].T + r["head"]["head.0.bias"]).sigmoid())
        logits.append(net.head(feature))
    mixed = (alpha[0] * logits[0] + alpha[1] * logits[1]) / (alpha[0] + alpha[1])
    teacher = (mixed / 20).softmax(1).detach()
    student = load(network(), state["model"])
    learn = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimiser](student.parameters(), lr=1e-4)
    order = fed.rng("distillation")
    for rows in [*torch.randperm(6, generator=order).split(2), torch.randperm(6, generator=order)[:2]]:
        q = (student(x[rows]) / 20).softmax(1)
        apart = teacher[rows] * (teacher[rows].log() - q.log())
        learn.zero_grad()
        (20**2 * apart.mean()).backward()  # over two samples and three classes
        learn.step()
    found = method.distil(fed, replies, state["model"], generator)
    assert close(found["model"], params(student))
    assert not close(found["model"], state["model"], atol=1e-4)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (DaFKD, {}),
        (DaFKDNoCorrelation, {}),
        (DaFKDFeatures, {}),
        (DaFKDScores, {}),
        (DaFKDPredictions, {}),
        (DaFKD, {"variant": "reference", "kd_start": 1}),
    ],
    ids=repr,
)
def test_replies_are_not_changed(cls, options, monkeypatch):
    """Nor is what the server began with, when the average learns from them."""
    method = tiny(cls, **{"distil_lr": 0.5} | options)
    fed = Serial(WITH_BATCH_NORM).open(method, 1)
    state = State(0, method.init(fed))
    start, kept, real = digest(state.body), [], fed.ask

    def ask(*args, **body):
        replies = real(*args, **body)
        kept.extend((r, digest(r.body)) for r in replies)
        return replies

    monkeypatch.setattr(fed, "ask", ask)
    method.round(state, fed)
    assert fed.meter.steps == 3  # of the distillation
    assert len(kept) > 1
    assert [digest(r.body) for r, _ in kept] == [before for _, before in kept]
    assert digest(state.body) == start


def test_samples_come_from_the_new_generator_or_as_in_the_code_the_old(setting, monkeypatch):
    federation, seen = setting(), []
    real = DaFKD.made

    def note(self, where, weights, number, samples):
        seen.append(weights)
        return real(self, where, weights, number, samples)

    monkeypatch.setattr(DaFKD, "made", note)
    for source in ("new", "old"):
        seen.clear()
        method = tiny(pseudo_from=source)
        start = State(0, method.init(Serial(federation).open(method, 0)))
        after = run(method, Serial(federation), 1, start)
        assert equal(seen[0], (after if source == "new" else start)["generator"])


def test_distillation_begins_when_it_should(setting, play):
    late = play(tiny(kd_start=2), setting(), 2).states
    without = play(tiny(distil_steps=0), setting(), 2).states
    assert equal(late[1]["model"], without[1]["model"])
    assert not equal(late[2]["model"], without[2]["model"])


def test_the_clients_models_and_the_trunk_are_left_as_they_are_by_a_features_generator(setting, play):
    """The average's trunk is not distilled; its head is."""
    distilled = play(tiny(DaFKDFeatures, distil_lr=0.5), setting(), 1).model
    plain = play(tiny(DaFKDFeatures, distil_lr=0.5, distil_steps=0), setting(), 1).model
    assert {name: torch.equal(w, plain[name]) for name, w in distilled.items()} == {
        name: name.startswith("features.") for name in plain
    }


def test_a_silent_round_changes_nothing(setting, play):
    silent = setting(participation=replace(HALF, late_drop=0.999999))
    start, after = play(tiny(), silent, 1).states
    assert after.round == 1
    assert equal(start.body, after.body)


# --- heads that stay with their clients -------------------------------------------------------------------------------


UPLOADS = (DaFKD, DaFKDScores, DaFKDPredictions)


@pytest.mark.parametrize(
    ("classes", "options"),
    [
        (UPLOADS, {}),
        (UPLOADS, {"shared_layers": 0}),
        ((DaFKDFeatures, FeatureScores, FeaturePredictions), {}),
        (UPLOADS, {"tau": 3.0}),
    ],
    ids=repr,
)
def test_private_heads_give_the_same_teacher(classes, options):
    """With large random heads and models, so that clients disagree about what is theirs and what it is."""
    found = []
    for cls in classes:
        method = tiny(cls, **options)
        engine = Serial(WITH_BATCH_NORM)
        fed, draw = engine.open(method, 1), torch.Generator().manual_seed(0)
        two, replies = method.two_heads(fed), []
        for k in (0, 3, 5):
            model, head = params(two.net), two.own_weights()
            for name in ("head.1.weight", "head.0.weight"):  # the classifier's after its dropout, the discriminator's
                weights = model if name in model else head
                weights[name] = 20 * torch.randn(weights[name].shape, generator=draw)
            engine.memories[k] = {"head": head, "model": model}
            shown = {"head": head} if method.shown(1) else {}
            replies.append(Message("train", k, {"model": model, **shown}))
        made_from = {"generator": params(method.new_generator(fed)), "number": 7}
        x = method.made(fed, **made_from, samples=method.distil_samples)
        teacher, _ = method.teacher(fed, replies, x, **made_from)
        found.append(teacher)
        if method.shown(1):
            plain, _ = method.weighted(fed, replies, torch.ones(3, len(x)), method.logits(fed, models(replies), x))
        else:
            assert all(set(m) == {"head"} for m in engine.memories.values())  # the model was kept for the scores only
    for teacher in found[1:]:
        assert torch.allclose(teacher, found[0], rtol=0, atol=1e-6)
    assert (found[0] - plain).abs().max() > 0.05


@pytest.mark.parametrize("cls", [DaFKDScores, DaFKDPredictions])
def test_with_private_heads_a_run_ends_as_with_open_ones(cls, play):
    open_, private = (play(tiny(c), WITH_BATCH_NORM, 2) for c in (DaFKD, cls))
    for a, b in zip(open_.states, private.states, strict=True):
        assert close(a["model"], b["model"])
    assert all(set(m) == {"head"} for m in private.engine.memories.values())
    assert ("importance" in private.states[-1].body) is (cls is DaFKDScores)


def test_a_limited_share_works_with_scores_as_with_heads(setting, play):
    limit = {"max_share": 0.55, "distil_lr": 0.5}
    everyone = setting(participation=Participation())
    heads, told = (play(tiny(cls, **limit), everyone, 2).model for cls in (DaFKD, DaFKDScores))
    assert close(heads, told)


def test_without_an_answer_to_the_second_question_the_average_stays(setting, play, monkeypatch):
    plain = play(tiny(distil_steps=0), setting(), 1).model
    real = Round.ask
    monkeypatch.setattr(
        Round, "ask", lambda self, action, *a, **b: [] if action == "score" else real(self, action, *a, **b)
    )
    assert equal(play(tiny(DaFKDScores), setting(), 1).model, plain)


def test_a_sample_that_all_disown_is_taught_by_all_alike(setting):
    """Also from products, which say nothing of it: the server has the models."""
    federation = setting()
    found = []
    for cls in (DaFKD, DaFKDPredictions):
        method = tiny(cls)
        engine = Serial(federation)
        fed = engine.open(method, 1)
        state = State(0, method.init(fed))
        replies = []
        for k, answer in answers(method, federation, state, 1).items():
            head = {"head.0.weight": torch.zeros(1, 6), "head.0.bias": torch.full((1,), -1e4)}  # f = 0
            engine.memories[k] = {"head": head, "model": answer.body["model"]}
            replies.append(Message("train", k, {**answer.body, "head": head}))
        found.append(method.distil(fed, replies, state["model"], state["generator"])["model"])
    assert close(found[0], found[1])
    assert not close(found[0], state["model"], atol=1e-5)


# --- costs ------------------------------------------------------------------------------------------------------------

NORMS = 4 * 2 * (16 + 160 + 320 + 640) + 8 * 13  # running means and variances of ResNet-11, and thirteen counters
WEIGHTS, TRUNK, HEAD = 4 * 383_642 + NORMS, 4 * 381_072 + NORMS, 4 * 257
GENERATOR = 4 * (1_068_931 + 2 * (256 + 128 + 64)) + 8 * 3
SAMPLES, N = 4, 8  # of the distillation; bytes of a number


@pytest.mark.parametrize(
    ("cls", "options", "down", "up"),
    [
        (DaFKD, {}, (WEIGHTS, GENERATOR, 0), (WEIGHTS + HEAD, GENERATOR, N)),
        (DaFKD, {"shared_layers": 0}, (WEIGHTS, GENERATOR, 0), (WEIGHTS + TRUNK + HEAD, GENERATOR, N)),
        (DaFKDNoCorrelation, {}, (WEIGHTS, GENERATOR, 0), (WEIGHTS, GENERATOR, N)),
        (DaFKD, {"kd_start": 2}, (WEIGHTS, GENERATOR, 0), (WEIGHTS, GENERATOR, N)),
        (DaFKD, {"common_head": True}, (WEIGHTS + HEAD, GENERATOR, 0), (WEIGHTS + HEAD, GENERATOR, N)),
        (DaFKDScores, {}, (WEIGHTS, 2 * GENERATOR, N), (WEIGHTS, GENERATOR, N + 4 * SAMPLES)),
        (DaFKDPredictions, {}, (WEIGHTS, 2 * GENERATOR, N), (WEIGHTS, GENERATOR, N + 4 * SAMPLES * 10)),
    ],
    ids=["head", "no sharing", "no correlation", "no distillation yet", "one head", "scores", "predictions"],
)
def test_bytes_of_the_papers_networks(cls, options, down, up, small_setting, random_sites, play):
    federation = small_setting(
        [],
        sites=random_sites([2], shape=(3, 32, 32), classes=10),
        networks=[partial(create, "resnet11", classes=10, channels=3, size=32)],
        classes=10,
    )
    method = cls(generator_kind="unconditional", distil_samples=SAMPLES, distil_steps=1, **options)
    ledger = play(method, federation, 1).rounds[0].ledger
    for expected, counted in ((down, ledger.down), (up, ledger.up)):
        rest = counted.total() - counted["weights"] - counted["generator"] - counted["framing"]
        assert (counted["weights"], counted["generator"], rest) == expected


def test_it_sends_3_8_times_what_fedavg_sends():
    assert round((WEIGHTS + GENERATOR) / WEIGHTS, 1) == round((WEIGHTS + GENERATOR + HEAD) / WEIGHTS, 1) == 3.8
    assert round((WEIGHTS + GENERATOR + TRUNK + HEAD) / WEIGHTS, 1) == 4.8


@pytest.mark.parametrize(
    ("cls", "options", "passes"),
    [
        (DaFKD, {}, (3, 3, 2, 1)),  # real, made, made for the generator
        (DaFKD, {"shared_layers": 0}, (4, 4, 2, 1)),
        (DaFKDFeatures, {}, (2, 2, 2, 1)),
        (DaFKD, {"gradient_penalty": 0.3}, (4, 4, 2, 1)),
    ],
    ids=repr,
)
def test_passes_of_a_local_batch(cls, options, passes, setting, play):
    clients = play(tiny(cls, **options), setting(), 1).rounds[0].ledger.clients
    counted = (clients.forward, clients.backward, clients.generator_forward, clients.generator_backward)
    assert tuple(c / clients.steps for c in counted) == passes


@pytest.mark.parametrize(
    ("cls", "options", "forward", "clients"),
    [
        (DaFKD, {}, 4, 0),
        (DaFKD, {"shared_layers": 0}, 2 * 4, 0),
        (DaFKDNoCorrelation, {}, 4, 0),
        (DaFKDScores, {}, 4, 4),
        (DaFKDPredictions, {}, 0, 4),
    ],
    ids=repr,
)
@pytest.mark.parametrize("steps", [1, 7])
def test_teachers_answer_once_a_round_however_many_steps_follow(cls, options, forward, clients, steps, setting, play):
    """Four teachers, to which all samples are one batch; then forth and back for every step."""
    federation = setting(participation=Participation())
    ledger = play(tiny(cls, **options, distil_steps=steps), federation, 1).rounds[0].ledger
    server = ledger.server
    assert (server.steps, server.forward, server.backward) == (steps, forward + steps, steps)
    assert (server.generator_forward, server.generator_backward) == (1, 0)
    without = play(tiny(cls, **options, distil_steps=0), federation, 1).rounds[0].ledger.clients
    assert ledger.clients.forward - without.forward == clients


# --- generators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kind", "made", "numbers"),
    [
        ((3, 32, 32), "unconditional", DoublingImages, 1_068_931),
        ((1, 28, 28), "unconditional", HalvingImages, 328_764),
        ((1, 28, 28), "conditional", PerceptronImages, 674_304 + 1025 * 28 * 28),
        ((3, 32, 32), "conditional", PerceptronImages, 674_304 + 1025 * 3 * 32 * 32),
    ],
)
def test_generators_have_the_sizes_of_the_code_and_ours(shape, kind, made, numbers):
    """Ours: 11 * 128 + 101 * 128 for the embeddings, 257 * 512 + 513 * 1024 and two BatchNorms, and the last layer."""
    channels = shape[0]
    generator = adversarial_generator(shape, Scale((0.5,) * channels, (0.5,) * channels), classes=10, kind=kind)
    assert type(generator) is made
    assert parameter_count(generator) == numbers
    images = generator(torch.randn(3, 100, generator=torch.Generator().manual_seed(0)), torch.arange(3))
    assert images.shape == (3, *shape)
    assert -1 <= images.min() < -0.01 < 0.01 < images.max() <= 1


@pytest.mark.parametrize("kind", ["conditional", "unconditional"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 16, 8), (3, 10, 12)])
def test_generators_make_images_of_other_sizes_on_the_datas_scale(kind, shape):
    generator = adversarial_generator(
        shape, Scale((0.0,) * shape[0], (0.25,) * shape[0]), classes=5, kind=kind, noise=6, width=8
    )
    with torch.no_grad():
        list(generator.modules())[-1].bias.fill_(50.0)  # white: the brightest pixel, which is 1 before normalisation
    images = generator(torch.randn(2, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 4]))
    assert images.shape == (2, *shape)
    assert torch.allclose(images, torch.full_like(images, 4.0))


def test_only_the_papers_generator_looks_at_labels():
    z = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
    for kind, same in (("conditional", False), ("unconditional", True)):
        generator = adversarial_generator((1, 8, 8), Scale(), classes=5, kind=kind, noise=6, width=8).eval()
        assert torch.equal(generator(z, torch.tensor([0, 1])), generator(z, torch.tensor([3, 1]))) is same


# --- the contract, and what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (DaFKD, {"variant": "reference", "shared_layers": 0, "oca": True}),
        (DaFKDScores, {"variant": "paper", "max_share": 0.4, "weights": "disco"}),
        (DaFKDFeatures, {"variant": "paper", "max_share": 0.4}),
        (DaFKDPredictions, {"variant": "reference"}),
    ],
    ids=repr,
)
def test_options_keep_the_contract(cls, options):
    check_method(tiny(cls, **options), MLP)


VARIANTS = {  # recommended, paper, reference
    "common_head": (False, False, True),
    "adversarial": (1.0, 1.0, 2.0),
    "saturating": (True, True, False),
    "gradient_penalty": (0.0, 0.0, 0.3),
    "gan_window": ("always", "always", "early"),
    "generator_lr": (1e-3, 1e-3, 1e-4),
    "generator_weight_decay": (1e-3, 1e-3, 1e-4),
    "generator_kind": ("conditional", "conditional", "unconditional"),
    "generator_adam": ("usual", "usual", "gan"),
    "pseudo_from": ("new", "new", "old"),
    "kd_start": (1, 1, 2),
    "ensemble": ("prob", "prob", "logit"),
    "tau": (1.0, 1.0, 20.0),
    "kd_scale": ("plain", "plain", "tau2_mean"),
    "student_mode": ("eval", "train", "train"),
    "distil_steps": (200, 200, 1600),
    "distil_optimiser": ("sgd", "sgd", "adam"),
    "distil_lr": (0.01, 0.01, 1e-4),
}


def test_variants_choose_what_is_not_said():
    assert {found.name for found in options_of(DaFKD) if found.variants} == VARIANTS.keys()
    for column, variant in enumerate(("recommended", "paper", "reference")):
        method = DaFKD(variant=variant)
        assert {name: getattr(method, name) for name in VARIANTS} == {
            name: row[column] for name, row in VARIANTS.items()
        }
        assert method.aggregation.weights == ("uniform", "uniform", "size")[column]
    assert DaFKD().variant == "recommended"
    assert not DaFKD().cache.oca


def test_what_is_the_same_in_all_variants():
    """From the code, as the paper does not say it: 40 batches of 32 samples, and how many numbers the noise has."""
    method = DaFKD(variant="reference")
    assert (method.distil_samples, method.distil_batch, method.noise) == (40 * 32, 32, 100)
    assert (method.shared_layers, method.max_share) == (None, 1.0)


def test_an_option_given_by_hand_overrides_the_variant():
    mixed = DaFKD(variant="reference", gradient_penalty=0.0, common_head=False, distil_steps=0)
    assert (mixed.gradient_penalty, mixed.common_head, mixed.distil_steps, mixed.tau) == (0.0, False, 0, 20.0)


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (DaFKD, "adversarial", -1.0),
        (DaFKD, "gradient_penalty", -1.0),
        (DaFKD, "generator_lr", 0.0),
        (DaFKD, "generator_weight_decay", -1.0),
        (DaFKD, "generator_width", 1),
        (DaFKD, "noise", 0),
        (DaFKD, "shared_layers", -1),
        (DaFKD, "distil_steps", -1),
        (DaFKD, "distil_samples", 1),
        (DaFKD, "distil_batch", 1),
        (DaFKD, "distil_lr", 0.0),
        (DaFKD, "kd_start", 0),
        (DaFKD, "tau", 0.0),
        (DaFKD, "max_share", 0.0),
        (DaFKD, "ensemble", "probs"),
        (DaFKDScores, "common_head", True),
        (DaFKDPredictions, "common_head", True),
        (DaFKDPredictions, "max_share", 0.5),
        (DaFKDNoCorrelation, "max_share", 0.5),
        (DaFKDPredictions, "ensemble", "logit"),
    ],
)
def test_impossible_options_are_refused(cls, name, value):
    with pytest.raises(UsageError, match=rf"^{cls.name}\.{name} = {value!r} must"):
        cls(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("shared_layers", 0), ("generator_width", 8)])
def test_a_generator_of_features_has_no_options_of_images(name, value):
    with pytest.raises(UsageError, match=rf"^dafkd-features\.{name} has no effect"):
        DaFKDFeatures(**{name: value})
