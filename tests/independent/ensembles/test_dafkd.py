"""DaFKD and its other forms against a second implementation, written from the paper's equations alone."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples, Scale
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import run
from fedalloy.federation.gate import array
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting, Site
from fedalloy.methods import DaFKD, DaFKDFeatures, DaFKDNoCorrelation, DaFKDPredictions, DaFKDScores
from fedalloy.nets.generators import FeatureGenerator, adversarial_generator
from fedalloy.nets.models import FeatureNet
from fedalloy.train.fit import LocalWork

SHAPE, CLASSES, SIZES, NOISE = (2, 2, 2), 3, (8, 5, 6), 4
TRACE = [[0, 1], [1, 2]]  # client 1 comes back, client 2 comes late
SCALE = Scale((0.4, 0.6), (0.5, 0.3))


# --- the paper ----------------------------------------------------------------------------------------------------


def log_softmax(z):
    return z - z.exp().sum(1, keepdim=True).log()


def l_adv(real, made):
    """Eq. 2, of the probabilities f that samples are real."""
    return -(real.log().sum() + (1 - made).log().sum()) / (len(real) + len(made))


def l_k(logits, y):
    """Eq. 1 of one client."""
    return -log_softmax(logits)[torch.arange(len(y)), y].mean()


def gradient_penalty(f, x, made, part):
    """The code's: at points between real and made samples, with a norm over the channels."""
    n = len(part)
    between = (part * x[:n].detach() + (1 - part) * made[:n]).requires_grad_()
    (slope,) = torch.autograd.grad(f(between).sum(), between, create_graph=True)
    return ((slope.square().sum(1).sqrt() - 1) ** 2).mean()


def mean_of(states, shares):
    """Eq. 4 and Eq. 6."""
    return {
        name: sum(p * s[name] for p, s in zip(shares, states, strict=True)) if first.is_floating_point() else first
        for name, first in states[0].items()
    }


def correlation(scores, most):
    """Eq. 7; with two clients, a largest share of one is a smallest of the other."""
    return (scores / scores.sum(0)).clamp(1 - most, most)


def answer(alpha, logits, o):
    """The teacher inside of Eq. 8: probabilities are weighed in the paper, logits in its code."""
    if o.ensemble == "prob":
        return (alpha[:, :, None] * (logits / o.tau).softmax(2)).sum(0)
    return ((alpha[:, :, None] * logits).sum(0) / o.tau).softmax(1)


def l_kd(teacher, logits, o):
    """Eq. 8."""
    kl = (teacher * (teacher.log() - log_softmax(logits / o.tau))).sum(1).mean()
    return kl * {"plain": 1, "tau2": o.tau**2, "tau2_mean": o.tau**2 / CLASSES}[o.kd_scale]


class Discriminator(nn.Module):
    """f(theta_k^d; x) on top of shared layers, or with layers of its own (the paper's no-sharing)."""

    def __init__(self, own):
        super().__init__()
        self.own = own
        self.head = nn.Sequential(nn.Linear(5, 1))

    def forward(self, z):
        return 1 / (1 + torch.exp(-self.head(self.own(z)).squeeze(1)))


