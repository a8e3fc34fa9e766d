"""How close generated features are to real ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.data.samples import Samples
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import FeatureNet

Compared = Literal["channel_means", "maps"]


@torch.no_grad()
def feature_similarity(
    generator: ConditionalGenerator,
    net: FeatureNet,
    samples: Samples,
    stream: torch.Generator,
    per_class: int = 100,
    batch: int = 256,
    compare: Compared = "channel_means",
) -> Tensor:
    """For each class, the mean cosine similarity over all pairs of a real and a generated feature.

    The real features come from a given network, in KDIA from a centrally trained one; both networks are put
    into eval mode. The noise comes from `stream`. A class without samples is NaN.

    Feature maps are averaged over space first, as in the code behind KDIA's Fig. 7, so that the means of the channels
    are compared; with `compare = "maps"` they are compared as a whole. Features without space are the same by both. The
    two are not comparable, and neither alone shows that a generator has learned: features after a ReLU and a sigmoid
    have no negative numbers, so even an untrained generator is far from 0.

    >>> net = FeatureNet(torch.nn.Sequential(), torch.nn.Sequential(torch.nn.Linear(3, 2)), (3,))
    >>> one = Samples(torch.ones(1, 3), torch.tensor([1]), torch.arange(1))
    >>> found = feature_similarity(ConditionalGenerator((3,), classes=2, width=8), net, one, torch.Generator())
    >>> found.isnan().tolist()
    [True, False]
    """
    generator.eval()
    net.eval()
    device = samples.y.device

    def real() -> Iterator[tuple[Tensor, Tensor]]:
        for positions in torch.split(torch.arange(len(samples)), batch):
            x, y = samples.take(positions)
            yield vectors(net.features(x), compare), y

    def generated() -> Iterator[tuple[Tensor, Tensor]]:
        for y in torch.split(torch.arange(generator.classes).repeat_interleave(per_class), batch):
            noise = torch.randn(len(y), generator.noise, generator=stream)
            yield vectors(generator(noise.to(device), y.to(device)), compare), y.to(device)

    # The mean over all pairs of products is the product of the means.
    means = [_mean_directions(features, generator.classes) for features in (real(), generated())]
    return (means[0] * means[1]).sum(1)


def vectors(features: Tensor, compare: Compared) -> Tensor:
    """One vector a feature: the means of its channels, or all its numbers.

    >>> maps = torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]]]])
    >>> vectors(maps, "channel_means").tolist(), vectors(maps, "maps").tolist()
    ([[2.0, 0.0]], [[1.0, 3.0, 0.0, 0.0]])
    """
    return features.flatten(1) if compare == "maps" or features.dim() < 3 else features.flatten(2).mean(2)


def _mean_directions(pairs: Iterator[tuple[Tensor, Tensor]], classes: int) -> Tensor:
    """For each class, the mean of the features after scaling each to length one."""
    parts = [
        (member @ F.normalize(features.double()), member.sum(1))
        for features, labels in pairs
        for member in [F.one_hot(labels, classes).double().T]
    ]
    return torch.stack([total for total, _ in parts]).sum(0) / torch.stack([n for _, n in parts]).sum(0)[:, None]
