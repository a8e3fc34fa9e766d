"""Differential privacy of local training: DP-SGD at each client, and an account of the spent privacy.

Abadi et al., CCS 2016. A private step draws each sample with probability batch / n, computes every drawn sample's
gradient separately, clips it to `max_grad_norm`, adds Gaussian noise to the sum and divides by the expected number of
samples. Such a step is the subsampled Gaussian mechanism; dp-accounting adds up its cost with Renyi divergences.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Interval
from numpy.typing import NDArray
from torch import Tensor, nn

from fedalloy.base.options import Positive, option, resolve
from fedalloy.base.tree import Tree
from fedalloy.errors import FedalloyError, UsageError
from fedalloy.train.noise import Noise, Rehearsed, Secret

if TYPE_CHECKING:
    from fedalloy.data.samples import Samples
    from fedalloy.federation.core import Client, Method, Reply
    from fedalloy.train.fit import LocalWork

LEDGER = (
    "privacy ledger"  # reserved key: the spent privacy in a client's memory, or the reason in a reply without a result
)

Spent = Mapping[str, Mapping[str, int]]
"""Private steps by noise multiplier and sampling rate, both as text: a tree, which can be stored in a checkpoint."""


class BudgetSpentError(FedalloyError):
    """A client may not train any more; it counts as absent."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Local training that hides, up to epsilon and `delta`, whether any one sample was among a client's own.

    * `noise_multiplier`: the standard deviation of the noise, in units of `max_grad_norm`, to which each sample's
      gradient is clipped.
    * `budget`: the epsilon that no client's training exceeds. A client whose next training would exceed it does not
      begin and counts as absent.

    The guarantee is for one sample of one client in one run: anyone who sees everything that this client ever sends
    cannot distinguish that sample from a blank one. It does not depend on who else takes part. Every step counts from
    the moment it begins, even if the reply is lost, set aside, or belongs to a round that does not count; in a
    simulation, work that died with its worker does not count, since nothing of it is left. *Not* covered: the number of
    samples, which a client reports and by which it is weighted; how long it takes; the recorded accuracies; several
    runs on the same data, whose epsilons add up.

    The guarantee is valid at the sites of a deployment, where batches and noise are drawn from a secret keystream. In a
    simulation both are derived from the experiment's seed, and the epsilon is that of a rehearsal (see
    `fedalloy.train.noise`).

    At sites dropout masks and augmentation are drawn from secret streams too: they depend on the position of a sample
    in its batch, so anyone who knew them could see who else was drawn. Which rows of a site's file are for testing, and
    the order of public samples, are still derived from the seed; they depend on the number of samples, never on their
    content.

    `training.drop_last` has no effect here; the size of a batch is random, and a batch may be empty.

    >>> Privacy(noise_multiplier=0.0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: privacy.noise_multiplier = 0.0 must be at least 0.01
    """

    noise_multiplier: Annotated[float, Ge(0.01)] = option(
        1.0, "standard deviation of the noise, in units of max_grad_norm"
    )
    max_grad_norm: Positive = option(1.0, "the norm to which each sample's gradient is clipped")
    delta: Annotated[float, Interval(gt=0, lt=1)] = option(1e-5, "of (epsilon, delta); well below 1 / samples")
    budget: Positive | None = option(None, "the epsilon that no client exceeds; one that would is absent from then on")

    def __post_init__(self) -> None:
        resolve(self, "privacy")


# --- what was spent -------------------------------------------------------------------------------------------------


def epsilon(spent: Spent, delta: float) -> float:
    """Return the epsilon of all these steps together, as in dp-accounting's RDP accountant; every step adds to it."""
    if not spent:
        return 0.0
    rdp = sum(steps * _rdp(float(noise), float(rate)) for noise, by in spent.items() for rate, steps in by.items())
    rdp_tools = _library("dp_accounting").rdp
    return float(rdp_tools.compute_epsilon(rdp_tools.RdpAccountant().orders, rdp, delta)[0])


@cache
def _rdp(noise: float, rate: float) -> NDArray[np.float64]:
    """Return the Renyi divergences of one step."""
    dp = _library("dp_accounting")
    step = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
    with _quiet(_library("absl.logging")):  # it logs every order that gives no bound
        rdp = np.asarray(dp.rdp.RdpAccountant().compose(step).rdp)
    # Rounding can give a negative one, which would imply an epsilon of 0; each order is a bound by itself.
    return np.where(rdp < 0, np.inf, rdp)


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    before = log.get_verbosity()
    log.set_verbosity(log.ERROR)
    try:
        yield
    finally:
        log.set_verbosity(before)


def larger(a: Spent, b: Spent) -> Spent:
    """Merge two accounts of the same client: for each kind of step, the larger number counts.

    >>> larger({"1.0": {"0.25": 12}}, {"1.0": {"0.25": 9, "0.5": 1}})
    {'1.0': {'0.25': 12, '0.5': 1}}
    """
    found = {noise: dict(by) for noise, by in a.items()}
    for noise, by in b.items():
        mine = found.setdefault(noise, {})
        mine.update({rate: max(steps, mine.get(rate, 0)) for rate, steps in by.items()})
    return found


def run_address(method: Method, work: LocalWork, privacy: Privacy) -> str:
    """Return what distinguishes the noise of rehearsals with the same seed: the method, training and privacy.

    Two runs that agree in all of these, and in the seed, are the same run.
    """
    # Numbers as floats, since 1 and 1.0 are the same option, and a resumed run may read the other one.
    values = asdict(method)
    options = json.loads(json.dumps(values, default=lambda value: type(value).__name__), parse_int=float)
    clipped, noise = privacy.max_grad_norm, privacy.noise_multiplier  # a budget ends a run but does not change it
    trained = str(work).replace(", class_weights=None", "")  # private work has none; older addresses lack the key
    return f"privacy/{method.name}/{json.dumps(options, sort_keys=True)}/{trained}/{clipped}/{noise}"


@dataclass
class Account:
    """What one client has spent and may spend; copies of a `Client` share it.

    `secret` means that nobody can repeat the noise; otherwise it is derived from the seed and from `run`, the address
    of the method's noise. `keep` stores a new account before it is used: given a function from the old account to the
    new one, it returns the new one, which must then be durable.

    >>> account = Account(Privacy())
    >>> account.charge(0.25, 12)
    >>> account.charge(0.25, 12)
    >>> account.spent, account.steps
    ({'1.0': {'0.25': 24}}, 24)
    """

    privacy: Privacy
    spent: Spent = field(default_factory=dict)
    charged: bool = False
    secret: bool = False
    run: str = "privacy"
    keep: Callable[[Callable[[Spent], Spent]], Spent] | None = None

    @property
    def steps(self) -> int:
        """The number of private steps so far."""
        return sum(steps for by in self.spent.values() for steps in by.values())

    def charge(self, rate: float, steps: int) -> None:
        """Charge steps that are about to be taken, or refuse them if they would exceed the budget."""
        if steps < 1:
            raise UsageError(f"{steps} private steps cannot be taken; training needs at least 1")

        def after(spent: Spent) -> Spent:
            spent = larger(spent, self.spent)
            noise = repr(self.privacy.noise_multiplier)
            by = spent.get(noise, {})
            more = {**spent, noise: {**by, repr(rate): by.get(repr(rate), 0) + steps}}
            budget = self.privacy.budget
            if budget is not None and epsilon(more, self.privacy.delta) > budget:
                raise BudgetSpentError(f"one more round would exceed its privacy budget of {budget}")
            return more

        self.spent = after(self.spent) if self.keep is None else self.keep(after)
        self.charged = True

    def noise(self, steps: int, stream: Callable[[str], torch.Generator]) -> Noise:
        """Return the noise source of the last charged steps; `stream` returns a client's streams by address.

        In a rehearsal they are addressed by the number of previous steps: no two steps of a client ever share noise,
        however a method names its stages.
        """
        if self.secret:
            return Secret()
        before = self.steps - steps
        return Rehearsed(lambda purpose: stream(f"{self.run}/{before}/{purpose}"))


def opened(privacy: Privacy | None, memory: Tree, *, secret: bool) -> tuple[Tree, Account | None]:
    """Separate a client's memory into the part that its method knows, and its account."""
    if privacy is None:
        return memory, None
    own = {key: value for key, value in memory.items() if key != LEDGER}
    return own, Account(privacy, memory.get(LEDGER, {}), secret=secret)


def closed(account: Account, memory: Tree, keep: Tree | None) -> Tree | None:
    """Add the account to what a client keeps (None: as before); methods need not know about it."""
    if keep is not None and LEDGER in keep:
        raise UsageError(f"the key '{LEDGER}' in a client's memory is reserved for [privacy]; choose another")
    if not account.spent or (keep is None and not account.charged):
        return keep
    return {**(memory if keep is None else keep), LEDGER: account.spent}


def accounted(method: Method, me: Client, do: Callable[[], Reply], reply: type[Reply]) -> Reply:
    """Let a client act with its account, which is kept in its memory; if its budget is spent, it only reports that."""
    assert me.account is not None
    me.account.run = run_address(method, me.work, me.account.privacy)
    try:
        answer = do()
    except BudgetSpentError as spent:
        answer = reply({LEDGER: str(spent)})
    return reply(answer.body, closed(me.account, me.memory, answer.keep))


def overspent(privacy: Privacy | None, body: Any) -> str | None:
    """Return why a reply is refused if it reports that its client's budget is spent, or None."""
    if privacy is None or not isinstance(body, Mapping) or not isinstance(body.get(LEDGER), str):
        return None
    return f"one more round would exceed its privacy budget of {privacy.budget}"


def charged(memory: Tree, *others: Tree | None) -> Tree:
    """Return a memory with its account updated to the largest of these, since an account never decreases.

    >>> charged({"model": 1}, {"model": 2, LEDGER: {"1.0": {"0.25": 7}}})
    {'model': 1, 'privacy ledger': {'1.0': {'0.25': 7}}}
    """
    spent: Spent = memory.get(LEDGER, {})
    for other in others:
        spent = larger(spent, (other or {}).get(LEDGER, {}))
    return {**memory, LEDGER: spent} if spent else memory


def rolled_back(before: Mapping[int, Tree], now: Mapping[int, Tree]) -> dict[int, Tree]:
    """Return all memories as before a round that does not count, but with the current accounts."""
    return {**before, **{k: charged(before.get(k, {}), keep) for k, keep in now.items() if LEDGER in keep}}


SECRET, REHEARSED = (
    "secret",
    "rehearsed",
)  # in a record: the source of the noise, which determines what an epsilon means


def figures(privacy: Privacy | None, memories: Mapping[int, Tree], clients: int, *, secret: bool) -> dict[str, Any]:
    """Return the entries for a round's record: the largest epsilon, each client's, and whether the noise was secret."""
    if privacy is None:
        return {}
    each = [epsilon(memories.get(k, {}).get(LEDGER, {}), privacy.delta) for k in range(clients)]
    return {"epsilon": max(each), "epsilons": each, "noise": SECRET if secret else REHEARSED}


# --- what can be private --------------------------------------------------------------------------------------------


def check_method(method: Method, able: Sequence[str]) -> None:
    """Refuse a method, or an option of it, that would reveal more than private training covers."""
    if not method.card.private:
        raise UsageError(
            f"{method.name} cannot be run with [privacy]: its clients learn or send something other than per-sample "
            f"gradients of one network; use one of: {', '.join(able)}"
        )
    if (fault := method.uncovered()) is not None:
        raise UsageError(f"{fault} in a way that [privacy] does not cover; choose another value")


def check_network(net: nn.Module) -> None:
    """Refuse a network that mixes samples, or that stores information about them besides its weights."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules()):
        raise UsageError(
            "[privacy] needs a network without BatchNorm, which mixes the samples of a batch; "
            'if the model has the option, write model.norm = "group"'
        )
    buffers = [name for name, _ in net.named_buffers()]
    if buffers:
        raise UsageError(
            f"[privacy] cannot protect the network's buffer '{buffers[0]}', which is not a weight; use a network "
            "without buffers"
        )
    faults = _library("opacus.validators").ModuleValidator.validate(net.train())
    if faults:
        raise UsageError(f"[privacy] cannot train this network: {faults[0]}")


def is_private(me: Client, samples: Samples) -> bool:
    """Return whether training on these samples must be private, which it must unless they are public."""
    if me.account is None:
        return False
    if me.public is not None and samples.x is me.public.samples.x:
        return not bool(torch.isin(samples.index, me.public.samples.index).all())
    return True


# --- the private step -----------------------------------------------------------------------------------------------


class PrivateSteps:
    """The private steps of one training, charged to the client's account before the first step.

    The loss is a mean over the samples of a batch plus terms without data, such as FedProx's proximal term. These terms
    are neither clipped nor scaled: the graph is cut at the network's output, so that one backward pass gives their
    gradient and another the gradients of the samples.
    """

    def __init__(self, net: nn.Module, me: Client, samples: Samples, steps: int) -> None:
        assert me.account is not None
        n = len(me.train)
        if samples.x is not me.train.x or not torch.equal(samples.index.sort().values, me.train.index.sort().values):
            raise UsageError(
                f"{me.label} would train on {len(samples)} samples that are neither public nor all of its own {n} "
                "samples, "
                "but [privacy] covers nothing else; if a method holds out samples for selection, write held_out = 0"
            )
        self.privacy, self.meter, self.samples, self.steps = me.account.privacy, me.meter, samples, steps
        self.rate, self.expected = min(1.0, me.work.batch / n), min(me.work.batch, n)
        me.account.charge(self.rate, steps)
        self.noise = me.account.noise(steps, me.rng)
        self.parameters: list[Any] = [p for p in net.parameters() if p.requires_grad]  # opacus adds attributes to them
        # Torch warns because the input images need no gradient; this is harmless.
        warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
        self.sampler = _library("opacus.grad_sample").GradSampleModule(net)
        # After opacus' own hooks, which may copy a layer with everything attached to it.
        layers = [m for m in net.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
        self.one_layer = net in layers
        self.inside = False
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []
        self.hooks = [net.register_forward_pre_hook(self._enter), net.register_forward_hook(self._cut)]
        self.hooks += [layer.register_forward_pre_hook(self._pass) for layer in layers]

    def batches(self) -> Iterator[Tensor]:
        """Yield the positions of each batch: every sample is drawn independently with the same probability."""
        for _ in range(self.steps):
            yield (self.noise.uniform(len(self.samples)) < self.rate).nonzero().flatten()

    def backward(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        take: Callable[[Tensor], tuple[Tensor, Tensor]],
        positions: Tensor,
    ) -> None:
        """Store a private gradient of the loss in the parameters, whose gradients must be zero before."""
        drawn = len(positions) > 0
        free = self._free_of_data(loss, *take(positions)) if drawn else self._free_of_data_alone(loss)
        most = self.privacy.max_grad_norm
        sums = clipped_sum(self._per_sample(), most) if drawn else [torch.zeros_like(p) for p in self.parameters]
        for p, total, rest in zip(self.parameters, sums, free, strict=True):
            # The noise is added before rounding to the parameters' precision.
            noisy = total.cpu().double() + self.privacy.noise_multiplier * most * self.noise.normal(p.shape)
            gradient = (noisy / self.expected).to(p)
            gradient = gradient if rest is None else gradient + rest
            p.grad = gradient if p.grad is None else p.grad.copy_(gradient)

    def close(self) -> None:
        """Restore the network."""
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
        # Opacus assumes that a convolution's input is contiguous; otherwise it would mix up samples.
        return tuple(x.contiguous() for x in args) if isinstance(layer, _CONVOLUTIONS) else args

    def _cut(self, net: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
        self.inside = False
        if not torch.is_grad_enabled():
            return None
        self.calls.append((args[0], out, out.detach().requires_grad_()))
        return self.calls[-1][2]

    def _free_of_data(self, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> list[Tensor | None]:
        """Return the gradient of the terms without data; the others are propagated up to the cut."""
        self.calls.clear()
        self._back(self._counted(loss, x, y))
        if len(self.calls) != 1 or self.calls[0][0] is not x or len(self.calls[0][1]) != len(x):
            raise UsageError(_AROUND)
        return [None if p.grad is None else p.grad.clone() for p in self.parameters]

    def _free_of_data_alone(self, loss: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor | None]:
        """The same for an empty batch: any sample can be the placeholder, since only the terms without data count."""
        self.sampler.disable_hooks()
        free = self._free_of_data(loss, *self.samples.take([0]))
        self.sampler.enable_hooks()
        return free

    def _counted(self, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Return the loss, metered as a batch of the expected size, since a client sends its counts.

        The number of samples that were really drawn would reveal information about them, and the privacy gain of
        sampling depends on keeping the draw secret.
        """
        meter = self.meter
        before = meter.flops
        found = loss(x, y)
        meter.flops = before + (meter.flops - before) / len(x) * self.expected
        return found

    def _per_sample(self) -> list[Tensor]:
        """Return each sample's gradient, by parameter."""
        ((_, out, cut),) = self.calls
        # A network with a single layer has its hook after the cut, so the first pass was enough.
        if not self.one_layer and cut.grad is not None:
            self._back(out, cut.grad)
        found = [p.new_zeros(len(out), *p.shape) if p.grad_sample is None else p.grad_sample for p in self.parameters]
        for p in self.parameters:
            p.grad_sample = None
        return found

    def _back(self, out: Tensor, gradient: Tensor | None = None) -> None:
        with self.meter.paused():  # if opacus has no formula for a layer, it runs the layer again
            out.backward(gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_AROUND = "[privacy] needs a loss that passes the batch, and nothing else, through the whole network exactly once"


def clipped_sum(per_sample: Sequence[Tensor], most: float) -> list[Tensor]:
    """Sum gradients, each clipped to a norm of `most` over all parameters; gradients that are not finite are left out.

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
    """Import a library of the extra `privacy`."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f'[privacy] needs {name.partition(".")[0]}; pip install ".[privacy]" in a clone of the repository'
        ) from error
