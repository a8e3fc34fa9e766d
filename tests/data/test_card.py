"""The card of a partition and its pictures."""

from __future__ import annotations

import hashlib
import json
import struct
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedalloy.data.card import card, fingerprint, gini, jensen_shannon
from fedalloy.data.partition import Partition, split
from fedalloy.errors import UsageError
from fedalloy.report.partition_plot import bubble_plot, heat_map

LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1])


def rows(*lists):
    return tuple(np.array(numbers, dtype=np.int64) for numbers in lists)


def by_hand(**changes):
    """Client 0 holds four rows of class 0 and two of class 1; client 1 holds two rows of class 1."""
    parts = {"train": rows([0, 1, 4], [6]), "val": rows([2], []), "test": rows([3, 5], [7]), **changes}
    return Partition("by-hand", 3, {"alpha": 0.5}, **parts)


def test_every_figure_of_a_partition_made_by_hand():
    made = card(by_hand(), LABELS, 3)
    assert made.counts.tolist() == [[4, 2, 0], [0, 2, 0]]
    assert made.sizes.tolist() == [6, 2]
    assert made.classes_per_client == 1.5
    assert made.largest_share == pytest.approx((4 / 6 + 1) / 2)
    assert made.size_variation == pytest.approx(0.5)  # deviation 2, mean 4
    assert made.size_gini == pytest.approx(0.25)
    # Client 1 is (0, 1), all together (1/2, 1/2), their middle (1/4, 3/4).
    one = (np.log2(4 / 3) + 0.5 * np.log2(2) + 0.5 * np.log2(2 / 3)) / 2
    # Client 0 is (2/3, 1/3), and the middle with (1/2, 1/2) is (7/12, 5/12).
    zero = (2 / 3 * np.log2(8 / 7) + 1 / 3 * np.log2(4 / 5) + 0.5 * np.log2(6 / 7) + 0.5 * np.log2(6 / 5)) / 2
    np.testing.assert_allclose(made.divergence, [zero, one])


def test_official_test_rows_are_not_counted_in_the_training_pool():
    made = card(by_hand(test_from="official"), LABELS, 2)
    assert made.counts.tolist() == [[3, 1], [0, 1]]


def test_json_is_plain_and_whole():
    made = card(by_hand(), LABELS, 2)
    plain = made.to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert "indices" not in plain
    assert (plain["train"], plain["val"], plain["test"]) == ([3, 1], [1, 0], [2, 1])
    assert (plain["skew"]["smallest"], plain["skew"]["largest"]) == (2, 6)
    assert made.to_json(indices=True)["indices"]["test"] == [[3, 5], [7]]


def test_description_names_the_smallest_and_the_largest_client():
    lines = card(by_hand(), LABELS, 2).describe().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("by-hand (alpha=0.5), seed 3: 8 rows of 2 classes on 2 clients; sha256 ")
    assert "smallest 2 (client 1), mean 4, largest 6 (client 0)" in lines[1]
    assert "1.5 classes per client" in lines[2]
    assert "83%" in lines[2]


def test_fingerprint_is_little_endian_with_lengths():
    numbers = [3, 0, 1, 4, 1, 6, 1, 2, 0, 2, 3, 5, 1, 7]  # length, rows, length, rows, ...: train, then val, then test
    assert fingerprint(by_hand()) == hashlib.sha256(struct.pack("<14q", *numbers)).hexdigest()


def test_fingerprint_sees_a_moved_border_and_a_changed_order():
    prints = {
        fingerprint(by_hand(train=train))
        for train in (rows([0, 1, 4], [6]), rows([0, 1], [4, 6]), rows([1, 0, 4], [6]))
    }
    assert len(prints) == 3


def test_fingerprint_of_fedkfs_partition_never_changes():
    labels = np.repeat(np.arange(10), 5000)
    part = split(labels, name="dirichlet-dominant", clients=20, seed=123456, alpha=0.1)
    assert fingerprint(part) == "8fb5ac4d4aa23160988636c2976214110ffe24eb2f67aed01817f915ae54973f"


def test_extremes_of_the_measures():
    assert jensen_shannon(np.array([[1.0, 0.0]]), np.array([0.0, 1.0])).tolist() == [1.0]
    assert jensen_shannon(np.array([[0.3, 0.7]]), np.array([0.3, 0.7])).tolist() == [0.0]
    assert gini(np.array([0, 0, 0, 8])) == 0.75


def test_too_few_classes_are_refused():
    with pytest.raises(UsageError, match=r"label.*\b1\b.*classes = 1.*classes=2\b"):
        card(by_hand(), LABELS, 1)


@pytest.mark.parametrize("draw", [bubble_plot, heat_map])
@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (5, 10), (20, 26), (100, 10), (100, 100)])
def test_no_two_names_on_an_axis_overlap_and_nothing_leaves_the_page(draw, clients, classes):
    counts = np.random.default_rng(0).integers(0, 90, (clients, classes)) + 1
    names = [f"a class called {c}" for c in range(classes)]
    figure = draw(counts, names, title="a title")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    main, page = figure.axes[0], figure.bbox
    for axis in (main.xaxis, main.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert boxes
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))
        assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.x1 and box.y1 <= page.y1 for box in boxes)
    assert main.yaxis.label.get_window_extent().x0 >= 0
    assert main.xaxis.label.get_window_extent().y0 >= 0


def test_bubble_areas_are_in_proportion_to_counts():
    figure = bubble_plot(np.array([[400, 100], [0, 200]]))
    areas = figure.axes[0].collections[0].get_sizes()
    np.testing.assert_allclose(areas / areas[0], [1, 0.25, 0.5])
