"""KDIA, written once more from the preprint (Ma); numbers in brackets are its equations."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.aggregation.cache import Cache
from fedalloy.base.tree import equal
from fedalloy.federation.core import State
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting
from fedalloy.knowledge.similarity import feature_similarity
from fedalloy.methods import KDIA, FedAvg
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import FeatureNet
from fedalloy.train.fit import LocalWork


class Conditional(nn.Module):
    """The generator of FedCG: a label's embedding beside the noise, and four transposed 2 x 2 convolutions."""

    def __init__(self, noise: int, classes: int, width: int, channels: int) -> None:
        super().__init__()
        self.e = nn.Embedding(classes, classes)
        self.t1 = nn.ConvTranspose2d(noise + classes, width, 2, bias=False)
        self.b1 = nn.BatchNorm2d(width)
        self.t2 = nn.ConvTranspose2d(width, width // 2, 2, bias=False)
        self.b2 = nn.BatchNorm2d(width // 2)
        self.t3 = nn.ConvTranspose2d(width // 2, width // 4, 2, bias=False)
        self.b3 = nn.BatchNorm2d(width // 4)
        self.t4 = nn.ConvTranspose2d(width // 4, channels, 2, bias=False)

    def forward(self, eps: Tensor, y: Tensor) -> Tensor:
        x = torch.cat([eps.flatten(1), self.e(y)], 1)[:, :, None, None]
        for t, b in ((self.t1, self.b1), (self.t2, self.b2), (self.t3, self.b3)):
            x = F.leaky_relu(b(t(x)), 0.2)
        return torch.sigmoid(self.t4(x))


def frequencies(t: int, last: list[int], count: list[int], sizes: list[int], how: str, which: str) -> list[float]:
    """F_k of every client after round t, counted from 0 as in the paper; `last` is -1 for a client never seen."""
    ages = [math.exp(-(t - t_k)) for t_k in last]
    interval = [a / sum(ages) for a in ages]  # (5)
    part = [c / sum(count) for c in count]  # (7)
    number = [n / sum(sizes) for n in sizes]  # (8)
    if which != "all":
        return {"interval": interval, "participation": part, "number": number}[which]
    if how == "arithmetic":
        tri = [(a + b + c) / 3 for a, b, c in zip(interval, part, number, strict=True)]
    else:
        tri = [(a * b * c) ** (1 / 3) for a, b, c in zip(interval, part, number, strict=True)]
    return [f / sum(tri) for f in tri]  # (9)


def average(models: list[dict], weights: list[float]) -> dict[str, Tensor]:
    """Both lines of (10)."""
    return {name: sum(w * m[name] for w, m in zip(weights, models, strict=True)) for name in models[0]}


def generator_loss(heads, p: list[float], eps: Tensor, y: Tensor, z: Tensor, o: dict) -> Tensor:
    """(3) and (4), added up."""
    logits = sum(p_k * head(z) for p_k, head in zip(p, heads, strict=True))
    if o["heads"] == "mean":
        logits = logits / len(heads)  # the 1/K of (3)
    half = len(y) // 2
    noises = (eps[:half] - eps[half:]).abs().mean()
    features = (z[:half] - z[half:]).abs().mean()
    in_the_code = 1 / (features / noises + 1e-5)
    spread = noises / (features + 1e-5) if o["diversity_eps"] == "distance" else in_the_code  # (4)
    return F.cross_entropy(logits, y) + spread


def client_loss(net, teacher, gen, x: Tensor, y: Tensor, eps: Tensor | None, labels: Tensor | None, o: dict) -> Tensor:
    """(11) to (13)."""
    logits = net(x)
    loss = F.cross_entropy(logits, y)
    if o["lambda_kd"]:
        with torch.no_grad():
            answer = teacher(x)
        p, q = (answer / o["tau"]).softmax(1), (logits / o["tau"]).softmax(1)
        if o["kd_direction"] == "reverse":
            p, q = q, p
        loss = loss + o["lambda_kd"] * (p * (p.log() - q.log())).sum(1).mean()  # (11)
    if o["lambda_gen"]:
        with torch.no_grad():
            z = gen(eps, labels)
        loss = loss + o["lambda_gen"] * F.cross_entropy(net.head(z), labels)  # (12)
    return loss


# --- driving both ----------------------------------------------------------------------------------------------------

SIZES, TRACE, CLASSES = (6, 5, 11, 3, 4), [[0, 1], [0, 2], [1, 3], [0, 1]], 3
EPOCHS, BATCH, LR, NOISE, WIDTH = 2, 4, 0.1, 5, 8
OURS = {"kd_direction": "forward", "heads": "sum", "diversity_eps": "ratio", "lambda_kd": 0.5, "lambda_gen": 0.01,
        "tau": 2.0, "mean": "geometric", "freqs": "all", "labels": "uniform"}  # fmt: skip
VARIANTS = {
    "recommended": OURS,
    "paper": OURS | {"heads": "mean", "diversity_eps": "distance"},
    "reference": OURS | {"kd_direction": "reverse"},
}
CASES = [
    *((variant, {}, "init_model") for variant in VARIANTS),
    ("recommended", {"lambda_gen": 1.0, "labels": "batch"}, "init_model"),
    ("paper", {"lambda_kd": 0.0, "lambda_gen": 1.0}, "init_model"),
    ("reference", {"lambda_gen": 0.0, "tau": 5.0}, "init_model"),
    ("recommended", {"heads": "mean"}, "init_model"),
    ("recommended", {"diversity_eps": "distance"}, "init_model"),
    ("recommended", {"mean": "arithmetic"}, "random"),
    ("recommended", {"mean": "arithmetic"}, "init_model"),
    ("recommended", {"freqs": "interval"}, "random"),
    ("recommended", {"freqs": "number"}, "random"),
    ("recommended", {"freqs": "participation"}, "init_model"),
]


def network() -> FeatureNet:
    features = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU())  # only eval mode uses its statistics
    head = nn.Sequential(nn.Flatten(), nn.Linear(50, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    return FeatureNet(features, head, (2, 5, 5))


def loaded(target: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """A module with another one's weights, which are in the same order."""
    target.load_state_dict({name: t.clone() for name, t in zip(target.state_dict(), state.values(), strict=True)})
    return target


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    pairs = zip(one.values(), other.values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs if b.is_floating_point())


def split(rows: Tensor) -> list[Tensor]:
    """Batches; a last one of a single sample joins the one before it."""
    return [rows] if len(rows) == BATCH + 1 else list(rows.split(BATCH))


@pytest.fixture
def setting(random_sites):
    return Setting(
        sites=random_sites(SIZES, shape=(1, 6, 6), classes=CLASSES), networks=[network], classes=CLASSES,
        work=LocalWork(batch=BATCH, lr=LR, epochs=EPOCHS, momentum=0.9, weight_decay=1e-5),
        participation=Participation(policy="trace", trace=TRACE),
    )  # fmt: skip


@pytest.mark.parametrize(("variant", "changed", "unseen"), CASES)
def test_four_rounds_agree(variant, changed, unseen, watch, setting):
    o, size = VARIANTS[variant] | changed, 6
    method = KDIA(
        variant=variant, noise=NOISE, generator_width=WIDTH, generator_epochs=2, generator_batches=3,
        generator_batch=size, cache=Cache(unseen=unseen), **changed,
    )  # fmt: skip
    rounds = watch(method, setting, len(TRACE))

    model, worst = rounds[0].before["model"], 0.0
    fed = setting.client(0, 1, {})
    gen = Conditional(NOISE, CLASSES, WIDTH, 2)
    loaded(gen, method.new_generator(fed, network()).state_dict())
    slots = [model] * len(SIZES)
    if unseen == "random":
        slots = [setting.client(k, 1, {}).random_net().state_dict() for k in range(len(SIZES))]
        assert apart(slots[0], slots[1]) > 0.01
    teacher, last, count = model, [-1] * len(SIZES), [0] * len(SIZES)
    for t, (seen, active) in enumerate(zip(rounds, TRACE, strict=True)):  # rounds count from 0, as in the paper
        gen.eval()
        answers = loaded(network(), teacher).eval()
        for act in seen.acts:
            k, data, net = act.client, setting.sites[act.client].train, loaded(network(), model)
            assert set(act.sent) == {"model"} | ({"teacher"} if o["lambda_kd"] else set()) | (
                {"generator"} if o["lambda_gen"] else set()
            )
            sgd = torch.optim.SGD(net.parameters(), LR, momentum=0.9, weight_decay=1e-5)
            taught = o["lambda_gen"] > 0
            pool = act.draws.take("randint") if taught else None
            for epoch in range(EPOCHS):
                order = split(act.draws.take("randperm"))
                if not taught:
                    labels = [None] * len(order)
                elif o["labels"] == "batch":
                    labels = [data.labels[b] for b in order]
                elif len(order) == 1:
                    assert pool.shape == (EPOCHS, len(data))
                    labels = [pool[epoch]]
                else:
                    assert pool.shape == (len(data),)
                    labels = split(pool[act.draws.take("randperm")])
                for b, y in zip(order, labels, strict=True):
                    eps = act.draws.take("randn") if taught else None
                    loss = client_loss(net, answers, gen, data.inputs[b], data.labels[b], eps, y, o)
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
            assert not act.draws
            worst = max(worst, apart(net.state_dict(), act.body["model"]))
            slots[k], last[k], count[k] = dict(net.state_dict()), t, count[k] + 1
        p = [SIZES[k] / sum(SIZES[j] for j in active) for k in active]
        model = average([slots[k] for k in active], p)
        teacher = average(slots, frequencies(t, last, count, list(SIZES), o["mean"], o["freqs"]))
        if o["lambda_gen"]:
            adam = torch.optim.Adam(gen.train().parameters(), lr=1e-3, weight_decay=1e-5)
            heads = [loaded(network(), slots[k]).head for k in active]
            pool = seen.draws.take("randint") if o["labels"] == "uniform" else None
            for _ in range(2):
                order = seen.draws.take("randperm").split(size) if pool is not None else [None] * 3
                for b in order:
                    y = pool[b] if pool is not None else seen.draws.take("randint")
                    eps = seen.draws.take("randn")
                    assert eps.shape == (size, NOISE)
                    loss = generator_loss(heads, p, eps, y, gen(eps, y), o)
                    adam.zero_grad()
                    loss.backward()
                    adam.step()
            worst = max(worst, apart(gen.state_dict(), seen.after["generator"]))
        assert not seen.draws
        views = method.models(State(t + 1, seen.after))
        worst = max(worst, apart(model, views["student"]), apart(teacher, views["teacher"]))
    assert worst < 1e-9


def test_without_both_terms_the_student_is_fedavgs_to_the_bit(watch, setting):
    control = watch(KDIA(lambda_kd=0.0, lambda_gen=0.0), setting, len(TRACE))
    fedavg = watch(FedAvg(), setting, len(TRACE))
    for one, other in zip(control, fedavg, strict=True):
        assert equal(one.after["model"], other.after["model"])
        assert all(set(act.sent) == {"model"} for act in one.acts)


@pytest.mark.parametrize(
    ("variant", "epochs", "batches"), [("recommended", 10, 200), ("paper", 10, 200), ("reference", 20, 100)]
)
def test_the_generator_takes_2000_steps_a_round(variant, epochs, batches):
    assert (KDIA(variant=variant).generator_epochs, KDIA(variant=variant).generator_batches) == (epochs, batches)


@pytest.mark.parametrize("compare", ["channel_means", "maps"])
def test_the_similarity_of_real_and_generated_features(compare, setting):
    # Sec. 6.3: for each class, the mean of the matrix S of similarities between real and generated features.
    data, net, each = setting.sites[2].train, network(), 3
    theirs = ConditionalGenerator((2, 5, 5), CLASSES, NOISE, WIDTH)
    found = feature_similarity(theirs, net, data, torch.Generator().manual_seed(0), each, batch=4, compare=compare)
    gen = loaded(Conditional(NOISE, CLASSES, WIDTH, 2), theirs.state_dict()).eval()
    labels, stream = torch.arange(CLASSES).repeat_interleave(each), torch.Generator().manual_seed(0)
    noises = torch.cat([torch.randn(len(y), NOISE, generator=stream) for y in labels.split(4)])
    with torch.no_grad():
        sides = [(net.features(data.inputs), data.labels), (gen(noises, labels), labels)]
    for c in range(CLASSES):
        real, made = (f[y == c].mean((2, 3)) if compare == "channel_means" else f[y == c].flatten(1) for f, y in sides)
        s = torch.stack([torch.stack([a @ b / a.norm() / b.norm() for b in made]) for a in real])
        assert found[c].item() == pytest.approx(s.mean().item(), abs=1e-9)
