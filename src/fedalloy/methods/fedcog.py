"""FedCOG: each client makes images of the classes it lacks and learns from the global model's answers to them."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Message, Reply, action, method, reply
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.fit import aside, batches, fit, frozen, params
from fedalloy.train.losses import ce, kl


@method(
    "fedcog",
    label="FedCOG",
    card=Card(
        paper="Ye et al., ICLR 2024",
        up="model, n",
        down="model",
        distils="the received model, on images made for the classes a client lacks, into its model",
        remembers="its model as it was at the end of its last training",
        quick={"generation_steps": 2, "images": 8},
    ),
)
class FedCOG(FedAvg):
    """FedAvg whose clients complement their data: consensus on images that the global and the local model dispute.

    From round `start_round` on, a client makes up to `images` images of the classes it has fewer samples of than of its
    most frequent one, each class in proportion to what it lacks. The pixels themselves are optimised, from noise in the
    space of normalised inputs, for `generation_steps` steps of Adam on

        CE(glob(x), y) + lambda_dis (1 - JS(softmax(prev(x)), softmax(glob(x)))),

    where glob is the received model and prev the client's own at the end of its last training, both frozen. It then
    trains on a batch of its data and one of the images in every step, where the images' targets are glob's answers:

        a_real CE(net(data), labels) + a_syn KL(softmax(glob(x)) || softmax(net(x))).

    The images last for the round and leave no trace in BatchNorm's statistics. A client trains as FedAvg does if it
    has no previous model (the images need one to dispute with), if its classes are balanced, or if fewer than two
    images fall to all classes, which can happen where classes are more than `images`.

    Where the paper, as KDIA reports it, and its code differ (the paper's full text was not at hand):

    * `weighting = "lambda_kd"`: a_real = 1, a_syn = lambda_kd, as KDIA reports (0.01, with lambda_dis = 0.1).
      `"sample_ratio"`, the code: n and n_syn over n + n_syn, n_syn being all that the client lacks.
    * `disagree = "js"`: the Jensen-Shannon divergence, at most ln 2. `"reference"`, the code: probabilities are clamped
      to [0.01, 0.99], each KL is the other way round, and a mean above 1 is cut off, which leaves no gradient where the
      models disagree most.
    * The targets are the answers to the images as they are at the end. The code keeps those of its best step beside
      the images of its last.

    The defaults are the setting of no source. The code generates only from round 51 of 70 on, where the default is
    round 1; KDIA does not say when it begins, but a series in its plotting code rises at round 51. FedCOG's local work
    is 400 steps a round, 100 in its script, whatever the client's size. Without an option: the code lets generated
    batches move BatchNorm's statistics, and takes a random network as the previous one of a client never seen.

    >>> FedCOG(start_round=51).generation_steps
    500
    """

    lambda_dis: float = 0.1
    lambda_kd: float = 0.01
    weighting: Literal["lambda_kd", "sample_ratio"] = "lambda_kd"
    disagree: Literal["js", "reference"] = "js"
    start_round: int = 1
    images: int = 256
    generation_steps: int = 500
    generation_lr: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lambda_dis", "lambda_kd"):
            if getattr(self, name) < 0:
                raise UsageError(f"fedcog.{name} = {getattr(self, name)} must not be negative")
        for name, least in (("start_round", 1), ("images", 2), ("generation_steps", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"fedcog.{name} = {getattr(self, name)} must be at least {least}")
        if self.generation_lr <= 0:
            raise UsageError(f"fedcog.generation_lr = {self.generation_lr} must be positive")

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on real and generated batches; the client keeps what it ends with as its next previous model."""
        net = me.net(msg["model"])
        lacking = missing(me.train.counts(me.classes))
        plan = label_plan(lacking, self.images)
        if me.round < self.start_round or not me.memory or plan.sum() < 2:
            fit(net, me, lambda x, y: ce(net(x), y))
        else:
            glob, prev = (frozen(me.net(weights)) for weights in (msg["model"], me.memory["model"]))
            images, answers = self.generated(me, glob, prev, plan)
            self.learn(me, net, images, answers, self.shares(me.n, int(lacking.sum())))
        model = params(net)
        return reply(model=model, **self.about(me), keep={"model": model})

    def generated(self, me: Client, glob: nn.Module, prev: nn.Module, plan: Tensor) -> tuple[Tensor, Tensor]:
        """Images that glob takes for what they should be and prev does not, and glob's answers to them."""
        labels = torch.arange(me.classes, device=plan.device).repeat_interleave(plan)
        noise = torch.randn(len(labels), *me.shape, generator=me.rng("images"))
        images = nn.Parameter(noise.to(labels.device))
        optimiser = torch.optim.Adam([images], lr=self.generation_lr, betas=(0.5, 0.9), fused=True)
        disagreement = js if self.disagree == "js" else reference_js
        for _ in range(self.generation_steps):
            answers = glob(images)
            loss = ce(answers, labels) + self.lambda_dis * (1 - disagreement(prev(images), answers))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
            me.meter.steps += 1
        with torch.no_grad():
            return images.detach(), glob(images)

    def learn(self, me: Client, net: nn.Module, images: Tensor, answers: Tensor, weights: tuple[float, float]) -> None:
        """Local training with a batch of images beside each real one."""
        a_real, a_syn = weights
        turns = batches(len(images), me.work.batch, me.steps, me.rng("images/batches"))
        dropout = me.rng("images/dropout")

        def loss(x: Tensor, y: Tensor) -> Tensor:
            rows = next(turns).to(x.device)
            with aside(net, dropout):
                pull = kl(answers[rows], net(images[rows]))
            return a_real * ce(net(x), y) + a_syn * pull

        fit(net, me, loss)

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


def js(one: Tensor, other: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of two models' answers, mean over the batch: 0 for equal ones, at most ln 2.

    >>> round(js(torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]])).item(), 6)
    0.693147
    """
    p, q = one.log_softmax(1), other.log_softmax(1)
    middle = torch.logaddexp(p, q) - math.log(2)
    return (kl(p, middle) + kl(q, middle)) / 2


def reference_js(one: Tensor, other: Tensor) -> Tensor:
    """What FedCOG's code has in its place: KL(M || P) and KL(M || Q) of clamped probabilities, their mean cut at 1.

    >>> reference_js(torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]]))
    tensor(1.)
    """
    p, q = one.softmax(1), other.softmax(1)
    p, q, middle = (probabilities.clamp(0.01, 0.99) for probabilities in (p, q, (p + q) / 2))
    both = [F.kl_div(side.log(), middle, reduction="batchmean") for side in (p, q)]
    return ((both[0] + both[1]) / 2).clamp(0.0, 1.0)
