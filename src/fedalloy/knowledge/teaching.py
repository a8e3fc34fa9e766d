"""The server's distillation in DaFKD: weighted answers of clients' models teach a student (Eq. 7 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.base.options import Number, Positive, Several, Share, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.federation.core import Federation, Message, Method
from fedalloy.knowledge.game import in_batches
from fedalloy.knowledge.teachers import Ensemble, by_discriminator, ensemble
from fedalloy.nets.models import FeatureNet, in_two_parts
from fedalloy.train.fit import LocalWork, fit, frozen, load, params

Scaling = Literal["plain", "tau2", "tau2_mean"]


@dataclass(frozen=True, kw_only=True)
class Teaching(Method):
    """How the average learns from the clients' models, for methods that distil at the server."""

    distil_batch: Several = option(32, "samples of a step of distillation")
    distil_steps: Number = by_variant(200, "steps of distillation; 0: none", repeats=True, reference=1600)
    distil_optimiser: Literal["sgd", "adam"] = by_variant("sgd", "optimiser of the distillation", reference="adam")
    distil_lr: Positive = by_variant(0.01, "learning rate of the distillation", reference=1e-4)
    max_share: Share = option(1.0, "largest weight that one client can have for a sample")
    ensemble: Ensemble = by_variant("prob", "whether probabilities or logits are averaged", reference="logit")
    tau: Positive = by_variant(1.0, "temperature of teachers and student", reference=20.0)
    kd_scale: Scaling = by_variant(
        "plain", "KL, times tau^2, or also a mean over classes instead of their sum", reference="tau2_mean"
    )
    student_mode: Literal["train", "eval"] = by_variant(
        "eval", "mode of the student; train: its BatchNorm adapts to generated images", paper="train", reference="train"
    )

    def answers(self, net: FeatureNet, x: Tensor) -> Tensor:
        """A classifier's logits for generated samples."""
        logits: Tensor = net(x)
        return logits

    def logits(self, fed: Federation, models: Sequence[Tree], x: Tensor) -> Tensor:
        """The logits of several classifiers for generated samples (K, N, classes)."""
        net, found = in_two_parts(fed.build(), self.name), []
        frozen(net)
        for model in models:
            load(net, model)
            found.append(in_batches(lambda part: (self.answers(net, part),), x)[0])
        return torch.stack(found)

    def weighted(
        self, fed: Federation, replies: Sequence[Message], scores: Tensor, logits: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """The teacher from scores (K, N) and logits (K, N, classes), and each client's importance for each class."""
        shares = by_discriminator(scores, self.max_share)  # Eq. 7
        teacher = ensemble(shares, logits, self.tau, self.ensemble)  # sum_k ahat_ki s(w_k; x_i) of Eq. 8
        table = torch.zeros(len(fed.sizes), fed.classes, dtype=torch.float32)  # 0 for absent clients
        table[[r.client for r in replies]] = importance_by_class(shares, teacher[:, : fed.classes]).cpu()
        return teacher, {"importance": table}

    def distilled(self, fed: Federation, model: Tree, x: Tensor, teacher: Tensor) -> Tree:
        """The model after learning the teacher's probabilities for generated samples."""
        rows = torch.arange(len(x), device=x.device)
        work = LocalWork(batch=self.distil_batch, optimiser=self.distil_optimiser, lr=self.distil_lr)
        # These samples are not augmented. Instead of a label, each sample has its row number.
        me = replace(fed.learner(Samples(x, rows, rows), self.distil_steps), work=work, augment=None)
        student = in_two_parts(me.net(model), self.name)

        def loss(x: Tensor, rows: Tensor) -> Tensor:
            student.train(self.student_mode == "train")
            return distance_to(teacher[rows], self.answers(student, x), self.tau, self.kd_scale)  # Eq. 8

        fit(student, me, loss, stage="distillation")
        return params(student)


def distance_to(teacher: Tensor, logits: Tensor, tau: float = 1.0, scaling: Scaling = "plain") -> Tensor:
    """KL(teacher || softmax(logits / tau)), mean over the samples (Eq. 8); the teacher is given as probabilities.

    `tau2` multiplies by tau^2; `tau2_mean`, like DaFKD's code, also takes the mean over classes instead of the sum.

    >>> round(distance_to(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.8, 0.2]]).log()).item(), 6)
    0.03669
    """
    distance = F.kl_div(F.log_softmax(logits / tau, 1), teacher, reduction="batchmean")
    if scaling == "plain":
        return distance
    return distance * (tau**2 if scaling == "tau2" else tau**2 / logits.shape[1])


def importance_by_class(shares: Tensor, teacher: Tensor) -> Tensor:
    """Each client's mean importance (K, classes) for the samples that the teacher assigns to a class; 0 if none.

    >>> importance_by_class(torch.tensor([[0.5, 1.0, 0.2], [0.5, 0.0, 0.8]]), torch.eye(3)[[0, 0, 2]])
    tensor([[0.7500, 0.0000, 0.2000],
            [0.2500, 0.0000, 0.8000]])
    """
    seen = F.one_hot(teacher.argmax(1), teacher.shape[1]).to(shares.dtype)
    return ((shares @ seen) / seen.sum(0).clamp_min(1)).float()
