"""The interface of all networks, and how to create a network by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedalloy.base.registry import Registry, suggest
from fedalloy.errors import UsageError
from fedalloy.nets.models.checks import whole


class FeatureNet(nn.Module):
    """A network in two parts: `features` turns images into features, `head` turns features into logits.

    Methods that generate, compare or share features rely on this split; names in the state dict begin with `features.`
    and `head.` accordingly. `feature_shape` is the shape of one feature, without the batch. The last layer of the head
    is the output layer; `project` returns its input.

    >>> net = FeatureNet(nn.Sequential(nn.Flatten()), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), (4,))
    >>> [name for name, _ in net.named_parameters()]
    ['head.0.weight', 'head.0.bias', 'head.1.weight', 'head.1.bias']
    """

    def __init__(self, features: nn.Sequential, head: nn.Sequential, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.feature_shape = feature_shape

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def project(self, x: Tensor) -> Tensor:
        """Return the representation before the output layer, used in MOON's contrastive term (Li et al., 2021)."""
        z: Tensor = self.features(x)
        for layer in list(self.head)[:-1]:
            z = layer(z)
        return z

    @property
    def projected_shape(self) -> tuple[int, ...]:
        """The shape of one sample's projection, without the batch."""
        device = next((p.device for p in self.parameters()), None)
        z, mode = torch.zeros(1, *self.feature_shape, device=device), self.training
        self.eval()  # do not change statistics or random streams
        with torch.no_grad():
            for layer in list(self.head)[:-1]:
                z = layer(z)
        self.train(mode)
        return tuple(z.shape[1:])

    def output(self, z: Tensor) -> Tensor:
        """Return the logits of a projected batch: `output(project(x))` equals `forward(x)`, if both are needed."""
        logits: Tensor = self.head[-1](z)
        return logits


def in_two_parts(net: nn.Module, method: str) -> FeatureNet:
    """Return the network as a `FeatureNet`, or raise an error that names the method.

    >>> in_two_parts(nn.Linear(4, 2), "moon")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: moon needs a network in two parts; make Linear a FeatureNet(features, head, shape)
    """
    if not isinstance(net, FeatureNet):
        kind = type(net).__name__
        raise UsageError(f"{method} needs a network in two parts; make {kind} a FeatureNet(features, head, shape)")
    return net


ModelFactory = Callable[..., FeatureNet]
"""Creates a network from the keywords `classes`, `channels`, `size` and its own options, which have defaults."""

PROJECTION = "projection"
WIDEST = 10_000  # numbers before the output layer for which MOON's square layer still makes sense

models: Registry[ModelFactory] = Registry("model")
model = models.register


def create(name: str, *, classes: int, channels: int, size: int, **options: Any) -> FeatureNet:
    """Create the named network for `classes` classes and square images of `channels` x `size` x `size`.

    >>> create("wrn", classes=30, channels=3, size=32, depth=10).feature_shape
    (64,)
    >>> create("wrn", classes=30, channels=3, size=32, dept=10)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: the model 'wrn' has no option 'dept'; did you mean 'depth'?
    >>> create("wrn", classes=30, channels=3, size=32, depth=12)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: the model 'wrn' cannot be built: depth=12 is not 6n + 4; write 10 or 16
    """
    factory = models[name]
    known = options_of(name)
    for option in options:
        if option not in known:
            raise UsageError(f"the model '{name}' has no option '{option}'; {suggest(option, known)}")
    try:
        classes, channels, size = whole("classes", classes), whole("channels", channels), whole("size", size)
        own = PROJECTION in inspect.signature(factory).parameters
        width = None if own else options.pop(PROJECTION, None)
        net = factory(classes=classes, channels=channels, size=size, **options)
        return net if width is None else projecting(net, whole(PROJECTION, width))
    except UsageError as error:
        if size == 1 and str(error).startswith("size=1 "):  # rows of a table are images of one pixel
            raise UsageError(f"the model '{name}' needs images; for a table write model = 'mlp'") from None
        raise UsageError(f"the model '{name}' cannot be built: {error}") from None


def options_of(name: str) -> list[str]:
    """The options of a registered network: its own, and `projection`, which every network has.

    >>> options_of("lenet5")
    ['projection']
    """
    own = [key for key in inspect.signature(models[name]).parameters if key not in ("classes", "channels", "size")]
    return own if PROJECTION in own else [*own, PROJECTION]


def projecting(net: FeatureNet, width: int) -> FeatureNet:
    """Put MOON's projection head before a network's output layer: FC d, ReLU, FC width (Li et al., 2021).

    >>> net = FeatureNet(nn.Sequential(), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (4,))
    >>> [(layer.in_features, layer.out_features) for layer in projecting(net, 256).head if hasattr(layer, "bias")]
    [(4, 3), (3, 3), (3, 256), (256, 2)]
    """
    *before, out = net.head
    if not isinstance(out, nn.Linear):
        raise UsageError(f"projection={width} needs a head that ends in a linear layer, not in {type(out).__name__}")
    d = out.in_features
    if d > WIDEST:
        raise UsageError(f"projection={width} would need {d} x {d} weights; choose a network with fewer features")
    head = [nn.Linear(d, d), nn.ReLU(), nn.Linear(d, width), nn.Linear(width, out.out_features, out.bias is not None)]
    net.head = nn.Sequential(*before, *head)
    return net


def parameter_count(net: nn.Module) -> int:
    """Return the number of trained parameters; buffers such as running means do not count.

    >>> parameter_count(nn.BatchNorm2d(8))
    16
    """
    return sum(p.numel() for p in net.parameters())
