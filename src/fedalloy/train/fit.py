"""Local work and the only training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fedalloy.base.options import Count, Fraction, NotNegative, Positive, option, resolve
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.train.optimisers import adam, kept_moments
from fedalloy.train.privacy import PrivateSteps, is_private

if TYPE_CHECKING:
    from fedalloy.federation.core import Client

Loss = Callable[[Tensor, Tensor], Tensor]
A = TypeVar("A")
B = TypeVar("B")

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """A client's local training in one round.

    * `epochs`: passes over the client's own data. `equal_steps`: every client takes epochs * floor(mean size / batch)
      steps, as in FedKF's code except for its q-FFL. `fixed_steps`: `steps` steps.
    * The learning rate of round t is lr * lr_decay^(t-1), times the schedule: `cosine` falls to zero over `horizon`
      rounds, `step` multiplies by `step_factor` every `step_every` rounds.

    >>> LocalWork(work="epochs", epochs=2, batch=64).steps_for(n=130, mean_size=500)
    6
    >>> LocalWork(work="equal_steps", epochs=10, batch=64).steps_for(n=130, mean_size=499.2)
    70
    """

    work: Literal["epochs", "equal_steps", "fixed_steps"] = option("epochs", "how the number of steps is determined")
    epochs: Count = option(
        1,
        "passes over the client's data in one round; also the factor of `equal_steps`",
        only_with=("work", "epochs", "equal_steps"),
    )
    steps: Count = option(10, "steps in one round, with `fixed_steps`", only_with=("work", "fixed_steps"))
    batch: Count = option(64, "samples in a batch")
    drop_last: bool = option(False, "leave out the last batch of a pass if it is smaller than the others")
    optimiser: Literal["sgd", "adam"] = option(
        "sgd", "the local optimiser; its state is reset in every round, unless a method persists it"
    )
    lr: Positive = option(0.05, "the learning rate")
    momentum: Fraction = option(0.0, "the momentum of `sgd`", only_with=("optimiser", "sgd"))
    weight_decay: NotNegative = option(0.0, "the weight decay, as in torch's optimisers")
    lr_decay: Positive = option(1.0, "in round t the learning rate is multiplied by this to the power t - 1")
    schedule: Literal["constant", "cosine", "step"] = option("constant", "how the learning rate changes over rounds")
    horizon: Count = option(
        100, "rounds after which a `cosine` schedule has fallen to zero", only_with=("schedule", "cosine")
    )
    step_every: Count = option(10, "rounds between two steps of a `step` schedule", only_with=("schedule", "step"))
    step_factor: Positive = option(0.1, "the factor at each step of a `step` schedule", only_with=("schedule", "step"))
    clip: Positive | None = option(None, "clip gradients to this norm, over all parameters")
    class_weights: Literal["balanced"] | None = option(
        None,
        "`balanced`: in a client's loss on its own samples, each class (or value of a label) weighs "
        "n / (classes present * its count), and so do answers on samples that it holds out to know when to stop; "
        "unset: all weigh the same",
    )

    def __post_init__(self) -> None:
        resolve(self, "training", derived=True)  # methods derive passes over data from any other work

    def lr_at(self, round: int) -> float:
        """Return the learning rate of a round (rounds count from 1)."""
        rate = self.lr * self.lr_decay ** (round - 1)
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * min(round - 1, self.horizon) / self.horizon))
        elif self.schedule == "step":
            rate *= self.step_factor ** ((round - 1) // self.step_every)
        return rate

    def steps_for(self, *, n: int, mean_size: float) -> int:
        """Return how many optimiser steps a client with n samples takes in one round."""
        if self.work == "fixed_steps":
            return self.steps
        if self.work == "equal_steps":
            return self.epochs * max(1, int(mean_size // self.batch))
        return self.epochs * len(_cuts(n, self.batch, self.drop_last))

    @property
    def has_state(self) -> bool:
        """Whether the optimiser has a state that could be carried over to another round."""
        return self.optimiser == "adam" or self.momentum > 0

    def optimiser_for(self, net: nn.Module, round: int, state: Tree | None = None) -> Optimiser:
        """Create an optimiser over the trainable parameters, new or from what `optimiser_state` returned."""
        parameters = [p for p in net.parameters() if p.requires_grad]
        rate = self.lr_at(round)
        if self.optimiser == "adam":
            return adam(parameters, lr=rate, weight_decay=self.weight_decay, moments=state)
        velocity = (state or {}).get("velocity", {})
        if FlatSGD.fits(parameters):
            return FlatSGD(parameters, rate, self.momentum, self.weight_decay, velocity)
        sgd = torch.optim.SGD(parameters, lr=rate, momentum=self.momentum, weight_decay=self.weight_decay)
        for number, value in velocity.items():
            sgd.state[parameters[int(number)]] = {"momentum_buffer": value.clone()}
        return sgd


class Optimiser(Protocol):
    """The interface of an optimiser in the training loop."""

    def zero_grad(self) -> None:
        """Reset the gradients."""

    def step(self) -> object:
        """Update the parameters."""


class FlatSGD:
    """SGD over parameters and gradients that are views of one vector each, so that a step takes few operations.

    Its results are those of `torch.optim.SGD`, number by number, if the loss reaches every parameter. One that it does
    not reach has the gradient 0 here, so that weight decay and momentum move it, while torch leaves it alone.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(net.weight, 1.0)
    >>> sgd = FlatSGD(list(net.parameters()), lr=0.5, momentum=0.0, weight_decay=0.0)
    >>> net(torch.ones(1, 1)).sum().backward()
    >>> sgd.step()
    >>> net.weight.item()
    0.5
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
        velocity: Tree | None = None,
    ) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        first = parameters[0]
        self.values = torch.empty(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.values)
        self.velocity: Tensor | None = None
        self.parameters = parameters
        for p, value, gradient in zip(parameters, self.parts(self.values), self.parts(self.gradients), strict=True):
            value.copy_(p.data)
            p.data, p.grad = value, gradient
        if velocity:
            self.velocity = torch.empty_like(self.values)
            for number, part in enumerate(self.parts(self.velocity)):
                part.copy_(velocity[str(number)])

    def parts(self, vector: Tensor) -> Iterator[Tensor]:
        """The part of a vector like `values` that belongs to each parameter, in the parameter's shape."""
        at = 0
        for p in self.parameters:
            yield vector.as_strided(p.shape, p.stride(), at)
            at += p.numel()

    @staticmethod
    def fits(parameters: Sequence[nn.Parameter]) -> bool:
        """Return whether the parameters have one dtype and device and no gaps, so that they fit into one vector."""
        dense = all(p.is_contiguous() or p.is_contiguous(memory_format=torch.channels_last) for p in parameters)
        return dense and len({(p.dtype, p.device) for p in parameters}) == 1

    def zero_grad(self) -> None:
        """Reset the gradients."""
        self.gradients.zero_()

    def step(self) -> None:
        """Update the parameters."""
        gradients = self.gradients
        if self.weight_decay:
            gradients = gradients.add(self.values, alpha=self.weight_decay)
        if self.momentum:
            if self.velocity is None:
                self.velocity = gradients.clone()
            else:
                self.velocity.mul_(self.momentum).add_(gradients)
            gradients = self.velocity
        self.values.add_(gradients, alpha=-self.lr)


