"""Losses on hand-computed values: one reduction each."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedalloy.train.losses import ce, sq_dist

LOGITS = torch.tensor([[0.0, math.log(3)], [math.log(4), 0.0]])  # probabilities (1/4, 3/4) and (4/5, 1/5)


def test_cross_entropy_is_the_batch_mean():
    loss = ce(LOGITS, torch.tensor([1, 1]))
    assert loss.item() == pytest.approx((-math.log(3 / 4) - math.log(1 / 5)) / 2, abs=1e-6)


def test_gradient_of_cross_entropy_is_probability_minus_label_over_the_batch():
    logits = LOGITS.clone().requires_grad_()
    ce(logits, torch.tensor([1, 1])).backward()
    assert torch.allclose(logits.grad, torch.tensor([[0.25, -0.25], [0.8, -0.8]]) / 2, atol=1e-6)


def anchored(offset):
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    anchor = {name: t.clone() for name, t in net.state_dict().items()}
    with torch.no_grad():
        for p in net.parameters():
            p += offset
    return net, anchor


def test_distance_is_summed_over_all_parameters():
    net, anchor = anchored(0.5)
    assert sq_dist(net, anchor).item() == pytest.approx((6 + 3 + 3 + 3) * 0.25, rel=1e-5)


def test_buffers_and_frozen_parameters_are_left_out():
    net, anchor = anchored(0.5)
    net[1].running_var.fill_(1000.0)
    net[0].weight.requires_grad_(False)
    assert sq_dist(net, anchor).item() == pytest.approx((3 + 3 + 3) * 0.25, rel=1e-5)


def test_gradient_of_the_distance():
    net, anchor = anchored(0.5)
    sq_dist(net, anchor).backward()
    assert all(torch.allclose(p.grad, torch.ones_like(p), atol=1e-5) for p in net.parameters())


def test_the_gradient_at_no_distance_is_exactly_zero():
    net, anchor = anchored(0.0)
    sq_dist(net, anchor).backward()
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in net.parameters())
