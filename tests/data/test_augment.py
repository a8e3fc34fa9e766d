"""Crops, flips and turns: every output must be a window of the padded image, and the streams must be addressed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedalloy.base.rng import generator
from fedalloy.data.augment import augmentation, crop_flip, rotate
from fedalloy.errors import UsageError

BLACK = (-1.0, -2.0, -3.0)


def images(n: int, size: int = 8) -> torch.Tensor:
    return torch.randn(n, 3, size, size, generator=generator(0, "test"))


def windows(x: torch.Tensor, padded: torch.Tensor, padding: int) -> list[torch.Tensor]:
    """Every crop of one padded image, as it is and mirrored."""
    height, width = x.shape[-2:]
    crops = [padded[:, i : i + height, j : j + width] for i in range(2 * padding + 1) for j in range(2 * padding + 1)]
    return crops + [crop.flip(-1) for crop in crops]


@pytest.mark.parametrize("reflect", [True, False])
def test_every_crop_is_a_window_of_the_padded_image_and_all_windows_occur(reflect: bool) -> None:
    x = images(1, size=5)[0]
    if reflect:
        padded = F.pad(x[None], (1, 1, 1, 1), mode="reflect")[0]
    else:
        padded = torch.stack([F.pad(x[c], (1, 1, 1, 1), value=BLACK[c]) for c in range(3)])
    batch = x.expand(600, 3, 5, 5)
    out = crop_flip(batch, generator(0, "crop"), padding=1, fill=None if reflect else BLACK)
    allowed = torch.stack(windows(x, padded, 1))
    equal = (out[:, None] == allowed[None]).flatten(2).all(2)
    assert (equal.sum(1) >= 1).all()
    assert equal.any(0).all()  # 9 offsets, each both ways
    mirrored = equal[:, 9:].any(1).float().mean().item()
    assert mirrored == pytest.approx(0.5, abs=0.08)


def test_each_image_is_cut_on_its_own() -> None:
    out = crop_flip(images(1).expand(16, 3, 8, 8), generator(1, "crop"))
    assert len(torch.unique(out.flatten(1), dim=0)) > 8


def test_the_same_address_gives_the_same_batch_and_the_input_stays() -> None:
    x = images(4)
    before = x.clone()
    for name in ("cifar10-kdia", "cifar100-kdia", "cinic10-kdia"):
        augment = augmentation(name, BLACK)
        assert augment is not None
        assert torch.equal(augment(x, generator(0, "a", 1)), augment(x, generator(0, "a", 1)))
        assert not torch.equal(augment(x, generator(0, "a", 1)), augment(x, generator(0, "a", 2)))
    assert torch.equal(x, before)


def test_a_turn_of_no_degrees_changes_nothing() -> None:
    x = images(3)
    assert torch.allclose(rotate(x, generator(0, "r"), degrees=0, fill=BLACK), x, atol=1e-6)


def test_a_turn_keeps_the_centre_and_fills_corners_with_black() -> None:
    x = torch.full((64, 3, 33, 33), 5.0)
    out = rotate(x, generator(0, "r"), degrees=15, fill=BLACK)
    assert torch.allclose(out[:, :, 16, 16], torch.tensor(5.0))
    corners = out[:, :, 0, 0]
    filled = corners[:, 0] < 0
    assert 0.5 < filled.float().mean() < 1  # small angles leave the corner inside
    assert torch.allclose(corners[filled], torch.tensor(BLACK))
    assert out.sub(5).abs().gt(1e-5).float().mean() < 0.1


def test_an_oblong_image_turns_rigidly() -> None:
    """A point far out on the long axis moves by radius x angle, whatever the aspect."""
    x = torch.zeros(200, 1, 21, 81)
    x[:, 0, 10, 70] = 1  # 30 pixels right of the centre
    out = rotate(x, generator(3, "r"), degrees=15, fill=(0.0,))
    for image in out[:, 0]:
        for row, column in image.nonzero().tolist():
            radius = ((row - 10) ** 2 + (column - 40) ** 2) ** 0.5
            assert radius == pytest.approx(30, abs=1.1)
            assert abs(row - 10) <= 30 * 0.2589 + 1  # sin(15 degrees)


def test_names() -> None:
    assert augmentation("none", BLACK) is None
    with pytest.raises(UsageError, match=r"augmentation 'cifar-kdia'.*-kdia'"):
        augmentation("cifar-kdia", BLACK)


def test_only_reflection_brings_in_no_black() -> None:
    x = torch.rand(32, 3, 8, 8, generator=generator(0, "positive"))
    lowest = {}
    for name in ("cifar10-kdia", "cifar100-kdia", "cinic10-kdia"):
        augment = augmentation(name, BLACK)
        assert augment is not None
        lowest[name] = augment(x, generator(0, "a")).amin(dim=(0, 2, 3))
    assert (lowest["cifar10-kdia"] >= 0).all()
    assert torch.allclose(lowest["cinic10-kdia"], torch.tensor(BLACK))
    assert torch.allclose(lowest["cifar100-kdia"], torch.tensor(BLACK))
