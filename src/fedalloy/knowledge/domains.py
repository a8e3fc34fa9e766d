"""A classifier with a second head that separates its client's data from generated samples, and its losses (DaFKD)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.errors import UsageError
from fedalloy.nets.models.base import FeatureNet
from fedalloy.train.costs import Meter
from fedalloy.train.fit import load


def domain_head(shape: tuple[int, ...]) -> nn.Sequential:
    """A discriminator's last layer, from what enters a classifier's last layer to one logit; a map is averaged first.

    >>> [sum(p.numel() for p in domain_head(shape).parameters()) for shape in ((256,), (16, 5, 5))]
    [257, 17]
    """
    pooling = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if len(shape) == 3 else []
    return nn.Sequential(*pooling, nn.Linear(shape[0], 1))


class TwoHeads(nn.Module):
    """The classifier `net` and a domain discriminator that shares the classifier's first layers.

    `shared` is their number, by default all but the output layer. After them the discriminator has its
    own layers, taken from `fresh`, and its head. A layer is an entry of the network with weights, such as a convolution
    with its normalisation or a residual block; entries without weights belong to the one before them.

    >>> net, fresh = (FeatureNet(nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(3, 2)), (3,)) for _ in "ab")
    >>> both = TwoHeads(net, fresh, domain_head((3,)), shared=None)
    >>> list(both.own_weights()), list(TwoHeads(net, fresh, domain_head((3,)), shared=0).own_weights())
    (['head.0.weight', 'head.0.bias'], ['own.0.weight', 'own.0.bias', 'head.0.weight', 'head.0.bias'])
    """

    def __init__(
        self, net: FeatureNet, fresh: FeatureNet, head: nn.Module, shared: int | None, meter: Meter | None = None
    ) -> None:
        super().__init__()
        self.cut = _position(_trunk(net), shared)
        self.net = net
        self.own = nn.Sequential(*_trunk(fresh)[self.cut :])
        self.head = head
        self.meter = meter or Meter()

    def seen(self, x: Tensor) -> Tensor:
        """What is compared with generated samples for a real image: the image itself."""
        return x

    def start(self, x: Tensor) -> Tensor:
        """The output of the shared layers for a sample."""
        z: Tensor = nn.Sequential(*_trunk(self.net)[: self.cut])(x)
        return z

    def both(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The classifier's logits, and the discriminator's logit that a sample is the client's own, from `start` on.

        Two heads on one trunk count as one pass, like a single head.
        """
        logits = self.net.output(nn.Sequential(*_trunk(self.net)[self.cut :])(z))
        domain = self._domain(z)
        if len(self.own):
            self.meter.count(domain, 0.5)
        return logits, domain

    def judge(self, z: Tensor) -> Tensor:
        """Only the discriminator's logit."""
        domain = self._domain(z)
        self.meter.count(domain, 0.5)
        return domain

    def _domain(self, z: Tensor) -> Tensor:
        domain: Tensor = self.head(self.own(z))
        return domain.squeeze(1)

    def own_weights(self) -> dict[str, Any]:
        """A copy of the layers that the discriminator does not share."""
        return {n: t.detach().clone() for n, t in self.state_dict().items() if not n.startswith("net.")}

    def load(self, model: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> TwoHeads:
        """Load a classifier's weights and a discriminator's own weights into this network."""
        load(self, {**{f"net.{name}": tensor for name, tensor in model.items()}, **own})
        return self


class TwoHeadsOnFeatures(TwoHeads):
    """The same for generated features: the discriminator compares them with real features, the `net.features` of x.

    The layers that compute features must be shared.
    """

    def seen(self, x: Tensor) -> Tensor:
        """The feature of a real image."""
        feature: Tensor = self.net.features(x)
        return feature

    def start(self, x: Tensor) -> Tensor:
        """The output, for a feature, of the shared layers after the features."""
        z: Tensor = nn.Sequential(*_trunk(self.net)[len(self.net.features) : self.cut])(x)
        return z


def _trunk(net: FeatureNet) -> list[nn.Module]:
    """All layers but the last, which a discriminator shares (the paper's section 4.1)."""
    return [*net.features, *list(net.head)[:-1]]


def _position(layers: Sequence[nn.Module], shared: int | None) -> int:
    """The entry after the given number of layers with weights."""
    weighty = [i for i, entry in enumerate(layers) if any(True for _ in entry.parameters())]
    if shared is None or shared == len(weighty):
        return len(layers)
    if not 0 <= shared < len(weighty):
        raise UsageError(f"shared_layers = {shared} is impossible: the network has {len(weighty)} before its last")
    return weighty[shared] if shared else 0


def discriminator_loss(real: Tensor, made: Tensor) -> Tensor:
    """L_adv = -(sum log f(x) + sum log(1 - f(xhat))) / (D + Dhat) of logits, f being their sigmoid (Eq. 2).

    >>> discriminator_loss(torch.tensor([0.0]), torch.tensor([0.0, 0.0]))
    tensor(0.6931)
    """
    return (F.softplus(-real).sum() + F.softplus(made).sum()) / (len(real) + len(made))


def generator_loss(made: Tensor, *, saturating: bool = True) -> Tensor:
    """E log(1 - f(g(z))), to be minimised, of logits (Eq. 3); or -E log f(g(z)), whose slope is steep where f is small.

    >>> unreal = torch.tensor([-2.0], requires_grad=True)
    >>> [round(torch.autograd.grad(generator_loss(unreal, saturating=s), unreal)[0].item(), 4) for s in (True, False)]
    [-0.1192, -0.8808]
    """
    return -F.softplus(made).mean() if saturating else F.softplus(-made).mean()


def gradient_penalty(judge: Callable[[Tensor], Tensor], real: Tensor, made: Tensor, stream: torch.Generator) -> Tensor:
    """The mean of (|d f / d x| - 1)^2 at random points between real and generated samples.

    As in DaFKD's code, f is the probability, and the norm runs over the channels: one for every pixel.

    >>> steep = lambda x: torch.logit(0.2 + 0.3 * x.flatten(1).sum(1))  # f has the slope 0.3 everywhere
    >>> gradient_penalty(steep, torch.zeros(2, 1, 1, 1), torch.ones(2, 1, 1, 1), torch.Generator())
    tensor(0.4900, grad_fn=<MeanBackward0>)
    """
    pairs = min(len(real), len(made))
    real, made = real[:pairs].detach(), made[:pairs].detach()
    share = torch.rand(pairs, *[1] * (real.dim() - 1), generator=stream).to(real.device, non_blocking=True)
    between = (share * real + (1 - share) * made).requires_grad_()
    (slope,) = torch.autograd.grad(judge(between).sigmoid().sum(), between, create_graph=True)
    penalty: Tensor = (torch.linalg.vector_norm(slope, dim=1) - 1).square().mean()
    return penalty
