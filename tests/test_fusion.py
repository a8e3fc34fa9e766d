"""KnFu's fusion: values by hand, limits, and what must not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedalloy.knowledge.fusion import divergences, epd, fuse, fusion_weights

# Worked by hand from Eqs. 6 to 9 with beta = 10.
P = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
D = [[0, 0.036690, 0.794160], [0.044403, 0, 0.534111], [1.032553, 0.582685, 0]]
W = [[0.908915, 0.090891, 0.000194], [0.090852, 0.908520, 0.000628], [0.028136, 0.088351, 0.883513]]


def random_epds(seed, clients, classes=10, concentration=0.3):
    draw = torch.Generator().manual_seed(seed)
    raw = torch.rand(clients, classes, generator=draw, dtype=torch.float64) ** (1 / concentration)
    return raw / raw.sum(1, keepdim=True)


def test_the_worked_vector():
    d = divergences(P)
    assert d.dtype == torch.float64
    assert d.tolist() == [pytest.approx(row, abs=5e-7) for row in D]
    assert fusion_weights(d, beta=10).tolist() == [pytest.approx(row, abs=5e-7) for row in W]


def test_the_other_direction_is_the_transpose():
    d = divergences(P, "other_to_own")
    assert torch.equal(d, divergences(P).T)
    assert d[0, 1].item() == pytest.approx(0.044403, abs=5e-7)
    assert not torch.allclose(fusion_weights(d, 10), fusion_weights(divergences(P), 10))


def test_a_clients_epd_is_the_mean_of_its_answers():
    soft = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.25, 0.75], [0.25, 0.75]]])
    found = epd(soft)
    assert found.dtype == torch.float64
    assert found.tolist() == [[0.75, 0.25], [0.25, 0.75]]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31 - 1),
    clients=st.integers(2, 25),
    beta=st.floats(1e-3, 1e4),
    concentration=st.floats(0.05, 5),
)
def test_the_self_share_has_bounds_and_rows_sum_to_one(seed, clients, beta, concentration):
    w = fusion_weights(divergences(random_epds(seed, clients, concentration=concentration)), beta)
    assert w.min() >= 0
    assert torch.allclose(w.sum(1), torch.ones(clients, dtype=torch.float64))
    own = w.diagonal()
    slack = 1e-9
    assert own.min() >= beta / (beta + clients - 1) * (1 - slack)
    assert own.max() <= beta / (beta + 1) * (1 + slack)
    others = w - torch.diag(own)
    assert torch.allclose(own, beta * others.max(1).values)  # Eq. 8 survives the normalisation
    most = others.sort(descending=True).values.cumsum(1)  # what c others hold together
    c = torch.arange(1, clients + 1, dtype=torch.float64)
    assert (most <= c / (beta + c) * (1 + slack)).all()


def test_the_bounds_for_the_papers_numbers():
    shares = torch.stack([fusion_weights(divergences(random_epds(s, 20)), 10).diagonal() for s in range(50)])
    assert shares.min() >= 0.34483
    assert shares.max() <= 0.90910
    pair = fusion_weights(divergences(random_epds(0, 2)), 10)
    assert pair.diagonal().tolist() == pytest.approx([10 / 11, 10 / 11], abs=1e-15)


def test_identical_clients_share_evenly_and_prefer_themselves():
    same = torch.tensor([0.2, 0.5, 0.3]).expand(4, 3)
    d = divergences(same)
    assert d.eq(0).all()
    w = fusion_weights(d, beta=10)
    assert w.diagonal().tolist() == pytest.approx([10 / 13] * 4)  # 0.769231
    assert w[0, 1:].tolist() == pytest.approx([1 / 13] * 3)  # 0.076923


def test_a_large_beta_leaves_ones_own_and_none_takes_it_away():
    soft = random_epds(3, 5 * 7).reshape(5, 7, 10)
    d = divergences(epd(soft))
    assert torch.allclose(fuse(fusion_weights(d, 1e300), soft), soft, atol=1e-15)
    without = fusion_weights(d, 0.0)
    assert without.diagonal().eq(0).all()
    assert torch.allclose(without.sum(1), torch.ones(5, dtype=torch.float64))
    assert torch.allclose(fusion_weights(d, 1e-9), without, atol=1e-8)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1), clients=st.integers(2, 12))
def test_renaming_clients_renames_rows_and_columns(seed, clients):
    p = random_epds(seed, clients)
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed))
    w = fusion_weights(divergences(p), 10)
    assert torch.allclose(fusion_weights(divergences(p[order]), 10), w[order][:, order], rtol=1e-12)


@pytest.mark.parametrize("scale", [1 / 0.6931471805599453, 0.01, 1000.0])
def test_the_base_of_the_logarithm_does_not_matter(scale):
    d = divergences(random_epds(1, 8))
    assert torch.allclose(fusion_weights(d * scale, 10), fusion_weights(d, 10), rtol=1e-12)


@pytest.mark.parametrize("direction", ["own_to_other", "other_to_own"])
def test_the_diagonal_is_exactly_zero_and_the_rest_is_not_symmetric(direction):
    d = divergences(random_epds(4, 9), direction)
    assert d.diagonal().eq(0).all()
    assert not torch.allclose(d, d.T)
    assert d.min() >= 0


def test_a_class_that_nobody_expects_is_no_accident():
    certain = torch.eye(3)
    d = divergences(certain)
    assert d.isfinite().all()
    assert d[0, 1].item() == pytest.approx(27.631021, abs=1e-6)  # -ln 1e-12
    w = fusion_weights(d, 10)
    assert w[0].tolist() == pytest.approx([10 / 12, 1 / 12, 1 / 12])


def test_near_twins_stop_at_the_floor():
    # d^2 below 1e-12 counts as 1e-12, so that a twin weighs 1e12 and not infinitely much.
    d = torch.tensor([[0, 1e-9, 1e-3], [1e-9, 0, 1e-3], [1e-3, 1e-3, 0]])
    w = fusion_weights(d, 1.0)
    assert w[0].tolist() == pytest.approx([1 / (2 + 1e-6), 1 / (2 + 1e-6), 1e-6 / (2 + 1e-6)])


def test_a_client_alone_keeps_its_own_answers():
    soft = torch.tensor([[[0.7, 0.3], [0.4, 0.6]]])
    for beta in (0.0, 10.0):
        w = fusion_weights(divergences(epd(soft)), beta)
        assert w.tolist() == [[1.0]]
        assert torch.equal(fuse(w, soft), soft.double())


def test_fused_answers_by_hand_are_probabilities():
    soft = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.25, 0.75]]])
    w = torch.tensor([[0.75, 0.25], [0.0, 1.0]], dtype=torch.float64)
    found = fuse(w, soft)
    assert found.tolist() == [[[0.75, 0.25], [0.4375, 0.5625]], [[0.0, 1.0], [0.25, 0.75]]]
    mixed = fuse(fusion_weights(divergences(random_epds(0, 6)), 10), random_epds(1, 24).reshape(6, 4, 10))
    assert torch.allclose(mixed.sum(2), torch.ones(6, 4, dtype=torch.float64))
    assert mixed.min() >= 0
