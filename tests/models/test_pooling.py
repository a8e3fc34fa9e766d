"""Pooling without gradients gives torch's own numbers, in torch's own layout."""

import pytest
import torch
from torch import nn

from fedalloy.nets.models.pooling import Halve


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(2, 6, 28, 28), (3, 16, 7, 10), (1, 1, 2, 3)])
def test_with_and_without_gradients_it_is_torchs(shape, format):
    x = (4 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).round()  # with ties
    x = x.contiguous(memory_format=format)
    expected = nn.MaxPool2d(2)(x)
    for found in (Halve()(x), Halve()(x.requires_grad_())):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


def test_gradients_are_torchs():
    x = torch.zeros(1, 1, 2, 2, requires_grad=True)
    Halve()(x).sum().backward()
    assert x.grad.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]  # of equals the first


def test_nan_is_not_lost():
    x = torch.tensor([[[[1.0, float("nan")], [2.0, 3.0]]]])
    assert Halve()(x).isnan().all()
