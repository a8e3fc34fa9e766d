"""The teachers' rule by hand: what is averaged, who counts how much, and what cannot be overdone."""

from __future__ import annotations

import math
from itertools import combinations
from typing import get_args

import pytest
import torch

from fedalloy.aggregation.robust import clipped
from fedalloy.knowledge.teachers import (
    Rule,
    by_discriminator,
    by_entropy,
    by_label_counts,
    consensus,
    consensus_of_probabilities,
    ensemble,
    mean_centred_logits,
    mean_logits,
    mean_probabilities,
    sum_of_products,
    taught,
)

# Three clients, two samples, two classes.
LOGITS = torch.tensor([[[4.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [6.0, 2.0]], [[2.0, 1.0], [-1.0, 3.0]]])
SOFT = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]], [[0.5, 0.5]]])


def softmax(*row: float) -> list[float]:
    powers = [math.exp(z) for z in row]
    return [p / sum(powers) for p in powers]


# --- all alike --------------------------------------------------------------------------------------------------------


def test_mean_logits():
    assert mean_logits(LOGITS).tolist() == [[2.0, 1.0], [2.0, 2.0]]


def test_centred_over_samples():
    # The column means are (2.5, 0.5), (3, 2), (0.5, 2); of all clients (2, 1.5).
    assert mean_centred_logits(LOGITS).tolist() == [[0.0, -0.5], [0.0, 0.5]]


def test_centred_a_client_does_not_count_more_for_a_class_that_it_always_prefers():
    raised = LOGITS + torch.tensor([[1000.0, 0.0], [0.0, 7.0], [-3.0, 0.0]])[:, None]
    assert torch.allclose(mean_centred_logits(raised), mean_centred_logits(LOGITS), atol=1e-4)


def test_no_two_rules_teach_the_same():
    found = [taught(LOGITS, rule).softmax(1) for rule in get_args(Rule)]
    assert all(not torch.allclose(one, other) for one, other in combinations(found, 2))


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_mean_probabilities_as_logits_of_the_same_temperature(tau):
    found = mean_probabilities(LOGITS, tau)
    rows = [[softmax(*(z / tau for z in row)) for row in client] for client in LOGITS.tolist()]
    by_hand = [[sum(client[i][c] for client in rows) / 3 for c in (0, 1)] for i in (0, 1)]
    assert torch.allclose((found / tau).softmax(1), torch.tensor(by_hand), atol=1e-6)


def test_a_probability_of_zero_has_a_logarithm():
    assert mean_probabilities(torch.tensor([[[0.0, -500.0]]]))[0].tolist() == pytest.approx([0.0, math.log(1e-12)])


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("mean", [[2.0, 1.0], [2.0, 2.0]]), ("median", [[2.0, 1.0], [1.0, 2.0]]), ("trimmed", [[2.0, 1.0], [1.0, 2.0]])],
)
def test_consensus(combine, expected):
    found = consensus(LOGITS, combine, 0.34)
    assert found.dtype == torch.float32
    assert torch.allclose(found, torch.tensor(expected), atol=1e-6)


def test_consensus_of_clipped_logits_is_bounded():
    loud = torch.cat([LOGITS, torch.tensor([[[1e9, 0.0], [float("nan"), 0.0]]])])
    found = consensus(loud, clip=1.0)
    # Centred and clipped: (1, -1), (-1, 1), (1/2, -1/2), (1, -1); and (0, 0), (1, -1), (-1, 1), (0, 0).
    assert torch.allclose(found, torch.tensor([[0.375, -0.375], [0.0, 0.0]]), atol=1e-6)
    assert torch.equal(consensus(list(LOGITS), clip=9.0), consensus([clipped(z, 9.0) for z in LOGITS]))


def test_consensus_of_probabilities_sums_to_one():
    assert consensus_of_probabilities(SOFT)[0].tolist() == pytest.approx([1.6 / 3, 1.4 / 3], abs=1e-7)
    assert consensus_of_probabilities(SOFT, "median")[0].tolist() == pytest.approx([0.5, 0.5], abs=1e-7)
    three = torch.eye(3)[:, None]  # each is certain of another class, so that no median has anything left
    assert consensus_of_probabilities(three, "median").tolist() == [pytest.approx([1 / 3] * 3)]


# --- shares -----------------------------------------------------------------------------------------------------------


