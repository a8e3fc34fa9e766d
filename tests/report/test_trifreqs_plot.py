"""KDIA's pictures: weights recomputed from who took part, and similarities with their names."""

from __future__ import annotations

import numpy as np
import pytest

from fedalloy.report.similarity_plot import similarity_picture
from fedalloy.report.trifreqs_plot import shares_of, trifreqs_picture, weights_over_rounds

SIZES = (10, 20, 30, 40)
PRESENT = [[0, 1], [0, 2], [0, 1]]


def test_weights_by_hand():
    """KDIA's test vector: after rounds with {0, 1}, {0, 2}, {0, 1} t_k = 3, 3, 2, 0 and c_k = 3, 2, 1, 0."""
    found = weights_over_rounds(PRESENT, SIZES)
    assert found[2].tolist() == pytest.approx([0.354966, 0.390690, 0.254344, 0.0], abs=1e-6)
    # After the first round both have e and 1, so that the sizes' cube roots remain.
    assert found[0].tolist() == pytest.approx([1 / (1 + 2 ** (1 / 3)), 2 ** (1 / 3) / (1 + 2 ** (1 / 3)), 0, 0])
    assert found.sum(1).tolist() == pytest.approx([1, 1, 1])


def test_ablations_weigh_unseen_clients_unless_they_are_left_out():
    everybody = weights_over_rounds(PRESENT, SIZES, use="number")
    assert everybody[0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    seen = weights_over_rounds(PRESENT, SIZES, use="number", seen_only=True)
    assert seen[0].tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0])
    assert weights_over_rounds(PRESENT, SIZES, mean="arithmetic")[2].tolist() == pytest.approx(
        [0.337874, 0.315652, 0.206277, 0.140198], abs=1e-6
    )


def test_a_round_without_anybody_changes_nothing():
    found = weights_over_rounds([[], [1], []], SIZES)
    assert np.isnan(found[0]).all()
    assert found[1].tolist() == found[2].tolist() == [0, 1, 0, 0]
    assert shares_of(found, [[], [1], []]).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("present", "clients"), [(PRESENT, 4), ([[0]], 1), ([[], []], 3), ([[t % 100] for t in range(120)], 100)]
)
def test_the_picture_of_weights(present, clients):
    sizes = list(range(1, clients + 1))
    weights = weights_over_rounds(present, sizes)
    figure = trifreqs_picture(weights, present, sizes, title="KDIA")
    figure.canvas.draw()
    main, _, lines = figure.axes[0], figure.axes[1], figure.axes[-1]
    drawn = np.ma.filled(main.collections[0].get_array(), np.nan)
    assert np.array_equal(drawn.reshape(clients, -1), weights.T, equal_nan=True)
    assert lines.lines[0].get_ydata().tolist() == shares_of(weights, present).tolist()
    for text in (*figure.texts, *lines.texts, lines.yaxis.label, main.yaxis.label, lines.xaxis.label):
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= 0
    assert all(float(tick).is_integer() for tick in lines.get_xticks())


@pytest.mark.parametrize("classes", [2, 50])
def test_the_picture_of_similarities(classes):
    values = [float("nan"), *np.linspace(-0.2, 0.9, classes - 1)]
    figure = similarity_picture(values, [f"class {c}" for c in range(classes)], title="KDIA")
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches][1:] == pytest.approx(values[1:])
    assert axes.texts[0].get_text() == "no samples"
    assert axes.texts[-1].get_text() == f"mean {np.nanmean(values):.2f}"
    assert axes.get_xlim()[0] <= -0.2 or classes == 2
    for text in (*figure.texts, *axes.texts, *axes.get_yticklabels()):
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
