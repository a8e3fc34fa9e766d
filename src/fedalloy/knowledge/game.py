"""The game of DaFKD's clients: a classifier and a discriminator with shared layers, against a generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedalloy.base.options import Count, NotNegative, Number, Positive, Several, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.data.public import Holder
from fedalloy.federation.core import Client, Federation, Method, initial
from fedalloy.knowledge.domains import TwoHeads, discriminator_loss, domain_head, generator_loss, gradient_penalty
from fedalloy.nets.generators import adversarial_generator
from fedalloy.nets.generators.adversarial import Kind
from fedalloy.nets.models import in_two_parts
from fedalloy.train.beside import Beside, normal
from fedalloy.train.costs import count_flops
from fedalloy.train.fit import aside, fit, frozen, load, params

GENERATED = ("pseudo_samples", "generated", "features")  # with which an option of the generator has an effect
EARLY_EPOCHS, EARLY_DISCRIMINATOR, EARLY_GENERATOR = 5, 3, 5  # of `gan_window = "early"`: epochs, and rounds of each


@dataclass(frozen=True, kw_only=True)
class Game(Method):
    """A client's networks and how they are trained against each other, for methods that use them.

    The discriminator tells the client's data from pseudo-samples. These are generated images, generated features, or
    rows of the public set; in the last case there is no generator.
    """

    pseudo_samples: Literal["generated", "public"] = option(
        "generated", "what discriminators and distillation use beside clients' data; public: there is no generator"
    )
    distil_samples: Several = option(
        1280, "generated samples of a distillation; of public ones, all are used", only_with=GENERATED
    )
    shared_layers: Number | None = option(
        None,
        "first layers with weights that the discriminator shares with the classifier; unset: all but the last",
        only_with=("pseudo_samples", "generated", "public"),
    )
    generator_batch: Several | None = option(None, "pseudo-samples of a client's step; unset: as many as real ones")
    noise: Count = option(100, "length of a sample's noise vector", only_with=GENERATED)
    generator_width: Several = option(
        128, "width of the generator of images", only_with=("pseudo_samples", "generated")
    )
    generator_kind: Kind = by_variant(
        "conditional",
        "perceptron of noise and a label, or transposed convolutions of noise alone",
        reference="unconditional",
        only_with=("pseudo_samples", "generated"),
    )
    generator_lr: Positive = by_variant(
        1e-3, "learning rate of the generator's Adam", reference=1e-4, only_with=GENERATED
    )
    generator_weight_decay: NotNegative = by_variant(
        1e-3, "weight decay of the generator's Adam", reference=1e-4, only_with=GENERATED
    )
    generator_adam: Literal["usual", "gan"] = by_variant(
        "usual",
        "its betas: 0.9 and 0.999, or 0.5 and 0.99 with AMSGrad",
        reference="gan",
        only_with=GENERATED,
    )
    adversarial: NotNegative = by_variant(
        1.0, "weight of L_adv; 2: mean over real plus mean over generated", reference=2.0
    )
    saturating: bool = by_variant(
        True, "whether the generator minimises log(1 - f), else -log f", reference=False, only_with=GENERATED
    )
    gradient_penalty: NotNegative = by_variant(0.0, "weight of the discriminator's gradient penalty", reference=0.3)
    gan_window: Literal["always", "early"] = by_variant(
        "always", "when the two train; early: rounds 1 to 3 (generator: 5), epochs 1 to 5", reference="early"
    )

    @property
    def generates(self) -> bool:
        """Whether there is a generator."""
        return self.pseudo_samples != "public"

    @property
    def needs_public(self) -> Holder | None:
        """Clients' discriminators learn from public rows if nothing is generated."""
        return None if self.generates else "all"

    def leaves(self) -> str:
        """Without a generator, none leaves."""
        return super().leaves() if self.generates else super().leaves().replace("a generator of its data, ", "")

    def two_heads(self, where: Client | Federation, kind: type[TwoHeads] = TwoHeads) -> TwoHeads:
        """Classifier and discriminator before any training, the same for all."""
        net = in_two_parts(where.build(), self.name)
        make, device = partial(domain_head, net.projected_shape), next(net.parameters()).device
        head = initial(make, where.seed, device=device, purpose="discriminator")
        count_flops(head, where.meter)
        fresh = net if self.shared_layers is None else in_two_parts(where.build(), self.name)
        return kind(net, fresh, head, self.shared_layers, where.meter)

    def new_generator(self, where: Client | Federation) -> nn.Module:
        """The generator before any training, the same for all."""
        make = partial(adversarial_generator, kind=self.generator_kind, noise=self.noise, width=self.generator_width)
        return where.generator(partial(make, where.shape, where.scale, where.classes))

    def example(self, name: str, party: Client | Federation) -> Any:
        """A generator, or the layers that a discriminator does not share."""
        if name == "generator":
            return params(self.new_generator(party))
        return self.two_heads(party).own_weights() if name == "head" else super().example(name, party)

    def pseudo_set(self, where: Client | Federation, generator: Tree | None = None, number: int = 0) -> Tensor:
        """The distillation's inputs, the same wherever they are made: generated samples, or all public rows."""
        if generator is not None:
            return self.made(where, generator, number, self.distil_samples)
        assert where.public is not None
        return where.public.inputs

    def pseudo_count(self, where: Client | Federation) -> int:
        """How many they are."""
        return self.distil_samples if self.generates or where.public is None else len(where.public)

    def made(self, where: Client | Federation, generator: Tree, number: int, samples: int) -> Tensor:
        """Generated samples; the same generator and number always give the same samples."""
        net, stream = frozen(load(self.new_generator(where), generator)), torch.Generator().manual_seed(number)
        z, labels = self.drawn(net, where.classes, samples, stream)
        rows = torch.arange(len(z), device=z.device)
        return in_batches(lambda part: (net(z[part], labels[part]),), rows)[0]

    def drawn(self, net: nn.Module, classes: int, n: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise and uniform labels for n samples, on the generator's device."""
        device = next(net.parameters()).device
        z = normal(n, self.noise, stream, device)
        return z, torch.randint(classes, (n,), generator=stream).to(device, non_blocking=True)

    def play(self, me: Client, two: TwoHeads, weights: Tree | None) -> dict[str, Tree]:
        """Joint steps of both heads (Eq. 9), each followed by a step of the generator against them (Eq. 3).

        The generator starts from these weights and is returned under its name; without weights there is none.
        """
        generator = None if weights is None else self.opponent(me, weights)
        noise, dropout, between = me.rng("generator"), me.rng("generator/dropout"), me.rng("generator/penalty")
        steps, epoch, batch = _epochs(me), 0, 0

        def made() -> Tensor:
            n = self.generator_batch or max(2, batch)  # BatchNorm needs two
            if generator is not None:
                return generator(*self.drawn(generator.net, me.classes, n, noise))
            assert me.public is not None
            x, _ = me.public.samples.take(torch.randint(len(me.public), (n,), generator=noise))
            return x if me.augment is None else me.augment(x, noise)  # else that would tell them from the client's own

        def judge(samples: Tensor) -> Tensor:
            return two.judge(two.start(samples))

        def playing(rounds: int) -> bool:
            return self.gan_window == "always" or (me.round <= rounds and epoch < EARLY_EPOCHS)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            nonlocal epoch, batch
            epoch, batch = next(steps), len(x)
            x = two.seen(x)
            logits, real = two.both(two.start(x))
            total = me.loss(logits, y)
            if playing(EARLY_DISCRIMINATOR):
                with torch.no_grad():
                    samples = made()
                with aside(two, dropout):
                    total = total + self.adversarial * discriminator_loss(real, judge(samples))  # Eq. 2 in Eq. 9
                    if self.gradient_penalty:
                        total = total + self.gradient_penalty * gradient_penalty(judge, x, samples, between)
            return total

        def improve_generator() -> None:
            if generator is not None and playing(EARLY_GENERATOR):
                samples = made()
                with aside(two, dropout), me.meter.passed_through():
                    against = generator_loss(judge(samples), saturating=self.saturating)  # Eq. 3
                generator.step(against)

        fit(two, me, loss, after=improve_generator)
        return {} if generator is None else {"generator": params(generator.net)}

    def opponent(self, me: Client, weights: Tree) -> Beside:
        """The generator that a client was sent, with an Adam of its own."""
        net, rate, decay = load(self.new_generator(me), weights), self.generator_lr, self.generator_weight_decay
        opponent = Beside(net, rate, decay)
        if self.generator_adam == "gan":
            opponent.adam = torch.optim.Adam(net.parameters(), rate, (0.5, 0.99), weight_decay=decay, amsgrad=True)
        return opponent


def opinions(two: TwoHeads, x: Tensor) -> tuple[Tensor, Tensor]:
    """A client's output for samples: alpha = f(theta_k^d; x), and its classifier's logits."""
    frozen(two)
    logits, domain = in_batches(lambda part: two.both(two.start(part)), x)
    return domain.sigmoid(), logits


def in_batches(answer: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor, batch: int = 256) -> tuple[Tensor, ...]:
    """A function's answers for many samples, one batch at a time and without gradients.

    >>> in_batches(lambda part: (2 * part,), torch.arange(3), batch=2)
    (tensor([0, 2, 4]),)
    """
    with torch.no_grad():
        parts = [answer(part) for part in torch.split(x, batch)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _epochs(me: Client) -> Iterator[int]:
    """The epoch, counted from 0, of each of the client's steps."""
    each = replace(me.work, work="epochs", epochs=1).steps_for(n=me.n, mean_size=me.n)
    return (step // each for step in count())
