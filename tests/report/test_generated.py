"""Images by class: counted, averaged and drawn, with nothing clipped and nothing made up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedalloy.data.samples import Samples, Scale
from fedalloy.errors import UsageError
from fedalloy.knowledge.pictures import from_noise
from fedalloy.nets.generators import ImageGenerator
from fedalloy.report.generated import class_averages, first_of_class, labelled_images
from fedalloy.report.generated_plot import averages_picture, generated_picture
from fedalloy.train.fit import params

GREY, COLOUR = Scale((0.5,), (0.25,)), Scale((0.1, 0.2, 0.3), (0.5, 0.5, 0.5))


def inside(figure):
    """Whether all text lies in the picture, and no two overlap."""
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    edges = figure.bbox
    whole = all(edges.x0 <= b.x0 and b.x1 <= edges.x1 and edges.y0 <= b.y0 and b.y1 <= edges.y1 for b in boxes)
    sides = np.array([box.extents for box in boxes]).T  # x0, y0, x1, y1
    x0, y0, x1, y1 = (side[:, None] for side in sides)
    overlap = (x0 < sides[2]) & (sides[0] < x1) & (y0 < sides[3]) & (sides[1] < y1)
    return whole and overlap.sum() == len(boxes)  # each with itself


def words(figure):
    return [text.get_text() for text in figure.axes[0].texts]


class HalfOfBrightest(nn.Module):
    """Class 0 if the upper half is brighter, else class 2; never class 1."""

    def forward(self, x):
        upper, lower = (half.mean((1, 2, 3)) for half in x.chunk(2, dim=2))
        return torch.stack([upper, torch.full_like(upper, -1e9), lower], 1)


@pytest.mark.parametrize("scale", [GREY, COLOUR])
def test_images_are_labelled_by_the_teacher_and_repeatable(scale):
    torch.manual_seed(0)  # or the weights would be those of whatever test came before
    make = ImageGenerator((len(scale.mean), 8, 8), scale, noise=5, width=4)
    streams = [torch.Generator().manual_seed(3) for _ in range(2)]
    first, again = (
        labelled_images(from_noise(lambda me: make, 5, batch)(None, params(make), stream, 50), HalfOfBrightest())
        for batch, stream in zip((7, 50), streams, strict=True)
    )
    assert torch.allclose(first.inputs, again.inputs, atol=1e-6)  # an image does not depend on those beside it
    assert first.labels.tolist() == HalfOfBrightest()(first.inputs).argmax(1).tolist()
    assert 0 < int((first.labels == 0).sum()) < 50
    assert first.counts(3)[1] == 0
    raw = scale.restore(first.inputs)
    assert raw.min() >= -1e-6
    assert raw.max() <= 1 + 1e-6


def test_averages_are_of_raw_pixels_class_by_class():
    raw = torch.tensor([[0.0, 0.5], [1.0, 0.5], [0.25, 0.75]]).view(3, 1, 1, 2)
    pool = Samples(
        GREY.normalise(torch.cat([torch.ones(1, 1, 1, 2), raw])), torch.tensor([9, 2, 2, 0]), torch.arange(4)
    )
    mine = pool.subset([1, 2, 3])  # not the first row, whose label is none of ours
    found = class_averages(mine, 3, GREY, batch=2)
    assert found[2].flatten().tolist() == pytest.approx([0.5, 0.5])
    assert found[0].flatten().tolist() == pytest.approx([0.25, 0.75])
    assert found[1].isnan().all()


def test_the_first_images_of_a_class_in_the_order_they_were_made():
    x = torch.arange(6.0).view(6, 1, 1, 1)
    made = Samples(x, torch.tensor([1, 0, 1, 1, 0, 1]), torch.arange(6))
    assert first_of_class(made, 1, Scale(), most=3).flatten().tolist() == [0.0, 2.0, 3.0]
    assert first_of_class(made, 0, Scale((10.0,), (2.0,))).flatten().tolist() == [12.0, 18.0]
    assert first_of_class(made, 2, Scale()).shape == (0, 1, 1, 1)


@pytest.mark.parametrize(("classes", "channels"), [(2, 1), (10, 3), (26, 1), (100, 3)])
def test_both_pictures_hold_every_class(classes, channels):
    names = [f"a long name of class {c}" if c % 3 == 0 else f"c{c}" for c in range(classes)]
    counts = [0 if c == 1 else 5 if c == 2 else 12_345 for c in range(classes)]
    figure = generated_picture(
        [torch.rand(min(n, 8), channels, 8, 8, generator=torch.Generator().manual_seed(0)) for n in counts],
        counts,
        names,
        title="Title",
    )
    assert len(figure.axes[0].images) == classes - 1
    assert words(figure).count("none") == 1
    assert {"Title", "c1", "0", "12,345"} <= set(words(figure))
    assert inside(figure)
    real = torch.rand(classes, channels, 8, 8, generator=torch.Generator().manual_seed(1))
    made = real.clone()
    made[1] = torch.nan
    figure = averages_picture(made, real, names, title="Title")
    assert len(figure.axes[0].images) == 2 * classes - 1
    assert words(figure).count("none") == 1
    assert inside(figure)


def test_the_pixels_drawn_are_those_given():
    image = torch.tensor([[[0.0, 0.5], [1.0, 1.5]]])  # the last one is brighter than white
    drawn = averages_picture(image[None], image[None], ["x"]).axes[0].images[0]
    assert drawn.get_array().squeeze().tolist() == [[0.0, 0.5], [1.0, 1.0]]
    assert (drawn.norm.vmin, drawn.norm.vmax) == (0, 1)


def test_two_channels_are_no_image():
    with pytest.raises(UsageError, match=r"2 channels; grey \(1\) and colour \(3\)"):
        averages_picture(torch.ones(2, 2, 4, 4), torch.ones(2, 2, 4, 4), ["a", "b"])
