"""DaFKD's importance beside the clients' data: the same clients, columns that add up, and nothing clipped."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedalloy.report.importance_plot import agreement, compared, importance_picture

# Clients 1 and 3 took part; no sample was taken for class 2, and neither of the two has samples of class 0.
IMPORTANCE = np.array([[0, 0, 0], [0.7, 0.4, 0], [0, 0, 0], [0.3, 0.6, 0]])
COUNTS = np.array([[9, 9, 9], [0, 1, 6], [4, 4, 4], [0, 3, 2]])


def test_only_clients_with_importance_are_compared():
    ids, given, held = compared(IMPORTANCE, COUNTS)
    assert ids.tolist() == [1, 3]
    assert np.array_equal(given, [[0.7, 0.4, np.nan], [0.3, 0.6, np.nan]], equal_nan=True)
    assert np.array_equal(held, [[np.nan, 0.25, 0.75], [np.nan, 0.75, 0.25]], equal_nan=True)


def test_what_was_given_stays_as_it_was():
    importance, counts = IMPORTANCE.copy(), COUNTS.copy()
    compared(importance, counts)
    assert np.array_equal(importance, IMPORTANCE)
    assert np.array_equal(counts, COUNTS)


def test_agreement_by_hand():
    # Deviations from 1/2: given 0.2, -0.1, -0.2, 0.1 and held 0.5, 0.5, -0.5, -0.5, so 0.1 / sqrt(0.1 * 1).
    given, held = np.array([[0.7, 0.4], [0.3, 0.6]]), np.array([[1.0, 1.0], [0.0, 0.0]])
    assert agreement(given, held) == pytest.approx(0.1 / 0.1**0.5)
    assert agreement(given, 1 - held) == pytest.approx(-(0.1 / 0.1**0.5))
    assert agreement(*compared(IMPORTANCE, COUNTS)[1:]) == pytest.approx(1)  # class 1 alone is known in both
    alike = np.full((4, 3), 0.25)
    assert np.isnan(agreement(alike, np.eye(4)[:, :3]))
    assert np.isnan(agreement(np.full((2, 2), np.nan), held))


def test_cells_say_percent_and_columns_without_numbers_say_why():
    figure = importance_picture(IMPORTANCE, COUNTS, ["cat", "dog", "owl"], title="DaFKD")
    left, right, _ = figure.axes
    assert [text.get_text() for text in left.texts] == ["70", "40", "30", "60", "no samples"]
    assert [text.get_text() for text in right.texts] == ["25", "75", "75", "25", "nobody's"]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["1", "3"]
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["cat", "dog", "owl"]
    assert [text.get_text() for text in figure.texts] == [
        "DaFKD",
        "2 of 4 clients took part in the last distillation. Columns add up to 100 %. Correlation of the two maps: 1.00",
    ]


@pytest.mark.parametrize(
    ("clients", "active", "classes", "word"),
    [
        (20, 20, 10, "a long name of class "),
        (20, 8, 10, ""),
        (1, 1, 2, "a long name of class "),
        (60, 60, 100, "class "),
        (1000, 5, 26, ""),
    ],
)
def test_both_maps_hold_all_numbers_inside_the_picture(clients, active, classes, word):
    stream = np.random.default_rng(0)
    importance, counts = np.zeros((clients, classes)), stream.integers(0, 9, (clients, classes)) + 1
    ids = np.sort(stream.permutation(clients)[:active])
    importance[ids] = stream.random((active, classes)) + 0.1
    importance /= importance.sum(0)
    importance[:, -1] = 0
    figure = importance_picture(importance, counts, [f"{word}{c}" for c in range(classes)], title="DaFKD")
    figure.canvas.draw()
    _, *tables = compared(importance, counts)
    left, right, bar = figure.axes
    for axes, table in zip((left, right), tables, strict=True):
        drawn = np.ma.filled(axes.collections[0].get_array(), np.nan)
        assert np.array_equal(drawn.reshape(active, classes), table, equal_nan=True)
        assert axes.collections[0].get_clim() == (0, np.nanmax(tables))  # one scale for both
        labels = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        for text in (*figure.texts, *axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *labels):
            box = text.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y0 >= 0
    assert left.title.get_window_extent().x1 < right.title.get_window_extent().x0
    assert right.title.get_window_extent().x1 < figure.bbox.x1
    assert bar.get_tightbbox().x1 <= figure.bbox.x1
    rows = [tick.get_window_extent() for tick in left.get_yticklabels()]
    assert all(above.y0 >= below.y1 for above, below in pairwise(rows))
    assert {tick.get_text() for tick in left.get_yticklabels()} <= set(map(str, ids))