def test_shares_by_label_counts():
    counts = torch.tensor([[30, 0, 0], [10, 5, 0]])
    assert by_label_counts(counts).T.tolist() == [[0.75, 0.25], [0.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(("rule", "expected"), [("logits", [2.0, 1.0]), ("centred", [0.0, -0.5])])
def test_a_rule_by_its_name(rule, expected):
    assert taught(LOGITS, rule)[0].tolist() == expected


def test_who_is_sure_counts_more_by_entropy():
    sure, unsure = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    shares = by_entropy(torch.stack([sure, unsure])).flatten().tolist()
    found = taught(torch.stack([sure, unsure]), "entropy").softmax(1)[0].tolist()
    by_hand = [shares[0] * a + shares[1] * b for a, b in zip(softmax(9.0, 0.0), softmax(0.0, 1.0), strict=True)]
    assert found == pytest.approx(by_hand, abs=1e-6)


def test_shares_by_entropy():
    # e^-H is 1 for a certain client, 1/4 for one that has no idea of four classes, and 1/2 for one that is torn in two.
    sure, torn, none = [500.0, 0.0, 0.0, 0.0], [500.0, 500.0, 0.0, 0.0], [1.0] * 4
    found = by_entropy(torch.tensor([[sure], [torn], [none]]))
    assert found.flatten().tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    cold, warm = (by_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]]), tau)[0].item() for tau in (0.1, 10.0))
    assert 0.5 < warm < 0.501 < 0.66 < cold < 2 / 3


def test_shares_by_discriminator():
    assert by_discriminator(torch.tensor([[0.8], [0.2], [0.5]])).flatten().tolist() == pytest.approx(
        [8 / 15, 2 / 15, 5 / 15], abs=1e-7
    )
    bad = torch.tensor([[float("nan"), 0.0], [7.0, 0.0], [-1.0, 0.0]])
    assert by_discriminator(bad).T.tolist() == [[0.0, 1.0, 0.0], pytest.approx([1 / 3] * 3)]


@pytest.mark.parametrize("max_share", [0.4, 0.6, 1.0])
def test_columns_of_shares_sum_to_one_and_keep_the_bound(max_share):
    draw = torch.Generator().manual_seed(0)
    logits, scores = torch.randn(4, 9, 3, generator=draw), torch.rand(4, 9, generator=draw)
    for found in (
        by_discriminator(scores, max_share),
        by_entropy(3 * logits, max_share=max_share),
    ):
        assert (found.shape, found.dtype) == ((4, 9), torch.float64)
        assert torch.allclose(found.sum(0), torch.ones(9, dtype=torch.float64))
        assert found.max() <= max_share + 1e-12


# --- weighted answers -------------------------------------------------------------------------------------------------

SHARES = by_discriminator(torch.tensor([[0.8], [0.2], [0.5]]))


def test_weighted_probabilities_and_logits():
    assert ensemble(SHARES, SOFT.log()).tolist() == [
        pytest.approx([(0.8 * 0.9 + 0.2 * 0.2 + 0.5 * 0.5) / 1.5, (0.8 * 0.1 + 0.2 * 0.8 + 0.5 * 0.5) / 1.5], abs=1e-6)
    ]
    tau = 2.0
    mixed = [
        sum(a * math.log(p) for a, p in zip((0.8, 0.2, 0.5), row, strict=True)) / 1.5 / tau for row in SOFT[:, 0].T
    ]
    assert ensemble(SHARES, SOFT.log(), tau, kind="logit").tolist() == [pytest.approx(softmax(*mixed), abs=1e-6)]


def test_equal_shares_are_the_plain_means():
    alike = by_discriminator(torch.ones(3, 2))
    assert torch.allclose(ensemble(alike, LOGITS, kind="logit"), mean_logits(LOGITS).softmax(1), atol=1e-6)
    assert torch.allclose(ensemble(alike, LOGITS), mean_probabilities(LOGITS).softmax(1), atol=1e-6)


def test_products_teach_the_same_as_scores_and_answers():
    scores = torch.tensor([0.8, 0.2, 0.5])
    found, known = sum_of_products(scores[:, None, None] * SOFT)
    assert known.tolist() == [True]
    assert torch.allclose(found, ensemble(SHARES, SOFT.log()), atol=1e-6)


def test_products_are_bounded_and_may_leave_samples_without_a_teacher():
    products = torch.tensor([[[300.0, 100.0], [0.0, 0.0]], [[float("inf"), 0.5], [-1.0, float("nan")]]])
    found, known = sum_of_products(products)
    # The first client's is scaled down to (3/4, 1/4); of the second's infinity nothing counts.
    assert known.tolist() == [True, False]
    assert found.tolist() == [pytest.approx([0.75 / 1.5, 0.75 / 1.5]), [0.0, 0.0]]
