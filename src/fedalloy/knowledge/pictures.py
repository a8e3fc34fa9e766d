"""What a method can have drawn in addition to its models: the data of `Method.pictures`, without any drawing code.

The kinds of pictures, by name, and the data that each needs:

| kind | data |
|---|---|
| `generated` | `Images`: generators of images, and a model that classifies what they make |
| `similarity` | `Features`: a generator of features, to be compared with real ones |
| `fusion` | a tensor, clients by clients: the weight of each client (column) in what a client (row) learned from |
| `epd` | a tensor, clients by classes: the mean prediction of each client |
| `importance` | a tensor, clients by classes: the weight of each client in the ensemble |
| `trifreqs` | a mapping with `mean`, `use` and `seen_only`: how KDIA weighs the clients in its teacher |

A string instead of the data says why the picture is not available.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedalloy.base.tree import Tree
from fedalloy.federation.core import Client
from fedalloy.nets.models import FeatureNet
from fedalloy.train.fit import load

Sample = Callable[[Client, Tree, torch.Generator, int], Tensor]
"""Makes this many images of a generator with these weights, at a client, from a random stream."""


@dataclass(frozen=True)
class Images:
    """Generators of images by owner, a client or `SERVER`, and the model that assigns classes to their images."""

    sample: Sample
    generators: Mapping[int, Tree]
    classifier: Tree


@dataclass(frozen=True)
class Features:
    """A generator of features, made for a client's network, and its weights."""

    make: Callable[[Client, FeatureNet], nn.Module]
    generator: Tree


def from_noise(make: Callable[[Client], nn.Module], noise: int, batch: int = 64) -> Sample:
    """Sample images, in eval mode, from a generator whose only input is noise of this size."""

    @torch.no_grad()
    def sample(me: Client, weights: Tree, stream: torch.Generator, count: int) -> Tensor:
        generator = load(make(me), weights).eval()
        device = next(generator.parameters()).device
        z = torch.randn(count, noise, generator=stream)
        return torch.cat([generator(part.to(device)) for part in torch.split(z, batch)])

    return sample
