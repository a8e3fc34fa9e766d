"""Hand-computed values of every metric, the cases of FedKF's Table II, and the agnostic bound as a property."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.config.sections import Published, Stop
from fedalloy.errors import UsageError
from fedalloy.federation import across, classification
from fedalloy.federation.metrics import METRICS, PublishedMetric, StopMetric
from fedalloy.report.table import EXPENDABLE, in_table

NAN = math.nan
TABLE_II = [
    ([0.6, 0.7, 0.8], 0.7, 0.02 / 3, 0.6),
    ([0.65, 0.65, 0.8], 0.7, 0.005, 0.65),
    ([0.7, 0.8, 0.9], 0.8, 0.02 / 3, 0.7),
]

# Client 0: 10 samples, 7 right. Client 1: none. Client 2: 2 samples of class 0 only, 1 right.
CONFUSION = np.array(
    [
        [[4, 1, 0], [1, 3, 0], [1, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[1, 0, 1], [0, 0, 0], [0, 0, 0]],
    ],
    dtype=np.int64,
)


@pytest.mark.parametrize(("acc", "amp", "fm", "wlp"), TABLE_II)
def test_table_ii_of_fedkf(acc: list[float], amp: float, fm: float, wlp: float) -> None:
    assert across.amp(acc, [5, 5, 5]) == pytest.approx(amp, abs=1e-12)
    assert across.fm(acc) == pytest.approx(fm, abs=1e-12)
    assert across.wlp(acc) == wlp
    assert across.alma(acc) == pytest.approx(amp, abs=1e-12)


def test_amp_by_other_sizes_leaves_out_who_has_no_accuracy() -> None:
    given = [0.875, NAN, 0.5], [4.0, 0.0, 1.0], [8, 0, 2]
    by_test, by_data = (across.summarise(*given, seed=0, weights=w) for w in (None, [10, 70, 30]))
    assert by_test["amp"] == pytest.approx((7 + 1) / 10)
    assert by_data["amp"] == pytest.approx((10 * 0.875 + 30 * 0.5) / 40)
    assert {**by_data, "amp": 0} == {**by_test, "amp": 0}


def test_amp_is_weighted_and_fm_is_not() -> None:
    acc, sizes = [0.6, 0.7, 0.8], [10, 10, 80]
    assert across.amp(acc, sizes) == pytest.approx(0.77, abs=1e-12)
    assert across.alma(acc) == pytest.approx(0.7, abs=1e-12)
    assert across.fm(acc) == pytest.approx(0.02 / 3, abs=1e-12)  # around 0.7; around 0.77 it would be 0.0115667
    assert across.wlp(acc) == 0.6


def test_equal_amp_and_larger_wlp_do_not_imply_smaller_fm() -> None:
    first, second = [0.6, 0.75, 0.75], [0.61, 0.61, 0.88]
    assert across.alma(first) == pytest.approx(across.alma(second), abs=1e-12)
    assert across.wlp(first) < across.wlp(second)
    assert across.fm(first) == pytest.approx(0.005, abs=1e-12)
    assert across.fm(second) == pytest.approx(0.0162, abs=1e-12)


def test_fm_divides_by_k() -> None:
    assert across.fm([0.0, 1.0]) == 0.25
    assert across.fm([0.3]) == 0.0


def test_empty_clients_are_left_out() -> None:
    acc = [0.6, NAN, 0.7, 0.8]
    assert across.amp(acc, [1, 0, 1, 1]) == pytest.approx(0.7)
    assert across.fm(acc) == pytest.approx(0.02 / 3)
    assert across.wlp(acc) == across.agnostic_lower_bound(acc) == 0.6
    assert across.alma(acc) == pytest.approx(0.7)
    assert across.bottom(acc) == 0.6
    assert across.mixtures(acc, 10, seed=3) == across.mixtures([0.6, 0.7, 0.8], 10, seed=3)
    assert across.worst_client([NAN, 0.7, 0.6]) == 2


def test_an_accuracy_that_should_be_there_is_not_hidden() -> None:
    assert math.isnan(across.amp([0.6, NAN], [1, 1]))


def test_nobody_to_measure() -> None:
    acc = [NAN, NAN]
    values = [across.amp(acc, [0, 0]), across.fm(acc), across.wlp(acc), across.alma(acc), across.bottom(acc)]
    assert np.isnan([*values, *across.mixtures(acc, 5, seed=0)]).all()
    assert across.worst_client(acc) == -1


def test_accuracy_per_client() -> None:
    np.testing.assert_array_equal(classification.accuracy_per_client(CONFUSION), [0.7, NAN, 0.5])


@pytest.mark.parametrize(
    ("count", "share", "taken"), [(1, 0.1, 1), (10, 0.1, 1), (11, 0.1, 2), (30, 0.1, 3), (100, 0.07, 7), (4, 1.0, 4)]
)
def test_bottom_takes_whole_clients(count: int, share: float, taken: int) -> None:
    assert across.bottom(np.arange(count)[::-1], share) == np.arange(taken).mean()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_bottom_refuses_a_share_that_is_none(share: float) -> None:
    with pytest.raises(UsageError, match="above 0 and up to 1"):
        across.bottom([0.5], share)


accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(acc=accuracies, data=st.data())
def test_no_mixture_falls_below_the_agnostic_bound(acc: list[float], data: st.DataObject) -> None:
    raw = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(acc), max_size=len(acc)).filter(any)))
    assert (raw / raw.sum()) @ np.array(acc) >= across.agnostic_lower_bound(acc) - 1e-12


@given(acc=accuracies, seed=st.integers(0, 2**32), concentration=st.sampled_from([0.01, 1.0, 100.0]))
def test_sampled_mixtures_obey_the_lemma(acc: list[float], seed: int, concentration: float) -> None:
    lowest, mean, variance = across.mixtures(acc, 20, seed, concentration)
    assert across.wlp(acc) - 1e-12 <= lowest <= mean + 1e-12 <= max(acc) + 1e-11
    assert variance >= 0


@pytest.mark.parametrize("worst", [-1e4, -1e8, -1e30, -1e300])
def test_scores_without_a_lower_bound_have_mixtures(worst: float) -> None:
    with np.errstate(over="ignore"):
        lowest, mean, _ = across.mixtures([worst] * 3, q=100, seed=0)
    assert lowest == pytest.approx(worst)
    assert mean == pytest.approx(worst)


@given(acc=accuracies)
def test_the_bound_is_tight_at_a_vertex(acc: list[float]) -> None:
    vertex = np.eye(len(acc))[across.worst_client(acc)]
    assert vertex @ np.array(acc) == across.agnostic_lower_bound(acc)


@pytest.mark.parametrize("concentration", [0.5, 1.0, 5.0])
def test_moments_of_the_mixtures(concentration: float) -> None:
    # Under a symmetric Dirichlet the mean is ALMA and the variance FM / (K * concentration + 1).
    acc = [0.1, 0.5, 0.6, 0.9]
    _, mean, variance = across.mixtures(acc, 40_000, 7, concentration)
    assert mean == pytest.approx(across.alma(acc), abs=0.005)
    assert variance == pytest.approx(across.fm(acc) / (4 * concentration + 1), rel=0.05)


def test_mixtures_are_addressed_by_the_seed() -> None:
    assert across.mixtures([0.1, 0.9], 5, seed=1) == across.mixtures([0.1, 0.9], 5, seed=1)
    assert across.mixtures([0.1, 0.9], 5, seed=1) != across.mixtures([0.1, 0.9], 5, seed=2)


@pytest.mark.parametrize(("q", "concentration"), [(0, 1.0), (5, 0.0)])
def test_mixtures_refuse_nonsense(q: int, concentration: float) -> None:
    with pytest.raises(UsageError, match="mixtures"):
        across.mixtures([0.5], q, 0, concentration)


def test_balanced_accuracy_per_client_and_pooled() -> None:
    # Client 0: recalls 4/5, 3/4, 0/1. Client 2 has only class 0: 1/2. Pooled: 5/7, 3/4, 0/1.
    np.testing.assert_allclose(classification.balanced_accuracy(CONFUSION), [(0.8 + 0.75 + 0.0) / 3, NAN, 0.5])
    assert float(classification.balanced_accuracy(CONFUSION.sum(0))) == pytest.approx((5 / 7 + 3 / 4) / 3)


def test_macro_f1_per_client_and_pooled() -> None:
    # 2 TP / (row + column). Client 0: 8/11, 6/8, 0/1. Client 2: 2/3 and, predicted but absent, 0/1; class 1 unseen.
    np.testing.assert_allclose(classification.macro_f1(CONFUSION), [(8 / 11 + 6 / 8) / 3, NAN, (2 / 3) / 2])
    assert float(classification.macro_f1(CONFUSION.sum(0))) == pytest.approx((10 / 14 + 6 / 8 + 0 / 2) / 3)


def test_gain_keeps_the_clients_apart() -> None:
    np.testing.assert_allclose(across.gain([0.7, NAN, 0.5], [0.6, 0.5, 0.9]), [0.1, NAN, -0.4])
    with pytest.raises(UsageError, match="2 and 1"):
        across.gain([0.1, 0.2], [0.1])


def test_stability_looks_at_the_last_twenty_rounds() -> None:
    assert across.stability([0.0] * 50 + [0.25, 0.75] * 10) == 0.25
    assert across.stability([0.25, 0.75]) == 0.25
    assert math.isnan(across.stability([0.5]))


def test_rounds_to_target() -> None:
    series = [0.1, 0.5, 0.3, 0.4, 0.6, 0.7]
    assert across.rounds_to_target(series, 0.5) == 2
    assert across.rounds_to_target(series, 0.1) == 1
    assert across.rounds_to_target(series, 0.71) is None
    assert across.rounds_to_target(series, 0.5, smoothing=2) == 5  # windows: .3 .4 .35 .5 .65
    assert across.rounds_to_target([0.9, 0.9], 0.5, smoothing=3) is None
    assert across.rounds_to_target([], 0.5) is None
    assert across.rounds_to_target([0.7] * 3, 0.7, smoothing=3) == 3  # rounding in the mean does not miss a target
    with pytest.raises(UsageError, match="smoothing is 0"):
        across.rounds_to_target(series, 0.5, smoothing=0)


def test_summarise() -> None:
    row = across.summarise([0.7, NAN, 0.5], [5.0, 0.0, 4.0], [10, 0, 2], seed=0)
    assert row["amp"] == pytest.approx(8 / 12)
    assert row["alma"] == pytest.approx(0.6)
    assert row["fm"] == pytest.approx(0.01)
    assert row["wlp"] == row["bottom10"] == 0.5
    assert row["worst_client"] == 2
    assert isinstance(row["worst_client"], int)
    assert row["loss"] == 0.75
    assert (row["mixture_min"], row["mixture_mean"], row["mixture_var"]) == across.mixtures([0.7, 0.5], 100, 0)
    assert len(row) == 10


def test_summarise_without_any_test_sample() -> None:
    row = across.summarise([NAN, NAN], np.zeros(2), np.zeros(2), seed=0)
    assert row.pop("worst_client") == -1
    assert np.isnan(list(row.values())).all()


def test_summarise_refuses_other_shapes() -> None:
    with pytest.raises(UsageError, match="there are 3 and 2"):
        across.summarise([0.7, NAN, 0.5], np.zeros(2), np.ones(3), seed=0)


def test_each_metric_is_described_once() -> None:
    assert all(name == metric.name and metric.meaning.endswith(".") for name, metric in METRICS.items())
    shown = [metric.heading for metric in METRICS.values()]
    assert len(shown) == len(set(shown))


def test_the_choices_of_an_experiment_are_metrics() -> None:
    stops, published = get_args(StopMetric), get_args(PublishedMetric)
    assert all(METRICS[name].better == "high" and METRICS[name].unit == "percent" for name in stops)  # shares of 1
    assert {*stops, *published} <= {name for name, metric in METRICS.items() if metric.source == "view"}
    assert get_args(get_type_hints(Stop)["metric"]) == stops
    assert get_args(get_args(get_type_hints(Published)["metrics"])[0]) == published


def test_a_narrow_terminal_hides_any_column_but_two() -> None:
    columns = {*in_table("comparison"), *in_table("decisions"), "View"}
    assert columns - {*EXPENDABLE} == {"amp", "wlp"}
    assert len(EXPENDABLE) == len({*EXPENDABLE}) == len(columns) - 2