class Paper:
    """A federation that follows Algorithm 1 with the options `o`, on what a tape says was drawn."""

    def __init__(self, o, start, head, setting, tape):
        self.o, self.setting, self.tape, self.form = o, setting, tape, o.name
        self.public = None if setting.public is None else setting.public.inputs
        self.model, self.generator = start["model"], start.get("generator")
        self.heads, self.first = {}, head
        self.common = start.get("head")

    def networks(self, model, head):
        net = network()
        net.load_state_dict(model)
        separate = self.o.shared_layers == 0
        judge = Discriminator(copy.deepcopy(net.features) if separate else nn.Identity())
        judge.load_state_dict(head)
        on_features = self.form == "dafkd-features"
        trunk = nn.Identity() if separate or on_features else net.features
        return net, judge, trunk

    def make(self, weights):
        if self.form == "dafkd-features":
            net = FeatureGenerator((5,), CLASSES, NOISE)
        else:
            net = adversarial_generator(
                SHAPE, SCALE, CLASSES, kind=self.o.generator_kind, noise=NOISE, width=self.o.generator_width
            )
        net.load_state_dict(weights)
        return net

    def batches(self, data):
        x, y, size = data.inputs, data.labels, self.setting.work.batch
        for _ in range(self.setting.work.epochs):
            for rows in self.tape.next("randperm", len(y)).split(size):
                yield x[rows], y[rows]

    def train(self, k, round):
        """Lines 15 to 26."""
        o, work, data = self.o, self.setting.work, self.setting.sites[k].train
        own = self.common if o.common_head else self.heads.get(k, self.first)  # line 18
        net, judge, trunk = self.networks(self.model, own)  # line 17
        both = [*net.parameters(), *judge.parameters()]
        fast = torch.optim.SGD(both, lr=work.lr, weight_decay=work.weight_decay)
        if self.generator is not None:
            make = self.make(self.generator)
            betas, amsgrad = ((0.5, 0.99), True) if o.generator_adam == "gan" else ((0.9, 0.999), False)
            decay = o.generator_weight_decay
            slow = torch.optim.Adam(make.parameters(), o.generator_lr, betas, weight_decay=decay, amsgrad=amsgrad)

        def pseudo(n):
            if self.generator is None:
                return self.public[self.tape.next("randint", o.generator_batch or n)]
            return make(*self.noise(o.generator_batch or n))

        def f(x):
            """Pseudo-samples leave no trace in BatchNorm's statistics of real ones."""
            norms = [m for m in (*net.modules(), *judge.modules()) if isinstance(m, nn.BatchNorm1d)]
            kept = [m._buffers for m in norms]
            for m in norms:
                m._buffers = {name: buffer.clone() for name, buffer in m._buffers.items()}
            found = judge(trunk(x))
            for m, buffers in zip(norms, kept, strict=True):
                m._buffers = buffers
            return found

        for step, (x, y) in enumerate(self.batches(data)):
            early = o.gan_window == "always" or step * work.epochs // (work.epochs * -(-len(data) // work.batch)) < 5
            feature = net.features(x)
            real = feature if self.form == "dafkd-features" else x
            loss = l_k(net.head(feature), y)
            judged = judge(x if o.shared_layers == 0 else feature)
            if early and (o.gan_window == "always" or round <= 3):
                made = pseudo(len(x)).detach()
                loss = loss + o.adversarial * l_adv(judged, f(made))  # Eq. 9
                if o.gradient_penalty:
                    part = self.tape.next("rand", min(len(x), len(made)))
                    loss = loss + o.gradient_penalty * gradient_penalty(f, real, made, part)
            fast.zero_grad()
            loss.backward()
            fast.step()
            if self.generator is not None and early and (o.gan_window == "always" or round <= 5):
                likely = f(pseudo(len(x)))
                loss = (1 - likely).log().mean() if o.saturating else -likely.log().mean()  # Eq. 3, or the code's
                slow.zero_grad()
                loss.backward()
                slow.step()
        sent = {} if self.generator is None else {"generator": make.state_dict()}
        return {"model": net.state_dict(), "head": judge.state_dict(), **sent}

    def noise(self, n):
        return self.tape.next("randn", n), self.tape.next("randint", n)

    def round(self, round, active):
        """Lines 3 to 14."""
        o = self.o
        replies = [copy.deepcopy(self.train(k, round)) for k in active]
        for k, r in zip(active, replies, strict=True):
            self.heads[k] = r["head"]
        sizes = [len(self.setting.sites[k].train) for k in active]
        by_size = o.aggregation.weights == "size"
        shares = [n / sum(sizes) for n in sizes] if by_size else [1 / len(active)] * len(active)
        old, self.notes = self.generator, {}
        self.model = mean_of([r["model"] for r in replies], shares)  # line 10
        if self.generator is not None:
            self.generator = mean_of([r["generator"] for r in replies], shares)  # line 9
        if o.common_head:
            self.common = mean_of([r["head"] for r in replies], shares)
        if round >= o.kd_start:
            self.distil(active, replies, self.generator if o.pseudo_from == "new" else old)

    def distil(self, active, replies, generator):
        o = self.o
        self.tape.next("randint")  # the number that samples are made from
        x = self.public if generator is None else self.samples(generator)  # line 11
        with torch.no_grad():
            scores, logits = [], []
            for r in replies:
                net, judge, trunk = self.networks(r["model"], r["head"])
                scores.append(judge.eval()(trunk.eval()(x)))
                logits.append((net.eval().head if self.form == "dafkd-features" else net.eval())(x))
                if generator is not None and self.form in ("dafkd-scores", "dafkd-predictions"):
                    assert torch.equal(self.samples(generator), x)  # clients make the very same samples
            scores = torch.stack(scores)
            if self.form == "dafkd-no-correlation":
                scores = torch.ones_like(scores)
            alpha = correlation(scores, o.max_share)  # line 12
            teacher = answer(alpha, torch.stack(logits), o)
        seen = teacher.argmax(1)
        counts = seen.bincount(minlength=CLASSES)
        self.notes = {
            "classes of pseudo-samples": int((counts > 0).sum()),
            "largest class share of pseudo-samples": int(counts.max()) / len(x),
        }
        self.importance = torch.zeros(len(SIZES), CLASSES)
        for c in seen.unique():
            self.importance[active, c] = alpha[:, seen == c].mean(1)
        student = network()
        student.load_state_dict(self.model)
        student.train(o.student_mode == "train")
        answers = student.head if self.form == "dafkd-features" else student
        step = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[o.distil_optimiser](student.parameters(), o.distil_lr)
        rows: list = []
        for _ in range(o.distil_steps):
            rows = rows or list(self.tape.next("randperm", len(x)).split(o.distil_batch))
            batch = rows.pop(0)
            step.zero_grad()
            l_kd(teacher[batch], answers(x[batch]), o).backward()  # line 13
            step.step()
        self.model = copy.deepcopy(student.state_dict())

    def samples(self, generator):
        with torch.no_grad():
            return self.make(generator).eval()(*self.noise(self.o.distil_samples))


