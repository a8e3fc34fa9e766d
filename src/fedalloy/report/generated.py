"""What an image generator has learned, class by class: its images, as a classifier sorts them, and their averages."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedalloy.data.samples import Samples, Scale
from fedalloy.train.fit import predict


def labelled_images(images: Tensor, classifier: nn.Module) -> Samples:
    """Normalised images, each with the class that the classifier predicts.

    >>> brighter = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())  # the brighter one of two channels
    >>> labelled_images(torch.stack([torch.zeros(4, 4), torch.ones(4, 4)])[None], brighter).labels.tolist()
    [1]
    """
    rows = torch.arange(len(images), device=images.device)
    return Samples(images, predict(classifier, Samples(images, torch.zeros_like(rows), rows)).argmax(1), rows)


def first_of_class(samples: Samples, label: int, scale: Scale, most: int = 8) -> Tensor:
    """The first few images of a class, as raw pixels; there may be none.

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
