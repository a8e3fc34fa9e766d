"""Metrics for decisions, by hand: AUC, rates at a threshold, calibration, errors of numbers, and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedalloy.federation import regression
from fedalloy.federation.classification import (
    auc,
    balanced_error,
    calibration_error,
    label_f1,
    label_rates,
    log_odds,
    share,
    specificity,
)
from fedalloy.federation.intervals import of_auc, of_mean, of_r2, student, wilson

NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "positive", "expected"),
    [
        ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
        ([1, 2, 3, 4], [1, 1, 0, 0], 0.0),
        ([1, 2, 3, 4], [0, 1, 0, 1], 0.75),  # of four pairs only (2, 3) is the wrong way round
        ([5, 5, 5], [0, 1, 1], 0.5),  # nothing but ties
        ([1, 2, 2, 2, 3], [0, 0, 1, 1, 0], (2 + 2 * 0.5) / 6),
        ([math.inf, -math.inf], [1, 0], 1.0),
    ],
)
def test_auc_counts_pairs_and_half_of_the_ties(scores: list[float], positive: list[int], expected: float) -> None:
    assert auc(scores, positive) == pytest.approx(expected, abs=1e-15)


def test_auc_is_what_counting_all_pairs_gives() -> None:
    draw = np.random.default_rng(0)
    scores, positive = draw.integers(0, 12, 60).astype(float), draw.random(60) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    assert auc(scores, positive) == pytest.approx(np.mean(pairs), abs=1e-12)


@pytest.mark.parametrize(("scores", "positive"), [([], []), ([1, 2], [1, 1]), ([1, 2], [0, 0]), ([1, NAN], [0, 1])])
def test_auc_needs_both_kinds_and_numbers(scores: list[float], positive: list[int]) -> None:
    assert math.isnan(auc(scores, positive))


def test_log_odds_rank_like_probabilities_and_do_not_saturate() -> None:
    z = np.array([[0.0, 1.0, 2.0], [3.0, -1.0, 0.5]])
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(log_odds(z), np.log(p / (1 - p)), rtol=1e-12)
    certain = log_odds([[100.0, 0.0, 0.0], [101.0, 0.0, 0.0]])
    assert certain[0, 0] < certain[1, 0]


def test_specificity_by_hand() -> None:
    # Class 0: of 5 others 1 is taken for it. Class 1: of 7 others 2. Class 2: of 8 others 0.
    confusion = np.array([[3, 2, 0], [1, 2, 0], [0, 0, 2]])
    assert float(specificity(confusion)) == pytest.approx((4 / 5 + 5 / 7 + 8 / 8) / 3)
    assert np.isnan(specificity(np.zeros((2, 3, 3), dtype=np.int64))).all()


def test_a_class_that_a_network_adds_is_no_class_of_the_test() -> None:
    assert float(specificity(np.array([[3, 1, 1], [0, 2, 0]]))) == pytest.approx((2 / 2 + 4 / 5) / 2)


def test_calibration_error_by_hand() -> None:
    # 0.8 is the upper end of (11/15, 12/15]; 0.75 lies in the same bin; 0.3 alone in its own.
    assert calibration_error([0.8, 0.75, 0.3], [1, 0, 0]) == pytest.approx((abs(1.55 - 1) + 0.3) / 3)
    assert calibration_error([1.0] * 4, [1, 1, 1, 0]) == pytest.approx(0.25)
    assert calibration_error([0.5, 0.5], [1, 0]) == 0.0
    assert math.isnan(calibration_error([], []))


def test_labels_by_hand() -> None:
    # Label 0: 1 hit, 1 false alarm, 1 miss, 2 spared. Label 1: never there, never predicted. Label 2: 2 hits.
    confusion = np.array([[[2, 1], [1, 1]], [[5, 0], [0, 0]], [[3, 0], [0, 2]]])
    assert float(label_f1(confusion)) == pytest.approx((2 / 4 + 1) / 2)
    found, spared = label_rates(confusion)
    assert float(found) == pytest.approx((1 / 2 + 1) / 2)
    assert float(spared) == pytest.approx((2 / 3 + 1 + 1) / 3)


def test_share_of_nothing() -> None:
    np.testing.assert_array_equal(share([1, 0], [2, 0]), [0.5, NAN])


def test_r2_by_hand() -> None:
    target = [[1.0, 7.0], [2.0, 7.0], [3.0, 7.0], [6.0, 7.0]]  # the second number does not vary
    predicted = [[1.0, 0.0], [3.0, 0.0], [3.0, 0.0], [5.0, 0.0]]
    found = regression.r2(predicted, target)
    assert found.value == pytest.approx(1 - 2 / 14)
    pull = (np.array([0, 1, 0, 1]) - 2 / 14 * np.array([4, 1, 0, 9])) / (14 / 4)
    assert found.error == pytest.approx(math.sqrt((pull**2).sum() / 3 / 4))
    assert regression.r2([[9.0], [9.0]], [[0.0], [2.0]]).value == pytest.approx(1 - (81 + 49) / 2)


def test_r2_error_is_that_of_repeated_draws() -> None:
    draw = np.random.default_rng(1)

    def once(n: int) -> regression.Measured:
        y = draw.normal(size=(n, 1))
        return regression.r2(y + draw.normal(size=(n, 1)) / 2, y)

    several = [once(200) for _ in range(400)]
    assert np.mean([one.error for one in several]) == pytest.approx(np.std([one.value for one in several]), rel=0.15)


def test_numbers_without_samples_or_variance() -> None:
    assert all(map(math.isnan, regression.r2(np.zeros((0, 1)), np.zeros((0, 1)))))
    assert all(map(math.isnan, regression.r2([[1.0], [2.0]], [[3.0], [3.0]])))
    assert all(map(math.isnan, regression.absolute_error(np.zeros((0, 2)), np.zeros((0, 2)))))


def test_absolute_error_by_hand() -> None:
    found = regression.absolute_error([[0.0, 0.0], [0.0, 4.0]], [[1.0, 1.0], [0.0, 0.0]])
    assert found.value == 1.5
    assert found.error == pytest.approx(math.sqrt(0.5) / math.sqrt(2))
    assert math.isnan(regression.absolute_error([[1.0]], [[0.0]]).error)


def test_wilson_by_the_formula() -> None:
    low, high = wilson(0.9, 20) or (NAN, NAN)
    assert (low, high) == pytest.approx((0.6990, 0.9721), abs=5e-5)  # Newcombe (1998), 18 of 20
    assert wilson(1.0, 5) == (pytest.approx(0.5655, abs=5e-5), pytest.approx(1.0))
    assert wilson(NAN, 5) is None
    assert wilson(0.0, 0) is None


def test_the_interval_of_an_auc() -> None:
    low, high = of_auc(0.75, 40, 60) or (NAN, NAN)
    # At either end the AUC lies 1.96 standard errors away, by Hanley and McNeil's variance at that end.
    for end in (low, high):
        q1, q2, n = end / (2 - end), 2 * end**2 / (1 + end), (40 + 60) / 2
        variance = (end * (1 - end) + (n - 1) * (q1 - end**2) + (n - 1) * (q2 - end**2)) / (40 * 60)
        assert abs(0.75 - end) == pytest.approx(1.959964 * math.sqrt(variance), rel=1e-5)
    wide, narrow = of_auc(0.75, 4, 6) or (NAN, NAN), of_auc(0.75, 400, 600) or (NAN, NAN)
    assert wide[0] < low < narrow[0] < 0.75 < narrow[1] < high < wide[1]
    perfect = of_auc(1.0, 5, 5) or (NAN, NAN)
    assert perfect[0] < 0.8
    assert perfect[1] == 1.0
    assert of_auc(NAN, 5, 5) is None
    assert of_auc(0.5, 0, 5) is None


def test_the_interval_of_a_mean_is_students() -> None:
    assert student(2.0, 1.0, 10**6) == pytest.approx((0.04, 3.96), abs=1e-3)
    assert student(2.0, 1.0, 10) == pytest.approx((2 - 2.262157, 2 + 2.262157), abs=1e-5)
    assert of_r2(0.9, 0.1, 10) == pytest.approx((1 - 0.1 * math.exp(2.262157), 1 - 0.1 * math.exp(-2.262157)), abs=1e-6)
    assert of_r2(1.0, 0.0, 10) == (1.0, 1.0)
    assert of_r2(-1e300, 1e301, 3) is not None
    assert of_r2(NAN, 0.1, 10) is None
    assert student(2.0, NAN, 10) is None
    assert student(2.0, 1.0, 1) is None


@pytest.mark.parametrize(("sizes", "shares"), [((95, 5), (0.9, 0.6)), ((30, 30), (0.8, 0.5)), ((500, 3), (0.99, 0.3))])
def test_the_interval_of_a_balanced_accuracy_covers_the_truth(sizes, shares) -> None:
    draw = np.random.default_rng(0)
    found = draw.binomial(sizes, shares, (2000, 2)) / np.array(sizes)
    spans = [of_mean(one, sizes) for one in found.tolist()]
    covered = [low <= sum(shares) / 2 <= high for low, high in filter(None, spans)]
    assert len(covered) == 2000
    assert 0.93 < np.mean(covered) < 0.99


def test_the_standard_error_of_a_balanced_accuracy_is_that_of_repeated_draws() -> None:
    draw, sizes, shares = np.random.default_rng(0), np.array([190, 10]), np.array([0.9, 0.6])
    right = draw.binomial(sizes, shares, (4000, 2))
    found = (right / sizes).mean(1)
    counts = np.zeros((4000, 2, 2), dtype=np.int64)
    counts[:, 0, 0], counts[:, 1, 1] = right.T
    counts[:, 0, 1], counts[:, 1, 0] = (sizes - right).T
    assert float(balanced_error(counts).mean()) == pytest.approx(found.std(), rel=0.05)


def test_intervals_of_numbers_cover_the_truth_on_small_tests() -> None:
    draw, hits, n = np.random.default_rng(2), np.zeros(2), 10
    for _ in range(1500):
        y, noise = draw.normal(size=(2, n, 1))
        p = y + noise / 2
        found, off = regression.r2(p, y), regression.absolute_error(p, y)
        spans = of_r2(*found, n), student(*off, n)
        truths = 0.75, math.sqrt(2 / math.pi) / 2
        hits += [span is not None and span[0] <= truth <= span[1] for span, truth in zip(spans, truths, strict=True)]
    assert (hits / 1500 > [0.885, 0.91]).all()  # normal intervals cover about 0.87 and 0.89


def test_numbers_that_are_all_equal_do_not_vary_by_rounding() -> None:
    assert math.isnan(regression.r2([[0.2]] * 3, [[0.1]] * 3).value)  # the mean of three 0.1 is not 0.1


def test_log_odds_of_the_same_logits_in_another_order_tie() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        rest = draw.normal(size=4) * 3
        logits = [[0.3, *rest], [0.3, *rest[::-1]], [7.3, *(np.roll(rest, 1) + 7)]]
        assert len(set(log_odds(logits)[:, 0].tolist())) == 1
    assert log_odds([[1e4, 0.0], [1e4 + 1e-3, 0.0]])[:, 1].tolist() == pytest.approx([-1e4, -1e4 - 1e-3], abs=1e-7)
