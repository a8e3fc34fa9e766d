"""FedFTG: the server fine-tunes the average on images made where it disagrees with the clients' models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedalloy.aggregation.robust import bounded_counts
from fedalloy.base.options import Count, Even, NotNegative, Number, Positive, Several, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Federation, Message, State, method
from fedalloy.knowledge import server_generator as losses
from fedalloy.knowledge.averaged import label_counts, models
from fedalloy.knowledge.coverage import note_coverage
from fedalloy.knowledge.teachers import by_label_counts, ensemble
from fedalloy.methods.fedavg import FedAvg
from fedalloy.nets.generators import LabelledImageGenerator, PerceptronImages
from fedalloy.train.beside import Beside, normal
from fedalloy.train.fit import LocalWork, frozen, load, params


@method(
    "fedftg",
    label="FedFTG",
    card=Card(
        brief="data-free tuning of the average",
        paper="Zhang et al., CVPR 2022",
        distils="the active clients' models, on generated images, into their average, at the server",
        leaves_client="model weights, number of samples, how many samples of each class",
        quick={"noise": 4, "width": 4, "iterations": 2, "student_steps": 2, "generator_batch": 4},
    ),
)
class FedFTG(FedAvg):
    """FedAvg whose server fine-tunes the average by data-free distillation before it is sent again.

    In each iteration the server draws noise z and labels y, the labels as often as the active clients hold them. The
    generator takes `generator_steps` steps towards images x = G(z, y) that are hard, recognised and diverse; then the
    average takes `student_steps` steps towards the clients' models on the images of the same z and y. Each client's
    model counts by its share alpha_{k,y} of the samples with the image's label:

        L_md  = mean sum_k alpha_{k,y} KL(softmax(w_k(x)) || softmax(w(x)))
        L_cls = mean sum_k alpha_{k,y} CE(w_k(x), y)
        L_div = exp(-mean_ij |z_i - z_j|^2 |x_i - x_j|), without the square if `norms`

    >>> FedFTG(iterations=3).student_steps, FedFTG(variant="reference").student_distance
    (5, 'ce')
    """

    takes = frozenset({"weights", "clip"})

    variant: Literal["recommended", "paper", "reference", "dafkd"] = option(
        "recommended", "whose choices: ours, the paper's, its code's or DaFKD's"
    )
    iterations: Number = option(10, "iterations of fine-tuning in a round; 0 is FedAvg", repeats=True)
    generator_steps: Count = option(1, "steps of the generator in an iteration")
    student_steps: Count = option(5, "steps of the average in an iteration")
    server_lr: Positive = by_variant(0.1, "learning rate of the average", dafkd=0.01)
    server_weight_decay: NotNegative = option(1e-3, "weight decay of the average")
    generator_lr: Positive = by_variant(
        0.01, "learning rate of the generator's Adam, which is reset in each round", dafkd=1e-3
    )
    decay: Positive = option(0.998, "factor of both learning rates from one round to the next")
    lambda_cls: NotNegative = option(1.0, "weight of L_cls")
    lambda_dis: NotNegative = option(1.0, "weight of L_div")
    noise: Count = option(100, "length of an image's noise vector")
    generator_kind: Literal["convolutional", "perceptron"] = by_variant(
        "convolutional", "the generator of FedFTG's code, or the perceptron of DaFKD's comparison", dafkd="perceptron"
    )
    width: Even = option(128, "channels of the generator, half of them for the label; or numbers of each embedding")
    generator_batch: Several = option(50, "images of an iteration")
    norms: bool = by_variant(False, "L_div of Euclidean norms, not of means over coordinates", paper=True)
    labels: Literal["drawn", "split"] = by_variant(
        "drawn", "draw labels, or split a round's images in proportion", reference="split"
    )
    eps: NotNegative = by_variant(0.0, "added to the denominator of alpha", reference=1e-6)
    generator_distance: Literal["kl", "l1"] = by_variant(
        "kl", "L_md of the generator: KL, or differences of logits with detached teachers", reference="l1"
    )
    cls_by_image: bool = by_variant(True, "weigh each image in L_cls, not each client's mean", reference=False)
    one_by_one: bool = by_variant(False, "a step of the generator for each client, not on their sum", reference=True)
    student_distance: Literal["kl", "ce"] = by_variant(
        "kl", "L_md of the average: KL, or CE as a mean over images and classes", reference="ce"
    )

    def init(self, fed: Federation) -> Tree:
        """FedAvg's start, and an untrained generator."""
        return {**super().init(fed), "generator": params(self.new_generator(fed))}

    @property
    def tells_counts(self) -> bool:
        """The fine-tuning weighs clients by their samples of each class."""
        return bool(self.iterations)

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """Fine-tune the average, and with it the generator."""
        if not self.iterations:
            return super().step(s, mean, replies, fed)
        student = load(fed.build(), mean)
        teachers = [frozen(load(fed.build(), m)) for m in self.aggregation.clipped(models(replies), s["model"])]
        work = LocalWork(lr=self.server_lr, lr_decay=self.decay, weight_decay=self.server_weight_decay)
        learn, rate = work.optimiser_for(student, fed.round), self.generator_lr * self.decay ** (fed.round - 1)
        generator = Beside(load(self.new_generator(fed), s["generator"]), rate)
        counts = torch.stack(list(bounded_counts(label_counts(replies), self.aggregation.cap)))
        device, noise = next(student.parameters()).device, fed.rng("generator/noise")
        alpha = by_label_counts(counts, self.eps).to(device)
        everybody, seen = list(range(len(teachers))), list[Tensor]()
        turns = [[k] for k in everybody] if self.one_by_one else [everybody]
        for y in self.sampled(counts.sum(0).cpu(), fed.rng("generator/labels")).to(device):
            z = normal(len(y), self.noise, noise, device)
            generator.net.train()
            student.eval()
            for turn in turns * self.generator_steps:
                x = generator(z, y)
                answers = torch.stack([teachers[k](x) for k in turn])
                with fed.meter.passed_through():
                    said = student(x)
                hard = self.hardness(answers, said, y, alpha[turn][:, y])
                generator.step(hard + self.lambda_dis * self.diversity(z, x) / len(turns))
                fed.meter.steps += 1
            generator.net.eval()
            student.train()
            with torch.no_grad():  # neither images nor answers change while the average learns
                x = generator(z, y)
                answers = torch.stack([teacher(x) for teacher in teachers])
            seen.append(ensemble(alpha[:, y].double(), answers))
            for _ in range(self.student_steps):
                learn.zero_grad()
                self.student_loss(answers, student(x), alpha[:, y]).backward()  # type: ignore[no-untyped-call]  # torch's
                learn.step()
                fed.meter.steps += 1
        note_coverage(fed, torch.cat(seen), asked=int((counts.sum(0) > 0).sum()))
        return {"model": params(student), "generator": params(generator.net)}

    def sampled(self, held: Tensor, stream: torch.Generator) -> Tensor:
        """The labels of each iteration's images, p(y) ~ sum_k n_k^y."""
        sample = losses.drawn_labels if self.labels == "drawn" else losses.split_labels
        return sample(held, self.iterations, self.generator_batch, stream)

    def hardness(self, answers: Tensor, said: Tensor, y: Tensor, a: Tensor) -> Tensor:
        """-L_md + lambda_cls L_cls, which the generator minimises."""
        apart = losses.DISTANCES[self.generator_distance](answers, said, a)
        return -apart + self.lambda_cls * losses.recognition(answers, y, a, by_image=self.cls_by_image)

    def diversity(self, z: Tensor, x: Tensor) -> Tensor:
        """L_div: 1 where different noise gives equal images."""
        return (losses.diversity_by_norms if self.norms else losses.diversity_loss)(z, x)

    def student_loss(self, answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
        """L_md as the average minimises it."""
        return losses.DISTANCES[self.student_distance](answers, said, a)

    def new_generator(self, fed: Federation) -> nn.Module:
        """The generator before any training."""
        sizes = (fed.classes, self.noise, self.width)
        if self.generator_kind == "perceptron":
            return fed.generator(partial(PerceptronImages, fed.shape, fed.scale, *sizes))
        return fed.generator(partial(LabelledImageGenerator, fed.shape, *sizes))
