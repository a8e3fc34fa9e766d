"""FedDF: groups of equal networks, the ensemble they learn from, when it stops, and where it is FedAvg to the bit."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.options import options_of
from fedalloy.base.rng import generator
from fedalloy.base.tree import digest, equal
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import run
from fedalloy.federation.participation import Participation
from fedalloy.methods import FedAvg, FedDF
from fedalloy.nets.models import create
from fedalloy.train.costs import forward_flops
from fedalloy.train.fit import LocalWork, load, params

small = partial(create, "mlp", classes=3, channels=1, size=2, hidden=5)
large = partial(create, "mlp", classes=3, channels=1, size=2, hidden=9)
WORK = LocalWork(epochs=2, batch=4, lr=0.1)


def public(n=12, labelled=False):
    draw = generator(7, "public")
    samples = Samples(torch.randn(n, 1, 2, 2, generator=draw), torch.arange(n) % 3, torch.arange(n))
    return PublicSet(samples, labelled=labelled, holder="server")


@pytest.fixture
def setting(small_setting, random_sites):
    def make(networks=(small,), labelled=False, **options):
        sites = random_sites([9, 12, 7, 10], shape=(1, 2, 2))
        options = {"work": WORK, "participation": Participation(policy="fraction", fraction=0.5), **options}
        return small_setting([], sites=sites, networks=list(networks), public=public(labelled=labelled), **options)

    return make


def close(a, b, atol):
    return all(torch.allclose(t, b[name], rtol=0, atol=atol) for name, t in a.items())


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_without_steps_it_is_fedavg_bit_for_bit(weights, setting, play):
    rule = Aggregation(weights=weights)
    plain = play(FedAvg(aggregation=rule), setting(), 3)
    same = play(FedDF(steps=0, aggregation=rule), setting(), 3)
    other = play(FedDF(steps=2, batch=4, aggregation=rule), setting(), 3)
    for a, b in zip(plain.states, same.states, strict=True):
        assert equal(a["model"], b["models"]["0"])
    assert not equal(plain.model, other.states[-1]["models"]["0"])


def test_without_steps_each_group_is_fedavg_among_its_own(setting, play):
    both = setting([small, large, small, large], participation=Participation())
    state = play(FedDF(steps=0), both, 1).states[-1]
    replies = {k: Serial(both).open(FedDF(), 1).ask("train", {k: {"model": m}})[0] for k, m in starts(both).items()}
    for g, members in (("0", [0, 2]), ("1", [1, 3])):
        total = sum(replies[k]["n"] for k in members)
        for name, value in state["models"][g].items():
            wanted = sum(replies[k]["model"][name].double() * (replies[k]["n"] / total) for k in members)
            assert torch.allclose(value, wanted.float(), atol=1e-7)


def starts(setting):
    state = FedDF().init(Serial(setting).open(FedDF(), 0))
    group = {k: str(g) for g, ids in enumerate(setting.groups) for k in ids}
    return {k: state["models"][group[k]] for k in setting.ids}


def test_groups_are_found_from_the_networks_and_have_views_of_their_own(setting, play):
    # Two makers of the same network are one group; a different width is another.
    twin = partial(create, "mlp", classes=3, channels=1, size=2, hidden=5)
    both = setting([small, large, twin, large])
    assert both.groups == [[0, 2], [1, 3]]
    method = FedDF(steps=1, batch=4)
    assert list(method.models(play(method, both, 1).states[-1])) == ["group 0", "group 1"]
    assert list(method.models(play(method, setting(), 1).states[-1])) == ["global"]


def test_a_group_without_an_active_client_stays_as_it_is(setting, play):
    lone = setting([small, large, small, large], participation=Participation(policy="trace", trace=((0, 2),)))
    played = play(FedDF(steps=3, batch=4), lone, 1)
    assert equal(played.states[0]["models"]["1"], played.states[1]["models"]["1"])
    assert not equal(played.states[0]["models"]["0"], played.states[1]["models"]["0"])


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("ensemble", ["logits", "probabilities"])
def test_five_steps_by_hand(ensemble, setting):
    # Both groups learn from the mean answer of all four clients, on the same batches of the public set. Adam alone
    # would not tell a loss from ten times that loss; the clip does, since it bites in some of the steps.
    federation = setting([small, large, small, large], participation=Participation())
    lr, tau, clip, steps = 0.02, 2.0, 0.03, 5
    method = FedDF(steps=steps, batch=5, lr=lr, tau=tau, clip_gradients=clip, ensemble=ensemble)
    averaged = run(FedDF(steps=0), Serial(federation), 1)
    fed = Serial(federation).open(method, 1)
    replies = fed.ask("train", {k: {"model": m} for k, m in starts(federation).items()})
    x = federation.public.inputs
    teachers = torch.stack([load(federation.build(r.client), r["model"])(x).detach() for r in replies])
    target = (teachers.mean(0) / tau).softmax(1) if ensemble == "logits" else (teachers / tau).softmax(2).mean(0)
    order, plan = fed.rng("distillation"), []
    while len(plan) < steps:  # of a pass over twelve inputs two are left out
        plan += torch.randperm(12, generator=order)[:10].split(5)
    done = run(method, Serial(federation), 1)
    for g in ("0", "1"):
        net = load(federation.build(int(g)), averaged["models"][g])
        weights = list(net.parameters())
        m, v, norms = [0.0] * len(weights), [0.0] * len(weights), []
        for t, rows in enumerate(plan[:steps]):
            p, q = target[rows], (net(x[rows]) / tau).softmax(1)
            gradients = torch.autograd.grad((p * (p.log() - q.log())).sum() / 5, weights)
            norm = torch.cat([d.flatten() for d in gradients]).norm().item()
            norms.append(norm)
            rate = lr * (1 + math.cos(math.pi * t / steps)) / 2
            with torch.no_grad():
                for i, gradient in enumerate(gradients):
                    d = gradient * min(1.0, clip / norm)
                    m[i] = 0.9 * m[i] + 0.1 * d
                    v[i] = 0.999 * v[i] + 0.001 * d**2
                    root = (v[i] / (1 - 0.999 ** (t + 1))).sqrt()
                    weights[i] -= rate * m[i] / (1 - 0.9 ** (t + 1)) / (root + 1e-8)
        assert close(done["models"][g], params(net), atol=1e-6), g
        assert min(norms) < clip < max(norms)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("ensemble", ["logits", "probabilities"])
def test_a_lone_client_teaches_its_own_model_nothing_new(ensemble, setting, play):
    # The average of one client is that client, so that the divergence and its gradient are zero; not so of two. Only
    # two steps: Adam also makes steps of what rounding leaves of a zero, each some thousand times the last.
    for active, same in (((1,), True), ((0, 1), False)):
        federation = setting(participation=Participation(policy="trace", trace=(active,)))
        plain, taught = (
            play(FedDF(steps=steps, batch=4, tau=2.0, ensemble=ensemble), federation, 1).states[-1]["models"]["0"]
            for steps in (0, 2)
        )
        assert close(plain, taught, atol=1e-7 if same else 1e-4) is same


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_three_steps_of_sgd_by_hand(schedule, setting):
    """At a rate that stays or falls, on batches of 5, 5 and 2: the last batch of a pass is not left out."""
    federation = setting(participation=Participation())
    method = FedDF(steps=3, batch=5, optimiser="sgd", lr=0.3, schedule=schedule, drop_last=False)
    averaged = run(FedDF(steps=0), Serial(federation), 1)["models"]["0"]
    fed = Serial(federation).open(method, 1)
    replies = fed.ask("train", {k: {"model": m} for k, m in starts(federation).items()})
    x = federation.public.inputs
    target = torch.stack([load(small(), r["model"])(x).detach() for r in replies]).mean(0).softmax(1)
    net = load(small(), averaged)
    for t, rows in enumerate(torch.randperm(12, generator=fed.rng("distillation")).split(5)):
        loss = (target[rows] * (target[rows].log() - net(x[rows]).log_softmax(1))).sum() / len(rows)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        rate = 0.3 if schedule == "constant" else 0.3 * (1 + math.cos(math.pi * t / 3)) / 2
        with torch.no_grad():
            for p, gradient in zip(net.parameters(), gradients, strict=True):
                p -= rate * gradient
    assert close(run(method, Serial(federation), 1)["models"]["0"], params(net), atol=1e-9)


VARIANTS = {  # recommended, reference, dafkd
    "ensemble": ("logits", "logits", "probabilities"),
    "batch": (128, 64, 128),
    "drop_last": (True, False, True),
    "optimiser": ("adam", "adam", "sgd"),
    "lr": (1e-3, 1e-3, 0.01),
    "schedule": ("cosine", "cosine", "constant"),
}


def test_variants():
    assert {found.name for found in options_of(FedDF) if found.variants} == VARIANTS.keys()
    for column, variant in enumerate(("recommended", "reference", "dafkd")):
        method = FedDF(variant=variant)
        assert [getattr(method, name) for name in VARIANTS] == [row[column] for row in VARIANTS.values()]
        assert method.aggregation.weights == ("size", "uniform", "size")[column]


def test_the_defaults_are_the_codes():
    method = FedDF()
    assert (method.steps, method.batch, method.check_every, method.patience) == (10_000, 128, 100, 1_000)
    assert (method.lr, method.tau, method.clip_gradients, method.ensemble) == (1e-3, 1.0, 5.0, "logits")


def test_teachers_answer_once_for_each_input_and_the_servers_passes_are_counted(setting):
    federation = setting(participation=Participation())
    engine, method = Serial(federation), FedDF(steps=8, batch=12)
    fed = engine.open(method, 1)
    state = run(method, engine, 0)
    method.round(state, fed)
    # 4 teachers see the 12 inputs in one batch; the student takes 8 steps, forward and backward.
    assert (fed.meter.steps, fed.meter.forward, fed.meter.backward) == (8, 4 + 8, 8)


def test_only_inputs_that_are_used_are_answered_for(setting):
    federation = setting(participation=Participation())
    engine, method = Serial(federation), FedDF(steps=1, batch=4)
    fed = engine.open(method, 1)
    method.round(run(method, engine, 0), fed)
    once = forward_flops(fed.build(), federation.sites[0].train.x)
    by_teachers = 4 * 4 * once
    assert by_teachers < fed.meter.flops < by_teachers + 4 * 3 * once  # the student's first layer has one gradient less


def test_replies_are_not_changed(setting, monkeypatch):
    federation = setting(participation=Participation())
    engine, method = Serial(federation), FedDF(steps=3, batch=4)
    fed = engine.open(method, 1)
    kept = []
    real = fed.ask
    monkeypatch.setattr(fed, "ask", lambda *a, **k: kept.extend(real(*a, **k)) or kept)
    before = run(method, engine, 0)
    method.round(before, fed)
    again = Serial(federation).open(method, 1).ask("train", {k: {"model": m} for k, m in starts(federation).items()})
    assert [digest(r.body) for r in kept] == [digest(r.body) for r in again]


def test_validation_keeps_the_best_student_and_stops(setting, monkeypatch):
    federation = setting(labelled=True, participation=Participation())
    method = FedDF(steps=50, batch=4, validation=0.25, check_every=1, patience=3, lr=0.05)
    scores = iter([0.1, 0.5, 0.4, 0.3, 0.2, 0.9])
    seen = []

    def fake(net, samples):
        if len(samples) == 3:  # the validation part
            seen.append({k: v.clone() for k, v in net.state_dict().items()})
            hits = round(next(scores) * 10)
            right = torch.zeros(10, 3)
            right[torch.arange(10), [0] * hits + [1] * (10 - hits)] = 1
            return right
        return torch.zeros(len(samples), 3)

    class Labels:
        def __len__(self):
            return 3

        labels = torch.zeros(10, dtype=torch.int64)

    real = FedDF.parts
    monkeypatch.setattr(FedDF, "parts", lambda self, fed: (real(self, fed)[0], Labels()))
    monkeypatch.setattr("fedalloy.methods.feddf.predict", fake)
    state = run(method, Serial(federation), 1)
    assert len(seen) == 5  # best at the second, then three without a better one
    assert equal(state["models"]["0"], seen[1])


def test_the_validation_part_is_held_out_and_the_same_in_every_round(setting):
    federation = setting(labelled=True)
    method = FedDF(validation=0.25)
    first = method.parts(Serial(federation).open(method, 1))
    later = method.parts(Serial(federation).open(method, 5))
    assert [len(part) for part in first] == [9, 3]
    assert set(first[0].index.tolist()).isdisjoint(first[1].index.tolist())
    assert torch.equal(first[1].index, later[1].index)


def test_the_mean_of_logits_is_not_that_of_probabilities(setting, play):
    a, b = (play(FedDF(steps=2, batch=4, ensemble=e), setting(), 1).states[-1] for e in ("logits", "probabilities"))
    assert not equal(a["models"], b["models"])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("steps", -1),
        ("batch", 0),
        ("check_every", 0),
        ("patience", 0),
        ("lr", 0.0),
        ("tau", 0.0),
        ("clip_gradients", 0.0),
        ("validation", 1.0),
        ("ensemble", "votes"),
    ],
)
def test_options_out_of_limits_are_refused(option, value):
    with pytest.raises(UsageError, match=rf"feddf\.{option} = {value!r}"):
        FedDF(**{option: value})


@pytest.mark.parametrize("rule", [{"weights": "disco"}, {"combine": "median"}, {"clip": 1.0}], ids=str)
def test_rules_that_its_groups_do_not_use_are_refused(rule):
    (key,) = rule
    with pytest.raises(UsageError, match=rf"aggregation\.{key}"):
        FedDF(aggregation=Aggregation(**rule))


def test_validation_needs_labels_and_samples(setting, play):
    with pytest.raises(UsageError, match=r"write public.labelled = true"):
        play(FedDF(validation=0.5), setting(), 1)
    with pytest.raises(UsageError, match="leaves nothing of 12 public samples"):
        play(FedDF(validation=0.01), setting(labelled=True), 1)


def test_validation_on_the_task_uses_the_servers_own_rows(setting):
    federation = setting(participation=Participation())
    draw = generator(8, "task")
    task = Samples(torch.randn(6, 1, 2, 2, generator=draw), torch.arange(6) % 3, torch.arange(6))
    federation = replace(federation, public=replace(federation.public, task=task))
    method = FedDF(steps=4, batch=4, validation_on="task", check_every=1, lr=0.3, schedule="constant")
    inputs, held_out = method.parts(Serial(federation).open(method, 1))
    assert (len(inputs), held_out) == (12, task)
    best = run(method, Serial(federation), 1)["models"]["0"]
    students = [run(replace_steps(method, n), Serial(federation), 1)["models"]["0"] for n in (1, 2, 3, 4)]
    right = [(load(small(), s)(task.inputs).argmax(1) == task.labels).double().mean().item() for s in students]
    assert equal(best, students[right.index(max(right))])


def replace_steps(method, steps):
    """The same distillation without validation, cut short; its rate is constant."""
    return FedDF(steps=steps, batch=method.batch, lr=method.lr, schedule="constant")


def test_validation_on_the_task_needs_rows_of_it(setting, play):
    with pytest.raises(UsageError, match=r"feddf\.validation_on = 'task' .*write public\.task_samples"):
        play(FedDF(validation_on="task"), setting(labelled=True), 1)


def test_labels_of_another_task_are_refused(setting, play):
    federation = setting(labelled=True)
    foreign = replace(federation, public=replace(federation.public, shared_labels=False))
    with pytest.raises(UsageError, match=r"feddf\.validation = 0\.5 .* another data set"):
        play(FedDF(validation=0.5), foreign, 1)
    play(FedDF(steps=1), foreign, 1)  # their inputs will do


def test_idle_options_of_validation_are_refused():
    for name in ("check_every", "patience"):
        with pytest.raises(UsageError, match=rf"feddf\.{name} has no effect"):
            FedDF(**{name: 7})
        assert getattr(FedDF(**{name: 7}, validation=0.1), name) == getattr(
            FedDF(**{name: 7}, validation_on="task"), name
        )
    with pytest.raises(UsageError, match=r"feddf\.validation has no effect without validation_on = 'public'"):
        FedDF(validation=0.1, validation_on="task")
