"""FedCOG: each client makes images of the classes it lacks and learns from the global model's answers to them."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.base.options import Count, NotNegative, Positive, Several, by_variant, option
from fedalloy.federation.core import Card, Client, Message, Reply, action, method, reply
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.fit import aside, batches, fit, frozen, params
from fedalloy.train.losses import ce, js, kl


@method(
    "fedcog",
    label="FedCOG",
    card=Card(
        brief="images of classes that clients lack",
        paper="Ye et al., ICLR 2024",
        distils="the received model, on images made for the classes a client lacks, into its model",
        remembers="its model as it was at the end of its last training",
        quick={"generation_steps": 2, "images": 8},
    ),
)
class FedCOG(FedAvg):
    """FedAvg whose clients complement their data: consensus on images that the global and the local model dispute.

    A client makes images of the classes that it has fewer samples of than of its most frequent one. The pixels
    themselves are optimised, from noise, so that the received model (glob) takes an image for what it should be and the
    client's own previous model (prev) disagrees. In each step the client then trains on a batch of its data and on a
    batch of the images, with glob's answers as targets. The images last for the round. A client trains as in FedAvg if
    its classes are balanced, if fewer than two images fall to all classes, or, with `unseen = "skip"`, if it has no
    previous model.

    >>> FedCOG(variant="kdia").start_round, FedCOG(variant="kdia").shares(100, 700)
    (51, (1.0, 0.01))
    """

    variant: Literal["recommended", "reference", "kdia"] = option(
        "recommended", "whose choices: ours, the authors' code's, or KDIA's as far as they are known"
    )
    lambda_dis: NotNegative = option(0.1, "weight of the disagreement between the two models, in making images")
    weighting: Literal["sample_ratio", "lambda_kd"] = by_variant(
        "sample_ratio",
        "weigh the two terms by what a client has and what it lacks, or 1 and lambda_kd",
        kdia="lambda_kd",
    )
    lambda_kd: NotNegative = option(0.01, "weight of the images' term", only_with=("weighting", "lambda_kd"))
    disagree: Literal["js", "reference"] = by_variant(
        "js", "the Jensen-Shannon divergence, or what FedCOG's code has", reference="reference", kdia="reference"
    )
    targets: Literal["last", "best"] = by_variant(
        "last", "glob's answers to the finished images, or at the step of least loss", reference="best", kdia="best"
    )
    generated_norms: Literal["keep", "update"] = by_variant(
        "keep", "what batches of images do to BatchNorm's running statistics", reference="update", kdia="update"
    )
    unseen: Literal["skip", "random"] = by_variant(
        "skip", "a never seen client's previous model: none, or a random network", reference="random", kdia="random"
    )
    start_round: Count = by_variant(1, "first round with images", reference=51, kdia=51)
    images: Several = option(256, "most images that a client makes in a round")
    generation_steps: Count = option(500, "steps of Adam on the pixels", repeats=True)
    generation_lr: Positive = option(0.01, "learning rate of Adam on the pixels")

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on a_real CE(net(data), labels) + a_syn KL(glob(images) || net(images))."""
        net = me.net(msg["model"])
        lacking = missing(me.train.counts(me.classes))
        plan = label_plan(lacking, self.images)
        known = me.memory or self.unseen == "random"
        if me.round < self.start_round or not known or plan.sum() < 2:
            fit(net, me, lambda x, y: me.loss(net(x), y))
        else:
            former = me.net(me.memory["model"]) if me.memory else me.random_net()
            glob, prev = frozen(me.net(msg["model"])), frozen(former)
            images, answers = self.generated(me, glob, prev, plan)
            a_real, a_syn = self.shares(me.n, int(lacking.sum()))
            turns = batches(len(images), me.work.batch, me.steps, me.rng("images/batches"))
            dropout = me.rng("images/dropout")

            def loss(x: Tensor, y: Tensor) -> Tensor:
                rows = next(turns).to(x.device)
                real = me.loss(net(x), y)  # first, so that the images would move BatchNorm's statistics last
                with aside(net, dropout) if self.generated_norms == "keep" else nullcontext():
                    pull = kl(answers[rows], net(images[rows]))
                return a_real * real + a_syn * pull

            fit(net, me, loss)
        model = params(net)
        return reply(model=model, **self.about(me), keep={"model": model})

    def generated(self, me: Client, glob: nn.Module, prev: nn.Module, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Images that minimise CE(glob(x), y) + lambda_dis (1 - JS(prev(x), glob(x))), and glob's answers to them."""
        labels = torch.arange(me.classes, device=plan.device).repeat_interleave(plan)
        noise = torch.randn(len(labels), *me.shape, generator=me.rng("images"))
        images = nn.Parameter(noise.to(labels.device))
        optimiser = torch.optim.Adam([images], lr=self.generation_lr, betas=(0.5, 0.9), fused=True)
        disagreement = js if self.disagree == "js" else reference_js
        least, best = math.inf, torch.empty(0)
        for _ in range(self.generation_steps):
            answers = glob(images)
            loss = ce(answers, labels) + self.lambda_dis * (1 - disagreement(prev(images), answers))
            if self.targets == "best" and not loss >= least:  # also the first, if none is a number
                least, best = loss.item(), answers.detach()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
            me.meter.steps += 1
        if self.targets == "best":
            return images.detach(), best
        with torch.no_grad():
            return images.detach(), glob(images)

    def shares(self, n: int, lacking: int) -> tuple[float, float]:
        """a_real and a_syn, for a client with n samples that lacks so many for all its classes to be equal."""
        if self.weighting == "lambda_kd":
            return 1.0, self.lambda_kd
        return n / (n + lacking), lacking / (n + lacking)


def missing(counts: Tensor) -> Tensor:
    """g_j = max_i c_i - c_j: how many samples of each class a client would need to have them all equally often.

    >>> missing(torch.tensor([10, 4, 0]))
    tensor([ 0,  6, 10])
    """
    return counts.max() - counts


def label_plan(lacking: Tensor, images: int) -> Tensor:
    """How many images to make of each class: floor(images g_j / sum_i g_i), none where nothing is lacking.

    >>> label_plan(torch.tensor([0, 6, 10]), 256)
    tensor([  0,  96, 160])
    """
    return images * lacking // lacking.sum().clamp(min=1)


def reference_js(one: Tensor, other: Tensor) -> Tensor:
    """What FedCOG's code has in its place: KL(M || P) and KL(M || Q) of clamped probabilities, their mean cut at 1.

    >>> reference_js(torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]]))
    tensor(1.)
    """
    p, q = one.softmax(1), other.softmax(1)
    p, q, middle = (probabilities.clamp(0.01, 0.99) for probabilities in (p, q, (p + q) / 2))
    both = [F.kl_div(side.log(), middle, reduction="batchmean") for side in (p, q)]
    return ((both[0] + both[1]) / 2).clamp(0.0, 1.0)
