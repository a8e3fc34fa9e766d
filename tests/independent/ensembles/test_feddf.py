"""FedDF against a second implementation, written from its Algorithm 3 and what its code is known to do."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import run
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting, Site
from fedalloy.methods import FedDF
from fedalloy.train.fit import LocalWork

SIZES, CLASSES, TRACE = (8, 5, 6, 4), 3, [[0, 1, 2], [0, 1]]  # the group of clients 2 and 3 is absent from round 2


# --- the paper ----------------------------------------------------------------------------------------------------


def log_softmax(z):
    return z - z.exp().sum(1, keepdim=True).log()


def mean_answers(nets, x, ensemble, tau):
    """AVGLOGITS, or the mean of soft predictions as DaFKD describes it."""
    with torch.no_grad():
        answers = torch.stack([net.eval()(x) for net in nets])
        if ensemble == "logits":
            return (answers.mean(0) / tau).softmax(1)
        if ensemble == "centred":  # ours: a class that a client always prefers loses its advantage
            return ((answers - answers.mean(1, keepdim=True)).mean(0) / tau).softmax(1)
        p = (answers / tau).softmax(2)
        if ensemble == "probabilities":
            return p.mean(0)
        sure = (p * p.log()).sum(2).exp()  # ours: exp(-H)
        return (sure[:, :, None] * p).sum(0) / sure.sum(0)[:, None]


def distil(student, teacher, x, o, orders, held=None):
    """Lines 8 to 11 of Algorithm 3; returns the best student on held-out rows if there are any, else the last."""
    parameters = list(student.parameters())
    optimiser = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[o.optimiser](parameters, lr=o.lr)
    left, best, best_at, kept = [], -1.0, 0, None
    for step in range(o.steps):
        if not left:
            left = list(orders.next().split(o.batch))
            if o.drop_last and len(left) > 1 and len(left[-1]) < o.batch:
                left.pop()
        rows = left.pop(0)
        if o.schedule == "cosine":
            optimiser.param_groups[0]["lr"] = o.lr * 0.5 * (1 + math.cos(math.pi * step / o.steps))
        student.train()
        p = teacher[rows]
        loss = (p * (p.log() - log_softmax(student(x[rows]) / o.tau))).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(w.grad.square().sum()) for w in parameters))
        if norm > o.clip_gradients:
            for w in parameters:
                w.grad.mul_(o.clip_gradients / (norm + 1e-6))  # torch's safeguard
        optimiser.step()
        if held is not None and ((step + 1) % o.check_every == 0 or step + 1 == o.steps):
            with torch.no_grad():
                right = float((student.eval()(held[0]).argmax(1) == held[1]).double().mean())
            if right > best:
                best, best_at, kept = right, step + 1, copy.deepcopy(student)
            elif step + 1 - best_at >= o.patience:
                break
    return student if kept is None else kept


def mean_of(states, weights):
    """Lines 5 and 6: a group's average, by size in the paper, alike in the code."""
    total = sum(weights)
    return {
        name: sum(w / total * s[name] for w, s in zip(weights, states, strict=True)) if v.is_floating_point() else v
        for name, v in states[0].items()
    }


