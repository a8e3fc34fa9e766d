"""FedKF, FedKF- and the server's generator, written once more from the paper (Zhou et al., IoT-J 2023).

Numbers in brackets are the paper's equations and lines of Algorithm 1.
"""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.data.samples import Scale
from fedalloy.federation.core import State
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedKF, FedKFMinus, FedKFServer
from fedalloy.nets.models import FeatureNet
from fedalloy.train.fit import LocalWork, params


class Upsampling(nn.Module):
    """The generator of the paper's code: a linear layer, and two doublings of the size."""

    def __init__(self, noise: int, width: int, shape: tuple[int, int, int], eps: float) -> None:
        super().__init__()
        self.side, self.width = shape[1] // 4, width
        self.l1 = nn.Linear(noise, width * self.side**2)
        self.b1 = nn.BatchNorm2d(width)
        self.c1 = nn.Conv2d(width, width, 3, padding=1)
        self.b2 = nn.BatchNorm2d(width, eps=eps)
        self.c2 = nn.Conv2d(width, width // 2, 3, padding=1)
        self.b3 = nn.BatchNorm2d(width // 2, eps=eps)
        self.c3 = nn.Conv2d(width // 2, shape[0], 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.b1(self.l1(z).view(len(z), self.width, self.side, self.side))
        x = self.c1(x.repeat_interleave(2, 2).repeat_interleave(2, 3))
        x = F.leaky_relu(self.b2(x), 0.2)
        x = self.c2(x.repeat_interleave(2, 2).repeat_interleave(2, 3))
        return torch.sigmoid(self.c3(F.leaky_relu(self.b3(x), 0.2)))


class DCGAN(nn.Module):
    """The generator of Radford et al. for 16 x 16 pixels, with a sigmoid in the place of tanh."""

    def __init__(self, noise: int, width: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.width = width
        self.project = nn.Linear(noise, 2 * width * 16, bias=False)
        self.b1 = nn.BatchNorm2d(2 * width)
        self.t1 = nn.ConvTranspose2d(2 * width, width, 5, stride=2, padding=2, output_padding=1, bias=False)
        self.b2 = nn.BatchNorm2d(width)
        self.t2 = nn.ConvTranspose2d(width, shape[0], 5, stride=2, padding=2, output_padding=1, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        x = F.relu(self.b1(self.project(z).view(len(z), 2 * self.width, 4, 4)))
        return torch.sigmoid(self.t2(F.relu(self.b2(self.t1(x)))))


def aside(student: nn.Module, images: Tensor) -> Tensor:
    """Answers to generated images, which leave no trace in the running statistics of BatchNorm."""
    norm = student.features[2]
    usual, norm.momentum = norm.momentum, 0.0
    answers = student(images)
    norm.momentum = usual
    return answers


def kl(p: Tensor, student: Tensor) -> Tensor:
    """E_z KL(p || softmax(student)), Eq. 6."""
    return (torch.xlogy(p, p) - p * student.log_softmax(1)).sum(1).mean()


def generator_loss(teacher: nn.Module, images: Tensor, o: dict) -> Tensor:
    """L_G = L_IE + lambda_1 L_OH + lambda_2 L_A, Eq. 2 to 5."""
    features = teacher.features(images)
    logits = teacher.head(features)
    p = logits.softmax(1)
    one_hot = -torch.log(p.max(1).values).mean()  # CE with the arg max (2)
    mean = p.mean(0)
    entropy = (mean * mean.log()).sum()  # minus the information entropy (3)
    if o["entropy"] == "normalised":
        entropy = 1 + entropy / math.log(logits.shape[1])
    norms = features.flatten(1).abs()
    activation = -(norms.sum(1) if o["activation"] == "sum" else norms.mean(1)).mean()  # (4)
    return entropy + o["lambda_1"] * one_hot + o["lambda_2"] * activation


def local_round(student, teacher, gen, adam, batches, noises, o) -> None:
    """Lines 14 to 22 of Algorithm 1, on batches and noises; `gen` gets its own steps unless `adam` is None."""
    lr = o["lr"]

    def improve(images: Tensor) -> None:
        loss = generator_loss(teacher, images, o)
        if o["adversarial"]:
            loss = loss - o["gamma"] * kl(teacher(images).softmax(1).detach(), aside(student, images))
        for p in gen.parameters():
            p.grad = None
        loss.backward()
        adam.step()

    for (x, y), z in zip(batches, noises, strict=True):
        if o["order"] == "generator_first" and adam is not None:
            improve(o["normalise"](gen(z)))  # line 18
        images = o["normalise"](gen(z))
        with torch.no_grad():
            p = teacher(images).softmax(1)
        loss = F.cross_entropy(student(x), y) + o["gamma"] * kl(p, aside(student, images.detach()))  # (8)
        step(student, loss, lr)  # line 19
        if o["order"] == "student_first" and adam is not None:
            improve(images)


def step(net: nn.Module, loss: Tensor, lr: float) -> None:
    """One step of SGD."""
    parameters = list(net.parameters())
    with torch.no_grad():
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p -= lr * g


def mean(models: dict[int, dict], sizes: dict[int, int]) -> dict[str, Tensor]:
    """Lines 9 and 10: the average by size of these models."""
    total = sum(sizes[k] for k in models)
    return {name: sum(sizes[k] * m[name] for k, m in models.items()) / total for name in next(iter(models.values()))}


# --- driving both ----------------------------------------------------------------------------------------------------

SIZES, TRACE, BATCH, LR, NOISE, WIDTH = (6, 10, 7), [[0, 1], [1, 2], [0, 2]], 4, 0.1, 5, 4
SCALE = Scale((0.4,), (0.5,))
METHODS = {"fedkf": FedKF, "fedkf-minus": FedKFMinus, "fedkf-server": FedKFServer}
VARIANTS = {  # what each variant means, by the method's entry and readings
    "recommended": {"kd_start": 2, "entropy": "normalised", "activation": "mean", "order": "student_first",
                    "adversarial": False, "generated_batch": "real", "generator": "upsampling", "unseen": False},
    "paper": {"kd_start": 1, "entropy": "plain", "activation": "sum", "order": "generator_first",
              "adversarial": False, "generated_batch": "real", "generator": "dcgan", "unseen": True},
    "reference": {"kd_start": 2, "entropy": "normalised", "activation": "mean", "order": "student_first",
                  "adversarial": "colour", "generated_batch": "full", "generator": "upsampling", "unseen": False},
}  # fmt: skip


def network(channels: int) -> FeatureNet:
    features = nn.Sequential(nn.Flatten(), nn.Linear(channels * 256, 6), nn.BatchNorm1d(6), nn.ReLU())
    return FeatureNet(features, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (6,))


def copied(target: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """A module with another one's weights, which are in the same order."""
    return loaded(target, dict(zip(target.state_dict(), state.values(), strict=True)))


def loaded(target: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    target.load_state_dict({name: t.clone() for name, t in state.items()})
    return target


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two networks; running statistics only matter where a generator is sent."""
    pairs = zip(one.values(), other.values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs if b.is_floating_point())


def parameters(net: nn.Module) -> list[Tensor]:
    return [p.detach() for p in net.parameters()]


CASES = [
    *((kind, variant, {}, 1) for kind in METHODS for variant in VARIANTS),
    *((kind, "reference", {}, 3) for kind in METHODS),  # only the code treats colour images differently
    ("fedkf", "recommended", {"order": "generator_first"}, 1),
    ("fedkf", "recommended", {"order": "generator_first", "adversarial": True}, 1),
    ("fedkf", "recommended", {"adversarial": True, "gamma": 0.3}, 1),
    ("fedkf", "recommended", {"generated_batch": "full", "kd_start": 1}, 1),
    ("fedkf", "paper", {"generated_batch": 3, "keep_moments": False}, 1),
    ("fedkf", "recommended", {"keep_moments": False, "kd_start": 1}, 1),
    ("fedkf-minus", "recommended", {"generator": "dcgan", "kd_start": 1}, 1),
    ("fedkf-server", "recommended", {"keep_moments": False, "server_steps": 3, "generated_batch": 5}, 1),
    ("fedkf-server", "paper", {"generator": "upsampling", "bn_eps": 1e-5}, 1),
]


@pytest.mark.parametrize(("kind", "variant", "changed", "channels"), CASES)
def test_three_rounds_agree(kind, variant, changed, channels, watch, random_sites):
    o = {"gamma": 1.0, "lambda_1": 0.1, "lambda_2": 0.1, "keep_moments": True, "bn_eps": 0.8, "server_steps": 0,
         "lr": LR, "normalise": lambda x: (x - 0.4) / 0.5, **VARIANTS[variant], **changed}  # fmt: skip
    if o["adversarial"] == "colour":
        o["adversarial"] = channels == 3
    sites = random_sites(SIZES, shape=(channels, 16, 16))
    setting = Setting(
        sites=sites, networks=[partial(network, channels)], classes=3, scale=SCALE,
        work=LocalWork(batch=BATCH, lr=LR), participation=Participation(policy="trace", trace=TRACE),
    )  # fmt: skip
    method = METHODS[kind](variant=variant, noise=NOISE, width=WIDTH, generator_lr=0.01, **changed)
    rounds = watch(method, setting, len(TRACE))

    def generator() -> nn.Module:
        shape = (channels, 16, 16)
        first = method.new_generator(setting.client(0, 1, {})).state_dict()
        made = DCGAN(NOISE, WIDTH, shape) if o["generator"] == "dcgan" else Upsampling(NOISE, WIDTH, shape, o["bn_eps"])
        return copied(made, first)

    def adam(gen: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(gen.parameters(), lr=0.01)

    sizes = dict(enumerate(SIZES))
    model = rounds[0].before["model"]
    slots = dict.fromkeys(sizes, model) if o["unseen"] else {}
    gens = {k: generator() for k in (*sizes, "server")}
    adams = {k: adam(gen) for k, gen in gens.items()}
    worst = 0.0
    for t, (seen, active) in enumerate(zip(rounds, TRACE, strict=True), 1):
        oca = mean(slots, sizes) if slots else model
        teacher = loaded(network(channels), model if kind == "fedkf-minus" else oca).eval()
        assert [act.client for act in seen.acts] == active
        if not o["keep_moments"]:
            adams = {k: adam(gen) for k, gen in gens.items()}
        if kind == "fedkf-server" and t >= o["kd_start"]:
            size = o["generated_batch"] if isinstance(o["generated_batch"], int) else BATCH
            for _ in range(o["server_steps"] or max(math.ceil(sizes[k] / BATCH) for k in active)):
                z = seen.draws.take("randn")
                assert z.shape == (size, NOISE)
                loss = generator_loss(teacher, o["normalise"](gens["server"].train()(z)), o)
                adams["server"].zero_grad()
                loss.backward()
                adams["server"].step()
            worst = max(worst, apart(gens["server"].state_dict(), seen.after["generator"]))
        for act in seen.acts:
            k, data = act.client, sites[act.client].train
            student = loaded(network(channels), model)
            order = act.draws.take("randperm")
            batches = [(data.inputs[b], data.labels[b]) for b in order.split(BATCH)]
            if t < o["kd_start"]:
                for x, y in batches:
                    step(student, F.cross_entropy(student(x), y), LR)
            else:
                noises = [act.draws.take("randn") for _ in batches]
                count = o["generated_batch"]
                expected = [
                    count if isinstance(count, int) else BATCH if count == "full" else len(y) for _, y in batches
                ]
                assert [len(z) for z in noises] == expected
                if kind == "fedkf-server":
                    local_round(student, teacher, gens["server"].eval(), None, batches, noises, o)
                else:
                    local_round(student, teacher, gens[k], adams[k], batches, noises, o)
                    kept = copied(copy.deepcopy(gens[k]), act.after["generator"])
                    pairs = zip(parameters(gens[k]), parameters(kept), strict=True)
                    worst = max(worst, *((a - b).abs().max().item() for a, b in pairs))
            assert not act.draws
            worst = max(worst, apart(student.state_dict(), act.body["model"]))
            slots[k] = params(student)
        model = mean({k: slots[k] for k in active}, sizes)
        views = method.models(State(t, seen.after))
        worst = max(worst, apart(model, seen.after["model"]), apart(model, views["aca"]))
        worst = max(worst, apart(mean(slots, sizes), views["oca"]))
    assert worst < 1e-8  # biases before BatchNorm have no gradient but rounding errors, which Adam enlarges
