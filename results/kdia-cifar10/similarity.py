"""How similar an untrained and a trained generator of KDIA's are to real features, by two metrics, on CIFAR-10.

`python results/kdia-cifar10/similarity.py` trains a simple CNN for eight epochs on 20,000 images, then a generator
against that network alone, and prints the mean, smallest and largest cosine over classes: of whole feature maps
(16 x 5 x 5 numbers, what `fedalloy draw` shows) and of their means over space (16 numbers). It takes a minute.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy import load
from fedalloy.knowledge.generated_features import diversity_loss
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import FeatureNet, create, in_two_parts


def trained_centrally(x: Tensor, y: Tensor) -> FeatureNet:
    """A simple CNN after eight epochs of SGD."""
    net = in_two_parts(create("simple-cnn", classes=10, channels=3, size=32), "kdia")
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    for _ in range(8):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return net.eval()


def train(generator: ConditionalGenerator, net: FeatureNet, steps: int) -> None:
    """Take as many steps as KDIA's server would against one client's head."""
    optimiser = torch.optim.Adam(generator.parameters(), 1e-3, weight_decay=1e-5)
    generator.train()
    for _ in range(steps):
        labels, noise = torch.randint(10, (64,)), torch.randn(64, 100)
        made = generator(noise, labels)
        optimiser.zero_grad()
        (F.cross_entropy(net.head(made), labels) + diversity_loss(noise, made)).backward()
        optimiser.step()


@torch.no_grad()
def similarity(generator: ConditionalGenerator, real: Tensor, labels: Tensor, pooled: bool) -> Tensor:
    """For each class the mean cosine over all pairs of a generated and a real feature."""
    generator.eval()

    def direction(features: Tensor) -> Tensor:
        return F.normalize(features.mean((2, 3)) if pooled else features.flatten(1)).mean(0)

    made = [generator(torch.randn(100, 100), torch.full((100,), c)) for c in range(10)]
    return torch.stack([direction(made[c]) @ direction(real[labels == c]) for c in range(10)])


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load("cifar10", normalise="kdia")
    mean, std = (torch.tensor(constants).view(1, 3, 1, 1) for constants in (data.mean, data.std))
    x, y = (torch.from_numpy(data.x[:20_000]) / 255 - mean) / std, torch.from_numpy(data.y[:20_000]).long()
    net = trained_centrally(x, y)
    with torch.no_grad():
        real = torch.cat([net.features(part) for part in x[:10_000].split(500)])
    generator = ConditionalGenerator((16, 5, 5), classes=10)
    print("steps  feature maps             means over space")
    for more, total in ((0, 0), (100, 100), (200, 300)):
        train(generator, net, more)
        scores = [similarity(generator, real, y[:10_000], pooled) for pooled in (False, True)]
        print(f"{total:5}", *(f"{s.mean():.2f} ({s.min():.2f} to {s.max():.2f})      " for s in scores))
