"""The cost of data-free distillation: FedKF-'s local step against hand-written loops, and many heads against one.

A local step of FedKF- goes through the engine's entry point, `act(method, me, message)`. Two loops in plain PyTorch
take the same steps on the same batches and the same noise: a plain one (Upsample and Conv2d, torch's default layout and
Adam), and one with the library's layers, where the engine is the only difference. Ours must agree with the latter bit
for bit, and with the former except for rounding. Then the server's training of a generator, KDIA's and FedGen's: a step
against ten clients' heads compared with a step against one.

Everything runs in this process, on one thread, alternating; the time is CPU time, which other processes affect less.
The report shows the median of the ratios, pass by pass.

    python bench/distillation.py    two minutes; exits with status 1 if a limit is exceeded
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from workloads import W1, Workload

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Scale
from fedalloy.engine.malloc import tune_malloc
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Message, State, act, initial
from fedalloy.federation.setting import Setting
from fedalloy.methods.fedgen import FedGen
from fedalloy.methods.fedkf_minus import FedKFMinus
from fedalloy.methods.kdia import KDIA
from fedalloy.nets.generators import ImageGenerator
from fedalloy.train.fit import batches, one_thread, params

PASSES = 5
STEP_LIMIT, HEADS_LIMIT = 1.10, 2.0
HEADS, SERVER_STEPS = 10, 50
ALIKE = 3  # passes; each amplifies earlier differences in the last bits, on some processors a hundredfold
SAME = 1e-3  # relative distance of two students after some steps, since only the order of sums differs

LETTERS = Workload("lenet5, 1x32x32", "lenet5", 1, 32, samples=512, clients=1, active=1, epochs=1, classes=26)
Timed = Callable[[int], None]


class PlainGenerator(nn.Module):
    """FedKF's generator as in its code: pixels are repeated, then convolved."""

    def __init__(self, shape: tuple[int, ...], scale: Scale, noise: int, width: int) -> None:
        super().__init__()
        channels, height, across = shape
        self.small, self.scale = (width, height // 4, across // 4), scale
        self.linear = nn.Linear(noise, math.prod(self.small))
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width, eps=0.8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width // 2, 3, padding=1),
            nn.BatchNorm2d(width // 2, eps=0.8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width // 2, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Generate images from noise."""
        return self.scale.normalise(self.layers(self.linear(z).view(-1, *self.small)))


class ByHand:
    """A client of FedKF- without an engine: student, teacher, generator, and a loop over batches."""

    def __init__(self, setting: Setting, method: FedKFMinus, *, plain: bool) -> None:
        self.setting, self.method = setting, method
        me = setting.client(0, 1, {})
        shaped = partial(ImageGenerator, me.shape, me.scale, noise=method.noise, width=method.width)
        self.student, self.teacher = (initial(me.network, me.seed, "nchw" if plain else "auto") for _ in range(2))
        self.teacher.eval().requires_grad_(False)
        self.generator = initial(shaped, me.seed, purpose="generator")
        if plain:
            given, self.generator = self.generator, PlainGenerator(me.shape, me.scale, method.noise, method.width)
            for mine, theirs in zip(self.generator.state_dict().values(), given.state_dict().values(), strict=True):
                mine.copy_(theirs)
        self.adam = torch.optim.Adam(self.generator.parameters(), lr=method.generator_lr, fused=None if plain else True)
        self.x, self.y = setting.sites[0].train.inputs, setting.sites[0].train.labels
        self.start = params(self.student)

    def round(self, number: int) -> None:
        """Run one client's local work, always from the initial model; the generator continues."""
        student, teacher, generator, work = self.student, self.teacher, self.generator, self.setting.work
        student.load_state_dict(self.start)
        student.train()
        me = self.setting.client(0, number, {})
        order, noise = me.rng("batches"), me.rng("generator")
        sgd = torch.optim.SGD(student.parameters(), lr=work.lr, momentum=work.momentum)
        for positions in batches(len(self.y), work.batch, me.steps, order):
            x, y = self.x.index_select(0, positions), self.y.index_select(0, positions)
            images = generator(torch.randn(len(y), self.method.noise, generator=noise))
            feature = teacher.features(images)  # type: ignore[operator]  # a module
            answers = teacher.head(feature)  # type: ignore[operator]  # a module
            heard, said = student(images.detach()).log_softmax(1), answers.detach().log_softmax(1)
            distance = F.kl_div(heard, said, reduction="batchmean", log_target=True)
            sgd.zero_grad(set_to_none=True)
            (F.cross_entropy(student(x), y) + distance).backward()  # type: ignore[no-untyped-call]  # torch's
            sgd.step()
            mean = answers.softmax(1).mean(0)
            entropy = 1 + (mean * mean.log()).sum() / math.log(answers.shape[1])
            sure, active = F.cross_entropy(answers, answers.argmax(1)), feature.abs().mean(1).mean()
            self.adam.zero_grad(set_to_none=True)
            (entropy + 0.1 * sure - 0.1 * active).backward()
            self.adam.step()


class Ours:
    """The same client, called like in every engine."""

    def __init__(self, setting: Setting, method: FedKFMinus) -> None:
        self.setting, self.method = setting, method
        self.start = params(setting.client(0, 1, {}).build())
        self.memory: Tree = {}
        self.model: Tree = {}

    def round(self, number: int) -> None:
        """Run one client's local work, always from the initial model; the generator continues."""
        me = self.setting.client(0, number, self.memory)
        answer = act(self.method, me, Message("train", 0, {"model": self.start}))
        assert answer.keep is not None
        self.memory, self.model = answer.keep, answer.body["model"]


@dataclass(frozen=True)
class Cost:
    """Seconds of two alternating sides, for a number of steps each."""

    name: str
    beside: str
    limit: float
    steps: int
    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of ours to theirs, pass by pass."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def kept(self) -> bool:
        """Return whether the ratio is within the limit."""
        return statistics.median(self.ratios) <= self.limit

    @property
    def cells(self) -> list[str]:
        """Return a row of the table."""
        low, middle, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        per_step = [f"{1000 * statistics.median(s) / self.steps:.1f}" for s in (self.theirs, self.ours)]
        ratio = f"{middle:.3f} ({low:.2f}-{high:.2f})"
        return [self.name, self.beside, *per_step, ratio, f"{self.limit:.2f}" + ("" if self.kept else ", missed")]


def local_steps(work: Workload, method: FedKFMinus, passes: int) -> list[Cost]:
    """Compare FedKF-'s local steps with the two loops."""
    setting = work.built().setting
    ours, plain, alike = Ours(setting, method), *(ByHand(setting, method, plain=plain) for plain in (True, False))
    seconds: dict[str, list[float]] = {"ours": [], "plain": [], "alike": []}
    for number in range(1, passes + 2):
        _turn({"ours": ours.round, "plain": plain.round, "alike": alike.round}, number, seconds)
        assert tree.equal(ours.model, params(alike.student)), (
            "the loop with the same layers trained a different student"
        )
        apart = distance(plain.student, ours.model)
        if number <= ALIKE:
            assert apart < SAME, f"the plain loop trained a different student, {apart:.1e} away"
    found = {name: s[1:] for name, s in seconds.items()}  # the first pass warms up
    name, steps = f"FedKF- of width {method.width}, a local step", setting.steps(0)
    return [
        Cost(name, "a plain implementation", STEP_LIMIT, steps, found["ours"], found["plain"]),
        Cost("", "with the same layers", STEP_LIMIT, steps, found["ours"], found["alike"]),
    ]


def server_steps(work: Workload, method: KDIA | FedGen, heads: int, passes: int) -> Cost:
    """Compare a server's generator against many heads with one head."""
    setting = work.built().setting
    many, one = (_teaching(setting, method, number) for number in (heads, 1))
    seconds: dict[str, list[float]] = {"many": [], "one": []}
    for number in range(passes + 1):
        _turn({"many": many, "one": one}, number, seconds)
    name = f"{method.label}'s server, a generator's step, {heads} heads"
    return Cost(name, "1 head", HEADS_LIMIT, SERVER_STEPS, seconds["many"][1:], seconds["one"][1:])


def _teaching(setting: Setting, method: KDIA | FedGen, heads: int) -> Timed:
    """Return the server's training against the models of this many clients."""
    fed = Serial(setting).open(method, 1)
    state = State(0, method.init(fed))
    noise = torch.Generator().manual_seed(0)
    counts = torch.full((setting.classes,), 50)
    replies = [
        Message("train", k, {"model": _shaken(state["model"], noise), "n": 500, "counts": counts}) for k in range(heads)
    ]

    def teach(_: int) -> None:
        method.step(state, state["model"], replies, fed)

    return teach


def _shaken(model: Mapping[str, Tensor], noise: torch.Generator) -> dict[str, Tensor]:
    return {name: t + 0.1 * torch.randn(t.shape, generator=noise) for name, t in model.items()}


def distance(net: nn.Module, model: Tree) -> float:
    """Return the relative distance of a network from a model."""
    apart = sum(float((p.detach() - model[name]).square().sum()) for name, p in net.named_parameters())
    return math.sqrt(apart / sum(float(p.detach().square().sum()) for p in net.parameters()))


def _turn(sides: Mapping[str, Timed], number: int, seconds: dict[str, list[float]]) -> None:
    """Run every side once, in an order that changes from pass to pass."""
    names = [*sides]
    first = number % len(names)
    for name in names[first:] + names[:first]:
        begin = time.process_time()
        sides[name](number)
        seconds[name].append(time.process_time() - begin)


def main() -> int:
    """Measure, print a table, and return 1 if a limit is exceeded."""
    table = Table(title=f"CPU time, medians of {PASSES} passes (quartiles)")
    for heading in ("what", "beside"):
        table.add_column(heading)
    for heading in ("its ms", "our ms", "ratio", "limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    costs: list[Cost] = []
    tune_malloc()
    with one_thread():
        for width in (128, 32):
            costs += local_steps(LETTERS, FedKFMinus(width=width, kd_start=1), PASSES)
        heads = replace(W1, name="simple-cnn", clients=2, active=2)
        servers = (KDIA(generator_epochs=1, generator_batches=SERVER_STEPS), FedGen(generator_steps=SERVER_STEPS))
        costs += [server_steps(heads, method, HEADS, PASSES) for method in servers]
    for cost in costs:
        table.add_row(*cost.cells)
    Console(width=140).print(table)
    return 0 if all(cost.kept for cost in costs) else 1


if __name__ == "__main__":
    sys.exit(main())
