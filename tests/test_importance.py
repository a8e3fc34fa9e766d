"""Whose model counts how much for a sample: the paper's vector, bounds on what clients say, products for scores."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.knowledge.teachers import by_discriminator, ensemble, sum_of_products
from fedalloy.knowledge.teaching import distance_to, importance_by_class

D = torch.tensor([[0.8], [0.2], [0.5]])
S = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])[:, None]  # three clients, one sample, two classes


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


# --- Eq. 7 ------------------------------------------------------------------------------------------------------------


def test_the_weights_and_the_teacher_by_hand():
    shares = by_discriminator(D)
    assert shares.flatten().tolist() == pytest.approx([0.533333, 0.133333, 0.333333], abs=1e-6)
    assert ensemble(shares, S.log()).flatten().tolist() == pytest.approx([0.673333, 0.326667], abs=1e-6)
    by_logits = ensemble(shares, S.log(), kind="logit")
    assert by_logits.flatten().tolist() == pytest.approx([0.728498, 0.271502], abs=1e-6)


scores = st.one_of(st.floats(0, 1), st.sampled_from([math.nan, math.inf, -math.inf, -3.0, 7.0]))


@given(
    st.integers(1, 6).flatmap(lambda k: st.lists(st.lists(scores, min_size=3, max_size=3), min_size=k, max_size=k)),
    st.floats(0.05, 1),
)
def test_whatever_clients_say_the_shares_are_shares(said, most):
    shares = by_discriminator(torch.tensor(said), most)
    assert torch.allclose(shares.sum(0), torch.ones(3, dtype=torch.float64), atol=1e-12)
    assert shares.min() >= 0
    assert shares.max() <= max(most, 1 / len(said)) + 1e-12


@pytest.mark.parametrize("equal", [0.3, 1.0, 0.0, math.nan])
def test_equal_scores_none_or_nonsense_make_the_plain_mean(equal):
    shares = by_discriminator(torch.full((3, 1), equal))
    assert torch.equal(shares, torch.full((3, 1), 1 / 3, dtype=torch.float64))
    assert torch.allclose(ensemble(shares, S.log()), S.mean(0))


def test_a_sample_that_nobody_knows_does_not_touch_the_others():
    shares = by_discriminator(torch.tensor([[0.0, 0.8], [0.0, 0.2]]))
    assert torch.allclose(shares, torch.tensor([[0.5, 0.8], [0.5, 0.2]], dtype=torch.float64))


def test_a_score_beyond_its_range_counts_as_the_nearest_and_infinity_as_nothing():
    assert torch.equal(by_discriminator(column(5.0, 1.0)), column(0.5, 0.5))
    assert torch.equal(by_discriminator(column(-5.0, 1.0)), column(0.0, 1.0))
    assert torch.equal(by_discriminator(column(math.inf, 1.0)), column(0.0, 1.0))


@pytest.mark.parametrize(
    ("said", "most", "expected"),
    [
        ((0.8, 0.1, 0.1), 0.5, (0.5, 0.25, 0.25)),
        ((0.6, 0.3, 0.1), 0.5, (0.5, 0.375, 0.125)),  # what is too much goes where the others' scores are, 3 to 1
        ((0.6, 0.35, 0.05), 0.45, (0.45, 0.45, 0.1)),  # the second overflows with what the first leaves
        ((1.0, 0.0, 0.0), 0.5, (0.5, 0.25, 0.25)),
        ((0.8, 0.1, 0.1), 0.1, (1 / 3, 1 / 3, 1 / 3)),  # less than an equal share is impossible
        ((0.8, 0.1, 0.1), 1.0, (0.8, 0.1, 0.1)),
    ],
)
def test_one_client_gets_no_more_than_its_limit(said, most, expected):
    assert torch.allclose(by_discriminator(column(*said), most), column(*expected), atol=1e-12)


# --- Eq. 8 ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.sampled_from([1.0, 3.0]), st.integers(0, 10**6))
def test_products_alone_give_the_same_teacher(clients, tau, seed):
    draw = torch.Generator().manual_seed(seed)
    said, logits = torch.rand(clients, 4, generator=draw), 3 * torch.randn(clients, 4, 5, generator=draw)
    teacher, known = sum_of_products(said[:, :, None] * (logits / tau).softmax(2))
    assert known.all()
    assert torch.allclose(teacher, ensemble(by_discriminator(said), logits, tau), atol=1e-6)


def test_products_are_bounded_like_scores():
    fair = 0.5 * S[:2]
    shouting = torch.cat([fair, 1000 * S[2:]])
    as_one = torch.cat([fair, S[2:]])
    assert torch.allclose(sum_of_products(shouting)[0], sum_of_products(as_one)[0])
    broken = torch.cat([fair, torch.full((1, 1, 2), math.nan), torch.full((1, 1, 2), -1.0)])
    assert torch.allclose(sum_of_products(broken)[0], S[:2].mean(0))


def test_a_sample_without_products_has_no_teacher():
    products = torch.stack([torch.zeros(2, 3), torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.2, 0.1]])])
    teacher, known = sum_of_products(products)
    assert known.tolist() == [False, True]
    assert torch.allclose(teacher[1], torch.tensor([0.25, 0.5, 0.25]))
    assert teacher.isfinite().all()


def test_distances_by_hand():
    teacher, logits = torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log()
    by_hand = (0.9 * math.log(0.9 / 0.8) + 0.1 * math.log(0.1 / 0.2)) / 2
    assert distance_to(teacher, logits).item() == pytest.approx(by_hand, abs=1e-7)
    assert distance_to(teacher, 3 * logits, tau=3.0).item() == pytest.approx(by_hand, abs=1e-7)
    assert distance_to(teacher, 3 * logits, tau=3.0, scaling="tau2").item() == pytest.approx(9 * by_hand, abs=1e-6)
    element_mean = F.kl_div(logits.log_softmax(1), teacher, reduction="none").mean().item()
    found = distance_to(teacher, 3 * logits, tau=3.0, scaling="tau2_mean").item()
    assert found == pytest.approx(9 * element_mean, abs=1e-6)


def test_a_teacher_that_rules_a_class_out_leaves_gradients_finite():
    logits = torch.zeros(1, 3, requires_grad=True)
    distance_to(torch.tensor([[1.0, 0.0, 0.0]]), logits).backward()
    assert torch.allclose(logits.grad, torch.tensor([[1 / 3 - 1, 1 / 3, 1 / 3]]))


def test_importance_by_class_is_a_mean_over_the_teachers_class():
    shares = torch.tensor([[0.2, 0.6, 1.0, 0.0], [0.8, 0.4, 0.0, 1.0]])
    teacher = torch.tensor([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.1, 0.2, 0.7], [0.1, 0.2, 0.7]])
    expected = torch.tensor([[0.4, 0.0, 0.5], [0.6, 0.0, 0.5]])
    assert torch.allclose(importance_by_class(shares, teacher), expected)
