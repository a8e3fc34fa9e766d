"""FedKF's study of its generator, Sec. IV-D, against a second implementation, written from its equations alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedalloy.data.samples import Samples, Scale
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import run
from fedalloy.federation.setting import Setting, Site
from fedalloy.methods import DataFreeKD
from fedalloy.nets.generators import DCGAN, ImageGenerator
from fedalloy.nets.models import FeatureNet
from fedalloy.train.fit import LocalWork

SHAPE, CLASSES, NOISE, BATCH = (2, 8, 8), 3, 4, 5
SCALE = Scale((0.4, 0.6), (0.5, 0.3))


# --- the paper ----------------------------------------------------------------------------------------------------


def log_softmax(z):
    return z - z.exp().sum(1, keepdim=True).log()


def l_g(teacher, x, o):
    """Eq. 2 to Eq. 5."""
    feature = teacher.features(x)
    log_p = log_softmax(teacher.head(feature))
    p = log_p.exp()
    l_oh = -log_p[torch.arange(len(x)), p.argmax(1)].mean()  # Eq. 2
    mean = p.mean(0)
    l_ie = (mean * mean.log()).sum()  # Eq. 3
    if o.entropy == "normalised":
        l_ie = 1 + l_ie / math.log(len(mean))
    size = feature.abs().flatten(1)
    l_a = -(size.sum(1) if o.activation == "sum" else size.mean(1)).mean()  # Eq. 4
    return l_ie + o.lambda_1 * l_oh + o.lambda_2 * l_a  # Eq. 5


def l_kl(teacher, student, x):
    """Eq. 6."""
    p = log_softmax(teacher(x)).detach()
    return (p.exp() * (p - log_softmax(student(x)))).sum(1).mean()


def distil(teacher, student, make, noise, o, sgd, adam):
    """A step of the generator and one of the student for each batch of noise, on the same images; returns classes."""
    teacher.eval().requires_grad_(False)
    seen = []
    for z in noise:
        x = make(z)
        seen.append(teacher(x).argmax(1))
        adam.zero_grad()
        l_g(teacher, x, o).backward()
        adam.step()
        sgd.zero_grad()
        l_kl(teacher, student, x.detach()).backward()
        sgd.step()
    return torch.cat(seen)


def network():
    features = nn.Sequential(nn.Flatten(), nn.Linear(128, 6), nn.Tanh())
    return FeatureNet(features, nn.Sequential(nn.Linear(6, CLASSES)), (6,))


def some_setting(**work):
    draw = torch.Generator().manual_seed(3)

    def rows(n):
        x, y = torch.randn(n, *SHAPE, generator=draw), torch.randint(CLASSES, (n,), generator=draw)
        return Samples(x, y, torch.arange(n))

    return Setting(
        sites=[Site(rows(n), rows(2)) for n in (6, 4)],
        networks=[network],
        classes=CLASSES,
        scale=SCALE,
        work=LocalWork(epochs=1, batch=BATCH, lr=0.3, **work),
    )


def test_variants():
    """The values of Sec. IV-D for EMNIST; the code's losses are recommended, the equations are the paper's."""
    ours = {
        "lambda_1": 0.2, "lambda_2": 0.02, "generator_lr": 0.2, "noise": 100, "width": 128, "bn_eps": 0.8,
        "generator": "upsampling", "entropy": "normalised", "activation": "mean", "keep_moments": True,
        "persist": False, "teacher_rounds": 10, "steps": 100,
    }  # fmt: skip
    paper = {"generator": "dcgan", "entropy": "plain", "activation": "sum"}
    for variant, changed in {"recommended": {}, "paper": paper}.items():
        o = DataFreeKD(variant=variant)
        assert {name: getattr(o, name) for name in ours} == {**ours, **changed}, variant


MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01}
CASES = [
    ({"variant": "recommended"}, {}),
    ({"variant": "paper"}, {}),
    ({"entropy": "plain", "lambda_1": 2.0}, MOMENTUM),
    ({"activation": "sum", "persist": True}, MOMENTUM),
    ({"keep_moments": False, "persist": True}, {"optimiser": "adam"}),
]


@pytest.mark.parametrize(("options", "work"), CASES, ids=str)
def test_a_teachers_round_and_two_students_rounds(options, work, monkeypatch, taped):
    method = DataFreeKD(teacher_rounds=1, steps=3, noise=NOISE, width=4, **options)
    setting, rounds = some_setting(**work), []
    engine, tape = Serial(setting), taped("randn", "randperm")
    start = method.init(engine.open(method, 0))
    for known in tape.drawn.values():
        known.clear()
    run(method, engine, 3, watch=lambda state, fed: rounds.append((state, list(fed.notes.values()))))
    monkeypatch.undo()

    def sgd(net):
        w = setting.work
        if w.optimiser == "adam":
            return torch.optim.Adam(net.parameters(), w.lr, weight_decay=w.weight_decay)
        return torch.optim.SGD(net.parameters(), w.lr, w.momentum, weight_decay=w.weight_decay)

    teacher, student = network(), network()
    teacher.load_state_dict(start["model"])
    student.load_state_dict(start["student"])
    assert not torch.equal(teacher.head[0].weight, student.head[0].weight)
    make = DCGAN(SHAPE, SCALE, NOISE, 4) if method.generator == "dcgan" else ImageGenerator(SHAPE, SCALE, NOISE, 4)
    make.load_state_dict(start["generator"])
    x, y = (torch.cat([getattr(s.train, part) for s in setting.sites]) for part in ("inputs", "labels"))
    optimiser, orders, noise = sgd(teacher), tape.drawn["randperm"], tape.drawn["randn"]
    for rows in orders.pop(0).split(BATCH):
        optimiser.zero_grad()
        (-log_softmax(teacher(x[rows]))[torch.arange(len(rows)), y[rows]].mean()).backward()
        optimiser.step()
    same = [("model", teacher), ("student", student), ("generator", make)]
    check(rounds[0][0], same)
    quick, slow = sgd(student), torch.optim.Adam(make.parameters(), lr=method.generator_lr)
    noise.pop(0)  # drawn by the start only to learn a shape
    for state, notes in rounds[1:]:
        if not method.persist:
            quick = sgd(student)
        if not method.keep_moments:
            slow = torch.optim.Adam(make.parameters(), lr=method.generator_lr)
        z, order = noise.pop(0), orders.pop(0)
        seen = distil(teacher, student, make, z[order].split(BATCH), method, quick, slow)
        check(state, same)
        counts = seen.bincount(minlength=CLASSES)
        assert notes == pytest.approx([int((counts > 0).sum()), int(counts.max()) / len(seen)])
    assert not noise
    assert not orders


def check(state, same):
    for name, net in same:
        for key, value in net.state_dict().items():
            if value.is_floating_point():
                # Biases before BatchNorm have no slope; Adam follows its rounding errors.
                assert (state[name][key] - value).abs().max() < 1e-7, (state.round, name, key)
