"""FedFTG: the server fine-tunes the average on images made where it disagrees with the clients' models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.aggregation.robust import bounded_counts
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Federation, Message, State, method
from fedalloy.methods.fedavg import FedAvg
from fedalloy.methods.fedgen import diversity_loss
from fedalloy.nets.generators import LabelledImageGenerator
from fedalloy.train.fit import LocalWork, frozen, load, params
from fedalloy.train.optimisers import adam


@method(
    "fedftg",
    label="FedFTG",
    card=Card(
        paper="Zhang et al., CVPR 2022",
        up="model, n, label counts",
        down="model",
        distils="the active clients' models, on generated images, into their average, at the server",
        leaves_client="model weights, number of samples, how many samples of each class",
        quick={"noise": 4, "width": 4, "iterations": 2, "student_steps": 2, "generator_batch": 4},
    ),
)
class FedFTG(FedAvg):
    """FedAvg whose server fine-tunes the average by data-free distillation before it is sent again.

    In each of `iterations` iterations the server draws noise z and labels y, the labels as often as the active clients
    hold them (customised label sampling). The generator takes `generator_steps` steps towards images x = G(z, y) that
    are hard, recognised and diverse, min -L_md + lambda_cls L_cls + lambda_dis L_div; then the average takes
    `student_steps` steps of min L_md on the images of the same z and y. Each client's model counts by its share
    alpha_{k,y} of the samples with the image's label (class-level ensemble):

        L_md  = mean sum_k alpha_{k,y} KL(softmax(w_k(x)) || softmax(w(x)))
        L_cls = mean sum_k alpha_{k,y} CE(w_k(x), y)
        L_div = exp(-mean_ij |z_i - z_j| |x_i - x_j|)

    The clients' models are frozen. The average is in eval mode while the generator learns and in training mode while
    it learns itself, so that its BatchNorm also sees the images; the generator is then in eval mode. It lasts over the
    rounds and is never sent; its Adam begins anew in each. Both learning rates are those below times decay^(t-1) in
    round t. The view `aca` is the fine-tuned average, which the next round starts from; `oca` is not fine-tuned.
    With `iterations = 0` all is FedAvg, also what is sent.

    `variant` chooses where the paper and its code differ:

    | | recommended | paper | reference (the code) |
    |---|---|---|---|
    | distances in L_div | means over coordinates, as in FedGen | norms | means |
    | labels | drawn | drawn | split in proportion over the round, shuffled |
    | alpha's denominator | count | count | count + 1e-6 |
    | L_md of the generator | KL | KL | mean of differences of logits, teachers detached |
    | L_cls | weighted by image | weighted by image | mean CE times mean alpha |
    | generator's step | on the sum over clients | on the sum | one for each client, with L_div / clients |
    | loss of the average | L_md | L_md | CE to the mixed answers, mean over images and classes |

    Norms of whole images are so large that the paper's L_div and its gradient are 0 from the start. The mean over
    classes in the code makes its server's steps smaller by their number: `server_lr = 0.01` is as much with ten.

    The paper takes noise of 100 numbers for CIFAR-10 and of 256 for CIFAR-100. DaFKD's comparison has other rates,
    0.01 for distillation and 0.001 for the generator, and a fully connected generator of unknown size. Label counts
    are sent with every reply, where once would do: C integers beside a model. The code clips the clients' gradients at
    10, which is `training.clip = 10` here and not the default.

    >>> FedFTG(iterations=3).student_steps
    5
    """

    iterations: int = 10
    generator_steps: int = 1
    student_steps: int = 5
    server_lr: float = 0.1
    server_weight_decay: float = 1e-3
    generator_lr: float = 0.01
    decay: float = 0.998
    lambda_cls: float = 1.0
    lambda_dis: float = 1.0
    noise: int = 100
    width: int = 128
    generator_batch: int = 50
    variant: Literal["recommended", "paper", "reference"] = "recommended"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations:
            self.refuse_bounds("the fine-tuning weighs the clients' models by their label counts", "combine")
        for name in ("iterations", "server_weight_decay", "lambda_cls", "lambda_dis"):
            if getattr(self, name) < 0:
                raise UsageError(f"fedftg.{name} = {getattr(self, name)} must not be negative")
        for name in ("server_lr", "generator_lr", "decay"):
            if getattr(self, name) <= 0:
                raise UsageError(f"fedftg.{name} = {getattr(self, name)} must be positive")
        for name, least in (("generator_steps", 1), ("student_steps", 1), ("noise", 1), ("generator_batch", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"fedftg.{name} = {getattr(self, name)} must be at least {least}")
        if self.width < 2 or self.width % 2:
            raise UsageError(f"fedftg.width = {self.width} cannot be shared by noise and label; write an even number")

    def init(self, fed: Federation) -> Tree:
        """FedAvg's start, and an untrained generator."""
        start = super().init(fed)
        return {**start, "generator": params(self.new_generator(fed))} if self.iterations else start

    @property
    def tells_counts(self) -> bool:
        """The fine-tuning weighs clients by their samples of each class."""
        return bool(self.iterations) or super().tells_counts

    def round(self, s: State, fed: Federation) -> State:
        """One round: send, train, average, fine-tune."""
        if not self.iterations:
            return super().round(s, fed)
        replies = fed.ask("train", fed.sample(), model=s["model"])
        if not replies:
            return s.next()
        average = self.aggregate(s, replies, fed)
        return s.next(**self.fine_tuned(s, average, replies, fed), **self.cached(s, replies))

    def fine_tuned(self, s: State, average: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Tree]:
        """The average and the generator after this round's iterations."""
        student = load(fed.build(), average)
        teachers = [frozen(load(fed.build(), model)) for model in self.received(s, replies)]
        generator = load(self.new_generator(fed), s["generator"])
        sgd = LocalWork(lr=self.server_lr, lr_decay=self.decay, weight_decay=self.server_weight_decay)
        learn = sgd.optimiser_for(student, fed.round)
        improve = adam(generator.parameters(), self.generator_lr * self.decay ** (fed.round - 1))
        device, noise = next(generator.parameters()).device, fed.rng("generator/noise")
        counts = torch.stack(list(bounded_counts([r["counts"] for r in replies], fed.cap)))
        alpha = class_weights(counts, 1e-6 if self.variant == "reference" else 0.0).to(device)
        everybody = list(range(len(teachers)))
        turns = [[k] for k in everybody] if self.variant == "reference" else [everybody]
        for labels in self.labels(counts.sum(0).cpu(), fed.rng("generator/labels")):
            y = labels.to(device)
            z = torch.randn(len(y), self.noise, generator=noise).to(device)
            generator.train()
            student.eval()
            for turn in turns * self.generator_steps:
                x = generator(z, y)
                answers = torch.stack([teachers[k](x) for k in turn])
                loss = (
                    -self.disagreement(answers, student(x), alpha[turn][:, y])
                    + self.lambda_cls * self.recognition(answers, y, alpha[turn][:, y])
                    + self.lambda_dis * self.diversity(z, x) / len(turns)
                )
                improve.zero_grad()
                loss.backward(inputs=list(generator.parameters()))  # type: ignore[no-untyped-call]  # torch's
                improve.step()
                fed.meter.steps += 1
            generator.eval()
            student.train()
            with torch.no_grad():  # neither images nor answers change while the average learns
                x = generator(z, y)
                answers = torch.stack([teacher(x) for teacher in teachers])
            for _ in range(self.student_steps):
                learn.zero_grad()
                self.student_loss(answers, student(x), alpha[:, y]).backward()  # type: ignore[no-untyped-call]  # torch's
                learn.step()
                fed.meter.steps += 1
        return {"model": params(student), "generator": params(generator)}

    def labels(self, held: Tensor, draw: torch.Generator) -> Tensor:
        """The labels of each iteration's images, p(y) ~ sum_k n_k^y: a class that nobody holds is never among them."""
        size = self.iterations * self.generator_batch
        if self.variant == "reference":
            ends = (held.cumsum(0) * size // held.sum()).long()  # of each class in a sorted row, in whole numbers
            split = torch.searchsorted(ends, torch.arange(size), right=True)
            return split[torch.randperm(size, generator=draw)].view(self.iterations, -1)
        return torch.multinomial(held.double(), size, replacement=True, generator=draw).view(self.iterations, -1)

    def disagreement(self, answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
        """L_md as the generator sees it; in the code a difference of logits whose gradient passes the average only."""
        if self.variant == "reference":
            return (a * (said - answers.detach()).abs().mean(2)).sum(0).mean()
        return ensemble_kl(answers, said, a)

    def recognition(self, answers: Tensor, y: Tensor, a: Tensor) -> Tensor:
        """L_cls; in the code the weights of single images have fallen together to their mean."""
        losses = F.cross_entropy(answers.transpose(1, 2), y.expand(len(answers), -1), reduction="none")
        return ((a.mean(1) * losses.mean(1)) if self.variant == "reference" else (a * losses).mean(1)).sum()

    def diversity(self, z: Tensor, x: Tensor) -> Tensor:
        """L_div: 1 where different noise gives equal images."""
        if self.variant == "paper":
            apart_z, apart_x = (
                torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") for rows in (z, x.flatten(1))
            )
            return (-(apart_z * apart_x).mean()).exp()
        return diversity_loss(z, x)

    def student_loss(self, answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
        """L_md as the average minimises it; in the code the mean over images and classes of a cross-entropy."""
        if self.variant == "reference":
            return -((a[:, :, None] * answers.softmax(2)).sum(0) * said.log_softmax(1)).mean()
        return ensemble_kl(answers, said, a)

    def new_generator(self, fed: Federation) -> nn.Module:
        """The generator before any training."""
        return fed.generator(partial(LabelledImageGenerator, fed.shape, fed.classes, self.noise, self.width))


def class_weights(counts: Tensor, eps: float = 0.0) -> Tensor:
    """alpha_{k,y} = n_k^y / sum_j n_j^y, from label counts (K, classes); 0 for a class that nobody holds.

    >>> class_weights(torch.tensor([[3, 0, 0], [1, 5, 0]]))
    tensor([[0.7500, 0.0000, 0.0000],
            [0.2500, 1.0000, 0.0000]])
    """
    return (counts.double() / (counts.sum(0).clamp(min=1) + eps)).float()


def ensemble_kl(answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
    """L_md = mean_b sum_k alpha_{k,b} KL(softmax(answers_{k,b}) || softmax(said_b)), alpha of each image's label.

    >>> teachers, student = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log(), torch.tensor([[0.8, 0.2]]).log()
    >>> round(ensemble_kl(teachers, student, torch.tensor([[1.0], [0.0]])).item(), 6)
    0.03669
    """
    target, log_said = answers.log_softmax(2), said.log_softmax(1).expand_as(answers)
    return (a * F.kl_div(log_said, target, reduction="none", log_target=True).sum(2)).sum(0).mean()
