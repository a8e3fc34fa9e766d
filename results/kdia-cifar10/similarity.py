"""How similar an untrained and a trained generator of KDIA's are to real features, by two metrics, on CIFAR-10.

`python results/kdia-cifar10/similarity.py` trains a simple CNN for eight epochs on 20,000 images, then a generator
against that network alone, and prints the mean, smallest and largest cosine over classes: of the maps' means over space
(16 numbers, as in the code behind KDIA's Fig. 7, and what `fedalloy draw` shows) and of whole feature maps (16 x 5 x 5
numbers, `--compare maps`). It takes a minute.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy import load
from fedalloy.data.samples import tensors
from fedalloy.knowledge.generated_features import diversity_loss
from fedalloy.knowledge.similarity import Compared, feature_similarity
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


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load("cifar10", normalise="kdia")
    samples = tensors(data)[0].subset(range(20_000))
    net = trained_centrally(samples.inputs, samples.labels)
    real, draw = samples.subset(range(10_000)), torch.Generator().manual_seed(0)
    generator = ConditionalGenerator((16, 5, 5), classes=10)
    print("steps  means over space         whole maps")
    for more, total in ((0, 0), (100, 100), (200, 300)):
        train(generator, net, more)
        ways: tuple[Compared, ...] = ("channel_means", "maps")
        scores = [feature_similarity(generator, net, real, draw, compare=compare) for compare in ways]
        print(f"{total:5}", *(f"{s.mean():.2f} ({s.min():.2f} to {s.max():.2f})      " for s in scores))
