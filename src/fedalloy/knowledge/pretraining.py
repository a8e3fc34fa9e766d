"""Training until convergence: until accuracy (R2 of numbers), on held-out samples or on all, stops improving."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedalloy.base.options import Count, Fraction, NotNegative, Number, option
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.federation.core import Client, Method
from fedalloy.train.fit import Loss, Optimiser, fit, load, params, predict
from fedalloy.train.scores import WORST, effective_size, score, standard_error

ConvergedBy = Literal["held_out", "training"]
Round = Callable[[Client, Tree], Tree]  # one round of local work: the weights after it


@dataclass(frozen=True, kw_only=True)
class PretrainedAlone(Method):
    """Before its first round, a client trains on its own samples until it has converged."""

    pretrain_private: Number = option(25, "most epochs of pre-training on a client's own samples; 0 leaves it out")
    private_batch: Count = option(32, "batch size of private pre-training")
    private_patience: Count = option(10, "epochs without a rise after which private pre-training ends")
    private_min_delta: NotNegative = option(0.001, "smallest gain in accuracy that counts as a rise there")
    converged_by: ConvergedBy = option(
        "held_out", "whose accuracy ends pre-training: of held-out samples, best weights kept; of all, last ones kept"
    )
    held_out: Fraction = option(
        0.1, "share of the samples that pre-training holds out", only_with=("converged_by", "held_out")
    )
    held_out_least: Count = option(
        10,
        "fewest samples to hold out; of fewer, none: all epochs on all samples",
        only_with=("converged_by", "held_out"),
    )

    def learn_own(self, net: nn.Module, me: Client, optimiser: Optimiser | None = None) -> None:
        """Train a network on the client's own samples."""
        epochs, batch, patience = self.pretrain_private, self.private_batch, self.private_patience
        self.converge(net, me, me.train, epochs, batch, patience, self.private_min_delta, "private", optimiser)

    def converge(
        self,
        net: nn.Module,
        me: Client,
        samples: Samples,
        epochs: int,
        batch: int,
        patience: int,
        min_delta: float,
        stage: str,
        optimiser: Optimiser | None = None,
    ) -> None:
        """Train a network on labelled samples until it has converged, as the options say."""
        train_until_converged(
            net,
            me,
            samples,
            lambda x, y: me.loss(net(x), y) + self.penalty(net),
            epochs=epochs,
            batch=batch,
            patience=patience,
            min_delta=min_delta,
            held_out=self.held_out,
            least=self.held_out_least,
            by=self.converged_by,
            optimiser=optimiser,
            stage=f"pretraining/{stage}",
        )

    def penalty(self, net: nn.Module) -> Tensor | float:
        """What is added to every loss."""
        return 0.0

    def uncovered(self) -> str | None:
        """Samples decide when private pre-training ends and which model it keeps, and no noise hides that."""
        if self.pretrain_private and self.converged_by == "training":
            return (
                f"{self.name}.converged_by = 'training' (write 'held_out', with held_out = 0) uses a client's samples"
            )
        if self.pretrain_private and self.held_out:
            return f"{self.name}.held_out = {self.held_out} (write 0) uses a client's samples"
        return super().uncovered()


