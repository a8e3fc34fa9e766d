"""What a generator has learned, class by class: some of its images, their averages, and those of real images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.data.samples import Samples, Scale


@dataclass(frozen=True)
class Generated:
    """Images of a generator by the class that a teacher sees in them, as raw pixels."""

    samples: Sequence[Tensor]  # for each class the first few images that were made of it, perhaps none
    averages: Tensor  # one image for each class, NaN where none was made
    counts: Tensor  # how many images were made of each class


@torch.no_grad()
def generated_by_class(
    batches: Iterable[Tensor], teacher: nn.Module, classes: int, scale: Scale, each: int = 8
) -> Generated:
    """Sort batches of normalised images by the class that the teacher, in eval mode, assigns to them.

    >>> teacher = nn.Flatten()  # the brighter pixel is the class
    >>> found = generated_by_class([torch.tensor([[[[0.25, 0.5]]], [[[0.0, 1.0]]]])], teacher, 2, Scale())
    >>> found.counts.tolist(), [len(some) for some in found.samples], found.averages[1].tolist()
    ([0, 2], [0, 2], [[[0.125, 0.75]]])
    """
    teacher.eval()
    samples: list[list[Tensor]] = [[] for _ in range(classes)]
    parts = []
    for images in batches:
        labels, raw = teacher(images).argmax(1), scale.restore(images)
        parts.append(_sums(raw, labels, classes))
        for image, label in zip(raw, labels.tolist(), strict=True):
            if len(samples[label]) < each:
                samples[label].append(image)
    sums, counts = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
    blank = sums.new_empty(0, *sums.shape[1:])
    return Generated([torch.stack(some) if some else blank for some in samples], _averages(sums, counts), counts)


def real_averages(samples: Samples, classes: int, scale: Scale, batch: int = 1024) -> Tensor:
    """The average image of each class as raw pixels; NaN for a class without samples.

    >>> two = Samples(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1), torch.tensor([1, 1]), torch.arange(2))
    >>> real_averages(two, 2, Scale((0.5,), (0.5,))).flatten().tolist()
    [nan, 0.75]
    """
    taken = [samples.take(positions) for positions in torch.split(torch.arange(len(samples)), batch)]
    parts = [_sums(scale.restore(x), y, classes) for x, y in taken]
    return _averages(*(torch.stack(part).sum(0) for part in zip(*parts, strict=True)))


def _sums(images: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """For each class the sum of its images, and their number."""
    member = F.one_hot(labels, classes).double().T
    return (member @ images.double().flatten(1)).view(classes, *images.shape[1:]), member.sum(1).long()


def _averages(sums: Tensor, counts: Tensor) -> Tensor:
    return sums / counts.view(-1, 1, 1, 1)
