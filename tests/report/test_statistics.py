"""Intervals and tests over seeds: quantiles from tables and from scipy, and cases that can be computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.errors import UsageError
from fedalloy.report.statistics import (
    holm,
    paired,
    paired_p,
    probability_of_improvement,
    t_interval,
    t_quantile,
    t_two_sided,
)

# Printed tables of Student's t: degrees of freedom, and the quantiles at 0.9, 0.95, 0.975, 0.99 and 0.995.
PRINTED = {
    1: (3.078, 6.314, 12.706, 31.821, 63.657),
    2: (1.886, 2.920, 4.303, 6.965, 9.925),
    3: (1.638, 2.353, 3.182, 4.541, 5.841),
    4: (1.533, 2.132, 2.776, 3.747, 4.604),
    5: (1.476, 2.015, 2.571, 3.365, 4.032),
    9: (1.383, 1.833, 2.262, 2.821, 3.250),
    30: (1.310, 1.697, 2.042, 2.457, 2.750),
    120: (1.289, 1.658, 1.980, 2.358, 2.617),
}


@pytest.mark.parametrize("freedom", PRINTED)
def test_quantiles_are_those_of_printed_tables(freedom):
    levels = (0.9, 0.95, 0.975, 0.99, 0.995)
    assert tuple(round(t_quantile(level, freedom), 3) for level in levels) == PRINTED[freedom]


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 29, 500])
@pytest.mark.parametrize("level", [1e-9, 0.001, 0.3, 0.5, 0.500001, 0.975, 0.99999, 1 - 1e-9])
def test_quantiles_are_those_of_scipy(freedom, level):
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(level, freedom) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 29, 500])
@pytest.mark.parametrize("t", [0.0, 1e-6, 0.1, 1.0, 4.3, 50.0, 1e6])
def test_tails_are_those_of_scipy(freedom, t):
    stats = pytest.importorskip("scipy.stats")
    assert t_two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)


def test_two_closed_forms():
    for t in (0.0, 0.4, 2.0, 30.0):
        assert t_two_sided(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi)
        assert t_two_sided(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.nan])
def test_there_is_no_quantile_of_such_a_level(level):
    with pytest.raises(UsageError, match="between 0 and 1"):
        t_quantile(level, 2)


def test_there_is_none_without_degrees_of_freedom():
    with pytest.raises(UsageError, match="degrees of freedom"):
        t_quantile(0.9, 0)


def test_an_interval_by_hand():
    found = t_interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)
    assert (found.mean, found.sd, found.n) == (2.0, 1.0, 3)
    assert (found.low, found.high) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_values_that_agree_have_an_interval_without_width():
    assert t_interval([2.5] * 4).low == t_interval([2.5] * 4).high == 2.5
    assert t_interval([0.1, 0.1, 0.1]).sd == 0.0


def test_one_value_says_nothing_of_the_spread():
    found = t_interval([5.0])
    assert (found.mean, found.low, found.high, found.n) == (5.0, -math.inf, math.inf, 1)
    assert math.isnan(found.sd)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf, 1.0]])
def test_an_interval_needs_numbers(values):
    with pytest.raises(UsageError):
        t_interval(values)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12), st.floats(0.5, 0.98))
def test_a_higher_level_gives_a_wider_interval_around_the_same_mean(values, level):
    narrow, wide = t_interval(values, level), t_interval(values, level + 0.01)
    assert wide.low <= narrow.low <= narrow.mean <= narrow.high <= wide.high


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=8, unique=True))
def test_the_interval_excludes_zero_where_the_p_value_is_small(values):
    found, p = t_interval(values), paired_p(values)
    if abs(p - 0.05) > 1e-6:
        assert (found.low > 0 or found.high < 0) == (p < 0.05)


def test_pairs_are_the_seeds_that_both_have():
    assert paired({0: 5.0, 1: 7.0, 2: 1.0}, {1: 4.0, 0: 1.0, 3: 9.0}) == {0: 4.0, 1: 3.0}


def test_rounding_makes_no_difference():
    assert paired({0: 0.1 + 0.2}, {0: 0.3}) == {0: 0.0}
    assert paired({0: 100 * 0.57}, {0: 57.0}) == {0: 0.0}


def test_p_values_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for values in ([1.0, 2.0, 4.0], [-3.0, 1.0, 0.5, 0.25], [0.01, 0.02]):
        assert paired_p(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_p_values_without_spread():
    assert paired_p([0.0, 0.0, 0.0]) == 1.0
    assert math.isnan(paired_p([2.0]))


@pytest.mark.parametrize(("n", "p"), [(2, 0.5), (3, 0.25), (6, 0.03125)])
def test_differences_that_agree_are_judged_by_their_signs(n, p):
    assert paired_p([0.1] * n) == p
    assert paired_p([0.8 - 0.7, *[0.9 - 0.8] * (n - 1)]) == p  # equal but for rounding


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_leaves_out_what_was_not_tested():
    first, second, third = holm([0.01, math.nan, 0.03])
    assert (first, third) == (0.02, 0.03)
    assert math.isnan(second)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_lies_between_the_raw_values_and_bonferronis(values):
    for raw, adjusted in zip(values, holm(values), strict=True):
        assert raw <= adjusted <= min(1.0, len(values) * raw)


def test_the_probability_of_improvement_counts_all_pairs():
    assert probability_of_improvement([2.0, 4.0], [1.0, 3.0]) == 0.75
    assert probability_of_improvement([1.0, 1.0], [1.0]) == 0.5
    with pytest.raises(UsageError):
        probability_of_improvement([], [1.0])