def train_until_converged(
    net: nn.Module,
    me: Client,
    samples: Samples,
    loss: Loss,
    *,
    epochs: int,
    batch: int,
    patience: int,
    min_delta: float,
    held_out: float,
    least: int = 1,
    by: ConvergedBy = "held_out",
    optimiser: Optimiser | None = None,
    stage: str = "pretraining",
) -> int:
    """Train a network on labelled samples until it has converged, and say how many epochs that took.

    * A share `held_out` of the samples, rounded down and drawn at random, is not trained on; no test set is used.
      After each epoch the network is evaluated on it.
    * Training has converged when the accuracy has not risen by more than `min_delta` for `patience` epochs; it
      ends after `epochs` epochs in any case.
    * The network keeps the weights from the epoch with the highest accuracy; in a tie, from that with the lowest loss.
      With the few samples that a client can hold out, ties are frequent.
    * If fewer than `least` samples would be held out, none are: all `epochs` epochs are run, on all samples, and the
      last weights are kept. A few samples cannot tell which epoch is best.
    * With `by = "training"` none are held out either. Training has converged when the accuracy on the samples that it
      trains on has not risen, and the last weights are kept.

    The optimiser, unless it is given, is that of the client's local work with the learning rate of the first round,
    whenever the client joins. It keeps its state between epochs. Evaluations are not counted as passes.

    >>> from fedalloy.train.losses import ce
    >>> from fedalloy.train.fit import LocalWork
    >>> mine = Samples(torch.tensor([[-1.0], [1.0]] * 10), torch.tensor([0, 1] * 10), torch.arange(20))
    >>> net = nn.Linear(1, 2)
    >>> me = Client(0, 1, 0, mine, classes=2, work=LocalWork(lr=1.0), steps=1, network=lambda: net)
    >>> how = {"epochs": 50, "batch": 4, "patience": 3, "min_delta": 0.001, "held_out": 0.2}
    >>> train_until_converged(net, me, mine, lambda x, y: ce(net(x), y), **how) < 50
    True
    """
    share = held_out if by == "held_out" and int(held_out * len(samples)) >= least else 0.0
    part, aside = _held_out(samples, share, me.rng(f"{stage}/held out"))
    judges = part if by == "training" else aside
    me = replace(me, work=replace(me.work, work="epochs", epochs=1, batch=batch, drop_last=False))
    steps = me.work.steps_for(n=len(part), mean_size=len(part))
    optimiser = optimiser or me.work.optimiser_for(net, round=1)
    best, found = (WORST, -math.inf), None  # worse than any evaluation
    level, risen = WORST, 0  # the score of the last rise, and its epoch
    for epoch in range(1, epochs + 1):
        fit(net, me, loss, samples=part, stage=f"{stage}/{epoch}", steps=steps, optimiser=optimiser)
        if len(judges) == 0:
            continue
        trial = _trial(net, me, judges)
        if trial > best and by == "held_out":
            best, found = trial, params(net)
        if trial[0] - level > min_delta:
            level, risen = trial[0], epoch
        if epoch - risen >= patience:
            break
    if found is not None:
        load(net, found)
    return epoch if epochs else 0


def rounds_until_converged(me: Client, train: Round, *, patience: int, held_out: float) -> int:
    """Train on part of the client's samples until the rest is predicted no better; return how many rounds to do.

    `train(me, weights)` is one round of local work. A share `held_out` of the samples, rounded down and drawn at
    random, is not trained on; no test set is used. Training stops when the accuracy on them has not exceeded the
    best for `patience` rounds in a row. This ends without a limit, because an accuracy on n samples has
    n + 1 values and cannot rise more than n times, and one with class weights finitely many. Evaluations on held-out
    samples are not counted as passes.

    The result is the last round whose accuracy is within one standard error of the best. With the few samples that a
    client can hold out, the best round itself is a matter of luck, and mostly too early. If there are too few
    samples to hold one out, the result is `patience`.
    """
    part, aside = _held_out(me.train, held_out, me.rng("converging/held out"))
    if len(aside) == 0:
        return patience
    steps = me.work.steps_for(n=len(part), mean_size=len(part)) if me.work.work == "epochs" else me.steps
    some = replace(me, train=part, steps=steps)
    weights: Tree = params(me.build())
    trials: list[float] = []
    while not trials or len(trials) - (1 + trials.index(max(trials))) < patience:
        weights = train(replace(some, round=len(trials) + 1), weights)
        accuracy, _ = _trial(me.net(weights), me, aside)
        trials.append(accuracy)
    best = max(trials)
    error = standard_error(me.task, best, effective_size(me.task, aside.labels, me.class_weights))
    return max(round for round, accuracy in enumerate(trials, start=1) if accuracy >= best - error)


def _held_out(samples: Samples, share: float, order: torch.Generator) -> tuple[Samples, Samples]:
    size = int(share * len(samples))
    shuffled = torch.randperm(len(samples), generator=order)
    return samples.subset(shuffled[size:]), samples.subset(shuffled[:size])


def _trial(net: nn.Module, me: Client, samples: Samples) -> tuple[float, float]:
    """Score and negative loss, to be compared in this order; by the client's class weights, if it has any."""
    with me.meter.paused():
        outputs = predict(net, samples)
    found = score(me.task, outputs, samples.labels, me.class_weights)
    return found, -float(me.loss(outputs, samples.labels))
