"""The best values beyond noise: t-tests and Holm's correction by hand, ties, and how often chance is marked."""

from __future__ import annotations

import math
import random

import pytest

from fedalloy.report.marks import differences, marks, note


def test_a_pair_by_hand():
    # The differences are 1, 2 and 3: mean 2, deviation 1, t = 2 * sqrt(3) with two degrees of freedom.
    one = differences([{0: 3.0, 1: 5.0, 2: 7.0}, {0: 2.0, 1: 3.0, 2: 4.0}])[0, 1]
    t = 2 * math.sqrt(3)
    assert one.p == one.adjusted == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert (one.interval.mean, one.interval.n) == (2.0, 3)
    assert one.interval.low == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))
    assert one.improvement == pytest.approx((1.5 + 3 + 3) / 9)  # of 3: above 2, level with 3; 5 and 7 are above all


def test_holm_counts_all_pairs():
    # Two degrees of freedom, where p = 1 - t / sqrt(2 + t^2); the smallest of three p-values counts three times.
    values = [{0: 10.0, 1: 10.1, 2: 10.2}, {0: 9.0, 1: 9.2, 2: 9.1}, {0: 5.0, 1: 5.1, 2: 5.3}]
    found = differences(values)
    assert list(found) == [(0, 1), (0, 2), (1, 2)]
    order = sorted(found.values(), key=lambda one: one.p)
    expected, highest = [], 0.0
    for rank, one in enumerate(order):
        highest = max(highest, (3 - rank) * one.p)
        expected.append(highest)
    assert [one.adjusted for one in order] == pytest.approx(expected)
    # 0 - 1: 1, 0.9, 1.1, so t = 1 / 0.1 * sqrt(3).
    t = 10 * math.sqrt(3)
    assert found[0, 1].p == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_the_best_and_those_that_cannot_be_told_from_it():
    ahead = {seed: 8 + seed / 10 for seed in range(3)}
    close = {0: 8.1, 1: 8.0, 2: 8.1}
    behind = {seed: 5 + seed / 11 for seed in range(3)}
    assert marks([behind, ahead, close]) == {1, 2}
    assert marks([behind, ahead, close], "low") == {0}
    assert marks([behind, ahead]) == {1}


def test_nothing_is_marked_within_noise():
    assert marks([{0: 0.8, 1: 0.9, 2: 0.7}, {0: 0.7, 1: 0.9, 2: 0.8}]) == set()
    assert marks([{0: 0.9}, {0: 0.1}]) == set()  # one seed
    assert marks([{0: 0.9, 1: 0.9}, {2: 0.1, 3: 0.1}]) == set()  # no common seed
    assert marks([{0: 0.9, 1: 0.91}]) == set()  # nobody to be better than
    assert marks([{0: 0.9, 1: math.inf}, {0: 0.1, 1: 0.11}]) == set()
    assert marks([]) == set()


def test_seeds_that_agree_by_chance_are_no_proof():
    assert marks([{0: 0.6, 1: 0.6}, {0: 0.5, 1: 0.5}]) == set()


def test_a_mark_is_by_chance_in_at_most_one_column_of_twenty():
    draw = random.Random(0)
    columns = [[{seed: draw.gauss(0, 1) for seed in range(5)} for _ in range(6)] for _ in range(300)]
    assert sum(bool(marks(column)) for column in columns) <= 0.05 * 300


def test_the_note_names_the_test_and_the_seeds():
    assert note([1]) == note([3]) == note([]) == ""
    assert "one seed" in note([1, 1, 1])
    assert "over 5 seeds" in note([5, 5])
    assert "over 1 to 5 seeds" in note([5, 1])
    assert "Holm" in note([3, 3], marked=False)
    assert note([3, 3], marked=False) != note([3, 3])