def network():
    features = nn.Sequential(nn.Flatten(), nn.Linear(8, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh())
    return FeatureNet(features, nn.Sequential(nn.Linear(5, CLASSES)), (5,))


DRAWS = ("randn", "rand", "randint", "randperm")


@pytest.fixture
def double_answers(monkeypatch) -> None:
    for name in ("dafkd_scores", "dafkd_predictions"):  # what clients answer is in float32 otherwise
        monkeypatch.setattr(f"fedalloy.methods.{name}.array", partial(array, dtype=torch.float64))


def some_setting(public, epochs, weight_decay=1e-3):
    draw = torch.Generator().manual_seed(3)

    def rows(n):
        x, y = torch.randn(n, *SHAPE, generator=draw), torch.randint(CLASSES, (n,), generator=draw)
        return Samples(x, y, torch.arange(n))

    return Setting(
        sites=[Site(rows(n), rows(2)) for n in SIZES],
        networks=[network],
        classes=CLASSES,
        scale=SCALE,
        work=LocalWork(epochs=epochs, batch=3, lr=0.1, weight_decay=weight_decay),
        participation=Participation(policy="trace", trace=TRACE),
        public=PublicSet(rows(12), labelled=False, holder="all") if public else None,
    )


def distance(one, other):
    assert set(one) == set(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one if one[name].is_floating_point())


FORMS = [DaFKD, DaFKDNoCorrelation, DaFKDScores, DaFKDPredictions, DaFKDFeatures]
PUBLIC = {"pseudo_samples": "public"}
CASES = [(form, {"variant": variant}) for form in FORMS for variant in ("recommended", "paper", "reference")]
CASES += [(form, {**PUBLIC, "variant": v}) for form in FORMS[:-1] for v in ("recommended", "reference")]
CASES += [
    (DaFKD, {"generator_batch": 2}),
    (DaFKD, {"generator_batch": 7, "variant": "reference", "generator_adam": "usual"}),
    (DaFKD, {"generator_batch": 4, **PUBLIC}),
    (DaFKD, {"generator_adam": "gan"}),
    (DaFKD, {"shared_layers": 0}),
    (DaFKD, {"shared_layers": 0, **PUBLIC, "variant": "reference", "common_head": False}),
    (DaFKD, {"max_share": 0.51, "common_head": True, "pseudo_from": "old", "tau": 3.0, "kd_scale": "tau2"}),
    (DaFKDScores, {"max_share": 0.51, "ensemble": "logit"}),
]


OURS = {
    "distil_batch": 32, "distil_lr": 0.01, "generator_lr": 1e-3, "generator_weight_decay": 1e-3, "noise": 100,
    "generator_kind": "conditional", "generator_adam": "usual", "generator_batch": None, "adversarial": 1.0,
    "saturating": True, "gradient_penalty": 0.0, "gan_window": "always", "shared_layers": None, "max_share": 1.0,
    "ensemble": "prob", "tau": 1.0, "kd_scale": "plain", "common_head": False, "pseudo_from": "new", "kd_start": 1,
    "distil_samples": 1280, "distil_steps": 200, "distil_optimiser": "sgd", "student_mode": "eval",
}  # fmt: skip
CODE = {
    "distil_lr": 1e-4, "generator_lr": 1e-4, "generator_weight_decay": 1e-4, "generator_kind": "unconditional",
    "generator_adam": "gan", "adversarial": 2.0, "saturating": False, "gradient_penalty": 0.3, "gan_window": "early",
    "ensemble": "logit", "tau": 20.0, "kd_scale": "tau2_mean", "common_head": True, "pseudo_from": "old",
    "kd_start": 2, "distil_steps": 1600, "distil_optimiser": "adam", "student_mode": "train",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_variants(form):
    """Section 4.1 of the paper, and its code with the arguments of its script."""
    own = {"common_head": False} if issubclass(form, DaFKDScores) else {}  # heads never travel
    own |= {"ensemble": "prob"} if form is DaFKDPredictions else {}
    changes = {"recommended": {}, "paper": {"student_mode": "train"}, "reference": {**CODE, **own}}
    for variant, changed in changes.items():
        o = form(variant=variant)
        expected = {**OURS, **changed}
        if form is DaFKDFeatures:  # an image generator's option has no effect there
            expected["generator_kind"] = o.generator_kind
        assert {name: getattr(o, name) for name in OURS} == expected, variant
        assert o.aggregation.weights == ("size" if variant == "reference" else "uniform")


@pytest.mark.parametrize(("form", "options"), CASES, ids=lambda case: getattr(case, "name", str(case)))
def test_two_rounds(form, options, monkeypatch, taped, double_answers):
    public = options.get("pseudo_samples") == "public"
    size = {} if public else {"noise": NOISE, "distil_samples": 13}
    size |= {"generator_width": 4} if not public and form is not DaFKDFeatures else {}
    method = form(distil_steps=5, distil_batch=5, **size, **options)
    compare(method, some_setting(public, epochs=2), 2, monkeypatch, taped(*DRAWS))


def test_the_window_of_the_code(monkeypatch, taped, double_answers):
    options = {
        "distil_samples": 4,
        "distil_steps": 1,
        "distil_optimiser": "sgd",
        "noise": NOISE,
        "generator_kind": "conditional",
    }
    method = DaFKD(variant="reference", generator_width=4, generator_batch=6, **options)
    compare(method, some_setting(False, epochs=6, weight_decay=0.0), 6, monkeypatch, taped(*DRAWS), 1e-6)


def compare(method, setting, rounds, monkeypatch, tape, within=1e-10):
    """Play the rounds twice; afterwards every number agrees, and both have drawn the same."""
    engine, states, notes, memories = Serial(setting), [], [], []

    def watch(state, fed):
        states.append(state)
        notes.append(dict(fed.notes))
        memories.append(copy.deepcopy(dict(engine.memories)))

    fed = engine.open(method, 0)
    start, head = method.init(fed), method.example("head", fed)
    run(method, engine, rounds, watch=watch)
    monkeypatch.undo()
    paper = Paper(method, start, head, setting, tape)
    for round, (state, note, memory) in enumerate(zip(states, notes, memories, strict=True), start=1):
        paper.round(round, TRACE[(round - 1) % 2])
        found = {"model": paper.model, "generator": paper.generator, "head": paper.common}
        for name, value in found.items():
            assert (value is None) == (name not in state.body), name
            if value is not None:
                assert distance(state[name], value) < within, (round, name)
        assert note == pytest.approx(paper.notes)
        if "importance" in state.body:
            assert (state["importance"] - paper.importance).abs().max() < 1e-6  # kept in float32
        if not method.common_head:
            assert sorted(memory) == sorted(paper.heads)
            assert max(distance(memory[k]["head"], paper.heads[k]) for k in memory) < within
    assert not any(tape.drawn.values())