class Paper:
    """Algorithm 3 with the options `o`, on the permutations of a tape."""

    def __init__(self, o, start, setting, tape):
        self.o, self.setting, self.tape = o, setting, tape
        self.models = dict(start["models"])

    def train(self, k, model):
        """A client's local SGD."""
        net, work, data = self.setting.networks[k](), self.setting.work, self.setting.sites[k].train
        net.load_state_dict(model)
        sgd = torch.optim.SGD(net.parameters(), lr=work.lr)
        for rows in self.tape.next().split(work.batch):
            sgd.zero_grad()
            logits = net(data.inputs[rows])
            (-log_softmax(logits)[torch.arange(len(rows)), data.labels[rows]].mean()).backward()
            sgd.step()
        return net

    def round(self, active):
        o, public = self.o, self.setting.public
        nets = {k: self.train(k, self.models["0" if k < 2 else "1"]) for k in active}
        x, held = self.parts(public)
        averages = {}
        for group in sorted({"0" if k < 2 else "1" for k in active}):
            mine = [k for k in active if (k < 2) == (group == "0")]
            weights = [SIZES[k] if o.aggregation.weights == "size" else 1 for k in mine]
            averages[group] = mean_of([copy.deepcopy(nets[k].state_dict()) for k in mine], weights)
        teacher = mean_answers(nets.values(), x, o.ensemble, o.tau)
        orders = [self.tape.next() for _ in range(-(-o.steps // self.per_pass(len(x))))]
        for group, average in averages.items():  # all groups learn on the same batches
            student = self.setting.networks[0 if group == "0" else 2]()
            student.load_state_dict(average)
            self.models[group] = distil(student, teacher, x, o, Orders(orders), held).state_dict()

    def per_pass(self, n):
        return max(1, n // self.o.batch if self.o.drop_last else -(-n // self.o.batch))

    def parts(self, public):
        """What is learnt on, and what students are chosen by."""
        if self.o.validation_on == "task":
            return public.inputs, (public.task.inputs, public.task.labels)
        if not self.o.validation:
            return public.inputs, None
        order, n = self.tape.next(), round(self.o.validation * len(public))
        return public.inputs[order[n:]], (public.inputs[order[:n]], public.labels[order[:n]])


class Orders:
    """Permutations to be used one after another."""

    def __init__(self, orders):
        self.left = list(orders)

    def next(self):
        return self.left.pop(0)


# --- the same draws for both ----------------------------------------------------------------------------------------


class Tape:
    """Records torch's permutations in order, so that a second implementation can draw the same."""

    def __init__(self, monkeypatch):
        self.drawn, draw = [], torch.randperm

        def drawn(*args, **options):
            self.drawn.append(draw(*args, **options))
            return self.drawn[-1].clone()

        monkeypatch.setattr(torch, "randperm", drawn)

    def next(self):
        return self.drawn.pop(0)


def narrow():
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def wide():
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def some_setting(**public):
    draw = torch.Generator().manual_seed(3)

    def rows(n):
        x, y = torch.randn(n, 4, generator=draw), torch.randint(CLASSES, (n,), generator=draw)
        return Samples(x, y, torch.arange(n))

    return Setting(
        sites=[Site(rows(n), rows(2)) for n in SIZES],
        networks=[narrow, narrow, wide, wide],
        classes=CLASSES,
        work=LocalWork(epochs=1, batch=3, lr=0.3),
        participation=Participation(policy="trace", trace=TRACE),
        public=PublicSet(rows(14), holder="server", task=rows(40), **{"labelled": True, **public}),
    )


def test_variants():
    """What FedDF's commands set, and what DaFKD's paper says of FEDDFUSION."""
    names = ("ensemble", "steps", "batch", "drop_last", "optimiser", "lr", "schedule", "tau", "clip_gradients")
    ours = ("logits", 10_000, 128, True, "adam", 1e-3, "cosine", 1.0, 5.0, 0.0, "size")
    code = ("logits", 10_000, 64, False, "adam", 1e-3, "cosine", 1.0, 5.0, 0.0, "uniform")
    dafkd = ("probabilities", 10_000, 128, True, "sgd", 0.01, "constant", 1.0, 5.0, 0.0, "size")
    for variant, expected in {"recommended": ours, "reference": code, "dafkd": dafkd}.items():
        o = FedDF(variant=variant)
        found = (*(getattr(o, name) for name in names), o.validation, o.aggregation.weights)
        assert found == expected, variant


BATCH = {"steps": 7, "batch": 4}
CASES = [{"variant": variant, **BATCH} for variant in ("recommended", "reference", "dafkd")]
CASES += [{"variant": variant, "steps": 3} for variant in ("recommended", "reference", "dafkd")]
CASES += [
    {**BATCH, "tau": 2.5, "clip_gradients": 0.02, "ensemble": "probabilities"},
    {"steps": 3, "tau": 2.5, "ensemble": "centred"},
    {"steps": 3, "tau": 2.5, "ensemble": "entropy"},
    {**BATCH, "clip_gradients": 0.02, "optimiser": "sgd", "lr": 0.5},
    {**BATCH, "optimiser": "sgd", "lr": 0.5, "schedule": "constant", "drop_last": False},
    {**BATCH, "validation_on": "task", "check_every": 2, "lr": 0.1},
    {**BATCH, "validation_on": "task", "check_every": 1, "patience": 2, "lr": 0.5, "variant": "reference"},
    {**BATCH, "validation": 0.4, "check_every": 3, "lr": 0.1},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_two_rounds(options, monkeypatch):
    method, setting, states = FedDF(**options), some_setting(), []
    engine, tape = Serial(setting), Tape(monkeypatch)
    start = method.init(engine.open(method, 0))
    run(method, engine, 2, watch=lambda state, _: states.append(state))
    monkeypatch.undo()
    tape.drawn = tape.drawn[2:] if method.validation else tape.drawn  # the check of a start
    paper = Paper(method, start, setting, tape)
    for state, active in zip(states, TRACE, strict=True):
        paper.round(active)
        for group, model in paper.models.items():
            for name, value in model.items():
                if value.is_floating_point():
                    assert (state["models"][group][name] - value).abs().max() < 1e-10, (group, name)
    assert not tape.drawn


def test_labels_of_another_data_set_do_not_judge():
    engine = Serial(some_setting(shared_labels=False))
    with pytest.raises(UsageError, match="public labels, which are of another data set"):
        run(FedDF(validation=0.4, **BATCH), engine, 1)
    run(FedDF(validation_on="task", **BATCH), engine, 1)
