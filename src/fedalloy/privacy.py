"""Differential privacy of local training: DP-SGD at each client, and an account of what it has spent.

Abadi et al., CCS 2016. A private step draws each sample with probability batch / n, computes every drawn sample's
gradient by itself, shortens it to `max_grad_norm`, adds Gaussian noise to the sum and divides by the expected number of
samples. Such a step is the subsampled Gaussian mechanism, whose cost dp-accounting adds up by Renyi divergences.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedalloy.errors import FedalloyError, UsageError
from fedalloy.tree import Tree

if TYPE_CHECKING:
    from fedalloy.core import Client, Method
    from fedalloy.data.samples import Samples

LEDGER = "privacy ledger"  # reserved, in a client's memory for what it has spent, in a reply for why there is none

Spent = Mapping[str, Mapping[str, int]]
"""Private steps by noise multiplier and sampling rate, both as text: a tree, which a checkpoint can hold."""


class BudgetSpentError(FedalloyError):
    """A client that may not train any more; it counts as absent."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Local training that hides, up to epsilon and `delta`, whether any one sample was among a client's own.

    * `noise_multiplier`: the standard deviation of the noise, in units of `max_grad_norm`, to which each sample's
      gradient is shortened.
    * `budget`: the epsilon that no client's training goes beyond. A client for which the next training would do so
      does not begin it and counts as absent.

    The guarantee is for one sample of one client in one run, whoever sees all that this client ever sends, and is not
    helped by who else takes part. Every step counts from the moment it is begun, also where the reply is lost, set
    aside, or belongs to a round that does not count; only work that died with its worker does not, since nothing of it
    is left. What is *not* covered: how many samples a client has, which it says and by which it is weighed; the
    accuracies that a simulation records; several runs on the same data, whose epsilons add up. The noise comes from
    the experiment's seed, so that a run can be repeated: who knows the seed can take the noise away again.

    `training.drop_last` has no meaning here, and a batch is as large as it is drawn, sometimes empty.

    >>> Privacy(noise_multiplier=0.0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: privacy.noise_multiplier = 0.0 must be a number from 0.01 on; 1.0 is usual
    """

    noise_multiplier: float = 1.0
    max_grad_norm: float = 1.0
    delta: float = 1e-5
    budget: float | None = None

    def __post_init__(self) -> None:
        if not 0.01 <= self.noise_multiplier < math.inf:
            raise UsageError(
                f"privacy.noise_multiplier = {self.noise_multiplier} must be a number from 0.01 on; 1.0 is usual"
            )
        if not 0 < self.max_grad_norm < math.inf:
            raise UsageError(f"privacy.max_grad_norm = {self.max_grad_norm} must be a positive number")
        if not 0 < self.delta < 1:
            raise UsageError(
                f"privacy.delta = {self.delta} must lie between 0 and 1, well below 1 / samples; 1e-5 is usual"
            )
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise UsageError(f"privacy.budget = {self.budget} must be a positive epsilon; leave it out for no limit")


# --- what was spent -------------------------------------------------------------------------------------------------


def epsilon(spent: Spent, delta: float) -> float:
    """The epsilon of all these steps together, as dp-accounting's RDP accountant has it; it grows with every step."""
    if not spent:
        return 0.0
    rdp = sum(steps * _rdp(float(noise), float(rate)) for noise, by in spent.items() for rate, steps in by.items())
    rdp_tools = _library("dp_accounting").rdp
    return float(rdp_tools.compute_epsilon(rdp_tools.RdpAccountant().orders, rdp, delta)[0])


@cache
def _rdp(noise: float, rate: float) -> NDArray[np.float64]:
    """The Renyi divergences of one step."""
    dp = _library("dp_accounting")
    step = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
    with _quiet(_library("absl.logging")):  # it tells of every order that gives no bound
        rdp = np.asarray(dp.rdp.RdpAccountant().compose(step).rdp)
    # Rounding can leave a negative one, from which an epsilon of 0 would be concluded; each order is a bound by itself.
    return np.where(rdp < 0, np.inf, rdp)


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    before = log.get_verbosity()
    log.set_verbosity(log.ERROR)
    try:
        yield
    finally:
        log.set_verbosity(before)


@dataclass
class Account:
    """What one client has spent, and what it may spend; the copies of a `Client` share it.

    >>> account = Account(Privacy())
    >>> account.charge(0.25, 12)
    >>> account.charge(0.25, 12)
    >>> account.spent, account.steps
    ({'1.0': {'0.25': 24}}, 24)
    """

    privacy: Privacy
    spent: Spent = field(default_factory=dict)
    charged: bool = False

    @property
    def steps(self) -> int:
        """The private steps so far."""
        return sum(steps for by in self.spent.values() for steps in by.values())

    def charge(self, rate: float, steps: int) -> None:
        """Note steps that are about to be taken, or refuse them if they would exceed the budget."""
        noise = repr(self.privacy.noise_multiplier)
        by = self.spent.get(noise, {})
        after = {**self.spent, noise: {**by, repr(rate): by.get(repr(rate), 0) + steps}}
        budget = self.privacy.budget
        if budget is not None and epsilon(after, self.privacy.delta) > budget:
            raise BudgetSpentError(f"one more round would exceed its privacy budget of {budget}")
        self.spent, self.charged = after, True


def opened(privacy: Privacy | None, memory: Tree) -> tuple[Tree, Account | None]:
    """A client's memory as its method knows it, and its account."""
    if privacy is None:
        return memory, None
    own = {key: value for key, value in memory.items() if key != LEDGER}
    return own, Account(privacy, memory.get(LEDGER, {}))


def closed(account: Account, memory: Tree, keep: Tree | None) -> Tree | None:
    """What a client keeps (None: as before) with its account; methods need not know of it."""
    if keep is not None and LEDGER in keep:
        raise UsageError(f"the key '{LEDGER}' in a client's memory belongs to [privacy]; choose another")
    if not account.spent or (keep is None and not account.charged):
        return keep
    return {**(memory if keep is None else keep), LEDGER: account.spent}


def charged(memory: Tree, keep: Tree | None) -> Tree:
    """An old memory that stays as it was but for the account: what a client spent, it has spent.

    >>> charged({"model": 1}, {"model": 2, LEDGER: {"1.0": {"0.25": 7}}})
    {'model': 1, 'privacy ledger': {'1.0': {'0.25': 7}}}
    """
    return memory if keep is None or LEDGER not in keep else {**memory, LEDGER: keep[LEDGER]}


def rolled_back(before: Mapping[int, Tree], now: Mapping[int, Tree]) -> dict[int, Tree]:
    """All memories as they were before a round that does not count, with the accounts as they are now."""
    return {**before, **{k: charged(before.get(k, {}), keep) for k, keep in now.items() if LEDGER in keep}}


def figures(privacy: Privacy | None, memories: Mapping[int, Tree], clients: int) -> dict[str, Any]:
    """What the record of a round says: the largest epsilon, and each client's."""
    if privacy is None:
        return {}
    each = [epsilon(memories.get(k, {}).get(LEDGER, {}), privacy.delta) for k in range(clients)]
    return {"epsilon": max(each), "epsilons": each}


# --- what can be private --------------------------------------------------------------------------------------------


def check_method(method: Method, able: Sequence[str]) -> None:
    """Refuse a method, or an option of it, that would let more out than private training covers."""
    if not method.card.private:
        raise UsageError(
            f"{method.name} cannot be run with [privacy]: its clients learn or send something else besides per-sample "
            f"gradients of one network; use one of: {', '.join(able)}"
        )
    if (fault := method.uncovered()) is not None:
        raise UsageError(f"{fault} in a way that [privacy] does not cover; choose another value")


def check_network(net: nn.Module) -> None:
    """Refuse a network in which samples meet each other, or that keeps something of them beside its weights."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules()):
        raise UsageError(
            "[privacy] needs a network without BatchNorm, which mixes the samples of a batch; "
            'where the model has the option, write model.norm = "group"'
        )
    buffers = [name for name, _ in net.named_buffers()]
    if buffers:
        raise UsageError(f"[privacy] cannot keep private what a network notes beside its weights: '{buffers[0]}'")
    faults = _library("opacus.validators").ModuleValidator.validate(net.train())
    if faults:
        raise UsageError(f"[privacy] cannot train this network: {faults[0]}")


def is_private(me: Client, samples: Samples) -> bool:
    """Whether training on these samples must be private: unless they are public, it must."""
    if me.account is None:
        return False
    if me.public is not None and samples.x is me.public.samples.x:
        return not bool(torch.isin(samples.index, me.public.samples.index).all())
    return True


# --- the private step -----------------------------------------------------------------------------------------------


class PrivateSteps:
    """The private steps of one training; they are charged to the client's account before the first.

    The loss is a mean over the samples of a batch of what the network makes of each, plus terms without data, such as
    FedProx's pull. These are neither shortened nor scaled: the graph is cut at the network's output, so that one
    backward pass gives their gradient and another the samples'.
    """

    def __init__(self, net: nn.Module, me: Client, samples: Samples, steps: int) -> None:
        assert me.account is not None
        n = len(me.train)
        if samples.x is not me.train.x or not torch.equal(samples.index.sort().values, me.train.index.sort().values):
            raise UsageError(
                f"client {me.id} would train on {len(samples)} samples that are neither public nor all of its own {n}, "
                "and [privacy] covers nothing else; where a method holds samples out to choose by, write held_out = 0"
            )
        self.privacy, self.meter, self.samples, self.steps = me.account.privacy, me.meter, samples, steps
        self.rate, self.expected = min(1.0, me.work.batch / n), min(me.work.batch, n)
        # Addressed by the steps before: no two steps of a client ever share noise, whatever a method calls its stages.
        address = f"privacy/{me.account.steps}"
        self.drawing, self.noise = me.rng(f"{address}/batches"), me.rng(f"{address}/noise")
        me.account.charge(self.rate, steps)
        self.parameters: list[Any] = [p for p in net.parameters() if p.requires_grad]  # opacus adds attributes to them
        # Of torch, because the images that enter a network need no gradient; nothing is amiss.
        warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
        self.sampler = _library("opacus.grad_sample").GradSampleModule(net)
        # After opacus' own hooks, which may copy a layer with all that hangs on it.
        layers = [m for m in net.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
        self.one_layer = net in layers
        self.inside = False
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []
        self.hooks = [net.register_forward_pre_hook(self._enter), net.register_forward_hook(self._cut)]
        self.hooks += [layer.register_forward_pre_hook(self._pass) for layer in layers]

    def batches(self) -> Iterator[Tensor]:
        """Positions of each batch: every sample is in it with the same probability, whatever the others."""
        for _ in range(self.steps):
            chances = torch.rand(len(self.samples), generator=self.drawing, dtype=torch.float64)
            yield (chances < self.rate).nonzero().flatten()

    def backward(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        take: Callable[[Tensor], tuple[Tensor, Tensor]],
        positions: Tensor,
    ) -> None:
        """Leave a private gradient of the loss in the parameters, whose gradients must be zero before."""
        drawn = len(positions) > 0
        free = self._free_of_data(loss, *take(positions)) if drawn else self._free_of_data_alone(loss)
        most = self.privacy.max_grad_norm
        sums = clipped_sum(self._per_sample(), most) if drawn else [torch.zeros_like(p) for p in self.parameters]
        for p, total, rest in zip(self.parameters, sums, free, strict=True):
            noise = torch.randn(p.shape, generator=self.noise, dtype=p.dtype).to(p.device)
            gradient = (total + self.privacy.noise_multiplier * most * noise) / self.expected
            gradient = gradient if rest is None else gradient + rest
            p.grad = gradient if p.grad is None else p.grad.copy_(gradient)

    def close(self) -> None:
        """Leave the network as it was."""
        for hook in self.hooks:
            hook.remove()
        self.sampler.remove_hooks()
        for p in self.parameters:
            p.grad_sample = None

    def _enter(self, net: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.inside = True

    def _pass(self, layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not self.inside and torch.is_grad_enabled():
            raise UsageError(_AROUND)
        # Opacus reads a convolution's input as if it lay in plain order; in another it would mix up samples.
        return tuple(x.contiguous() for x in args) if isinstance(layer, _CONVOLUTIONS) else args

    def _cut(self, net: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
        self.inside = False
        if not torch.is_grad_enabled():
            return None
        self.calls.append((args[0], out, out.detach().requires_grad_()))
        return self.calls[-1][2]

    def _free_of_data(self, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> list[Tensor | None]:
        """The gradient of the terms without data; the way of the others has been followed up to the cut."""
        self.calls.clear()
        self._back(loss(x, y))
        if len(self.calls) != 1 or self.calls[0][0] is not x or len(self.calls[0][1]) != len(x):
            raise UsageError(_AROUND)
        return [None if p.grad is None else p.grad.clone() for p in self.parameters]

    def _free_of_data_alone(self, loss: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor | None]:
        """The same for an empty batch: which sample stands in does not matter, since only the other terms count."""
        self.sampler.disable_hooks()
        with self.meter.paused():
            free = self._free_of_data(loss, *self.samples.take([0]))
        self.sampler.enable_hooks()
        return free

    def _per_sample(self) -> list[Tensor]:
        """Each sample's own gradient, by parameter."""
        ((_, out, cut),) = self.calls
        # A network that is one layer has its hook after the cut, so that the first pass was enough.
        if not self.one_layer and cut.grad is not None:
            self._back(out, cut.grad)
        found = [p.new_zeros(len(out), *p.shape) if p.grad_sample is None else p.grad_sample for p in self.parameters]
        for p in self.parameters:
            p.grad_sample = None
        return found

    def _back(self, out: Tensor, gradient: Tensor | None = None) -> None:
        with self.meter.paused():  # where opacus knows no formula it passes through a layer again
            out.backward(gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_AROUND = "[privacy] needs a loss in which the batch goes through the whole network once, and nothing else does"


def clipped_sum(per_sample: Sequence[Tensor], most: float) -> list[Tensor]:
    """The sum of gradients, each shortened to a norm of `most` over all parameters; one that is not finite is left out.

    >>> clipped_sum([torch.tensor([[3.0, 4.0], [0.3, 0.4]])], most=1.0)
    [tensor([0.9000, 1.2000])]
    """
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in per_sample]).norm(dim=0)
    sound = norms.isfinite()
    if not sound.all():
        norms, per_sample = norms[sound], [g[sound] for g in per_sample]
    factors = most / norms.clamp_min(most)
    return [torch.einsum("i,i...->...", factors, g) for g in per_sample]


def _library(name: str) -> Any:
    """A library of the extra `privacy`, which nobody else needs."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f'[privacy] needs {name.partition(".")[0]}; pip install "fedalloy[privacy]"') from error