def optimiser_state(optimiser: Optimiser) -> dict[str, Any]:
    """A copy of what an optimiser of `LocalWork.optimiser_for` has gathered; empty before its first step.

    >>> net, work = nn.Linear(1, 1, bias=False), LocalWork(lr=0.1, momentum=0.9)
    >>> sgd = work.optimiser_for(net, round=1)
    >>> net(torch.ones(1, 1)).sum().backward()
    >>> sgd.step()
    >>> optimiser_state(sgd)
    {'velocity': {'0': tensor([[1.]])}}
    """
    if isinstance(optimiser, torch.optim.Adam):
        return kept_moments(optimiser)
    if isinstance(optimiser, FlatSGD):
        found = [] if optimiser.velocity is None else [part.clone() for part in optimiser.parts(optimiser.velocity)]
    else:
        assert isinstance(optimiser, torch.optim.SGD)
        own = optimiser.param_groups[0]["params"]
        buffers = [optimiser.state[p].get("momentum_buffer") for p in own]
        found = [value.clone() for value in buffers if value is not None]
    return {"velocity": {str(number): value for number, value in enumerate(found)}} if found else {}


def fit(
    net: nn.Module,
    me: Client,
    loss: Loss,
    *,
    samples: Samples | None = None,
    stage: str = "batches",
    steps: int = 0,
    optimiser: Optimiser | None = None,
    after: Callable[[], None] | None = None,
) -> None:
    """Train a network for one round of local work on the client's data, or on other samples.

    `loss(x, y)` is evaluated on every batch; `stage` names the stream of the batch order, so that a method with two
    phases draws two orders; `steps` replaces the number of steps; a given `optimiser` continues
    with its state; `after()` is called after each step, for a second network that is trained along with this one.

    With [privacy] the steps on a client's own data are private, with batches drawn differently; see
    `fedalloy.train.privacy`.
    """
    samples = me.train if samples is None else samples
    optimiser = optimiser or me.work.optimiser_for(net, me.round)
    parameters = [p for p in net.parameters() if p.requires_grad]
    order, noise = me.rng(stage), me.rng(f"{stage}/augment")
    net.train()
    if min(len(samples), me.work.batch) == 1:
        _freeze_batch_norm(net)  # a batch of one sample has no variance

    def take(positions: Tensor) -> tuple[Tensor, Tensor]:
        x, y = samples.take(positions)
        return (x if me.augment is None else me.augment(x, noise)), y

    steps = steps or me.steps
    private = PrivateSteps(net, me, samples, steps) if is_private(me, samples) else None
    plain = batches(len(samples), me.work.batch, steps, order, me.work.drop_last)
    for positions in plain if private is None else private.batches():
        optimiser.zero_grad()
        if private is None:
            loss(*take(positions)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        else:
            private.backward(loss, take, positions)
        if me.work.clip is not None:
            nn.utils.clip_grad_norm_(parameters, me.work.clip)
        optimiser.step()
        me.meter.steps += 1
        if after is not None:
            after()
    if private is not None:
        private.close()


def batches(n: int, size: int, steps: int, order: torch.Generator, drop_last: bool = False) -> Iterator[Tensor]:
    """Yield the positions of each batch: shuffled passes over n samples until the steps are done.

    A last batch of one sample is merged with the previous one; fewer samples than a batch give one smaller batch.

    >>> [len(b) for b in batches(9, 4, 4, torch.Generator().manual_seed(0))]
    [4, 5, 4, 5]
    """
    cuts = _cuts(n, size, drop_last)
    done = 0
    while done < steps:
        shuffled = torch.randperm(n, generator=order)
        for positions in torch.split(shuffled[: sum(cuts)], cuts):
            yield positions
            done += 1
            if done == steps:
                return


def _cuts(n: int, size: int, drop_last: bool) -> list[int]:
    if n <= size:
        return [n]
    whole, rest = divmod(n, size)
    cuts = [size] * whole
    if rest and not drop_last:
        if rest == 1:
            cuts[-1] += 1
        else:
            cuts.append(rest)
    return cuts


def _freeze_batch_norm(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, _BATCH_NORM):
            module.eval()


def predict(net: nn.Module, samples: Samples, batch: int = 256, threads: int = 1) -> Tensor:
    """Return the logits of all samples in order, in eval mode and without gradients; threads divide the batches."""
    net.eval()

    def logits(positions: Tensor) -> Tensor:
        with torch.no_grad():  # a thread has its own gradient mode
            out: Tensor = net(samples.take(positions)[0])
            return out

    return torch.cat(side_by_side(logits, torch.split(torch.arange(len(samples)), batch), threads))


def side_by_side(do: Callable[[A], B], items: Iterable[A], threads: int) -> list[B]:
    """Apply a function to each item and return the results in order; threads divide the items.

    >>> side_by_side(len, ["a", "bc"], threads=2)
    [1, 2]
    """
    if threads == 1:
        return [do(item) for item in items]
    with ThreadPoolExecutor(threads) as crew:
        return list(crew.map(do, items))


class AddressedDropout(nn.Module):
    """Dropout that draws from its own stream, so that clients can train in parallel in threads.

    >>> layer = AddressedDropout(0.5, torch.Generator().manual_seed(0))
    >>> layer(torch.ones(6))
    tensor([0., 2., 0., 0., 0., 2.])
    """

    def __init__(self, p: float, stream: torch.Generator) -> None:
        super().__init__()
        self.p, self.stream = p, stream

    def forward(self, x: Tensor) -> Tensor:
        """Drop each number with probability p while training, and scale up the others."""
        if not self.training or self.p == 0:
            return x
        kept = torch.rand(x.shape, generator=self.stream) >= self.p
        return x * kept.to(x.device, non_blocking=True) / (1 - self.p)


def address_dropout(net: nn.Module, stream: torch.Generator) -> nn.Module:
    """Replace a network's dropout layers with ones that draw from this stream."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, AddressedDropout(child.p, stream))
    return net


def frozen(net: nn.Module) -> nn.Module:
    """Put a network in eval mode and disable gradients for its weights.

    Gradients still flow through it to its input; this is how a generator learns from a teacher.

    >>> any(p.requires_grad for p in frozen(nn.Linear(2, 2)).parameters())
    False
    """
    return net.eval().requires_grad_(False)


@contextmanager
def aside(net: nn.Module, stream: torch.Generator) -> Iterator[None]:
    """Allow passes through a network in training mode without affecting its training on real data.

    BatchNorm uses the batch and does not update its running statistics; dropout draws from `stream` instead of its own.
    A method whose extra term has weight 0 is then equal to FedAvg bit for bit, with any network.

    >>> layer = nn.BatchNorm1d(1)
    >>> with aside(layer, torch.Generator()):
    ...     _ = layer(torch.tensor([[5.0], [7.0]]))
    >>> layer.running_mean
    tensor([0.])
    """
    norms = [m for m in net.modules() if isinstance(m, _BATCH_NORM) and m.track_running_stats]
    drops = [(m, m.stream) for m in net.modules() if isinstance(m, AddressedDropout)]
    for norm in norms:
        norm.track_running_stats = not norm.training  # in eval mode the statistics are only read
    for drop, _ in drops:
        drop.stream = stream
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        for drop, own in drops:
            drop.stream = own


def params(net: nn.Module) -> dict[str, Any]:
    """Return a copy of a network's whole state, including buffers, as a tree."""
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def load(net: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Load weights into a network; names and shapes must match."""
    try:
        net.load_state_dict(dict(weights))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UsageError(f"these weights do not fit the network: {reason:.300}") from error
    return net


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread inside the block, since results must not depend on how a sum is divided among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
