"""What an image generator has learned, class by class: its images, as a teacher sorts them, and their averages."""

from __future__ import annotations

import torch
from torch import Tensor

from fedalloy.data.samples import Samples, Scale
from fedalloy.nets.generators import ImageGenerator
from fedalloy.train.fit import predict


@torch.no_grad()
def labelled_images(
    generator: ImageGenerator, teacher: torch.nn.Module, stream: torch.Generator, number: int, batch: int = 64
) -> Samples:
    """So many images, normalised like real ones, each with the class that the teacher sees in it.

    Both networks are put into eval mode, so that an image depends on its own noise only, which comes from `stream`.

    >>> brighter = torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten())  # of two channels, which one
    >>> made = labelled_images(ImageGenerator((2, 4, 4), Scale(), noise=3, width=2), brighter, torch.Generator(), 5)
    >>> made.inputs.shape, made.labels.tolist() == made.inputs.mean((2, 3)).argmax(1).tolist()
    (torch.Size([5, 2, 4, 4]), True)
    """
    generator.eval()
    device = next(generator.parameters()).device
    noise = torch.randn(number, generator.noise, generator=stream)
    images = torch.cat([generator(z.to(device)) for z in torch.split(noise, batch)])
    rows = torch.arange(number, device=device)
    return Samples(images, predict(teacher, Samples(images, torch.zeros_like(rows), rows)).argmax(1), rows)


def first_of_class(samples: Samples, label: int, scale: Scale, most: int = 8) -> Tensor:
    """The first few images of a class, as raw pixels; perhaps there are none.

    >>> three = Samples(torch.zeros(3, 1, 2, 2), torch.tensor([0, 2, 2]), torch.arange(3))
    >>> [len(first_of_class(three, label, Scale(), most=1)) for label in range(3)]
    [1, 0, 1]
    """
    return scale.restore(samples.take(torch.nonzero(samples.labels == label).flatten()[:most])[0])


def class_averages(samples: Samples, classes: int, scale: Scale, batch: int = 1024) -> Tensor:
    """The average image of each class as raw pixels, in float64; NaN for a class without images.

    >>> two = Samples(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1), torch.tensor([1, 1]), torch.arange(2))
    >>> class_averages(two, 2, Scale((0.5,), (0.5,))).flatten().tolist()
    [nan, 0.75]
    """
    sums = torch.zeros(classes, *samples.x.shape[1:], dtype=torch.float64, device=samples.x.device)
    for positions in torch.split(torch.arange(len(samples)), batch):
        x, y = samples.take(positions)
        sums.index_add_(0, y, scale.restore(x.double()))
    return sums / samples.counts(classes).view(-1, 1, 1, 1)
